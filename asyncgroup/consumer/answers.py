"""What a broker's answer for a partition means, and who has to hear of it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple, Protocol
from uuid import UUID

from asyncgroup.cluster import Cluster
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
"""Seconds that a preferred replica is kept where metadata is not refreshed by itself (as in sarama)."""

AVOID_SECONDS: Final = 60.0
"""How long a follower that did not answer, or refused all it was asked for, is not read from.

Controllers need less to notice that a broker is dead; then leaders advise it no longer.
"""


def lease_of(config: ConsumerConfig) -> float:
    """Seconds that a preferred replica is kept, from the first fetch from it on."""
    return config.metadata_refresh_interval or DEFAULT_LEASE


class RedispatchCallback(Protocol):
    """Partitions must go elsewhere; `hinted` if the broker has named the new leader."""

    def __call__(self, consumers: list[PartitionConsumer], error: Exception, *, hinted: bool) -> None: ...


class FetchCallbacks(NamedTuple):
    """Whom a fetcher tells of partitions that it has let go of.

    `redispatch`: they must go elsewhere, after a pause unless hinted. `reset`: the offset is not in the log. `fail`: the
    reader must get an error. `move`: another replica is the one to ask, which is no failure. `return_to_leader`: the leader is the
    one to ask, since a follower's turn is over. `report`: tell those who read errors; the partition is still fetched here.
    """

    redispatch: RedispatchCallback
    reset: Callable[[PartitionConsumer], None]
    fail: Callable[[PartitionConsumer, Exception], None]
    move: Callable[[PartitionConsumer], None]
    return_to_leader: Callable[[PartitionConsumer], None]
    report: Callable[[Iterable[PartitionConsumer], Exception], None]


class FetchResponseHandler:
    """Takes partitions' answers in for the fetcher of one node; `remove` ends the fetching of one there."""

    def __init__(
        self,
        node_id: int,
        cluster: Cluster,
        config: ConsumerConfig,
        remove: Callable[[PartitionConsumer], bool],
        callbacks: FetchCallbacks,
    ) -> None:
        self._node_id, self._cluster, self._config = node_id, cluster, config
        self._remove, self._callbacks = remove, callbacks

    def handle(
        self, consumer: PartitionConsumer, data: Any, response: m.FetchResponse, *, zero_copy: bool
    ) -> None:
        """Hand records over, or do what the error code asks for."""
        code = data.error_code
        action = FETCH_ACTIONS.get(code, FetchAction.REDISPATCH if is_retriable(code) else FetchAction.FAIL)
        if action is FetchAction.DELIVER:
            self._deliver(consumer, data, zero_copy=zero_copy)
        elif action is FetchAction.REDISPATCH:
            self._apply_leader_hint(consumer.tp, data, response)
            hinted = self._cluster.view.leader(consumer.tp) not in (-1, self._node_id)
            self.redispatch([consumer], self._broker_error(code, consumer), hinted=hinted)
        elif self._leave_follower(consumer, consumer.fetch_failures.redirected):
            # what a follower lacks the leader may have; its word counts
            self.move(consumer)
        elif action is FetchAction.RESET:
            self._remove(consumer)
            self._callbacks.reset(consumer)
        else:
            self._fail(consumer, self._broker_error(code, consumer))

    def _deliver(self, consumer: PartitionConsumer, data: Any, *, zero_copy: bool) -> None:
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
        """Do what is to be done about an answer that ends within its first record batch, of `size` bytes (0: unknown).

        Brokers return a batch larger than `limit`, the bytes asked for, whole in the first place of an answer (KIP-74).
        One that does not makes no progress possible, which the reader must know, as with Java (`FetchCollector`); but
        where other partitions came before this one, its turn is still to come. A smaller batch was cut on the way.
        """
        tp, offset = consumer.tp, consumer.fetch_offset
        if not limit < size <= self._config.max_response_size:
            text = f"{len(data.records)} bytes end within the first record batch of an answer"
            self.redispatch([consumer], CorruptRecordsError(f"partition {tp} at offset {offset}: {text}"))
        elif is_alone:
            self._fail(consumer, RecordTooLargeError(tp, offset, size, limit))
        else:
            data.records = None
            self._deliver(consumer, data, zero_copy=False)

    def _move_to_replica(self, consumer: PartitionConsumer, replica: int) -> None:
        """The leader names a nearer replica and sends no records (KIP-392)."""
        position = consumer.fetch_position
        if replica == position.avoided_replica and position.is_avoiding_replica(
            asyncio.get_running_loop().time()
        ):
            return  # it was asked before that follower failed; the next request will not tell it the rack
        position.update_preferred_replica(replica, float("inf"))
        self.move(consumer)

    def _leave_follower(self, consumer: PartitionConsumer, is_useless: bool) -> bool:
        """Back to the leader; False if it was the leader already. A useless follower is avoided for a while."""
        position = consumer.fetch_position
        if position.preferred_replica < 0:
            return False
        if is_useless:
            position.avoid_replica(asyncio.get_running_loop().time(), AVOID_SECONDS)
        return position.clear_preferred_replica() or is_useless

    def leave_unresponsive_follower(self, consumer: PartitionConsumer, error: Exception) -> None:
        """It does not answer: its leader is asked at once."""
        self._leave_follower(consumer, is_useless=True)
        if self._remove(consumer):
            self._callbacks.report([consumer], error)
            self._callbacks.return_to_leader(consumer)

    def return_to_leader(self, consumer: PartitionConsumer) -> None:
        """The lease of a preferred replica is over, or only the leader can tell what is to be known."""
        consumer.fetch_position.clear_preferred_replica()
        if self._remove(consumer):
            self._callbacks.return_to_leader(consumer)

    def move(self, consumer: PartitionConsumer) -> None:
        """Another replica is the one to ask."""
        if self._remove(consumer):
            self._callbacks.move(consumer)

    def handle_epoch_end(self, consumer: PartitionConsumer, end: EpochEndOffset) -> None:
        """The leader has said where the last epoch read ends in its log: go back if the log lost what was read.

        Where a policy allows resets, reading goes on where the logs part, so that nothing of the new log is missed, and
        by the policy if that place is not known.
        """
        error = complete_validation(consumer, end)
        if error is None:
            return
        if out_of_range_policy(self._config) == "error":
            consumer.rewind(consumer.fetched_epoch)  # found out again at the next fetch, until somebody seeks
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
        """The topic was deleted and made anew: all of the new one is news, so it is read from its first record.

        Whatever policy allows resets: `latest` too, as the reader had the old topic's end already and would miss what
        was written since.
        """
        error = TopicRecreatedError(consumer.tp, consumer.position)
        if out_of_range_policy(self._config) == "error":
            self._fail(consumer, error)
            return
        _log.warning("%s; going on at its first record", error)
        consumer.fetch_position.seek()
        consumer.restart(0, topic_id=topic_id)
        self._callbacks.report([consumer], error)

    def _fail(self, consumer: PartitionConsumer, error: Exception) -> None:
        """Its reader gets the error; when it is asked for again is not ours to say."""
        self._remove(consumer)
        self._callbacks.fail(consumer, error)

    def fail(self, consumer: PartitionConsumer, code: int, what: str) -> None:
        """Its reader gets a broker's error."""
        self._fail(consumer, BrokerError(code, f"{what} of {consumer.tp} from node {self._node_id}"))

    def _broker_error(self, code: int, consumer: PartitionConsumer) -> BrokerError:
        return BrokerError(code, f"fetch of {consumer.tp} from node {self._node_id}")

    def _apply_leader_hint(self, tp: TopicPartition, data: Any, response: m.FetchResponse) -> None:
        """A broker that lost a partition may name the new leader (KIP-951)."""
        leader = data.current_leader
        if leader.leader_id >= 0:
            brokers = [BrokerInfo(n.node_id, n.host, n.port, n.rack) for n in response.node_endpoints]
            self._cluster.update_leader(tp, leader.leader_id, leader.leader_epoch, brokers)

    def redispatch(
        self, consumers: Iterable[PartitionConsumer], error: Exception, *, hinted: bool = False
    ) -> None:
        """These must go elsewhere: those that a follower was asked for to their leader, at once."""
        gone = [consumer for consumer in consumers if self._remove(consumer)]
        no_answer = isinstance(error, TransportError)
        led: list[PartitionConsumer] = []
        followed: list[PartitionConsumer] = []
        for consumer in gone:
            left_follower = self._leave_follower(consumer, no_answer or consumer.fetch_failures.redirected)
            (followed if left_follower else led).append(consumer)
        if led:
            self._callbacks.redispatch(led, error, hinted=hinted)
        if followed:
            self._callbacks.redispatch(followed, error, hinted=True)
