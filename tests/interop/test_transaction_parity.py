"""The transactional producer beside Java's: the same requests, field by field, in transactions of version 1 and 2 (KIP-890).

Both run the same transactions on the embedded broker, with the same errors. What differs on purpose:

- In version 1 each transaction that an error aborted is followed by the next epoch (InitProducerId), with sequences from 0 on.
  Java keeps the epoch if no batch failed, and after a failed batch it depends on which of its threads is first
  (`TransactionManager.maybeTransitionToErrorState`). Such stories are compared without epochs and sequences.
- After INVALID_PRODUCER_ID_MAPPING Java 4.3 can only be closed. Here the abort is an InitProducerId, which also finds a
  transactional id that the coordinator has forgotten (`transactional.id.expiration.ms`), and the producer goes on.
- After UNKNOWN_PRODUCER_ID without a log start offset Java sends the batch again. Here the transaction is aborted. Brokers
  since 2.5 do not return this code to Produce (KIP-360).
- After INVALID_PRODUCER_EPOCH at Produce Java sends EndTxn, which a coordinator with a newer epoch answers with
  PRODUCER_FENCED. Here the error is fatal at once, and names the newer epoch (DescribeTransactions).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

import pytest

from asyncgroup import CommittedOffset, GroupOffsets, Producer, ProducerConfig, TopicPartition
from asyncgroup.broker import EmbeddedCluster
from asyncgroup.broker.metadata.features import DEFAULT_LEVELS
from asyncgroup.error_codes import ErrorCode
from asyncgroup.errors import AsyncGroupError
from asyncgroup.wire.batch_view import iter_batches
from asyncgroup.wire.message import Message
from asyncgroup.wire.records import decode_batch
from tests.interop.java_tools import JavaTools, Output
from tests.profiles import long_family

pytestmark = pytest.mark.full

TOPIC: Final = "orders"
TIME: Final = 1_700_000_000_000
SETTINGS: Final = {
    "transactional.id": "orders-1",
    "transaction.timeout.ms": "30000",
    "linger.ms": "500",
    "retry.backoff.ms": "20",
    "request.timeout.ms": "5000",
    "delivery.timeout.ms": "20000",
}
APIS: Final = (
    *("InitProducerId", "AddPartitionsToTxn", "AddOffsetsToTxn", "Produce", "TxnOffsetCommit", "EndTxn"),
)

Sent: TypeAlias = tuple[str, int, dict[str, Any]]
"""API, version and fields of a request."""

Disturb: TypeAlias = Callable[[EmbeddedCluster], object]


class Story(NamedTuple):
    """The transactions, in the form that `TransactionalProduce.java` describes, and what the broker does."""

    transactions: str
    disturb: Disturb = lambda _: None
    versions: tuple[int, ...] = (1, 2)
    is_aborted: bool = False
    """Whether an error aborts a transaction."""


def error(api: str, code: ErrorCode, *, nth: int = 1) -> Disturb:
    return lambda cluster: cluster.faults.on(api, nth=nth).error(code)


def lost_response(api: str, *, nth: int = 1) -> Disturb:
    return lambda cluster: cluster.faults.on(api, nth=nth).disconnect("after")


COMMITS: Final = "0,1,offsets,commit;1,0,commit"
ONE_ABORTED: Final = "0,1,offsets,commit;0,1,offsets,abort;1,00,offsets,commit"
E = ErrorCode

STORIES: Final = {
    "nothing happens": Story(ONE_ABORTED),
    "both partitions in one request": Story("0011,offsets,commit;01,abort;10,commit", versions=(2,)),
    "nothing is written": Story("commit;abort;offsets,commit;0,commit"),
    "a member that the group does not know": Story(
        "0,offsets as a member,commit;0,offsets,commit", is_aborted=True
    ),
    **{
        f"{code.name} once at {api}": Story(COMMITS, error(api, code), versions)
        for code in (E.CONCURRENT_TRANSACTIONS, E.NOT_COORDINATOR, E.COORDINATOR_LOAD_IN_PROGRESS)
        for api, versions in (
            *(("InitProducerId", (1, 2)), ("AddPartitionsToTxn", (1,)), ("AddOffsetsToTxn", (1,))),
            *(("TxnOffsetCommit", (1, 2)), ("EndTxn", (1, 2))),
        )
    },
    "CONCURRENT_TRANSACTIONS once at Produce": Story(
        COMMITS, error("Produce", E.CONCURRENT_TRANSACTIONS, nth=3), (2,)
    ),
    "NOT_LEADER_OR_FOLLOWER once at Produce": Story(
        COMMITS, error("Produce", E.NOT_LEADER_OR_FOLLOWER, nth=2)
    ),
    **{f"a lost response of {api}": Story(COMMITS, lost_response(api)) for api in ("InitProducerId", "EndTxn")},
    "a lost response of EndTxn (abort)": Story(ONE_ABORTED, lost_response("EndTxn", nth=2)),
    "a lost response of AddPartitionsToTxn": Story(COMMITS, lost_response("AddPartitionsToTxn"), (1,)),
    "a lost response of AddOffsetsToTxn": Story(COMMITS, lost_response("AddOffsetsToTxn"), (1,)),
    "a lost response of TxnOffsetCommit": Story(COMMITS, lost_response("TxnOffsetCommit")),
    "a lost response of Produce": Story(COMMITS, lost_response("Produce", nth=2)),
    **{
        f"{code.name} at {api}": Story(ONE_ABORTED, error(api, code), versions, is_aborted=True)
        for api, code, versions in (
            ("Produce", E.TRANSACTION_ABORTABLE, (1, 2)),
            ("Produce", E.OUT_OF_ORDER_SEQUENCE_NUMBER, (1, 2)),
            ("Produce", E.MESSAGE_TOO_LARGE, (1, 2)),
            ("Produce", E.TOPIC_AUTHORIZATION_FAILED, (1, 2)),
            ("AddPartitionsToTxn", E.TRANSACTION_ABORTABLE, (1,)),
            ("AddPartitionsToTxn", E.TOPIC_AUTHORIZATION_FAILED, (1,)),
            ("AddOffsetsToTxn", E.TRANSACTION_ABORTABLE, (1,)),
            ("AddOffsetsToTxn", E.GROUP_AUTHORIZATION_FAILED, (1,)),
            ("TxnOffsetCommit", E.TRANSACTION_ABORTABLE, (1, 2)),
            ("TxnOffsetCommit", E.ILLEGAL_GENERATION, (1, 2)),
            ("EndTxn", E.TRANSACTION_ABORTABLE, (1, 2)),
        )
    },
}  # fmt: skip
CASES: Final = [(name, version) for name, story in STORIES.items() for version in story.versions]


# --- the two producers ----------------------------------------------------------------------------------------------


async def run_java(cluster: EmbeddedCluster, java: JavaTools, story: Story) -> Output:
    settings = {"bootstrap.servers": cluster.bootstrap_servers, **SETTINGS}
    program = Path(__file__).with_name("TransactionalProduce.java")
    options = [f"{name}={value}" for name, value in settings.items()]
    return await java(program, TOPIC, *options, story.transactions)


async def written_by_java(cluster: EmbeddedCluster, java: JavaTools, story: Story) -> list[str]:
    output = await run_java(cluster, java, story)
    assert output.code == 0, output.text
    return [line.removeprefix("result ") for line in output.lines if line.startswith("result ")]


async def written_by_us(cluster: EmbeddedCluster, story: Story) -> list[str]:
    config, _ = ProducerConfig.from_properties(SETTINGS)
    results: list[str] = []
    async with Producer(cluster.bootstrap_servers, config) as producer:
        writer = Writer(producer, results)
        for transaction in story.transactions.split(";"):
            try:
                async with producer.transaction():
                    *steps, end = transaction.split(",")
                    for step in steps:
                        await writer.run(step)
                    if end == "abort":
                        raise ZeroDivisionError
                results.append("commit")
            except ZeroDivisionError:
                results.append("abort")
            except AsyncGroupError:
                results.append("failed")
    return results


class Writer:
    """Runs the steps of a transaction."""

    def __init__(self, producer: Producer, results: list[str]) -> None:
        self._producer = producer
        self._results = results
        self._number = 0

    async def run(self, step: str) -> None:
        if step.startswith("offsets"):
            offsets = {TopicPartition(TOPIC, 0): CommittedOffset(self._number, "note", 5)}
            member = ("member-1", 3, "instance-1") if step == "offsets as a member" else ()
            await self._producer.send_offsets(GroupOffsets("readers", offsets, *member))
            return
        sent = []
        for partition in map(int, step):
            value, self._number = b"value-%d" % self._number, self._number + 1
            sent.append(
                self._producer.send_nowait(TOPIC, value, key=b"key", partition=partition, timestamp=TIME)
            )
        await self._producer.flush()
        self._results += [str((await future).offset) for future in sent]


# --- what the broker received ---------------------------------------------------------------------------------------


def fields_of(value: Any) -> Any:
    """Return a message as plain values: its fields by name."""
    if isinstance(value, Message):
        return {name: fields_of(getattr(value, name)) for name in value.__slots__}
    return [fields_of(each) for each in value] if isinstance(value, list) else value


def batches_of(request: Any) -> list[dict[str, Any]]:
    """Return the batches of a Produce request, by partition."""
    found = [
        {
            "partition": partition.index,
            "producer_id": view.producer_id,
            "producer_epoch": view.producer_epoch,
            "sequence": view.base_sequence,
            "attributes": view.attributes,
            "times": (view.base_timestamp, view.max_timestamp),
            "records": [(r.key, r.value, r.headers) for r in decode_batch(TOPIC, 0, view)],
        }
        for topic in request.topic_data
        for partition in topic.partition_data
        for view in iter_batches(partition.records)
    ]
    return sorted(found, key=lambda batch: batch["partition"])


def requests_of(cluster: EmbeddedCluster) -> list[Sent]:
    """Return API, version and fields of all requests of transactions, in order."""
    found = []
    for exchange in cluster.history.of(*APIS):
        fields = fields_of(exchange.request)
        if exchange.api == "Produce":
            fields["topic_data"] = batches_of(exchange.request)
        found.append((exchange.api, exchange.version, fields))
    return found


HIDDEN: Final = frozenset({"producer_epoch", "v3_and_below_producer_epoch", "sequence"})


def without_epochs(value: Any) -> Any:
    """Return requests without epochs and sequences, and without InitProducerId for the next epoch."""
    if isinstance(value, dict):
        return {name: None if name in HIDDEN else without_epochs(field) for name, field in value.items()}
    if isinstance(value, tuple):
        return tuple(map(without_epochs, value))
    if isinstance(value, list):
        return [without_epochs(each) for each in value if not asks_for_the_next_epoch(each)]
    return value


def asks_for_the_next_epoch(sent: Any) -> bool:
    return isinstance(sent, tuple) and sent[0] == "InitProducerId" and sent[2]["producer_id"] >= 0


def check_epochs(requests: list[Sent], bumps: int) -> None:
    """Check the sequences, from 0 on in each epoch, and the last epoch."""
    next_sequences: dict[tuple[int, int], int] = {}
    for _, _, fields in requests:
        for batch in fields.get("topic_data", ()):
            place = batch["partition"], batch["producer_epoch"]
            sequence, count = batch["sequence"], len(batch["records"])
            assert sequence in (next_sequences.get(place, 0), next_sequences.get(place, 0) - count)
            next_sequences[place] = sequence + count
    assert requests[-1][0] == "EndTxn"
    assert requests[-1][2]["producer_epoch"] == bumps


@asynccontextmanager
async def disturbed_cluster(story: Story) -> AsyncIterator[EmbeddedCluster]:
    async with EmbeddedCluster(nodes=1, history_payloads=True) as cluster, asyncio.timeout(60):
        cluster.create_topic(TOPIC, 2)
        story.disturb(cluster)
        yield cluster


@pytest.mark.parametrize(("name", "version"), long_family(CASES))
async def test_requests_are_those_of_java(
    java_tools: JavaTools, name: str, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(DEFAULT_LEVELS, "transaction.version", version)
    story = STORIES[name]
    async with disturbed_cluster(story) as cluster:
        expected = await written_by_java(cluster, java_tools, story)
        theirs = requests_of(cluster)
    async with disturbed_cluster(story) as cluster:
        results = await written_by_us(cluster, story)
        ours = requests_of(cluster)
    assert len(theirs) >= 4
    if story.is_aborted and version == 1:
        check_epochs(ours, bumps=1)
        ours, theirs = without_epochs(ours), without_epochs(theirs)
    assert ours == theirs
    assert results == expected


FORGOTTEN: Final = [
    *(("AddPartitionsToTxn", 1), ("AddOffsetsToTxn", 1)),
    *((api, version) for api in ("TxnOffsetCommit", "EndTxn") for version in (1, 2)),
]


@pytest.mark.parametrize(("api", "version"), FORGOTTEN)
async def test_a_forgotten_transactional_id_ends_only_java(
    java_tools: JavaTools, api: str, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The requests are the same up to the error."""
    monkeypatch.setitem(DEFAULT_LEVELS, "transaction.version", version)
    story = Story(COMMITS, error(api, E.INVALID_PRODUCER_ID_MAPPING))
    async with disturbed_cluster(story) as cluster:
        output = await run_java(cluster, java_tools, story)
        theirs = requests_of(cluster)
    assert output.code == 1, "Java's producer cannot abort"
    async with disturbed_cluster(story) as cluster:
        results = await written_by_us(cluster, story)
        ours = requests_of(cluster)
    assert theirs[-1][0] == api
    assert ours[: len(theirs)] == theirs
    assert ours[len(theirs)][0] == "InitProducerId"
    assert [result for result in results if not result.isdigit()] == ["failed", "commit"]


