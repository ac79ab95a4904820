"""Admin on a real Kafka with StandardAuthorizer: ACLs, SCRAM users and quotas beside kafka-python and Kafka's tools; denied calls."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

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
from tests.apache_kafka import OLD_KAFKA_VERSION, VERSION
from tests.real.support import RunningKafka, until_shown
from tests.real.test_admin_brokers import by_kafka_python, name_of, unique
from tests.real.test_admin_transactions import transaction

pytestmark = pytest.mark.full

PASSWORD = "alice-secret"
JAAS = "org.apache.kafka.common.security.scram.ScramLoginModule required;"

READ = AclBinding(ResourcePattern("TOPIC", "orders"), AccessControlEntry("User:alice", "READ"))
WRITE = AclBinding(
    ResourcePattern("TOPIC", "ord", "PREFIXED"), AccessControlEntry("User:*", "WRITE", "DENY", "10.0.0.1")
)
GROUP = AclBinding(ResourcePattern("GROUP", "*"), AccessControlEntry("User:bob", "ALL"))
CLUSTER = AclBinding(ResourcePattern("CLUSTER"), AccessControlEntry("User:bob", "ALTER"))
ALL = [READ, WRITE, GROUP, CLUSTER]


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


PROPERTIES: dict[str, Any] = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
    "listener.name.sasl.sasl.enabled.mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512",
    "listener.name.sasl.scram-sha-256.sasl.jaas.config": JAAS,
    "listener.name.sasl.scram-sha-512.sasl.jaas.config": JAAS,
}


def secured_node(version: str) -> ApacheKafka:
    """Return a node on which PLAINTEXT is the listener of a superuser, and SASL that of users."""
    listeners = {"SASL": "SASL_PLAINTEXT"}
    users = {"alice": PASSWORD}
    return ApacheKafka(version=version, properties=PROPERTIES, listeners=listeners, scram_users=users)


@pytest.fixture(scope="module")
def secured(kafka_at_hand: None) -> Iterator[ApacheKafka]:
    with secured_node(VERSION) as kafka:
        yield kafka


@pytest.fixture(scope="module")
def secured_39(kafka_39: ApacheKafka) -> Iterator[ApacheKafka]:
    """A node of Kafka 3.9, which is at hand if `kafka_39` runs."""
    with secured_node(OLD_KAFKA_VERSION) as kafka:
        yield kafka


def as_user(kafka: ApacheKafka, user: str, password: str, **options: Any) -> Admin:
    sasl = Scram(user, password, options.pop("mechanism", "SCRAM-SHA-512"))
    config = ClientConfig(security=Security(sasl=sasl))
    return Admin(kafka.address(1, "SASL"), config, **options)


async def described(admin: Admin, wanted: AclBindingFilter, *expected: AclBinding) -> None:
    """Wait until the broker describes exactly these ACLs."""

    async def read() -> set[AclBinding]:
        return set(await admin.acls.describe(wanted))

    await until_shown(read, set(expected))


async def test_acls_are_as_others_see_them(secured: ApacheKafka) -> None:
    await compare_acls(secured)


async def test_acls_are_as_others_see_them_on_kafka_3_9(secured_39: ApacheKafka) -> None:
    await compare_acls(secured_39)


async def compare_acls(secured: ApacheKafka) -> None:
    servers = secured.bootstrap_servers
    async with Admin(servers) as admin:
        assert await admin.acls.describe() == ()
        assert set((await admin.acls.create([*ALL, READ])).raise_first()) == set(ALL)
        assert set((await admin.acls.create(ALL)).raise_first()) == set(ALL)  # they exist, which is a success
        await described(admin, AclBindingFilter(), *ALL)
        await changes_by_others(admin, servers)
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
            "kafka.admin.AclCommand"
            if secured.version == OLD_KAFKA_VERSION
            else "org.apache.kafka.tools.AclCommand",
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


async def changes_by_others(admin: Admin, servers: str) -> None:
    """An ACL that kafka-python creates is ours as well; a deletion by its filter has the same result as ours."""
    theirs = AclBinding(ResourcePattern("TOPIC", "theirs"), AccessControlEntry("User:dora", "DESCRIBE"))

    def create(their: Any) -> int:
        from kafka.admin import ACL, ACLOperation, ACLPermissionType, ResourcePattern as Pattern, ResourceType

        pattern = Pattern(ResourceType.TOPIC, "theirs")
        created = their.create_acls(
            [ACL("User:dora", "*", ACLOperation.DESCRIBE, ACLPermissionType.ALLOW, pattern)]
        )
        return len(created["succeeded"])

    def delete(their: Any) -> list[int]:
        from kafka.admin import (
            ACLFilter,
            ACLOperation,
            ACLPermissionType,
            ACLResourcePatternType as Type,
            ResourcePatternFilter,
            ResourceType,
        )

        every = ResourcePatternFilter(ResourceType.ANY, None, Type.ANY)
        filters = [
            ACLFilter(user, None, ACLOperation.ANY, ACLPermissionType.ANY, every)
            for user in ("User:dora", "User:x")
        ]
        return [len(matching) for _, matching, error in their.delete_acls(filters) if error.errno == 0]

    assert await by_kafka_python(servers, create) == 1
    await described(admin, AclBindingFilter(principal="User:dora"), theirs)
    assert await by_kafka_python(servers, delete) == [1, 0]
    await described(admin, AclBindingFilter(principal="User:dora"))
    filters = [AclBindingFilter(principal=user) for user in ("User:dora", "User:x")]
    (await admin.acls.create([theirs])).raise_first()
    await described(admin, AclBindingFilter(principal="User:dora"), theirs)
    deleted = (await admin.acls.delete(filters)).raise_first()
    assert [len(each.raise_first()) for each in deleted.values()] == [1, 0]
    await described(admin, AclBindingFilter(principal="User:dora"))


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


async def test_users_log_in_with_what_was_set(secured: ApacheKafka) -> None:
    await compare_users(secured)


async def test_users_log_in_with_what_was_set_on_kafka_3_9(secured_39: ApacheKafka) -> None:
    await compare_users(secured_39)


async def compare_users(secured: ApacheKafka) -> None:
    servers, both = secured.bootstrap_servers, ("SCRAM-SHA-256", "SCRAM-SHA-512")
    async with Admin(servers) as admin:
        changes = [
            UserScramCredentialUpsertion("carol", "first, with = and ,", both[0], iterations=8192),
            UserScramCredentialUpsertion("carol", "second: å 🙂", both[1]),
        ]
        assert set((await admin.users.alter(changes)).raise_first()) == {("carol", each) for each in both}
        await until_shown(partial(credentials, admin, "carol"), {"carol": {both[0]: 8192, both[1]: 4096}})
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
            can_log_in = partial(logs_in, secured, "carol", password.reveal(), mechanism)
            await until_shown(can_log_in, True)  # a moment after the broker describes them
            async with as_user(secured, "carol", password.reveal(), mechanism=mechanism) as as_carol:
                assert await as_carol.list_topics() == ()

        their_deletion = await by_kafka_python(servers, lambda their: deletion_of(their, "none"))
        their_description = await by_kafka_python(
            servers, lambda their: their.describe_user_scram_credentials(["carol", "none"])
        )
        described = await admin.users.describe(["carol", "none"])
        assert str(described["none"]).endswith(f": {their_description['none']['error']}")
        assert (
            list(described.values_by_name)
            == ["carol"]
            == [user for user, each in their_description.items() if each["error"] is None]
        )
        deletions = [UserScramCredentialDeletion("carol", both[0]), UserScramCredentialDeletion("none")]
        found = await admin.users.alter(deletions)
        assert str(found[("none", both[1])]).endswith(f": {their_deletion['none']}")
        assert list(found.values_by_name) == [("carol", both[0])]
        assert name_of(found[("none", both[1])]) == "RESOURCE_NOT_FOUND"
        await until_shown(partial(credentials, admin, "carol"), {"carol": {both[1]: 4096}})
        await until_shown(partial(logs_in, secured, "carol", "first, with = and ,", both[0]), False)


async def credentials(admin: Admin, user: str) -> dict[str, Any]:
    """Return the credentials of a user as the broker describes them."""
    return (await admin.users.describe([user])).values_by_name


async def logs_in(secured: ApacheKafka, user: str, password: str, mechanism: str) -> bool:
    """Whether the user can log in with this password."""
    try:
        async with as_user(secured, user, password, mechanism=mechanism):
            return True
    except AuthenticationError:
        return False


def deletion_of(admin: Any, user: str) -> Any:
    """Delete the credentials of a user by kafka-python."""
    from kafka.admin import ScramMechanism, UserScramCredentialDeletion as Deletion

    return admin.alter_user_scram_credentials([Deletion(user, ScramMechanism.SCRAM_SHA_512)])


async def test_quotas_are_as_kafkas_tool_sees_them(secured: ApacheKafka) -> None:
    await compare_quotas(secured)


async def test_quotas_are_as_kafkas_tool_sees_them_on_kafka_3_9(secured_39: ApacheKafka) -> None:
    await compare_quotas(secured_39)


async def compare_quotas(secured: ApacheKafka) -> None:
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
        await until_shown(admin.quotas.describe, entities)
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
        await until_shown(admin.quotas.describe, {})


def acl(kind: str, name: str, operation: str) -> AclBinding:
    return AclBinding(ResourcePattern(kind, name), AccessControlEntry("User:alice", operation))


def cluster(operation: str) -> AclBinding:
    return AclBinding(ResourcePattern("CLUSTER"), AccessControlEntry("User:alice", operation))


class Denied(NamedTuple):
    """A call that is denied: what its error names, and the ACLs that allow the call."""

    operation: str
    resource: str
    acls: list[AclBinding]
    call: Callable[[Admin], Any]


ZERO = TopicPartition("denied", 0)
RATE = {"producer_byte_rate": 1000}
TOPIC, GONE = ("TOPIC", "denied"), ("TOPIC", "gone")
DENIED = [
    Denied("DESCRIBE on the topic", "denied", [acl(*TOPIC, "DESCRIBE")], lambda admin: admin.describe_topics(["denied"])),
    Denied("CREATE on the topic", "'new'", [acl("TOPIC", "new", "CREATE")], lambda admin: admin.create_topics({"new": 1})),
    Denied("CREATE on the topic or on the cluster", "'newer'", [cluster("CREATE")], lambda admin: admin.create_topics({"newer": 1})),
    Denied("ALTER on the topic", "denied", [acl(*TOPIC, "ALTER")], lambda admin: admin.create_partitions({"denied": 3})),
    Denied("DELETE on the topic", "denied", [acl(*TOPIC, "DELETE")], lambda admin: admin.delete_records({ZERO: 0})),
    Denied("DELETE on the topic", "gone", [acl(*GONE, "DELETE")], lambda admin: admin.delete_topics(["gone"])),
    Denied("DESCRIBE on the topic", "denied", [acl(*TOPIC, "DESCRIBE")], lambda admin: admin.list_offsets({ZERO: "latest"})),
    Denied("DESCRIBE_CONFIGS on the topic", "denied", [acl(*TOPIC, "DESCRIBE_CONFIGS")], lambda admin: admin.describe_configs("topic", ["denied"])),
    Denied("DESCRIBE_CONFIGS on the topic or group, for a broker on the cluster", "broker 1", [cluster("DESCRIBE_CONFIGS")], lambda admin: admin.describe_configs("broker", [1])),
    Denied("ALTER_CONFIGS on the topic", "denied", [acl(*TOPIC, "ALTER_CONFIGS")], lambda admin: admin.alter_configs("topic", {"denied": ConfigChanges(delete=["retention.ms"])})),
    Denied("DESCRIBE on the group", "'g'", [acl("GROUP", "g", "DESCRIBE")], lambda admin: admin.describe_groups(["g"])),
    Denied("DESCRIBE on the group", "'g'", [acl("GROUP", "g", "DESCRIBE"), acl(*TOPIC, "DESCRIBE")], lambda admin: admin.list_group_offsets("g")),
    Denied("READ on the group and on the topics", "", [acl("GROUP", "g", "READ"), acl(*TOPIC, "READ")], lambda admin: admin.alter_group_offsets("g", {ZERO: 0})),
    Denied("DESCRIBE on the group and on its topics", "'g'", [acl("GROUP", "g", "DESCRIBE"), acl(*TOPIC, "DESCRIBE")], lambda admin: admin.lag(["g"])),
    Denied("DESCRIBE on the group and on the topics", "'g'", [acl("GROUP", "g", "DESCRIBE"), acl(*TOPIC, "DESCRIBE")], lambda admin: admin.plan_reset("g", "earliest")),
    Denied("DELETE on the group and READ on the topics", "'g'", [acl("GROUP", "g", "DELETE"), acl(*TOPIC, "READ")], lambda admin: admin.delete_group_offsets("g", [ZERO])),
    Denied("DELETE on the group", "'g'", [acl("GROUP", "g", "DELETE")], lambda admin: admin.delete_groups(["g"])),
    Denied("DESCRIBE on the transactional id", "'tx'", [acl("TRANSACTIONAL_ID", "tx", "DESCRIBE")], lambda admin: admin.transactions.describe(["tx"])),
    Denied("READ on the topic", "denied", [acl(*TOPIC, "READ")], lambda admin: admin.transactions.producers([ZERO])),
    Denied("READ on the topics", "denied", [acl(*TOPIC, "READ")], lambda admin: admin.transactions.find_hanging(partitions=[ZERO])),
    Denied("ALTER on the cluster and DESCRIBE on the topic", "denied", [cluster("ALTER"), acl(*TOPIC, "DESCRIBE")], lambda admin: admin.transactions.abort(ZERO, producer_id=1, producer_epoch=0)),
    Denied("DESCRIBE on the cluster", "log directories", [cluster("DESCRIBE")], lambda admin: admin.brokers.log_dirs()),
    Denied("DESCRIBE on the cluster", "metadata quorum", [cluster("DESCRIBE")], lambda admin: admin.brokers.quorum()),
    Denied("ALTER on the cluster", "'group.version'", [cluster("ALTER")], lambda admin: admin.brokers.update_features({"group.version": 1})),
    Denied("ALTER on the cluster", "leaders", [cluster("ALTER")], lambda admin: admin.replicas.elect_leaders("preferred", [ZERO])),
    Denied("DESCRIBE on the cluster", "reassignments", [cluster("DESCRIBE")], lambda admin: admin.replicas.list_reassignments()),
    Denied("ALTER on the cluster", "reassigning", [cluster("ALTER")], lambda admin: admin.replicas.alter_reassignments({ZERO: [1]})),
    Denied("DESCRIBE on the cluster", "ACLs", [cluster("DESCRIBE")], lambda admin: admin.acls.describe()),
    Denied("ALTER on the cluster", "'orders'", [cluster("ALTER")], lambda admin: admin.acls.create([READ])),
    Denied("ALTER on the cluster", "ACLs", [cluster("ALTER")], lambda admin: admin.acls.delete([AclBindingFilter(host="x")])),
    Denied("DESCRIBE on the cluster", "SCRAM user", [cluster("DESCRIBE")], lambda admin: admin.users.describe()),
    Denied("ALTER on the cluster", "'x'", [cluster("ALTER")], lambda admin: admin.users.alter([UserScramCredentialUpsertion("x", "y")])),
    Denied("DESCRIBE_CONFIGS on the cluster", "quotas", [cluster("DESCRIBE_CONFIGS")], lambda admin: admin.quotas.describe()),
    Denied("ALTER_CONFIGS on the cluster", "quotas", [cluster("ALTER_CONFIGS")], lambda admin: admin.quotas.alter({ClientQuotaEntity(user="x"): RATE})),
]  # fmt: skip


async def test_a_denied_call_names_the_operation_and_the_resource_that_an_acl_allows(
    secured: ApacheKafka,
) -> None:
    await denied_calls(secured)


async def test_a_denied_call_of_kafka_3_9(secured_39: ApacheKafka) -> None:
    await denied_calls(secured_39, {"'group.version'": "INVALID_UPDATE_VERSION"})  # a feature of Kafka 4.0


async def denied_calls(secured: ApacheKafka, refused: Mapping[str, str] | None = None) -> None:
    """`refused` are the errors of resources whose call is refused for another reason when it is allowed."""
    async with Admin(secured.bootstrap_servers) as owner, as_user(secured, "alice", PASSWORD) as admin:
        (await owner.create_topics({"denied": 2, "gone": 1})).raise_first()
        (await owner.alter_group_offsets("g", {ZERO: 0})).raise_first()
        async with transaction(secured.bootstrap_servers, "denied", "tx"):
            pass  # the transactional id exists
        for denied in DENIED:
            error = await error_of(denied.call(admin))
            assert isinstance(error, BrokerError), (denied, error)
            assert error.code in DENIALS, (denied, error)
            text = str(error)
            assert f"this user needs {denied.operation}" in text
            assert denied.resource in text
            assert "kafka-acls.sh" in text
            assert "\n" not in text
        for denied in DENIED:
            (
                await owner.alter_group_offsets("g", {ZERO: 0})
            ).raise_first()  # Kafka 3.9 deletes a group with its last offset
            (await owner.acls.create(denied.acls)).raise_first()

            async def refusal(denied: Denied = denied) -> str | None:
                error = await error_of(denied.call(admin))
                return None if error is None else name_of(error)

            await until_shown(refusal, (refused or {}).get(denied.resource))
            filters = [AclBindingFilter.exactly(each) for each in denied.acls]
            (await owner.acls.delete(filters)).raise_first()


async def error_of(call: Any) -> AsyncGroupError | None:
    """Return the first error of a call, raised or in its results."""
    try:
        found = await call
    except AsyncGroupError as error:
        return error
    return next(iter(getattr(found, "errors", {}).values()), None)
