"""The transactional writers, called as Spark calls them, on a broker in a thread."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext

from asyncgroup.broker.metadata.features import DEFAULT_LEVELS
from asyncgroup.cluster.coordinators import TRANSACTION
from asyncgroup.errors import AsyncGroupError, ConfigError
from asyncgroup.spark.sink.producer_cache import ProducerCache
from asyncgroup.spark.sink.transactions.errors import TransactionalSinkError
from asyncgroup.spark.sink.transactions.kafka import KafkaTransactions
from asyncgroup.spark.sink.transactions.records import SlotTransaction
from asyncgroup.spark.sink.transactions.task import BATCH_PROPERTY, QUERY_PROPERTY
from asyncgroup.spark.sink.transactions.writers import SlotCommitMessage
from asyncgroup.spark.sink.write_settings import write_settings
from asyncgroup.spark.sink.writer import make_writer
from asyncgroup.testing import KafkaServer
from asyncgroup.wire import messages as m
from tests.producer.transactions.support import committed
from tests.spark.sink.test_writer import SERVERS, schema_of

PREFIX = "copy"


@pytest.fixture(autouse=True)
def task_context(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Outside of Spark, tasks are made by `Spark`; the heap of pytest is not frozen."""
    monkeypatch.setattr("asyncgroup.spark.sink.transactions.writers.freeze_heap", lambda: None)
    yield
    TaskContext._setTaskContext(None)


@dataclass
class Spark:
    """Calls writers as a query's driver and executors do."""

    server: KafkaServer
    own_cache: Callable[[], None]
    """Replaces the worker's cache by that of a new worker."""
    options: dict[str, str] = field(default_factory=dict)
    query_id: str = "q1"
    stream: bool = True

    def writer(self) -> Any:
        options = {
            "kafka.bootstrap.servers": self.server.bootstrap_servers,
            "transactional.id.prefix": PREFIX,
            "topic": "out",
            **self.options,
        }
        return make_writer(options, schema_of("value string"), stream=self.stream)

    def enter_task(self, batch: int, slot: int) -> None:
        properties = {QUERY_PROPERTY: self.query_id, BATCH_PROPERTY: str(batch)}
        TaskContext._setTaskContext(TaskContext(partitionId=slot, localProperties=properties))

    def task(self, batch: int, slot: int, rows: Sequence[int], writer: Any = None) -> SlotCommitMessage:
        self.enter_task(batch, slot)
        pickled = pickle.loads(pickle.dumps(writer or self.writer()))
        data = [pa.RecordBatch.from_pydict({"value": [str(row) for row in rows]})] if rows else []
        message = pickle.loads(pickle.dumps(pickled.write(iter(data))))
        assert isinstance(message, SlotCommitMessage)
        return message

    def tasks(self, batch: int, slots: Sequence[Sequence[int]]) -> list[SlotCommitMessage]:
        return [self.task(batch, slot, rows) for slot, rows in enumerate(slots)]

    def run(self, batch: int, slots: Sequence[Sequence[int]]) -> None:
        self.writer().commit(self.tasks(batch, slots), batch)


@pytest.fixture
def spark(kafka_server: KafkaServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Spark]:
    kafka_server.create_topic("out", 2)
    caches: list[ProducerCache] = []

    def new_worker() -> None:
        caches.append(ProducerCache())
        monkeypatch.setattr("asyncgroup.spark.sink.transactions.writers.producer_cache", caches[-1])

    new_worker()
    yield Spark(kafka_server, new_worker)
    for cache in caches:
        cache.close()


def visible(server: KafkaServer, topic: str = "out") -> list[int]:
    """Return the rows that readers of committed records see."""
    return sorted(int(value or b"") for value in server.call(lambda cluster: committed(cluster, topic=topic)))


def open_transactions(server: KafkaServer) -> list[str]:
    transactions = server.call(lambda cluster: cluster.transactions)
    return sorted(name for name, each in transactions.items() if each.state == "Ongoing")


