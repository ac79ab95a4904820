"""Topics and groups created and deleted by requests to a broker."""

from __future__ import annotations

import pytest

from asyncgroup import BrokerError, Cluster, ConsumerConfig, ConsumerGroup, Producer
from asyncgroup.broker import EmbeddedCluster
from asyncgroup.demo.target import TargetAdmin
from asyncgroup.group import Claim, Session
from tests.group.parts import end_session

pytestmark = pytest.mark.real


async def test_topics_are_created_and_deleted() -> None:
    async with EmbeddedCluster(3) as broker, Cluster(broker.bootstrap_servers) as cluster:
        admin = TargetAdmin(cluster)
        await admin.create_topic("orders", 4)
        assert await cluster.partitions("orders") == [0, 1, 2, 3]
        with pytest.raises(BrokerError, match=r"creating topic 'orders': TOPIC_ALREADY_EXISTS"):
            await admin.create_topic("orders", 4)
        await admin.delete_topic("orders")
        assert "orders" not in await cluster.all_topics()
        await admin.delete_topic("orders")


async def test_groups_are_deleted_when_they_are_empty() -> None:
    async with EmbeddedCluster(1) as broker, Cluster(broker.bootstrap_servers) as cluster:
        admin = TargetAdmin(cluster)
        await admin.delete_group("no-such-group")
        await admin.create_topic("orders", 1)
        async with Producer(cluster) as producer:
            await producer.send("orders", b"one")
        refused: list[BrokerError] = []

        async def consume(_: Session, claim: Claim) -> None:
            async for record in claim:
                claim.mark(record)
                try:
                    await admin.delete_group("readers")
                except BrokerError as error:
                    refused.append(error)
                    end_session(group.session, error)  # type: ignore[union-attr,arg-type]

        async with ConsumerGroup(cluster, "readers", ConsumerConfig(auto_offset_reset="earliest")) as group:
            await group.consume("orders", consume)
        assert [error.name for error in refused] == ["NON_EMPTY_GROUP"]
        assert broker.groups == ["readers"]
        await admin.delete_group("readers")
        assert broker.groups == []
