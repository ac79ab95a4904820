"""Transactions step by step, by bare requests: what a broker answers, the same on every broker.

Nothing but frames and messages is between the story and the broker, so that also what no client would ask can be told.
The answers are those of Apache Kafka 4.3.1.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

from asyncgroup.broker.transactions.metadata import ProducerIdAndEpoch
from asyncgroup.error_codes import ErrorCode as E, error_name
from asyncgroup.wire import messages as m
from asyncgroup.wire.records import iter_batch_headers
from tests.broker.client import Client
from tests.broker.transactional import add_partitions, partition_errors, transactional, txn_offset_commit

__all__ = ["STORIES", "Bare"]

PATIENCE = 20.0
"""Seconds. Real brokers write markers behind the client's back; what passes is asked again so long."""

PASSING = (
    E.CONCURRENT_TRANSACTIONS,
    E.COORDINATOR_NOT_AVAILABLE,
    E.NOT_COORDINATOR,
    E.COORDINATOR_LOAD_IN_PROGRESS,
)


class Bare:
    """A connection to the one node of a cluster, a topic of two partitions, a transactional id."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.topic = f"transactions-{uuid.uuid4().hex[:8]}"
        self.name = f"tx-{self.topic}"
        self.group = f"g-{self.topic}"
        self.topic_id = uuid.UUID(int=0)
        self.told: list[str] = []

    def tell(self, what: str, *codes: int) -> None:
        """Write an answer down."""
        self.told.append(f"{what}: {' '.join(map(error_name, codes))}")

    async def prepare(self) -> None:
        """Make the topic, and wait for the coordinators."""
        topic = m.CreateTopicsRequest.CreatableTopic(self.topic, 2, 1)
        created = await self._client.ask(m.CreateTopicsRequest([topic], 20_000))
        assert created.topics[0].error_code == 0
        self.topic_id = created.topics[0].topic_id
        for key_type, key in ((0, self.group), (1, self.name)):
            request = m.FindCoordinatorRequest(key_type=key_type, coordinator_keys=[key])
            await self._patiently(
                lambda request=request: self._client.ask(request), lambda a: a.coordinators[0].error_code
            )

    async def _patiently(
        self, ask: Callable[[], Awaitable[Any]], code: Callable[[Any], int], passing: tuple[E, ...] = PASSING
    ) -> Any:
        async with asyncio.timeout(PATIENCE):
            while code(answer := await ask()) in passing:
                await asyncio.sleep(0.05)
        return answer

    async def init(
        self, expected: ProducerIdAndEpoch | None = None, *, timeout: int = 60_000, version: int = 5
    ) -> tuple[int, ProducerIdAndEpoch]:
        """InitProducerId, as often as it takes."""
        request = m.InitProducerIdRequest(self.name, timeout, *(expected or ()))
        answer = await self._patiently(lambda: self._client.ask(request, version), lambda a: a.error_code)
        return answer.error_code, ProducerIdAndEpoch(answer.producer_id, answer.producer_epoch)

    async def add(self, producer: ProducerIdAndEpoch, *partitions: int, version: int = 3) -> list[int]:
        """AddPartitionsToTxn."""
        request = add_partitions(producer, *partitions, topic=self.topic, name=self.name, version=version)
        answer = await self._patiently(
            lambda: self._client.ask(request, version), lambda a: max(partition_errors(a))
        )
        return partition_errors(answer)

    async def write(
        self,
        producer: ProducerIdAndEpoch,
        *values: bytes,
        sequence: int = 0,
        version: int = 11,
        partition: int = 0,
    ) -> int:
        """Produce one batch inside the transaction."""
        data = transactional(
            *(values or (b"v",)), producer_id=producer.id, epoch=producer.epoch, sequence=sequence
        )
        return await self.append(data, version=version, partition=partition)

    async def append(self, data: bytes, *, version: int = 11, partition: int = 0) -> int:
        """Produce anything under the transactional id."""
        named = {"topic_id": self.topic_id} if version >= 13 else {"name": self.topic}
        parts = [m.ProduceRequest.PartitionProduceData(partition, data)]
        topics = [m.ProduceRequest.TopicProduceData(**named, partition_data=parts)]  # type: ignore[arg-type]
        request = m.ProduceRequest(self.name, -1, 10_000, topics)
        answer = await self._patiently(
            lambda: self._client.ask(request, version),
            lambda a: a.responses[0].partition_responses[0].error_code,
            (E.CONCURRENT_TRANSACTIONS, E.NOT_ENOUGH_REPLICAS, E.NOT_LEADER_OR_FOLLOWER),
        )
        return int(answer.responses[0].partition_responses[0].error_code)

    async def end(
        self, producer: ProducerIdAndEpoch, *, commit: bool = True, version: int = 4
    ) -> tuple[int, ProducerIdAndEpoch]:
        """EndTxn."""
        request = m.EndTxnRequest(self.name, *producer, commit)
        answer = await self._patiently(lambda: self._client.ask(request, version), lambda a: a.error_code)
        return answer.error_code, ProducerIdAndEpoch(answer.producer_id, answer.producer_epoch)

    async def commit_offset(
        self, producer: ProducerIdAndEpoch, offset: int, *, version: int = 3, **member: Any
    ) -> int:
        """TxnOffsetCommit."""
        request = txn_offset_commit(
            producer, {0: offset}, topic=self.topic, name=self.name, group=self.group, **member
        )
        answer = await self._patiently(
            lambda: self._client.ask(request, version), lambda a: partition_errors(a)[0]
        )
        return partition_errors(answer)[0]

    async def add_group(self, producer: ProducerIdAndEpoch, version: int = 3) -> int:
        """AddOffsetsToTxn."""
        request = m.AddOffsetsToTxnRequest(self.name, *producer, self.group)
        answer = await self._patiently(lambda: self._client.ask(request, version), lambda a: a.error_code)
        return int(answer.error_code)

    async def offset(self, *, stable: bool = True) -> tuple[int, int]:
        """OffsetFetch of partition 0: offset and error."""
        cls = m.OffsetFetchRequest
        topics = [cls.OffsetFetchRequestTopics(self.topic, partition_indexes=[0])]
        request = cls(groups=[cls.OffsetFetchRequestGroup(self.group, topics=topics)], require_stable=stable)
        answer = await self._patiently(lambda: self._client.ask(request, 9), lambda a: a.groups[0].error_code)
        part = answer.groups[0].topics[0].partitions[0]
        return part.committed_offset, part.error_code

    async def read(self, isolation: int = 1, offset: int = 0) -> tuple[list[str], int, int, list[int]]:
        """Fetch of partition 0: batches (`0-1`, markers as `2!`), high watermark, last stable offset, aborted.

        An answer ends with its log segment, and Kafka begins a new one where timestamps jump: so it is asked on and on.
        """
        part = await self._read(isolation, offset)
        batches: list[str] = []
        aborted: list[int] = []
        while part.records:
            for header in iter_batch_headers(bytes(part.records)):
                end = (
                    f"{header.base_offset}!"
                    if header.is_control
                    else f"{header.base_offset}-{header.last_offset}"
                )
                batches.append(end)
                offset = header.next_offset
            aborted += [one.first_offset for one in part.aborted_transactions or []]
            part = await self._read(isolation, offset)
        return batches, part.high_watermark, part.last_stable_offset, aborted

    async def _read(self, isolation: int, offset: int) -> Any:
        cls = m.FetchRequest
        wanted = [cls.FetchPartition(0, fetch_offset=offset, partition_max_bytes=1 << 20)]
        request = cls(
            max_wait_ms=0,
            min_bytes=0,
            isolation_level=isolation,
            topics=[cls.FetchTopic(topic_id=self.topic_id, partitions=wanted)],
        )
        return (await self._client.ask(request, 16)).responses[0].partitions[0]

    async def until_stable(self, offset: int) -> None:
        """Wait until partition 0's last stable offset is so high."""
        async with asyncio.timeout(PATIENCE):
            while (await self.read())[2] < offset:
                await asyncio.sleep(0.02)