class Killed(BaseException):
    """The process dies here."""


def die_in_end(monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    """Let the driver die when it has ended `after` transactions."""
    end, ended = KafkaTransactions.end, []

    async def dying(self: KafkaTransactions, transaction: SlotTransaction, *, commit: bool) -> bool:
        if len(ended) == after:
            raise Killed
        ended.append(transaction)
        return await end(self, transaction, commit=commit)

    monkeypatch.setattr(KafkaTransactions, "end", dying)


# --- batches ----------------------------------------------------------------------------------------------------------


def test_batches_become_visible_when_they_are_committed(spark: Spark) -> None:
    messages = spark.tasks(0, [[1, 2], [], [3]])
    assert [message.result.rows for message in messages] == [2, 0, 1]
    assert [message.result.transaction is None for message in messages] == [False, True, False]
    assert not visible(spark.server)
    assert open_transactions(spark.server) == ["copy-0", "copy-2"]
    spark.writer().commit(messages, 0)
    assert visible(spark.server) == [1, 2, 3]
    assert not open_transactions(spark.server)
    spark.run(1, [[], []])
    spark.run(2, [[4], [5], [6]])
    assert visible(spark.server) == [1, 2, 3, 4, 5, 6]
    assert repr(spark.writer()) == "<TransactionalStreamWriter to out, transactions copy-*>"


def test_a_batch_query_is_committed_or_aborted(spark: Spark) -> None:
    spark.stream = False
    for rows, outcome in (([1, 2], "commit"), ([3, 4], "abort"), ([5, 6], "commit")):
        writer = spark.writer()
        messages = [spark.task(0, slot, [row], writer) for slot, row in enumerate(rows)]
        getattr(writer, outcome)(messages)
        assert not open_transactions(spark.server)
    assert visible(spark.server) == [1, 2, 5, 6]


def test_a_failed_task_aborts_its_transaction(spark: Spark) -> None:
    first = spark.task(0, 0, [1])

    def broken() -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict({"value": ["2"]})
        raise RuntimeError("the pipe broke")

    spark.enter_task(0, 1)
    with pytest.raises(RuntimeError, match="the pipe broke"):
        spark.writer().write(broken())
    assert open_transactions(spark.server) == ["copy-0"]
    spark.writer().abort([first, None], 0)
    assert not open_transactions(spark.server)
    spark.run(0, [[1], [2]])
    assert visible(spark.server) == [1, 2]


def test_the_coordinators_of_a_batch_are_looked_up_at_once(spark: Spark) -> None:
    messages = spark.tasks(0, [[1], [2], [3]])
    looked_up = len(spark.server.history.of("FindCoordinator"))
    spark.writer().commit(messages, 0)
    transactional = [
        sorted(each.request.coordinator_keys)
        for each in spark.server.history.of("FindCoordinator")[looked_up:]
        if each.request.key_type == TRANSACTION
    ]
    assert transactional == [["copy-0", "copy-1", "copy-2"]]


# --- responses ---------------------------------------------------------------------------------------------------------


def without_slot_1(response: m.DescribeTransactionsResponse) -> None:
    response.transaction_states = [
        each for each in response.transaction_states if each.transactional_id != "copy-1"
    ]


def test_a_description_without_a_transaction_is_asked_for_again(spark: Spark) -> None:
    """As Java's admin client does (`AdminApiDriver`)."""
    fault = spark.server.faults.on("DescribeTransactions", mutate=without_slot_1)
    spark.run(0, [[1], [2]])
    assert fault.hits == 1
    assert visible(spark.server) == [1, 2]


def test_descriptions_that_never_have_a_transaction_end_in_an_error(spark: Spark) -> None:
    spark.options["kafka.max.block.ms"] = "2000"
    spark.server.faults.on("DescribeTransactions", mutate=without_slot_1, times=None)
    messages = spark.tasks(0, [[1], [2]])
    with pytest.raises(AsyncGroupError, match=r"DescribeTransactions .* node 1 has no entry for 'copy-1'"):
        spark.writer().commit(messages, 0)
    assert not visible(spark.server), "nothing is committed"


def test_values_in_chunks(spark: Spark) -> None:
    """A value is committed whole; the rows of a slot are counted by values, not by chunks."""
    spark.options |= {"kafka.chunking": "true", "kafka.max.chunk.size": "1024"}
    spark.enter_task(0, 0)
    batch = pa.RecordBatch.from_pydict({"value": ["x" * 5000]})
    message = spark.writer().write(iter([batch]))
    assert message.result.rows == 1
    assert not spark.server.call(lambda cluster: committed(cluster, topic="out"))
    spark.writer().commit([message], 0)
    parts = spark.server.call(lambda cluster: committed(cluster, topic="out"))
    assert len(parts) > 4
    assert b"".join(value or b"" for value in parts) == b"x" * 5000


# --- deaths -----------------------------------------------------------------------------------------------------------


def test_a_second_attempt_replaces_the_first(spark: Spark) -> None:
    first = spark.task(0, 0, [1, 2])
    spark.own_cache()
    second = spark.task(0, 0, [1, 2])
    with pytest.raises(
        TransactionalSinkError, match="batch 0 cannot be committed: copy-0 is not open any more"
    ):
        spark.writer().commit([first], 0)
    spark.writer().commit([second], 0)
    assert visible(spark.server) == [1, 2]


@pytest.mark.parametrize("version", [2, pytest.param(1, marks=pytest.mark.full)])
@pytest.mark.parametrize("ended", [0, 1, 2, 3, None])
def test_the_driver_dies_while_it_commits(
    spark: Spark, monkeypatch: pytest.MonkeyPatch, ended: int | None, version: int
) -> None:
    """With None it dies before it has stored anything. Transactions of version 1 are those without KIP-890."""
    monkeypatch.setitem(DEFAULT_LEVELS, "transaction.version", version)
    slots = [[1], [2, 3], [4]]
    messages = spark.tasks(7, slots)
    assert {each.result.transaction and each.result.transaction.version for each in messages} == {version}
    if ended is None:
        assert not visible(spark.server)
    elif ended == len(slots):
        spark.writer().commit(messages, 7)
    else:
        with monkeypatch.context() as dying:
            die_in_end(dying, ended)
            with pytest.raises(Killed):
                spark.writer().commit(messages, 7)
        assert len(open_transactions(spark.server)) == len(slots) - ended
    spark.own_cache()
    # the transactions were prepared, so another plan is no problem
    again = spark.tasks(7, slots if ended is not None and ended % 2 else [[1, 2, 3], [4]])
    spark.writer().commit(again, 7)
    assert visible(spark.server) == [1, 2, 3, 4]
    assert not open_transactions(spark.server)
    spark.run(8, [[5], [6]])
    assert visible(spark.server) == [1, 2, 3, 4, 5, 6]


def test_the_rest_of_a_batch_is_written_again_after_the_timeout(
    spark: Spark, monkeypatch: pytest.MonkeyPatch
) -> None:
    slots = [[1], [2, 3], [4]]
    messages = spark.tasks(0, slots)
    with monkeypatch.context() as dying:
        die_in_end(dying, 1)
        with pytest.raises(Killed):
            spark.writer().commit(messages, 0)
    spark.server.advance(1000)
    assert not open_transactions(spark.server)
    other = spark.tasks(0, [[1, 2], [3, 4]])
    with pytest.raises(
        TransactionalSinkError, match="has 2 tasks instead of 3: the query's plan is not determ"
    ):
        spark.writer().commit(other, 0)
    spark.writer().abort(other, 0)
    other = spark.tasks(0, [[1], [2], [3, 4]])
    with pytest.raises(TransactionalSinkError, match="has 1 rows instead of 2 in task 1"):
        spark.writer().commit(other, 0)
    spark.writer().abort(other, 0)
    spark.run(0, slots)
    assert visible(spark.server) == [1, 2, 3, 4]


def test_a_batch_that_takes_too_long_is_not_committed_at_all(spark: Spark) -> None:
    messages = [spark.task(0, 0, [1])]
    spark.server.advance(1000)
    messages.append(spark.task(0, 1, [2]))
    with pytest.raises(
        TransactionalSinkError, match=r"copy-0 is not open any more.*Nothing of the batch is"
    ) as error:
        spark.writer().commit(messages, 0)
    assert "kafka.transaction.timeout.ms" in str(error.value)
    spark.writer().abort(messages, 0)
    assert not open_transactions(spark.server)
    spark.run(0, [[1], [2]])
    assert visible(spark.server) == [1, 2]


def test_abort_after_a_failed_commit_completes_the_commit(
    spark: Spark, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages = spark.tasks(0, [[1], [2], [3]])
    with monkeypatch.context() as failing:
        die_in_end(failing, 1)
        with pytest.raises(Killed):
            spark.writer().commit(messages, 0)
    spark.writer().abort(messages, 0)
    assert visible(spark.server) == [1, 2, 3]


def test_fewer_tasks_leave_no_transaction_open(spark: Spark) -> None:
    spark.tasks(0, [[1], [2], [3], [4]])
    assert len(open_transactions(spark.server)) == 4
    spark.run(0, [[1, 2], [3, 4]])
    assert not open_transactions(spark.server)
    assert visible(spark.server) == [1, 2, 3, 4]


def test_a_query_that_writes_to_another_topic_takes_over(
    spark: Spark, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commits of both topics are then side by side in the groups of the slots."""
    spark.run(5, [[1], [2]])
    spark.server.create_topic("out2", 1)
    other = Spark(spark.server, spark.own_cache, {"topic": "out2"}, query_id="q2")
    messages = other.tasks(0, [[3], [4]])
    with monkeypatch.context() as dying:
        die_in_end(dying, 1)
        with pytest.raises(Killed):
            other.writer().commit(messages, 0)
    other.run(0, [[3], [4]])
    assert visible(spark.server) == [1, 2]
    assert visible(spark.server, "out2") == [3, 4]


def die_between_ends(
    spark: Spark, monkeypatch: pytest.MonkeyPatch, batch: int, slots: list[list[int]]
) -> None:
    """Run a batch whose driver dies when it has committed the first slot."""
    messages = spark.tasks(batch, slots)
    with monkeypatch.context() as dying:
        die_in_end(dying, 1)
        with pytest.raises(Killed):
            spark.writer().commit(messages, batch)
    spark.own_cache()


def test_another_topic_in_the_middle_of_a_commit(spark: Spark, monkeypatch: pytest.MonkeyPatch) -> None:
    """The batch that was begun is completed where it was begun."""
    spark.server.create_topic("out2", 1)
    die_between_ends(spark, monkeypatch, 3, [[1], [2], [3]])
    spark.options["topic"] = "out2"
    spark.run(3, [[1], [2], [3]])
    spark.run(4, [[4]])
    assert visible(spark.server) == [1, 2, 3]
    assert visible(spark.server, "out2") == [4]


def test_a_new_checkpoint_in_the_middle_of_a_commit(spark: Spark, monkeypatch: pytest.MonkeyPatch) -> None:
    """The new query completes the batch of the former one, then writes its own, here the same rows in fewer tasks."""
    die_between_ends(spark, monkeypatch, 3, [[1], [2], [3]])
    Spark(spark.server, spark.own_cache, query_id="q2").run(0, [[1, 2], [3]])
    assert visible(spark.server) == [1, 1, 2, 2, 3, 3]
    assert not open_transactions(spark.server)


def test_another_prefix_in_the_middle_of_a_commit(spark: Spark, monkeypatch: pytest.MonkeyPatch) -> None:
    """A limit that the guide states: the state is stored by prefix, so the batch is written once more."""
    die_between_ends(spark, monkeypatch, 3, [[1], [2]])
    spark.options["transactional.id.prefix"] = "other"
    spark.run(3, [[1], [2]])
    assert open_transactions(spark.server) == ["copy-1"]
    spark.server.advance(1000)
    assert visible(spark.server) == [1, 1, 2]


def test_a_second_attempt_fences_a_running_task(spark: Spark) -> None:
    spark.enter_task(0, 0)
    attempts: list[SlotCommitMessage] = []

    def batches() -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict({"value": ["1"]})
        spark.own_cache()  # Spark reads rows in another thread, so this one can run a task
        attempts.append(spark.task(0, 0, [1, 2]))
        yield pa.RecordBatch.from_pydict({"value": ["2"]})

    with pytest.raises(AsyncGroupError, match=r"copy-0.*fenced: producer id") as fenced:
        spark.writer().write(batches())
    assert "same transactional id was started" in str(fenced.value)
    spark.writer().commit(attempts, 0)
    assert visible(spark.server) == [1, 2]


# --- refused ----------------------------------------------------------------------------------------------------------


def test_another_query_takes_the_prefix_over_with_its_first_batch(spark: Spark) -> None:
    spark.run(0, [[1]])
    spark.run(1, [[2]])
    other = Spark(spark.server, spark.own_cache, query_id="q2")
    with pytest.raises(TransactionalSinkError, match="used by another query: q1 has written batch 1 with it"):
        other.task(5, 0, [3])
    other.run(0, [[]])
    other.run(1, [[3]])
    with pytest.raises(TransactionalSinkError, match="used by another query: q2"):
        spark.task(2, 0, [4])
    with pytest.raises(TransactionalSinkError, match="batch 0 of query q2 is older than batch 1"):
        other.task(0, 0, [4])
    assert visible(spark.server) == [1, 2, 3]


def test_two_queries_with_one_prefix_in_their_first_batch(spark: Spark) -> None:
    first = spark.tasks(0, [[1], [2]])
    spark.own_cache()
    other = Spark(spark.server, spark.own_cache, query_id="q2")
    second = other.tasks(0, [[3], [4]])
    with pytest.raises(TransactionalSinkError, match="another query with the same transactional"):
        spark.writer().commit(first, 0)
    spark.writer().abort(first, 0)
    other.writer().commit(second, 0)
    assert visible(spark.server) == [3, 4]


def test_options() -> None:
    settings = write_settings(SERVERS | {"transactional.id.prefix": "p"})
    assert settings.transactional_id_prefix == "p"
    assert settings.config.transaction_timeout == 900.0
    short = {"kafka.transaction.timeout.ms": "60000", "Transactional.Id.Prefix": "p"}
    assert write_settings(SERVERS | short).config.transaction_timeout == 60.0
    for options, words in (
        ({"transactional.id.prefix": ""}, "a text that is not empty"),
        ({"transactional.id.prefix": " p"}, "without spaces"),
        ({"transactional.id.prefix": "p", "kafka.acks": "1"}, "only with kafka.acks=all"),
        ({"kafka.transactional.id": "p"}, "the option transactional.id.prefix"),
    ):
        with pytest.raises(ConfigError, match=words):
            write_settings(SERVERS | options)


def test_tasks_outside_of_spark(spark: Spark) -> None:
    with pytest.raises(TransactionalSinkError, match="need a Spark task"):
        spark.writer().write(iter([]))
    TaskContext._setTaskContext(TaskContext(partitionId=0, localProperties={}))
    with pytest.raises(TransactionalSinkError, match="need the id of the query"):
        spark.writer().write(iter([]))


def test_a_prefix_whose_group_is_in_use(spark: Spark) -> None:
    spark.server.commit("copy-driver", {("out", 0): 5})
    with pytest.raises(TransactionalSinkError, match=r"use another transactional\.id\.prefix"):
        spark.task(0, 0, [1])
