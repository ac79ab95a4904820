"""Quotas, SCRAM users, ACLs, log dirs and the quorum over the wire, and their persistence over a restart.

`tests/interop/parity/cluster_wide.py` compares the responses with Kafka's.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from asyncgroup.broker import EmbeddedCluster, ListenerSecurity
from asyncgroup.error_codes import ErrorCode
from asyncgroup.wire import messages as m
from asyncgroup.wire.scram import salted_password
from tests.broker.client import Client, connect, is_alive
from tests.broker.net.test_security import PASSWORD, USERS, scram

Alter = m.AlterUserScramCredentialsRequest
Quota = m.AlterClientQuotasRequest
SCRAMS = {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}


def upsertion(name: str, mechanism: int, password: str, iterations: int = 4096) -> Any:
    salted = salted_password(SCRAMS[mechanism], password, b"salt", iterations)
    return Alter.ScramCredentialUpsertion(name, mechanism, iterations, b"salt", salted)


def quota(kind: str, name: str | None, key: str, value: float, *, remove: bool = False) -> Any:
    return Quota([Quota.EntryData([Quota.EntityData(kind, name)], [Quota.OpData(key, value, remove)])])


async def quotas(client: Client) -> dict[str | None, dict[str, float]]:
    """Return the quotas of all users."""
    cls = m.DescribeClientQuotasRequest
    answer = await client.ask(cls([cls.ComponentData("user", 2, None)]))
    assert not answer.error_code
    return {
        entry.entity[0].entity_name: {value.key: value.value for value in entry.values}
        for entry in answer.entries
    }


async def test_scram_users_are_created_log_in_and_are_deleted():
    security = ListenerSecurity(users=USERS)
    async with EmbeddedCluster(2, security=security) as cluster, connect(cluster) as client:
        await scram(client, "SCRAM-SHA-256", "alice", PASSWORD)
        for mechanism, name in SCRAMS.items():
            request = Alter([], [upsertion("carol", mechanism, "carol's")])
            assert [r.error_code for r in (await client.ask(request)).results] == [0]
            async with connect(cluster, 2) as other:
                assert (await scram(other, name, "carol", "carol's")).error_code == 0
                assert await is_alive(other)
        request = Alter([], [upsertion("alice", 1, "new one", 8192)])
        assert [r.error_code for r in (await client.ask(request)).results] == [0]
        for password, error in ((PASSWORD, ErrorCode.SASL_AUTHENTICATION_FAILED), ("new one", 0)):
            async with connect(cluster) as other:
                assert (await scram(other, "SCRAM-SHA-256", "alice", password)).error_code == error
        request = Alter([Alter.ScramCredentialDeletion("carol", 1)], [])
        assert [r.error_code for r in (await client.ask(request)).results] == [0]
        async with connect(cluster) as other:
            assert (await scram(other, "SCRAM-SHA-256", "carol", "carol's")).error_code == 58
        described = (await client.ask(m.DescribeUserScramCredentialsRequest())).results
        assert {r.user: [(i.mechanism, i.iterations) for i in r.credential_infos] for r in described} == {
            "alice": [(1, 8192), (2, 4096)],
            "b=o,b": [(1, 4096), (2, 4096)],
            "carol": [(2, 4096)],
        }


async def test_users_and_quotas_survive_a_restart(tmp_path: Path):
    security = ListenerSecurity(users=USERS)
    async with EmbeddedCluster(data_dir=tmp_path, security=security) as cluster, connect(cluster) as client:
        await scram(client, "SCRAM-SHA-512", "alice", PASSWORD)
        await client.ask(
            Alter([Alter.ScramCredentialDeletion("b=o,b", 1)], [upsertion("carol", 2, "carol's")])
        )
        for request in (
            quota("user", "alice", "producer_byte_rate", 1000.0),
            quota("user", "alice", "consumer_byte_rate", 5.0),
            quota("user", "alice", "consumer_byte_rate", 5.0, remove=True),
            quota("user", None, "request_percentage", 12.5),
            quota("user", "gone", "request_percentage", 1.0),
            quota("user", "gone", "request_percentage", 1.0, remove=True),
        ):
            assert [entry.error_code for entry in (await client.ask(request)).entries] == [0]
    async with EmbeddedCluster(data_dir=tmp_path, security=security) as cluster, connect(cluster) as client:
        assert (await scram(client, "SCRAM-SHA-512", "carol", "carol's")).error_code == 0
        assert await quotas(client) == {
            "alice": {"producer_byte_rate": 1000.0},
            None: {"request_percentage": 12.5},
        }
        async with connect(cluster) as other:
            assert (await scram(other, "SCRAM-SHA-256", "b=o,b", "other")).error_code == 58


async def test_describe_quorum_and_alter_replica_log_dirs():
    async with EmbeddedCluster(3, racks=["a", "b", "c"]) as cluster, connect(cluster, 2) as client:
        cluster.create_topic("t", 1)
        cls = m.DescribeQuorumRequest
        request = cls([cls.TopicData("__cluster_metadata", [cls.PartitionData(0)])])
        for version in range(3):
            answer = await client.ask(request, version)
            (partition,) = answer.topics[0].partitions
            assert partition.leader_id == 1
            assert [voter.replica_id for voter in partition.current_voters] == [1, 2, 3]
        assert {n.node_id: n.listeners[0].port for n in answer.nodes} == {
            node.id: node.port for node in cluster.nodes.values()
        }
        moved = m.AlterReplicaLogDirsRequest
        for path, error in (("memory", 0), ("/elsewhere", ErrorCode.LOG_DIR_NOT_FOUND)):
            wanted = moved([moved.AlterReplicaLogDir(path, [moved.AlterReplicaLogDirTopic("t", [0])])])
            (result,) = (await client.ask(wanted)).results
            assert [p.error_code for p in result.partitions] == [error]


async def test_acl_requests_are_refused(client):
    answer = await client.ask(m.DescribeAclsRequest(1, None, 1, None, None, 1, 1))
    assert (answer.error_code, answer.error_message) == (
        ErrorCode.SECURITY_DISABLED,
        "No Authorizer is configured on the broker",
    )
