"""What a story does to a cluster from outside, by Kafka's own messages: the same on every broker."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from asyncgroup import ClientConfig, Cluster, TopicPartition
from asyncgroup.errors import AsyncGroupError, BrokerError, ErrorCode, TransportError
from asyncgroup.group.join_requests import decode_assignment
from asyncgroup.model import by_topic
from asyncgroup.offsets.fetch_offsets import fetch_offsets
from asyncgroup.wire import messages as m
from asyncgroup.wire.records import BatchBuilder

__all__ = ["Admin", "Described"]

BY_NAME = 12
"""The newest Produce version that names topics by name."""


class Described(NamedTuple):
    """A group as DescribeGroups tells it: `members` maps member ids to their assignments."""

    state: str
    members: dict[str, dict[str, list[int]]]
    client_ids: dict[str, str]


class Admin:
    """Topics, records, and what groups have done; retries what heals, for a node may just have died."""

    def __init__(self, bootstrap_servers: str) -> None:
        self.cluster = Cluster(bootstrap_servers, ClientConfig(client_id="admin"))
        self.cluster.random.seed(1)

    async def create_topic(self, name: str, partitions: int) -> None:
        """Create a topic with the broker's default replication, and wait until it is known with leaders.

        Its records are as old as the epoch (see `produce`): a real broker would delete them half a minute after its start.
        """
        creatable = m.CreateTopicsRequest.CreatableTopic
        topic = creatable(
            name=name,
            num_partitions=partitions,
            replication_factor=-1,
            configs=[m.CreateTopicsRequest.CreatableTopicConfig(name="retention.ms", value="-1")],
        )
        response = await self.cluster.request_any(
            m.CreateTopicsRequest, lambda _: m.CreateTopicsRequest(topics=[topic], timeout_ms=20_000)
        )
        for answer in response.topics:
            if answer.error_code:
                raise BrokerError(answer.error_code, f"creating topic {name!r}", answer.error_message)
        for partition in range(partitions):
            await self.leader(TopicPartition(name, partition))

    async def delete_topic(self, name: str) -> None:
        topic = m.DeleteTopicsRequest.DeleteTopicState(name=name)
        await self.cluster.request_any(
            m.DeleteTopicsRequest,
            lambda version: (
                m.DeleteTopicsRequest(topics=[topic], timeout_ms=20_000)
                if version >= 6
                else m.DeleteTopicsRequest(topic_names=[name], timeout_ms=20_000)
            ),
        )

    async def recreate_topic(self, name: str, partitions: int) -> None:
        """Create a topic whose namesake is just being deleted, as soon as the broker lets it be."""
        while True:
            try:
                await self.create_topic(name, partitions)
            except BrokerError as error:
                if error.code != ErrorCode.TOPIC_ALREADY_EXISTS:
                    raise
                await asyncio.sleep(0.05)
            else:
                return

    async def create_partitions(self, name: str, total: int) -> None:
        """Let a topic have `total` partitions, and wait until all have leaders."""
        topic = m.CreatePartitionsRequest.CreatePartitionsTopic(name=name, count=total, assignments=None)
        response = await self.cluster.request_any(
            m.CreatePartitionsRequest, lambda _: m.CreatePartitionsRequest(topics=[topic], timeout_ms=20_000)
        )
        if response.results[0].error_code:
            raise BrokerError(response.results[0].error_code, f"partitions of {name!r}")
        for partition in range(total):
            await self.leader(TopicPartition(name, partition))

    async def leader(self, tp: TopicPartition) -> int:
        """A partition's leader, waited for."""
        self.cluster.track([tp.topic])
        try:
            while True:
                try:
                    return await self.cluster.leader(tp)
                except BrokerError as error:
                    if error.code not in (
                        ErrorCode.LEADER_NOT_AVAILABLE,
                        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                    ):
                        raise
                await self.cluster.refresh()
        finally:
            self.cluster.untrack([tp.topic])

    async def produce(self, tp: TopicPartition, values: Sequence[bytes], *, batch: int | None = None) -> None:
        """Append values to a partition, `batch` of them to a record batch (default: all)."""
        size = batch or len(values)
        for start in range(0, len(values), size):
            builder = BatchBuilder()
            for value in values[start : start + size]:
                assert builder.append(0, None, value)
            await self._append(tp, builder.build())

    async def _append(self, tp: TopicPartition, records: bytes) -> None:
        cls = m.ProduceRequest
        data = cls.PartitionProduceData(index=tp.partition, records=records)
        topic = cls.TopicProduceData(name=tp.topic, partition_data=[data])
        while True:
            node = await self.leader(tp)
            try:
                response = await self.cluster.request_versioned(
                    node,
                    cls,
                    lambda _: cls(acks=-1, timeout_ms=10_000, topic_data=[topic]),
                    highest=BY_NAME,
                )
            except TransportError:
                pass  # the node has died: nothing of the story was produced twice before that
            else:
                code = response.responses[0].partition_responses[0].error_code
                if not code:
                    return
                if not BrokerError(code, "").retriable:
                    raise BrokerError(code, f"producing to {tp}")
            await asyncio.sleep(0.2)
            await self._refreshed(tp.topic)

    async def _refreshed(self, topic: str) -> None:
        self.cluster.track([topic])
        try:
            await self.cluster.refresh()
        except AsyncGroupError:
            await asyncio.sleep(0.2)
        finally:
            self.cluster.untrack([topic])

    async def describe(self, group_id: str) -> Described | None:
        """A group as its coordinator sees it; None while there is no coordinator that would say."""
        try:
            response = await self.cluster.coordinators.request_versioned(
                group_id, m.DescribeGroupsRequest, lambda _: m.DescribeGroupsRequest(groups=[group_id])
            )
        except (TransportError, BrokerError):
            return None
        (group,) = response.groups
        if group.error_code and group.error_code != ErrorCode.GROUP_ID_NOT_FOUND:
            self.cluster.coordinators.mark_unknown(group_id)
            return None
        assignments = {
            each.member_id: by_topic(decode_assignment(each.member_assignment).partitions)
            for each in group.members
        }
        clients = {each.member_id: each.client_id for each in group.members}
        return Described(group.group_state, assignments, clients)

    async def remove_member(self, group_id: str, member_id: str) -> None:
        """Let a group's coordinator believe that a member has left."""
        member = m.LeaveGroupRequest.MemberIdentity(member_id=member_id)
        request = m.LeaveGroupRequest(group_id=group_id, members=[member])
        response = await self.cluster.coordinators.request(group_id, request)
        assert not response.error_code
        assert not response.members[0].error_code

    async def coordinator(self, group_id: str) -> int:
        """The node that coordinates a group."""
        return await self.cluster.coordinators.find(group_id)

    async def committed(
        self, group_id: str, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, int]:
        """Committed offsets; those of partitions without one are left out."""
        found = await fetch_offsets(self.cluster, group_id, partitions, lane="control")
        return {tp: committed.offset for tp, committed in found.items()}
