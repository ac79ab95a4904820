"""Offset resets and seeks by name or time: the lookups of partitions in AwaitReset, and what their answers mean. Pure state.

A broker that lost the end of its logs makes all its partitions out of range at once (sarama #2342): they are looked up in
one request, and partitions of one broker never wait for another broker.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import timedelta
from typing import Final, NamedTuple

from asyncgroup.cluster.requests.list_offsets import EARLIEST, LATEST, may_be_listed_later
from asyncgroup.config import AutoOffsetReset, ConsumerConfig
from asyncgroup.consumer.fetch_state import FetchState
from asyncgroup.consumer.list_offsets import ListOffsetsResult, parse_start, timestamp_of
from asyncgroup.consumer.partition import TopicPartitionState
from asyncgroup.consumer.partition_states import NEVER, PartitionStates
from asyncgroup.errors import AsyncGroupError, BrokerError, ErrorCode, OffsetOutOfRangeError
from asyncgroup.log_events import log_fields
from asyncgroup.model import MillisClock, TopicPartition

__all__ = ["LogRange", "OffsetLookup", "OffsetResets", "out_of_range_error", "out_of_range_policy"]

_log = logging.getLogger("asyncgroup.consumer")

LOOKUP_WINDOW: Final = 0.01
"""Resets that are due within this time, in seconds, share their requests."""


class OffsetLookup(NamedTuple):
    """The lookups of partitions with the same leader, to be sent together."""

    versions: dict[TopicPartitionState, int]
    """The partitions, each with its version at the time of the plan; a seek raises it, which makes the answer void."""
    requests: list[dict[TopicPartition, int]]
    """Timestamps to look up: the targets of seeks first; for resets the log's start and end and, with a policy by
    duration, the offset at that time."""
    leader: int
    """Node id of the leader that is asked; -1 if there is none."""


class LogRange(NamedTuple):
    """The offsets of a log."""

    start: int
    """The log start offset."""
    end: int
    """The offset after the last readable record."""

    def __str__(self) -> str:
        return f"{self.start}..{self.end}"


def out_of_range_policy(config: ConsumerConfig) -> AutoOffsetReset:
    """Return the policy for an offset that is not in the log: `out_of_range_reset`, else `auto_offset_reset`."""
    policy = config.out_of_range_reset
    return config.auto_offset_reset if policy is None else policy


def out_of_range_error(
    tp: TopicPartition, offset: int, log: LogRange, reset_to: int | None = None
) -> OffsetOutOfRangeError:
    """Return the error for an offset outside the log; `reset_to` is the offset chosen by the policy."""
    text = f"{tp}: offset {offset} is not in the log, which holds {log}"
    return OffsetOutOfRangeError(text if reset_to is None else f"{text}; continuing at {reset_to}")


class OffsetResets:
    """Applies `out_of_range_reset` and seeks by name or time. A later seek by the reader cancels both."""

    def __init__(self, states: PartitionStates, config: ConsumerConfig, clock: MillisClock) -> None:
        self._states = states
        self._config = config
        self._clock = clock
        self._is_stale = False  # a lookup failed: refresh the metadata before the next one
        self._in_flight: dict[TopicPartitionState, OffsetLookup] = {}
        """The last lookup of each partition, until its answer, or until another leader is asked."""

    def reset(self, partition: TopicPartitionState, now: float) -> None:
        """Look up a position in the log: at once, but after a pause without a fetch since the last reset."""
        pause = 0.0
        if out_of_range_policy(self._config) != "error":
            is_first = partition.fetch_failures.count == 0
            what = f"fetch of {partition.tp} at offset {partition.fetch_offset}"
            error = BrokerError(ErrorCode.OFFSET_OUT_OF_RANGE, what)
            pause = self._states.record_lookup_failure(partition, error, now)
            pause = 0.0 if is_first else pause
        self._states.enter(partition, FetchState.AWAIT_RESET, now + pause)

    def next_lookup(self) -> float:
        """Return the loop time of the next offset lookup."""
        return self._states.next(FetchState.AWAIT_RESET)

    def take_stale(self, now: float) -> list[TopicPartitionState]:
        """Return the partitions to be looked up if metadata has to be refreshed before; only once after a failure."""
        is_stale, self._is_stale = self._is_stale, False
        return self._states.due(FetchState.AWAIT_RESET, now + LOOKUP_WINDOW) if is_stale else []

    def plan(self, now: float) -> list[OffsetLookup]:
        """Return the lookups that are due, to be sent concurrently; their answers are for `apply`."""
        by_leader: dict[int, list[TopicPartitionState]] = {}
        for partition in self._states.due(FetchState.AWAIT_RESET, now + LOOKUP_WINDOW):
            partition.retry_at = NEVER
            if partition.version == partition.reset_version:
                leader = self._states.metadata.view.leader(partition.tp)
                by_leader.setdefault(leader, []).append(partition)
            else:
                self._states.assign(partition, now)  # the reader has called seek in the meantime
        lookups = [self._lookup(group, leader) for leader, group in by_leader.items()]
        for lookup in lookups:
            self._in_flight |= dict.fromkeys(lookup.versions, lookup)
        return lookups

    def metadata_changed(self, now: float) -> None:
        """Look up again at the new leader what was asked of a former one, which may not answer for long."""
        view = self._states.metadata.view
        for partition, lookup in list(self._in_flight.items()):
            if view.leader(partition.tp) not in (-1, lookup.leader):
                del self._in_flight[partition]
                if self._is_waiting(partition) and partition.retry_at == NEVER:
                    self._states.retry_now(partition, now)

    def _is_waiting(self, partition: TopicPartitionState) -> bool:
        return self._states.is_ours(partition) and partition.fetch_state is FetchState.AWAIT_RESET

    def _lookup(self, partitions: list[TopicPartitionState], leader: int) -> OffsetLookup:
        seeks, resets = {}, []
        for partition in partitions:
            if partition.seek_target is None:
                resets.append(partition.tp)
            elif (timestamp := parse_start(partition.seek_target, self._clock).timestamp) is not None:
                seeks[partition.tp] = timestamp
        policy = out_of_range_policy(self._config)
        by_time = [timestamp_of(policy, self._clock)] if isinstance(policy, timedelta) else []
        requests = [seeks, *(dict.fromkeys(resets, timestamp) for timestamp in (EARLIEST, LATEST, *by_time))]
        versions = {partition: partition.version for partition in partitions}
        return OffsetLookup(versions, requests, leader)

    def apply(self, lookup: OffsetLookup, answers: Sequence[ListOffsetsResult], now: float) -> None:
        """Apply the answers to a lookup's requests."""
        for partition, version in lookup.versions.items():
            if self._in_flight.get(partition) is not lookup:
                continue  # another one has followed it
            del self._in_flight[partition]
            if not self._is_waiting(partition):
                continue
            if partition.version == version:
                self._apply(partition, lookup, answers, now)
            elif partition.version != partition.reset_version:
                self._states.assign(partition, now)  # the reader has called seek in the meantime

    def _apply(
        self,
        partition: TopicPartitionState,
        lookup: OffsetLookup,
        answers: Sequence[ListOffsetsResult],
        now: float,
    ) -> None:
        """Continue where the answers to a lookup's requests say; the partition's version has not changed since."""
        tp = partition.tp
        is_seek = tp in lookup.requests[0]
        answers = answers[:1] if is_seek else answers[1:]
        if problems := [found.problems[tp] for found in answers if tp in found.problems]:
            # an error that a repetition does not change first
            self._lookup_failed(partition, min(problems, key=may_be_listed_later), now)
            return
        offsets = [found.listed[tp].offset for found in answers]
        if is_seek:
            partition.seek_to(*offsets)
            self._states.assign(partition, now)
        else:
            self._reset_within(partition, LogRange(*offsets[:2]), offsets[2:], now)

    def _reset_within(
        self, partition: TopicPartitionState, log: LogRange, at_time: list[int], now: float
    ) -> None:
        """Continue where the policy says; `at_time` is the offset for a policy by duration."""
        tp, offset, policy = partition.tp, partition.fetch_offset, out_of_range_policy(self._config)
        if policy == "error":
            self._states.raise_to_reader(partition, out_of_range_error(tp, offset, log), now)
            return
        target = log.start if policy == "earliest" else log.end
        for found in at_time:
            # the three lookups ran concurrently, and the log may have changed between them
            target = min(max(log.start, found), log.end)
        error = out_of_range_error(tp, offset, log, target)
        _log.warning("%s", error, extra=log_fields("offset_reset", tp=tp, offset=target, error=error))
        partition.reset(target, log.end)
        self._states.report([partition], error)
        self._states.assign(partition, now)

    def _lookup_failed(self, partition: TopicPartitionState, error: AsyncGroupError, now: float) -> None:
        """Look up again after a pause, or raise the error to the reader, who continues at the old position."""
        if not may_be_listed_later(error):
            partition.seek_target = None
            self._states.raise_to_reader(partition, error, now)
            return
        self._is_stale = True
        self._states.report([partition], error)
        pause = self._states.record_lookup_failure(partition, error, now)
        self._states.enter(partition, FetchState.AWAIT_RESET, now + pause)
