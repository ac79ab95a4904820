"""The snippets about work queues, executed on an embedded broker in virtual time; and what their page says of errors."""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import inspect
import re
import struct
from collections.abc import AsyncIterator, Callable
from dataclasses import fields
from types import SimpleNamespace
from typing import Any, Final

import pytest

from asyncgroup import Cluster, Consumer, Producer
from asyncgroup.broker import EmbeddedCluster
from asyncgroup.errors import ClosedError
from asyncgroup.testing import KafkaServer, memory_source
from asyncgroup.wire import messages as m
from asyncgroup.workqueue import (
    AckOutcome,
    DeadLetter,
    Delivery,
    Mode,
    QueueConsumer,
    QueueInterceptor,
    RetryTopic,
    WorkQueue,
)
from asyncgroup.workqueue.engine import EngineFeatures
from asyncgroup.workqueue.group_engine import source as group_source
from asyncgroup.workqueue.group_engine.source import GroupSource
from asyncgroup.workqueue.pulsar_engine import source as pulsar_source
from asyncgroup.workqueue.settings import QueueSettings
from asyncgroup.workqueue.statistics import QueueCounts
from tests.guide.pages import page, snippet
from tests.guide.parallel_consumer_names import OPTIONS, RECORDS
from tests.guide.pulsar_names import JAVA_BUILDERS, JAVA_METHODS, PYTHON_ARGUMENTS, PYTHON_METHODS

LIMIT: Final = 120.0
"""Seconds of virtual time within which a condition is met."""


@contextlib.asynccontextmanager
async def broker_with(
    *values: bytes, topic: str = "orders", partitions: int = 2
) -> AsyncIterator[EmbeddedCluster]:
    """Run a cluster with records in partition 0 of a topic, each with the key `k`."""
    async with EmbeddedCluster(nodes=1, seed=1) as broker:
        broker.create_topic(topic, partitions)
        async with Producer(broker.bootstrap_servers) as producer:
            for value in values:
                await producer.send(topic, value, key=b"k", partition=0)
        yield broker


def defined(
    name: str, text: str, broker: EmbeddedCluster | KafkaServer | None = None, **names: Any
) -> dict[str, Any]:
    """Execute a snippet without its last line `asyncio.run(…)`; return its names."""
    code = re.sub(r"^asyncio\.run\(\w+\(\)\)$", "", snippet(name, text), flags=re.MULTILINE)
    if broker is not None:
        code = code.replace("127.0.0.1:9092", broker.bootstrap_servers)
    exec(compile(code, "snippet", "exec"), names)
    return names


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(LIMIT):
        while not condition():
            await asyncio.sleep(0.05)


@contextlib.asynccontextmanager
async def running(work: Any) -> AsyncIterator[asyncio.Task[Any]]:
    """Run a coroutine, and cancel it at the end."""
    task = asyncio.ensure_future(work)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait([task])


def committed(broker: EmbeddedCluster | KafkaServer, group: str) -> int:
    return sum(each.offset for each in broker.group(group).offsets.values())


def queue_of(broker: EmbeddedCluster, **options: Any) -> WorkQueue:
    given = {"initial_position": "earliest"} | options
    return WorkQueue(broker.bootstrap_servers, "billing", "orders", **given)


# --- the pages work-queues, work-queue-reference, work-queue-engines ---------------------------------------------------------------------------------------------


async def test_the_first_program() -> None:
    """The second record fails six times and goes to the dead letter topic, the others of its key follow."""
    printed: list[tuple[int, bytes, bytes]] = []

    def note(*line: Any) -> None:
        printed.append(line)
        if line[-1] == b"bad":
            raise ValueError("bad")

    async with broker_with(b"a", b"bad", b"c") as broker:
        names = defined("work-queues", "concurrency=200", broker, print=note)
        started = asyncio.get_running_loop().time()
        async with running(names["main"]()):
            await until(lambda: committed(broker, "billing") == 3)
        waited = asyncio.get_running_loop().time() - started
        (dead,) = broker.records("orders-billing-DLQ")
    assert [line[0] for line in printed] == [1, 1, 2, 3, 4, 5, 6, 1]
    assert [line[2] for line in printed] == [b"a", *[b"bad"] * 6, b"c"]
    assert 1 + 2 + 4 + 8 + 16 <= waited < 31 + 10
    assert dead.value == b"bad"


def test_a_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """`test_program_of_queues.py` tests its signals."""
    started: list[tuple[str, Any]] = []

    def run_queue(queue: WorkQueue, handle: Any) -> int:
        started.append((queue.group_id, handle))
        return 130

    monkeypatch.setattr("asyncgroup.workqueue.run_queue", run_queue)
    with pytest.raises(SystemExit, match="130"):
        defined("work-queues", "run_queue(WorkQueue", __name__="__main__", handle=print)
    assert started == [("billing", print)]


