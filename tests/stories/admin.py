"""Admin client of the stories: topics, records and group state, by Kafka requests that every broker supports."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from asyncgroup import ClientConfig, TopicPartition
from asyncgroup.cluster import ClusterClient
from asyncgroup.cluster.requests.list_offsets import LATEST
from asyncgroup.consumer.list_offsets import list_offsets_once
from asyncgroup.errors import AsyncGroupError, BrokerError, ErrorCode, TransportError
from asyncgroup.group.classic.join_requests import decode_assignment
from asyncgroup.model import by_topic
from asyncgroup.offsets.fetch_offsets import fetch_offsets
from asyncgroup.wire import messages as m
from asyncgroup.wire.records import BatchBuilder

__all__ = ["Admin", "DescribedGroup"]

TOPIC_NAME_VERSION = 12
"""The newest Produce version with topic names instead of topic ids."""


class DescribedGroup(NamedTuple):
    """A group as its coordinator describes it; `members` maps member ids to their assignments, `client_ids` to their client ids.

    `epoch` is that of a group with the consumer protocol.
    """

    state: str
    members: dict[str, dict[str, list[int]]]
    client_ids: dict[str, str]
    epoch: int | None = None


class Admin:
    """Admin requests with retries of retriable errors, because a node may just have been killed."""

    def __init__(self, bootstrap_servers: str) -> None:
        self.cluster = ClusterClient(bootstrap_servers, ClientConfig(client_id="admin"))
        self.cluster.random.seed(1)

    async def create_topic(self, name: str, partitions: int) -> None:
        """Create a topic with the broker's default replication, and wait until all partitions have leaders.

        Retention is disabled: the records have timestamp 0 (see `produce`), and a real broker would soon delete them.
        """
        creatable = m.CreateTopicsRequest.CreatableTopic
        topic = creatable(
            name=name,
            num_partitions=partitions,
            replication_factor=-1,
            configs=[m.CreateTopicsRequest.CreatableTopicConfig(name="retention.ms", value="-1")],
        )
        response = await self.cluster.network.request_any(
            m.CreateTopicsRequest, lambda _: m.CreateTopicsRequest(topics=[topic], timeout_ms=20_000)
        )
        for answer in response.topics:
            if answer.error_code:
                raise BrokerError(answer.error_code, f"creating topic {name!r}", answer.error_message)
        for partition in range(partitions):
            await self.leader(TopicPartition(name, partition))

    async def delete_topic(self, name: str) -> None:
        topic = m.DeleteTopicsRequest.DeleteTopicState(name=name)
        await self.cluster.network.request_any(
            m.DeleteTopicsRequest,
            lambda version: (
                m.DeleteTopicsRequest(topics=[topic], timeout_ms=20_000)
                if version >= 6
                else m.DeleteTopicsRequest(topic_names=[name], timeout_ms=20_000)
            ),
        )

    async def recreate_topic(self, name: str, partitions: int) -> None:
        """Create a topic while one of the same name is being deleted; retries until the broker allows it.

        Returns when every partition is empty. The controller of a real broker creates the topic before the broker has left the
        old logs: until then records would be acknowledged, and deleted with them.
        """
        while True:
            try:
                await self.create_topic(name, partitions)
            except BrokerError as error:
                if error.code != ErrorCode.TOPIC_ALREADY_EXISTS:
                    raise
                await asyncio.sleep(0.05)
            else:
                break
        empty = dict.fromkeys((TopicPartition(name, partition) for partition in range(partitions)), 0)
        for tp in empty:
            await self.leader(tp)
        self.cluster.track([name])
        try:
            while (await list_offsets_once(self.cluster, dict.fromkeys(empty, LATEST))).offsets != empty:
                await asyncio.sleep(0.05)
        finally:
            self.cluster.untrack([name])

    async def create_partitions(self, name: str, total: int) -> None:
        """Increase a topic's partitions to `total`, and wait until all have leaders."""
        topic = m.CreatePartitionsRequest.CreatePartitionsTopic(name=name, count=total, assignments=None)
        response = await self.cluster.network.request_any(
            m.CreatePartitionsRequest, lambda _: m.CreatePartitionsRequest(topics=[topic], timeout_ms=20_000)
        )
        if response.results[0].error_code:
            raise BrokerError(response.results[0].error_code, f"partitions of {name!r}")
        for partition in range(total):
            await self.leader(TopicPartition(name, partition))

    async def leader(self, tp: TopicPartition) -> int:
        """Return a partition's leader; waits until there is one."""
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

    async def produce(self, tp: TopicPartition, values: Sequence[bytes], *, batch: int | None = None) -> int:
        """Append values to a partition, in record batches of `batch` values (default: one batch); return the log's end.

        An unanswered request is sent again, so a batch may be in the log twice.
        """
        size = batch or len(values)
        end = 0
        for start in range(0, len(values), size):
            builder = BatchBuilder()
            for value in values[start : start + size]:
                assert builder.append(0, None, value)
            end = await self._append(tp, builder.build()) + builder.count
        return end

    async def _append(self, tp: TopicPartition, records: bytes) -> int:
        """Append a batch; return the offset of its first record."""
        cls = m.ProduceRequest
        data = cls.PartitionProduceData(index=tp.partition, records=records)
        topic = cls.TopicProduceData(name=tp.topic, partition_data=[data])
        while True:
            node = await self.leader(tp)
            try:
                response = await self.cluster.network.request_versioned(
                    node,
                    cls,
                    lambda _: cls(acks=-1, timeout_ms=10_000, topic_data=[topic]),
                    highest=TOPIC_NAME_VERSION,
                )
            except TransportError:
                pass  # the node was killed before it could append the records
            else:
                answer = response.responses[0].partition_responses[0]
                code = answer.error_code
                if not code:
                    return answer.base_offset
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

    async def describe(self, group_id: str) -> DescribedGroup | None:
        """Return a group as its coordinator describes it; None while no coordinator is available."""
        group = await self._described(group_id, m.DescribeGroupsRequest(groups=[group_id]))
        if group is None:
            return None
        assignments = {
            each.member_id: by_topic(decode_assignment(each.member_assignment).partitions)
            for each in group.members
        }
        clients = {each.member_id: each.client_id for each in group.members}
        return DescribedGroup(group.group_state, assignments, clients)

    async def describe_consumers(self, group_id: str) -> DescribedGroup | None:
        """Like `describe`, for a group with the consumer protocol; None also while a member has not reached its target."""
        group = await self._described(group_id, m.ConsumerGroupDescribeRequest(group_ids=[group_id]))
        if group is None or any(each.member_epoch != group.group_epoch for each in group.members):
            return None
        assignments = {
            each.member_id: {
                topic.topic_name: sorted(topic.partitions) for topic in each.assignment.topic_partitions
            }
            for each in group.members
        }
        clients = {each.member_id: each.client_id for each in group.members}
        return DescribedGroup(group.group_state, assignments, clients, group.group_epoch)

    async def _described(self, group_id: str, request: Any) -> Any:
        """Return the group in the response; None if there is no response, or one of no use."""
        try:
            response = await self.cluster.coordinators.request_versioned(
                group_id, type(request), lambda _: request
            )
        except (TransportError, BrokerError):
            return None
        (group,) = response.groups
        if group.error_code and group.error_code != ErrorCode.GROUP_ID_NOT_FOUND:
            self.cluster.coordinators.mark_unknown(group_id)
            return None
        return group

    async def remove_member(self, group_id: str, member_id: str) -> None:
        """Remove a member with a LeaveGroup request on its behalf."""
        member = m.LeaveGroupRequest.MemberIdentity(member_id=member_id)
        request = m.LeaveGroupRequest(group_id=group_id, members=[member])
        response = await self.cluster.coordinators.request(group_id, request)
        assert not response.error_code
        assert not response.members[0].error_code

    async def coordinator(self, group_id: str) -> int:
        """Return the node id of a group's coordinator."""
        return await self.cluster.coordinators.find(group_id)

    async def committed(
        self, group_id: str, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, int]:
        """Return committed offsets, without partitions that have none."""
        found = await fetch_offsets(self.cluster, group_id, partitions, lane="control")
        return {tp: committed.offset for tp, committed in found.items()}
