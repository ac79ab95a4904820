"""The plan of a reset of a group's offsets: pure, from what the cluster knows of the partitions.

The rules are those of `kafka-consumer-groups --reset-offsets` (`OffsetsUtils` in Kafka 4):

    earliest, latest      the log's start or end
    current               the committed offset, also one outside of the log; the log's end without a commit
    offset, each, shift   moved into the log if it is outside; a shift without a commit is refused
    time                  the first record at or after it; the log's end if there is none

One partition that does not exist, has no leader, or cannot be planned refuses the whole plan.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple, TypeAlias
from uuid import UUID

from asyncgroup.admin.group_offsets import GroupOffset
from asyncgroup.admin.offsets_csv import offsets_to_csv
from asyncgroup.admin.reset_target import ParsedTarget, TargetKind
from asyncgroup.errors import AsyncGroupError
from asyncgroup.offsets.commit_metadata import decode_metadata
from asyncgroup.offsets.parallel_consumer_metadata import decode_parallel_consumer
from asyncgroup.offsets.window_encoding import decode_window
from asyncgroup.topic_partition import TopicPartition

__all__ = ["PartitionReset", "ResetAdjustment", "ResetFacts", "ResetPlan", "ResetRefused", "plan_offsets"]

_SHOWN_REASONS: Final = 5

ResetAdjustment: TypeAlias = Literal["log_start", "log_end", "no_record", "no_commit"]
"""Why a new offset is not the one that was asked for: it was before the log's start, or after its end; no record is that new; or
nothing was committed. In the last two cases it is the log's end."""


class ResetFacts(NamedTuple):
    """What the cluster knows of the partitions of a plan."""

    committed: Mapping[TopicPartition, GroupOffset]
    """The group's committed offsets."""
    starts: Mapping[TopicPartition, int]
    """The log start offsets."""
    ends: Mapping[TopicPartition, int]
    """The high watermarks."""
    at_time: Mapping[TopicPartition, int | None] = {}
    """The offset of the first record at or after the target's time; None if there is none. Only for `TargetKind.TIME`."""
    problems: Mapping[TopicPartition, str] = {}
    """Why a partition cannot be reset: it does not exist, has no leader, or its offsets could not be looked up."""
    topic_ids: Mapping[str, UUID] = {}
    """The ids of the topics, by which one that was recreated is another one; without those of brokers before Kafka 2.8."""


@dataclass(frozen=True, slots=True)
class PartitionReset:
    """The reset of one partition."""

    old_offset: int | None
    """The committed offset; None if the group has none."""
    new_offset: int
    """The offset that the reset commits."""
    wanted_offset: int | None
    """The offset before it was adjusted; None if the target gives none for this partition."""
    log_start: int
    """The log start offset."""
    log_end: int
    """The high watermark."""
    adjusted: ResetAdjustment | None = None
    """Why the new offset is not the one that was asked for; None if it is."""
    acked_above: int | None = None
    """The records that the commit's ack window, of a work queue or of Confluent's parallel-consumer, says are done above the
    committed offset; None if it has no window. The reset clears it: they are delivered again unless the new offset is after
    them."""
    clears_metadata: bool = False
    """Whether the commit has metadata, which the reset clears: a text, or the envelope of a work queue."""

    @property
    def clears_window(self) -> bool:
        """Whether the commit has an ack window, which the reset clears."""
        return self.acked_above is not None


@dataclass(frozen=True, slots=True)
class ResetPlan:
    """New offsets for a group. `Admin.reset_offsets` commits them; until then nothing has changed."""

    group_id: str
    """The group."""
    target: str
    """What was asked for, in words."""
    partitions: Mapping[TopicPartition, PartitionReset]
    """The partitions, sorted; none for a group without commits if all its topics were asked for."""
    topic_ids: Mapping[str, UUID] = field(default_factory=dict)
    """The ids of the topics when the plan was made; a topic that was recreated since is not reset."""

    @property
    def offsets(self) -> Mapping[TopicPartition, int]:
        """The new offset of each partition."""
        return {tp: each.new_offset for tp, each in self.partitions.items()}

    @property
    def warnings(self) -> tuple[str, ...]:
        """A sentence for each partition whose offset was adjusted, and for each whose ack window the reset clears."""
        adjusted = (
            _ADJUSTED[each.adjusted](tp, each)
            for tp, each in self.partitions.items()
            if each.adjusted is not None
        )
        cleared = (
            f"{tp}: the reset clears the ack window of offset {each.old_offset}, with {each.acked_above} acknowledged records"
            for tp, each in self.partitions.items()
            if each.clears_window
        )
        return (*adjusted, *cleared)

    def to_csv(self) -> str:
        """Return rows of `topic,partition,offset`, as `kafka-consumer-groups --export` writes them for one group."""
        return offsets_to_csv({self.group_id: self.offsets})


class ResetRefused(AsyncGroupError):
    """A plan that was refused: nothing was committed."""

    def __init__(self, group_id: str, reasons: Mapping[TopicPartition, str] | Mapping[str, str]) -> None:
        self.group_id = group_id
        self.reasons = dict(reasons)
        """The reason for each partition, topic or group that cannot be reset."""
        shown = [f"{name}: {reason}" for name, reason in list(reasons.items())[:_SHOWN_REASONS]]
        more = len(reasons) - len(shown)
        rest = f"; and {more} more" if more else ""
        super().__init__(f"the offsets of group {group_id!r} are not reset: {'; '.join(shown)}{rest}")

    def __reduce__(self) -> tuple[object, ...]:
        return ResetRefused, (self.group_id, self.reasons)


