"""Reset policies, start offsets given by users, and start offsets of claims."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta, timezone

import pytest
import pytest_asyncio
from hypothesis import given, strategies as st

from asyncgroup.broker import EmbeddedCluster
from asyncgroup.cluster import ClusterClient
from asyncgroup.cluster.requests.list_offsets import EARLIEST, LATEST
from asyncgroup.config import ConsumerConfig
from asyncgroup.consumer.list_offsets import Start, list_offsets, parse_start, reset_timestamps, timestamp_of
from asyncgroup.consumer.offset_resets import LogRange, out_of_range_error, out_of_range_policy
from asyncgroup.errors import ConfigError, OffsetOutOfRangeError
from asyncgroup.model import TopicPartition, wall_clock
from tests.consumer.brokers import fill

NOW = 1_700_000_000_000


def clock() -> int:
    return NOW


def test_a_policy_as_a_timestamp() -> None:
    assert timestamp_of("earliest", clock) == EARLIEST
    assert timestamp_of("latest", clock) == LATEST
    assert timestamp_of(timedelta(hours=1), clock) == NOW - 3_600_000
    assert timestamp_of(timedelta(days=365 * 100), clock) == 0, "timestamps are not negative"


def test_the_clock_is_read_for_a_duration_only() -> None:
    def broken() -> int:
        raise AssertionError("the time of day is not needed here")

    assert timestamp_of("earliest", broken) == EARLIEST
    for where in (0, 7, "earliest", "latest", datetime(2026, 1, 1, tzinfo=UTC)):
        parse_start(where, broken)
    with pytest.raises(AssertionError, match="time of day"):
        parse_start(timedelta(seconds=1), broken)


def test_the_wall_clock_counts_milliseconds_since_1970() -> None:
    assert datetime.fromtimestamp(wall_clock() / 1000, UTC).year >= 2026


@pytest.mark.parametrize("policy", ["earliest", "latest", "error", timedelta(minutes=5)])
def test_out_of_range_reset_defaults_to_auto_offset_reset(policy) -> None:
    assert out_of_range_policy(ConsumerConfig(auto_offset_reset=policy)) == policy
    assert out_of_range_policy(ConsumerConfig(out_of_range_reset=policy)) == policy
    both = ConsumerConfig(auto_offset_reset="latest", out_of_range_reset=policy)
    assert out_of_range_policy(both) == policy


def test_the_out_of_range_error_names_partition_offset_and_log() -> None:
    tp = TopicPartition("orders", 3)
    assert (
        str(out_of_range_error(tp, 99, LogRange(5, 20)))
        == "orders-3: offset 99 is not in the log, which holds 5..20"
    )
    assert str(out_of_range_error(tp, 99, LogRange(5, 20), 5)).endswith("5..20; continuing at 5")


@given(st.integers(0, 2**63 - 1))
def test_a_number_is_returned_unchanged(offset: int) -> None:
    assert parse_start(offset, clock) == Start(offset)


@given(
    st.datetimes(datetime(1970, 1, 2), datetime(2200, 1, 1), timezones=st.timezones())  # noqa: DTZ001  with a zone
)
def test_a_datetime_is_rounded_up_to_a_millisecond(when: datetime) -> None:
    found = parse_start(when, clock).timestamp
    assert found is not None
    first = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=found)
    assert first >= when
    assert first - timedelta(milliseconds=1) < when


def test_times_before_1970_mean_1970() -> None:
    assert parse_start(datetime(1900, 1, 1, tzinfo=UTC), clock) == Start(-1, 0)
    assert parse_start(timedelta(milliseconds=1500), clock) == Start(-1, NOW - 1500)


@pytest.mark.parametrize(
    ("where", "hint"),
    [
        (datetime(2026, 1, 1), "no time zone"),  # noqa: DTZ001  on purpose
        (1.5, "a time is given as a datetime"),
        (1_700_000_000.0, "a time is given as a datetime"),
        (-1, "0 or more"),
        (-2, "'earliest'"),
        (True, "0 or more"),
        (None, "'latest'"),
        ("first", "'earliest', 'latest'"),
        (b"latest", "'latest'"),
        (timedelta(), "timedelta"),
        (timedelta(seconds=-1), "timedelta"),
        (2**63, "64 bits"),
        ([], "timedelta"),
    ],
    ids=repr,
)
def test_a_bad_offset_is_refused_with_the_allowed_values(where: object, hint: str) -> None:
    with pytest.raises(ConfigError, match=r"offset=") as caught:
        parse_start(where, clock)
    assert hint in str(caught.value)


def test_datetimes_of_different_zones_are_equal() -> None:
    here = datetime(2026, 6, 1, 12, tzinfo=timezone(timedelta(hours=2)))
    assert parse_start(here, clock) == parse_start(here.astimezone(UTC), clock)


# -- start offsets of claims -------------------------------------------------------------------------------------------

TPS = [TopicPartition("orders", partition) for partition in range(200)]


async def starts(brokers: EmbeddedCluster, committed: dict[TopicPartition, int], **more):
    config = ConsumerConfig(client_id="reader", **more.pop("config", {}))
    async with ClusterClient(brokers.bootstrap_servers, config) as cluster:
        await cluster.topics(["orders"])
        asked = reset_timestamps([tp for tp in TPS if tp not in committed], config, **more)
        return committed | await list_offsets(cluster, asked)


@pytest_asyncio.fixture
async def brokers() -> AsyncIterator[EmbeddedCluster]:
    async with EmbeddedCluster(3, host="10.0.0.1", seed=1) as cluster:
        cluster.create_topic("orders", len(TPS))
        for tp in TPS[:5]:
            fill(cluster, *tp, batches=3)
        yield cluster


async def test_one_request_per_leader_of_partitions_without_a_commit(
    brokers: EmbeddedCluster,
) -> None:
    found = await starts(brokers, {TPS[0]: 2, TPS[1]: 77})
    assert [found[tp] for tp in TPS[:4]] == [2, 77, 3, 3], "committed offsets are not looked up"
    assert len(found) == len(TPS)
    asked = brokers.history.of("ListOffsets")
    assert sorted(exchange.node_id for exchange in asked) == [1, 2, 3]
    parts = [p for e in asked for t in e.request.topics for p in t.partitions]
    assert len(parts) == len(TPS) - 2

    before = len(brokers.history.of("ListOffsets"))
    assert await starts(brokers, dict.fromkeys(TPS, 1)) == dict.fromkeys(TPS, 1)
    assert len(brokers.history.of("ListOffsets")) == before


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("earliest", 0),
        ("latest", 3),
        (timedelta(milliseconds=500), 0),  # the records have timestamp 1000
        (timedelta(milliseconds=100), 3),  # after the last record: the end
    ],
)
async def test_start_offsets_by_policy(brokers: EmbeddedCluster, policy, expected: int) -> None:
    config = {"auto_offset_reset": policy}
    found = await starts(brokers, {}, config=config, clock=lambda: 1500)
    assert [found[tp] for tp in TPS[:6]] == [expected] * 5 + [0]
    found = await starts(brokers, {}, config=config, clock=lambda: 1500, earliest_for={TPS[1], TPS[2]})
    assert [found[tp] for tp in TPS[:4]] == [expected, 0, 0, expected]
    asked = brokers.history.of("ListOffsets")
    assert len([e for e in asked[-6:] if e.node_id == 1]) <= 4, (
        "at most two requests per leader for each policy"
    )


async def test_with_policy_error_a_partition_without_a_commit_is_an_error(brokers: EmbeddedCluster) -> None:
    config = {"auto_offset_reset": "error"}
    committed = dict.fromkeys(TPS[2:], 1)
    with pytest.raises(
        OffsetOutOfRangeError, match=r"this consumer has no committed offset for orders-0, orders-1"
    ):
        await starts(brokers, committed, config=config)
    assert brokers.history.of("ListOffsets") == []
    found = await starts(brokers, committed, config=config, earliest_for=TPS[:2])
    assert [found[tp] for tp in TPS[:3]] == [0, 0, 1]
