"""Idempotent and transactional producers: the embedded broker answers as Apache Kafka does.

Each story produces a list of notes: requests and responses, with producer ids numbered in the order of their
appearance. It runs on both brokers, and the notes must be equal.
"""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import Awaitable, Callable
from typing import Any, Final

import pytest

from asyncgroup.broker import EmbeddedCluster
from asyncgroup.broker.transactions.metadata import ProducerIdAndEpoch
from asyncgroup.error_codes import ErrorCode
from asyncgroup.wire import messages as m
from tests.broker.batches import batch
from tests.broker.client import Client
from tests.broker.transactional import add_partitions, partition_errors, txn_offset_commit
from tests.real.support import RunningKafka

ANY_TIME: Final = 1_700_000_000_000
PASSING: Final = {
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
}
"""Transient errors of a real cluster: the request is retried up to `Recorder.tries` times."""


class Recorder:
    """A connection to either broker, and the notes of its responses. Topics and names are unique to each run."""

    tries = 100

    def __init__(self, client: Client) -> None:
        self.client = client
        self.run = uuid.uuid4().hex[:8]
        self.notes: list[tuple[Any, ...]] = []
        self._ids: dict[int, int] = {}

    def name(self, name: str) -> str:
        return f"{name}-{self.run}"

    def note(self, label: str, *answer: Any) -> None:
        self.notes.append((label, *answer))

    def number(self, producer_id: int) -> int:
        return producer_id if producer_id < 0 else self._ids.setdefault(producer_id, len(self._ids))

    async def retry(self, ask: Callable[[], Awaitable[tuple[int, Any]]]) -> Any:
        """Return the response, after retries of transient errors."""
        code, answer = await ask()
        for _ in range(self.tries):
            if code not in PASSING:
                break
            await asyncio.sleep(0.05)
            code, answer = await ask()
        return answer

    async def prepare(self, *names: str, groups: tuple[str, ...] = ()) -> None:
        """Create a topic with three partitions, and wait for the coordinators of the transactional ids and groups."""
        topic = m.CreateTopicsRequest.CreatableTopic(self.name("t"), 3, 1)
        topic.configs = [m.CreateTopicsRequest.CreatableTopicConfig(name="retention.ms", value="-1")]
        await self.client.ask(m.CreateTopicsRequest([topic], 10_000))
        for kind, key in [*((1, name) for name in names), *((0, group) for group in groups)]:

            async def ask(kind: int = kind, key: str = key) -> tuple[int, Any]:
                request = m.FindCoordinatorRequest(key_type=kind, coordinator_keys=[self.name(key)])
                answer = await self.client.ask(request)
                return answer.coordinators[0].error_code, answer

            await self.retry(ask)

    async def init(
        self, name: str, version: int = 5, expected: tuple[int, int] = (-1, -1), timeout: int = 60_000
    ) -> ProducerIdAndEpoch:
        async def ask() -> tuple[int, Any]:
            request = m.InitProducerIdRequest(self.name(name), timeout, *expected)
            answer = await self.client.ask(request, version)
            return answer.error_code, answer

        answer = await self.retry(ask)
        error = ErrorCode(answer.error_code).name
        self.note(f"init v{version}", error, self.number(answer.producer_id), answer.producer_epoch)
        return ProducerIdAndEpoch(answer.producer_id, answer.producer_epoch)

    async def put(
        self,
        label: str,
        producer: ProducerIdAndEpoch,
        sequence: int,
        count: int = 1,
        *,
        name: str | None = None,
        version: int = 11,
        partition: int = 0,
        inside: bool = True,
    ) -> None:
        data = batch(
            *[b"x"] * count,
            timestamp=ANY_TIME,
            producer_id=producer.id,
            producer_epoch=producer.epoch,
            base_sequence=sequence,
            transactional=name is not None and inside,
        )
        request = m.ProduceRequest
        partition_data = [request.PartitionProduceData(partition, data)]
        wanted = [request.TopicProduceData(name=self.name("t"), partition_data=partition_data)]
        full_name = None if name is None else self.name(name)

        async def ask() -> tuple[int, Any]:
            answer = await self.client.ask(request(full_name, -1, 5000, wanted), version)
            found = answer.responses[0].partition_responses[0]
            return found.error_code, found

        found = await self.retry(ask)
        offsets_and_time = (found.base_offset, found.log_append_time_ms, found.log_start_offset)
        self.note(f"put v{version} {label}", ErrorCode(found.error_code).name, *offsets_and_time)

    async def add(
        self,
        label: str,
        name: str,
        producer: ProducerIdAndEpoch,
        *partitions: int,
        version: int = 3,
        verify: bool = False,
    ) -> None:
        request = add_partitions(
            producer,
            *partitions,
            topic=self.name("t"),
            version=version,
            name=self.name(name) if name else "",
            verify=verify,
        )

        async def ask() -> tuple[int, Any]:
            codes = partition_errors(await self.client.ask(request, version))
            return max(codes), codes

        self.note(f"add v{version} {label}", *(ErrorCode(code).name for code in await self.retry(ask)))

    async def end(
        self, label: str, name: str, producer: ProducerIdAndEpoch, version: int = 5, *, commit: bool = True
    ) -> ProducerIdAndEpoch:
        async def ask() -> tuple[int, Any]:
            answer = await self.client.ask(m.EndTxnRequest(self.name(name), *producer, commit), version)
            return answer.error_code, answer

        answer = await self.retry(ask)
        after = (self.number(answer.producer_id), answer.producer_epoch)
        self.note(f"end v{version} {label}", ErrorCode(answer.error_code).name, *after)
        return ProducerIdAndEpoch(answer.producer_id, answer.producer_epoch)

    async def describe(self, label: str, name: str) -> None:
        """Describe the transactional id, after the coordinator has written its markers."""

        async def ask() -> tuple[int, Any]:
            answer = await self.client.ask(m.DescribeTransactionsRequest([self.name(name)]))
            (state,) = answer.transaction_states
            busy = state.transaction_state.startswith("Prepare")
            return ErrorCode.CONCURRENT_TRANSACTIONS if busy else state.error_code, state

        state = await self.retry(ask)
        topics = sorted((topic.topic[:-9], sorted(topic.partitions)) for topic in state.topics)
        producer = (self.number(state.producer_id), state.producer_epoch)
        begun = state.transaction_start_time_ms > 0
        self.note(f"describe {label}", state.transaction_state, *producer, topics, begun)


