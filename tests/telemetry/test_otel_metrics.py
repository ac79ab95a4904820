"""OpenTelemetry's instruments have the values of ClientMetrics, in the loop and from a reader's thread."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from asyncgroup import Claim, ConsumerConfig, ConsumerGroup, Delivery, Producer, Session, WorkQueue
from asyncgroup.broker import EmbeddedCluster
from asyncgroup.errors import BrokerError
from asyncgroup.telemetry import METRICS, ClientMetrics, OpenTelemetryMetrics
from asyncgroup.telemetry.otel.metrics import attribute_name, instrument_name
from asyncgroup.telemetry.thread_reads import read_from_any_thread
from asyncgroup.workqueue import GroupSource
from tests.stories.holding import mark_all

CONFIG = ConsumerConfig(auto_offset_reset="earliest", close_timeout=5.0)

Series = dict[frozenset[tuple[str, Any]], Any]


class Meters:
    """A provider with a reader in memory, and the hooks that use it."""

    def __init__(self, **arguments: Any) -> None:
        self.reader = InMemoryMetricReader()
        self.provider = MeterProvider([self.reader], shutdown_on_exit=False)
        self.metrics = OpenTelemetryMetrics(self.provider, **arguments)

    def collect(self) -> dict[str, Series]:
        """Collect; fail if a series is there twice."""
        found: dict[str, Series] = {}
        data = self.reader.get_metrics_data()
        for resource in () if data is None else data.resource_metrics:
            for scope in resource.scope_metrics:
                assert scope.scope.name == "asyncgroup"
                assert scope.schema_url == "https://opentelemetry.io/schemas/1.44.0"
                for metric in scope.metrics:
                    assert metric.name not in found
                    series = found[metric.name] = {}
                    for point in metric.data.data_points:
                        key = frozenset((point.attributes or {}).items())
                        assert key not in series
                        series[key] = point
        return found


def numbers(series: Series) -> dict[tuple[Any, ...], float]:
    """Return values by the sorted values of the attributes."""
    return {tuple(sorted(str(value) for _, value in key)): point.value for key, point in series.items()}


def key(**labels: str) -> frozenset[tuple[str, str]]:
    return frozenset((attribute_name(name), value) for name, value in labels.items())


@asynccontextmanager
async def broker_with_records(count: int, meters: Meters | None = None) -> AsyncIterator[EmbeddedCluster]:
    async with EmbeddedCluster(nodes=1, seed=1) as broker:
        broker.create_topic("orders", 4)
        hooks = [] if meters is None else [meters.metrics]
        async with Producer(broker.bootstrap_servers, hooks=hooks) as producer:
            for number in range(count):
                await producer.enqueue("orders", b"%d" % number, partition=number % 4)
        yield broker


@asynccontextmanager
async def consuming(broker: EmbeddedCluster, meters: Meters, handler: Any) -> AsyncIterator[None]:
    async with ConsumerGroup(broker.bootstrap_servers, "billing", CONFIG, hooks=[meters.metrics]) as group:
        running = asyncio.create_task(group.run("orders", handler))
        yield
        await group.aclose()
        await running


async def read_batches(session: Session, claim: Claim) -> None:
    async for batch in claim.batches(max_records=10):
        await asyncio.sleep(0.1)
        claim.mark(batch)


# --- the same values as the table -------------------------------------------------------------------------------------------


async def test_each_observed_value_is_that_of_the_readings() -> None:
    meters = Meters(partitions=True)
    async with broker_with_records(40, meters) as broker, consuming(broker, meters, mark_all):
        await asyncio.sleep(10.0)
        collected, readings = meters.collect(), meters.metrics.read()
    compared = 0
    for name, values in readings.numbers.items():
        metric = METRICS[name]
        series = collected.get(instrument_name(metric), {})
        expected = {
            key(**dict(zip(metric.labels, labels, strict=True))): value for labels, value in values.items()
        }
        assert {attributes: point.value for attributes, point in series.items()} == expected, name
        compared += len(expected)
    assert compared > 30
    assert collected["asyncgroup.records_consumed"][key(group="billing", topic="orders")].value == 40
    lags = collected["asyncgroup.lag"]
    assert set(lags) == {key(group="billing", topic="orders", partition=str(number)) for number in range(4)}


async def test_instruments_of_the_semantic_conventions() -> None:
    meters = Meters()
    async with broker_with_records(40, meters) as broker, consuming(broker, meters, read_batches):
        await asyncio.sleep(10.0)
        async with Producer(broker.bootstrap_servers, hooks=[meters.metrics]) as producer:
            broker.faults.on("Produce").error("TOPIC_AUTHORIZATION_FAILED")
            with pytest.raises(BrokerError):
                await producer.send("orders", b"", partition=0)
        found = meters.collect()
    system = {"messaging.system": "kafka", "messaging.destination.name": "orders"}
    (consumed,) = found["messaging.client.consumed.messages"].items()
    assert dict(consumed[0]) == system | {
        "messaging.operation.name": "poll",
        "messaging.consumer.group.name": "billing",
    }
    assert consumed[1].value == 40
    assert {
        dict(attributes).get("error.type", ""): point.value
        for attributes, point in found["messaging.client.sent.messages"].items()
    } == {"": 40, "TOPIC_AUTHORIZATION_FAILED": 1}
    durations = found["messaging.client.operation.duration"]
    assert {dict(attributes)["messaging.operation.name"] for attributes in durations} == {
        "send",
        "poll",
        "commit",
    }
    sends = [
        (dict(attributes), point.count)
        for attributes, point in durations.items()
        if ("messaging.operation.name", "send") in attributes
    ]
    operation = {"messaging.operation.name": "send", "messaging.operation.type": "send"}
    assert ({**system, **operation}, 4) in sends
    assert ({**system, **operation, "error.type": "TOPIC_AUTHORIZATION_FAILED"}, 1) in sends
    assert len(sends) == 2
    ((attributes, process),) = found["messaging.process.duration"].items()
    assert dict(attributes)["messaging.consumer.group.name"] == "billing"
    assert process.count == 4
    assert process.sum == pytest.approx(0.4)


async def test_histograms_of_the_table() -> None:
    meters = Meters()
    async with broker_with_records(40, meters) as broker, consuming(broker, meters, mark_all):
        await asyncio.sleep(10.0)
        found, readings = meters.collect(), meters.metrics.read()
    for name, labels in (("heartbeat_seconds", {"group": "billing"}), ("batch_records", {})):
        point = found[instrument_name(METRICS[name])][key(**labels)]
        (histogram,) = readings.histograms[name].values()
        assert point.count == histogram.count > 0
        assert point.sum == pytest.approx(histogram.sum)
        assert list(point.bucket_counts) == histogram.counts
        assert tuple(point.explicit_bounds) == METRICS[name].bounds


# --- which series exist -------------------------------------------------------------------------------------------------------


@pytest.mark.full
async def test_two_members_over_rebalances_show_no_series_twice() -> None:
    meters = Meters(partitions=True)
    first = {key(group="billing", topic="orders", partition=str(number)) for number in range(4)}
    async with broker_with_records(40) as broker, consuming(broker, meters, mark_all):
        await asyncio.sleep(10.0)
        for _ in range(5):
            async with consuming(broker, meters, mark_all):
                for _ in range(20):
                    await asyncio.sleep(0.5)
                    found = meters.collect()
                    assert set(found.get("asyncgroup.lag", {})) <= first
                assert set(found["asyncgroup.lag"]) == first
                assert found["asyncgroup.assigned_partitions"][key(group="billing")].value == 4
            await asyncio.sleep(10.0)
        assert set(meters.collect()["asyncgroup.lag"]) == first


async def test_the_series_of_a_claim_end_with_it_and_counters_stay() -> None:
    meters = Meters(partitions=True)
    async with broker_with_records(40) as broker:
        async with consuming(broker, meters, mark_all):
            await asyncio.sleep(10.0)
            assert len(meters.collect()["asyncgroup.lag"]) == 4
        found = meters.collect()
    assert not found.get("asyncgroup.lag")
    assert not found.get("asyncgroup.heartbeat_age")
    assert found["asyncgroup.records_consumed"][key(group="billing", topic="orders")].value == 40


@pytest.mark.full
async def test_a_work_queue() -> None:
    meters = Meters()

    async def handle(_: Delivery) -> None: ...

    async with broker_with_records(40) as broker:
        source = GroupSource(broker.bootstrap_servers, "billing", "orders", hooks=[meters.metrics])
        async with WorkQueue(source, initial_position="earliest") as queue:
            running = asyncio.create_task(queue.run(handle))
            await asyncio.sleep(10.0)
            found = meters.collect()
            await queue.aclose()
            await running
    assert found["asyncgroup.deliveries"][key(group="billing", outcome="acknowledged")].value == 40
    assert "messaging.process.duration" not in found  # nothing is done for a record


async def test_a_closed_object_observes_and_records_nothing() -> None:
    meters = Meters()
    meters.metrics.close()
    async with broker_with_records(4, meters) as broker, consuming(broker, meters, read_batches):
        await asyncio.sleep(10.0)
        assert not any(meters.collect().values())


def test_names_are_those_that_prometheus_shows_after_an_export() -> None:
    assert instrument_name(METRICS["records_consumed_total"]) == "asyncgroup.records_consumed"
    assert instrument_name(METRICS["fetched_bytes_total"]) == "asyncgroup.fetched"
    assert instrument_name(METRICS["heartbeat_age_seconds"]) == "asyncgroup.heartbeat_age"
    assert instrument_name(METRICS["lag_sum"]) == "asyncgroup.lag_sum"
    names = [instrument_name(metric) for metric in METRICS.values()]
    assert len(set(names)) == len(names)


# --- threads ------------------------------------------------------------------------------------------------------------------


def test_a_reader_in_another_thread_gets_the_values_from_the_loop() -> None:
    meters = Meters()
    threads = []

    async def main() -> tuple[dict[str, Series], dict[str, Series]]:
        read = meters.metrics.read

        def noting() -> Any:
            threads.append(threading.current_thread())
            return read()

        async with broker_with_records(4, meters):
            meters.metrics.read = noting  # type: ignore[method-assign]
            found = await asyncio.to_thread(meters.collect)
        return found, meters.collect()

    found, closed = asyncio.run(main())
    assert found["asyncgroup.records_sent"][key(topic="orders")].value == 4
    assert closed["asyncgroup.records_sent"][key(topic="orders")].value == 4
    assert set(threads) == {threading.main_thread()}
    # at the end of the program, after the loop
    assert meters.collect()["asyncgroup.records_sent"][key(topic="orders")].value == 4


def test_while_the_loop_is_blocked_nothing_is_observed() -> None:
    metrics = ClientMetrics()
    answers: list[object] = []

    async def main() -> None:
        metrics.loop = asyncio.get_running_loop()
        thread = threading.Thread(target=lambda: answers.append(read_from_any_thread(metrics, timeout=0.01)))
        thread.start()
        while thread.is_alive():
            time.sleep(0.001)  # this is the block

    asyncio.run(main())
    assert answers == [None]
    assert read_from_any_thread(metrics) is not None


def test_an_error_of_the_reading_is_raised_in_the_thread() -> None:
    metrics = ClientMetrics()

    def broken() -> Any:
        raise LookupError("a bug")

    async def main() -> None:
        metrics.loop = asyncio.get_running_loop()
        metrics.read = broken  # type: ignore[method-assign]
        await asyncio.to_thread(read_from_any_thread, metrics)

    with pytest.raises(LookupError, match="a bug"):
        asyncio.run(main())
