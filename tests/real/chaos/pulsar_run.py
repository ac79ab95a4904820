"""What happened in the queue story on Pulsar: disturbances, the journals of all processes, and which explains what.

A disturbance is what makes a broker give messages again: the kill of a process, the reset of its connections, an outage of
the broker.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tests.real.chaos.pulsar_journal import Handled, PulsarLife, entry_of, partition_of

__all__ = ["RECOVERY", "UNNOTICED", "Disturbance", "PulsarEvidence", "PulsarRun"]

ON_THE_WAY = 2.0
"""Seconds from an acknowledgement until the broker has it: it waits for its group, and the machine may be busy."""

RECOVERY = 5.0
"""Seconds from the end of a disturbance until a client has connected again, and sent its acknowledgements."""

UNSAVED = 61.0
"""Seconds for which a broker may keep acknowledgements in memory only: a kill loses them.

It answers them at once, also if `ack(durable=True)` waits for that, and writes its position at most once a second
(`managedLedgerDefaultMarkDeleteRateLimit`, the rate limit in `ManagedCursorImpl.asyncDelete`); what falls between is written with
the next acknowledgement of a whole entry in the partition, or each minute (`managedLedgerCursorPositionFlushSeconds`).
"""

SAVED_AFTER = 1.0
"""Seconds after an acknowledgement from which on the next one writes both, and that the write may take."""

UNNOTICED = 1.0
"""Seconds for which a busy process may deliver what it had, until it sees that its connection is gone and says so."""

GRACE = 0.1
"""Seconds in which a handler may begin whose delivery was dispatched before that."""


class Disturbance(NamedTuple):
    """What makes a broker give messages again that were delivered."""

    kind: str
    """`kill`, `reset` or `outage`."""
    process: str
    """The journal of a killed process; the name of one whose connections were reset; empty for an outage."""
    begin: float
    end: float
    is_hard: bool = False
    """Whether the broker was killed, so that it lost what it had in memory."""

    def hits(self, life: str) -> bool:
        """Whether a process was disturbed; the names of its journals begin with its own."""
        if self.kind == "kill":
            return self.process == life
        return self.kind == "outage" or life.rpartition("-")[0] == self.process

    def explains_loss(self, acked: float, again: float) -> bool:
        """Whether an acknowledgement of this time may have been lost or late, before the message came again."""
        before = UNSAVED if self.is_hard else ON_THE_WAY
        return self.begin <= again and self.begin - before <= acked <= self.end + RECOVERY

    def explains_again(self, durable: float, after: Handled) -> bool:
        """Whether a message may come after its durable acknowledgement.

        The broker may have lost it, or have given the message to another consumer before this one could connect again.
        """
        if self.begin > after.begin:
            return False
        first = self.begin - UNSAVED if self.is_hard else self.begin
        return first <= durable <= self.end + RECOVERY


@dataclass(kw_only=True)
class PulsarEvidence:
    """What the story knows in addition to the journals."""

    keys: Mapping[int, bytes]
    """The key of each message, by its number; messages of a key were sent in the order of their numbers."""
    poison: frozenset[int]
    """The messages whose deliveries all fail."""
    max_deliveries: int
    dead_letters: Sequence[tuple[int, int]]
    """Number and delivery count of each message in the dead letter topic."""
    disturbances: Sequence[Disturbance]
    order: str = "key"
    """What the subscription delivers in order: each `key`, each `partition`, or `nothing`."""


class PulsarRun:
    """The journals, sorted in several ways, and what explains what."""

    def __init__(self, lives: Sequence[PulsarLife], evidence: PulsarEvidence) -> None:
        self.evidence = evidence
        self.lives = lives
        self.deliveries = sorted(
            (each for life in lives for each in life.deliveries), key=lambda each: each.begin
        )
        self.by_number: dict[int, list[Handled]] = defaultdict(list)
        for each in self.deliveries:
            self.by_number[each.number].append(each)
        self.killed = {each.process: each.begin for each in evidence.disturbances if each.kind == "kill"}
        self._detached = {life.name: life.detached for life in lives}
        self._completions = self._completed_entries()

    def disturbances_of(self, life: str) -> Iterator[Disturbance]:
        """Yield what has disturbed a process; each loss or return of a consumer may make another one of Failover active."""
        is_shared_fate = self.evidence.order == "partition"
        return (each for each in self.evidence.disturbances if is_shared_fate or each.hits(life))

    def is_disturbed(self, life: str, since: float, until: float) -> bool:
        """Whether something has disturbed the process in this time, or was not quite over when it began."""
        return any(
            each.begin <= until and each.end + RECOVERY >= since for each in self.disturbances_of(life)
        )

    def is_late(self, each: Handled) -> bool:
        """Whether the process of this delivery has just been disturbed: the message was given to another one already."""
        return any(
            one.begin <= each.begin <= one.end + UNNOTICED and not self._has_noticed(each, one.begin)
            for one in self.disturbances_of(each.life)
        )

    def was_completed(self, each: Handled) -> bool:
        """Whether the message of a delivery was completed before it, by another one."""
        return any(
            one.acked is not None and one.acked < each.begin
            for one in self.by_number[each.number]
            if one is not each
        )

    def _has_noticed(self, each: Handled, since: float) -> bool:
        """Whether the process had seen before the delivery that the broker of its partition was lost."""
        partition = partition_of(each)
        return any(
            where == partition and since <= at <= each.begin - GRACE
            for at, where in self._detached[each.life]
        )

    # --- what a killed broker has lost ------------------------------------------------------------------------------------

    def _completed_entries(self) -> dict[int, list[float]]:
        """Return for each partition when its entries were acknowledged as a whole, as far as that is certain."""
        first: dict[int, Handled] = {}
        for each in self.deliveries:
            if each.acked is not None and (each.number not in first or each.acked < first[each.number].acked):  # type: ignore[operator]
                first[each.number] = each
        last: dict[tuple[int, ...], Handled] = {}
        for each in first.values():
            entry = (partition_of(each), *entry_of(each))
            if entry not in last or each.acked > last[entry].acked:  # type: ignore[operator]
                last[entry] = each
        found: dict[int, list[float]] = defaultdict(list)
        for each in last.values():
            if each.acked is not None and not self._may_be_delayed(each, each.acked):
                found[partition_of(each)].append(each.acked)
        return {partition: sorted(times) for partition, times in found.items()}

    def _may_be_delayed(self, each: Handled, acked: float) -> bool:
        """Whether an acknowledgement may have waited for a reconnect."""
        return self.is_disturbed(each.life, acked, acked + ON_THE_WAY)

    def is_saved(self, each: Handled, acked: float, killed: float) -> bool:
        """Whether the broker had written an acknowledgement when it was killed: a later one of the partition made it write."""
        times = self._completions.get(partition_of(each), [])
        at = bisect_left(times, acked + ON_THE_WAY + SAVED_AFTER)
        is_written = at < len(times) and times[at] <= killed - ON_THE_WAY - SAVED_AFTER
        return is_written and not self._may_be_delayed(each, acked)

    def explains_loss(self, one: Disturbance, before: Handled, again: float) -> bool:
        """Whether a disturbance may have lost an acknowledgement, or made it late, before the message came again."""
        assert before.acked is not None
        if not one.explains_loss(before.acked, again):
            return False
        is_recent = one.begin - ON_THE_WAY <= before.acked
        return is_recent or not self.is_saved(before, before.acked, one.begin)

    def explains_again(self, one: Disturbance, before: Handled, after: Handled) -> bool:
        """Whether a message may come after its durable acknowledgement."""
        assert before.durable is not None
        if not one.explains_again(before.durable, after):
            return False
        return not (one.is_hard and self.is_saved(before, before.durable, one.begin))

    def pairs(self) -> Iterator[tuple[Handled, Handled]]:
        """Yield each delivery of a message with the one before it."""
        for own in self.by_number.values():
            yield from itertools.pairwise(own)
