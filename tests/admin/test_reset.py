"""Admin, resets of offsets: every target and scope, refusals, what is committed, members that join between plan and commit."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from asyncgroup import (
    BrokerError,
    Claim,
    ConfigError,
    ConsumerConfig,
    ConsumerGroup,
    ErrorCode,
    Producer,
    Session,
    TopicPartition,
    WorkQueue,
)
from asyncgroup.admin import Admin, GroupOffset, ResetRefused, ShiftBy, parse_offsets_csv
from asyncgroup.model import wall_clock
from asyncgroup.wire import messages as m
from tests.stories.virtual import VirtualEnvironment

ZERO, ONE, TWO, THREE = (TopicPartition("orders", number) for number in range(4))
BEGIN = datetime(2026, 11, 1, tzinfo=UTC)


def timestamp(when: datetime) -> int:
    return int(when.timestamp() * 1000)


async def fill(env: VirtualEnvironment, admin: Admin) -> None:
    """Partition 0 has offsets 3 to 9, one an hour; 1 has 0 to 3, all of BEGIN; 2 and 3 are empty."""
    for hour in range(10):
        env.cluster.produce("orders", "x", partition=0, timestamp=timestamp(BEGIN + timedelta(hours=hour)))
    env.cluster.produce("orders", *"abcd", partition=1, timestamp=timestamp(BEGIN))
    (await admin.delete_records({ZERO: 3})).raise_first()
    (await admin.alter_group_offsets("g", {ZERO: GroupOffset(6, "text", 0), ONE: 2, TWO: 0})).raise_first()


@asynccontextmanager
async def running(env: VirtualEnvironment, **config: Any) -> AsyncIterator[str]:
    """Run a member that reads nothing; yield its id once it has partitions."""
    ids: asyncio.Queue[str] = asyncio.Queue()

    async def wait(session: Session, claim: Claim) -> None:
        ids.put_nowait(session.member_id)
        await claim.wait_ended()

    group = ConsumerGroup(env.bootstrap_servers, "g", ConsumerConfig(**config))
    async with group, asyncio.TaskGroup() as tasks:
        tasks.create_task(group.run("orders", wait))
        yield await ids.get()
        await group.aclose()


@pytest.mark.parametrize(
    ("target", "offsets"),
    [
        ("earliest", [3, 0, 0]),
        ("latest", [10, 4, 0]),
        ("current", [6, 2, 0]),
        (5, [5, 4, 0]),
        (2, [3, 2, 0]),
        (ShiftBy(1), [7, 3, 0]),
        (ShiftBy(-5), [3, 0, 0]),
        (BEGIN + timedelta(hours=5), [5, 4, 0]),
        (BEGIN + timedelta(hours=5, microseconds=1), [6, 4, 0]),
        (BEGIN, [3, 0, 0]),
        (datetime(2100, 1, 1, tzinfo=UTC), [10, 4, 0]),
    ],
)
async def test_targets_for_all_commits(env: VirtualEnvironment, target: Any, offsets: list[int]) -> None:
    async with Admin(env.bootstrap_servers) as admin:
        await fill(env, admin)
        before = (await admin.list_group_offsets("g")).raise_first()
        plan = await admin.plan_reset("g", target)
        assert (await admin.list_group_offsets("g")).raise_first() == before
        assert plan.offsets == dict(zip((ZERO, ONE, TWO), offsets, strict=True))
        assert [each.clears_metadata for each in plan.partitions.values()] == [True, False, False]
        assert (await admin.reset_offsets(plan)).raise_first() == plan.offsets
        # neither metadata nor a leader epoch, as Kafka commits it
        wanted = {tp: GroupOffset(offset) for tp, offset in plan.offsets.items()}
        assert (await admin.list_group_offsets("g")).raise_first() == wanted


async def test_a_duration_ago(env: VirtualEnvironment) -> None:
    for minutes in (50, 30, 10):
        env.cluster.produce("orders", "x", partition=0, timestamp=wall_clock() - minutes * 60_000)
    async with Admin(env.bootstrap_servers) as admin:
        plan = await admin.plan_reset("g", timedelta(minutes=40), topics=["orders"])
        assert [each.new_offset for each in plan.partitions.values()] == [1, 0, 0, 0]
        assert [each.adjusted for each in plan.partitions.values()] == [None, *["no_record"] * 3]


async def test_scopes(admin: Admin, env: VirtualEnvironment) -> None:
    env.cluster.create_topic("payments", 2)
    await fill(env, admin)
    payments = [TopicPartition("payments", n) for n in range(2)]
    for scope, wanted in (
        ({}, [ZERO, ONE, TWO]),
        ({"topics": ["payments"]}, payments),
        ({"topics": ["payments"], "partitions": [("orders", 3), ("payments", 0)]}, [THREE, *payments]),
        ({"partitions": [ONE]}, [ONE]),
        ({"topics": []}, []),
    ):
        assert list((await admin.plan_reset("g", "latest", **scope)).partitions) == wanted  # type: ignore[arg-type]


async def test_a_group_without_commits_has_an_empty_plan(admin: Admin, env: VirtualEnvironment) -> None:
    plan = await admin.plan_reset("g", "latest")
    assert (plan.offsets, plan.to_csv(), plan.warnings) == ({}, "", ())
    assert not await admin.reset_offsets(plan)
    assert not (await admin.list_groups()).raise_first()
    (await admin.reset_offsets(await admin.plan_reset("g", "latest", topics=["orders"]))).raise_first()
    assert (await admin.describe_groups(["g"])).raise_first()["g"].state == "Empty"


async def test_a_plan_goes_through_a_file(admin: Admin, env: VirtualEnvironment) -> None:
    await fill(env, admin)
    text = (await admin.plan_reset("g", "current")).to_csv()
    assert text == "orders,0,6\norders,1,2\norders,2,0\n"
    (await admin.reset_offsets(await admin.plan_reset("g", "latest"))).raise_first()
    plan = await admin.plan_reset("g", parse_offsets_csv(text + "orders,3,5\n", "g"))
    assert plan.offsets == {ZERO: 6, ONE: 2, TWO: 0, THREE: 0}
    assert plan.warnings == ("orders-3: offset 5 is after the log's end, 0 is the new offset",)
    (await admin.reset_offsets(plan)).raise_first()


@pytest.mark.parametrize(
    ("target", "scope", "reasons"),
    [
        ("latest", {"topics": ["orders", "nothing"]}, {"topic nothing": "it does not exist"}),
        (
            "latest",
            {"partitions": [ZERO, ("orders", 9), ("nothing", 0)]},
            {("nothing", 0): "it does not exist", ("orders", 9): "it does not exist"},
        ),
        ({("orders", 9): 5}, {}, {("orders", 9): "it does not exist"}),
        (
            ShiftBy(2),
            {"topics": ["orders"]},
            {THREE: "the group has no committed offset that could be shifted by 2"},
        ),
    ],
)
async def test_what_does_not_exist_refuses_the_plan(
    admin: Admin, env: VirtualEnvironment, target: Any, scope: Any, reasons: Any
) -> None:
    await fill(env, admin)
    with pytest.raises(ResetRefused) as refused:
        await admin.plan_reset("g", target, **scope)
    assert refused.value.reasons == reasons


async def test_a_partition_without_a_leader_refuses_the_plan_at_once(env: VirtualEnvironment) -> None:
    env.cluster.create_topic("single", 3, 1)
    leaders = [env.cluster.leader("single", n) for n in range(3)]
    await env.cluster.stop_node(leaders[1])
    leaderless = [n for n in range(3) if leaders[n] == leaders[1]]
    begin = asyncio.get_running_loop().time()
    async with Admin(env.bootstrap_servers) as admin:
        with pytest.raises(ResetRefused) as refused:
            await admin.plan_reset("g", "latest", topics=["single"])
        assert refused.value.reasons == {("single", n): "it has no leader" for n in leaderless}
        others = [TopicPartition("single", n) for n in range(3) if n not in leaderless]
        assert list((await admin.plan_reset("g", "latest", partitions=others)).partitions) == others
    assert asyncio.get_running_loop().time() - begin < 5


async def test_an_offset_that_is_not_found_refuses_the_plan(env: VirtualEnvironment) -> None:
    env.cluster.faults.on("ListOffsets", times=None).error(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    async with Admin(env.bootstrap_servers) as admin:
        with pytest.raises(ResetRefused, match="orders-0: offset of orders-0: TOPIC_AUTHORIZATION_FAILED"):
            await admin.plan_reset("g", "latest", partitions=[ZERO])


async def test_a_silent_leader_refuses_the_plan_soon(env: VirtualEnvironment) -> None:
    env.cluster.faults.on("ListOffsets", node=env.cluster.leader("orders", 1), times=None).drop()
    begin = asyncio.get_running_loop().time()
    async with Admin(env.bootstrap_servers) as admin:
        with pytest.raises(ResetRefused, match=r"orders-1: ListOffsets to node .: no answer in time"):
            await admin.plan_reset("g", "latest", partitions=[ZERO, ONE])
    assert asyncio.get_running_loop().time() - begin < 6


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_a_group_with_a_member_is_refused(admin: Admin, env: VirtualEnvironment, protocol: str) -> None:
    async with running(env, group_protocol=protocol) as member:
        with pytest.raises(
            ResetRefused, match=rf"'g' are not reset: state Stable: .* first: {member} at 10\."
        ) as refused:
            await admin.plan_reset("g", "latest", topics=["orders"])
        assert list(refused.value.reasons) == ["state Stable"]
    assert (await admin.plan_reset("g", "latest", topics=["orders"])).offsets == dict.fromkeys(
        (ZERO, ONE, TWO, THREE), 0
    )


async def test_a_refusal_escapes_what_members_call_themselves(env: VirtualEnvironment) -> None:
    async with running(env, client_id="red\x1b[31m"), Admin(env.bootstrap_servers) as admin:
        with pytest.raises(ResetRefused) as refused:
            await admin.plan_reset("g", "latest", topics=["orders"])
        (reason,) = refused.value.reasons.values()
        assert "first: red\\x1b[31m" in reason


async def test_a_group_of_another_type_is_refused(env: VirtualEnvironment) -> None:
    def shared(response: Any) -> Any:
        response.groups.append(m.ListGroupsResponse.ListedGroup("s", "share", "Empty", "share"))
        return response

    env.cluster.faults.on("ListGroups", node=2).mutate(shared)
    async with Admin(env.bootstrap_servers) as admin:
        with pytest.raises(ResetRefused, match="'s' are not reset: type share: only classic and consumer"):
            await admin.plan_reset("s", "latest", topics=["orders"])


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_a_member_that_joins_after_the_plan_is_an_error_of_each_partition(
    admin: Admin, env: VirtualEnvironment, protocol: str
) -> None:
    await fill(env, admin)
    plan = await admin.plan_reset("g", "earliest")
    before = (await admin.list_group_offsets("g")).raise_first()
    async with running(env, group_protocol=protocol) as member:
        done = await admin.reset_offsets(plan)
        assert done.keys() == plan.offsets.keys()
        for tp, error in done.errors.items():
            assert isinstance(error, BrokerError)
            assert error.code == ErrorCode.UNKNOWN_MEMBER_ID
            assert f"group 'g', partition {tp}" in str(error)
            assert f"state Stable: stop its members first: {member} at 10." in str(error)
    assert (await admin.list_group_offsets("g")).raise_first() == before


async def test_a_partition_that_was_deleted_after_the_plan_costs_the_others_nothing(
    admin: Admin, env: VirtualEnvironment
) -> None:
    env.cluster.create_topic("payments", 1)
    plan = await admin.plan_reset("g", "latest", topics=["orders", "payments"])
    (await admin.delete_topics(["payments"])).raise_first()
    done = await admin.reset_offsets(plan)
    assert list(done.values_by_name) == [ZERO, ONE, TWO, THREE]
    ((tp, error),) = done.errors.items()
    assert (tp.topic, getattr(error, "name", None)) == ("payments", "UNKNOWN_TOPIC_OR_PARTITION")


async def test_a_topic_that_was_recreated_after_the_plan_is_not_reset(env: VirtualEnvironment) -> None:
    env.cluster.create_topic("payments", 1)
    paid = TopicPartition("payments", 0)
    async with Admin(env.bootstrap_servers) as admin, Producer(env.bootstrap_servers) as producer:
        await producer.send("payments", b"old")
        plan = await admin.plan_reset("g", "latest", topics=["orders", "payments"])
        alone = await admin.plan_reset("g", "latest", topics=["payments"])
        assert plan.offsets[paid] == alone.offsets[paid] == 1
        (await admin.delete_topics(["payments"])).raise_first()
        (await admin.create_topics({"payments": 1})).raise_first()
        done = await admin.reset_offsets(plan)
        assert list(done.values_by_name) == [ZERO, ONE, TWO, THREE]
        error = done[paid]
        assert isinstance(error, BrokerError)
        assert error.code == ErrorCode.INCONSISTENT_TOPIC_ID
        assert list((await admin.reset_offsets(alone)).errors) == [paid]
        assert len(env.cluster.history.of("OffsetCommit")) == 1
        assert "payments-0: INCONSISTENT_TOPIC_ID (103): the topic was recreated after the plan" in str(error)
        assert paid not in (await admin.list_group_offsets("g")).raise_first()


async def test_a_moved_coordinator_is_asked_again(admin: Admin, env: VirtualEnvironment) -> None:
    await fill(env, admin)
    env.cluster.move_coordinator("g", env.cluster.coordinator("g") % 3 + 1)
    plan = await admin.plan_reset("g", "earliest")
    env.cluster.move_coordinator("g", env.cluster.coordinator("g") % 3 + 1)
    env.cluster.faults.on("OffsetCommit").disconnect("after")
    assert (await admin.reset_offsets(plan)).raise_first() == {ZERO: 3, ONE: 0, TWO: 0}


async def test_records_that_a_work_queue_acknowledged_are_delivered_again(env: VirtualEnvironment) -> None:
    values = [b"a", b"b", b"c", b"d"]
    env.cluster.produce("orders", *values, partition=0)

    async def received(*acked: bytes) -> list[bytes]:
        async with WorkQueue(env.bootstrap_servers, "g", "orders", initial_position="earliest") as queue:
            found = [await queue.receive() for _ in range(4)]
            for delivery in found:
                if delivery.value in acked:
                    await delivery.ack()
            return sorted(delivery.value for delivery in found)

    async with Admin(env.bootstrap_servers) as admin:
        assert await received(b"b", b"c") == values
        plan = await admin.plan_reset("g", "current", partitions=[ZERO])
        assert plan.partitions[ZERO].acked_above == 2
        assert plan.warnings == (
            "orders-0: the reset clears the ack window of offset 0, with 2 acknowledged records",
        )
        (await admin.reset_offsets(plan)).raise_first()
        assert await received() == values


@pytest.mark.parametrize(
    ("target", "scope", "what"),
    [
        (datetime(2026, 1, 1), {}, "time zone"),  # noqa: DTZ001
        ("now", {}, "earliest"),
        ("latest", {"topics": b"orders"}, "several as a list"),
        ({ZERO: 1}, {"topics": ["orders"]}, "none beside"),
    ],
)
async def test_bad_arguments(env: VirtualEnvironment, target: Any, scope: Any, what: str) -> None:
    async with Admin(env.bootstrap_servers) as admin:
        with pytest.raises(ConfigError, match=what):
            await admin.plan_reset("g", target, **scope)
        with pytest.raises(ConfigError, match="group_id"):
            await admin.plan_reset(" ", "latest")
        with pytest.raises(ConfigError, match="ResetPlan"):
            await admin.reset_offsets({ZERO: 1})  # type: ignore[arg-type]