class _Choice(NamedTuple):
    """The new offset of a partition."""

    offset: int
    wanted: int | None
    adjusted: ResetAdjustment | None = None


def plan_offsets(
    group_id: str, target: ParsedTarget, partitions: Collection[TopicPartition], facts: ResetFacts
) -> ResetPlan:
    """Return the new offsets of these partitions. Raises ResetRefused with the reasons of all that cannot be reset.

    If one of them has a problem nothing else has to be known: the problems are the reasons then.
    """
    wanted = sorted(set(partitions))
    if problems := {tp: facts.problems[tp] for tp in wanted if tp in facts.problems}:
        raise ResetRefused(group_id, problems)
    choices = {tp: _RULES[target.kind](tp, target, facts) for tp in wanted}
    if refused := {tp: reason for tp, reason in choices.items() if isinstance(reason, str)}:
        raise ResetRefused(group_id, refused)
    planned = {tp: _reset(tp, choice, facts) for tp, choice in choices.items() if not isinstance(choice, str)}
    return ResetPlan(group_id, target.text, planned, facts.topic_ids)


def _reset(tp: TopicPartition, choice: _Choice, facts: ResetFacts) -> PartitionReset:
    old = facts.committed.get(tp)
    return PartitionReset(
        old_offset=None if old is None else old.offset,
        new_offset=choice.offset,
        wanted_offset=choice.wanted,
        log_start=facts.starts[tp],
        log_end=facts.ends[tp],
        adjusted=choice.adjusted,
        acked_above=None if old is None else _acked_above(tp, old),
        clears_metadata=old is not None and bool(old.metadata),
    )


def _acked_above(tp: TopicPartition, old: GroupOffset) -> int | None:
    """Return the number of acknowledged records in the ack window of a commit; None if it has none."""
    metadata = decode_metadata(tp, old.offset, old.metadata)
    try:
        if metadata.window:
            return decode_window(metadata.window, old.offset).acked_above
        if metadata.text:
            return decode_parallel_consumer(metadata.text, old.offset).acked_above
    except ValueError:  # a text of the user's
        pass
    return None


# --- rules: the new offset of a partition, or the reason why it has none --------------------------------------------------


def _clamped(tp: TopicPartition, wanted: int, facts: ResetFacts) -> _Choice:
    """Return the offset moved into the log (`OffsetsUtils.checkOffsetsRange`)."""
    if wanted > facts.ends[tp]:
        return _Choice(facts.ends[tp], wanted, "log_end")
    if wanted < facts.starts[tp]:
        return _Choice(facts.starts[tp], wanted, "log_start")
    return _Choice(wanted, wanted)


def _earliest(tp: TopicPartition, _: ParsedTarget, facts: ResetFacts) -> _Choice:
    return _Choice(facts.starts[tp], facts.starts[tp])


def _latest(tp: TopicPartition, _: ParsedTarget, facts: ResetFacts) -> _Choice:
    return _Choice(facts.ends[tp], facts.ends[tp])


def _current(tp: TopicPartition, _: ParsedTarget, facts: ResetFacts) -> _Choice:
    if (old := facts.committed.get(tp)) is None:
        return _Choice(facts.ends[tp], None, "no_commit")
    return _Choice(old.offset, old.offset)  # Kafka does not move it into the log either


def _offset(tp: TopicPartition, target: ParsedTarget, facts: ResetFacts) -> _Choice:
    return _clamped(tp, target.number, facts)


def _each(tp: TopicPartition, target: ParsedTarget, facts: ResetFacts) -> _Choice:
    return _clamped(tp, target.offsets[tp], facts)


def _shift(tp: TopicPartition, target: ParsedTarget, facts: ResetFacts) -> _Choice | str:
    if (old := facts.committed.get(tp)) is None:
        return f"the group has no committed offset that could be {target.text}"
    return _clamped(tp, old.offset + target.number, facts)


def _time(tp: TopicPartition, _: ParsedTarget, facts: ResetFacts) -> _Choice:
    if (found := facts.at_time[tp]) is None:
        return _Choice(facts.ends[tp], None, "no_record")
    return _Choice(found, found)


_Rule: TypeAlias = Callable[[TopicPartition, ParsedTarget, ResetFacts], _Choice | str]

_RULES: Final[Mapping[TargetKind, _Rule]] = {
    TargetKind.EARLIEST: _earliest,
    TargetKind.LATEST: _latest,
    TargetKind.CURRENT: _current,
    TargetKind.OFFSET: _offset,
    TargetKind.SHIFT: _shift,
    TargetKind.TIME: _time,
    TargetKind.EACH: _each,
}

_ADJUSTED: Final[Mapping[ResetAdjustment, Callable[[TopicPartition, PartitionReset], str]]] = {
    "log_start": lambda tp, each: (
        f"{tp}: offset {each.wanted_offset} is before the log's start, {each.new_offset} is the new offset"
    ),
    "log_end": lambda tp, each: (
        f"{tp}: offset {each.wanted_offset} is after the log's end, {each.new_offset} is the new offset"
    ),
    "no_record": lambda tp, each: (
        f"{tp}: no record is that new, the log's end {each.new_offset} is the new offset"
    ),
    "no_commit": lambda tp, each: (
        f"{tp}: the group has no committed offset, the log's end {each.new_offset} is the new offset"
    ),
}