async def test_the_ends_of_a_delivery() -> None:
    values = [b'{"state": "%s"}' % state for state in (b"paid", b"open", b"locked", b"odd")] + [b"{"]
    async with broker_with(*values) as broker:
        names = defined("work-queues", "delivery.ack(durable=True)")
        queue = queue_of(broker, retry=RetryTopic(), dead_letter=DeadLetter(0), nack_backoff=1)
        ends: dict[bytes | None, list[str]] = {}

        async def handle(delivery: Delivery) -> None:
            ends.setdefault(delivery.value, [])
            try:
                await names["pay"](delivery)
            finally:
                ends[delivery.value].append(delivery.state.value)

        async with queue, running(queue.run(handle)):
            await until(lambda: committed(broker, "billing") == len(values))
            counts = queue.statistics().counts
        reasons = {
            record.value: dict(record.headers)["__dlq.errors.message"]
            for record in broker.records("orders-billing-DLQ")
        }
    assert ends[values[0]] == ["acknowledged"]
    # with DeadLetter(0) each failure, and each copy in the retry topic, is the last one
    assert set(reasons) == set(values[1:])
    assert reasons[values[3]] == b"ValueError: state 'odd'"
    assert (reasons[values[4]] or b"").startswith(b"no JSON: ")
    assert (counts.acked, counts.dead_lettered, counts.nacked) == (1, 4, 2)


async def test_a_loop_over_deliveries() -> None:
    printed: list[Any] = []
    async with broker_with(b"a", b"b", b"c") as broker:
        names = defined(
            "work-queue-reference", "async with delivery:", print=lambda *line: printed.append(line)
        )
        async with queue_of(broker) as queue:
            working = asyncio.create_task(names["work"](queue))
            await until(lambda: committed(broker, "billing") == 3)
        await working
    assert printed == [(0, b"a"), (1, b"b"), (2, b"c")]


async def test_records_that_are_decoded() -> None:
    printed: list[Any] = []
    async with broker_with(b'{"item": 7}', b"?") as broker:
        names = defined("work-queue-reference", "decode=parse", print=printed.append)
        async with names["orders"](broker.bootstrap_servers) as queue, running(queue.run(names["ship"])):
            await until(lambda: committed(broker, "billing") == 2)
        assert [record.value for record in broker.records("orders-billing-DLQ")] == [b"?"]
    assert printed == [7]


async def test_long_work_renews_its_ack_timeout() -> None:
    deadlines: list[float] = []
    async with broker_with(b"a\fbb\fccc") as broker:
        async with queue_of(broker, ack_timeout=30) as queue:
            delivery = await queue.receive()

            def note(_: int) -> None:
                assert delivery.deadline is not None
                deadlines.append(delivery.deadline)

            names = defined("work-queue-reference", "await delivery.renew()", print=note)
            await names["convert"](delivery)
            assert len(deadlines) == 3
            await asyncio.sleep(31.0)
            assert not await delivery.renew()
            await names["convert"](delivery)
            assert len(deadlines) == 4


async def test_the_topics_of_copies() -> None:
    async with broker_with(b"a", topic="mails") as broker:
        queue = defined("work-queue-reference", 'topic="undeliverable"')["mails"](broker.bootstrap_servers)
        assert (queue.retry_topic, queue.dead_letter_topic) == ("retry.mails-mailer", "undeliverable")
        async with queue:
            pass
        counts = [len(broker.topic(name).partitions) for name in ("retry.mails-mailer", "undeliverable")]
    assert counts == [3, 2]


async def test_batches() -> None:
    printed: list[Any] = []
    async with broker_with(b"a", b"", b"c") as broker:
        names = defined("work-queue-reference", "queue.batch_receive(POLICY)", print=printed.append)
        async with queue_of(broker, dead_letter=DeadLetter()) as queue:
            loading = asyncio.create_task(names["load"](queue))
            await until(lambda: committed(broker, "billing") == 3)
        with pytest.raises(ClosedError):
            await loading
        assert [record.value for record in broker.records("orders-billing-DLQ")] == [b""]
    assert sum(printed) == 3


@pytest.mark.real
async def test_a_blocking_function() -> None:
    printed: list[Any] = []
    async with broker_with(b"a", b"", b"c") as broker:
        names = defined("work-queue-reference", "anyio.from_thread", print=printed.append)
        async with queue_of(broker, dead_letter=DeadLetter()) as queue, running(queue.run(names["handle"])):
            await until(lambda: committed(broker, "billing") == 3)
        assert [record.value for record in broker.records("orders-billing-DLQ")] == [b""]
    assert sorted(printed) == [b"a", b"c"]


