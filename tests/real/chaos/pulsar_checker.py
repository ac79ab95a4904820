"""Check the journals of the queue story on Pulsar: nothing lost, dead letters exact, order of keys, and why each came again.

Each delivery that should not be needed is matched by its time to a disturbance of the process before.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from tests.real.chaos.pulsar_journal import Handled, PulsarLife
from tests.real.chaos.pulsar_run import RECOVERY, PulsarEvidence, PulsarRun

__all__ = ["PulsarVerdict", "judge_pulsar_queue"]

SHOWN = 3
"""Problems of one kind that are reported in full."""


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
    beyond_limit: Counter[str] = field(default_factory=Counter)
    """Times that the count of a message's failures began again, of messages that failed more often than is allowed, by the kind."""
    problems: list[str] = field(default_factory=list)


def judge_pulsar_queue(lives: Sequence[PulsarLife], evidence: PulsarEvidence) -> PulsarVerdict:
    """Check the promises of a work queue over all processes."""
    run = PulsarRun(lives, evidence)
    verdict = PulsarVerdict(len(run.deliveries))
    checks: list[Iterable[str]] = [
        _unfinished(run),
        _lost(run),
        _stored_twice(run),
        _dead_letters(run, verdict),
        _attempts(run),
        _beyond_limit(run, verdict),
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


# --- every message has one outcome -------------------------------------------------------------------------------------------


def _unfinished(run: PulsarRun) -> Iterator[str]:
    """A process that was not killed closes, and its handlers have ended."""
    for life in run.lives:
        if life.name in run.killed:
            continue
        if life.closed is None:
            yield f"{life.name} was not killed and did not close"
        yield from (f"{each} has no end" for each in life.deliveries if each.end is None)


def _lost(run: PulsarRun) -> Iterator[str]:
    acked = {each.number for each in run.deliveries if each.acked is not None and not each.is_dead}
    dead = {number for number, _ in run.evidence.dead_letters}
    if missing := sorted(run.evidence.keys.keys() - acked - dead):
        yield f"{len(missing)} messages were neither acknowledged nor dead letters: {missing[:5]}"
    if wrong := sorted(acked & run.evidence.poison):
        yield f"poison messages were acknowledged: {wrong[:5]}"


def _stored_twice(run: PulsarRun) -> Iterator[str]:
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


def _dead_letters(run: PulsarRun, verdict: PulsarVerdict) -> Iterator[str]:
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


def _reasons_of_copies(run: PulsarRun, own: Sequence[Handled], count: int) -> Iterator[str]:
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


def _disorder(run: PulsarRun) -> Iterator[str]:
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


def _events(run: PulsarRun) -> list[tuple[float, bool, int]]:
    """Return time, whether it is a delivery or a completion, and number; in order, completions first."""
    begins = [(each.begin, True, each.number) for each in run.deliveries]
    return sorted(
        begins + [(each.acked, False, each.number) for each in run.deliveries if each.acked is not None]
    )


def _partition_disorder(run: PulsarRun) -> Iterator[str]:
    """First deliveries of a partition are in its order, over all processes."""
    highest: dict[int, tuple[list[int], Handled]] = {}
    for each in sorted((own[0] for own in run.by_number.values()), key=lambda each: each.begin):
        ledger, entry, partition, *index = (int(word) for word in each.message_id.split(":"))
        place = [ledger, entry, *index]
        if partition in highest and highest[partition][0] > place:
            yield f"{each} was first delivered after {highest[partition][1]}"
        else:
            highest[partition] = place, each


def _overlaps(run: PulsarRun) -> Iterator[str]:
    """No two deliveries of a key at a time in one process; between processes only after a disturbance of the first.

    A message that comes again although it was completed delays no other: the acknowledgement that was late has reached the
    broker by then, and the next message of the key may go to any process. `_repeats` asks why it came again.
    """
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
        is_explained = (
            run.is_disturbed(before.life, before.begin, each.begin)
            or run.is_late(each)
            or run.was_completed(before)
        )
        if before.life == each.life or not is_explained:
            yield f"{each} began before the end of {before} of its key"


# --- attempts ----------------------------------------------------------------------------------------------------------------


def _attempts(run: PulsarRun) -> Iterator[str]:
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


def _beyond_limit(run: PulsarRun, verdict: PulsarVerdict) -> Iterator[str]:
    """A message fails more often than the limit only if a disturbance of its process has restarted the count, at that time.

    Where messages have an order, a message that failed stays unacknowledged with its consumer, so that no other one gets it: the
    broker does not know of the failure, and the count ends with the process or the attachment. In Shared the broker counts, in
    the memory of its dispatcher (`InMemoryRedeliveryTracker`), until the topic is loaded again.
    """
    for own in run.by_number.values():
        if sum(each.nacked for each in own) <= run.evidence.max_deliveries:
            continue
        for before, after in itertools.pairwise(own):
            if not before.nacked or after.attempt > before.attempt:
                continue
            kinds = (
                one.kind
                for one in run.disturbances_of(before.life)
                if one.begin <= after.begin and one.end + RECOVERY >= before.begin
            )
            kind = next(kinds, "late" if run.is_late(after) else None)
            if kind is None:
                yield f"{after} restarts the count of {before}, and nothing has disturbed {before.life}"
            else:
                verdict.beyond_limit[kind] += 1


# --- what is delivered again -------------------------------------------------------------------------------------------------


def _repeats(run: PulsarRun, verdict: PulsarVerdict) -> Iterator[str]:
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


def _moves(run: PulsarRun, verdict: PulsarVerdict) -> Iterator[str]:
    """A message goes from one process to another only if the first one was disturbed, or without an order after a nack."""
    for before, after in run.pairs():
        if before.life == after.life:
            continue
        verdict.moved += 1
        if run.evidence.order == "nothing" and before.nacked:
            continue
        if not run.is_disturbed(before.life, before.begin, after.begin) and not run.is_late(after):
            yield f"{after} follows {before}, and nothing has disturbed {before.life}"
