"""Delivery times and ordering keys: the headers that `ordering_key`, `deliver_at` and `deliver_after` write."""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, strategies as st

from asyncgroup import (
    Batch,
    ConsumerConfig,
    ConsumerGroup,
    ConsumeTransformProduce,
    Interceptor,
    TransactionOutput,
)
from asyncgroup.broker import EmbeddedCluster
from asyncgroup.config import ProducerConfig
from asyncgroup.delivery_headers import DELIVER_AT, ORDERING_KEY
from asyncgroup.errors import InvalidRecordError
from asyncgroup.producer import Producer, ProducerRecord
from asyncgroup.producer.arguments import SendOptions, add_delivery_headers
from tests.producer.support import QUICK, TOPIC, produced, writing
from tests.producer.transactions.support import INPUT, cluster_with_topics, committed, transacting

NOW = 1_700_000_000_000
"""What the clock of `writing` returns."""
NEW_YEAR = datetime(2030, 1, 1, 1, tzinfo=timezone(timedelta(hours=1)))
NEW_YEAR_MS = 1_893_456_000_000
LIMITS: dict[str, Any] = {"max_pending_records_per_partition": 5}
CHUNKS: dict[str, Any] = {"chunking": True, "max_chunk_size": 1024, "batch_size": 1}


def calls_of(producer: Any, value: bytes = b"x", **arguments: Any) -> list[Callable[[], Any]]:
    """Return the calls that accept the arguments."""
    return [
        lambda: producer.send(TOPIC, value, **arguments),
        lambda: producer.send_nowait(TOPIC, value, **arguments),
        lambda: producer.enqueue(TOPIC, value, **arguments),
    ]


def headers_in(cluster: EmbeddedCluster) -> list[list[tuple[str, bytes | None]]]:
    return [list(record.headers) for record in cluster.records(TOPIC)]


# --- headers in the log ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, LIMITS], ids=["plain", "limits"])
@pytest.mark.parametrize(
    ("arguments", "written"),
    [
        ({}, []),
        ({"deliver_at": 0}, [(DELIVER_AT, b"0")]),
        ({"deliver_at": 2**63 - 1}, [(DELIVER_AT, b"9223372036854775807")]),
        ({"deliver_at": NEW_YEAR}, [(DELIVER_AT, b"%d" % NEW_YEAR_MS)]),
        ({"deliver_after": 0}, [(DELIVER_AT, b"%d" % NOW)]),
        ({"deliver_after": 0.0701}, [(DELIVER_AT, b"%d" % (NOW + 71))]),
        ({"deliver_after": 3600}, [(DELIVER_AT, b"%d" % (NOW + 3_600_000))]),
        ({"ordering_key": b""}, [(ORDERING_KEY, b"")]),
        (
            {"ordering_key": b"\xff", "deliver_after": 1.5},
            [(ORDERING_KEY, b"\xff"), (DELIVER_AT, b"%d" % (NOW + 1500))],
        ),
    ],
    ids=str,
)
async def test_headers_in_the_log(
    arguments: dict[str, Any], written: list[tuple[str, bytes | None]], options: dict[str, Any]
) -> None:
    """They follow the headers of the caller, whose list is left as it is."""
    async with writing(**options) as (cluster, producer):
        own: list[Any] = [("trace", b"1"), ["trace", None]]
        for headers in ((), own):
            for call in calls_of(producer, headers=headers, **arguments):
                await call()
        await producer.flush()
        kept: list[tuple[str, bytes | None]] = [("trace", b"1"), ("trace", None)]
        assert sorted(headers_in(cluster), key=len) == [written] * 3 + [kept + written] * 3
        assert own == [("trace", b"1"), ["trace", None]]


async def test_each_chunk_has_the_headers() -> None:
    async with writing(**CHUNKS) as (cluster, producer):
        for call in calls_of(producer, b"x" * 3000, deliver_after=2.0, ordering_key=b"k"):
            await call()
        await producer.flush()
        found = headers_in(cluster)
        assert len(found) == 12
        for headers in found:
            assert headers[-2:] == [(ORDERING_KEY, b"k"), (DELIVER_AT, b"%d" % (NOW + 2000))]


async def test_the_ordering_key_determines_no_partition() -> None:
    async with writing() as (cluster, producer):
        for number in range(20):
            await producer.send(TOPIC, b"x", key=b"key", ordering_key=b"%d" % number)
        assert len({record.partition for record in cluster.records(TOPIC)}) == 1
        assert {record.key for record in cluster.records(TOPIC)} == {b"key"}


async def test_a_delay_counts_from_the_call_and_not_from_the_timestamp() -> None:
    times = iter([NOW + 10, NOW + 20])
    async with writing(clock=lambda: next(times)) as (cluster, producer):
        await producer.send(TOPIC, b"x", deliver_after=1, timestamp=5)
        await producer.send(TOPIC, b"x", ordering_key=b"k", deliver_at=7, timestamp=5)
        await producer.send(TOPIC, b"x")
        records = sorted(cluster.records(TOPIC), key=lambda record: record.timestamp)
        assert [record.timestamp for record in records] == [5, 5, NOW + 20]
        assert [(DELIVER_AT, b"%d" % (NOW + 1010))] in headers_in(cluster)


