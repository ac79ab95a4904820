"""OpenTelemetry on a real Kafka: the trace context arrives in the headers, for records, batches and deliveries."""

from __future__ import annotations

import asyncio
from uuid import uuid4

import pytest

from asyncgroup import ConsumerConfig, ConsumerGroup, GroupSource, Producer, WorkQueue
from asyncgroup.admin import Admin
from tests.real.support import RunningKafka
from tests.telemetry.spans import Sdk, current_name, link_ids, parent_id, span_id

CONFIG = ConsumerConfig(auto_offset_reset="earliest")


async def send(servers: str, topic: str, sdk: Sdk, count: int) -> list[int]:
    """Create a topic and send records; return the ids of their spans."""
    async with Admin(servers) as admin:
        (await admin.create_topics({topic: 1})).raise_first()
    async with Producer(servers, interceptors=[sdk.traces]) as producer:
        await asyncio.gather(*(producer.send(topic, b"%d" % number, partition=0) for number in range(count)))
    return [span_id(span) for span in sdk.named(f"send {topic}")]


@pytest.mark.full
async def test_a_record_is_processed_in_the_trace_of_its_send(apache_kafka: RunningKafka) -> None:
    sdk, topic = Sdk(), f"traces-{uuid4().hex[:8]}"
    sends = await send(apache_kafka.bootstrap_servers, topic, sdk, 2)
    async with (
        ConsumerGroup(apache_kafka.bootstrap_servers, topic, CONFIG, hooks=[sdk.traces]) as group,
        group.records(topic) as records,
    ):
        for _ in range(2):
            await anext(records)
            assert current_name() == f"process {topic}"
    assert [parent_id(span) for span in sdk.named(f"process {topic}")] == sends


@pytest.mark.full
async def test_batches_link_their_sends_and_a_redelivery_its_former_attempt(
    apache_kafka: RunningKafka,
) -> None:
    sdk, topic = Sdk(), f"traces-{uuid4().hex[:8]}"
    servers = apache_kafka.bootstrap_servers
    sends = await send(servers, topic, sdk, 5)
    async with ConsumerGroup(servers, f"{topic}-batches", CONFIG, hooks=[sdk.traces]) as group:

        async def read(session: object, claim: object) -> None:
            async for batch in claim.batches():  # type: ignore[attr-defined]
                if batch.last_offset == 4:
                    return

        await group.consume(topic, read)
    batches = sdk.named(f"process {topic}", by=lambda span: span.start_time)
    assert [link for span in batches for link in link_ids(span)] == sends
    before = len(batches)
    source = GroupSource(servers, f"{topic}-queue", topic, hooks=[sdk.traces])
    async with WorkQueue(source, initial_position="earliest", nack_backoff=0.1) as queue:
        first = await queue.receive()
        await first.nack()
        async for delivery in queue:
            await delivery.ack()
            if delivery.attempt == 2:
                break
    deliveries = sdk.named(f"process {topic}", by=lambda span: span.start_time)[before:]
    failed, *_, again = [span for span in deliveries if parent_id(span) == sends[0]]
    assert link_ids(again) == [span_id(failed)]