async def test_two_consumers_of_a_queue() -> None:
    handled: list[Any] = []
    async with broker_with(*(b"%d" % number for number in range(60))) as broker:
        names = defined("work-queue-reference", 'queue.consumer("spare"')

        async def handle(delivery: Delivery) -> None:
            await asyncio.sleep(1.0)
            handled.append(delivery.value)

        async with running(names["two_pools"](queue_of(broker), handle)):
            await until(lambda: committed(broker, "billing") == 60)
    assert sorted(handled, key=int) == [b"%d" % number for number in range(60)]


async def test_an_interceptor_and_figures() -> None:
    names = defined("work-queue-reference", "class Meter(QueueInterceptor)")
    meter = names["Meter"]()
    fails = [ValueError("once")]

    async def handle(_: Delivery) -> None:
        if fails:
            raise fails.pop()

    async with broker_with(b"a", b"b") as broker:
        async with names["measured"](broker.bootstrap_servers, meter) as queue, running(queue.run(handle)):
            async with running(names["watch"](queue)):
                await until(lambda: committed(broker, "billing") == 2)
            assert names["report"](queue) == "2 acked, 0 acquired, lag 0, ()"
    assert meter.failed == ["0: ValueError('once')"]


async def test_a_source_of_a_group() -> None:
    """Copies in transactions, from two topics."""
    async with broker_with(b"a", b"bad") as broker:
        broker.create_topic("returns", 1)
        queue: WorkQueue = defined("work-queue-engines", "GroupSource(")["refunds"](broker.bootstrap_servers)
        assert (queue.group_id, queue.mode, queue.retry_topic) == (
            "refunds",
            Mode.KEY_SHARED,
            "orders-refunds-RETRY",
        )
        async with queue:
            for _ in range(2):
                delivery = await queue.receive()
                if delivery.value == b"bad":
                    assert await delivery.reject("bad") is AckOutcome.COMMITTED
                else:
                    assert await delivery.ack(durable=True) is AckOutcome.COMMITTED
        (dead,) = broker.records("orders-refunds-DLQ")
    assert dead.value == b"bad"


async def test_a_handler_with_records_in_memory() -> None:
    names = defined("work-queue-engines", "MemorySource([")
    started = asyncio.get_running_loop().time()
    await names["test_negative_amounts_are_dead_letters"]()
    assert asyncio.get_running_loop().time() - started == pytest.approx(2.0, abs=0.1)  # two delays


# --- tables of the pages ------------------------------------------------------------------------------------------------


def section(name: str, heading: str) -> str:
    return page(name).partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def words(text: str) -> set[str]:
    """Return the names in backticks of a text without its blocks."""
    text = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    return {word for code in re.findall(r"`([^`]+)`", text) for word in re.findall(r"\w+", code)}


def test_the_modes_are_those_of_the_code() -> None:
    assert re.findall(r"^\| `Mode\.(\w+)`", section("work-queue-reference", "Modes"), re.MULTILINE) == [
        each.name for each in Mode
    ]


def test_the_calls_of_a_delivery_are_in_the_text() -> None:
    calls = {
        name
        for name, each in vars(Delivery).items()
        if name[0] != "_"
        and inspect.isfunction(each)
        and "DeliveryResult" in str(inspect.signature(each).return_annotation)
    }
    assert calls == {"ack", "ack_cumulative", "nack", "reject", "reconsume_later", "renew"}
    assert calls <= words(section("work-queue-reference", "Deliveries"))


def test_each_setting_has_a_row_with_its_default() -> None:
    rows = defaults_in(section("work-queue-reference", "Settings"))
    assert list(rows) == [each.name for each in fields(QueueSettings)]
    assert rows.pop("clock") == "the machine's"
    assert QueueSettings(**{name: eval(text.strip("`")) for name, text in rows.items()}) == QueueSettings()


def test_each_argument_of_a_group_has_a_row_with_its_default() -> None:
    arguments = {each.name: each.default for each in fields(GroupSource)}
    arguments = {name: arguments[name] for name in list(arguments)[3:]}  # without servers, group and topics
    rows = defaults_in(section("work-queue-engines", "The consumer group"))
    assert {name: eval(text.strip("`")) for name, text in rows.items()} == arguments


def defaults_in(text: str) -> dict[str, str]:
    """Return the first and second cells of the rows of a table whose first cell is a name in backticks."""
    return dict(re.findall(r"^\| `(\w+)` \| ([^|]+) \|", text, re.MULTILINE))


