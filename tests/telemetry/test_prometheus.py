"""The page of Prometheus: its own parsers read it, in the loop's thread and in others."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from threading import Event
from typing import Any

import pytest
import pytest_asyncio

from asyncgroup import ConsumerConfig, ConsumerGroup, Delivery, Producer, WorkQueue
from asyncgroup.broker import EmbeddedCluster
from asyncgroup.telemetry import METRICS, ClientMetrics, PrometheusCollector, Readings, TelemetryUnavailable
from asyncgroup.telemetry.prometheus import MetricsPage
from asyncgroup.telemetry.readings import HistogramReading
from tests.stories.holding import mark_all

prometheus_client = pytest.importorskip("prometheus_client")
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics  # noqa: E402
from prometheus_client.parser import text_string_to_metric_families as parse_text  # noqa: E402

OPENMETRICS = "application/openmetrics-text; version=1.0.0,text/plain;q=0.5"
EARLIEST = ConsumerConfig(auto_offset_reset="earliest")


@pytest_asyncio.fixture
async def broker() -> AsyncIterator[EmbeddedCluster]:
    async with EmbeddedCluster(nodes=1, seed=1) as cluster:
        cluster.create_topic("orders", 2)
        yield cluster


def samples(page: str, parse: Any) -> dict[str, dict[tuple[str, ...], float]]:
    """Return the values of a page by name and by the values of the labels."""
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in parse(page):
        for sample in family.samples:
            series = found.setdefault(sample.name, {})
            names = (
                [*METRICS[_metric(sample.name)].labels, "le"]
                if sample.labels and _is_ours(sample.name)
                else []
            )
            labels = tuple(sample.labels[name] for name in names if name in sample.labels)
            assert labels not in series or not _is_ours(sample.name), sample
            series[labels] = sample.value
    return found


def _is_ours(name: str) -> bool:
    return name.startswith("asyncgroup_")


def _metric(sample: str) -> str:
    """Return the name in the table of a sample's name; a page sorts the labels by name, the table does not."""
    name = sample.removeprefix("asyncgroup_")
    endings = ("", "_bucket", "_sum", "_count", "_created")
    return next(name.removesuffix(end) for end in endings if name.removesuffix(end) in METRICS)


def expected(readings: Readings) -> dict[str, dict[tuple[str, ...], float]]:
    found = {f"asyncgroup_{name}": values for name, values in readings.numbers.items() if values}
    for name, histograms in readings.histograms.items():
        for labels, histogram in histograms.items():
            found.setdefault(f"asyncgroup_{name}_sum", {})[labels] = histogram.sum
            found.setdefault(f"asyncgroup_{name}_count", {})[labels] = histogram.count
    return found


async def test_parsers_of_prometheus_read_the_page_of_all_clients(broker: EmbeddedCluster) -> None:
    metrics = ClientMetrics(partitions=True)
    page = MetricsPage(metrics)

    async def handle(delivery: Delivery) -> None: ...

    servers = broker.bootstrap_servers
    async with (
        Producer(servers, hooks=[metrics]) as producer,
        ConsumerGroup(servers, 'g"\\\n', EARLIEST, hooks=[metrics]) as group,  # escaped in labels
        WorkQueue(servers, "q", "orders", config=EARLIEST, hooks=[metrics]) as queue,
    ):
        running = [asyncio.create_task(group.run("orders", mark_all)), asyncio.create_task(queue.run(handle))]
        await asyncio.gather(*(producer.send("orders", b"%d" % number) for number in range(50)))
        await asyncio.sleep(20)
        wanted = expected(metrics.read())
        for accept, parse in (("", parse_text), ("*/*", parse_text), (OPENMETRICS, parse_openmetrics)):
            content_type, text = page.render(accept)
            assert content_type.startswith("application/openmetrics" if "open" in accept else "text/plain")
            found = samples(text.decode(), parse)
            ours = {
                name: values
                for name, values in found.items()
                if name.startswith("asyncgroup_") and not name.endswith(("_bucket", "_created"))
            }
            assert ours == wanted
            assert found["asyncgroup_records_consumed_total"]['g"\\\n', "orders"] == 50
            assert "process_resident_memory_bytes" in found
        await group.aclose()
        await queue.aclose()
        await asyncio.gather(*running)
    after = samples(page.render("")[1].decode(), parse_text)
    assert after["asyncgroup_records_consumed_total"]["q", "orders"] == 50
    assert "asyncgroup_lag" not in after
    assert "asyncgroup_producer_buffer_bytes" not in after


def test_types_units_and_help_are_those_of_the_table() -> None:
    families = {family.name: family for family in PrometheusCollector(ClientMetrics()).collect()}
    assert len(families) == len(METRICS)
    for metric in METRICS.values():
        family = families[metric.full_name.removesuffix("_total")]
        assert (family.type, family.documentation) == (metric.kind, metric.help)
        assert family.unit == (
            metric.unit if metric.name.removesuffix("_total").endswith(metric.unit) else ""
        )
        assert family._labelnames == metric.labels


def test_buckets_are_cumulated() -> None:
    metrics = ClientMetrics()
    for seconds in (0.005, 0.006, 2.0, 99.0):
        metrics.on_heartbeat("g", seconds)
    page = MetricsPage(metrics).render("")[1].decode()
    found = samples(page, parse_text)["asyncgroup_heartbeat_seconds_bucket"]
    assert found["g", "0.005"] == 1
    assert found["g", "0.01"] == 2
    assert found["g", "2.5"] == 3
    assert found["g", "+Inf"] == 4
    assert math.isclose(samples(page, parse_text)["asyncgroup_heartbeat_seconds_sum"]["g",], 101.011)
    assert HistogramReading([1, 2]).count == 3


def test_a_registry_reads_nothing_at_the_registration_and_refuses_a_second_collector() -> None:
    class Unread(ClientMetrics):
        def read(self) -> Readings:
            raise AssertionError("read")

    registry = prometheus_client.CollectorRegistry(auto_describe=True)
    registry.register(PrometheusCollector(Unread()))
    with pytest.raises(ValueError, match="asyncgroup_records_consumed"):
        registry.register(PrometheusCollector(ClientMetrics()))


def test_without_prometheus_client_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(TelemetryUnavailable, match=r"pip install 'asyncgroup\[prometheus\]'"):
        PrometheusCollector(ClientMetrics())


@pytest.mark.real
async def test_other_threads_read_while_the_loop_runs_and_get_nothing_while_it_is_blocked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As a scrape of `prometheus_client.start_http_server`, in real time."""
    monkeypatch.setattr("asyncgroup.telemetry.prometheus.READ_TIMEOUT", 0.1)
    metrics = ClientMetrics()
    metrics.on_heartbeat("g", 1.0)
    metrics.loop = asyncio.get_running_loop()
    collector = PrometheusCollector(metrics)

    def count() -> int:
        return sum(len(family.samples) for family in collector.collect())

    assert await asyncio.to_thread(count) == count() > 10
    scraped = Event()

    def scrape_and_say_so() -> int:
        try:
            return count()
        finally:
            scraped.set()

    scrape = asyncio.create_task(asyncio.to_thread(scrape_and_say_so))
    await asyncio.sleep(0)  # the thread starts
    assert scraped.wait(30)  # the loop is blocked until the scrape has ended
    assert await scrape == 0
    assert await asyncio.to_thread(count) > 10
    assert repr(collector) == "<PrometheusCollector of <ClientMetrics of no open group, 0 producers>>"
