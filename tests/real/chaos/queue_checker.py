"""Check the journals of the queue story: nothing lost, dead letters exact, order per key, and what may be delivered again."""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cache

from asyncgroup import TopicPartition
from asyncgroup.ack_window import AckWindow
from asyncgroup.offsets.commit_metadata import decode_metadata
from asyncgroup.offsets.window_encoding import decode_window
from tests.real.chaos.queue_journal import Commit, Ended, Handled, Place, QueueLife

__all__ = ["QueueEvidence", "QueueVerdict", "Repeat", "judge_queue"]

SLACK = 2.0
"""Seconds by which a commit may be later than `ack_group_time` after an acknowledgement: the machine may be busy."""

SHOWN = 3
"""Problems of one kind that are reported in full."""


class Repeat(Enum):
    """Why an acknowledged record was delivered again."""

    KILLED = "its process was killed before the next commit"
    LOST = "its member was lost before the next commit"
    ORDERLY = "its session ended in order"
    SAME_SESSION = "its session had not ended"


ALLOWED = frozenset({Repeat.KILLED, Repeat.LOST})


@dataclass(kw_only=True)
class QueueEvidence:
    """What the story knows in addition to the journals."""

    topic: str
    keys: Mapping[int, bytes]
    """The key of each record, by its number; records of a key were written in the order of their numbers."""
    poison: frozenset[int]
    """The records whose deliveries all fail."""
    max_deliveries: int
    ack_group_time: float
    dead_letters: Sequence[tuple[int, int]]
    """Number and delivery count of each record in the dead letter topic."""
    killed: Mapping[str, float]
    """When a process (`QueueLife.name`) was killed."""


@dataclass
class QueueVerdict:
    """The outcome; `problems` names every broken promise."""

    delivered: int = 0
    repeats: Counter[Repeat] = field(default_factory=Counter)
    """Deliveries of acknowledged records."""
    interrupted: int = 0
    """Deliveries that a kill interrupted."""
    exposed: int = 0
    """Records that were acknowledged and in no answered commit when their process was killed; sum over all kills."""
    longest_wait: float = 0.0
    """The longest time in seconds from an acknowledgement that was delivered again to its process's kill."""
    problems: list[str] = field(default_factory=list)


def judge_queue(lives: Sequence[QueueLife], evidence: QueueEvidence) -> QueueVerdict:
    """Check the promises of work queues over all processes."""
    run = _Run(lives, evidence)
    verdict = QueueVerdict(sum(len(life.deliveries) for life in lives))
    checks: list[Iterable[str]] = [
        _unfinished(run),
        _lost(run),
        _dead_letters(run),
        _disorder(run),
        _backward(run),
        _overlaps(run),
        _attempts(run),
        _after_commit(run),
        _forgotten(run),
        _after_durable(run),
        _repeats(run, verdict),
    ]
    for check in checks:
        found = list(check)
        verdict.problems += found[:SHOWN]
        if len(found) > SHOWN:
            verdict.problems.append(f"… {len(found) - SHOWN} more like the last")
    verdict.interrupted = sum(
        each.end is None for life in lives if life.name in evidence.killed for each in life.deliveries
    )
    verdict.exposed = sum(run.is_exposed(each) for each in run.deliveries if each.acked is not None)
    return verdict


class _Run:
    """The journals, sorted in several ways."""

    def __init__(self, lives: Sequence[QueueLife], evidence: QueueEvidence) -> None:
        self.evidence = evidence
        self.lives = {life.name: life for life in lives}
        self.deliveries = sorted(
            (each for life in lives for each in life.deliveries), key=lambda each: each.begin
        )
        self.by_place: dict[Place, list[Handled]] = defaultdict(list)
        for each in self.deliveries:
            self.by_place[each.place].append(each)
        self.dead = sorted(entry for life in lives for entry in life.dead)
        self.commits: dict[int, list[Commit]] = defaultdict(list)
        for commit in sorted(commit for life in lives for commit in life.commits):
            self.commits[commit.partition].append(commit)
        self._times = {partition: [each.at for each in own] for partition, own in self.commits.items()}
        self.window = cache(self._window)

    def key(self, number: int) -> bytes:
        return self.evidence.keys[number]

    def _window(self, commit: Commit) -> AckWindow:
        """Return the acknowledged offsets that a commit contains."""
        tp = TopicPartition(self.evidence.topic, commit.partition)
        return decode_window(decode_metadata(tp, commit.offset, commit.metadata).window, commit.offset)

    def last_commit(self, partition: int, before: float) -> Commit | None:
        """Return the partition's last commit that was answered before this time."""
        place = bisect_left(self._times.get(partition, []), before) - 1
        return self.commits[partition][place] if place >= 0 else None

    def is_committed(self, place: Place, before: float) -> bool:
        commit = self.last_commit(place[0], before)
        return commit is not None and place[1] in self.window(commit)

    def is_exposed(self, each: Handled) -> bool:
        """Whether a record was acknowledged by a process that was killed before a commit with it was answered."""
        killed = self.evidence.killed.get(each.life)
        return killed is not None and not self.is_committed(each.place, killed)

    def ended(self, name: str, since: float) -> Ended | None:
        """Return the first end of a session of a process since this time."""
        return next((end for end in self.lives[name].ends if end.at >= since), None)

    def was_lost(self, each: Handled) -> bool:
        """Whether the delivery's session ended with the member's loss: the partition may have had another owner already."""
        end = self.ended(each.life, each.begin)
        return end is not None and end.cause == "MemberLost"

    def end(self, each: Handled) -> float:
        """When the delivery was over, at the latest when its process was killed."""
        if each.end is not None:
            return each.end
        killed = self.evidence.killed.get(each.life)
        return float("inf") if killed is None else max(killed, self.lives[each.life].last)

    def kills(self, begin: float, end: float) -> int:
        return sum(begin < at < end for at in self.evidence.killed.values())

    def pairs(self) -> Iterator[tuple[Handled, Handled]]:
        """Yield each delivery of a record with the one before it."""
        for own in self.by_place.values():
            yield from itertools.pairwise(own)


