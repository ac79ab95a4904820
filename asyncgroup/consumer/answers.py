"""Map each partition's fetch result to an action: deliver records, reset, redispatch, fail, change the replica."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple, Protocol
from uuid import UUID

from asyncgroup.cluster import ClusterClient
from asyncgroup.cluster.metadata import BrokerInfo
from asyncgroup.config import ConsumerConfig
from asyncgroup.consumer.fetch_plan import FETCH_ACTIONS, FetchAction
from asyncgroup.consumer.partition_consumer import PartitionConsumer
from asyncgroup.consumer.resets import out_of_range_policy
from asyncgroup.consumer.validation import EpochEndOffset, complete_validation
from asyncgroup.error_codes import is_retriable
from asyncgroup.errors import (
    BrokerError,
    CorruptRecordsError,
    RecordTooLargeError,
    TopicRecreatedError,
    TransportError,
)
from asyncgroup.model import TopicPartition
from asyncgroup.wire import messages as m

__all__ = ["FetchCallbacks", "FetchResponseHandler", "RedispatchCallback"]

_log = logging.getLogger("asyncgroup.consumer")

DEFAULT_LEASE: Final = 600.0
"""Seconds that a preferred read replica is kept if metadata is not refreshed periodically (as in sarama)."""

AVOID_SECONDS: Final = 60.0
"""Seconds that a follower is not read from after it did not answer or refused a partition.