async def visibility(bare: Bare) -> list[Any]:
    """What readers of both kinds see before and after the markers."""
    seen: list[Any] = []
    _, producer = await bare.init()
    await bare.add(producer, 0)
    await bare.write(producer, b"a", b"b")
    seen += [await bare.read(), await bare.read(isolation=0)]
    await bare.end(producer)
    await bare.until_stable(3)
    await bare.add(producer, 0)
    await bare.write(producer, b"c", sequence=2)
    seen.append(await bare.read())
    await bare.end(producer, commit=False)
    await bare.until_stable(5)
    seen += [await bare.read(), await bare.read(isolation=0), await bare.read(offset=4)]
    return seen


SEEN = [
    ([], 2, 0, []),
    (["0-1"], 2, 0, []),
    (["0-1", "2!"], 4, 3, []),
    (["0-1", "2!", "3-3", "4!"], 5, 5, [3]),
    (["0-1", "2!", "3-3", "4!"], 5, 5, []),
    (["4!"], 5, 5, [3]),
]


async def old_clients(bare: Bare) -> list[str]:
    """The way before KIP-890: add, write, end; and what goes wrong."""
    tell = bare.tell
    error, first = await bare.init()
    tell("init", error)
    tell("unknown producer adds", *await bare.add(ProducerIdAndEpoch(first.id + 100_000, 0), 0))
    tell("newer epoch adds", *await bare.add(ProducerIdAndEpoch(first.id, 9), 0))
    tell("adds what is not there", *await bare.add(first, 0, 7))
    tell("commits nothing", (await bare.end(first))[0])
    for version in (10, 11):
        tell(f"writes unannounced, version {version}", await bare.write(first, version=version))
    tell("adds", *await bare.add(first, 0))
    tell("adds again", *await bare.add(first, 0, 1))
    tell("writes", await bare.write(first))
    tell("writes out of order", await bare.write(first, sequence=5))
    tell("commits", (await bare.end(first))[0])
    tell("commits again", (await bare.end(first))[0])
    tell("aborts what is committed", (await bare.end(first, commit=False))[0])
    tell("old epoch commits", (await bare.end(ProducerIdAndEpoch(first.id, 7)))[0])
    await bare.add(first, 0)
    await bare.write(first, sequence=1)
    error, second = await bare.init()
    tell(f"init aborts and fences, epoch {second.epoch - first.epoch} higher", error)
    for version in (1, 3):
        tell(f"fenced adds, version {version}", *await bare.add(first, 0, version=version))
        tell(f"fenced ends, version {version}", (await bare.end(first, version=version))[0])
    tell("fenced writes", await bare.write(first, sequence=2))
    tell("fenced inits", (await bare.init(first))[0])
    tell("fenced inits, version 3", (await bare.init(first, version=3))[0])
    error, third = await bare.init(second)
    tell(f"init of the same, epoch {third.epoch - second.epoch} higher", error)
    tell("init repeated", (await bare.init(second))[0])
    tell("no time at all", (await bare.init(timeout=0))[0])
    tell("too much time", (await bare.init(timeout=900_001))[0])
    return bare.told