def test_each_method_of_a_queue_has_a_row() -> None:
    methods = {
        name
        for name, each in vars(WorkQueue).items()
        if not name.startswith("_") and (inspect.isfunction(each) or isinstance(each, property))
    }
    assert {"run", "paused"} < methods
    assert methods <= words(section("work-queue-reference", "Methods"))


def test_the_table_of_engines_says_what_their_sources_do() -> None:
    """The table has one column for each source, and one row for each feature."""
    table = (
        page("work-queue-engines")
        .partition("| | GroupSource | PulsarSource | MemorySource |")[2]
        .partition("\n\n")[0]
    )
    rows = re.findall(r"^\| `(\w+)`[^|]*((?:\| [^|]+ )+)\|$", table, re.MULTILINE)
    assert [name for name, _ in rows] == [each.name for each in fields(EngineFeatures)]
    for number, features in enumerate(FEATURES):
        stated = {name: cells.strip("| ").split(" | ")[number] for name, cells in rows}
        assert stated == {name: in_words(getattr(features, name)) for name in stated}


FEATURES: Final = [group_source.FEATURES, pulsar_source.FEATURES, memory_source.FEATURES]
"""The columns of the table."""


def in_words(feature: Any) -> str:
    if isinstance(feature, bool):
        return "yes" if feature else "no"
    if isinstance(feature, str):
        return f"the {feature}"
    assert set(feature) == set(Mode)
    return "all four"


def test_the_arguments_of_consumers_are_those_of_the_code() -> None:
    rows = re.findall(
        r"^\| `(\w+)` \(",
        section("work-queue-reference", "Several processes, several consumers"),
        re.MULTILINE,
    )
    assert set(rows) == set(inspect.signature(WorkQueue.consumer).parameters) - {"self", "name"}
    assert all(
        hasattr(QueueConsumer, name) for name in ("run", "__aiter__", "receive", "batch_receive", "aclose")
    )


def test_the_methods_of_interceptors_and_the_counts_are_those_of_the_code() -> None:
    text = words(section("work-queue-reference", "Interceptors, statistics, health"))
    assert {name for name in vars(QueueInterceptor) if name[0] != "_"} <= text
    assert set(QueueCounts.__dataclass_fields__) <= text


async def test_the_headers_of_copies_are_those_of_the_table() -> None:
    """The columns `retry` and `dead letter`: exactly these headers are added."""
    rows = re.findall(r"^\| (`.*?) \| (yes|no) \| (yes|no) \| ", page("work-queue-reference"), re.MULTILINE)
    stated = [
        {name for cell, *columns in rows if columns[n] == "yes" for name in re.findall(r"`([^`]+)`", cell)}
        for n in range(2)
    ]
    async with broker_with(b"a", b"b") as broker:
        async with queue_of(broker, retry=RetryTopic(), dead_letter=DeadLetter()) as queue:
            await (await queue.receive()).reconsume_later(5)
            await (await queue.receive()).reject("wrong")
        copies = [broker.records(topic) for topic in ("orders-billing-RETRY", "orders-billing-DLQ")]
    assert [{name for name, _ in records[0].headers} for records in copies] == stated


# --- from other clients --------------------------------------------------------------------------------------------------


FAILS: Final = b"bad"
"""A value that the work of the programs with retries fails for."""


def failing(lines: list[Any]) -> Callable[..., None]:
    """Return a replacement of `print` that keeps its arguments, and raises for a bad value."""

    def note(offset: int, value: bytes) -> None:
        lines.append((offset, value))
        if value == FAILS:
            raise ValueError("bad")

    return note


def test_an_aiokafka_loop_that_retries() -> None:
    """It waits between the attempts, which takes no time here."""
    lines: list[Any] = []
    waited: list[float] = []

    async def sleep(seconds: float) -> None:
        waited.append(seconds)

    with KafkaServer(topics={"greetings": 1, "failed": 1}) as server:
        server.produce("greetings", b"a", FAILS, b"c", partition=0)
        names = defined("from-aiokafka", "def one_by_one", server, print=failing(lines))
        names["asyncio"] = SimpleNamespace(sleep=sleep)

        async def main() -> None:
            async with running(names["one_by_one"]()):
                while committed(server, "printers") < 3:
                    await asyncio.sleep(0.02)

        asyncio.run(main())
        (failed,) = server.records("failed")
    assert lines == [(0, b"a"), *[(1, FAILS)] * 6, (2, b"c")]
    assert waited == [1, 2, 4, 8, 16]
    assert (failed.value, dict(failed.headers)["error"]) == (FAILS, b"ValueError('bad')")


