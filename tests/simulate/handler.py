"""The handler of a simulated member: reads and marks as its MemberSpec says, can be disturbed, and reports to the oracle."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

from asyncgroup import Claim, Handler, Record, Session, TopicPartition
from asyncgroup.errors import CommitFailedError, UsageError
from tests.simulate.oracle import ClaimLog, Oracle
from tests.simulate.plan import MemberSpec
from tests.simulation.story import Story, Violation

__all__ = ["Disturbances", "Injected", "SimHandler"]


MAX_COMMIT_SECONDS = 2.5
"""Seconds that a commit may take with the slowest latency profile."""


class Injected(Exception):
    """The exception that a disturbed handler raises."""


class Disturbances:
    """The disturbances of a member's handlers."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()  # cleared while the handlers are blocked
        self.gate.set()
        self.pace = 0.0  # seconds per record
        self.ignores_cancellation = False
        self.has_ignored = False
        """Whether a handler has ignored its cancellation in this run."""
        self.raise_once = False
        self.return_once = False

    def end(self) -> None:
        """End all disturbances."""
        self.gate.set()
        self.pace = 0.0
        self.ignores_cancellation = False
        self.raise_once = False
        self.return_once = False


class SimHandler(Handler):
    """The handler of one member. With `is_dead` (a simulated crash) it reports nothing more."""

    def __init__(
        self,
        spec: MemberSpec,
        oracle: Oracle,
        story: Story,
        rng: random.Random,
        fail: Callable[[Violation], None],
        is_up_to_date: Callable[[Session, TopicPartition], bool],
    ) -> None:
        self.spec = spec
        self.oracle = oracle
        self.story = story
        self.rng = rng
        self.disturbances = Disturbances()
        self.is_dead = False
        self.last_response_at: Callable[[], float] = lambda: float("inf")
        self.max_silence = float("inf")
        self.silence_of_join: Callable[[], float] = lambda: 0.0
        """Returns for how many seconds more no broker may respond, as the member joins again."""
        self.max_commit_seconds = MAX_COMMIT_SECONDS
        self.expects_prompt_commits = False
        """Whether nothing delays commits in this run, so that automatic ones have to be made in time."""
        self.given_up: set[str] = set()
        """The partitions that the member has given up while their handlers were running, by its log."""
        self.check_committed: Callable[[Iterable[ClaimLog]], None] = lambda _claims: None
        """Called with claims that were revoked in order, after their last commit."""
        self._fail = fail
        self._is_up_to_date = is_up_to_date
        self._open: dict[Session, list[str]] = {}
        self._assigned: dict[Session, set[TopicPartition]] = {}
        self.claims: dict[Session, list[ClaimLog]] = {}

    def _write(self, what: str) -> None:
        if not self.is_dead:
            self.story.write(self.spec.name, what)

    def _check(self, name: str, text: str, *, holds: bool) -> None:
        if not holds and not self.is_dead:
            self._fail(Violation(name, f"{self.spec.name}: {text}"))

    def _try(self, check: Callable[..., Any], *args: Any, **more: Any) -> None:
        """Report an event to the oracle, unless the member is dead; a violation ends the run."""
        if self.is_dead:
            return
        try:
            check(*args, **more)
        except Violation as violation:
            self._fail(violation)

    # --- session hooks, which must come in pairs ------------------------------------------------------------------

    async def setup(self, session: Session) -> None:
        self._write(f"setup, generation {session.generation_id}")
        self._check("hooks come in pairs", f"setup twice for {session}", holds=session not in self._open)
        others = [one for one in self._open if one is not session]
        self._check("hooks come in pairs", f"setup while {others} is open", holds=not others)
        self._open[session] = ["setup"]
        self._assigned[session] = set()
        self.claims[session] = []

    async def on_assigned(self, session: Session, partitions: Sequence[TopicPartition]) -> None:
        self._write(f"assigned {_named(partitions)}")
        calls = self._open.get(session, [])
        # by the eager protocol only for partitions that start late, as their start offsets were not known yet
        is_late = bool(partitions) and set(calls) == {"setup", "assigned"}
        right = calls[:1] == ["setup"] and (self.spec.sessions_last or calls == ["setup"] or is_late)
        self._check("hooks come in pairs", f"on_assigned after {calls}", holds=right)
        calls.append("assigned")
        assigned = self._assigned.get(session, set())
        twice = sorted(assigned.intersection(partitions))
        self._check("hooks come in pairs", f"on_assigned twice for {twice}", holds=not twice)
        assigned.update(partitions)

    async def on_revoked(self, session: Session, partitions: Sequence[TopicPartition]) -> None:
        self._partitions_removed(session, partitions, "revoked")

    async def on_lost(self, session: Session, partitions: Sequence[TopicPartition]) -> None:
        self._partitions_removed(session, partitions, "lost")
        self.story.count("lost")
        self._check("hooks come in pairs", "on_lost in a session that is not lost", holds=session.is_lost)

    def _partitions_removed(self, session: Session, partitions: Sequence[TopicPartition], how: str) -> None:
        self._write(f"{how} {_named(partitions)}")
        calls = self._open.get(session, [])
        is_first = set(calls) == {"setup", "assigned"}
        right = calls[:2] == ["setup", "assigned"] and (self.spec.sessions_last or is_first)
        self._check("hooks come in pairs", f"on_{how} after {calls}", holds=right)
        calls.append(how)
        assigned = self._assigned.get(session, set())
        unknown = sorted(set(partitions) - assigned)
        self._check("hooks come in pairs", f"on_{how} of {unknown}, not assigned", holds=not unknown)
        assigned.difference_update(partitions)
        if self.spec.sessions_last:
            self._give_up_handlers(session, partitions)
            if how == "revoked" and not session.ended:
                self.check_committed(log for log in self.claims.get(session, []) if log.tp in partitions)
        self._check_handlers_ended(session, f"on_{how}", partitions)

    def _give_up_handlers(self, session: Session, partitions: Sequence[TopicPartition]) -> None:
        """Handlers that ignore their cancellation go on after the member has left; what they mark is dropped."""
        for log in self.claims.get(session, []):
            if log.tp in partitions and not log.has_ended and str(log.tp) in self.given_up:
                text = f"the handler of {log.tp} is left behind, and did not ignore its cancellation"
                self._check("handlers are waited for", text, holds=self.disturbances.has_ignored)
                self.story.count("left behind")
                self.oracle.claim_ended(log)
                log.is_left_behind = True

    async def cleanup(self, session: Session) -> None:
        self._write("cleanup")
        calls = self._open.pop(session, [])
        assigned = self._assigned.pop(session, set())
        right = calls[:1] == ["setup"] and not assigned
        self._check("hooks come in pairs", f"cleanup after {calls}, {assigned} assigned", holds=right)
        self._check_handlers_ended(session, "cleanup", [log.tp for log in self.claims.get(session, [])])

    def _check_handlers_ended(
        self, session: Session, what: str, partitions: Sequence[TopicPartition]
    ) -> None:
        logs = self.claims.get(session, [])
        running = [str(log) for log in logs if log.tp in partitions and not log.has_ended]
        text = f"{what} while the handlers of {running} run"
        self._check("hooks come after handlers", text, holds=not running)

    def session_ended(self, session: Session) -> None:
        """Check that `cleanup` was called: no hook may follow the end of the session."""
        calls = self._open.get(session)
        self._check("hooks come in pairs", f"no cleanup after {calls}", holds=calls is None)

    # --- claims ---------------------------------------------------------------------------------------------------

    async def consume_claim(self, session: Session, claim: Claim) -> None:
        log = ClaimLog(
            self.spec.name,
            session.member_id,
            session.generation_id,
            claim.tp,
            claim.initial_offset,
            self.spec.instance_id,
            (lambda: session.generation_id) if self.spec.is_consumer else None,
        )
        self._write(f"claim {claim.tp} from {claim.initial_offset}")
        self._check(
            "hooks come in pairs",
            "a claim before on_assigned",
            holds=claim.tp in self._assigned.get(session, set()),
        )
        self._try(self.oracle.claim_started, log, is_up_to_date=self._is_up_to_date(session, claim.tp))
        self.claims.setdefault(session, []).append(log)
        try:
            async with self._logging_end(log):
                await getattr(self, f"_read_{self.spec.style}")(session, claim, log)
        finally:
            log.has_ended = True
            if log in self.oracle.running:
                self.oracle.claim_ended(log)

    @asynccontextmanager
    async def _logging_end(self, log: ClaimLog) -> AsyncIterator[None]:
        start = log.next
        try:
            yield
        except asyncio.CancelledError:
            self._write(f"handler of {log.tp} cancelled, read {start} to {log.next}, marked {log.mark}")
            raise
        except Exception as error:
            self._write(f"handler of {log.tp} raised {type(error).__name__}, marked {log.mark}")
            raise
        else:
            self._write(f"handler of {log.tp} over, read {start} to {log.next}, marked {log.mark}")

    async def _read_records(self, session: Session, claim: Claim, log: ClaimLog) -> None:
        async for record in claim:
            self._check_silence(log, record.offset)
            await self._handle(log, record)
            await self._mark(session, claim, log, record)
            if self._should_return():
                return

    async def _read_breaks(self, session: Session, claim: Claim, log: ClaimLog) -> None:
        """Break out of the loop after a few records, and start a new one."""
        while not claim.ended:
            left = self.rng.randint(1, 4)
            async for record in claim:
                self._check_silence(log, record.offset)
                await self._handle(log, record)
                await self._mark(session, claim, log, record)
                left -= 1
                if not left:
                    break
            if self._should_return():
                return

    async def _read_timeouts(self, session: Session, claim: Claim, log: ClaimLog) -> None:
        """Read with `anext` and short timeouts: a canceled read must not lose a record."""
        while not claim.ended:
            record = None
            with suppress(TimeoutError, StopAsyncIteration):
                async with asyncio.timeout(self.rng.choice([0.05, 0.4, 3.0])):
                    record = await anext(claim)
            if record is not None:
                self._check_silence(log, record.offset)
                await self._handle(log, record)
                await self._mark(session, claim, log, record)
            if self._should_return():
                return

    async def _read_batches(self, session: Session, claim: Claim, log: ClaimLog) -> None:
        async for batch in claim.batches(
            max_records=self.rng.choice([2, 10, 500]), max_wait=self.rng.choice([0, 0.2])
        ):
            self._check_silence(log, batch.first_offset)
            for record in batch:
                await self._handle(log, record)
            self._note_mark(log, batch.last_offset + 1)
            claim.mark(batch)
            await self._commit(session)
            if self._should_return():
                return

    # --- one record -----------------------------------------------------------------------------------------------

    def _check_silence(self, log: ClaimLog, offset: int) -> None:
        """Check, as a record is delivered, that some broker has answered within the session timeout."""
        silence = asyncio.get_running_loop().time() - self.last_response_at()
        text = f"{log.tp} at {offset} is handed out after {silence:.3f} s without a response of any broker"
        in_time = silence <= self.max_silence or silence <= self.max_silence + self.silence_of_join()
        self._check("a session without responses is lost", text, holds=in_time)

    async def _handle(self, log: ClaimLog, record: Record) -> None:
        self._stop_if_dead()
        assert record.value is not None
        self._try(self.oracle.handed_out, log, record.offset, record.value)
        await self._work()
        self._stop_if_dead()
        self.story.count("handled")
        if not self.oracle.handled(log, record.offset):
            self.story.count("again")

    def _stop_if_dead(self) -> None:
        if self.is_dead:
            raise asyncio.CancelledError

    async def _work(self) -> None:
        disturbances = self.disturbances
        if disturbances.raise_once:
            disturbances.raise_once = False
            raise Injected("injected by the simulation")
        pace = disturbances.pace or (self.spec.work_seconds if self.rng.random() < 0.3 else 0.0)
        if pace:
            await asyncio.sleep(pace * self.rng.uniform(0.5, 1.5))
        while not disturbances.gate.is_set():
            try:
                await disturbances.gate.wait()
            except asyncio.CancelledError:
                if not disturbances.ignores_cancellation:
                    raise
                self.disturbances.has_ignored = True
                self._write("ignores its cancellation")

    async def _mark(self, session: Session, claim: Claim, log: ClaimLog, record: Record) -> None:
        if self.spec.mark_every > 1 and record.offset % self.spec.mark_every and claim.lag:
            return
        self._note_mark(log, record.offset + 1)
        claim.mark(record)
        if self.rng.random() < 0.2:
            await self._commit(session)

    def _note_mark(self, log: ClaimLog, offset: int) -> None:
        if self.is_dead:
            return
        now = asyncio.get_running_loop().time()
        self.oracle.marked(log, offset, now)
        if self.expects_prompt_commits and self.spec.auto_commit and log.dirty_since is not None:
            age, most = now - log.dirty_since, self.spec.auto_commit_interval + self.max_commit_seconds
            text = f"marks of {log} wait for {age:.2f} s, auto_commit_interval is {self.spec.auto_commit_interval:g} s"
            self._check("automatic commits are in time", text, holds=age <= most)

    async def _commit(self, session: Session) -> None:
        """Commit explicitly, if the member has no automatic commits."""
        if self.spec.auto_commit:
            return
        try:
            await session.commit()
        except (CommitFailedError, UsageError) as error:
            self._write(f"commit failed: {type(error).__name__}")

    def _should_return(self) -> bool:
        told, self.disturbances.return_once = self.disturbances.return_once, False
        return told


def _named(partitions: Sequence[TopicPartition]) -> str:
    return ", ".join(map(str, partitions)) or "nothing"
