"""ClientMetrics on the embedded broker, in virtual time: what is counted, and which series exist when."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import pytest_asyncio

from asyncgroup import (
    Claim,
    ConsumerConfig,
    ConsumerGroup,
    Delivery,
    Producer,
    ProducerConfig,
    Session,
    WorkQueue,
)
from asyncgroup.broker import EmbeddedCluster
from asyncgroup.errors import BrokerError, GroupClosed
from asyncgroup.model import BatchResult
from asyncgroup.telemetry import ClientMetrics, Readings
from tests.stories.holding import mark_all

EARLIEST = ConsumerConfig(auto_offset_reset="earliest")


@pytest_asyncio.fixture
async def broker() -> AsyncIterator[EmbeddedCluster]:
    async with EmbeddedCluster(nodes=1, seed=1) as cluster:
        cluster.create_topic("orders", 4)
        yield cluster


async def write(broker: EmbeddedCluster, count: int, **options: Any) -> None:
    async with Producer(broker.bootstrap_servers, **options) as producer:
        await asyncio.gather(*(producer.send("orders", b"%d" % n, partition=n % 4) for n in range(count)))


@asynccontextmanager
async def consuming(
    broker: EmbeddedCluster,
    metrics: ClientMetrics,
    handler: Any = mark_all,
    config: ConsumerConfig = EARLIEST,
    *hooks: object,
) -> AsyncIterator[ConsumerGroup]:
    async with ConsumerGroup(broker.bootstrap_servers, "g", config, hooks=[metrics, *hooks]) as group:
        running = asyncio.create_task(group.run("orders", handler))
        yield group
        await group.aclose()
        await running


def value(readings: Readings, name: str, *labels: str) -> float:
    return readings.numbers[name][labels]


# --- consumer groups ----------------------------------------------------------------------------------------------------


async def one_by_one(session: Session, claim: Claim) -> None:
    async for record in claim:
        claim.mark(record)


async def in_batches(session: Session, claim: Claim) -> None:
    async for batch in claim.batches(max_records=7):
        claim.mark(batch)


@pytest.fixture
def metrics() -> ClientMetrics:
    """Metrics of clients."""
    return ClientMetrics()


@pytest.mark.parametrize("handler", [one_by_one, in_batches])
@pytest.mark.parametrize("chunks", ["as_is", "assemble"])
async def test_records_and_bytes_are_those_that_handlers_were_given(
    metrics: ClientMetrics, broker: EmbeddedCluster, handler: Any, chunks: Any
) -> None:
    await write(broker, 403)
    config = ConsumerConfig(auto_offset_reset="earliest", chunks=chunks)
    async with consuming(broker, metrics, handler, config):
        await asyncio.sleep(10)
        live = metrics.read()
    ended = metrics.read()
    for readings in (live, ended):  # the counters of claims that have ended stay
        assert value(readings, "records_consumed_total", "g", "orders") == 403
        assert value(readings, "bytes_consumed_total", "g", "orders") > 403
    assert value(live, "lag_sum", "g") == value(live, "lag_max", "g") == 0
    assert value(live, "buffer_bytes", "g") == 0


async def test_chunks_that_are_put_together_are_one_record(broker: EmbeddedCluster) -> None:
    metrics = ClientMetrics()
    config = ProducerConfig(chunking=True, max_chunk_size=1024)
    async with Producer(broker.bootstrap_servers, config) as producer:
        await producer.send("orders", bytes(4000), partition=0)
        await producer.send("orders", b"small", partition=0)
    assert len(broker.records("orders")) > 3
    consumer = ConsumerConfig(auto_offset_reset="earliest", chunks="assemble")
    async with consuming(broker, metrics, one_by_one, consumer):
        await asyncio.sleep(10)
    assert value(metrics.read(), "records_consumed_total", "g", "orders") == 2


async def test_a_claim_that_stops_in_a_batch_counts_what_it_was_given(broker: EmbeddedCluster) -> None:
    metrics = ClientMetrics()
    await write(broker, 40)

    async def some(session: Session, claim: Claim) -> None:
        for _ in range(3):
            await anext(claim)
        await claim.wait_ended()

    async with consuming(broker, metrics, some):
        await asyncio.sleep(10)
        readings = metrics.read()
    assert value(readings, "records_consumed_total", "g", "orders") == 12
    assert value(readings, "lag_sum", "g") == 28
    assert value(readings, "lag_max", "g") == 7
    assert value(readings, "assigned_partitions", "g") == 4
    assert value(readings, "stalled_claims", "g") == 4
    assert value(readings, "buffer_bytes", "g") > 0


async def test_records_that_are_read_again_after_a_seek_count_again(broker: EmbeddedCluster) -> None:
    metrics = ClientMetrics()
    await write(broker, 40)

    async def twice(session: Session, claim: Claim) -> None:
        for _ in range(5):
            await anext(claim)
        claim.seek(0)
        await mark_all(session, claim)

    async with consuming(broker, metrics, twice):
        await asyncio.sleep(10)
        assert value(metrics.read(), "records_consumed_total", "g", "orders") == 4 * (5 + 10)


async def test_heartbeats_fetches_commits_and_connections(broker: EmbeddedCluster) -> None:
    metrics = ClientMetrics()
    await write(broker, 8)
    async with consuming(broker, metrics):
        await asyncio.sleep(30)
        readings = metrics.read()
    assert value(readings, "healthy", "g") == 1
    assert 0 <= value(readings, "heartbeat_age_seconds", "g") <= 3.1
    assert readings.histograms["heartbeat_seconds"]["g",].count >= 9
    assert value(readings, "commits_total", "g") == 1  # the next ones have nothing to commit
    assert (
        readings.histograms["commit_seconds"][()].count
        == value(readings, "requests_total", "OffsetCommit")
        == 1
    )
    assert readings.histograms["fetch_seconds"][()].count == value(readings, "requests_total", "Fetch")
    assert value(readings, "fetched_bytes_total") > 0
    assert value(readings, "connections") >= 3
    closed = metrics.read()
    assert value(closed, "connections") == 0
    assert value(closed, "connects_total") >= 3


async def test_failed_commits_are_counted_by_partition_and_error(broker: EmbeddedCluster) -> None:
    metrics = ClientMetrics()
    await write(broker, 8)
    broker.faults.on("OffsetCommit").error("GROUP_AUTHORIZATION_FAILED")
    async with consuming(broker, metrics):
        await asyncio.sleep(30)
        readings = metrics.read()
    assert value(readings, "commit_failures_total", "g", "GROUP_AUTHORIZATION_FAILED") >= 4


async def test_gauges_end_with_the_client_and_counters_stay(broker: EmbeddedCluster) -> None:
    metrics = ClientMetrics(partitions=True)
    await write(broker, 8, hooks=[metrics])
    assert metrics.read().numbers["producer_buffer_bytes"] == {}
    async with consuming(broker, metrics) as group:
        await asyncio.sleep(10)
        assert repr(metrics) == "<ClientMetrics of 'g', 0 producers>"
        lags = metrics.read().numbers["lag"]
        assert lags == {("g", "orders", str(number)): 0 for number in range(4)}
    assert group.health().state == "closed"
    readings = metrics.read()
    gauges = {
        name: values for name, values in readings.numbers.items() if not name.endswith("_total") and values
    }
    assert gauges == {"connections": {(): 0}}
    assert value(readings, "records_consumed_total", "g", "orders") == 8
    assert value(readings, "rebalances_total", "g", "GroupClosed") == 1
    assert repr(metrics) == "<ClientMetrics of no open group, 0 producers>"


class Scrapes:
    """Reads the pages of two members whenever anything changes in one of them."""

    def __init__(self, *pages: ClientMetrics) -> None:
        self.pages = pages
        self.twice: set[object] = set()
        self.seen: set[tuple[int, ...]] = set()

    def scrape(self, *_: object) -> None:
        lags = [set(page.read().numbers["lag"]) for page in self.pages]
        self.twice |= set.intersection(*lags)
        self.seen.add(tuple(map(len, lags)))

    on_handler_start = on_handler_end = on_join = on_commit = on_heartbeat = scrape


@pytest.mark.parametrize(
    ("protocol", "assignors"),
    [
        ("classic", "cooperative-sticky"),
        pytest.param("classic", "range", marks=pytest.mark.full),
        pytest.param("consumer", None, marks=pytest.mark.full),
    ],
)
async def test_no_partition_has_two_series_over_five_rebalances(
    broker: EmbeddedCluster, protocol: Any, assignors: Any
) -> None:
    """Two members in two processes, as Prometheus sees them: a page each, read at the same time."""
    options: dict[str, Any] = {} if assignors is None else {"assignors": assignors}
    config = ConsumerConfig(auto_offset_reset="earliest", group_protocol=protocol, **options)
    await write(broker, 40)
    stays, comes = ClientMetrics(partitions=True), ClientMetrics(partitions=True)
    scrapes = Scrapes(stays, comes)
    async with consuming(broker, stays, mark_all, config, scrapes):
        await asyncio.sleep(10)
        for _ in range(3):  # a rebalance at each begin, and at each end
            async with consuming(broker, comes, mark_all, config, scrapes):
                await asyncio.sleep(20)
            await asyncio.sleep(20)
        readings = stays.read()
    assert scrapes.twice == set()
    assert {(4, 0), (2, 2)} <= scrapes.seen
    causes = {cause: count for (_, cause), count in readings.numbers["rebalances_total"].items()}
    if assignors == "range":
        assert causes["Rebalanced"] >= 5
        assert readings.histograms["rebalance_seconds"]["g",].count >= 5
    elif protocol == "classic":
        assert causes["Incremental"] >= 5
    assert value(readings, "records_consumed_total", "g", "orders") >= 10


async def test_two_members_in_one_process_are_one_sum(broker: EmbeddedCluster) -> None:
    metrics = ClientMetrics(partitions=True)
    await write(broker, 40)
    async with consuming(broker, metrics), consuming(broker, metrics):
        await asyncio.sleep(30)
        readings = metrics.read()
    assert value(readings, "assigned_partitions", "g") == 4
    assert value(readings, "healthy", "g") == 1
    assert len(readings.numbers["lag"]) == 4
    assert value(readings, "records_consumed_total", "g", "orders") == 40


async def test_stalls_of_the_member(metrics: ClientMetrics) -> None:
    metrics.on_member_stalled("g", "event loop", 2.5, "blocked")
    metrics.on_member_stalled("g", "event loop", 1.5, "blocked")
    metrics.on_member_stalled("g", "join", 10.0, "waits")
    readings = metrics.read()
    assert readings.numbers["member_stalls_total"] == {("g", "event loop"): 2, ("g", "join"): 1}
    assert readings.numbers["loop_blocked_seconds_total"] == {("g",): 4.0}


async def test_an_end_without_a_start_changes_nothing_else(metrics: ClientMetrics) -> None:
    """A hook of a Cluster may be added to one whose sessions run already."""
    session: Any = type("Session", (), {"group_id": "g"})()
    claim: Any = object()
    metrics.on_session_end(session, GroupClosed("closed"))
    metrics.on_handler_end(session, claim, None)
    metrics.on_join("g", "m", 2, False)
    assert metrics.read().numbers["rebalances_total"] == {("g", "GroupClosed"): 1}


# --- producers ----------------------------------------------------------------------------------------------------------


async def test_batches_of_a_producer(metrics: ClientMetrics, broker: EmbeddedCluster) -> None:
    async with Producer(broker.bootstrap_servers, ProducerConfig(linger=0.01), hooks=[metrics]) as producer:
        sends = [asyncio.create_task(producer.send("orders", b"value", partition=0)) for _ in range(12)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert value(metrics.read(), "producer_buffer_bytes") > 0
        await asyncio.gather(*sends)
        readings = metrics.read()
    assert value(readings, "producer_buffer_bytes") == 0
    assert value(readings, "records_sent_total", "orders") == 12
    assert value(readings, "bytes_sent_total", "orders") > 12 * 5
    assert readings.histograms["batch_records"][()].sum == 12
    assert readings.histograms["send_seconds"][()].sum > 0


async def test_records_that_failed_are_counted_by_error(metrics: ClientMetrics) -> None:
    for error in (BrokerError(29, "x"), ValueError("y"), ValueError("z")):
        metrics.on_batch_done(BatchResult("orders", 0, 3, 100, 90, 1.0, 1, -1, error))
    readings = metrics.read()
    assert readings.numbers["record_errors_total"] == {
        ("orders", "TOPIC_AUTHORIZATION_FAILED"): 3,
        ("orders", "ValueError"): 6,
    }
    assert readings.numbers["records_sent_total"] == {}


# --- work queues --------------------------------------------------------------------------------------------------------


async def test_deliveries_of_a_work_queue(broker: EmbeddedCluster) -> None:
    metrics = ClientMetrics(partitions=True)
    await write(broker, 20)
    blocked = asyncio.Event()

    async def handle(delivery: Delivery) -> None:
        number = int(delivery.record.value or b"")
        if number == 7:
            raise ValueError("always")
        if number == 8:
            await blocked.wait()

    async with WorkQueue(
        broker.bootstrap_servers,
        "q",
        "orders",
        config=EARLIEST,
        dead_letter=2,
        concurrency=3,
        hooks=[metrics],
    ) as queue:
        running = asyncio.create_task(queue.run(handle))
        await asyncio.sleep(200)
        metrics.read()
        await asyncio.sleep(7)
        busy = metrics.read()
        blocked.set()
        await asyncio.sleep(20)
        await queue.aclose()
        await running
    closed = metrics.read()
    assert value(busy, "acquired", "q") == value(busy, "busy_handlers", "q") == 1
    assert value(busy, "oldest_open_seconds", "q") == pytest.approx(7, abs=0.01)
    assert value(busy, "queue_lag", "q") == 1
    assert value(busy, "window_bytes_max", "q") > 0
    assert max(busy.numbers["window_bytes"].values()) == value(busy, "window_bytes_max", "q")
    assert value(busy, "assigned_partitions", "q") == 4
    assert value(busy, "healthy", "q") == 1
    assert set(busy.numbers["window_bytes"]) == {("q", "orders", str(number)) for number in range(4)}
    outcomes = {outcome: count for (_, outcome), count in closed.numbers["deliveries_total"].items()}
    assert outcomes == {"acknowledged": 19, "nacked": 3, "expired": 0, "retry": 0, "dead letter": 1}
    assert value(closed, "dead_letters_total", "q") == 1
    assert value(closed, "deliveries_started_total", "q") == 22
    assert (
        closed.numbers["acquired"]
        == closed.numbers["oldest_open_seconds"]
        == closed.numbers["window_bytes_max"]
        == {}
    )
    assert metrics.read().numbers["deliveries_total"] == closed.numbers["deliveries_total"]