A controller notices a dead broker sooner; after that leaders no longer advise it as a read replica.
"""


def lease_of(config: ConsumerConfig) -> float:
    """Return the seconds that a preferred read replica is kept, counted from the first fetch from it."""
    return config.metadata_refresh_interval or DEFAULT_LEASE


class RedispatchCallback(Protocol):
    """Assign partitions to another node; `hinted`: the broker has named the new leader."""

    def __call__(self, consumers: list[PartitionConsumer], error: Exception, *, hinted: bool) -> None: ...


class FetchCallbacks(NamedTuple):
    """What a broker fetcher calls for partitions that it has stopped fetching (`report`: that it continues to fetch)."""

    redispatch: RedispatchCallback
    """Fetch from another node, after a pause unless hinted."""
    reset: Callable[[PartitionConsumer], None]
    """The offset is not in the log."""
    fail: Callable[[PartitionConsumer, Exception], None]
    """Raise the error to the reader."""
    move: Callable[[PartitionConsumer], None]
    """Fetch from another replica; this does not count as a failure."""
    return_to_leader: Callable[[PartitionConsumer], None]
    """Fetch from the leader, as the follower is no longer the preferred read replica."""
    report: Callable[[Iterable[PartitionConsumer], Exception], None]
    """Pass an error to the readers of `errors()`, or log it."""


class FetchResponseHandler:
    """Handles the partitions of Fetch responses of one node.

    `remove` stops fetching a partition from this node; it returns False if the partition is not fetched there.
    """

    def __init__(
        self,
        node_id: int,
        cluster: ClusterClient,
        config: ConsumerConfig,
        remove: Callable[[PartitionConsumer], bool],
        callbacks: FetchCallbacks,
    ) -> None:
        self._node_id = node_id
        self._cluster = cluster
        self._config = config
        self._remove = remove
        self._callbacks = callbacks

    def handle(
        self, consumer: PartitionConsumer, data: Any, response: m.FetchResponse, *, zero_copy: bool
    ) -> None:
        """Deliver a partition's records, or apply the action for its error code."""
        code = data.error_code
        action = FETCH_ACTIONS.get(code, FetchAction.REDISPATCH if is_retriable(code) else FetchAction.FAIL)
        if action is FetchAction.DELIVER:
            self._deliver(consumer, data, zero_copy=zero_copy)
        elif action is FetchAction.REDISPATCH:
            self._apply_leader_hint(consumer.tp, data, response)
            hinted = self._cluster.view.leader(consumer.tp) not in (-1, self._node_id)
            self.redispatch([consumer], self._broker_error(code, consumer), hinted=hinted)
        elif self._leave_follower(consumer, consumer.fetch_failures.redirected):
            # the leader may have what a follower lacks, so only its error counts
            self.move(consumer)
        elif action is FetchAction.RESET:
            self._remove(consumer)
            self._callbacks.reset(consumer)
        else:
            self._fail(consumer, self._broker_error(code, consumer))

    def _deliver(self, consumer: PartitionConsumer, data: Any, *, zero_copy: bool) -> None:
        """Handle partition data without an error code: records, a diverging epoch, or a preferred read replica."""
        diverging = data.diverging_epoch
        if diverging.epoch >= 0:
            self.handle_epoch_end(consumer, EpochEndOffset(diverging.epoch, diverging.end_offset))
        elif data.preferred_read_replica not in (-1, self._node_id):
            self._move_to_replica(consumer, data.preferred_read_replica)
        else:
            consumer.fetched(
                data.records,
                data.high_watermark,
                data.log_start_offset,
                zero_copy=zero_copy,
                last_stable_offset=data.last_stable_offset,
                aborted=data.aborted_transactions,
            )

    def handle_partial_batch(
        self, consumer: PartitionConsumer, data: Any, size: int, limit: int, *, is_alone: bool
    ) -> None:
        """Handle partition data that ends within its first record batch of `size` bytes (0: unknown).

        Brokers return the first batch of a response in full even if it is larger than `limit`, the requested bytes
        (KIP-74). A broker that does not makes progress impossible, which is raised to the reader as in Java
        (`FetchCollector`), unless the response has records of other partitions: then the partition is asked for first next
        time. A batch that would have fit was damaged on the network.
        """
        tp, offset = consumer.tp, consumer.fetch_offset
        if not limit < size <= self._config.max_response_size:
            text = f"{len(data.records)} bytes end within the first record batch of a response"
            self.redispatch([consumer], CorruptRecordsError(f"partition {tp} at offset {offset}: {text}"))
        elif is_alone:
            self._fail(consumer, RecordTooLargeError(tp, offset, size, limit))
        else:
            data.records = None
            self._deliver(consumer, data, zero_copy=False)

    def _move_to_replica(self, consumer: PartitionConsumer, replica: int) -> None:
        """Fetch from the read replica that the leader advises; such a response has no records (KIP-392)."""
        position = consumer.fetch_position
        now = asyncio.get_running_loop().time()
        if replica == position.avoided_replica and position.is_avoiding_replica(now):
            return  # the request was sent before that follower failed; the next one omits the rack id
        position.update_preferred_replica(replica, float("inf"))
        self.move(consumer)

    def _leave_follower(self, consumer: PartitionConsumer, is_useless: bool) -> bool:
        """Go back to the leader; return False if the partition was there already. A useless follower is avoided."""
        position = consumer.fetch_position
        if position.preferred_replica < 0:
            return False
        if is_useless:
            position.avoid_replica(asyncio.get_running_loop().time(), AVOID_SECONDS)
        return position.clear_preferred_replica() or is_useless

    def leave_unresponsive_follower(self, consumer: PartitionConsumer, error: Exception) -> None:
        """Fetch from the leader at once, since the follower does not answer."""
        self._leave_follower(consumer, is_useless=True)
        if self._remove(consumer):
            self._callbacks.report([consumer], error)
            self._callbacks.return_to_leader(consumer)

    def return_to_leader(self, consumer: PartitionConsumer) -> None:
        """Fetch from the leader: the lease of the preferred replica is over, or only the leader can validate."""
        consumer.fetch_position.clear_preferred_replica()
        if self._remove(consumer):
            self._callbacks.return_to_leader(consumer)

    def move(self, consumer: PartitionConsumer) -> None:
        """Fetch from another replica."""
        if self._remove(consumer):
            self._callbacks.move(consumer)

    def handle_epoch_end(self, consumer: PartitionConsumer, end: EpochEndOffset) -> None:
        """Go back if the leader's end offset for the last fetched epoch shows that the log was truncated (KIP-320).

        If the policy allows resets, reading continues at the divergent offset, so that no record of the new log is missed;
        if that offset is unknown, the policy decides where. With the policy `error` the error is raised to the reader.
        """
        error = complete_validation(consumer, end)
        if error is None:
            return
        if out_of_range_policy(self._config) == "error":
            # the next fetch detects the truncation again, until a seek
            consumer.rewind(consumer.fetched_epoch)
            self._fail(consumer, error)
            return
        _log.warning("%s (epoch %d of epoch %d)", error, end.epoch, consumer.fetched_epoch)
        if error.divergent_offset is None:
            self._remove(consumer)
            self._callbacks.reset(consumer)
            return
        consumer.restart(end.end_offset, end.epoch)
        self._callbacks.report([consumer], error)

    def handle_recreated_topic(self, consumer: PartitionConsumer, topic_id: UUID) -> None:
        """Read a recreated topic from its first record; with the policy `error` raise TopicRecreatedError to the reader.

        This holds for the policy `latest` too: all records of the new topic came after the deletion, and the reader would
        miss those written before it noticed.
        """
        error = TopicRecreatedError(consumer.tp, consumer.position)
        if out_of_range_policy(self._config) == "error":
            self._fail(consumer, error)
            return
        _log.warning("%s; continuing at its first record", error)
        consumer.fetch_position.seek()
        consumer.restart(0, topic_id=topic_id)
        self._callbacks.report([consumer], error)

    def _fail(self, consumer: PartitionConsumer, error: Exception) -> None:
        """Stop fetching the partition here and raise the error to its reader."""
        self._remove(consumer)
        self._callbacks.fail(consumer, error)

    def fail(self, consumer: PartitionConsumer, code: int, what: str) -> None:
        """Raise a broker's error to the partition's reader; `what` was requested."""
        self._fail(consumer, BrokerError(code, f"{what} of {consumer.tp} from node {self._node_id}"))

    def _broker_error(self, code: int, consumer: PartitionConsumer) -> BrokerError:
        return BrokerError(code, f"fetch of {consumer.tp} from node {self._node_id}")

    def _apply_leader_hint(self, tp: TopicPartition, data: Any, response: m.FetchResponse) -> None:
        """Update the metadata with the new leader, if a broker that is no longer the leader names it (KIP-951)."""
        leader = data.current_leader
        if leader.leader_id >= 0:
            brokers = [BrokerInfo(n.node_id, n.host, n.port, n.rack) for n in response.node_endpoints]
            self._cluster.update_leader(tp, leader.leader_id, leader.leader_epoch, brokers)

    def redispatch(
        self, consumers: Iterable[PartitionConsumer], error: Exception, *, hinted: bool = False
    ) -> None:
        """Assign partitions to another node; those fetched from a follower go to their leaders at once."""
        removed = [consumer for consumer in consumers if self._remove(consumer)]
        no_answer = isinstance(error, TransportError)
        from_leader: list[PartitionConsumer] = []
        from_follower: list[PartitionConsumer] = []
        for consumer in removed:
            left_follower = self._leave_follower(consumer, no_answer or consumer.fetch_failures.redirected)
            (from_follower if left_follower else from_leader).append(consumer)
        if from_leader:
            self._callbacks.redispatch(from_leader, error, hinted=hinted)
        if from_follower:
            self._callbacks.redispatch(from_follower, error, hinted=True)
