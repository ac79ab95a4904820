"""The transactional producer beside Java's: the same requests, field by field, in transactions of version 1 and 2 (KIP-890).

Both run the same transactions on the embedded broker, with the same errors.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from asyncgroup import CommittedOffset, GroupOffsets, Producer, ProducerConfig, TopicPartition
from asyncgroup.broker import EmbeddedCluster
from asyncgroup.broker.handlers.api_versions import FEATURES
from asyncgroup.error_codes import ErrorCode
from asyncgroup.errors import AsyncGroupError
from asyncgroup.wire.batch_view import iter_batches
from asyncgroup.wire.message import Message
from asyncgroup.wire.records import decode_batch
from tests.interop.java_tools import JavaTools

pytestmark = [pytest.mark.asyncio, pytest.mark.full]

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

Disturb = Callable[[EmbeddedCluster], object]


class Story(NamedTuple):
    """The transactions, in the form that `TransactionalProduce.java` describes, and what the broker does."""

    transactions: str
    disturb: Disturb = lambda _: None
    versions: tuple[int, ...] = (1, 2)


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
    "a member that the group does not know": Story("0,offsets as a member,commit;0,offsets,commit"),
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
        f"{code.name} at {api}": Story(ONE_ABORTED, error(api, code), versions)
        for api, code, versions in (
            ("Produce", E.TRANSACTION_ABORTABLE, (1, 2)),
            ("Produce", E.OUT_OF_ORDER_SEQUENCE_NUMBER, (1, 2)),
            ("Produce", E.UNKNOWN_PRODUCER_ID, (1, 2)),
            ("Produce", E.MESSAGE_TOO_LARGE, (1, 2)),
            ("Produce", E.TOPIC_AUTHORIZATION_FAILED, (1, 2)),
            ("AddPartitionsToTxn", E.TRANSACTION_ABORTABLE, (1,)),
            ("AddPartitionsToTxn", E.TOPIC_AUTHORIZATION_FAILED, (1,)),
            ("AddPartitionsToTxn", E.INVALID_PRODUCER_ID_MAPPING, (1,)),
            ("AddOffsetsToTxn", E.TRANSACTION_ABORTABLE, (1,)),
            ("AddOffsetsToTxn", E.GROUP_AUTHORIZATION_FAILED, (1,)),
            ("TxnOffsetCommit", E.TRANSACTION_ABORTABLE, (1, 2)),
            ("TxnOffsetCommit", E.ILLEGAL_GENERATION, (1, 2)),
            ("TxnOffsetCommit", E.INVALID_PRODUCER_ID_MAPPING, (1, 2)),
            ("EndTxn", E.TRANSACTION_ABORTABLE, (1, 2)),
            ("EndTxn", E.INVALID_PRODUCER_ID_MAPPING, (1, 2)),
        )
    },
}  # fmt: skip
CASES: Final = [
    pytest.param(name, version, id=f"{name}-v{version}")
    for name, story in STORIES.items()
    for version in story.versions
]


# --- the two producers ----------------------------------------------------------------------------------------------


async def written_by_java(cluster: EmbeddedCluster, java: JavaTools, story: Story) -> list[str]:
    settings = {"bootstrap.servers": cluster.bootstrap_servers, **SETTINGS}
    program = Path(__file__).with_name("TransactionalProduce.java")
    options = [f"{name}={value}" for name, value in settings.items()]
    output = await java(program, TOPIC, *options, story.transactions)
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
    found = []
    for topic in request.topic_data:
        for partition in topic.partition_data:
            found += [
                {
                    "partition": partition.index,
                    "producer": (view.producer_id, view.producer_epoch),
                    "sequence": view.base_sequence,
                    "attributes": view.attributes,
                    "times": (view.base_timestamp, view.max_timestamp),
                    "records": [(r.key, r.value, r.headers) for r in decode_batch(TOPIC, 0, view)],
                }
                for view in iter_batches(partition.records)
            ]
    return sorted(found, key=lambda batch: batch["partition"])


def requests_of(cluster: EmbeddedCluster) -> list[tuple[str, int, dict[str, Any]]]:
    """Return API, version and fields of all requests of transactions, in order."""
    found = []
    for exchange in cluster.history.of(*APIS):
        fields = fields_of(exchange.request)
        if exchange.api == "Produce":
            fields["topic_data"] = batches_of(exchange.request)
        found.append((exchange.api, exchange.version, fields))
    return found


@pytest.mark.parametrize(("name", "version"), CASES)
async def test_requests_are_those_of_java(
    java_tools: JavaTools, name: str, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(FEATURES, "transaction.version", version)
    story = STORIES[name]
    results, requests = [], []
    for is_java in (True, False):
        async with EmbeddedCluster(nodes=1, history_payloads=True) as cluster:
            cluster.create_topic(TOPIC, 2)
            story.disturb(cluster)
            async with asyncio.timeout(60):
                if is_java:
                    results.append(await written_by_java(cluster, java_tools, story))
                else:
                    results.append(await written_by_us(cluster, story))
            requests.append(requests_of(cluster))
    assert len(requests[0]) >= 4
    assert requests[1] == requests[0]
    assert results[1] == results[0]
