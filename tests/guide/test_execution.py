"""Every snippet is executed: here, on an embedded broker, or by the test that `EXECUTED` names for it."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import inspect
import json
import threading
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest

import asyncgroup.spark
from asyncgroup import (
    ConsumerConfig,
    ConsumerGroup,
    Producer,
    ProducerConfig,
    Session,
    TopicPartition,
    in_thread,
)
from asyncgroup.broker import EmbeddedCluster
from asyncgroup.errors import BrokerError
from asyncgroup.group.sessions.claim import Claim
from asyncgroup.spark import BatchInterrupted
from asyncgroup.testing import KafkaServer
from tests.guide.pages import ROOT, snippet, snippets
from tests.spark.bridge.fakes import FakeSpark

RECORDS: Final = 3
STORIES: Final = "tests/guide/test_execution.py"
REBALANCES: Final = "tests/guide/test_rebalances.py"
SUITES: Final = "tests/testing/test_pytest_guide.py"
PULSAR_SUITES: Final = "tests/testing/test_pytest_pulsar_guide.py"
SPARK: Final = "tests/spark/test_guide.py"
QUEUES: Final = "tests/guide/test_work_queues.py"
PRODUCTION: Final = "tests/guide/test_in_production.py"
MONITORING: Final = "tests/guide/test_monitoring.py"
ADMIN: Final = "tests/guide/test_admin.py"
PULSAR: Final = "tests/guide/test_pulsar.py"

EXECUTED: Final[dict[tuple[str, str], str]] = {
    ("README", "class Printer"): f"{STORIES}::test_a_program_prints_and_commits",
    ("getting-started", "run(ConsumerGroup"): f"{STORIES}::test_a_program_prints_and_commits",
    ("getting-started", "async for record in group"): f"{STORIES}::test_a_program_prints_and_commits",
    ("groups", "class Printer"): f"{STORIES}::test_a_program_prints_and_commits",
    ("from-aiokafka", "def before"): f"{STORIES}::test_a_program_prints_and_commits",
    ("from-aiokafka", "def after"): f"{STORIES}::test_a_program_prints_and_commits",
    ("from-aiokafka", "def one_by_one"): f"{QUEUES}::test_an_aiokafka_loop_that_retries",
    ("from-aiokafka", "def many_at_a_time"): f"{QUEUES}::test_a_queue_that_retries",
    ("from-pulsar", "async def main"): f"{QUEUES}::test_pulsars_loop_here",
    ("from-parallel-consumer", "async def main"): f"{QUEUES}::test_a_group_of_parallel_consumer_goes_on_here",
    ("from-confluent-kafka", "consumer.poll"): f"{STORIES}::test_a_program_prints_and_commits",
    ("from-confluent-kafka", "def after"): f"{STORIES}::test_a_program_prints_and_commits",
    ("from-java", "claim.batches"): f"{STORIES}::test_a_program_prints_and_commits",
    ("from-sarama", "class Consumer"): f"{STORIES}::test_saramas_handler",
    ("groups", "add_signal_handler"): f"{STORIES}::test_a_program_with_its_own_loop",
    ("groups", "group.records"): f"{STORIES}::test_records_in_one_loop",
    ("groups", "class LagAware"): f"{STORIES}::test_an_assignor_by_lag",
    ("groups", "in_thread(consume)"): f"{STORIES}::test_a_blocking_handler",
    ("groups", "from_thread"): f"{STORIES}::test_a_blocking_handler_that_commits",
    ("groups", "ConsumeTransformProduce(shout)"): f"{STORIES}::test_transactions_from_topic_to_topic",
    ("groups", "class Shout(Handler)"): f"{STORIES}::test_transactions_by_hand",
    ("groups", "claim.renew(3600)"): f"{STORIES}::test_long_work_renews_its_claim",
    ("commits-and-ends", "class Writer"): f"{STORIES}::test_each_batch_is_committed",
    ("configuration", "from_properties"): f"{STORIES}::test_configurations",
    ("configuration", "Cluster("): f"{STORIES}::test_a_shared_cluster",
    ("consumer", "OffsetManager"): f"{STORIES}::test_a_partition_without_a_group",
    ("embedded-broker", "EmbeddedCluster"): f"{STORIES}::test_a_cluster_in_a_program",
    ("getting-started", "for number in range"): f"{STORIES}::test_a_producer_prints_offsets",
    ("producer", "range(100_000)"): f"{STORIES}::test_a_producer",
    ("producer", "publish_or_refuse"): f"{STORIES}::test_errors_of_a_producer",
    ("producer", "class ProducerMeter"): f"{STORIES}::test_the_figures_of_a_producer",
    ("producer", "CommittedOffset(next_offset)"): f"{STORIES}::test_offsets_without_a_member",
    ("producer", "greetings-1"): f"{STORIES}::test_a_transaction",
    ("producer", "end_transaction"): f"{STORIES}::test_a_transaction_that_is_ended_elsewhere",
    ("producer", "chunking=True"): f"{STORIES}::test_a_value_in_chunks",
    ("producer", "ExclusiveProducer("): f"{STORIES}::test_an_exclusive_producer",
    ("producer", "class VipFirst"): f"{STORIES}::test_a_partitioner_with_a_state",
    ("producer", "MemoryBudget(64"): f"{STORIES}::test_producers_that_share_memory",
    ("producer", "class Audit"): f"{STORIES}::test_an_interceptor_of_a_producer",
    ("producer", "deliver_after=13"): f"{STORIES}::test_delivery_times_and_ordering_keys",
    ("configuration", "def servers"): f"{STORIES}::test_bootstrap_servers_from_a_file",
    ("in-production", "FastAPI(lifespan=lifespan)"): f"{PRODUCTION}::application",
    ("in-production", "# billing.py"): f"{PRODUCTION}::test_the_container_of_a_queue",
    ("in-production", "# worker.py"): f"{PRODUCTION}::worker",
    ("monitoring", "serve_probes(8080"): f"{MONITORING}::test_metrics_and_probes_of_a_program",
    ("monitoring", "REGISTRY.register"): f"{MONITORING}::test_metrics_in_a_registry_of_the_program",
    ("monitoring", "class Meter(Hook)"): f"{STORIES}::test_the_meter_counts_records_and_lag",
    ("monitoring", "OpenTelemetryTraces()"): "tests/telemetry/test_otlp.py::test_the_program_of_the_guide",
    ("rebalances", "class Totals"): f"{REBALANCES}::test_a_handler_for_all_protocols",
    (
        "rebalances",
        'assignors=["cooperative-sticky", "range"]',
    ): f"{REBALANCES}::test_a_handler_for_all_protocols",
    ("rebalances", 'assignors="cooperative-sticky")'): f"{REBALANCES}::test_a_handler_for_all_protocols",
    ("rebalances", 'remote_assignor="uniform"'): f"{REBALANCES}::test_a_handler_for_all_protocols",
    ("rebalances", 'group_protocol="auto"'): f"{REBALANCES}::test_a_handler_for_all_protocols",
    ("work-queues", "concurrency=200"): f"{QUEUES}::test_the_first_program",
    ("work-queues", "run_queue(WorkQueue"): f"{QUEUES}::test_a_program",
    ("work-queues", "delivery.ack(durable=True)"): f"{QUEUES}::test_the_ends_of_a_delivery",
    ("work-queue-reference", "async with delivery:"): f"{QUEUES}::test_a_loop_over_deliveries",
    ("work-queue-reference", "decode=parse"): f"{QUEUES}::test_records_that_are_decoded",
    ("work-queue-reference", "await delivery.renew()"): f"{QUEUES}::test_long_work_renews_its_ack_timeout",
    ("work-queue-reference", 'topic="undeliverable"'): f"{QUEUES}::test_the_topics_of_copies",
    ("work-queue-reference", "queue.batch_receive(POLICY)"): f"{QUEUES}::test_batches",
    ("work-queue-reference", "anyio.from_thread"): f"{QUEUES}::test_a_blocking_function",
    ("work-queue-reference", 'queue.consumer("spare"'): f"{QUEUES}::test_two_consumers_of_a_queue",
    ("work-queue-reference", "class Meter(QueueInterceptor)"): f"{QUEUES}::test_an_interceptor_and_figures",
    ("work-queue-engines", "GroupSource("): f"{QUEUES}::test_a_source_of_a_group",
    ("work-queue-engines", "MemorySource(["): f"{QUEUES}::test_a_handler_with_records_in_memory",
    ("pulsar", "def connect"): f"{PULSAR}::test_a_token_is_read_for_each_connection",
    ("pulsar", "PulsarProducerConfig(compression"): f"{PULSAR}::test_messages_are_produced_and_consumed",
    ("pulsar", 'type="failover"'): f"{PULSAR}::test_messages_are_produced_and_consumed",
    ("pulsar", "client.reader("): f"{PULSAR}::test_the_reader",
    ("pulsar", "client.table_view("): f"{PULSAR}::test_the_table_view",
    ("pulsar", "def shout(batch"): f"{PULSAR}::test_from_topic_to_topic",
    ("pulsar", "client.transaction(timeout=30)"): f"{PULSAR}::test_transactions",
    ("pulsar", "concurrency=200"): f"{PULSAR}::test_the_queue",
    ("pulsar", "PulsarSource(client"): f"{PULSAR}::test_a_source_with_arguments",
    ("spark-bridge", "def write"): f"{STORIES}::test_the_bridge_with_a_fake_spark",
    ("spark-bridge", "def deliver"): f"{STORIES}::test_an_interrupted_batch_is_delivered_again",
    ("spark-bridge", "def merge"): f"{STORIES}::test_a_merge_has_a_view_and_a_statement",
    ("spark-bridge", "OffsetsInSink(connect"): f"{SPARK}::test_the_sinks_store_a_batch_once",
    ("spark-bridge", "FailedRows(parsed"): f"{SPARK}::test_the_queue_stores_numbers_and_rejects_the_rest",
    (
        "spark-bridge",
        'keys=("topic", "messageId")',
    ): "tests/spark/bridge/test_queue_on_pulsar.py::test_each_message_of_a_pulsar_is_stored_once",
    ("spark-source-and-sink", 'readStream.format("asyncgroup")'): f"{SPARK}::test_the_streaming_example_runs",
    ("spark-source-and-sink", "transactional.id.prefix"): f"{SPARK}::test_the_transactional_example_runs",
    ("admin", "admin.create_topics"): f"{ADMIN}::test_topics",
    ("admin", "admin.acls.create"): f"{ADMIN}::test_users_and_acls",
    ("admin", "admin.lag"): f"{ADMIN}::test_lag_and_reset",
    ("admin", "admin.plan_reset"): f"{ADMIN}::test_lag_and_reset",
    ("getting-started", "import pytest"): f"{SUITES}::test_the_first_test_of_a_newcomer",
    ("testing-kit", "from aiokafka"): f"{SUITES}::test_the_examples_without_spark",
    ("testing-kit", "from confluent_kafka"): f"{SUITES}::test_the_examples_without_spark",
    ("testing-kit", "virtual_kafka"): f"{SUITES}::test_the_examples_without_spark",
    ("testing-kit", "spark.read"): f"{SUITES}::test_the_example_with_spark",
    ("testing-kit", "kafka_session_options"): f"{SUITES}::test_the_options_of_a_sessions_cluster",
    ("testing-kit-pulsar", "import pulsar"): f"{PULSAR_SUITES}::test_the_examples",
    ("testing-kit-pulsar", "WorkQueue"): f"{PULSAR_SUITES}::test_the_examples",
    ("testing-kit-pulsar", "client.transaction"): f"{PULSAR_SUITES}::test_the_examples",
    ("testing-kit-pulsar", "expire_token"): f"{PULSAR_SUITES}::test_the_examples",
}
"""The test that executes each snippet, by page and a text that only this snippet of the page contains."""


@pytest.fixture
def printed() -> Printed:
    """What a snippet prints."""
    return Printed()


def test_every_snippet_is_executed() -> None:
    assert sorted(snippet(*key) for key in EXECUTED) == sorted(each.code for each in snippets())


@pytest.mark.parametrize("key", EXECUTED, ids=" ".join)
def test_the_named_test_uses_the_snippet(key: tuple[str, str]) -> None:
    path, name = EXECUTED[key].split("::")
    text = (ROOT / path).read_text(encoding="utf-8")
    found = [node for node in ast.walk(ast.parse(text)) if getattr(node, "name", "") == name]
    assert len(found) == 1
    source = ast.get_source_segment(text, found[0]) or ""
    parameters = text.partition(f"def {name}(")[0].rpartition("\n\n\n")[2]
    assert key[1] in source or repr(key[1])[1:-1] in source + parameters


# --- tools ------------------------------------------------------------------------------------------------------------


class Enough(Exception):
    """Ends a program that would consume forever."""


class Printed(list[tuple[object, ...]]):
    """A replacement of `print` that ends the program at the record with this number, by an exception."""

    def __init__(self, last: int = RECORDS) -> None:
        self._last = last
        self._lock = threading.Lock()

    def __call__(self, *values: object, **_: Any) -> None:
        with self._lock:
            self.append(values)
            records = sum(any(isinstance(value, bytes) for value in line) for line in self)
        if records >= self._last:
            raise Enough

    @property
    def values(self) -> list[object]:
        """The last value of each line with bytes."""
        return [line[-1] for line in self if isinstance(line[-1], bytes)]


@pytest.fixture
def server() -> Iterator[KafkaServer]:
    """A broker with records in the one partition of `greetings`, and offset 0 committed for the groups of the snippets."""
    with KafkaServer(topics={"greetings": 1, "copies": 1}) as kafka:
        kafka.produce("greetings", *(b"%d" % number for number in range(RECORDS)), partition=0)
        for group in ("copies", "reports", "printers"):
            kafka.commit(group, {("greetings", 0): 0})
        yield kafka


def define(code: str, server: KafkaServer, *, main: bool = False, **names: Any) -> dict[str, Any]:
    """Execute a snippet with the server's address, as a program if `main`; return its names.

    A snippet with `await` at the top level runs in a separate event loop.
    """
    names["__name__"] = "__main__" if main else "snippet"
    code = code.replace("127.0.0.1:9092", server.bootstrap_servers)
    compiled = compile(code, "snippet", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    if compiled.co_flags & inspect.CO_COROUTINE:
        asyncio.run(eval(compiled, names))
    else:
        exec(compiled, names)
    return names


def committed(server: KafkaServer, group: str) -> int:
    return sum(each.offset for each in server.group(group).offsets.values())


async def until(condition: Callable[[], bool], work: Coroutine[Any, Any, Any]) -> None:
    """Run `work` until the condition is met, then cancel it."""
    task = asyncio.ensure_future(work)
    while not await asyncio.to_thread(condition):
        assert not task.done(), task
        await asyncio.sleep(0.02)
    task.cancel()
    await asyncio.wait([task])


# --- the client -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("page", "text", "group", "commits"),
    [
        ("README", "class Printer", "printers", RECORDS - 1),
        ("getting-started", "run(ConsumerGroup", "printers", RECORDS - 1),
        ("getting-started", "async for record in group", "readers", RECORDS - 1),
        ("groups", "class Printer", "printers", RECORDS - 1),
        ("from-aiokafka", "def before", "printers", RECORDS),  # the record that it works on as well
        ("from-aiokafka", "def after", "printers", RECORDS - 1),
        ("from-confluent-kafka", "consumer.poll", "printers", RECORDS),
        ("from-confluent-kafka", "def after", "printers", RECORDS - 1),
        ("from-java", "claim.batches", "printers", 0),  # none of the batch is marked
    ],
)
def test_a_program_prints_and_commits(
    server: KafkaServer, page: str, text: str, group: str, commits: int
) -> None:
    """It is ended in the middle of the third record; the first two are committed."""
    printed = Printed()
    with pytest.raises(Enough):
        define(snippet(page, text), server, main=True, print=printed)
    assert printed.values == [b"0", b"1", b"2"]
    assert committed(server, group) == commits


def test_saramas_handler(printed: Printed, server: KafkaServer) -> None:
    names = define(snippet("from-sarama", "class Consumer"), server, print=printed)
    with pytest.raises(Enough):
        asyncio.run(names["main"]())
    assert [line[0] for line in printed] == ["generation", b"0", b"1", b"2", "ended:"]
    assert committed(server, "printers") == RECORDS - 1


def test_a_program_with_its_own_loop(printed: Printed, server: KafkaServer) -> None:
    names = define(snippet("groups", "class Printer"), server, print=printed)
    names = define(snippet("groups", "add_signal_handler"), server, **names)
    with pytest.raises(Enough):
        asyncio.run(names["main"]())
    assert committed(server, "printers") == RECORDS - 1


def test_records_in_one_loop(printed: Printed, server: KafkaServer) -> None:
    names = define(snippet("groups", "class Printer"), server, print=printed)
    with pytest.raises(Enough):
        define(snippet("groups", "group.records"), server, **names)
    assert committed(server, "printers") == RECORDS - 1


def test_a_blocking_handler(printed: Printed, server: KafkaServer) -> None:
    names = define(snippet("groups", "in_thread(consume)"), server, print=printed)
    with pytest.raises(Enough):
        asyncgroup.run(ConsumerGroup(server.bootstrap_servers, "printers"), "greetings", names["handler"])
    assert printed.values == [b"0", b"1", b"2"]
    assert committed(server, "printers") == RECORDS - 1


def test_a_blocking_handler_that_commits(server: KafkaServer) -> None:
    printed = Printed(RECORDS + 1)
    function = define(snippet("groups", "from_thread"), server, print=printed)["consume_and_commit"]

    async def main() -> None:
        config = ConsumerConfig(auto_commit=False)
        async with ConsumerGroup(server.bootstrap_servers, "printers", config) as group:
            await group.run("greetings", in_thread(function))

    asyncio.run(until(lambda: committed(server, "printers") == RECORDS, main()))
    assert printed == [(0, [b"0", b"1", b"2"])]


def test_long_work_renews_its_claim(printed: Printed, server: KafkaServer) -> None:
    convert = define(snippet("groups", "claim.renew(3600)"), server, print=printed)["convert"]

    async def handle(session: Session, claim: Claim) -> None:
        async for record in claim:
            await convert(claim, record)
            assert claim._inner.is_renewed(asyncio.get_running_loop().time() + 3500)

    with pytest.raises(Enough):
        asyncgroup.run(ConsumerGroup(server.bootstrap_servers, "printers"), "greetings", handle)


def copies(server: KafkaServer) -> list[bytes | None]:
    """Return the values that are committed in `copies`; the other records of the log are markers."""
    return [record.value for record in server.records("copies")]


def test_transactions_from_topic_to_topic(server: KafkaServer) -> None:
    code = snippet("groups", "ConsumeTransformProduce(shout)").replace("asyncio.run(main())", "")
    names = define(code, server)
    asyncio.run(until(lambda: committed(server, "printers") == RECORDS, names["main"]()))
    assert copies(server) == [b"0", b"1", b"2"]


def test_transactions_by_hand(server: KafkaServer) -> None:
    names = define(snippet("groups", "class Shout(Handler)"), server)

    async def main() -> None:
        config = ConsumerConfig(auto_offset_reset="earliest", isolation_level="read_committed")
        async with (
            Producer(server.bootstrap_servers, ProducerConfig(transactional_id="shouting")) as producer,
            ConsumerGroup(server.bootstrap_servers, "printers", config) as group,
        ):
            await group.run("greetings", names["Shout"](producer))

    asyncio.run(until(lambda: committed(server, "printers") == RECORDS, main()))
    assert copies(server) == [b"0", b"1", b"2"]


def test_each_batch_is_committed(server: KafkaServer) -> None:
    written: list[list[bytes]] = []

    async def write_to_database(batch: Any) -> None:
        if written:
            raise Enough
        written.append([record.value for record in batch])
        await asyncio.to_thread(server.produce, "greetings", b"later", partition=0)

    names = define(snippet("commits-and-ends", "class Writer"), server, write_to_database=write_to_database)
    group = ConsumerGroup(server.bootstrap_servers, "printers", ConsumerConfig(auto_commit=False))
    with pytest.raises(Enough):
        asyncgroup.run(group, "greetings", names["Writer"]())
    assert written == [[b"0", b"1", b"2"]]
    assert committed(server, "printers") == RECORDS


def test_configurations(server: KafkaServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ca.pem").touch()
    names = define(snippet("configuration", "from_properties"), server, password="secret")
    assert names["group"].group_id == "billing"
    assert names["group"].config.session_timeout == 10.0
    assert names["config"].security.protocol == "SASL_SSL"


def test_a_shared_cluster(server: KafkaServer) -> None:
    names = define(snippet("configuration", "Cluster("), server)
    asyncio.run(until(lambda: len(server.records("copies")) == RECORDS, names["copy"]()))
    assert [record.value for record in server.records("copies")] == [b"0", b"1", b"2"]


def test_a_partition_without_a_group(server: KafkaServer) -> None:
    printed = Printed(last=RECORDS + 1)
    code = snippet("consumer", "OffsetManager").replace("asyncio.run(main())", "")
    names = define(code, server, print=printed)
    # the offsets are committed once a second
    asyncio.run(until(lambda: committed(server, "reports") == RECORDS, names["main"]()))
    assert printed.values == [b"0", b"1", b"2"]


def test_a_cluster_in_a_program(printed: Printed, server: KafkaServer) -> None:
    define(snippet("embedded-broker", "EmbeddedCluster"), server, main=True, print=printed)
    assert printed == [([b"hello"],)]


def test_a_producer_prints_offsets(printed: Printed, server: KafkaServer) -> None:
    define(snippet("getting-started", "for number in range"), server, main=True, print=printed)
    assert printed == [(f"partition 0, offset {offset}",) for offset in range(RECORDS, RECORDS + 10)]


def test_a_producer(printed: Printed, server: KafkaServer) -> None:
    define(snippet("producer", "range(100_000)"), server, main=True, print=printed)
    assert printed == [(f"partition 0, offset {RECORDS}",)]
    assert server.records("greetings", 0)[-1].offset == RECORDS + 100_000


async def test_errors_of_a_producer() -> None:
    names: dict[str, Any] = {}
    exec(snippet("producer", "publish_or_refuse"), names)
    async with EmbeddedCluster(nodes=1, seed=1) as broker:
        broker.create_topic("greetings", 1, configs={"max.message.bytes": "1000"})
        async with Producer(broker.bootstrap_servers, ProducerConfig(max_pending_records=1)) as producer:
            assert await names["publish"](producer, b"x") == "offset 0"
            too_large = await names["publish"](producer, b"x" * 2000)
            assert too_large.startswith("invalid: 1 record for greetings-0: MESSAGE_TOO_LARGE (10): ")
            assert (await names["publish"](producer, b"x" * 2_000_000)).startswith("invalid: size=2000021 is")
            lost = await names["publish_all"](producer, [b"y", b"x" * 2000, b"x" * 3000])
            assert lost == {TopicPartition("greetings", 0): 2}
            assert await names["publish_or_refuse"](producer, b"z")
            pending = producer.send_nowait("greetings", b"pending")
            assert not await names["publish_or_refuse"](producer, b"refused")
            await pending
            broker.faults.on("Produce", times=None).drop()
            assert (await names["publish"](producer, b"x")).startswith(
                "perhaps written: 1 record for greetings-0"
            )
        assert [record.value for record in broker.records("greetings")][:4] == [b"x", b"y", b"z", b"pending"]


async def test_the_figures_of_a_producer() -> None:
    names: dict[str, Any] = {}
    exec(snippet("producer", "class ProducerMeter"), names)
    meter = names["ProducerMeter"]()
    async with EmbeddedCluster(nodes=1, seed=1) as broker:
        broker.create_topic("greetings", 1)
        async with names["metered_producer"](broker.bootstrap_servers, meter) as producer:
            broker.faults.on("Produce").delay(0.01)
            await producer.send("greetings", b"x")
            broker.faults.on("Produce").error("INVALID_RECORD")
            with pytest.raises(BrokerError):
                await producer.send("greetings", b"y")
    assert (dict(meter.written), dict(meter.failed)) == ({"greetings": 1}, {"greetings": 1})
    assert 0 < meter.longest < 1


async def test_offsets_without_a_member() -> None:
    names: dict[str, Any] = {}
    exec(snippet("producer", "CommittedOffset(next_offset)"), names)
    async with EmbeddedCluster(nodes=1, seed=1) as broker:
        broker.create_topic("greetings", 1)
        broker.create_topic("copies", 1)
        async with Producer(broker.bootstrap_servers, ProducerConfig(transactional_id="t")) as producer:
            await names["shout"](producer, [b"hello"], 7)
        assert [record.value for record in broker.records("copies")] == [b"HELLO"]
        committed = broker.group("shouting").offsets
        assert [each.offset for each in committed.values()] == [7]


def test_a_transaction(server: KafkaServer) -> None:
    define(snippet("producer", "greetings-1"), server, main=True)
    assert {record.value for record in server.records("greetings", 0)[RECORDS:]} == {b"hello", b"bonjour"}


def test_a_transaction_that_is_ended_elsewhere(server: KafkaServer) -> None:
    names = define(snippet("producer", "end_transaction"), server)
    written = [asyncio.run(names["write"](server.bootstrap_servers, slot)) for slot in range(2)]
    asyncio.run(names["commit"](server.bootstrap_servers, written))
    assert [record.value for record in server.records("greetings", 0)[RECORDS:]] == [b"hello"] * 2
    assert [exchange.request.committed for exchange in server.history.of("EndTxn")] == [True, True]


async def test_a_partitioner_with_a_state() -> None:
    names: dict[str, Any] = {}
    exec(snippet("producer", "class VipFirst"), names)
    async with EmbeddedCluster(nodes=1, seed=1) as broker:
        broker.create_topic("greetings", 3)
        async with names["vip_producer"](broker.bootstrap_servers) as producer:
            keys = [b"vip", b"a", b"b", None, b"vip"]
            assert [(await producer.send("greetings", b"x", key=key)).partition for key in keys] == [
                0,
                2,
                1,
                2,
                0,
            ]


async def test_producers_that_share_memory() -> None:
    names: dict[str, Any] = {}
    exec(snippet("producer", "MemoryBudget(64"), names)
    async with EmbeddedCluster(nodes=1, seed=1) as broker:
        broker.create_topic("greetings", 3)
        one, other = names["two_producers"](broker.bootstrap_servers)
        async with one, other:
            await asyncio.gather(one.send("greetings", b"x"), other.send("greetings", b"y"))
        assert {record.value for record in broker.records("greetings")} == {b"x", b"y"}


async def test_an_interceptor_of_a_producer(printed: Printed) -> None:
    names: dict[str, Any] = {"print": printed}
    exec(snippet("producer", "class Audit"), names)
    async with EmbeddedCluster(nodes=1, seed=1) as broker:
        broker.create_topic("greetings", 1)
        async with names["audited"](broker.bootstrap_servers) as producer:
            assert (await producer.send("greetings", b"x")).sequence_id == 0
            broker.faults.on("Produce").error("INVALID_RECORD")
            with pytest.raises(BrokerError):
                await producer.send("greetings", b"y", key=b"k")
        assert [list(record.headers) for record in broker.records("greetings")] == [[("source", b"web")]]
    assert "b'k' was not written: 1 record for greetings-0: INVALID_RECORD" in str(printed[0][0])


async def test_delivery_times_and_ordering_keys() -> None:
    names: dict[str, Any] = {}
    exec(snippet("producer", "deliver_after=13"), names)
    async with EmbeddedCluster(nodes=1, seed=1) as broker:
        broker.create_topic("reminders", 1)
        async with Producer(broker.bootstrap_servers, clock=lambda: 5) as producer:
            await names["remind"](producer, b"ann")
        assert [list(record.headers) for record in broker.records("reminders")] == [
            [("ag-deliver-at", b"1123200005")],
            [("ag-deliver-at", b"1893456000000")],
            [("ag-ordering-key", b"billing")],
        ]


async def test_bootstrap_servers_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names: dict[str, Any] = {}
    exec(snippet("configuration", "def servers"), names)
    monkeypatch.chdir(tmp_path)
    async with EmbeddedCluster(nodes=1, seed=1) as broker:
        broker.create_topic("greetings", 1)
        Path("kafka.json").write_text(json.dumps({"servers": [broker.bootstrap_servers]}))
        async with names["live_producer"]() as producer:
            assert (await producer.send("greetings", b"x")).offset == 0


def test_an_exclusive_producer(server: KafkaServer) -> None:
    define(snippet("producer", "ExclusiveProducer("), server, main=True)
    assert [record.value for record in server.records("greetings", 0)][RECORDS:] == [b"from the only one"]


def test_a_value_in_chunks(printed: Printed, server: KafkaServer) -> None:
    define(snippet("producer", "chunking=True"), server, main=True, print=printed)
    assert printed == [
        (f"offsets {RECORDS} to {RECORDS + 2}",),
        (f"offsets {RECORDS} to {RECORDS + 2}: 3000000 bytes",),
    ]


async def test_the_meter_counts_records_and_lag(monkeypatch: pytest.MonkeyPatch) -> None:
    names: dict[str, Any] = {}
    exec(snippet("monitoring", "class Meter(Hook)"), names)
    meter = names["Meter"]()

    async def read(session: Session, claim: Claim) -> None:
        async for record in claim:
            claim.mark(record)
            if (record.partition, record.offset) == (1, 2):
                await session.wait_ended()
                return

    async with EmbeddedCluster(nodes=1, seed=1) as broker:
        broker.create_topic("greetings", 2)

        def group_of(_servers: str, group_id: str, **more: Any) -> ConsumerGroup:
            config = ConsumerConfig(auto_offset_reset="earliest")
            return ConsumerGroup(broker.bootstrap_servers, group_id, config, **more)

        monkeypatch.setitem(names, "ConsumerGroup", group_of)
        async with Producer(broker.bootstrap_servers) as producer:
            for number in range(20):
                await producer.send("greetings", b"hello", partition=number % 2)
        assert meter.lag == 0
        async with names["metered"](meter) as group:
            running = asyncio.create_task(group.run("greetings", read))
            await asyncio.sleep(10.0)
            assert meter.records == {"greetings": 13}
            assert meter.lag == group.health().lag == 7
            await group.aclose()
            await running
        assert meter.lag == 0


async def test_an_assignor_by_lag(monkeypatch: pytest.MonkeyPatch) -> None:
    """The partition with as much lag as two others together goes to a separate member."""

    async def wait(_session: Session, claim: Claim) -> None:
        async for _ in claim:
            await claim.wait_ended()

    async with EmbeddedCluster(nodes=1, seed=1) as broker:
        broker.create_topic("greetings", 4)
        for partition, records in enumerate((101, 61, 41, 0)):
            broker.produce("greetings", *[b"hello"] * records, partition=partition)
        code = snippet("groups", "class LagAware").replace("127.0.0.1:9092", broker.bootstrap_servers)
        async with contextlib.AsyncExitStack() as stack:
            groups: list[ConsumerGroup] = []
            for _ in range(2):
                names: dict[str, Any] = {}
                exec(code.replace("ConsumerConfig(", 'ConsumerConfig(auto_offset_reset="earliest", '), names)
                groups.append(await stack.enter_async_context(names["group"]))
                running = asyncio.create_task(groups[-1].run("greetings", wait))
                stack.push_async_callback(asyncio.wait, [running])
                stack.callback(running.cancel)
                await asyncio.sleep(10.0)
            shares = [
                sorted(tp.partition for tp in group.session.partitions)
                for group in groups
                if group.session is not None
            ]
    assert sorted(shares) == [[0, 3], [1, 2]]


# --- Spark's bridge, without Spark ------------------------------------------------------------------------------------


class Rows:
    """A DataFrame that remembers where it was written."""

    def __init__(self, targets: list[tuple[str, str]]) -> None:
        self._targets = targets
        self._mode = ""

    def where(self, _: object) -> Rows:
        return self

    @property
    def write(self) -> Rows:
        return self

    def mode(self, mode: str) -> Rows:
        self._mode = mode
        return self

    def parquet(self, target: str) -> None:
        self._targets.append((self._mode, target))


def test_the_bridge_with_a_fake_spark(server: KafkaServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The range from 0 to 3 is written to its directory, then committed."""
    for module in ("pyarrow", "pandas", "pyspark.sql"):
        pytest.importorskip(module)  # before the heartbeats begin, because it takes seconds
    targets: list[tuple[str, str]] = []
    spark = FakeSpark()
    monkeypatch.setattr(spark, "createDataFrame", lambda *_: Rows(targets))
    monkeypatch.setattr(asyncgroup.spark, "local_session", lambda _: spark, raising=False)
    monkeypatch.setattr(asyncgroup.spark.OffsetRange, "rows", lambda _, df: df)
    code = snippet("spark-bridge", "def write").replace("asyncio.run(main())", "")
    names = define(code, server)
    asyncio.run(until(lambda: committed(server, "lake") == RECORDS, names["main"]()))
    assert targets == [("overwrite", f"lake/greetings/0/{0:020d}")]


@pytest.mark.real
async def test_an_interrupted_batch_is_delivered_again() -> None:
    names: dict[str, Any] = {"print": (printed := Printed())}
    exec(snippet("spark-bridge", "def deliver"), names)
    results = [BatchInterrupted("the batch took too long"), None]

    async def run(topic: str, _: object) -> None:
        assert topic == "greetings"
        if (error := results.pop(0)) is not None:
            raise error

    await names["deliver"](SimpleNamespace(run=run), object())
    assert results == []
    assert "the batch took too long" in str(printed[0][0])


def test_a_merge_has_a_view_and_a_statement() -> None:
    calls: list[str] = []
    names: dict[str, Any] = {}
    exec(snippet("spark-bridge", "def merge"), names)
    frame = SimpleNamespace(
        createOrReplaceTempView=calls.append, sparkSession=SimpleNamespace(sql=calls.append)
    )
    names["merge"](frame, 1)
    assert calls[0] == "batch"
    assert "USING batch AS new" in calls[1]
