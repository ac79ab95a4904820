"""Admin on Kafka 3.9: transactions, brokers, replicas, users and quotas answer alike, and what this release lacks is said."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from asyncgroup import BrokerError, Producer, TopicPartition, UnsupportedVersionError
from asyncgroup.admin import (
    Admin,
    ClientQuotaEntity,
    NewTopic,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)
from asyncgroup.testing.apache_kafka import ApacheKafka
from tests.real.support import until_shown
from tests.real.test_admin_brokers import by_kafka_python, name_of, unique
from tests.real.test_admin_transactions import transaction

pytestmark = pytest.mark.full


async def test_transactions(kafka_39: ApacheKafka) -> None:
    servers, topic = kafka_39.bootstrap_servers, unique()
    zero = TopicPartition(topic, 0)
    async with Admin(servers) as admin:
        (await admin.create_topics({topic: NewTopic(1, 1)})).raise_first()
        async with transaction(servers, topic, topic):
            for listed in (
                await admin.transactions.list(states=["Ongoing"]),
                await admin.transactions.list(longer_than=0.0),
            ):
                assert topic in {each.transactional_id for each in listed.raise_first()}
            with pytest.raises(UnsupportedVersionError, match=r"Kafka 4\.1"):
                (await admin.transactions.list(pattern=topic)).raise_first()
            described = (await admin.transactions.describe([topic])).raise_first()[topic]
            theirs = await by_kafka_python(servers, lambda their: their.describe_transactions([topic]))
            assert theirs[topic].producer_id == described.producer_id
            assert theirs[topic].transaction_start_time_ms == described.start_timestamp
            assert (described.state, described.partitions) == ("Ongoing", (zero,))
            (producer,) = (await admin.transactions.producers([zero])).raise_first()[zero]
            assert producer.current_transaction_start_offset == 0
            # with a limit of zero seconds the open transaction is a candidate, but its coordinator knows it
            found = await admin.transactions.find_hanging(topics=[topic], max_transaction_timeout=0.0)
            assert found.raise_first() == ()


async def test_brokers_and_replicas(kafka_39: ApacheKafka) -> None:
    servers, topic = kafka_39.bootstrap_servers, unique()
    zero = TopicPartition(topic, 0)
    async with Admin(servers) as admin:
        (await admin.create_topics({topic: NewTopic(1, 1)})).raise_first()
        cluster = await admin.brokers.describe()
        assert (cluster.cluster_id, [each.node_id for each in cluster.brokers]) == (kafka_39.cluster_id, [1])
        with pytest.raises(UnsupportedVersionError, match=r"Kafka 4\.0"):
            await admin.brokers.describe(include_fenced=True)
        async with Producer(servers) as producer:
            await producer.send(topic, b"x" * 1000, partition=0)
        (directory,) = (await admin.brokers.log_dirs(partitions=[zero])).raise_first()[1]
        theirs = await by_kafka_python(servers, lambda their: their.describe_log_dirs({topic: [0]}))
        (their_directory,) = theirs[0]["log_dirs"]
        assert (directory.path, directory.total_bytes) == (
            their_directory["log_dir"],
            their_directory["total_bytes"],
        )
        assert directory.replicas[0].size == their_directory["topics"][0]["partitions"][0]["partition_size"]
        quorum = await admin.brokers.quorum()
        assert (quorum.leader, [each.node_id for each in quorum.voters]) == (1, [1])
        features = await admin.brokers.features()
        their_features = await by_kafka_python(servers, lambda their: their.describe_features())
        assert {name: each["supported"] for name, each in their_features.items()} == features.supported
        refused = await admin.brokers.update_features({"metadata.version": 10**4}, validate_only=True)
        assert name_of(refused["metadata.version"]) == "INVALID_UPDATE_VERSION"
        assert (await admin.replicas.elect_leaders("preferred", [zero])).raise_first() == {zero: False}
        assert await admin.replicas.list_reassignments([zero]) == {}
        (await admin.replicas.alter_reassignments({zero: [1]})).raise_first()
        fixed = await admin.replicas.alter_reassignments({zero: [1]}, allow_replication_factor_change=False)
        assert "Kafka 4.1" in str(fixed[zero])
        wrong = await admin.replicas.alter_reassignments({zero: [9]})
        assert name_of(wrong[zero]) == "INVALID_REPLICA_ASSIGNMENT"


async def test_users_and_quotas(kafka_39: ApacheKafka) -> None:
    user = unique()
    entity = ClientQuotaEntity(user=user)
    async with Admin(kafka_39.bootstrap_servers) as admin:
        with pytest.raises(BrokerError, match="SECURITY_DISABLED"):
            await admin.acls.describe()
        (await admin.users.alter([UserScramCredentialUpsertion(user, "secret")])).raise_first()

        async def credentials() -> dict[str, Any]:
            return (await admin.users.describe([user])).values_by_name

        await until_shown(credentials, {user: {"SCRAM-SHA-512": 4096}})
        (await admin.users.alter([UserScramCredentialDeletion(user)])).raise_first()
        (await admin.quotas.alter({entity: {"consumer_byte_rate": 1000}})).raise_first()
        quotas = partial(admin.quotas.describe, user=user)
        await until_shown(quotas, {entity: {"consumer_byte_rate": 1000.0}})
        (await admin.quotas.alter({entity: {"consumer_byte_rate": None}})).raise_first()
