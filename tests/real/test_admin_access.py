"""Admin on a real Kafka with StandardAuthorizer: ACLs, SCRAM users and quotas beside kafka-python and Kafka's tools; denied calls."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from asyncgroup import AsyncGroupError, BrokerError, TopicPartition
from asyncgroup.admin import (
    AccessControlEntry,
    AclBinding,
    AclBindingFilter,
    Admin,
    ClientQuotaEntity,
    ConfigChanges,
    QuotaName,
    ResourcePattern,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)
from asyncgroup.admin.denied import DENIALS
from asyncgroup.config import ClientConfig
from asyncgroup.errors import AuthenticationError
from asyncgroup.security import Scram, Security
from asyncgroup.testing.apache_kafka import ApacheKafka
from tests.real.support import RunningKafka
from tests.real.test_admin_brokers import by_kafka_python, name_of, unique

pytestmark = pytest.mark.asyncio

PASSWORD = "alice-secret"
JAAS = "org.apache.kafka.common.security.scram.ScramLoginModule required;"

READ = AclBinding(ResourcePattern("TOPIC", "orders"), AccessControlEntry("User:alice", "READ"))
WRITE = AclBinding(
    ResourcePattern("TOPIC", "ord", "PREFIXED"), AccessControlEntry("User:*", "WRITE", "DENY", "10.0.0.1")
)
GROUP = AclBinding(ResourcePattern("GROUP", "*"), AccessControlEntry("User:bob", "ALL"))
CLUSTER = AclBinding(ResourcePattern("CLUSTER"), AccessControlEntry("User:bob", "ALTER"))
ALL = [READ, WRITE, GROUP, CLUSTER]


@pytest.mark.full
async def test_without_an_authorizer_there_are_no_acls(apache_kafka: RunningKafka) -> None:
    async with Admin(apache_kafka.bootstrap_servers) as admin:
        with pytest.raises(BrokerError, match="describing ACLs: SECURITY_DISABLED"):
            await admin.acls.describe()
        assert name_of((await admin.acls.create([READ]))[READ]) == "SECURITY_DISABLED"
        user = unique()
        quota = ClientQuotaEntity(user=user)
        (await admin.quotas.alter({quota: {"producer_byte_rate": 1000}}, validate_only=True)).raise_first()
        assert await admin.quotas.describe(user=user) == {}
        missing = (await admin.users.describe([user]))[user]
        assert name_of(missing) == "RESOURCE_NOT_FOUND"


@pytest.fixture(scope="module")
def secured(kafka_at_hand: None) -> Iterator[ApacheKafka]:
    """A node on which PLAINTEXT is the listener of a superuser, and SASL that of users."""
    properties: dict[str, Any] = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
        "listener.name.sasl.sasl.enabled.mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512",
        "listener.name.sasl.scram-sha-256.sasl.jaas.config": JAAS,
        "listener.name.sasl.scram-sha-512.sasl.jaas.config": JAAS,
    }
    listeners = {"SASL": "SASL_PLAINTEXT"}
    with ApacheKafka(properties=properties, listeners=listeners, scram_users={"alice": PASSWORD}) as kafka:
        yield kafka


def as_user(kafka: ApacheKafka, user: str, password: str, **options: Any) -> Admin:
    sasl = Scram(user, password, options.pop("mechanism", "SCRAM-SHA-512"))
    config = ClientConfig(security=Security(sasl=sasl))
    return Admin(kafka.address(1, "SASL"), config, **options)


async def described(admin: Admin, wanted: AclBindingFilter, *expected: AclBinding) -> None:
    """Wait until the broker describes exactly these ACLs: it learns of a change a moment after the controller."""
    async with asyncio.timeout(30):
        while set(await admin.acls.describe(wanted)) != set(expected):
            await asyncio.sleep(0.05)


@pytest.mark.full
async def test_acls_are_as_others_see_them(secured: ApacheKafka) -> None:
    servers = secured.bootstrap_servers
    async with Admin(servers) as admin:
        assert await admin.acls.describe() == ()
        assert set((await admin.acls.create([*ALL, READ])).raise_first()) == set(ALL)
        assert set((await admin.acls.create(ALL)).raise_first()) == set(ALL)  # they exist, which is a success
        await described(admin, AclBindingFilter(), *ALL)
        assert await by_kafka_python(servers, their_acls) == {
            (
                each.pattern.resource_type,
                each.pattern.name,
                each.pattern.pattern_type,
                each.entry.principal,
                each.entry.host,
                each.entry.operation,
                each.entry.permission_type,
            )
            for each in ALL
        }
        printed = await asyncio.to_thread(
            secured.run_tool,
            "org.apache.kafka.tools.AclCommand",
            "--bootstrap-server",
            servers,
            "--list",
            "--topic",
            "orders",
        )
        assert "(principal=User:alice, host=*, operation=READ, permissionType=ALLOW)" in printed

        await described(admin, AclBindingFilter("TOPIC", "orders", "MATCH"), READ, WRITE)
        await described(admin, AclBindingFilter("TOPIC", "orders", "LITERAL"), READ)
        await described(admin, AclBindingFilter(principal="User:bob"), GROUP, CLUSTER)
        await described(admin, AclBindingFilter(operation="WRITE", permission_type="DENY"), WRITE)

        only, bob, none = (
            AclBindingFilter.exactly(READ),
            AclBindingFilter(principal="User:bob"),
            AclBindingFilter(host="x"),
        )
        deleted = (await admin.acls.delete([only, bob, none])).raise_first()
        assert deleted[only].raise_first() == (READ,)
        assert set(deleted[bob].raise_first()) == {GROUP, CLUSTER}
        assert deleted[none].raise_first() == ()
        await described(admin, AclBindingFilter(), WRITE)
        (await admin.acls.delete([AclBindingFilter()])).raise_first()
        await described(admin, AclBindingFilter())


def their_acls(admin: Any) -> set[tuple[str, ...]]:
    from kafka.admin import (
        ACLFilter,
        ACLOperation,
        ACLPermissionType,
        ACLResourcePatternType,
        ResourcePatternFilter,
        ResourceType,
    )

    every = ResourcePatternFilter(ResourceType.ANY, None, ACLResourcePatternType.ANY)
    found, _ = admin.describe_acls(ACLFilter(None, None, ACLOperation.ANY, ACLPermissionType.ANY, every))
    return {
        (
            each.resource_pattern.resource_type.name,
            each.resource_pattern.resource_name,
            each.resource_pattern.pattern_type.name,
            each.principal,
            each.host,
            each.operation.name,
            each.permission_type.name,
        )
        for each in found
    }


@pytest.mark.full
async def test_users_log_in_with_what_was_set(secured: ApacheKafka) -> None:
    servers, both = secured.bootstrap_servers, ("SCRAM-SHA-256", "SCRAM-SHA-512")
    async with Admin(servers) as admin:
        changes = [
            UserScramCredentialUpsertion("carol", "first, with = and ,", both[0], iterations=8192),
            UserScramCredentialUpsertion("carol", "second: å 🙂", both[1]),
        ]
        assert set((await admin.users.alter(changes)).raise_first()) == {("carol", each) for each in both}
        async with asyncio.timeout(30):
            while (await admin.users.describe(["carol"])).values_by_name != {
                "carol": {both[0]: 8192, both[1]: 4096}
            }:
                await asyncio.sleep(0.05)
        theirs = await by_kafka_python(servers, lambda their: their.describe_user_scram_credentials())
        assert {
            user: {
                each["mechanism"].name.replace("_", "-"): each["iterations"]
                for each in found["credential_infos"]
            }
            for user, found in theirs.items()
        } == (await admin.users.describe()).raise_first()
        for password, mechanism in zip((changes[0].password, changes[1].password), both, strict=True):
            assert not isinstance(password, str)
            async with as_user(secured, "carol", password.reveal(), mechanism=mechanism) as as_carol:
                assert await as_carol.list_topics() == ()

        deletions = [UserScramCredentialDeletion("carol", both[0]), UserScramCredentialDeletion("none")]
        found = await admin.users.alter(deletions)
        assert list(found.values_by_name) == [("carol", both[0])]
        assert name_of(found[("none", both[1])]) == "RESOURCE_NOT_FOUND"
        async with asyncio.timeout(30):
            while (await admin.users.describe(["carol"])).values_by_name != {"carol": {both[1]: 4096}}:
                await asyncio.sleep(0.05)
        with pytest.raises(AuthenticationError):
            async with as_user(secured, "carol", "first, with = and ,", mechanism=both[0]):
                pass


@pytest.mark.full
async def test_quotas_are_as_kafkas_tool_sees_them(secured: ApacheKafka) -> None:
    servers = secured.bootstrap_servers
    rate = "producer_byte_rate"
    entities: dict[ClientQuotaEntity, Any] = {
        ClientQuotaEntity(user="alice"): {rate: 1000.0, "request_percentage": 12.5},
        ClientQuotaEntity(user="alice", client_id="c"): {rate: 500.0},
        ClientQuotaEntity(client_id=QuotaName.DEFAULT): {rate: 100.0},
        ClientQuotaEntity(ip="10.0.0.1"): {"connection_creation_rate": 5.0},
    }
    async with Admin(servers) as admin:
        (await admin.quotas.alter(entities, validate_only=True)).raise_first()
        assert await admin.quotas.describe() == {}
        (await admin.quotas.alter(entities)).raise_first()
        async with asyncio.timeout(30):
            while await admin.quotas.describe() != entities:
                await asyncio.sleep(0.05)
        assert set(await admin.quotas.describe(user="alice")) == set(list(entities)[:2])
        assert set(await admin.quotas.describe(user="alice", strict=True)) == set(list(entities)[:1])
        assert set(await admin.quotas.describe(client_id=QuotaName.ANY)) == set(list(entities)[1:3])
        printed = await asyncio.to_thread(
            secured.run_tool,
            "kafka.admin.ConfigCommand",
            *(
                "--bootstrap-server",
                servers,
                "--describe",
                "--entity-type",
                "users",
                "--entity-name",
                "alice",
            ),
        )
        assert f"{rate}=1000.0" in printed
        assert "request_percentage=12.5" in printed

        wrong = ClientQuotaEntity(user="alice", ip="10.0.0.1")
        refused = await admin.quotas.alter({wrong: {rate: 1.0}, next(iter(entities)): {rate: None}})
        assert name_of(refused[wrong]) == "INVALID_REQUEST"
        (
            await admin.quotas.alter({each: dict.fromkeys(values) for each, values in entities.items()})
        ).raise_first()
        async with asyncio.timeout(30):
            while await admin.quotas.describe():
                await asyncio.sleep(0.05)


@pytest.mark.full
async def test_a_denied_call_names_the_operation_and_the_resource(secured: ApacheKafka) -> None:
    topic, zero = "denied", TopicPartition("denied", 0)
    async with Admin(secured.bootstrap_servers) as admin:
        (await admin.create_topics({topic: 1})).raise_first()
        (await admin.alter_group_offsets("g", {zero: 0})).raise_first()
    async with as_user(secured, "alice", PASSWORD) as admin:
        calls: list[tuple[str, str, Any]] = [
            ("DESCRIBE on the topic", topic, admin.describe_topics([topic])),
            ("CREATE on the topic", "'new'", admin.create_topics({"new": 1})),
            ("DELETE on the topic", topic, admin.delete_topics([topic])),
            ("ALTER on the topic", topic, admin.create_partitions({topic: 2})),
            ("DELETE on the topic", topic, admin.delete_records({zero: 0})),
            ("DESCRIBE_CONFIGS on the topic", topic, admin.describe_configs("topic", [topic])),
            (
                "ALTER_CONFIGS on the topic",
                topic,
                admin.alter_configs("topic", {topic: ConfigChanges(delete=["retention.ms"])}),
            ),
            ("DESCRIBE on the group", "'g'", admin.describe_groups(["g"])),
            ("DELETE on the group", "'g'", admin.delete_groups(["g"])),
            ("DESCRIBE on the group", "'g'", admin.list_group_offsets("g")),
            ("READ on the group", "", admin.alter_group_offsets("g", {zero: 0})),
            ("DELETE on the group", "'g'", admin.delete_group_offsets("g", [zero])),
            ("DESCRIBE on the transactional id", "'tx'", admin.transactions.describe(["tx"])),
            ("READ on the topic", topic, admin.transactions.producers([zero])),
            ("READ on the topics", topic, admin.transactions.find_hanging(partitions=[zero])),
            ("ALTER on the cluster", topic, admin.transactions.abort(zero, producer_id=1, producer_epoch=0)),
            ("DESCRIBE on the cluster", "log directories", admin.brokers.log_dirs()),
            ("DESCRIBE on the cluster", "metadata quorum", admin.brokers.quorum()),
            ("ALTER on the cluster", "'group.version'", admin.brokers.update_features({"group.version": 1})),
            ("ALTER on the cluster", "leaders", admin.replicas.elect_leaders("preferred", [zero])),
            ("DESCRIBE on the cluster", "reassignments", admin.replicas.list_reassignments()),
            ("ALTER on the cluster", "reassigning", admin.replicas.alter_reassignments({zero: [1]})),
            ("DESCRIBE on the cluster", "ACLs", admin.acls.describe()),
            ("ALTER on the cluster", "'orders'", admin.acls.create([READ])),
            ("ALTER on the cluster", "ACLs", admin.acls.delete([AclBindingFilter()])),
            ("DESCRIBE on the cluster", "SCRAM user", admin.users.describe()),
            ("ALTER on the cluster", "'x'", admin.users.alter([UserScramCredentialUpsertion("x", "y")])),
            ("DESCRIBE_CONFIGS on the cluster", "quotas", admin.quotas.describe()),
            (
                "ALTER_CONFIGS on the cluster",
                "quotas",
                admin.quotas.alter({ClientQuotaEntity(user="x"): {"producer_byte_rate": 1}}),
            ),
        ]
        for operation, resource, call in calls:
            error = await error_of(call)
            assert isinstance(error, BrokerError), (operation, resource, error)
            assert error.code in DENIALS, (operation, resource, error)
            text = str(error)
            assert f"this user needs {operation}" in text
            assert resource in text
            assert "kafka-acls.sh" in text
            assert "\n" not in text


async def error_of(call: Any) -> AsyncGroupError | None:
    """Return the first error of a call, raised or in its results."""
    try:
        found = await call
    except AsyncGroupError as error:
        return error
    return next(iter(found.errors.values()), None)
