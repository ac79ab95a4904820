"""Admin, ACLs: Kafka's words and numbers, results for each ACL and filter, and a cluster without an authorizer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from asyncgroup import BrokerError, ConfigError, ErrorCode
from asyncgroup.admin import AccessControlEntry, AclBinding, AclBindingFilter, Admin, ResourcePattern
from asyncgroup.admin.acl_values import acl_fields, binding_of
from asyncgroup.cluster.requests.acls import AclFields
from asyncgroup.wire import messages as m
from tests.admin.test_brokers import code
from tests.stories.virtual import VirtualEnvironment

READ = AclBinding(ResourcePattern("TOPIC", "orders"), AccessControlEntry("User:alice", "READ"))
WRITE = AclBinding(
    ResourcePattern("TOPIC", "o", "PREFIXED"), AccessControlEntry("User:*", "WRITE", "DENY", "10.0.0.1")
)
CLUSTER = AclBinding(ResourcePattern("CLUSTER"), AccessControlEntry("User:alice", "ALTER"))


def answered(env: VirtualEnvironment, api: str, answer: Callable[[], Any]) -> None:
    """Let the brokers answer once as one with an authorizer would."""
    env.cluster.faults.on(api).mutate(lambda _: answer())


async def test_a_cluster_without_an_authorizer_says_so(admin: Admin, env: VirtualEnvironment) -> None:
    with pytest.raises(BrokerError, match=r"describing ACLs: SECURITY_DISABLED \(54\): No Authorizer"):
        await admin.acls.describe()
    created = await admin.acls.create([READ, WRITE])
    assert str(created[READ]).startswith("creating the ACL for 'User:alice' on 'orders': SECURITY_DISABLED")
    assert code(created[WRITE]) == ErrorCode.SECURITY_DISABLED
    deleted = await admin.acls.delete([AclBindingFilter()])
    assert code(deleted[AclBindingFilter()]) == ErrorCode.SECURITY_DISABLED
    apis = ("DescribeAcls", "CreateAcls", "DeleteAcls")
    assert [len(env.cluster.history.of(api)) for api in apis] == [1, 1, 1]


async def test_acls_are_described(admin: Admin, env: VirtualEnvironment) -> None:
    response = m.DescribeAclsResponse

    def described() -> Any:
        first = response.DescribeAclsResource(
            2, "orders", 3, [response.AclDescription("User:alice", "*", 3, 3)]
        )
        second = response.DescribeAclsResource(
            2,
            "o",
            4,
            [
                response.AclDescription("User:*", "10.0.0.1", 4, 2),
                response.AclDescription("User:x", "*", 99, 3),
            ],
        )
        return response(resources=[first, second])

    answered(env, "DescribeAcls", described)
    unknown = AclBinding(ResourcePattern("TOPIC", "o", "PREFIXED"), AccessControlEntry("User:x", "UNKNOWN"))
    assert await admin.acls.describe() == (WRITE, unknown, READ)
    answered(env, "DescribeAcls", response)
    wanted = AclBindingFilter("TOPIC", "orders", "MATCH", "User:alice", "*", "READ", "ALLOW")
    assert await admin.acls.describe(wanted) == ()
    all_of, one = (each.request for each in env.cluster.history.of("DescribeAcls"))
    assert all_of == m.DescribeAclsRequest(1, None, 1, None, None, 1, 1)
    assert one == m.DescribeAclsRequest(2, "orders", 2, "User:alice", "*", 3, 3)


async def test_each_acl_is_created_or_has_its_error(admin: Admin, env: VirtualEnvironment) -> None:
    result = m.CreateAclsResponse.AclCreationResult
    answered(
        env,
        "CreateAcls",
        lambda: m.CreateAclsResponse(
            results=[result(), result(ErrorCode.NOT_CONTROLLER), result(ErrorCode.INVALID_REQUEST, "no")]
        ),
    )
    answered(env, "CreateAcls", lambda: m.CreateAclsResponse(results=[result()]))
    created = await admin.acls.create([READ, WRITE, CLUSTER])
    assert set(created.values_by_name) == {READ, WRITE}
    assert str(created[CLUSTER]) == (
        "creating the ACL for 'User:alice' on 'kafka-cluster': INVALID_REQUEST (42): no"
    )
    first, second = (each.request.creations for each in env.cluster.history.of("CreateAcls"))
    creation = m.CreateAclsRequest.AclCreation
    assert first[:2] == [
        creation(2, "orders", 3, "User:alice", "*", 3, 3),
        creation(2, "o", 4, "User:*", "10.0.0.1", 4, 2),
    ]
    assert second == first[1:2]  # only the one that the former controller refused


async def test_a_filter_deletes_what_it_matches(admin: Admin, env: VirtualEnvironment) -> None:
    response = m.DeleteAclsResponse
    match = response.DeleteAclsMatchingAcl
    only, other = AclBindingFilter.exactly(READ), AclBindingFilter(principal="User:*")

    def deleted() -> Any:
        good = match(0, None, *acl_fields(READ)[:3], *acl_fields(READ)[3:])
        bad = match(ErrorCode.UNKNOWN_SERVER_ERROR, "disk", *acl_fields(WRITE))
        return response(
            filter_results=[
                response.DeleteAclsFilterResult(0, None, [good, bad]),
                response.DeleteAclsFilterResult(ErrorCode.INVALID_REQUEST, "no"),
            ]
        )

    env.cluster.faults.on("DeleteAcls").error("NOT_CONTROLLER")
    answered(env, "DeleteAcls", deleted)
    found = await admin.acls.delete([only, other])
    done = found.values_by_name[only]
    assert done.acls == (READ,)
    assert "deleting the ACL for 'User:*' on 'o': UNKNOWN_SERVER_ERROR (-1): disk" in str(done.errors[WRITE])
    with pytest.raises(BrokerError):
        done.raise_first()
    assert code(found[other]) == ErrorCode.INVALID_REQUEST


async def test_a_response_with_too_few_results_is_asked_for_again(env: VirtualEnvironment) -> None:
    async with Admin(env.bootstrap_servers) as admin:
        answered(env, "CreateAcls", m.CreateAclsResponse)
        created = await admin.acls.create([READ])
        assert code(created[READ]) == ErrorCode.SECURITY_DISABLED
        assert len(env.cluster.history.of("CreateAcls")) == 2


async def test_words_and_numbers() -> None:
    for binding in (READ, WRITE, CLUSTER):
        assert binding_of(acl_fields(binding)) == binding
    assert acl_fields(CLUSTER) == AclFields(4, "kafka-cluster", 3, "User:alice", "*", 7, 3)


async def test_bad_arguments(admin: Admin, env: VirtualEnvironment) -> None:
    def acl(kind: str = "TOPIC", name: str = "t", pattern: str = "LITERAL", **entry: Any) -> AclBinding:
        values = {"principal": "User:a", "operation": "READ", **entry}
        return AclBinding(ResourcePattern(kind, name, pattern), AccessControlEntry(**values))

    cases: list[tuple[str, Any]] = [
        ("resource_type='topic' .*TOPIC", acl("topic")),
        ("resource_type='ANY'", acl("ANY")),
        ("name=''", acl(name="")),
        ("pattern_type='MATCH'", acl(pattern="MATCH")),
        ("only resource of type CLUSTER", acl("CLUSTER", "x")),
        ("principal='alice' .*User:alice", acl(principal="alice")),
        ("operation='read'", acl(operation="read")),
        ("permission_type='ANY'", acl(permission_type="ANY")),
        ("host=''", acl(host="")),
        ("AclBinding", ResourcePattern("TOPIC", "t")),
        ("AclBinding", AclBinding("t", "e")),  # type: ignore[arg-type]
    ]
    filters: list[tuple[str, Any]] = [
        ("with the pattern type MATCH", AclBindingFilter(pattern_type="MATCH")),
        ("operation='READS'", AclBindingFilter(operation="READS")),
        ("AclBindingFilter", READ),
    ]
    for text, binding in cases:
        with pytest.raises(ConfigError, match=text):
            await admin.acls.create([binding])
    for text, wanted in filters:
        with pytest.raises(ConfigError, match=text):
            await admin.acls.delete([wanted])
        with pytest.raises(ConfigError, match=text):
            await admin.acls.describe(wanted)
    assert not env.cluster.history.of("DescribeAcls", "CreateAcls", "DeleteAcls")
