"""A KIP-848 membership with a scripted coordinator and a scripted member, in virtual time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any
from uuid import UUID

from asyncgroup import ConsumerConfig, TopicPartition
from asyncgroup.cluster import Cluster
from asyncgroup.errors import AsyncGroupError
from asyncgroup.group.consumer.membership import ConsumerMembership
from asyncgroup.group.health.member_health import MemberHealth
from asyncgroup.group.membership import ClaimChanges, HeartbeatResult, JoinedGroup
from asyncgroup.lifecycle import cancel_and_wait
from asyncgroup.offsets import MemberIdentity
from asyncgroup.wire import messages as m
from tests.cluster.scripted import Call, ScriptedCluster

__all__ = ["AA", "BB", "HOST", "INTERVAL", "Beat", "Scene", "ScriptedMember", "now", "scene"]

AA, BB = UUID(int=0xAA), UUID(int=0xBB)
INTERVAL = 5.0
HOST = "10.0.0.1"


def now() -> float:
    return asyncio.get_running_loop().time()


class ScriptedMember:
    """Applies assignments; a revocation waits for `may_finish`."""

    def __init__(self, first: JoinedGroup) -> None:
        self.ended = False
        self.assigned = [first]
        self.epochs: list[int] = []
        self.results: list[tuple[float, HeartbeatResult, AsyncGroupError | None]] = []
        self.owned = _partitions(first)
        self.may_finish = asyncio.Event()
        self.may_finish.set()
        self.revoking_since: float | None = None

    def on_heartbeat(self, result: HeartbeatResult, error: AsyncGroupError | None) -> None:
        self.results.append((now(), result, error))
        self.ended = self.ended or result in (HeartbeatResult.LOST, HeartbeatResult.FATAL)

    def on_epoch(self, identity: MemberIdentity) -> None:
        self.epochs.append(identity.generation_id)

    async def assign(self, joined: JoinedGroup) -> ClaimChanges:
        self.assigned.append(joined)
        wanted = _partitions(joined)
        changes = ClaimChanges(
            [tp for tp in self.owned if tp not in wanted], [tp for tp in wanted if tp not in self.owned]
        )
        if changes.revoked:
            self.revoking_since = now()
            await self.may_finish.wait()
        if self.ended:
            return ClaimChanges([], [])
        self.owned = wanted
        return changes


def _partitions(joined: JoinedGroup) -> list[TopicPartition]:
    return sorted(
        TopicPartition(topic, number) for topic, numbers in joined.assignment.items() for number in numbers
    )


class Beat:
    """A heartbeat that the coordinator received."""

    def __init__(self, call: Call) -> None:
        self.at = now()
        self.call = call
        self.request: m.ConsumerGroupHeartbeatRequest = call.request

    @property
    def owned(self) -> dict[UUID, list[int]] | None:
        topics = self.request.topic_partitions
        return None if topics is None else {entry.topic_id: entry.partitions for entry in topics}

    @property
    def is_full(self) -> bool:
        return self.request.rebalance_timeout_ms > 0 and self.request.subscribed_topic_names is not None


class Scene:
    """`epoch`, `interval` and `pending` are the coordinator's; `script` answers the next heartbeats, one function each."""

    def __init__(self, scripted: ScriptedCluster, cluster: Cluster, **config: Any) -> None:
        self.scripted = scripted
        self.broker = scripted[1]
        self.cluster = cluster
        self.beats: list[Beat] = []
        self.epoch = 1
        self.interval = INTERVAL
        self.pending: dict[UUID, list[int]] | None = {AA: [0, 1]}
        self.script: list[Callable[[Beat], None]] = []
        self.session_timeout = "45000"
        self.errors: list[BaseException] = []
        full = ConsumerConfig(group_protocol="consumer", **config)
        self.health = MemberHealth(lambda error: bool(self.errors.append(error)))
        self.health.state_since = now()
        self.membership = ConsumerMembership(cluster._inner, "g", full, self.health)
        self.broker.script["FindCoordinator"] = self._find
        self.broker.script["ConsumerGroupHeartbeat"] = self._heartbeat
        self.broker.script["DescribeConfigs"] = self._describe

    def _find(self, call: Call) -> None:
        entry = m.FindCoordinatorResponse.Coordinator(key="g", node_id=1, host=HOST, port=9092)
        call.answer(m.FindCoordinatorResponse(coordinators=[entry]))

    def _describe(self, call: Call) -> None:
        config = m.DescribeConfigsResponse.DescribeConfigsResourceResult(
            name="consumer.session.timeout.ms", value=self.session_timeout
        )
        result = m.DescribeConfigsResponse.DescribeConfigsResult(
            resource_type=32, resource_name="g", configs=[config]
        )
        call.answer(m.DescribeConfigsResponse(results=[result]))

    def _heartbeat(self, call: Call) -> None:
        beat = Beat(call)
        self.beats.append(beat)
        (self.script.pop(0) if self.script else self.accept)(beat)

    def accept(self, beat: Beat) -> None:
        """Answer as a coordinator: with the pending assignment, if it is new or the member joins or sends all fields."""
        Topic = m.ConsumerGroupHeartbeatResponse.TopicPartitions
        assignment = None
        if self.pending is not None and beat.request.member_epoch >= 0:
            assignment = m.ConsumerGroupHeartbeatResponse.Assignment(
                [Topic(topic_id, list(numbers)) for topic_id, numbers in self.pending.items()]
            )
            self.pending = None
        epoch = self.epoch if beat.request.member_epoch >= 0 else beat.request.member_epoch
        beat.call.answer(
            m.ConsumerGroupHeartbeatResponse(
                member_id=beat.request.member_id,
                member_epoch=epoch,
                heartbeat_interval_ms=int(self.interval * 1000),
                assignment=assignment,
            )
        )

    def refuse(self, code: int) -> Callable[[Beat], None]:
        return lambda beat: beat.call.answer(
            m.ConsumerGroupHeartbeatResponse(error_code=code, error_message="as the script says")
        )

    def ignore(self, beat: Beat) -> None:
        """Send no answer."""

    @contextlib.asynccontextmanager
    async def staying(self, topics: Iterable[str] = ("aa",)) -> AsyncIterator[ScriptedMember]:
        """Join, and stay until the end of the block."""
        joined = await self.membership.join(topics)
        member = ScriptedMember(joined)
        staying = asyncio.ensure_future(self.membership.stay(joined, member))
        self.staying_task = staying
        try:
            yield member
            if staying.done():
                staying.result()
        finally:
            await cancel_and_wait(staying)

    async def settle(self) -> None:
        """Wait until heartbeats go out at the regular interval."""
        await asyncio.sleep(3 * INTERVAL)
        self.beats.clear()


@contextlib.asynccontextmanager
async def scene(**config: Any) -> AsyncIterator[Scene]:
    """Yield a scene with the topics `aa` and `bb`, whose ids are `AA` and `BB`."""
    async with ScriptedCluster(HOST) as scripted:
        scripted.topics = {"aa": dict.fromkeys(range(4), (1, 0)), "bb": dict.fromkeys(range(4), (1, 0))}
        scripted.topic_ids = {"aa": AA, "bb": BB}
        async with Cluster(scripted.servers, ConsumerConfig(group_protocol="consumer")) as cluster:
            with cluster.tracking(["aa", "bb"]):
                await cluster.refresh()
                yield Scene(scripted, cluster, **config)
