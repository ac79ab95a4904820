"""Hooks for what a reader works on: one start and one end for each record or batch, in the task that reads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any

import pytest

from asyncgroup import (
    Batch,
    Claim,
    Consumer,
    ConsumerConfig,
    ConsumerGroup,
    Producer,
    Record,
    Session,
    ThreadClaim,
    WorkQueue,
    in_thread,
)
from asyncgroup.broker import EmbeddedCluster
from asyncgroup.hooks import Hooks
from asyncgroup.workqueue import GroupSource

pytestmark = pytest.mark.virtual

CONFIG = ConsumerConfig(auto_offset_reset="earliest", close_timeout=5.0)
CURRENT = ContextVar("current", default="none")


def name_of(records: Record | Batch) -> str:
    return (
        str(records.offset)
        if isinstance(records, Record)
        else f"{records.first_offset}-{records.last_offset}"
    )


class Process:
    """Notes each start and end, and that they alternate for each partition."""

    def __init__(self, *, wants: bool = True) -> None:
        self.wants = wants
        self.asked = 0
        self.open: dict[int, Record | Batch] = {}
        self.events: list[str] = []
        self.errors: list[type[BaseException]] = []
        self.groups: set[str] = set()

    def wants_records(self) -> bool:
        self.asked += 1
        return self.wants

    def on_process_start(self, group_id: str, records: Record | Batch) -> None:
        assert not any(each.partition == records.partition for each in self.open.values())
        self.open[id(records)] = records
        self.events.append(name_of(records))
        self.groups.add(group_id)
        CURRENT.set(f"{records.partition}:{name_of(records)}")

    def on_process_end(self, group_id: str, records: Record | Batch, error: BaseException | None) -> None:
        assert self.open.pop(id(records)) is records
        self.events.append(f"/{name_of(records)}")
        CURRENT.set("none")
        if error is not None:
            self.errors.append(type(error))


@asynccontextmanager
async def topic(records: int, partitions: int = 1) -> AsyncIterator[str]:
    async with EmbeddedCluster(nodes=1, seed=1) as broker:
        broker.create_topic("orders", partitions)
        async with Producer(broker.bootstrap_servers) as producer:
            for number in range(records):
                await producer.enqueue("orders", b"%d" % number, partition=number % partitions)
        yield broker.bootstrap_servers


async def run(hooks: Iterable[object], handler: Any, records: int = 3, **arguments: Any) -> None:
    async with (
        topic(records) as servers,
        ConsumerGroup(servers, "g", CONFIG, hooks=hooks, **arguments) as group,
    ):
        running = asyncio.create_task(group.run("orders", handler))
        await asyncio.sleep(10.0)
        await group.aclose()
        await running


@pytest.fixture
def process() -> Process:
    """A process without hooks of its own."""
    return Process()


async def test_a_record_is_processed_until_the_next_one_is_asked_for() -> None:
    process, seen = Process(), []

    async def read(session: Session, claim: Claim) -> None:
        async for record in claim:
            seen.append(CURRENT.get())
            await asyncio.sleep(0.5)
            assert list(process.open.values()) == [record]
        seen.append(CURRENT.get())

    await run([process], read)
    assert process.events == ["0", "/0", "1", "/1", "2", "/2"]
    assert seen == ["0:0", "0:1", "0:2", "none"]
    assert process.groups == {"g"}
    assert not process.errors


async def test_while_the_reader_waits_it_processes_nothing(process: Process) -> None:

    async def read(session: Session, claim: Claim) -> None:
        async for _ in claim:
            pass

    async with topic(1) as servers, ConsumerGroup(servers, "g", CONFIG, hooks=[process]) as group:
        running = asyncio.create_task(group.run("orders", read))
        await asyncio.sleep(10.0)
        assert process.events == ["0", "/0"]
        await group.aclose()
        await running
    assert process.events == ["0", "/0"]


async def test_a_batch_is_one_and_its_handlers_exception_is_its_error(process: Process) -> None:

    async def read(session: Session, claim: Claim) -> None:
        async for batch in claim.batches(max_records=2):
            assert CURRENT.get() == f"0:{name_of(batch)}"
            if batch.first_offset == 2:
                raise LookupError("no such price")

    with pytest.raises(LookupError):
        await run([process], read)
    assert process.events == ["0-1", "/0-1", "2-2", "/2-2"]
    assert process.errors == [LookupError]
    assert not process.open


@pytest.mark.parametrize("by_batches", [False, True])
async def test_a_function_in_a_thread_has_the_context_of_its_batch(*, by_batches: bool) -> None:
    process, seen = Process(), []

    def read(session: Session, claim: ThreadClaim) -> None:
        for each in claim.batches() if by_batches else claim:
            seen.append((name_of(each), CURRENT.get()))
            if seen[-1][0].endswith("3"):
                return

    async with topic(4) as servers, ConsumerGroup(servers, "g", CONFIG, hooks=[process]) as group:
        await group.consume("orders", in_thread(read))
    assert seen == [(name, "0:0-3") for name in (["0-3"] if by_batches else "0123")]
    assert process.events == ["0-3", "/0-3"]


async def test_after_a_break_the_record_is_processed_until_the_handler_ends(process: Process) -> None:

    async def read(session: Session, claim: Claim) -> None:
        async for _ in claim:
            break
        await claim.wait_ended()
        assert CURRENT.get() == "0:0"

    await run([process], read)
    assert process.events == ["0", "/0"]


async def test_the_reported_record_is_that_of_the_interceptors() -> None:
    process, delivered = Process(), []

    def change(record: Record) -> Record:
        return Record(record.topic, record.partition, record.offset, record.timestamp, value=b"changed")

    async def read(session: Session, claim: Claim) -> None:
        async for record in claim:
            assert list(process.open.values()) == [record]
            delivered.append(record.value)

    await run([process], read, interceptors=[change])
    assert delivered == [b"changed"] * 3


async def test_a_hook_that_wants_no_records_gets_batches_only() -> None:
    process, deliver = Process(wants=False), set()

    async def read(session: Session, claim: Claim) -> None:
        async for record in claim:
            deliver.add(claim._inner.consumer._inner.deliver)
            if record.offset == 499:
                break
        async for _ in claim.batches():
            pass

    await run([process], read, records=1000)
    assert process.events[0].startswith("500-")
    assert process.events[-1].endswith("-999")
    assert deliver == {None}  # a record takes the same way as without hooks
    assert process.asked < 20


async def test_records_of_a_group_in_one_loop(process: Process) -> None:
    async with (
        topic(6, partitions=2) as servers,
        ConsumerGroup(servers, "g", CONFIG, hooks=[process]) as group,
        group.records("orders") as records,
    ):
        count = 0
        async for record in records:
            assert CURRENT.get() == f"{record.partition}:{record.offset}"
            assert list(process.open.values()) == [record]
            count += 1
            if count == 6:
                break
    assert len(process.events) == 12
    assert not process.open


async def test_a_consumer_has_no_group(process: Process) -> None:
    async with topic(2) as servers, Consumer(servers, hooks=[process]) as consumer:
        reader = await consumer.partition("orders", 0, "earliest")
        async for record in reader:
            if record.offset == 1:
                break
        assert process.events == ["0", "/0", "1"]
        await reader.aclose()
        assert process.events == ["0", "/0", "1", "/1"]
    assert process.groups == {""}


async def test_a_closed_consumer_processes_nothing(process: Process) -> None:
    async with topic(2) as servers, Consumer(servers, hooks=[process]) as consumer:
        await anext(await consumer.partition("orders", 0, "earliest"))
    assert process.events == ["0", "/0"]


async def test_a_work_queue_reports_its_deliveries_instead(process: Process) -> None:
    async with topic(3) as servers:
        source = GroupSource(servers, "g", "orders", hooks=[process])
        async with WorkQueue(source, initial_position="earliest") as queue:
            for _ in range(3):
                await (await queue.receive()).ack()
    assert process.events == []


async def test_a_query_that_raises_is_logged_and_means_no(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Process):
        def wants_records(self) -> bool:
            raise ValueError("a hook's bug")

    assert not Hooks([Broken()]).wants_records()
    assert "a hook's bug" in caplog.text
    assert Hooks([Broken(), type("Ends", (), {"on_process_end": print})()]).wants_records()