OLD = """
init: NONE
unknown producer adds: INVALID_PRODUCER_ID_MAPPING
newer epoch adds: PRODUCER_FENCED
adds what is not there: OPERATION_NOT_ATTEMPTED UNKNOWN_TOPIC_OR_PARTITION
commits nothing: INVALID_TXN_STATE
writes unannounced, version 10: INVALID_TXN_STATE
writes unannounced, version 11: TRANSACTION_ABORTABLE
adds: NONE
adds again: NONE NONE
writes: NONE
writes out of order: OUT_OF_ORDER_SEQUENCE_NUMBER
commits: NONE
commits again: NONE
aborts what is committed: INVALID_TXN_STATE
old epoch commits: PRODUCER_FENCED
init aborts and fences, epoch 2 higher: NONE
fenced adds, version 1: INVALID_PRODUCER_EPOCH
fenced ends, version 1: INVALID_PRODUCER_EPOCH
fenced adds, version 3: PRODUCER_FENCED
fenced ends, version 3: PRODUCER_FENCED
fenced writes: INVALID_PRODUCER_EPOCH
fenced inits: PRODUCER_FENCED
fenced inits, version 3: INVALID_PRODUCER_EPOCH
init of the same, epoch 1 higher: NONE
init repeated: NONE
no time at all: INVALID_TRANSACTION_TIMEOUT
too much time: INVALID_TRANSACTION_TIMEOUT
"""


