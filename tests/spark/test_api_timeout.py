"""`kafka.default.api.timeout.ms` and `kafka.max.block.ms` limit how long queries wait for brokers, in virtual time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import pytest_asyncio

from asyncgroup import Cluster, Producer
from asyncgroup.broker import EmbeddedCluster
from asyncgroup.cluster.requests.time_limit import within
from asyncgroup.errors import AsyncGroupError, NoBrokersError
from asyncgroup.spark.sink.producer_cache import open_retrying
from asyncgroup.spark.sink.transactions.kafka import KafkaTransactions
from asyncgroup.spark.sink.transactions.records import BatchRecord, QueryBatch, SlotTransaction
from asyncgroup.spark.sink.write_settings import WriteSettings, write_settings
from asyncgroup.spark.source.errors import SourceError
from asyncgroup.spark.source.options.parser import read_settings
from asyncgroup.spark.source.options.settings import Latest
from tests.spark.source.driver_support import TOPIC, VirtualQuery, offsets

pytestmark = pytest.mark.virtual

LIMIT = 3.0
TOLERANCE = 0.01
BATCH = QueryBatch("q", 0)
OPEN = SlotTransaction(0, 1000, 0, 2)


@pytest_asyncio.fixture
async def broker() -> AsyncIterator[EmbeddedCluster]:
    async with EmbeddedCluster(1, seed=1) as cluster:
        cluster.create_topic(TOPIC, 1)
        cluster.produce(TOPIC, b"v", partition=0)
        yield cluster


async def make_unreachable(broker: EmbeddedCluster, how: str) -> None:
    """Let each connection be refused, or accepted without a response."""
    if how == "refused":
        await broker.stop_node(1)
    else:
        broker.faults.on("ApiVersions", times=None).drop()


def sink_settings(broker: EmbeddedCluster, **options: str) -> WriteSettings:
    named = {name.replace("_", "."): value for name, value in options.items()}
    return write_settings({"kafka.bootstrap.servers": broker.bootstrap_servers, "topic": TOPIC, **named})


async def failing(work: Awaitable[Any], kind: type[AsyncGroupError]) -> tuple[float, str]:
    """Await work that fails; return its seconds and the text of the error."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    with pytest.raises(kind) as caught:
        await work
    return loop.time() - began, str(caught.value)


@pytest.mark.parametrize("how", ["refused", "silent"])
@pytest.mark.parametrize("options", [
    {"kafka_default_api_timeout_ms": "3000"},
    {"kafka_max_block_ms": "3000", "kafka_default_api_timeout_ms": "90000"},
])  # fmt: skip
async def test_a_sink_without_a_broker(broker: EmbeddedCluster, how: str, options: dict[str, str]) -> None:
    await make_unreachable(broker, how)
    settings = sink_settings(broker, **options)
    opening = open_retrying(settings, lambda: Producer(settings.bootstrap_servers, settings.config))
    took, text = await failing(opening, NoBrokersError)
    assert took <= LIMIT + TOLERANCE
    reason = "Connection refused" if how == "refused" else "no answer in time"
    assert f"within 3 s ({settings.timeout_option})" in text
    assert settings.timeout_option.replace(".", "_") == next(iter(options))
    assert reason in text


async def test_the_last_attempt_is_cut_at_the_default_too(broker: EmbeddedCluster) -> None:
    """It began shortly before the end of the 60 s, and took the 10 s of a connection."""
    await make_unreachable(broker, "silent")
    settings = sink_settings(broker)
    opening = open_retrying(settings, lambda: Cluster(settings.bootstrap_servers, settings.config))
    took, _ = await failing(opening, NoBrokersError)
    assert 50.0 < took <= 60.0 + TOLERANCE


async def enter(client: KafkaTransactions) -> None:
    async with contextlib.AsyncExitStack() as stack:
        await client.enter(stack, client.producer(0))


REQUESTS: dict[str, Callable[[KafkaTransactions], Awaitable[Any]]] = {
    "OffsetFetch": lambda client: client.read_record(),
    "OffsetCommit": lambda client: client.store_record(BatchRecord(BATCH, 1, (1,), (OPEN,), TOPIC)),
    "InitProducerId": enter,
    "DescribeTransactions": lambda client: client.slots_not_open([OPEN]),
    "ListTransactions": lambda client: client.open_slots(),
    "EndTxn": lambda client: client.end(OPEN, commit=True),
    "FindCoordinator": lambda client: client.abort_slot(0),
}


@pytest.mark.parametrize("api", REQUESTS)
async def test_requests_of_transactions(broker: EmbeddedCluster, api: str) -> None:
    settings = sink_settings(broker, kafka_max_block_ms="3000")
    broker.faults.on(api, times=None).drop()
    async with Cluster(settings.bootstrap_servers, settings.config) as cluster:
        client = KafkaTransactions(cluster, settings.config, "copy", settings.api_timeout)
        took, _ = await failing(REQUESTS[api](client), AsyncGroupError)
    assert took <= LIMIT + TOLERANCE


@pytest.mark.parametrize("how", ["refused", "silent"])
async def test_a_source_without_a_broker(broker: EmbeddedCluster, how: str) -> None:
    options = {"kafka.bootstrap.servers": broker.bootstrap_servers, "subscribe": TOPIC}
    settings = read_settings({**options, "kafka.default.api.timeout.ms": "3000"}, stream=True)
    assert settings.api_timeout == LIMIT
    await make_unreachable(broker, how)
    query = VirtualQuery(broker, api_timeout=settings.api_timeout)
    took, text = await failing(query.lookups.open(), SourceError)
    assert took <= LIMIT + TOLERANCE
    assert text.startswith("[ASYNCGROUP_BROKERS_UNREACHABLE]")
    assert text.endswith("(within 3 s: kafka.default.api.timeout.ms).")
    await query.lookups.aclose()


async def test_each_attempt_of_a_lookup_takes_at_most_twice_the_limit(broker: EmbeddedCluster) -> None:
    async with VirtualQuery(broker, api_timeout=LIMIT, starting=Latest(), offset_retries=3) as query:
        broker.faults.on("ListOffsets", times=None).drop()
        took, _ = await failing(query.initial(), AsyncGroupError)
    assert took <= 3 * 2 * LIMIT


async def test_a_short_limit_does_not_fail_a_query_with_an_unavailable_partition(
    broker: EmbeddedCluster,
) -> None:
    """A run of availableNow leaves it to the next one after 30 s, or after the limit if that is shorter."""
    async with VirtualQuery(broker, api_timeout=LIMIT) as query:
        start = await query.initial()
        broker.faults.on("ListOffsets", times=None).drop()
        await query.prepare()
        assert await query.end(start) == start == offsets(0)


async def test_work_that_ends_in_time() -> None:
    deadline = asyncio.get_running_loop().time() + LIMIT
    assert await within(deadline, asyncio.sleep(1, "done")) == "done"

    async def own() -> None:
        raise TimeoutError("of the work")

    with pytest.raises(TimeoutError, match="of the work"):
        await within(deadline, own())