# --- every record has one outcome ----------------------------------------------------------------------------------------------


def _unfinished(run: _Run) -> Iterator[str]:
    """A process that was not killed closes, and its handlers have ended."""
    for life in run.lives.values():
        if life.name in run.evidence.killed:
            continue
        if life.closed is None:
            yield f"{life.name} was not killed and did not close"
        for each in life.deliveries:
            if each.end is None:
                yield f"{_text(each)} has no end"


def _lost(run: _Run) -> Iterator[str]:
    acked = {each.number for each in run.deliveries if each.acked is not None}
    dead = {number for number, _ in run.evidence.dead_letters}
    missing = sorted(run.evidence.keys.keys() - acked - dead)
    if missing:
        yield f"{len(missing)} records were neither acknowledged nor dead letters: {missing[:5]}"
    if acked & run.evidence.poison:
        yield f"poison records were acknowledged: {sorted(acked & run.evidence.poison)[:5]}"


def _dead_letters(run: _Run) -> Iterator[str]:
    dead = {number for number, _ in run.evidence.dead_letters}
    if surplus := dead - run.evidence.poison:
        yield f"{len(surplus)} dead letters are not poison: {sorted(surplus)[:5]}"
    if missing := run.evidence.poison - dead:
        yield f"{len(missing)} poison records are not dead letters: {sorted(missing)[:5]}"
    for number, count in run.evidence.dead_letters:
        if count != run.evidence.max_deliveries:
            yield f"the dead letter of {number} counts {count} deliveries, not {run.evidence.max_deliveries}"


# --- order -----------------------------------------------------------------------------------------------------------------------


def _disorder(run: _Run) -> Iterator[str]:
    """First completions of a key's records are in order, and a record is delivered when all before it are completed."""
    numbers: dict[bytes, list[int]] = defaultdict(list)
    for number in sorted(run.evidence.keys):
        numbers[run.key(number)].append(number)
    place_in_key = {number: at for own in numbers.values() for at, number in enumerate(own)}
    completed: Counter[bytes] = Counter()
    done: set[int] = set()
    for at, is_begin, number in _events(run):
        key, place = run.key(number), place_in_key[number]
        earlier = numbers[key][completed[key]] if completed[key] < len(numbers[key]) else number
        if is_begin and place > completed[key]:
            yield f"{number} of key {key!r} was delivered at {at:.6f}, before {earlier} was completed"
        if is_begin or number in done:
            continue
        done.add(number)
        if place != completed[key]:
            yield f"{number} of key {key!r} was completed at {at:.6f}, before {earlier}"
        completed[key] += 1


def _events(run: _Run) -> list[tuple[float, bool, int]]:
    """Return time, whether it is a hand-out or a completion, and number; in order, completions first."""
    begins = [(each.begin, True, each.number) for each in run.deliveries]
    acks = [(each.acked, False, each.number) for each in run.deliveries if each.acked is not None]
    return sorted(begins + acks + [(at, False, number) for at, _, number in run.dead])


def _backward(run: _Run) -> Iterator[str]:
    """In one process the offsets of a key do not decrease, unless its member was lost in between; numbers follow offsets."""
    for life in run.lives.values():
        last: dict[bytes, Handled] = {}
        for each in life.deliveries:
            before = last.get(run.key(each.number))
            last[run.key(each.number)] = each
            if before is None or each.place >= before.place or run.was_lost(before):
                continue
            yield f"{_text(each)} came after {_text(before)} of its key"
    offsets: dict[bytes, tuple[int, Place]] = {}
    for number, place in sorted({(each.number, each.place) for each in run.deliveries}):
        key = run.key(number)
        if key in offsets and (offsets[key][1] >= place or offsets[key][0] == number):
            yield f"{number} of key {key!r} is at {place}, {offsets[key][0]} at {offsets[key][1]}"
        offsets[key] = number, place