# -- stories -----------------------------------------------------------------------------------------------------


async def idempotence(recorder: Recorder) -> None:
    """With made-up producer ids: a broker accepts unknown ones."""
    await recorder.prepare()
    one, other = ProducerIdAndEpoch(1 << 40, 0), ProducerIdAndEpoch((1 << 40) + 1, 0)
    for sequence in range(7):
        await recorder.put("first", one, sequence)
    for sequence in range(7):
        await recorder.put("again", one, sequence)
    await recorder.put("two that came one by one", one, 5, 2)
    await recorder.put("half of it is new", one, 6, 2)
    await recorder.put("a gap", one, 9)
    await recorder.put("next", one, 7, 3)
    await recorder.put("of another length", one, 7, 2)
    await recorder.put("over the end of numbers", other, 2**31 - 2, 3)
    await recorder.put("goes on", other, 1)
    await recorder.put("over the end again", other, 2**31 - 2, 3)
    newer = ProducerIdAndEpoch(one.id, 2)
    await recorder.put("a newer epoch, not from 0", newer, 4)
    await recorder.put("a newer epoch", newer, 0)
    await recorder.put("the old epoch", one, 10)


async def kip_890_transactions(recorder: Recorder) -> None:
    """KIP-890: partitions are added by writing, each end bumps the epoch."""
    await recorder.prepare("tx")
    first = await recorder.init("tx")
    await recorder.describe("nothing yet", "tx")
    await recorder.end("commit of nothing", "tx", first)
    one = await recorder.end("abort of nothing", "tx", first, commit=False)
    await recorder.describe("abort of nothing", "tx")
    put = {"name": "tx", "version": 12}
    await recorder.put("old epoch", first, 0, **put)
    await recorder.put("begins", one, 0, **put)
    await recorder.put("again", one, 0, **put)
    await recorder.put("does not begin with 0", one, 1, partition=1, **put)
    await recorder.put("a gap", one, 5, **put)
    two = await recorder.end("commit", "tx", one)
    await recorder.end("commit again", "tx", one)
    await recorder.end("abort after commit", "tx", one, commit=False)
    await recorder.describe("committed", "tx")
    await recorder.put("old epoch", one, 1, **put)
    await recorder.put("next", two, 0, **put)
    await recorder.end("old epoch", "tx", one)
    await recorder.end("another id", "tx", ProducerIdAndEpoch(one.id + 777, 0))
    await recorder.end("an older client", "tx", two, 4)
    await recorder.describe("in the end", "tx")