async def test_a_queue_that_retries() -> None:
    """As many attempts, but the third record does not wait for them."""
    lines: list[Any] = []
    async with broker_with(b"a", FAILS, b"c", topic="greetings") as broker:
        names = defined("from-aiokafka", "def many_at_a_time", broker, print=failing(lines))
        async with running(names["many_at_a_time"]()):
            await until(lambda: committed(broker, "printers") == 3)
        assert [record.value for record in broker.records("failed")] == [FAILS]
    assert lines == [(0, b"a"), (1, FAILS), (2, b"c"), *[(1, FAILS)] * 5]


async def test_pulsars_loop_here() -> None:
    printed: list[Any] = []
    async with broker_with(b"a", b"b", b"c") as broker:
        names = defined("from-pulsar", "async def main", broker, print=printed.append)
        async with running(names["main"]()):
            await until(lambda: committed(broker, "billing") == 3)
    assert printed == [b"a", b"b", b"c"]


async def test_a_group_of_parallel_consumer_goes_on_here() -> None:
    """Its completed records are not delivered again. The way back: its metadata is not that of parallel-consumer."""
    printed: list[Any] = []
    # run lengths: one incomplete record, two completed ones
    completed = base64.b64encode(b"n" + struct.pack(">hh", 1, 2)).decode()
    async with broker_with(b"a", b"b", b"c", b"d") as broker:
        await commit(broker, 0, completed)
        names = defined("from-parallel-consumer", "async def main", broker, print=printed.append)
        async with running(names["main"]()):
            await until(lambda: committed(broker, "billing") == 4)
        metadata = broker.group("billing").offsets["orders", 0].metadata
        assert metadata
        with pytest.raises(binascii.Error):
            base64.b64decode(metadata, validate=True)
        await commit(broker, 4, "")  # what --to-current does
        assert broker.group("billing").offsets["orders", 0].metadata == ""
    assert printed == [b"a", b"d"]


async def commit(broker: EmbeddedCluster, offset: int, metadata: str) -> None:
    """Commit an offset of partition 0 for the group without members."""
    part = m.OffsetCommitRequest.OffsetCommitRequestPartition(0, offset, committed_metadata=metadata)
    topic = m.OffsetCommitRequest.OffsetCommitRequestTopic("orders", broker.topic("orders").id, [part])
    async with Cluster(broker.bootstrap_servers) as cluster, Consumer(cluster) as consumer:
        await consumer.committed("billing")  # creates __consumer_offsets
        request = m.OffsetCommitRequest("billing", generation_id_or_member_epoch=-1, topics=[topic])
        response = await cluster.request(broker.coordinator("billing"), request)
    assert response.topics[0].partitions[0].error_code == 0


@pytest.mark.parametrize("names", [OPTIONS, RECORDS])
def test_every_name_of_parallel_consumer_has_a_row(names: str) -> None:
    cells = " ".join(first for first, _ in rows_of(page("from-parallel-consumer")))
    assert not set(names.split()) - set(re.findall(r"\w+", cells))


def rows_of(text: str) -> list[list[str]]:
    """Return the first and second cells of the tables in a text."""
    lines = [line for line in text.splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in line.split("|")[1:3]] for line in lines]


def arguments_in(cells: list[list[str]]) -> set[str]:
    """Return the names of second cells such as `ack_timeout=…` without a call."""
    return {name for _, second in cells for name in re.findall(r"`(\w+)=[^`(]*`", second)}


@pytest.mark.parametrize("names", [JAVA_BUILDERS, JAVA_METHODS, PYTHON_ARGUMENTS, PYTHON_METHODS])
def test_every_name_of_pulsar_has_a_row(names: str) -> None:
    named = set(re.findall(r"\w+", " ".join(first for first, _ in rows_of(page("from-pulsar")))))
    missing = {
        name for name in names.split() if name not in named and name.removesuffix("Async") not in named
    }
    assert not missing


def test_arguments_in_the_tables_exist() -> None:
    """They are arguments of WorkQueue, and in the last table of `Producer.send`."""
    queue_tables, _, producer_table = page("from-pulsar").partition("\n## The producer\n")
    of_source = {each.name for each in fields(GroupSource)}
    for text, function in ((queue_tables, WorkQueue), (producer_table, Producer.send)):
        stated = arguments_in(rows_of(text))
        assert stated
        assert stated <= set(inspect.signature(function).parameters) | of_source


def test_a_row_says_what_to_do_where_nothing_is_built() -> None:
    for first, second in rows_of(page("from-pulsar")):
        assert second, first
        assert second not in ("none", "not built"), first
