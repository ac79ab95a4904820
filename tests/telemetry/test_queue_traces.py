"""Spans of a work queue's deliveries: current in the handler, with the outcome, linked to the former attempt."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import StatusCode, get_current_span

from asyncgroup import Delivery, GroupSource, Producer, WorkQueue
from asyncgroup.broker import EmbeddedCluster
from asyncgroup.telemetry.otel.traces import ATTEMPT, OUTCOME
from tests.telemetry.spans import Sdk, current_name, link_ids, parent_id, span_id


@asynccontextmanager
async def opened(sdk: Sdk, *values: bytes, **settings: Any) -> AsyncIterator[WorkQueue]:
    async with EmbeddedCluster() as cluster:
        cluster.create_topic("orders", 1)
        async with Producer(cluster.bootstrap_servers, interceptors=[sdk.traces]) as producer:
            for value in values:
                await producer.send("orders", value)
        source = GroupSource(cluster.bootstrap_servers, "billing", "orders", hooks=[sdk.traces])
        async with WorkQueue(source, initial_position="earliest", **settings) as queue:
            yield queue
    assert repr(sdk.traces) == "<OpenTelemetryTraces: 0 sends, 0 processings>"


async def run_until(queue: WorkQueue, handle: Any, deliveries: int) -> None:
    running = asyncio.create_task(queue.run(handle))
    while queue.statistics().counts.delivered < deliveries:
        await asyncio.sleep(0.1)
    await asyncio.sleep(1.0)
    await queue.aclose()
    await running


def by_start(span: ReadableSpan) -> Any:
    return span.start_time


def value_of(span: ReadableSpan, name: str) -> object:
    return (span.attributes or {}).get(name)


@pytest.fixture
def sdk() -> Sdk:
    """An SDK that keeps the spans."""
    return Sdk()


async def test_the_span_of_a_delivery_is_current_in_its_handler() -> None:
    sdk, current = Sdk(), []

    async def handle(delivery: Delivery) -> None:
        assert delivery.group_id == "billing"
        current.append(span_id(get_current_span()))
        await asyncio.sleep(0.1)
        with sdk.tracer.start_as_current_span("charge"):
            pass

    async with opened(sdk, b"a", b"b") as queue:
        await run_until(queue, handle, 2)
    spans = sdk.named("process orders")
    assert sorted(span_id(span) for span in spans) == sorted(current)
    assert [parent_id(span) for span in spans] == [span_id(span) for span in sdk.named("send orders")]
    assert {parent_id(span) for span in sdk.named("charge")} == set(current)
    assert {value_of(span, "messaging.consumer.group.name") for span in spans} == {"billing"}
    assert [(value_of(span, ATTEMPT), value_of(span, OUTCOME)) for span in spans] == [(1, "acknowledged")] * 2


async def test_a_redelivery_links_the_former_attempt(sdk: Sdk) -> None:

    async def handle(delivery: Delivery) -> None:
        if delivery.attempt == 1:
            raise LookupError("no such price")
        if delivery.attempt == 2:
            await delivery.nack()

    async with opened(sdk, b"a", nack_backoff=1) as queue:
        await run_until(queue, handle, 3)
    first, second, third = sdk.named("process orders", by=by_start)
    assert [link_ids(span) for span in (first, second, third)] == [[], [span_id(first)], [span_id(second)]]
    assert [value_of(span, OUTCOME) for span in (first, second, third)] == [
        "nacked",
        "nacked",
        "acknowledged",
    ]
    assert [span.status.status_code for span in (first, second, third)] == [
        StatusCode.ERROR,
        StatusCode.UNSET,
        StatusCode.UNSET,
    ]
    assert value_of(first, "error.type") == "LookupError"
    (sent,) = sdk.named("send orders")
    assert {parent_id(span) for span in (first, second, third)} == {span_id(sent)}
    assert sdk.traces._attempts == {}


@pytest.mark.full
async def test_the_copy_in_the_retry_topic_links_the_attempt_on_the_record(sdk: Sdk) -> None:

    async def handle(delivery: Delivery) -> None:
        if delivery.attempt == 1:
            await delivery.reconsume_later(1)
        elif delivery.attempt == 2:
            await delivery.reject("no")

    async with opened(sdk, b"a", retry=True, dead_letter=5) as queue:
        await run_until(queue, handle, 2)
        retry_topic = queue.retry_topic
    (first,), (second,) = sdk.named("process orders"), sdk.named(f"process {retry_topic}")
    assert link_ids(second) == [span_id(first)]
    assert parent_id(second) == parent_id(first)
    assert [value_of(span, OUTCOME) for span in (first, second)] == ["retry", "dead letter"]
    assert value_of(second, "error.type") == "dead letter"


async def test_in_a_loop_each_delivery_is_current_until_it_is_settled(sdk: Sdk) -> None:
    async with opened(sdk, b"a", b"b") as queue:
        with sdk.tracer.start_as_current_span("program") as program:
            count = 0
            async for delivery in queue:
                async with delivery:
                    assert current_name() == "process orders"
                assert get_current_span() is program
                count += 1
                if count == 2:
                    break
    assert len(sdk.named("process orders")) == 2


@pytest.mark.full
async def test_a_delivery_that_expires_is_not_the_parent_of_the_next(sdk: Sdk) -> None:
    async with opened(sdk, b"a", ack_timeout=10.0) as queue:
        lost = await queue.receive()
        await asyncio.sleep(12.0)
        again = await queue.receive()
        assert (lost.attempt, again.attempt) == (1, 2)
        await again.ack()
        assert current_name() == ""
    first, second = sdk.named("process orders", by=by_start)
    assert value_of(first, OUTCOME) == "expired"
    assert first.status.status_code is StatusCode.ERROR
    assert link_ids(second) == [span_id(first)]


@pytest.mark.full
async def test_tasks_that_are_started_for_deliveries_have_the_span_of_theirs() -> None:
    sdk, current = Sdk(), []

    async def work(delivery: Delivery) -> None:
        await asyncio.sleep(1.0)
        current.append((delivery.record.offset, span_id(get_current_span())))
        await delivery.ack()

    async with opened(sdk, *(b"%d" % number for number in range(20))) as queue:
        tasks = [asyncio.create_task(work(await queue.receive())) for _ in range(20)]
        await asyncio.gather(*tasks)
    assert current == [(number, span_id(span)) for number, span in enumerate(sdk.named("process orders"))]
    assert {parent_id(span) for span in sdk.named("process orders")} == {
        span_id(span) for span in sdk.named("send orders")
    }


@pytest.mark.full
async def test_each_delivery_of_a_batch_has_a_span(sdk: Sdk) -> None:
    async with opened(sdk, b"a", b"b", b"c") as queue:
        async with await queue.batch_receive() as batch:
            await batch[1].nack(delay=100.0)
        assert current_name() == ""
    assert [value_of(span, OUTCOME) for span in sdk.named("process orders")] == [
        "acknowledged",
        "nacked",
        "acknowledged",
    ]


@pytest.mark.full
async def test_only_so_many_attempts_are_remembered(sdk: Sdk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asyncgroup.telemetry.otel.traces._MOST_ATTEMPTS", 2)
    async with opened(sdk, *(b"%d" % number for number in range(5))) as queue:
        for _ in range(5):
            await (await queue.receive()).nack(delay=100.0)
        assert len(sdk.traces._attempts) == 2
