"""Has positions confirmed by the leader that one fetcher asks, before anything more is fetched from it (KIP-320)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from asyncgroup.cluster import Cluster
from asyncgroup.consumer.answers import Answers
from asyncgroup.consumer.fetch_plan import Action
from asyncgroup.consumer.partition_consumer import PartitionConsumer
from asyncgroup.consumer.validation import Check, action_for, build_request, read_ends
from asyncgroup.errors import AsyncGroupError, BrokerError, ErrorCode, UnsupportedVersionError
from asyncgroup.model import TopicPartition
from asyncgroup.wire import messages as m

__all__ = ["Validator"]


class Validator:
    """The partitions of one node that wait to be confirmed: all of them are asked for by one request.

    `is_current(consumer, version)` says whether a partition is still fetched here, and was not sought elsewhere since;
    `on_done` is called after each round, when partitions may be fetched again.
    """

    def __init__(
        self,
        node_id: int,
        cluster: Cluster,
        answers: Answers,
        is_current: Callable[[PartitionConsumer, int], bool],
        on_done: Callable[[], None],
    ) -> None:
        self._node_id, self._cluster, self._answers = node_id, cluster, answers
        self._is_current, self._on_done = is_current, on_done
        self._doubtful: dict[TopicPartition, PartitionConsumer] = {}
        self._has_doubts = asyncio.Event()

    def __repr__(self) -> str:
        return f"<Validator node {self._node_id}: {len(self._doubtful)} partitions wait>"

    def put(self, consumer: PartitionConsumer) -> None:
        """Have its position confirmed."""
        self._doubtful[consumer.tp] = consumer
        self._has_doubts.set()

    def discard(self, consumer: PartitionConsumer) -> None:
        """It is fetched here no longer."""
        self._doubtful.pop(consumer.tp, None)

    async def run(self) -> None:
        """For ever."""
        while True:
            await self._has_doubts.wait()
            self._has_doubts.clear()
            await self._validate(self._checks())
            self._on_done()

    def _checks(self) -> dict[TopicPartition, Check]:
        view = self._cluster.view
        doubtful, self._doubtful = self._doubtful, {}
        return {
            tp: Check(consumer, consumer.version, consumer.fetched_epoch, info.leader_epoch)
            for tp, consumer in doubtful.items()
            if (info := view.partition(*tp)) is not None
            and consumer.whereabouts.must_validate(consumer.fetched_epoch, info)
        }

    async def _validate(self, checks: dict[TopicPartition, Check]) -> None:
        if not checks:
            return
        try:
            response = await self._cluster.request_built(
                self._node_id,
                m.OffsetForLeaderEpochRequest,
                lambda version: build_request(checks.values(), version),
            )
        except UnsupportedVersionError:  # nobody can tell, as with brokers before KIP-320
            for check in checks.values():
                _confirm(check)
            return
        except AsyncGroupError as error:
            self._answers.redispatch([check.consumer for check in checks.values()], error)
            return
        ends = read_ends(response)
        for tp, check in checks.items():
            if not self._is_current(check.consumer, check.version):
                continue
            code, end = ends.get(tp, (ErrorCode.UNKNOWN_SERVER_ERROR, None))
            action = action_for(code)
            if action is Action.DELIVER and end is not None:
                _confirm(check)
                self._answers.settle(check.consumer, end)
            elif action is Action.FAIL:
                self._answers.fail(check.consumer, code, "epoch")
            else:
                said = BrokerError(code, f"leader epoch of {tp} from node {self._node_id}")
                self._answers.redispatch([check.consumer], said)


def _confirm(check: Check) -> None:
    """The leader has spoken; whatever it said, it need not be asked again."""
    places = check.consumer.whereabouts
    places.valid_epoch = max(places.valid_epoch, check.leader_epoch)