# --- errors ------------------------------------------------------------------------------------------------------------

TIME = "a datetime with a time zone, 1970 or later, or a whole number of milliseconds"
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"deliver_at": -1}, f"deliver_at=-1 is not allowed: {TIME}"),
    ({"deliver_at": 2**63}, f"deliver_at=9223372036854775808 is not allowed: {TIME}"),
    ({"deliver_at": 1.5}, f"deliver_at=1.5 is not allowed: {TIME}"),
    ({"deliver_at": True}, f"deliver_at=True is not allowed: {TIME}"),
    ({"deliver_at": "5"}, f"deliver_at='5' is not allowed: {TIME}"),
    ({"deliver_at": datetime(1969, 12, 31, tzinfo=UTC)}, r"deliver_at=datetime.*1970 or later"),
    ({"deliver_at": datetime.min.replace(tzinfo=UTC)}, r"deliver_at=datetime.*1970 or later"),
    ({"deliver_at": datetime(2030, 1, 1)}, r"no time zone: deliver_at\.astimezone\(\)\?"),  # noqa: DTZ001
    ({"deliver_after": -0.001}, "deliver_after=-0.001 is not allowed: a number of seconds, 0 or more"),
    ({"deliver_after": math.nan}, "deliver_after=nan is not allowed: a number of seconds, 0 or more"),
    ({"deliver_after": math.inf}, "deliver_after=inf is not allowed: a number of seconds, 0 or more"),
    ({"deliver_after": 2**63 // 1000}, "deliver_after=9223372036854775 is not allowed"),
    ({"deliver_after": 10**400}, "deliver_after=10+ is not allowed"),
    ({"deliver_after": False}, "deliver_after=False is not allowed"),
    ({"deliver_after": "5"}, "deliver_after='5' is not allowed"),
    ({"deliver_after": timedelta(1)}, r"deliver_after=datetime.*durations are seconds: 86400.0\?"),
    ({"deliver_after": 5, "deliver_at": 7}, "deliver_after=5 is not allowed: None with deliver_at=7"),
    ({"deliver_after": 0, "deliver_at": 0}, "deliver_after=0 is not allowed: None with deliver_at=0"),
    ({"ordering_key": "text"}, r"ordering_key='text' is not allowed: bytes .*ordering_key\.encode\(\)"),
    ({"ordering_key": 5}, "ordering_key=5 is not allowed: bytes or None"),
    ({"ordering_key": bytearray(b"k")}, "ordering_key=bytearray"),
    (
        {"deliver_at": 5, "headers": [("a", b""), (DELIVER_AT, b"5")]},
        "headers='ag-deliver-at' is not allowed: the header of deliver_at or deliver_after",
    ),
    ({"deliver_after": 5, "headers": [[DELIVER_AT, None]]}, "headers='ag-deliver-at' is not allowed"),
    (
        {"ordering_key": b"k", "headers": ((ORDERING_KEY, b"k"),)},
        "headers='ag-ordering-key' is not allowed: the header of ordering_key",
    ),
]
WRONG_HEADERS: list[Any] = [None, 5, "", {}, set(), iter([]), [None], ["ab"], [("a",)], [(b"a", b"b")]]
WRONG += [({"deliver_at": 5, "headers": wrong}, "headers=") for wrong in WRONG_HEADERS]


@pytest.mark.parametrize("options", [{}, LIMITS, CHUNKS], ids=["plain", "limits", "chunks"])
async def test_invalid_arguments_reserve_no_memory(options: dict[str, Any]) -> None:
    async with writing(**options) as (cluster, producer):
        for arguments, message in WRONG:
            for call in calls_of(producer, **arguments):
                with pytest.raises(InvalidRecordError, match=message):
                    await call()
        await producer.flush()
        assert producer._inner.memory.used == 0
        assert not produced(cluster)


async def test_headers_are_accepted_without_the_argument_that_writes_them() -> None:
    """As `enqueue_all` needs it, whose records have no such arguments, and as a copy of a record has them."""
    async with writing() as (cluster, producer):
        due, ordering = (DELIVER_AT, b"5"), (ORDERING_KEY, b"k")
        await producer.send(TOPIC, b"x", headers=[due, ordering])
        await producer.send(TOPIC, b"x", headers=[due], ordering_key=b"k")
        await producer.enqueue_all([(TOPIC, b"x", None, [due, ordering], None, None)])
        await producer.flush()
        assert headers_in(cluster) == [[due, ordering]] * 3


@pytest.mark.parametrize("stamp", ["now", 2**63, ValueError("mine")])
async def test_a_clock_that_raises_or_returns_no_time(stamp: Any) -> None:
    def clock() -> Any:
        if isinstance(stamp, Exception):
            raise stamp
        return stamp

    async with writing(clock=clock) as (_, producer):
        for call in calls_of(producer, deliver_after=1, timestamp=1):
            with pytest.raises((TypeError, ValueError)):
                await call()
        await producer.send(TOPIC, b"x", deliver_at=1, timestamp=1)
        assert producer._inner.memory.used == 0


# --- interceptors and transactions -------------------------------------------------------------------------------------


async def test_interceptors_get_the_headers_and_may_change_them() -> None:
    class Sooner(Interceptor):
        def on_send(self, record: ProducerRecord) -> ProducerRecord:
            seen.append(list(record.headers))
            return record._replace(headers=[("seen", b""), *record.headers[:1]])

    seen: list[Any] = []
    async with EmbeddedCluster(nodes=1, seed=1) as cluster:
        cluster.create_topic(TOPIC, 1)
        async with Producer(
            cluster.bootstrap_servers, ProducerConfig(**QUICK), interceptors=[Sooner()], clock=lambda: NOW
        ) as producer:
            for call in calls_of(producer, deliver_after=1, ordering_key=b"k"):
                await call()
            await producer.flush()
            with pytest.raises(InvalidRecordError, match="deliver_after"):
                await producer.send(TOPIC, b"x", deliver_after=-1)
        assert seen == [[(ORDERING_KEY, b"k"), (DELIVER_AT, b"%d" % (NOW + 1000))]] * 3
        assert headers_in(cluster) == [[("seen", b""), (ORDERING_KEY, b"k")]] * 3


async def test_records_of_a_transaction() -> None:
    async with transacting() as (cluster, producer):
        async with producer.transaction():
            for call in calls_of(producer, deliver_at=5, ordering_key=b"k"):
                await call()
        with pytest.raises(ZeroDivisionError):
            async with producer.transaction():
                await producer.send(TOPIC, b"aborted", deliver_at=5)
                raise ZeroDivisionError
        assert committed(cluster) == [b"x"] * 3
        found = [list(record.headers) for record in cluster.records(TOPIC) if record.value == b"x"]
        assert found == [[(ORDERING_KEY, b"k"), (DELIVER_AT, b"5")]] * 3


async def test_the_output_of_a_transform_function() -> None:
    written = asyncio.Event()

    async def transform(_batch: Batch, output: TransactionOutput) -> None:
        for call in calls_of(output, deliver_at=NEW_YEAR, ordering_key=b"k"):
            await call()
        with pytest.raises(InvalidRecordError, match="deliver_after=-1"):
            await output.enqueue(TOPIC, b"x", deliver_after=-1)
        written.set()

    async with cluster_with_topics(1) as cluster:
        cluster.produce(INPUT, b"in", partition=0)
        config = ConsumerConfig(auto_offset_reset="earliest", isolation_level="read_committed")
        async with ConsumerGroup(cluster.bootstrap_servers, "g", config) as group:
            running = asyncio.create_task(group.run(INPUT, ConsumeTransformProduce(transform)))
            await written.wait()
            await group.aclose()
            await running
        assert committed(cluster) == [b"x"] * 3
        expected = [(ORDERING_KEY, b"k"), (DELIVER_AT, b"%d" % NEW_YEAR_MS)]
        assert headers_in(cluster) == [expected] * 3


@pytest.mark.parametrize("name", ["send", "send_nowait", "enqueue"])
def test_a_transform_functions_output_has_the_producers_arguments(name: str) -> None:
    ours, theirs = (inspect.signature(getattr(kind, name)) for kind in (Producer, TransactionOutput))
    assert ours == theirs
    assert {"ordering_key", "deliver_at", "deliver_after"} <= set(ours.parameters)
    assert ["self", "topic", "value", *SendOptions.__annotations__] == list(ours.parameters)


# --- times, as a pure function -----------------------------------------------------------------------------------------


def due_of(**arguments: Any) -> int:
    """Return the delivery time in the header."""
    times = {"deliver_at": None, "deliver_after": None, **arguments}
    [(name, content)] = add_delivery_headers((), None, clock=lambda: NOW, **times)
    assert name == DELIVER_AT
    return int(content or b"")


@given(st.datetimes(min_value=datetime(1970, 1, 2), timezones=st.timezones()))  # noqa: DTZ001
def test_a_datetime_is_rounded_up_to_the_next_millisecond(time: datetime) -> None:
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    exact = Fraction((time - epoch) // timedelta(microseconds=1), 1000)
    assert due_of(deliver_at=time) == math.ceil(exact)


@given(st.one_of(st.integers(0, 10**12), st.floats(0, 1e9)))
def test_a_delay_is_rounded_up_but_for_the_error_of_the_float(seconds: float) -> None:
    late = due_of(deliver_after=seconds) - NOW - Fraction(seconds) * 1000
    error = Fraction(1, 10**6) + Fraction(seconds) * 1000 / 2**52
    assert -error <= late < 1 + error


@given(st.integers(0, 10**9))
def test_a_delay_of_whole_milliseconds_is_exact(milliseconds: int) -> None:
    assert due_of(deliver_after=milliseconds / 1000) == NOW + milliseconds
