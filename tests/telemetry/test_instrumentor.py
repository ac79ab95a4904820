"""AsyncGroupInstrumentor: clients that are made after it have the hooks, also by the command `opentelemetry-instrument`."""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.trace import get_current_span

from asyncgroup import Claim, ConsumerConfig, ConsumerGroup, Delivery, Producer, Session, WorkQueue
from asyncgroup.broker import EmbeddedCluster
from asyncgroup.hooks import Hooks, add_default_hook, remove_default_hook
from asyncgroup.producer.records.writer import RecordWriter
from asyncgroup.telemetry import AsyncGroupInstrumentor
from tests.telemetry.spans import Sdk, current_name, link_ids, parent_id, span_id

ROOT = Path(__file__).parents[2]
CONFIG = ConsumerConfig(auto_offset_reset="earliest", close_timeout=5.0)


@pytest.fixture
def sdk() -> Iterator[Sdk]:
    sdk = Sdk()
    AsyncGroupInstrumentor().instrument(tracer_provider=sdk.provider, meter_provider=MeterProvider())
    yield sdk
    AsyncGroupInstrumentor().uninstrument()
    assert Hooks().wants_records() is False


async def produce(broker: EmbeddedCluster, **arguments: Any) -> None:
    async with Producer(broker.bootstrap_servers, **arguments) as producer:
        await producer.send("orders", b"one dozen")


async def consume(broker: EmbeddedCluster, names: list[str], **arguments: Any) -> None:
    async def read(session: Session, claim: Claim) -> None:
        async for record in claim:
            names.append(current_name())
            claim.mark(record)

    async with ConsumerGroup(broker.bootstrap_servers, "billing", CONFIG, **arguments) as group:
        running = asyncio.create_task(group.run("orders", read))
        await asyncio.sleep(10.0)
        await group.aclose()
        await running


async def test_clients_without_a_word_of_it_have_the_hooks_until_it_ends(sdk: Sdk) -> None:
    names: list[str] = []
    async with EmbeddedCluster(nodes=1, seed=1) as broker:
        broker.create_topic("orders", 1)
        await produce(broker)
        await consume(broker, names)
        (sent,), (processed,) = sdk.named("send orders"), sdk.named("process orders")
        assert parent_id(processed) == span_id(sent)
        assert names == ["process orders"]
        AsyncGroupInstrumentor().uninstrument()
        await produce(broker)
        await consume(broker, names)
        assert names == ["process orders", ""]
    assert len(sdk.spans) == 2


async def test_a_client_that_exists_makes_no_more_spans_after_the_end(sdk: Sdk) -> None:
    async with EmbeddedCluster(nodes=1, seed=1) as broker:
        broker.create_topic("orders", 1)
        async with Producer(broker.bootstrap_servers) as producer:
            await producer.send("orders", b"")
            AsyncGroupInstrumentor().uninstrument()
            await producer.send("orders", b"")
    assert len(sdk.spans) == 1


async def test_a_client_with_hooks_of_that_class_keeps_its_own(sdk: Sdk) -> None:
    own, names = Sdk(), list[str]()
    async with EmbeddedCluster(nodes=1, seed=1) as broker:
        broker.create_topic("orders", 1)
        await produce(broker, interceptors=[own.traces])
        await consume(broker, names, hooks=[own.traces])
    assert sdk.spans == []
    assert [span.name for span in own.spans] == ["send orders", "process orders"]


@pytest.mark.full
async def test_a_redelivery_by_a_retry_topic_is_in_the_trace_of_the_former_attempt(sdk: Sdk) -> None:
    """The queue's own producer has the hooks as well."""
    ids = []

    async def handle(delivery: Delivery) -> None:
        ids.append(span_id(get_current_span()))
        if delivery.attempt == 1:
            await delivery.reconsume_later(1)

    async with EmbeddedCluster() as broker:
        broker.create_topic("orders", 1)
        await produce(broker)
        async with WorkQueue(
            broker.bootstrap_servers, "billing", "orders", retry=True, initial_position="earliest"
        ) as queue:
            running = asyncio.create_task(queue.run(handle))
            while len(ids) < 2:
                await asyncio.sleep(1.0)
            await queue.aclose()
            await running
            retry_topic = queue.retry_topic
    (copy,), (second,) = sdk.named(f"send {retry_topic}"), sdk.named(f"process {retry_topic}")
    assert parent_id(copy) == ids[0]
    assert parent_id(second) == span_id(copy)
    assert link_ids(second) == [ids[0]]


