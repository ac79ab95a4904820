"""Events in pairs: each start has one end with the same object, and a record costs nothing where none is listened to."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from typing import Any

import pytest

from asyncgroup import (
    Claim,
    ClosedError,
    ConsumerConfig,
    ConsumerGroup,
    Hook,
    InvalidRecordError,
    Producer,
    ProducerConfig,
    ProducerRecord,
    QueueFull,
    RecordMetadata,
    Session,
)
from asyncgroup.broker import EmbeddedCluster
from asyncgroup.errors import BrokerError
from asyncgroup.hooks import Hooks, delivery_listeners
from asyncgroup.producer.records.send_steps import SendSteps
from asyncgroup.producer.records.writer import RecordWriter

pytestmark = pytest.mark.virtual


class Spans:
    """A tracer: a span is kept by the id of its object between start and end."""

    def __init__(self) -> None:
        self.open: dict[int, object] = {}
        self.ended: list[tuple[Any, ...]] = []
        """The object of each span and what its end had besides."""

    def start(self, about: object) -> None:
        assert id(about) not in self.open
        self.open[id(about)] = about

    def end(self, about: object, *rest: object) -> None:
        assert self.open.pop(id(about)) is about
        self.ended.append((about, *rest))


class SendSpans(Spans):
    def on_send_start(self, record: ProducerRecord) -> None:
        self.start(record)

    def on_send_end(self, record: ProducerRecord, metadata: RecordMetadata | None, error: object) -> None:
        self.end(record, metadata, error)

    @property
    def values(self) -> list[bytes | None]:
        return [record.value for record, *_ in self.ended]

    @property
    def errors(self) -> list[type | None]:
        return [None if error is None else type(error) for _, _, error in self.ended]


class HandlerSpans(Spans):
    def on_handler_start(self, session: Session, claim: Claim) -> None:
        self.start(claim)
        SPAN.set(f"span of {claim.partition}")

    def on_handler_end(self, session: Session, claim: Claim, error: BaseException | None) -> None:
        self.end(claim, SPAN.get(), error)


SPAN = ContextVar("span", default="none")


def seen(spans: HandlerSpans) -> list[tuple[int, str, type | None]]:
    return sorted(
        (claim.partition, span, None if error is None else type(error)) for claim, span, error in spans.ended
    )


# --- sends ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("config", [{}, {"max_pending_records_per_partition": 1000}], ids=["plain", "limits"])
async def test_each_way_to_send_has_one_start_and_one_end_with_the_same_record(
    config: dict[str, Any],
) -> None:
    spans = SendSpans()
    async with EmbeddedCluster(nodes=1, seed=1) as broker:
        broker.create_topic("orders", 1)
        async with Producer(
            broker.bootstrap_servers, ProducerConfig(**config), hooks=[spans], initial_sequence_id=6
        ) as producer:
            sent = await producer.send("orders", b"send", headers=[("h", b"")])
            future = producer.send_nowait("orders", b"nowait")
            await producer.enqueue("orders", b"enqueue")
            await producer.enqueue_all([("orders", b"all", None, (), None, None)])
            assert len(spans.open) == 3
            await producer.flush()
            assert (await future).sequence_id == 8
    assert not spans.open
    assert spans.values == [b"send", b"nowait", b"enqueue", b"all"]
    assert [(where.offset, where.sequence_id) for _, where, _ in spans.ended] == [
        (0, 7),
        (1, 8),
        (2, 9),
        (3, 10),
    ]
    assert spans.ended[0][1] == sent
    assert spans.errors == [None] * 4


async def test_a_send_that_fails_ends_with_the_error_of_its_caller() -> None:
    spans = SendSpans()
    async with EmbeddedCluster(nodes=1, seed=1) as broker:
        broker.create_topic("orders", 1)
        producer = Producer(broker.bootstrap_servers, hooks=[spans])
        async with producer:
            broker.faults.on("Produce").error("TOPIC_AUTHORIZATION_FAILED")
            with pytest.raises(BrokerError) as raised:
                await producer.send("orders", b"refused")
            assert spans.ended[0][2] is raised.value
            with pytest.raises(InvalidRecordError):
                await producer.send("orders", b"no partition", partition=7)
        with pytest.raises(ClosedError):
            await producer.send("orders", b"late")
    assert not spans.open
    assert spans.values == [b"refused", b"no partition", b"late"]
    assert [issubclass(error or object, BrokerError) for error in spans.errors] == [True, False, False]


async def test_a_record_without_room_has_no_start() -> None:
    spans = SendSpans()
    async with EmbeddedCluster(nodes=1, seed=1) as broker:
        broker.create_topic("orders", 1)
        config = ProducerConfig(max_request_size=1000, buffer_bytes=1000, linger=60.0)
        async with Producer(broker.bootstrap_servers, config, hooks=[spans]) as producer:
            with pytest.raises(InvalidRecordError):
                await producer.send("orders", bytes(2000))
            first = producer.send_nowait("orders", bytes(900))
            with pytest.raises(QueueFull):
                producer.send_nowait("orders", bytes(900))
            waiting = asyncio.create_task(producer.send("orders", bytes(901)))
            await asyncio.sleep(0)
            waiting.cancel()
            await first
    assert not spans.open
    assert spans.values == [bytes(900)]


async def test_a_value_in_chunks_is_one_record() -> None:
    spans = SendSpans()
    async with EmbeddedCluster(nodes=1, seed=1) as broker:
        broker.create_topic("orders", 1)
        config = ProducerConfig(chunking=True, max_chunk_size=1024)
        async with Producer(broker.bootstrap_servers, config, hooks=[spans]) as producer:
            await producer.send("orders", bytes(5000))
            await producer.send_nowait("orders", bytes(5001))
            await producer.enqueue("orders", bytes(5002))
            await producer.flush()
            broker.faults.on("Produce").error("TOPIC_AUTHORIZATION_FAILED")
            with pytest.raises(BrokerError):
                await producer.send("orders", bytes(5003))
    assert not spans.open
    assert spans.values == [bytes(size) for size in range(5000, 5004)]
    assert [error is None for error in spans.errors] == [True, True, True, False]


async def test_records_of_a_closed_producer_end_before_its_close_does() -> None:
    spans = SendSpans()
    async with EmbeddedCluster(nodes=1, seed=1) as broker:
        broker.create_topic("orders", 1)
        producer = Producer(broker.bootstrap_servers, ProducerConfig(linger=60.0), hooks=[spans])
        async with producer:
            future = producer.send_nowait("orders", b"a")
            await producer.aclose(drain=False)
        with pytest.raises(ClosedError):
            await future
    assert not spans.open
    assert spans.errors == [ClosedError]


# --- handlers ---------------------------------------------------------------------------------------------------------------


async def consumed(handler: Any, spans: HandlerSpans, *, expected: type | None = None) -> None:
    async with EmbeddedCluster(nodes=1, seed=1) as broker:
        broker.create_topic("orders", 2)
        async with Producer(broker.bootstrap_servers) as producer:
            await producer.send("orders", b"a", partition=0)
        config = ConsumerConfig(auto_offset_reset="earliest", close_timeout=5.0)
        async with ConsumerGroup(broker.bootstrap_servers, "g", config, hooks=[spans]) as group:
            running = asyncio.create_task(group.run("orders", handler))
            await asyncio.sleep(10.0)
            await group.aclose()
            if expected is None:
                await running
            else:
                with pytest.raises(expected):
                    await running


async def test_a_handler_runs_between_its_events_with_their_context() -> None:
    spans, contexts = HandlerSpans(), set()

    async def read(session: Session, claim: Claim) -> None:
        contexts.add(SPAN.get())
        async for record in claim:
            claim.mark(record)

    await consumed(read, spans)
    assert not spans.open
    assert contexts == {"span of 0", "span of 1"}
    assert seen(spans) == [(0, "span of 0", None), (1, "span of 1", None)]


async def test_the_end_of_a_handler_has_its_exception() -> None:
    spans = HandlerSpans()

    async def read(session: Session, claim: Claim) -> None:
        async for _ in claim:
            raise LookupError("no such price")

    await consumed(read, spans, expected=LookupError)
    assert not spans.open
    assert seen(spans) == [(0, "span of 0", LookupError), (1, "span of 1", None)]


async def test_a_handler_that_is_cancelled_at_its_limit_ends_with_the_cancellation() -> None:
    spans = HandlerSpans()

    async def read(session: Session, claim: Claim) -> None:
        await asyncio.sleep(1000.0 if claim.partition == 0 else 0.0)
        await claim.wait_ended()

    await consumed(read, spans)
    assert not spans.open
    assert seen(spans) == [(0, "span of 0", asyncio.CancelledError), (1, "span of 1", None)]


# --- deliveries -------------------------------------------------------------------------------------------------------------


def test_deliveries_are_reported_to_a_listener_of_either_event() -> None:
    events: list[tuple[object, ...]] = []
    delivery = object()
    ends = type("Ends", (), {"on_delivery_end": lambda self, *values: events.append(values)})()
    listeners = delivery_listeners(Hooks([ends]))
    assert listeners is not None
    listeners.start(delivery)
    listeners.end(delivery, "acknowledged")
    listeners.end(delivery, "nacked", error := ValueError())
    assert events == [(delivery, "acknowledged", None), (delivery, "nacked", error)]


# --- no listener, no cost ---------------------------------------------------------------------------------------------------


class Others(Hook):
    """A hook with the signatures of all events, which listens to none of the pairs."""

    def on_connect(self, *values: object) -> None: ...


@pytest.mark.parametrize("hooks", [[], [Others()]], ids=["none", "other events"])
def test_without_a_listener_a_record_takes_the_short_way(hooks: list[object]) -> None:
    assert isinstance(Producer("127.0.0.1:9092", hooks=hooks)._records, RecordWriter)
    assert delivery_listeners(Hooks(hooks)) is None
    limited = Producer("127.0.0.1:9092", hooks=hooks, initial_sequence_id=0)._records
    assert isinstance(limited, SendSteps)
    assert limited._hooks is None


@pytest.mark.parametrize("hooks", [[], [Others()]], ids=["none", "other events"])
async def test_without_a_listener_the_task_of_a_claim_calls_its_handler(hooks: list[object]) -> None:
    names: list[list[str]] = []

    async def read(session: Session, claim: Claim) -> None:
        task = asyncio.current_task()
        assert task is not None
        coroutine: Any = task.get_coro()
        chain = []
        while coroutine is not None:
            chain.append(coroutine.__qualname__)
            coroutine = getattr(coroutine, "cr_await", None)
        names.append(chain)
        await claim.wait_ended()

    async with EmbeddedCluster(nodes=1, seed=1) as broker:
        broker.create_topic("orders", 1)
        async with ConsumerGroup(broker.bootstrap_servers, "g", hooks=hooks) as group:
            running = asyncio.create_task(group.run("orders", read))
            await asyncio.sleep(5.0)
            await group.aclose()
            await running
    assert len(names) == 1
    assert not any("_consume_reported" in name for name in names[0])
