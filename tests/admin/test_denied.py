"""Admin, denied calls: the error names the operation and the resource, and says in one line what to do."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from asyncgroup import BrokerError, ErrorCode, TopicPartition
from asyncgroup.admin import (
    AccessControlEntry,
    AclBinding,
    AclBindingFilter,
    Admin,
    AdminAcls,
    AdminBrokers,
    AdminQuotas,
    AdminReplicas,
    AdminTransactions,
    AdminUsers,
    ResetRefused,
    ResourcePattern,
)
from asyncgroup.admin.acl_values import acl_fields
from asyncgroup.admin.denied import DENIALS, explained
from asyncgroup.errors import RequestTimedOut
from asyncgroup.wire import messages as m
from tests.admin.test_acls import answered
from tests.admin.test_brokers import changed
from tests.stories.virtual import VirtualEnvironment

ADVICE = (
    "an administrator can allow it with an ACL (`asyncgroup acls create`, admin.acls.create, kafka-acls.sh)"
)

TP = TopicPartition("orders", 0)

NEVER_DENIED = {
    "Admin.aclose",
    "Admin.list_topics",
    "AdminBrokers.features",
    "AdminReplicas.cancel_reassignments",  # as alter_reassignments
    "AdminTransactions.list",
}
"""Calls in which brokers leave out what the user may not see, or that need no permission."""


async def test_the_errors_of_names(admin: Admin, env: VirtualEnvironment) -> None:
    env.cluster.faults.on("DeleteTopics").error("TOPIC_AUTHORIZATION_FAILED")
    found = await admin.delete_topics(["orders"])
    assert str(found["orders"]) == (
        f"deleting topic 'orders': TOPIC_AUTHORIZATION_FAILED (29): this user needs DELETE on the topic; {ADVICE}"
    )
    env.cluster.create_topic("b", 1)
    (await admin.delete_topics(["b"])).raise_first()


async def test_the_errors_of_nodes(admin: Admin, env: VirtualEnvironment) -> None:
    env.cluster.faults.on("DescribeLogDirs", node=2).error("CLUSTER_AUTHORIZATION_FAILED")
    found = await admin.brokers.log_dirs()
    assert sorted(found.values_by_name) == [1, 3]
    assert str(found[2]) == (
        "log directories of node 2: CLUSTER_AUTHORIZATION_FAILED (31): "
        f"this user needs DESCRIBE on the cluster; {ADVICE}"
    )


async def test_an_error_that_is_raised(admin: Admin, env: VirtualEnvironment) -> None:
    env.cluster.faults.on("DescribeQuorum").error("CLUSTER_AUTHORIZATION_FAILED")
    with pytest.raises(BrokerError, match="this user needs DESCRIBE on the cluster") as caught:
        await admin.brokers.quorum()
    assert caught.value.code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert isinstance(caught.value.__cause__, BrokerError)


async def test_the_errors_beside_what_was_found(admin: Admin, env: VirtualEnvironment) -> None:
    env.cluster.faults.on("DescribeProducers").error("TOPIC_AUTHORIZATION_FAILED")
    found = await admin.transactions.find_hanging(partitions=[TP])
    assert "this user needs READ on the topics" in str(found.errors[TP])


async def test_the_errors_of_nodes_in_a_list_of_groups(admin: Admin, env: VirtualEnvironment) -> None:
    env.cluster.faults.on("ListGroups", node=2).error("CLUSTER_AUTHORIZATION_FAILED")
    found = await admin.list_groups()
    assert "this user needs DESCRIBE on the cluster or on the groups" in str(found.errors[2])


async def test_the_errors_of_partitions_in_a_lag(admin: Admin, env: VirtualEnvironment) -> None:
    (await admin.alter_group_offsets("g", {TP: 0})).raise_first()
    env.cluster.faults.on("ListOffsets", times=None).error("TOPIC_AUTHORIZATION_FAILED")
    found = (await admin.lag(["g"])).raise_first()["g"]
    assert str(found.errors[TP]) == (
        f"offset of orders-0: TOPIC_AUTHORIZATION_FAILED (29): this user needs DESCRIBE on the topic; {ADVICE}"
    )


@pytest.mark.parametrize("scope", [{"partitions": [TP]}, {"topics": ["orders"]}])
@pytest.mark.parametrize("api", ["ListOffsets", "Metadata"])
async def test_the_reasons_of_a_refused_reset(env: VirtualEnvironment, api: str, scope: Any) -> None:
    def deny(response: Any) -> None:
        for topic in response.topics:
            topic.error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED

    async with Admin(env.bootstrap_servers) as admin:
        faults = env.cluster.faults.on(api, times=None)
        if api == "Metadata":
            faults.mutate(changed(deny))
        else:
            faults.error("TOPIC_AUTHORIZATION_FAILED")
        with pytest.raises(ResetRefused) as caught:
            await admin.plan_reset("g", "earliest", **scope)
        reasons = list(caught.value.reasons.values())
        assert reasons
        assert all(f"(29): this user needs DESCRIBE on the topic; {ADVICE}" in each for each in reasons)


async def test_the_error_of_a_log_directory(env: VirtualEnvironment) -> None:
    def deny(response: Any) -> None:
        code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        response.results.append(type(response).DescribeLogDirsResult(code, "/denied"))

    env.cluster.faults.on("DescribeLogDirs", node=1).mutate(changed(deny))
    async with Admin(env.bootstrap_servers) as admin:
        *_, denied = (await admin.brokers.log_dirs([1])).raise_first()[1]
        assert "this user needs DESCRIBE on the cluster" in str(denied.error)


async def test_the_errors_of_acls_that_are_deleted(admin: Admin, env: VirtualEnvironment) -> None:
    read = AclBinding(ResourcePattern("TOPIC", "orders"), AccessControlEntry("User:alice", "READ"))
    response = m.DeleteAclsResponse
    denied = response.DeleteAclsMatchingAcl(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, None, *acl_fields(read))
    answered(
        env,
        "DeleteAcls",
        lambda: response(filter_results=[response.DeleteAclsFilterResult(0, None, [denied])]),
    )
    only = AclBindingFilter.exactly(read)
    done = (await admin.acls.delete([only])).raise_first()[only]
    assert "this user needs ALTER on the cluster" in str(done.errors[read])


async def test_other_errors_stay_as_they_are(env: VirtualEnvironment) -> None:
    for error in BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "topic 'x'"), RequestTimedOut("no answer"):
        assert explained(error, "READ on the topic") is error
    for denial in DENIALS:
        assert not explained(BrokerError(denial, "x"), "READ on the topic").retriable
    async with Admin(env.bootstrap_servers) as admin:
        assert "this user" not in str((await admin.delete_topics(["none"]))["none"])
        env.cluster.faults.on("DescribeQuorum").error("INVALID_REQUEST")
        with pytest.raises(BrokerError) as caught:
            await admin.brokers.quorum()
        assert "this user" not in str(caught.value)


async def test_every_call_says_what_it_needs() -> None:
    faces: list[type] = [
        Admin,
        AdminAcls,
        AdminBrokers,
        AdminQuotas,
        AdminReplicas,
        AdminTransactions,
        AdminUsers,
    ]
    silent = {
        f"{face.__name__}.{name}"
        for face in faces
        for name, call in vars(face).items()
        if not name.startswith("_") and _is_call(call) and not hasattr(call, "__wrapped__")
    }
    assert silent == NEVER_DENIED


def _is_call(value: Any) -> bool:
    return inspect.iscoroutinefunction(value)