def _overlaps(run: _Run) -> Iterator[str]:
    """No two deliveries of a key at a time; between processes, unless the member of the first was lost."""
    latest: dict[bytes, Handled] = {}
    for each in run.deliveries:
        key = run.key(each.number)
        before = latest.get(key)
        if before is not None and run.end(before) > each.begin:
            if before.life == each.life or not run.was_lost(before):
                yield f"{_text(each)} began before the end of {_text(before)} of its key"
            if run.end(before) > run.end(each):
                continue
        latest[key] = each


# --- attempts --------------------------------------------------------------------------------------------------------------------


def _attempts(run: _Run) -> Iterator[str]:
    """Attempts count what failed; a kill may forget those after the last commit, and may count one that was not made."""
    for own in run.by_place.values():
        kills = run.kills(0, own[0].begin)
        if not 1 <= own[0].attempt <= 1 + kills:
            yield f"{_text(own[0])} is the first one, after {kills} kills"
        yield from (
            f"{_text(each)}: at most {run.evidence.max_deliveries} are allowed"
            for each in own
            if each.attempt > run.evidence.max_deliveries
        )
    for before, after in run.pairs():
        kills = run.kills(before.begin, after.begin)
        expected = before.attempt + (1 if before.nacked else 0)
        if kills or before.acked is not None or run.was_lost(before):
            if not 1 <= after.attempt <= before.attempt + 1 + kills:
                yield f"{_text(after)} follows {_text(before)}, {kills} kills in between"
        elif after.attempt != expected:
            yield f"{_text(after)} follows {_text(before)} without a kill in between"


# --- what is delivered again ------------------------------------------------------------------------------------------------------


def _after_commit(run: _Run) -> Iterator[str]:
    """A record in an answered commit is not delivered any more."""
    for each in run.deliveries:
        if run.is_committed(each.place, each.begin) and not run.was_lost(each):
            commit = run.last_commit(each.place[0], each.begin)
            yield f"{_text(each)} was acknowledged in the commit of {commit}"


def _forgotten(run: _Run) -> Iterator[str]:
    """A commit contains all that the one before it contains."""
    for own in run.commits.values():
        for before, after in itertools.pairwise(own):
            old, new = run.window(before), run.window(after)
            if old.base > new.base:
                yield f"the commit of {after} is lower than that of {before}"
            for start, end in old.runs:
                if any(offset not in new for offset in range(start, end)):
                    yield f"the commit of {after} has forgotten {start} to {end} of {before}"


def _after_durable(run: _Run) -> Iterator[str]:
    """A record whose durable acknowledgement has returned is not delivered any more."""
    for before, after in run.pairs():
        if before.durable is not None and after.begin > before.durable and not run.was_lost(after):
            yield f"{_text(after)} came after the durable acknowledgement of {_text(before)}"


def _repeats(run: _Run, verdict: QueueVerdict) -> Iterator[str]:
    """An acknowledged record is delivered again only if its process was killed, or lost its member, before the next commit."""
    for before, after in run.pairs():
        if before.acked is None:
            continue
        reason = _reason(run, before, after)
        verdict.repeats[reason] += 1
        if reason not in ALLOWED:
            yield f"{_text(after)} follows the acknowledged {_text(before)}, and {reason.value}"
        elif reason is Repeat.KILLED:
            verdict.longest_wait = max(verdict.longest_wait, run.evidence.killed[before.life] - before.acked)
            yield from _late_commit(run, before)


def _reason(run: _Run, before: Handled, after: Handled) -> Repeat:
    """Return how the session of an acknowledged delivery ended."""
    assert before.acked is not None
    end = run.ended(before.life, before.acked)
    if end is not None and end.cause == "MemberLost":  # it may learn that after the next delivery
        return Repeat.LOST
    if end is not None and end.at < after.begin:
        return Repeat.ORDERLY
    killed = run.evidence.killed.get(before.life)
    return Repeat.KILLED if killed is not None and killed < after.begin else Repeat.SAME_SESSION


def _late_commit(run: _Run, each: Handled) -> Iterator[str]:
    """An acknowledgement is in the second commit after it, and a commit begins in time."""
    life, acked = run.lives[each.life], each.acked
    assert acked is not None
    answered = [commit for commit in life.commits if commit.at > acked and commit.partition == each.place[0]]
    if len(answered) > 1:  # the first one may have been sent before
        yield f"{_text(each)} was in none of {len(answered)} commits after its acknowledgement"
    due = acked + run.evidence.ack_group_time + SLACK
    if run.evidence.killed[each.life] <= due or any(acked < at <= due for at in life.sent):
        return
    answers = [commit.at for commit in life.commits] + [at for at, _ in life.failed]
    sent = max((at for at in life.sent if at <= acked), default=None)
    if sent is None or any(sent < at <= acked for at in answers):
        yield f"{_text(each)} was acknowledged at {acked:.6f}, and no commit was sent within {SLACK:g} s"


def _text(each: Handled) -> str:
    end = "-" if each.end is None else f"{each.end:.6f}"
    return (
        f"{each.number} ({each.place[0]}@{each.place[1]}), attempt {each.attempt} in {each.life} "
        f"from {each.begin:.6f} to {end}"
    )