async def older_transactions(recorder: Recorder) -> None:
    await recorder.prepare("tx")
    one = await recorder.init("tx", 4)
    for version in (10, 9, 3):
        await recorder.put("not added", one, 0, name="tx", version=version, partition=2)
    await recorder.put("not added", one, 0, name="tx", version=11, partition=2)
    await recorder.add("two", "tx", one, 0, 1)
    await recorder.put("begins with 5", one, 5, name="tx")
    await recorder.put("before that", one, 0, name="tx")
    await recorder.put("goes on", one, 6, name="tx", version=9)
    await recorder.put("outside of its transaction", one, 7, name="tx", inside=False)
    await recorder.put("not added", one, 0, name="tx", version=9, partition=2)
    await recorder.end("commit", "tx", one, 4)
    await recorder.end("commit again", "tx", one, 4)
    for version in (4, 0):
        await recorder.end("abort after commit", "tx", one, version, commit=False)
    await recorder.end("a future epoch", "tx", ProducerIdAndEpoch(one.id, one.epoch + 1), 4)
    await recorder.describe("committed", "tx")
    await recorder.put("not added any more", one, 7, name="tx", partition=1)
    await recorder.add("again", "tx", one, 0)
    await recorder.put("next", one, 7, name="tx")
    await recorder.end("abort", "tx", one, 4, commit=False)
    await recorder.describe("aborted", "tx")
    await recorder.put("a newer client", one, 8, name="tx", version=12)
    await recorder.end("a newer client", "tx", one, 5)


async def invalid_producers(recorder: Recorder) -> None:
    await recorder.prepare("tx", "nobody")
    one = await recorder.init("tx")
    for name, label, producer, version in (
        ("tx", "right", one, 3),
        ("tx", "a future epoch", ProducerIdAndEpoch(one.id, one.epoch + 5), 3),
        ("tx", "a future epoch", ProducerIdAndEpoch(one.id, one.epoch + 5), 1),
        ("tx", "another id", ProducerIdAndEpoch(one.id + 999, 0), 3),
        ("nobody", "unknown", one, 3),
        ("", "no name", one, 3),
    ):
        await recorder.add(label, name, producer, 0, version=version)
    await recorder.add("one too many", "tx", one, 0, 9)
    await recorder.add("verify", "tx", one, 0, 1, version=4, verify=True)
    await recorder.add("by a broker", "tx", one, 1, version=5)
    two = await recorder.init("tx")  # aborts and fences
    await recorder.describe("after the fence", "tx")
    for version in (5, 1):
        await recorder.end("fenced", "tx", one, version)
    await recorder.end("unknown", "nobody", one)
    for expected in ((two.id, two.epoch), (two.id, two.epoch), (two.id, two.epoch - 3), (two.id + 999, 0)):
        await recorder.init("tx", 5, expected)
    for expected in ((two.id, -1), (-1, 3)):
        await recorder.init("tx", 5, expected)
    await recorder.init("tx", 3, (two.id + 999, 0))
    for timeout in (0, -1, 900_000, 900_001):
        await recorder.init("tx", timeout=timeout)


async def offsets(recorder: Recorder) -> None:
    await recorder.prepare("tx", groups=("g", "h"))
    one = await recorder.init("tx")
    later = ProducerIdAndEpoch(one.id, one.epoch + 4)

    async def commit(label: str, group: str, producer: ProducerIdAndEpoch, version: int, **who: Any) -> None:
        names = {"topic": recorder.name("t"), "name": recorder.name("tx"), "group": recorder.name(group)}
        request = txn_offset_commit(producer, {0: 5}, **names, **who)

        async def ask() -> tuple[int, Any]:
            (code,) = partition_errors(await recorder.client.ask(request, version))
            return code, code

        recorder.note(f"offsets v{version} {label}", ErrorCode(await recorder.retry(ask)).name)

    await commit("of nobody", "g", one, 5)
    await commit("of an unknown member", "g", one, 5, generation_id=3, member_id="x")
    await commit("of a future epoch", "g", later, 5)
    for version in (4, 3, 0):
        await commit("not added", "h", one, version)
    for producer, version in itertools.product((one, later, ProducerIdAndEpoch(one.id + 999, 0)), (4, 1)):
        answer = await recorder.client.ask(
            m.AddOffsetsToTxnRequest(recorder.name("tx"), *producer, "h"), version
        )
        recorder.note(f"add offsets v{version}", ErrorCode(answer.error_code).name)
    two = await recorder.end("commit", "tx", one)
    await recorder.describe("committed", "tx")
    await commit("of the epoch before", "g", one, 5)
    await commit("next", "g", two, 5)


# -- both brokers ------------------------------------------------------------------------------------------------


async def notes_of(story: Callable[[Recorder], Awaitable[None]], server: str) -> list[tuple[Any, ...]]:
    host, _, port = server.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    client = Client(reader, writer, "sequences")
    recorder = Recorder(client)
    try:
        async with asyncio.timeout(60):
            await story(recorder)
    finally:
        await client.close()
    return recorder.notes


@pytest.mark.parametrize(
    "story",
    [idempotence, kip_890_transactions, older_transactions, invalid_producers, offsets],
    ids=lambda s: s.__name__,
)
async def test_every_response_equals_kafkas(apache_kafka: RunningKafka, story) -> None:
    async with EmbeddedCluster() as cluster:
        ours = await notes_of(story, cluster.bootstrap_servers)
    theirs = await notes_of(story, apache_kafka.bootstrap_servers)
    assert len(ours) > 10
    assert ours == theirs