FENCED: Final = [
    *(("AddPartitionsToTxn", E.PRODUCER_FENCED, 1), ("AddOffsetsToTxn", E.PRODUCER_FENCED, 1)),
    *((api, E.PRODUCER_FENCED, version) for api in ("TxnOffsetCommit", "EndTxn") for version in (1, 2)),
    *((api, E.INVALID_TXN_STATE, version) for api in ("EndTxn",) for version in (1, 2)),
    *(("Produce", E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, version) for version in (1, 2)),
]


@pytest.mark.parametrize(("api", "code", "version"), FENCED)
async def test_a_fatal_error_ends_both(
    java_tools: JavaTools, api: str, code: ErrorCode, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No request follows."""
    monkeypatch.setitem(DEFAULT_LEVELS, "transaction.version", version)
    story = Story(COMMITS, error(api, code))
    async with disturbed_cluster(story) as cluster:
        output = await run_java(cluster, java_tools, story)
        theirs = requests_of(cluster)
    async with disturbed_cluster(story) as cluster:
        results = await written_by_us(cluster, story)
        ours = requests_of(cluster)
    assert output.code == 1, "Java's producer cannot abort"
    assert ours == theirs
    assert ours[-1][0] == api
    assert [result for result in results if not result.isdigit()] == ["failed", "failed"]


@pytest.mark.parametrize("version", [1, 2])
async def test_java_ends_the_transaction_to_learn_that_it_is_fenced(
    java_tools: JavaTools, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(DEFAULT_LEVELS, "transaction.version", version)
    story = Story(COMMITS, error("Produce", E.INVALID_PRODUCER_EPOCH))
    async with disturbed_cluster(story) as cluster:
        cluster.faults.on("EndTxn").error(E.PRODUCER_FENCED)
        output = await run_java(cluster, java_tools, story)
        theirs = requests_of(cluster)
    async with disturbed_cluster(story) as cluster:
        results = await written_by_us(cluster, story)
        ours = requests_of(cluster)
    assert output.code == 1, "Java's producer cannot abort"
    assert ours == theirs[:-1]
    assert (ours[-1][0], theirs[-1][0]) == ("Produce", "EndTxn")
    assert results == ["failed", "failed"]