async def test_metrics_of_all_clients() -> None:
    reader, names = InMemoryMetricReader(), list[str]()
    instrumentor = AsyncGroupInstrumentor()
    instrumentor.instrument(
        tracer_provider=Sdk().provider, meter_provider=MeterProvider([reader], shutdown_on_exit=False)
    )
    try:
        assert instrumentor.is_instrumented_by_opentelemetry
        instrumentor.instrument()
        async with EmbeddedCluster(nodes=1, seed=1) as broker:
            broker.create_topic("orders", 1)
            await produce(broker)
            await consume(broker, names)
        data = reader.get_metrics_data()
        assert data is not None
        (scope,) = data.resource_metrics[0].scope_metrics
        values = {
            metric.name: metric.data.data_points[0] for metric in scope.metrics if metric.data.data_points
        }
        assert values["asyncgroup.records_sent"].value == 1  # type: ignore[union-attr]
        assert values["asyncgroup.records_consumed"].value == 1  # type: ignore[union-attr]
    finally:
        instrumentor.uninstrument()
    assert repr(AsyncGroupInstrumentor()) == "<AsyncGroupInstrumentor: off>"


def test_default_hooks_are_added_once_for_each_class() -> None:
    class Beats:
        def on_heartbeat(self, *values: object) -> None: ...

    default, own = Beats(), Beats()
    add_default_hook(default)
    try:
        assert Hooks()._listeners["on_heartbeat"] == [default.on_heartbeat]
        assert Hooks([own])._listeners["on_heartbeat"] == [own.on_heartbeat]
        assert isinstance(Producer("127.0.0.1:9092")._records, RecordWriter)  # it is no interceptor
    finally:
        remove_default_hook(default)
    assert not Hooks().has_listener("on_heartbeat")


def test_the_entry_point_is_this_class() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = project["entry-points"]["opentelemetry_instrumentor"]["asyncgroup"]
    module, name = named.split(":")
    assert getattr(importlib.import_module(module), name) is AsyncGroupInstrumentor


PROGRAM = """
import asyncio, json
from asyncgroup import ConsumerConfig, ConsumerGroup, Producer
from asyncgroup.broker import EmbeddedCluster
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor
from opentelemetry.trace import set_tracer_provider

provider = TracerProvider()  # the package opentelemetry-distro does this by variables of the environment
provider.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter()))
set_tracer_provider(provider)

async def main():
    async with EmbeddedCluster() as broker:
        broker.create_topic("orders", 1)
        async with Producer(broker.bootstrap_servers) as producer:
            await producer.send("orders", b"one dozen")
        (record,) = broker.records("orders")
        config = ConsumerConfig(auto_offset_reset="earliest")
        async with ConsumerGroup(broker.bootstrap_servers, "g", config) as group, group.records("orders") as records:
            await anext(records)
    print(json.dumps([name for name, _ in record.headers]))

asyncio.run(main())
"""


@pytest.mark.full
def test_the_command_opentelemetry_instrument_finds_it(tmp_path: Path) -> None:
    """The entry point is read from an installed distribution; here from one that has nothing else."""
    info = tmp_path / "asyncgroup_entry_points-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: asyncgroup-entry-points\nVersion: 1\n")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = project["entry-points"]["opentelemetry_instrumentor"]["asyncgroup"]
    (info / "entry_points.txt").write_text(f"[opentelemetry_instrumentor]\nasyncgroup = {named}\n")
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    command = [
        sys.executable,
        "-c",
        "from opentelemetry.instrumentation.auto_instrumentation import run; run()",
        sys.executable,
        "-c",
        PROGRAM,
    ]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    printed = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("[")))
    assert printed == ["traceparent"]
    assert '"name": "send orders"' in done.stdout
    assert '"name": "process orders"' in done.stdout
