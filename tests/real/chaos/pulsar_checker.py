"""Check the journals of the queue story on Pulsar: nothing lost, dead letters exact, order of keys, and why each came again.

A disturbance is what makes a broker give messages again: the kill of a process, the reset of its connections, an outage of
the broker. Each delivery that should not be needed is matched by its time to a disturbance of the process before.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.real.chaos.pulsar_journal import Handled, PulsarLife, entry_of, partition_of

__all__ = ["RECOVERY", "UNSAVED", "Disturbance", "PulsarEvidence", "PulsarVerdict", "judge_pulsar_queue"]

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

SHOWN = 3
"""Problems of one kind that are reported in full."""


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


@dataclass
class PulsarVerdict:
    """The outcome; `problems` names every broken promise."""

    delivered: int = 0
    repeats: Counter[str] = field(default_factory=Counter)
    """Deliveries of completed messages, by the kind of disturbance; `late`: by a process that was cut off just before."""
    moved: int = 0
    """Deliveries after one of another process."""
    copied_twice: Counter[str] = field(default_factory=Counter)
    """Dead letters beyond one for each message, by the kind of disturbance; `kill`: between the copy and its acknowledgement."""
    problems: list[str] = field(default_factory=list)


def judge_pulsar_queue(lives: Sequence[PulsarLife], evidence: PulsarEvidence) -> PulsarVerdict:
    """Check the promises of a work queue over all processes."""
    run = _Run(lives, evidence)
    verdict = PulsarVerdict(len(run.deliveries))
    checks: list[Iterable[str]] = [
        _unfinished(run),
        _lost(run),
        _stored_twice(run),
        _dead_letters(run, verdict),
        _attempts(run),
        _repeats(run, verdict),
        _moves(run, verdict),
    ]
    if evidence.order == "key":
        checks += [_disorder(run), _overlaps(run)]
    elif evidence.order == "partition":
        checks.append(_partition_disorder(run))
    for check in checks:
        found = list(check)
        verdict.problems += found[:SHOWN]
        if len(found) > SHOWN:
            verdict.problems.append(f"… {len(found) - SHOWN} more like the last")
    return verdict


class _Run:
    """The journals, sorted in several ways."""

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


# --- every message has one outcome -------------------------------------------------------------------------------------------


def _unfinished(run: _Run) -> Iterator[str]:
    """A process that was not killed closes, and its handlers have ended."""
    for life in run.lives:
        if life.name in run.killed:
            continue
        if life.closed is None:
            yield f"{life.name} was not killed and did not close"
        yield from (f"{each} has no end" for each in life.deliveries if each.end is None)


def _lost(run: _Run) -> Iterator[str]:
    acked = {each.number for each in run.deliveries if each.acked is not None and not each.is_dead}
    dead = {number for number, _ in run.evidence.dead_letters}
    if missing := sorted(run.evidence.keys.keys() - acked - dead):
        yield f"{len(missing)} messages were neither acknowledged nor dead letters: {missing[:5]}"
    if wrong := sorted(acked & run.evidence.poison):
        yield f"poison messages were acknowledged: {wrong[:5]}"


def _stored_twice(run: _Run) -> Iterator[str]:
    """With deduplication each message was stored once, in the order of its key."""
    last: dict[bytes, tuple[list[int], int]] = {}
    for number in sorted(run.by_number):
        ids = {each.message_id for each in run.by_number[number]}
        if len(ids) > 1:
            yield f"{number} was stored {len(ids)} times: {sorted(ids)}"
        place = [int(word) for word in min(ids).split(":")]
        key = run.evidence.keys[number]
        if key in last and last[key][0] >= place:
            yield f"{number} of key {key!r} is at {place}, {last[key][1]} at {last[key][0]}"
        last[key] = place, number


def _dead_letters(run: _Run, verdict: PulsarVerdict) -> Iterator[str]:
    """The dead letters are the poison messages, each once, unless its acknowledgement was lost.

    A copy and the acknowledgement of its original are two requests. A process that is killed between them hides a copy from its
    journal; a connection or a broker that ends then loses the acknowledgement, or it arrives when the message is another
    process's already (`PersistentDispatcherMultipleConsumers.removeConsumer` redelivers at once): that one copies it again.
    """
    copies = Counter(number for number, _ in run.evidence.dead_letters)
    if surplus := copies.keys() - run.evidence.poison:
        yield f"{len(surplus)} dead letters are not poison: {sorted(surplus)[:5]}"
    if missing := run.evidence.poison - copies.keys():
        yield f"{len(missing)} poison messages are not dead letters: {sorted(missing)[:5]}"
    for number, count in run.evidence.dead_letters:
        if count != run.evidence.max_deliveries:
            yield f"the dead letter of {number} counts {count} deliveries, not {run.evidence.max_deliveries}"
    for number, count in copies.items():
        own = run.by_number[number]
        reported = sum(each.is_dead for each in own)
        hidden = sum(
            each.attempt == run.evidence.max_deliveries and not each.is_dead and each.life in run.killed
            for each in own
        )
        verdict.copied_twice += Counter(_reasons_of_copies(run, own, count))
        if not reported <= count <= reported + hidden:
            yield f"{number} has {count} dead letters; {reported} were reported, and kills may hide {hidden}"


def _reasons_of_copies(run: _Run, own: Sequence[Handled], count: int) -> Iterator[str]:
    """Yield why there is each copy of a message after the first one."""
    reported = [each for each in own if each.is_dead]
    for before, after in itertools.pairwise(reported):
        kinds = (
            one.kind
            for one in run.disturbances_of(before.life)
            if run.explains_loss(one, before, after.begin)
        )
        yield next(kinds, "late")
    yield from ["kill"] * (count - max(1, len(reported)))


# --- order -------------------------------------------------------------------------------------------------------------------


def _disorder(run: _Run) -> Iterator[str]:
    """First deliveries of a key are in order, each after all messages before it were completed somewhere."""
    numbers: dict[bytes, list[int]] = defaultdict(list)
    for number in sorted(run.evidence.keys):
        numbers[run.evidence.keys[number]].append(number)
    completed: Counter[bytes] = Counter()  # how many of a key's messages, from the first one
    done: set[int] = set()
    for at, is_begin, number in _events(run):
        key = run.evidence.keys[number]
        own = numbers[key]
        if is_begin:
            if number not in done and completed[key] < len(own) and number > own[completed[key]]:
                yield f"{number} of key {key!r} was delivered at {at:.3f}, before {own[completed[key]]} was completed"
            continue
        done.add(number)
        while completed[key] < len(own) and own[completed[key]] in done:
            completed[key] += 1


def _events(run: _Run) -> list[tuple[float, bool, int]]:
    """Return time, whether it is a delivery or a completion, and number; in order, completions first."""
    begins = [(each.begin, True, each.number) for each in run.deliveries]
    return sorted(
        begins + [(each.acked, False, each.number) for each in run.deliveries if each.acked is not None]
    )


def _partition_disorder(run: _Run) -> Iterator[str]:
    """First deliveries of a partition are in its order, over all processes."""
    highest: dict[int, tuple[list[int], Handled]] = {}
    for each in sorted((own[0] for own in run.by_number.values()), key=lambda each: each.begin):
        ledger, entry, partition, *index = (int(word) for word in each.message_id.split(":"))
        place = [ledger, entry, *index]
        if partition in highest and highest[partition][0] > place:
            yield f"{each} was first delivered after {highest[partition][1]}"
        else:
            highest[partition] = place, each


def _overlaps(run: _Run) -> Iterator[str]:
    """No two deliveries of a key at a time in one process; between processes only after a disturbance of the first."""
    latest: dict[bytes, Handled] = {}
    for each in run.deliveries:
        key = run.evidence.keys[each.number]
        before = latest.get(key)
        latest[key] = each
        if before is None:
            continue
        end = run.killed.get(before.life, float("inf")) if before.end is None else before.end
        if end <= each.begin and not before.is_overtaken:
            continue
        is_explained = run.is_disturbed(before.life, before.begin, each.begin) or run.is_late(each)
        if before.life == each.life or not is_explained:
            yield f"{each} began before the end of {before} of its key"


# --- attempts ----------------------------------------------------------------------------------------------------------------


def _attempts(run: _Run) -> Iterator[str]:
    """Attempts count what has failed in this process; without an order the broker counts what has failed in others."""
    is_counted = run.evidence.order == "nothing"
    for life in run.lives:
        last: dict[int, Handled] = {}
        for each in life.deliveries:
            before = last.get(each.number)
            last[each.number] = each
            if each.attempt > run.evidence.max_deliveries:
                yield f"{each}: at most {run.evidence.max_deliveries} are allowed"
            elsewhere = 0
            if is_counted:
                own = run.by_number[each.number]
                elsewhere = sum(one.nacked for one in own if one.life != life.name and one.begin < each.begin)
            if before is None:
                if not 1 <= each.attempt <= 1 + elsewhere:
                    yield f"{each} is the first one of its process"
            elif run.is_disturbed(life.name, before.begin, each.begin):
                if not 1 <= each.attempt <= before.attempt + 1 + elsewhere:
                    yield f"{each} follows {before}"
            elif before.acked is None and not 0 <= each.attempt - before.attempt - before.nacked <= elsewhere:
                yield f"{each} follows {before}, and nothing has disturbed its process"


# --- what is delivered again -------------------------------------------------------------------------------------------------


def _repeats(run: _Run, verdict: PulsarVerdict) -> Iterator[str]:
    """A completed message is delivered again only if a disturbance has lost its acknowledgement, or made it late."""
    for own in run.by_number.values():
        for before, after in itertools.combinations(own, 2):
            if before.durable is not None and before.durable < after.begin:
                reasons = [
                    each
                    for each in run.disturbances_of(before.life)
                    if run.explains_again(each, before, after)
                ]
                if not reasons and (before.life == after.life or not run.is_late(after)):
                    yield f"{after} came after the durable acknowledgement of {before}"
    for before, after in run.pairs():
        if before.acked is None or before.acked > after.begin:
            continue
        reason = next(
            (
                each.kind
                for each in run.disturbances_of(before.life)
                if run.explains_loss(each, before, after.begin)
            ),
            None,
        )
        if reason is None and before.life != after.life and run.is_late(after):
            reason = "late"
        if reason is None:
            yield f"{after} follows the completed {before}, completed at {before.acked:.3f}"
        else:
            verdict.repeats[reason] += 1


def _moves(run: _Run, verdict: PulsarVerdict) -> Iterator[str]:
    """A message goes from one process to another only if the first one was disturbed, or without an order after a nack."""
    for before, after in run.pairs():
        if before.life == after.life:
            continue
        verdict.moved += 1
        if run.evidence.order == "nothing" and before.nacked:
            continue
        if not run.is_disturbed(before.life, before.begin, after.begin) and not run.is_late(after):
            yield f"{after} follows {before}, and nothing has disturbed {before.life}"
