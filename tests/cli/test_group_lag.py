"""`groups lag`: columns, notes of loss, sums, the live table with rates, and errors of groups and partitions, in virtual time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from asyncgroup import ConsumerConfig, Producer
from asyncgroup.admin import Admin, GroupDescription, GroupLag, PartitionLag
from asyncgroup.cli.lag_rates import LagRate
from asyncgroup.cli.lag_rows import frame_lines, shown_duration, watch_rows
from asyncgroup.model import TopicPartition
from asyncgroup.workqueue import WorkQueue
from tests.cli.admin_commands import Commands
from tests.cli.test_groups import member
from tests.stories.virtual import VirtualEnvironment


async def produce(env: VirtualEnvironment, count: int, partition: int = 0) -> None:
    async with Producer(env.bootstrap_servers) as producer:
        for _ in range(count):
            await producer.send("orders", b"x", partition=partition)


async def test_the_lag_of_groups(asyncgroup: Commands, env: VirtualEnvironment) -> None:
    await produce(env, 10)
    await asyncgroup.ok("offsets", "alter", "g", "orders:0=4", "orders:1=0")
    async with member(env, "g", "classic"):
        headings, first, second, *rest = (await asyncgroup.ok("groups", "lag", "g")).table()
        assert headings == [
            *("GROUP", "TOPIC", "PARTITION", "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG"),
            *("CONSUMER-ID", "HOST", "CLIENT-ID"),
        ]
        assert first[:6] == ["g", "orders", "0", "4", "10", "6"]
        assert first[8] == second[8] == "client-g"
        assert [row[3:6] for row in rest] == [["-", "0", "-"]] * 2
    (summary,) = await asyncgroup.json("groups", "lag", "--summary")
    assert (summary["state"], summary["lag"], summary["lag_max"], summary["partitions"]) == ("Empty", 6, 6, 2)
    printed = await asyncgroup("groups", "lag", "nope", "g", "-q")
    assert (printed.code, printed.lines) == (1, ["g\torders\t0", "g\torders\t1"])
    assert "GROUP_ID_NOT_FOUND" in printed.err


async def test_lost_records_are_no_lag(asyncgroup: Commands, env: VirtualEnvironment) -> None:
    await produce(env, 10)
    await asyncgroup.ok("offsets", "alter", "g", "orders:0=4")
    await asyncgroup.ok("topics", "delete-records", "orders:0", "--before", "7")
    printed = await asyncgroup("groups", "lag", "g", "--json", "--wide")
    assert printed.code == 0
    (row,) = printed.rows
    assert (row["log_start_offset"], row["lag"], row["lost"]) == (7, 3, 3)
    assert printed.err == (
        "asyncgroup groups lag: group 'g', orders-0: 3 records lost: the log deleted them before the group had read them\n"
    )


async def test_the_ack_window_of_a_work_queue(asyncgroup: Commands, env: VirtualEnvironment) -> None:
    await produce(env, 5)
    config = ConsumerConfig(auto_offset_reset="earliest")
    async with WorkQueue(env.bootstrap_servers, "g", "orders", config=config) as queue:
        deliveries = [await queue.receive() for _ in range(5)]
        deliveries[1].ack()
        deliveries[2].ack()
        await deliveries[3].ack(durable=True)
        (row,) = (each for each in await asyncgroup.json("groups", "lag", "g") if each["partition"] == 0)
    assert (row["committed_offset"], row["lag"], row["acked_above"], row["open"]) == (0, 2, 3, 1)


async def test_a_leader_that_denies_costs_the_other_partitions_nothing(
    asyncgroup: Commands, env: VirtualEnvironment
) -> None:
    await asyncgroup.ok("offsets", "alter", "g", *(f"orders:{number}=0" for number in range(4)))
    node = env.cluster.leader("orders", 0)
    env.cluster.faults.on("ListOffsets", node=node, times=None).error("TOPIC_AUTHORIZATION_FAILED")
    printed = await asyncgroup("groups", "lag", "g", "--json")
    assert printed.code == 1
    rows = {row["partition"]: (row["lag"], row["error"]) for row in printed.rows}
    assert rows[0] == (None, "TOPIC_AUTHORIZATION_FAILED")
    assert (0, None) in rows.values()
    assert "TOPIC_AUTHORIZATION_FAILED" in printed.err


# --- watch ------------------------------------------------------------------------------------------------------------


async def test_a_watched_group_has_rates_and_a_time_to_catch_up(
    asyncgroup: Commands, env: VirtualEnvironment
) -> None:
    await produce(env, 100)
    await asyncgroup.ok("offsets", "alter", "g", "orders:0=0")
    arguments = ("groups", "lag", "g", "--watch", "--interval", "10", "--count", "2", "--json")
    watching = asyncio.create_task(asyncgroup(*arguments))
    await asyncio.sleep(5)
    async with Admin(env.bootstrap_servers) as admin:
        (await admin.alter_group_offsets("g", {TopicPartition("orders", 0): 20})).raise_first()
    await produce(env, 10)
    printed = await watching
    assert printed.code == 0
    total, partition = printed.rows[2:]
    assert (partition["lag"], partition["committed_offset"], partition["log_end_offset"]) == (90, 20, 110)
    assert (partition["consumed_rate"], partition["produced_rate"]) == (2.0, 1.0)
    assert partition["catch_up"] == 90.0
    assert (total["topic"], total["lag"], total["catch_up"]) == (None, 90, 90.0)


async def test_watching_goes_on_after_an_error(asyncgroup: Commands, env: VirtualEnvironment) -> None:
    await asyncgroup.ok("offsets", "alter", "g", "orders:0=0")
    env.cluster.faults.on("OffsetFetch").error("GROUP_AUTHORIZATION_FAILED")
    printed = await asyncgroup("groups", "lag", "g", "--watch", "--count", "2")
    assert printed.code == 0  # that of the last round
    assert len(printed.errors) == 1
    assert "GROUP_AUTHORIZATION_FAILED" in printed.err
    assert printed.lines[-1].split()[:3] == ["g", "orders", "0"]


def lag(committed: int, end: int, client: str | None = None) -> PartitionLag:
    return PartitionLag(committed, None, 0, end, end - committed, 0, client_id=client)


def watched(count: int) -> list[dict[str, Any]]:
    group = GroupDescription("g", "classic", "Stable", "consumer", "range", ())
    partitions = {TopicPartition("orders", n): lag(0, n) for n in range(count)}
    return [dict(row) for row in watch_rows([GroupLag(group, partitions)], {})]


def test_the_live_table_begins_with_the_sum_and_the_largest_lag() -> None:
    rows = watched(3)
    assert [(row["partition"], row["lag"]) for row in rows] == [(None, 3), (2, 2), (1, 1), (0, 0)]


def test_a_screen_has_no_more_lines_and_columns_than_the_terminal() -> None:
    rows = watched(50)
    lines = frame_lines("title", rows, ["a problem " * 20], 60, 20)
    assert len(lines) == 19
    assert lines[-1] == "36 more rows"
    assert max(map(len, lines)) <= 60
    assert frame_lines("title", [], [], 60, 20) == ["title"]
    assert len(frame_lines("title", rows, [], 5, 2)) == 3
    assert len(frame_lines("title", rows[:3], [], 200, 24)) == 5


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"),
        (0.0, "0s"),
        (59.4, "59s"),
        (60.0, "1m"),
        (750.0, "12m30s"),
        (12_000.0, "3h20m"),
        (792_000.0, "9d4h"),
    ],
)
def test_durations(seconds: float | None, text: str) -> None:
    assert shown_duration(seconds) == text


def test_a_group_that_has_caught_up() -> None:
    group = GroupDescription("g", "classic", "Stable", "consumer", "range", ())
    tp = TopicPartition("orders", 0)
    total, row = watch_rows([GroupLag(group, {tp: lag(5, 5, "me")})], {("g", tp): LagRate(0, 1.0, 1.0)})
    assert (row["catch_up"], row["client_id"], total["catch_up"]) == (0.0, "me", 0.0)
