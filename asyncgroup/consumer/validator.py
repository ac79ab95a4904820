"""Validate the positions of partitions in AwaitValidation with their leader, before more is fetched from it (KIP-320)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from asyncgroup.cluster import ClusterClient
from asyncgroup.consumer.answers import FetchResponseHandler
from asyncgroup.consumer.fetch_plan import FetchAction
from asyncgroup.consumer.partition_consumer import PartitionConsumer
from asyncgroup.consumer.validation import (
    PositionCheck,
    build_epoch_request,
    epoch_end_offsets,
    validation_action,
)
from asyncgroup.errors import AsyncGroupError, BrokerError, ErrorCode, UnsupportedVersionError
from asyncgroup.model import TopicPartition
from asyncgroup.wire import messages as m

__all__ = ["PositionValidator"]


class PositionValidator:
    """The partitions of one node that await validation; one request validates all of them.

    `is_current(consumer, version)` returns whether a partition is still fetched from this node and had no seek since;
    `on_done` is called after each request, when partitions may be fetched again.
    """

    def __init__(
        self,
        node_id: int,
        cluster: ClusterClient,
        handler: FetchResponseHandler,
        is_current: Callable[[PartitionConsumer, int], bool],
        on_done: Callable[[], None],
    ) -> None:
        self._node_id = node_id
        self._cluster = cluster
        self._handler = handler
        self._is_current = is_current
        self._on_done = on_done
        self._awaiting_validation: dict[TopicPartition, PartitionConsumer] = {}
        self._wake = asyncio.Event()

    def __repr__(self) -> str:
        return f"<PositionValidator node {self._node_id}: {len(self._awaiting_validation)} partitions wait>"

    def put(self, consumer: PartitionConsumer) -> None:
        """Validate a partition's position."""
        self._awaiting_validation[consumer.tp] = consumer
        self._wake.set()

    def discard(self, consumer: PartitionConsumer) -> None:
        """Forget a partition that is no longer fetched from this node."""
        self._awaiting_validation.pop(consumer.tp, None)

    async def run(self) -> None:
        """Validate positions, without end."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            await self._validate(self._checks())
            self._on_done()

    def _checks(self) -> dict[TopicPartition, PositionCheck]:
        view = self._cluster.view
        awaiting, self._awaiting_validation = self._awaiting_validation, {}
        return {
            tp: PositionCheck(consumer, consumer.version, consumer.fetched_epoch, info.leader_epoch)
            for tp, consumer in awaiting.items()
            if (info := view.partition(*tp)) is not None
            and consumer.fetch_position.must_validate(consumer.fetched_epoch, info)
        }

    async def _validate(self, checks: dict[TopicPartition, PositionCheck]) -> None:
        if not checks:
            return
        try:
            response = await self._cluster.request_versioned(
                self._node_id,
                m.OffsetForLeaderEpochRequest,
                lambda version: build_epoch_request(checks.values(), version),
            )
        except UnsupportedVersionError:  # brokers before KIP-320 cannot validate
            for check in checks.values():
                _confirm(check)
            return
        except AsyncGroupError as error:
            self._handler.redispatch([check.consumer for check in checks.values()], error)
            return
        ends = epoch_end_offsets(response)
        for tp, check in checks.items():
            if not self._is_current(check.consumer, check.version):
                continue
            code, end = ends.get(tp, (ErrorCode.UNKNOWN_SERVER_ERROR, None))
            action = validation_action(code)
            if action is FetchAction.DELIVER and end is not None:
                _confirm(check)
                self._handler.handle_epoch_end(check.consumer, end)
            elif action is FetchAction.FAIL:
                self._handler.fail(check.consumer, code, "epoch")
            else:
                refusal = BrokerError(code, f"leader epoch of {tp} from node {self._node_id}")
                self._handler.redispatch([check.consumer], refusal)


def _confirm(check: PositionCheck) -> None:
    """Record that the leader has answered: with any result, this epoch need not be validated again."""
    position = check.consumer.fetch_position
    position.validated_epoch = max(position.validated_epoch, check.leader_epoch)
