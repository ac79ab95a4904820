"""The oracle of work queues: what was delivered, done and committed, and the invariants about it. Pure state.

A visit is one delivery at its handler, a claim one partition from its assignment to its end. Records are identified by their
values, which are unique and which copies in retry and dead letter topics keep.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any, Final

from asyncgroup import Session, TopicPartition
from asyncgroup.ack_window import AckWindow
from asyncgroup.offsets.commit_metadata import decode_metadata
from asyncgroup.offsets.window_encoding import decode_window
from asyncgroup.workqueue import Delivery, DeliveryState
from tests.simulate.oracle import ANY, ClaimLog, Oracle
from tests.simulate.queues_claims import QueueClaim, Visit
from tests.simulate.queues_logs import Logs
from tests.simulate.queues_setting import RETRY_TOPIC, QueueSetting
from tests.simulation.story import Violation

__all__ = ["QueueOracle"]

LATE: Final = 0.3
"""Seconds by which a record may be delivered after its delay, if its queue is idle."""


class QueueOracle:
    """What the queues of a group have done; `base` has the facts about logs and owners."""

    def __init__(self, setting: QueueSetting, base: Oracle, logs: Logs, *, is_orderly: bool) -> None:
        self.setting = setting
        self.base = base
        self.logs = logs
        self.is_orderly = is_orderly
        self.claims: dict[TopicPartition, list[QueueClaim]] = defaultdict(list)
        self.committed_windows: dict[TopicPartition, tuple[AckWindow, bool]] = {}
        """By the last commit: the window, and whether the claim is open."""
        self.running: dict[Visit, None] = {}
        """Handlers that run, the first first."""
        self.idle_since: dict[str, float] = {}
        """By member: since when no handler of it runs."""
        self.deliveries: Counter[bytes] = Counter()
        """By value: how often it was delivered, in all topics."""
        self.attempts_seen: dict[bytes, set[int]] = defaultdict(set)
        self.acked: Counter[bytes] = Counter()
        """By value: how often its handler has succeeded."""
        self.acked_while_acquired: set[bytes | None] = set()
        """The values whose handler has succeeded before the delivery had expired or was lost."""
        self.rejected: set[bytes] = set()
        self.has_crashed = False
        """Whether a claim began whose last owner had not ended in order: deliveries may be counted that were not made."""

    @property
    def keeps_all(self) -> bool:
        """Whether a commit always has room for the whole window."""
        return self.setting.metadata_limit == 4096

    # --- claims -------------------------------------------------------------------------------------------------------

    def claim_began(
        self, log: ClaimLog, session: Session, window: AckWindow, now: float, *, is_up_to_date: bool
    ) -> QueueClaim:
        """A partition was assigned, and `window` is what its queue has restored."""
        known, was_open = self.committed_windows.get(log.tp, (AckWindow(0), False))
        doubtful = any(tp == log.tp for _, tp, _ in self.base.doubtful)
        is_exact = is_up_to_date and not doubtful
        restored = known if is_exact else AckWindow(window.base, window.runs, window.attempts)
        claim = QueueClaim(log, session, restored, was_open, is_exact, now)
        if is_exact:
            self._check_last_commit(claim)
        self.has_crashed = self.has_crashed or was_open or not is_exact
        self.claims[log.tp].append(claim)
        self.base.running[log] = None
        self.base._running_at.setdefault(log.tp, []).append(log)
        self.base.check_one_owner([log.tp])
        return claim

    def _check_last_commit(self, claim: QueueClaim) -> None:
        """Check that the last owner, if its claim has ended in order, has committed all."""
        before = self.claims[claim.tp][-1] if self.claims[claim.tp] else None
        if before is None or not before.ended_in_order or not self.keeps_all:
            return
        name, restored = "an orderly end commits all", claim.restored
        missing = sorted(offset for offset in before.acked if offset not in restored)
        if missing:
            raise Violation(name, f"{before.log} has acknowledged {missing}, committed is {restored!r}")
        if claim.was_open and self.setting.has_dead_letters:
            raise Violation(name, f"{before.log} has ended in order, its commit says that it is open")
        for offset, last in before.last.items():
            if last.delivery.attempt == self.setting.last_attempt:
                continue  # whether it has expired cannot be seen, as a copy follows
            if offset not in restored and restored.attempts.get(offset, 0) != before.attempts(offset):
                text = f"{before.log}: {before.attempts(offset)} deliveries of {offset} have failed, "
                raise Violation(name, text + f"committed are {restored.attempts.get(offset, 0)}")

    def claim_ended(self, claim: QueueClaim) -> None:
        """The queue has forgotten the partition."""
        if not claim.log.has_ended:
            claim.log.has_ended = True
            self.base.running.pop(claim.log, None)
            self.base._running_at[claim.tp].remove(claim.log)

    def member_died(self, member: str) -> None:
        """A process was killed."""
        for claim in (claim for claims in self.claims.values() for claim in claims):
            if claim.member == member and not claim.log.has_ended:
                claim.is_dead = True
                self.claim_ended(claim)
        for visit in [visit for visit in self.running if visit.claim.member == member]:
            del self.running[visit]

    # --- deliveries ---------------------------------------------------------------------------------------------------

    def began(self, claim: QueueClaim, delivery: Delivery, now: float, wall_ms: int) -> Visit:
        """A handler gets a delivery."""
        record = delivery.record
        key = b"" if self.setting.mode.in_order else record.key
        visit = Visit(delivery, claim, key if self.setting.mode.value != "shared" else None)
        self._check_place(visit, now)
        self._check_attempt(visit)
        self._check_time(visit, now, wall_ms)
        if visit.key is not None:
            self._check_alone(visit)
            # in modes with an order a delayed copy does not keep later ones waiting
            if self.setting.has_order and not (self.setting.mode.in_order and claim.tp.topic == RETRY_TOPIC):
                self._check_order(visit, visit.key)
        claim.last[record.offset] = visit
        self.running[visit] = None
        self.idle_since.pop(claim.member, None)
        value = record.value or b""
        self.deliveries[value] += 1
        self.attempts_seen[value].add(delivery.attempt)
        return visit

    def _check_place(self, visit: Visit, now: float) -> None:
        claim, offset = visit.claim, visit.offset
        if offset >= (end := self.base.replicated(claim.tp)):
            raise Violation("only replicated records are read", f"{visit}: the high watermark is {end}")
        if (value := self.logs.value(claim.tp, offset)) != visit.delivery.value:
            raise Violation(
                "one record an offset", f"{visit} is {visit.delivery.value!r}, the log has {value!r}"
            )
        is_gathered = self.setting.specs[claim.member].style == "batch"  # a batch was begun before
        if claim.revoked_at is not None and claim.revoked_at < now and not is_gathered:
            text = f"{visit} is delivered at {now:.3f}, revoked at {claim.revoked_at:.3f}"
            raise Violation("nothing is delivered after a revocation", text)
        if claim.has_done(offset):
            how = "has acknowledged it" if offset in claim.acked else f"began with {claim.restored!r}"
            raise Violation("no acknowledged record is delivered again", f"{visit}: its claim {how}")
        if self.is_orderly and self.keeps_all and visit.delivery.value in self.acked_while_acquired:
            raise Violation("orderly actions cost nothing", f"{visit} was acknowledged before")

    def _check_attempt(self, visit: Visit) -> None:
        claim, offset = visit.claim, visit.offset
        before = self.logs.reconsumed(claim.tp, offset)
        expected = before + claim.attempts(offset) + 1
        last = claim.last.get(offset)
        if last is not None and last.delivery.state is DeliveryState.EXPIRED:
            claim.failures[offset] += 1
        if visit.delivery.attempt != expected:
            text = f"{visit}: {before} times reconsumed, {expected - before - 1} deliveries have failed"
            raise Violation("attempts are counted", text)
        limit = self.setting.last_attempt
        if limit is not None and visit.delivery.attempt > limit:
            raise Violation("attempts are limited", f"{visit}: the last one has the number {limit}")

    def _check_time(self, visit: Visit, now: float, wall_ms: int) -> None:
        claim, offset = visit.claim, visit.offset
        due_ms = self.logs.due(claim.tp, offset)
        if due_ms is not None and wall_ms < due_ms:
            raise Violation("no retry is early", f"{visit} at {wall_ms} ms, it is due at {due_ms}")
        if (due := claim.due.pop(offset, None)) is None:
            return
        if round(now - due, 6) < 0:
            raise Violation("no retry is early", f"{visit} at {now:.6f}, it is due at {due:.6f}")
        idle = self.idle_since.get(claim.member)
        if claim.was_open or self._is_behind_copies(visit):
            return
        if idle is not None and now - max(due, idle) > LATE:
            text = f"{visit} at {now:.3f}, it was due at {due:.3f}, idle since {idle:.3f}"
            raise Violation("no retry is late", text)

    def _is_behind_copies(self, visit: Visit) -> bool:
        """Whether a record of the same key was copied: until that is done, others of the key wait, and its end is not seen."""
        claim, copied = visit.claim, (DeliveryState.PUBLISHING, DeliveryState.ACKED)
        return visit.key is not None and any(
            other.delivery.state in copied or other.delivery.attempt == self.setting.last_attempt
            for offset, other in claim.last.items()
            if other.key == visit.key and offset not in claim.acked and offset != visit.offset
        )

    def _check_alone(self, visit: Visit) -> None:
        """Check that no other handler has a record of the same key, unless its claim is lost."""
        for other in self.running:
            if other.claim.tp != visit.claim.tp or other.key != visit.key:
                continue
            is_held = other.delivery.state is DeliveryState.ACQUIRED
            is_expired = other.delivery.state is DeliveryState.EXPIRED
            if other.claim is visit.claim:
                is_wrong = is_held or (is_expired and self.setting.cancels_expired)
            else:
                is_wrong = (self.is_orderly and not is_expired) or (
                    is_held and self._is_accepted(other.claim) and self._is_accepted(visit.claim)
                )
            if is_wrong:
                raise Violation("one handler a key", f"{visit} begins while {other} is handled")

    def _is_accepted(self, claim: QueueClaim) -> bool:
        return any(one.accepts(claim.log) for one in self.base.rules())

    def _check_order(self, visit: Visit, key: bytes) -> None:
        claim, tp = visit.claim, visit.claim.tp
        offsets = self.logs.offsets(tp, None if self.setting.mode.in_order else key)
        for offset in reversed(offsets):
            if offset < claim.restored.base:
                return
            if offset < visit.offset and not claim.has_done(offset) and not self.logs.is_copied(tp, offset):
                raise Violation("per key in order", f"{visit} begins before {offset} is done")

    def reads(self, member: str, now: float) -> None:
        """A member begins to read deliveries."""
        self.idle_since[member] = now

    # --- outcomes -----------------------------------------------------------------------------------------------------

    def succeeded(self, visit: Visit) -> None:
        """The handler acknowledges the record: this counts only while the delivery is open."""
        value = visit.delivery.value or b""
        self.acked[value] += 1
        if visit.delivery.state is DeliveryState.ACQUIRED:
            visit.claim.acked.add(visit.offset)
            self.acked_while_acquired.add(value)

    def failed(self, visit: Visit, due: float) -> None:
        """The handler nacks the record, which is delivered again at loop time `due`."""
        if visit.delivery.state is DeliveryState.ACQUIRED:
            visit.claim.failures[visit.offset] += 1
            visit.claim.due[visit.offset] = due

    def copied(self, visit: Visit, *, is_dead: bool) -> None:
        """A call that copies the record has returned that it is acknowledged."""
        if not self.logs.is_copied(visit.claim.tp, visit.offset, is_dead=is_dead):
            raise Violation("acknowledged after the copy", f"{visit} is acknowledged, and there is no copy")

    def ended(self, visit: Visit, now: float) -> None:
        """The handler has ended."""
        self.running.pop(visit, None)
        member = visit.claim.member
        if not any(one.claim.member == member for one in self.running):
            self.idle_since[member] = now

    # --- commits ------------------------------------------------------------------------------------------------------

    def committed(self, member_id: str, tp: TopicPartition, commit: Any, owner: str | None) -> None:
        """The coordinator has accepted a commit."""
        metadata = decode_metadata(tp, commit.offset, commit.metadata)
        window = decode_window(metadata.window, commit.offset)
        who = f"commit of {tp} by {member_id}: {window!r}"
        if owner != member_id and not (self.base.is_cooperative and owner is None):
            raise Violation("one owner", f"{who} was accepted, but the partition belongs to {owner}")
        before, _ = self.committed_windows.get(tp, (AckWindow(0), False))
        doubts = {(member_id, tp, commit.offset), (member_id, tp, ANY)} & self.base.doubtful
        self._check_new(tp, member_id, window, before, who)
        if not doubts and self.keeps_all:
            self._check_kept(window, before, who)
        self.committed_windows[tp] = window, metadata.is_open
        state = self.base.at(tp)
        state.is_set_back = window.base < before.base
        state.committed = commit.offset

    def _check_new(
        self, tp: TopicPartition, member_id: str, window: AckWindow, before: AckWindow, who: str
    ) -> None:
        """Check that what the commit adds was acknowledged by its member, or has a copy."""
        claims = [claim for claim in self.claims[tp] if claim.log.member_id == member_id]
        known: set[int] = set().union(*(claim.acked for claim in claims))
        restored = [claim.restored for claim in claims]
        for offset in _offsets_of(window):
            if offset in before or offset in known or any(offset in one for one in restored):
                continue
            if not self.logs.is_copied(tp, offset):
                raise Violation("commits have acknowledged records only", f"{who} contains {offset}")

    def _check_kept(self, window: AckWindow, before: AckWindow, who: str) -> None:
        lost = [offset for offset in _offsets_of(before) if offset not in window]
        if lost:
            raise Violation("commits never go back", f"{who} lacks {lost}, committed before")
        for offset, count in before.attempts.items():
            # counts in advance of deliveries that were not made are taken back
            if offset not in window and window.attempts.get(offset, 0) < count - 1:
                text = f"{who} has {window.attempts.get(offset, 0)} attempts of {offset}, {count} before"
                raise Violation("attempts never decrease", text)

    # --- the end ------------------------------------------------------------------------------------------------------

    def left(self) -> str | None:
        """Return what is not done or committed yet, None if all is."""
        for tp in self.logs.sources:
            end = self.logs.end(tp)
            committed = self.base.at(tp).committed
            if end and committed != end:
                return f"{tp}: committed {committed} of {end}"
        return None

    def check_all_done(self) -> None:
        """Check, when all is committed, that each record was handled or is a dead letter."""
        dead = self.logs.dead_letters()
        for tp in self.logs.sources:
            for offset in range(self.logs.end(tp)):
                value = self.logs.value(tp, offset)
                if not self.acked[value] and value not in dead:
                    raise Violation(
                        "nothing is lost", f"{tp}@{offset}: {value[:8]!r} was neither handled nor copied"
                    )

    def check_dead_letters(self, poison: Any) -> None:
        """Check that the dead letter topic has exactly the records that always fail or were rejected."""
        dead = self.logs.dead_letters()
        limit = self.setting.last_attempt
        for value, counts in dead.items():
            assert limit is not None
            made = self.deliveries[value]
            if value not in self.rejected and (max(counts) != limit or min(counts) != limit):
                text = f"{value[:8]!r}: {counts} deliveries by its dead letters, the limit is {limit}"
                raise Violation("dead letters after the last delivery", text)
            if max(counts) > limit:
                raise Violation(
                    "dead letters after the last delivery", f"{value[:8]!r}: {counts}, limit {limit}"
                )
            if value in self.rejected or self.has_crashed:
                continue
            if made < limit or self.attempts_seen[value] != set(range(1, limit + 1)):
                text = f"{value[:8]!r} is a dead letter after {made} deliveries: {self.attempts_seen[value]}"
                raise Violation("dead letters after the last delivery", text)
        for tp in self.logs.sources:
            for offset in range(self.logs.end(tp)):
                value = self.logs.value(tp, offset)
                if poison(value) and value not in dead:
                    raise Violation(
                        "poison is dead letters", f"{tp}@{offset}: {value[:8]!r} has no dead letter"
                    )


def _offsets_of(window: AckWindow) -> list[int]:
    return [*range(window.base), *(offset for start, end in window.runs for offset in range(start, end))]
