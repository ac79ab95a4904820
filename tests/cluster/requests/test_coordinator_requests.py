"""Requests to coordinators: one part for each node, retries for the groups that need them, the others unharmed."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import pytest

from asyncgroup.cluster.coordinators import TRANSACTION
from asyncgroup.cluster.requests.groups import delete_groups, describe_consumer_groups, describe_groups
from asyncgroup.cluster.requests.results import IncompleteResponse
from asyncgroup.cluster.requests.transactions import describe_transactions, list_transactions
from asyncgroup.errors import (
    BrokerError,
    ClosedError,
    ConnectionLost,
    ErrorCode,
    RequestTimedOut,
    TransportError,
)
from tests.cluster.requests.scene import groups_of, now, opened

API = "DescribeGroups"


async def test_groups_of_several_nodes_are_described_at_the_same_time() -> None:
    async with opened() as (cluster, client):
        groups = groups_of(cluster)
        cluster.faults.on(API, times=None).delay(2.0)
        found = await describe_groups(client, [*groups.values(), groups[1]])
        assert {name: group.group_state for name, group in found.require().items()} == dict.fromkeys(
            groups.values(), "Empty"
        )
        sent = cluster.history.of(API)
        assert {each.node_id: each.request.groups for each in sent} == {n: [g] for n, g in groups.items()}
        assert len({each.time for each in sent}) == 1
        assert now() - sent[0].time == pytest.approx(2.0, abs=0.1)
        assert len(cluster.history.of("FindCoordinator")) == 1
        nothing = await describe_groups(client, [])
        assert (nothing.values, nothing.errors) == ({}, {})


async def test_groups_of_one_node_have_one_request() -> None:
    async with opened(nodes=1) as (cluster, client):
        found = await describe_groups(client, ["a", "b"])
        assert all(
            isinstance(each, BrokerError) and each.code == ErrorCode.GROUP_ID_NOT_FOUND
            for each in found.errors.values()
        )
        assert [each.request.groups for each in cluster.history.of(API)] == [["a", "b"]]


@pytest.mark.parametrize("code", ["NOT_COORDINATOR", "COORDINATOR_NOT_AVAILABLE"])
async def test_a_node_that_is_not_the_coordinator_makes_that_group_alone_be_looked_up(code: str) -> None:
    async with opened() as (cluster, client):
        groups = groups_of(cluster)
        cluster.faults.on(API, group=groups[2]).error(code)
        found = await describe_groups(client, groups.values(), retry=client.retry(timeout=10.0))
        assert found.require().keys() == set(groups.values())
        assert [each.request.groups for each in cluster.history.of(API)][3:] == [[groups[2]]]
        asked = [each.request.coordinator_keys for each in cluster.history.of("FindCoordinator")]
        assert asked == [list(groups.values()), [groups[2]]]


async def test_a_group_that_moved_is_described_by_its_new_coordinator() -> None:
    async with opened() as (cluster, client):
        groups = groups_of(cluster)
        await client.coordinators.locate_all(groups.values())
        cluster.move_coordinator(groups[1], 3)
        found = await describe_groups(client, [groups[1]], retry=client.retry(timeout=10.0))
        assert found.values[groups[1]].group_state == "Empty"
        assert [each.node_id for each in cluster.history.of(API)] == [1, 3]


async def test_a_coordinator_that_loads_its_groups_is_asked_again_without_another_lookup() -> None:
    async with opened() as (cluster, client):
        groups = groups_of(cluster)
        cluster.faults.on(API, group=groups[3], times=3).error("COORDINATOR_LOAD_IN_PROGRESS")
        found = await describe_groups(client, groups.values(), retry=client.retry(timeout=10.0))
        assert not found.errors
        times = [each.time for each in cluster.history.of(API, node=3)]
        pauses = [later - before for before, later in pairwise(times)]
        assert len(pauses) == 3
        assert pauses == sorted(pauses)  # the backoff grows
        assert 0.08 <= pauses[0] <= 0.13
        assert len(cluster.history.of("FindCoordinator")) == 1


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_lost_connection(when: str) -> None:
    async with opened() as (cluster, client):
        groups = groups_of(cluster)
        cluster.faults.on(API, node=1).disconnect(when)
        found = await describe_groups(client, groups.values(), retry=client.retry(timeout=10.0))
        assert not found.errors
        assert len(cluster.history.of(API, node=2)) == len(cluster.history.of(API, node=3)) == 1
        asked = [each.request.coordinator_keys for each in cluster.history.of("FindCoordinator")]
        assert asked[1:] == [[groups[1]]]


async def test_without_retries_one_node_that_fails_costs_its_own_groups_only() -> None:
    async with opened() as (cluster, client):
        groups = groups_of(cluster)
        cluster.faults.on(API, node=1).disconnect()
        cluster.faults.on(API, node=2).error("COORDINATOR_LOAD_IN_PROGRESS")
        found = await describe_groups(client, groups.values())
        assert found.values.keys() == {groups[3]}
        assert isinstance(found.errors[groups[1]], ConnectionLost)
        assert isinstance(error := found.errors[groups[2]], BrokerError)
        assert error.code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert len(cluster.history.of(API)) == 3


async def test_a_final_error_is_not_repeated_while_others_are() -> None:
    async with opened() as (cluster, client):
        groups = groups_of(cluster)
        cluster.faults.on(API, group=groups[1]).error("GROUP_AUTHORIZATION_FAILED")
        cluster.faults.on(API, group=groups[2], times=2).error("COORDINATOR_LOAD_IN_PROGRESS")
        found = await describe_groups(client, groups.values(), retry=client.retry(timeout=10.0))
        assert found.values.keys() == {groups[2], groups[3]}
        assert (
            str(found.errors[groups[1]]) == f"members of group {groups[1]!r}: GROUP_AUTHORIZATION_FAILED (30)"
        )
        assert [len(cluster.history.of(API, node=node)) for node in (1, 2, 3)] == [1, 3, 1]


async def test_a_node_that_is_down_until_the_time_limit() -> None:
    async with opened() as (cluster, client):
        groups = groups_of(cluster)
        await client.coordinators.locate_all(groups.values())
        cluster.faults.on(
            "FindCoordinator", times=None, where=lambda r: groups[2] in r.coordinator_keys
        ).error("COORDINATOR_NOT_AVAILABLE")
        await cluster.stop_node(2)
        begun = now()
        found = await describe_groups(client, groups.values(), retry=client.retry(timeout=5.0))
        assert found.values.keys() == {groups[1], groups[3]}
        assert isinstance(error := found.errors[groups[2]], BrokerError)
        assert error.code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert 3.8 <= now() - begun <= 5.0  # the next pause, of up to 1.2 s, would end after the limit
        assert [len(cluster.history.of(API, node=node)) for node in (1, 3)] == [1, 1]


async def test_a_limited_number_of_retries() -> None:
    async with opened(nodes=1) as (cluster, client):
        cluster.faults.on(API, times=None).error("COORDINATOR_LOAD_IN_PROGRESS")
        found = await describe_groups(client, ["g"], retry=client.retry(retries=3))
        assert list(found.errors) == ["g"]
        assert len(cluster.history.of(API)) == 4


async def test_a_lookup_that_no_broker_answers_leaves_the_known_coordinators_in_use() -> None:
    async with opened() as (cluster, client):
        groups = groups_of(cluster)
        await client.coordinators.locate_all([groups[1], groups[2]])
        cluster.faults.on("FindCoordinator", times=None).disconnect()
        found = await describe_groups(client, groups.values())
        assert found.values.keys() == {groups[1], groups[2]}
        assert isinstance(found.errors[groups[3]], TransportError)


async def test_a_silent_node_costs_its_groups_the_time_limit_and_the_others_nothing() -> None:
    names = [f"t{number}" for number in range(20)]
    async with opened() as (cluster, client):
        cluster.faults.on("DescribeTransactions", node=2).drop()
        silent = [name for name in names if cluster.transaction_coordinator(name) == 2]
        assert 0 < len(silent) < len(names)
        begun = now()
        retry = client.retry(timeout=7.0)
        found = await describe_transactions(client, names, retry=retry, is_cut=True)
        assert now() - begun == pytest.approx(7.0)
        assert found.values.keys() == set(names) - set(silent)
        assert {(type(error), str(error)) for error in found.errors.values()} == {
            (RequestTimedOut, "DescribeTransactions to node 2: no answer in time")
        }
        assert list(found.errors) == silent


async def test_the_timeout_at_the_deadline_says_what_failed_before() -> None:
    async with opened(nodes=1) as (cluster, client):
        cluster.faults.on("DescribeTransactions").error("COORDINATOR_LOAD_IN_PROGRESS")
        cluster.faults.on("DescribeTransactions").drop()
        found = await describe_transactions(client, ["t"], retry=client.retry(timeout=7.0), is_cut=True)
        assert str(found.errors["t"]) == (
            "DescribeTransactions to node 1: no answer in time; before that: "
            "transactional id 't': COORDINATOR_LOAD_IN_PROGRESS (14)"
        )


async def test_a_lookup_is_cut_as_well() -> None:
    async with opened(nodes=1) as (cluster, client):
        cluster.faults.on("FindCoordinator", times=None).drop()
        begun = now()
        found = await describe_transactions(client, ["t"], retry=client.retry(timeout=7.0), is_cut=True)
        assert isinstance(found.errors["t"], RequestTimedOut)
        assert now() - begun == pytest.approx(7.0)


async def test_the_first_final_error_may_end_all() -> None:
    names = [f"t{number}" for number in range(20)]
    async with opened() as (cluster, client):
        cluster.faults.on("DescribeTransactions", node=1).error("TRANSACTIONAL_ID_AUTHORIZATION_FAILED")
        cluster.faults.on("DescribeTransactions", node=2, times=None).error("COORDINATOR_LOAD_IN_PROGRESS")
        retry = client.retry(timeout=60.0)
        found = await describe_transactions(client, names, retry=retry, fails_fast=True)
        assert now() < 1
        with pytest.raises(
            BrokerError, match=r"transactional id 't\d+': TRANSACTIONAL_ID_AUTHORIZATION_FAILED"
        ):
            found.require()
        assert len(cluster.history.of("DescribeTransactions")) == 3


async def test_a_coordinator_that_moves_while_it_is_silent_is_replaced_at_once() -> None:
    async with opened() as (cluster, client):
        groups = groups_of(cluster)
        cluster.faults.on(API, node=1).drop()
        asking = asyncio.create_task(describe_groups(client, [groups[1]], retry=client.retry(timeout=60.0)))
        await asyncio.sleep(3)
        cluster.move_coordinator(groups[1], 2)
        moved_at = now()
        await client.coordinators.check(groups[1])  # as a member's heartbeats do
        found = await asking
        assert found.values[groups[1]].group_state == "Empty"
        assert now() - moved_at < 0.1


async def test_a_response_that_lacks_a_group_is_requested_again() -> None:
    async with opened(nodes=1) as (cluster, client):
        cluster.create_topic("orders", 1)

        def forget(response: Any) -> Any:
            response.groups = response.groups[:1]
            return response

        cluster.faults.on(API, times=2).mutate(forget)
        once = await describe_groups(client, ["a", "b"])
        assert isinstance(error := once.errors["b"], IncompleteResponse)
        assert str(error) == "the response to DescribeGroups of node 1 has no entry for 'b'"
        again = await describe_groups(client, ["a", "b"], retry=client.retry(timeout=10.0))
        assert isinstance(again.errors["b"], BrokerError)
        assert [each.request.groups for each in cluster.history.of(API)][1:] == [["a", "b"], ["b"]]


async def test_groups_are_deleted_at_their_coordinators() -> None:
    async with opened() as (cluster, client):
        groups = groups_of(cluster)
        cluster.faults.on("DeleteGroups", node=3).error("NOT_COORDINATOR")
        found = await delete_groups(client, [*groups.values(), "none"], retry=client.retry(timeout=10.0))
        assert found.values.keys() == set(groups.values())
        assert str(found.errors["none"]) == "deleting group 'none': GROUP_ID_NOT_FOUND (69)"
        assert cluster.groups == []


async def test_a_classic_group_is_none_of_the_consumer_protocol() -> None:
    async with opened() as (cluster, client):
        groups = groups_of(cluster)
        found = await describe_consumer_groups(client, groups.values())
        assert {type(error) for error in found.errors.values()} == {BrokerError}
        assert not found.values


async def test_transactions_are_listed_at_every_node() -> None:
    async with opened() as (cluster, client):
        cluster.faults.on("ListTransactions", node=2).error("COORDINATOR_LOAD_IN_PROGRESS")
        found = await list_transactions(client, states=["Ongoing"], pattern="a-.*")
        assert found.values == {1: [], 3: []}
        assert str(found.errors[2]) == "open transactions of node 2: COORDINATOR_LOAD_IN_PROGRESS (14)"
        requests = [each.request for each in cluster.history.of("ListTransactions")]
        assert {(*each.state_filters, each.transactional_id_pattern) for each in requests} == {
            ("Ongoing", "a-.*")
        }
        assert (await list_transactions(client, retry=client.retry(timeout=5.0))).require().keys() == {
            1,
            2,
            3,
        }


async def test_a_closed_client_ends_all() -> None:
    async with opened() as (cluster, client):
        groups = groups_of(cluster)
        await client.coordinators.locate_all(groups.values())
        cluster.faults.on(API, times=None).drop()
        asking = asyncio.create_task(
            describe_groups(client, groups.values(), retry=client.retry(timeout=60.0))
        )
        await asyncio.sleep(1)
        await client.aclose()
        with pytest.raises(ClosedError):
            await asking
        with pytest.raises(ClosedError):
            await describe_groups(client, groups.values())


async def test_a_caller_that_is_cancelled_leaves_no_task() -> None:
    async with opened() as (cluster, client):
        groups = groups_of(cluster)
        cluster.faults.on(API, times=None).drop()
        before = asyncio.all_tasks()
        asking = asyncio.create_task(describe_groups(client, groups.values()))
        await asyncio.sleep(1)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        left = [task.get_name() for task in asyncio.all_tasks() - before]
        assert not [name for name in left if API in name]


async def test_keys_that_have_no_coordinator_stop_no_others() -> None:
    async with opened() as (cluster, client):

        def refuse(response: Any) -> Any:
            response.coordinators[0].error_code = ErrorCode.GROUP_AUTHORIZATION_FAILED
            return response

        cluster.faults.on("FindCoordinator").mutate(refuse)
        found, errors = await client.coordinators.locate_each(["a", "b", "c"], TRANSACTION)
        assert (list(found), list(errors)) == (["b", "c"], ["a"])
        assert str(errors["a"]).startswith("coordinator of 'a': GROUP_AUTHORIZATION_FAILED")