async def new_clients(bare: Bare) -> list[str]:
    """KIP-890: writes add their partitions, the epoch goes up with every end."""

    async def end(what: str, producer: ProducerIdAndEpoch, *, commit: bool) -> ProducerIdAndEpoch:
        error, after = await bare.end(producer, commit=commit, version=5)
        step = f", epoch {after.epoch - producer.epoch} higher" if not error else ""
        bare.tell(what + step, error)
        return after

    _, first = await bare.init()
    await end("commits nothing", first, commit=True)
    second = await end("aborts nothing", first, commit=False)
    bare.tell("old epoch writes", await bare.write(first, version=12))
    bare.tell("writes", await bare.write(second, version=12))
    bare.tell("writes elsewhere", await bare.write(second, version=13, partition=1))
    third = await end("commits", second, commit=True)
    await end("commits again", second, commit=True)
    await end("aborts what is committed", second, commit=False)
    await end("commits what never began", third, commit=True)
    bare.tell("goes on counting", await bare.write(third, version=12, sequence=1))
    bare.tell("starts anew", await bare.write(third, version=12))
    fourth = await end("aborts", third, commit=False)
    await end("aborts again", third, commit=False)
    bare.tell("commits offsets unannounced", await bare.commit_offset(fourth, 4, version=5))
    bare.tell("offset while open", (await bare.offset())[1])
    fifth = await end("commits offsets", fourth, commit=True)
    bare.tell("writes", await bare.write(fifth, version=12))
    error, sixth = await bare.init(fifth)
    bare.tell(f"init of the same aborts, epoch {sixth.epoch - fifth.epoch} higher", error)
    await end("aborts what was aborted", fifth, commit=False)
    bare.tell("writes", await bare.write(sixth, version=12))
    error, seventh = await bare.init()
    bare.tell(f"init of another fences, epoch {seventh.epoch - sixth.epoch} higher", error)
    await end("fenced aborts", sixth, commit=False)
    bare.tell("fenced inits", (await bare.init(sixth))[0])
    return bare.told


NEW = """
commits nothing: INVALID_TXN_STATE
aborts nothing, epoch 1 higher: NONE
old epoch writes: INVALID_PRODUCER_EPOCH
writes: NONE
writes elsewhere: NONE
commits, epoch 1 higher: NONE
commits again, epoch 1 higher: NONE
aborts what is committed: INVALID_TXN_STATE
commits what never began: INVALID_TXN_STATE
goes on counting: OUT_OF_ORDER_SEQUENCE_NUMBER
starts anew: NONE
aborts, epoch 1 higher: NONE
aborts again, epoch 1 higher: NONE
commits offsets unannounced: NONE
offset while open: UNSTABLE_OFFSET_COMMIT
commits offsets, epoch 1 higher: NONE
writes: NONE
init of the same aborts, epoch 1 higher: NONE
aborts what was aborted: PRODUCER_FENCED
writes: NONE
init of another fences, epoch 2 higher: NONE
fenced aborts: PRODUCER_FENCED
fenced inits: PRODUCER_FENCED
"""


async def offsets(bare: Bare) -> list[str]:
    """Offsets inside transactions."""

    async def fetch(what: str, *, stable: bool = True) -> None:
        offset, error = await bare.offset(stable=stable)
        bare.tell(f"{what} {offset}", error)

    _, producer = await bare.init()
    for version in (3, 4):
        error = await bare.commit_offset(producer, 5, version=version)
        bare.tell(f"commits unannounced, version {version}", error)
    bare.tell("adds the group", await bare.add_group(producer))
    bare.tell("commits", await bare.commit_offset(producer, 5))
    bare.tell("in a generation", await bare.commit_offset(producer, 6, generation_id=3, member_id="m"))
    await fetch("stable")
    await fetch("any", stable=False)
    bare.tell("ends", (await bare.end(producer))[0])
    async with asyncio.timeout(PATIENCE):
        while (await bare.offset())[1]:
            await asyncio.sleep(0.02)
    await fetch("stable")
    await bare.add_group(producer)
    await bare.commit_offset(producer, 9)
    await fetch("any", stable=False)
    bare.tell("aborts", (await bare.end(producer, commit=False))[0])
    async with asyncio.timeout(PATIENCE):
        while (await bare.offset())[1]:
            await asyncio.sleep(0.02)
    await fetch("stable")
    _, newer = await bare.init()
    bare.tell("fenced adds the group", await bare.add_group(producer))
    bare.tell("fenced commits", await bare.commit_offset(producer, 9))
    assert newer.epoch == producer.epoch + 1
    return bare.told


OFFSETS = """
commits unannounced, version 3: INVALID_TXN_STATE
commits unannounced, version 4: TRANSACTION_ABORTABLE
adds the group: NONE
commits: NONE
in a generation: UNKNOWN_MEMBER_ID
stable -1: UNSTABLE_OFFSET_COMMIT
any -1: NONE
ends: NONE
stable 5: NONE
any 5: NONE
aborts: NONE
stable 5: NONE
fenced adds the group: PRODUCER_FENCED
fenced commits: INVALID_PRODUCER_EPOCH
"""


STORIES: list[tuple[Callable[[Bare], Awaitable[list[Any]]], list[Any]]] = [
    (visibility, SEEN),
    (old_clients, OLD.strip().splitlines()),
    (new_clients, NEW.strip().splitlines()),
    (offsets, OFFSETS.strip().splitlines()),
]
"""What is told, and what has to come out."""
