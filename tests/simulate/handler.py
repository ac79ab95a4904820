"""The handler of a simulated member: reads and marks as its MemberSpec says, can be disturbed, and reports to the oracle."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

from asyncgroup import Claim, Handler, Record, Session, TopicPartition
from asyncgroup.errors import CommitFailedError, UsageError
from tests.simulate.oracle import ClaimLog, Oracle
from tests.simulate.plan import MemberSpec
from tests.simulate.story import Story, Violation

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
        is_up_to_date: Callable[[Session], bool],
    ) -> None:
        self.spec = spec
        self.oracle = oracle
        self.story = story
        self.rng = rng
        self.disturbances = Disturbances()
        self.is_dead = False
        self.last_response_at: Callable[[], float] = lambda: float("inf")
        self.max_silence = float("inf")
        self.expects_prompt_commits = False
        """Whether nothing delays commits in this run, so that automatic ones have to be made in time."""
        self._fail = fail
        self._is_up_to_date = is_up_to_date
        self._open: dict[Session, list[str]] = {}
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
        self.claims[session] = []

    async def on_assigned(self, session: Session, partitions: Sequence[TopicPartition]) -> None:
        self._write(f"assigned {_named(partitions)}")
        calls = self._open.get(session, [])
        self._check("hooks come in pairs", f"on_assigned after {calls}", holds=calls == ["setup"])
        calls.append("assigned")

    async def on_revoked(self, session: Session, partitions: Sequence[TopicPartition]) -> None:
        self._partitions_removed(session, partitions, "revoked")

    async def on_lost(self, session: Session, partitions: Sequence[TopicPartition]) -> None:
        self._partitions_removed(session, partitions, "lost")
        self.story.count("lost")
        self._check("hooks come in pairs", "on_lost in a session that is not lost", holds=session.is_lost)

    def _partitions_removed(self, session: Session, partitions: Sequence[TopicPartition], how: str) -> None:
        self._write(f"{how} {_named(partitions)}")
        calls = self._open.get(session, [])
        right = calls == ["setup", "assigned"]
        self._check("hooks come in pairs", f"on_{how} after {calls}", holds=right)
        calls.append(how)
        self._check_handlers_ended(session, f"on_{how}")

    async def cleanup(self, session: Session) -> None:
        self._write("cleanup")
        calls = self._open.pop(session, [])
        right = calls == ["setup"] or (
            calls[:2] == ["setup", "assigned"] and (len(calls) == 3) == bool(session.partitions)
        )
        self._check("hooks come in pairs", f"cleanup after {calls}", holds=right)
        self._check_handlers_ended(session, "cleanup")

    def _check_handlers_ended(self, session: Session, what: str) -> None:
        running = [str(claim) for claim in self.claims.get(session, []) if not claim.has_ended]
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
        )
        self._write(f"claim {claim.tp} from {claim.initial_offset}")
        self._check(
            "hooks come in pairs",
            "a claim before on_assigned",
            holds="assigned" in self._open.get(session, []),
        )
        self._try(self.oracle.claim_started, log, is_up_to_date=self._is_up_to_date(session))
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
        """Check, as a record is handed out, that some broker has answered within the session timeout."""
        silence = asyncio.get_running_loop().time() - self.last_response_at()
        text = f"{log.tp} at {offset} is handed out after {silence:.3f} s without a response of any broker"
        self._check("a session without responses is lost", text, holds=silence <= self.max_silence)

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
            age, most = now - log.dirty_since, self.spec.auto_commit_interval + MAX_COMMIT_SECONDS
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
