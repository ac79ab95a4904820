"""Stories of transactions as single requests, with the responses that every broker must give.

Requests are sent without a client's logic, so that a story can also send what no client would send.
The expected responses are those of Apache Kafka 4.3.1.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

from asyncgroup.broker.transactions.metadata import ProducerIdAndEpoch
from asyncgroup.error_codes import ErrorCode as E, error_name
from asyncgroup.wire import messages as m
from asyncgroup.wire.batch_view import iter_batches
from tests.broker.client import Client
from tests.broker.transactional import add_partitions, partition_errors, transactional, txn_offset_commit

__all__ = ["STORIES", "TransactionRequests"]

RETRY_SECONDS = 20.0
"""Seconds for which transient errors are retried; brokers write markers asynchronously after EndTxn."""

RETRIED_ERRORS = (
    E.CONCURRENT_TRANSACTIONS,
    E.COORDINATOR_NOT_AVAILABLE,
    E.NOT_COORDINATOR,
    E.COORDINATOR_LOAD_IN_PROGRESS,
)


UNKNOWN = (
    E.UNKNOWN_TOPIC_OR_PARTITION,
    E.UNKNOWN_TOPIC_ID,
    E.NOT_LEADER_OR_FOLLOWER,
    E.LEADER_NOT_AVAILABLE,
)
"""The errors of a broker that does not know yet that it leads a new partition."""


class TransactionRequests:
    """Transaction requests on one connection, for one transactional id and a topic of two partitions; records results."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.topic = f"transactions-{uuid.uuid4().hex[:8]}"
        self.transactional_id = f"tx-{self.topic}"
        self.group = f"g-{self.topic}"
        self.topic_id = uuid.UUID(int=0)
        self.results: list[str] = []

    def record(self, what: str, *codes: int) -> None:
        """Record the error codes of a response under a title."""
        self.results.append(f"{what}: {' '.join(map(error_name, codes))}")

    async def prepare(self) -> None:
        """Create the topic, and wait for the coordinators and for the broker, which may learn of the topic a little later."""
        topic = m.CreateTopicsRequest.CreatableTopic(self.topic, 2, 1)
        created = await self._client.ask(m.CreateTopicsRequest([topic], 20_000))
        assert created.topics[0].error_code == 0
        self.topic_id = created.topics[0].topic_id
        for key_type, key in ((0, self.group), (1, self.transactional_id)):
            request = m.FindCoordinatorRequest(key_type=key_type, coordinator_keys=[key])
            await self._with_retries(
                lambda request=request: self._client.ask(request), lambda a: a.coordinators[0].error_code
            )
        for partition in (0, 1):
            await self._with_retries(
                lambda partition=partition: self._read(0, 0, partition), lambda a: a.error_code, UNKNOWN
            )

    async def _with_retries(
        self,
        ask: Callable[[], Awaitable[Any]],
        code: Callable[[Any], int],
        retried: tuple[E, ...] = RETRIED_ERRORS,
    ) -> Any:
        async with asyncio.timeout(RETRY_SECONDS):
            while code(answer := await ask()) in retried:
                await asyncio.sleep(0.05)
        return answer

    async def init(
        self, expected: ProducerIdAndEpoch | None = None, *, timeout: int = 60_000, version: int = 5
    ) -> tuple[int, ProducerIdAndEpoch]:
        """InitProducerId."""
        request = m.InitProducerIdRequest(self.transactional_id, timeout, *(expected or ()))
        answer = await self._with_retries(lambda: self._client.ask(request, version), lambda a: a.error_code)
        return answer.error_code, ProducerIdAndEpoch(answer.producer_id, answer.producer_epoch)

    async def add(self, producer: ProducerIdAndEpoch, *partitions: int, version: int = 3) -> list[int]:
        """AddPartitionsToTxn."""
        request = add_partitions(
            producer, *partitions, topic=self.topic, name=self.transactional_id, version=version
        )
        answer = await self._with_retries(
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
        """Produce any bytes with the transactional id."""
        named = {"topic_id": self.topic_id} if version >= 13 else {"name": self.topic}
        parts = [m.ProduceRequest.PartitionProduceData(partition, data)]
        topics = [m.ProduceRequest.TopicProduceData(**named, partition_data=parts)]  # type: ignore[arg-type]
        request = m.ProduceRequest(self.transactional_id, -1, 10_000, topics)
        answer = await self._with_retries(
            lambda: self._client.ask(request, version),
            lambda a: a.responses[0].partition_responses[0].error_code,
            (E.CONCURRENT_TRANSACTIONS, E.NOT_ENOUGH_REPLICAS, E.NOT_LEADER_OR_FOLLOWER),
        )
        return int(answer.responses[0].partition_responses[0].error_code)

    async def end(
        self, producer: ProducerIdAndEpoch, *, commit: bool = True, version: int = 4
    ) -> tuple[int, ProducerIdAndEpoch]:
        """EndTxn."""
        request = m.EndTxnRequest(self.transactional_id, *producer, commit)
        answer = await self._with_retries(lambda: self._client.ask(request, version), lambda a: a.error_code)
        return answer.error_code, ProducerIdAndEpoch(answer.producer_id, answer.producer_epoch)

    async def commit_offset(
        self, producer: ProducerIdAndEpoch, offset: int, *, version: int = 3, **member: Any
    ) -> int:
        """TxnOffsetCommit."""
        request = txn_offset_commit(
            producer, {0: offset}, topic=self.topic, name=self.transactional_id, group=self.group, **member
        )
        answer = await self._with_retries(
            lambda: self._client.ask(request, version), lambda a: partition_errors(a)[0]
        )
        return partition_errors(answer)[0]

    async def add_group(self, producer: ProducerIdAndEpoch, version: int = 3) -> int:
        """AddOffsetsToTxn."""
        request = m.AddOffsetsToTxnRequest(self.transactional_id, *producer, self.group)
        answer = await self._with_retries(lambda: self._client.ask(request, version), lambda a: a.error_code)
        return int(answer.error_code)

    async def offset(self, *, stable: bool = True) -> tuple[int, int]:
        """OffsetFetch of partition 0: return offset and error."""
        cls = m.OffsetFetchRequest
        topics = [cls.OffsetFetchRequestTopics(self.topic, partition_indexes=[0])]
        request = cls(groups=[cls.OffsetFetchRequestGroup(self.group, topics=topics)], require_stable=stable)
        answer = await self._with_retries(
            lambda: self._client.ask(request, 9), lambda a: a.groups[0].error_code
        )
        part = answer.groups[0].topics[0].partitions[0]
        return part.committed_offset, part.error_code

    async def read(self, isolation: int = 1, offset: int = 0) -> tuple[list[str], int, int, list[int]]:
        """Fetch partition 0: return batches (`0-1`, markers as `2!`), high watermark, last stable offset, aborted offsets.

        A Fetch response ends at the end of a log segment, and Kafka rolls segments when timestamps jump, so it is repeated.
        """
        part = await self._read(isolation, offset)
        batches: list[str] = []
        aborted: list[int] = []
        while part.records:
            for batch in iter_batches(bytes(part.records)):
                end = (
                    f"{batch.base_offset}!"
                    if batch.is_control
                    else f"{batch.base_offset}-{batch.last_offset}"
                )
                batches.append(end)
                offset = batch.next_offset
            aborted += [one.first_offset for one in part.aborted_transactions or []]
            part = await self._read(isolation, offset)
        return batches, part.high_watermark, part.last_stable_offset, aborted

    async def _read(self, isolation: int, offset: int, partition: int = 0) -> Any:
        cls = m.FetchRequest
        wanted = [cls.FetchPartition(partition, fetch_offset=offset, partition_max_bytes=1 << 20)]
        request = cls(
            max_wait_ms=0,
            min_bytes=0,
            isolation_level=isolation,
            topics=[cls.FetchTopic(topic_id=self.topic_id, partitions=wanted)],
        )
        return (await self._client.ask(request, 16)).responses[0].partitions[0]

    async def until_stable(self, offset: int) -> None:
        """Wait until partition 0's last stable offset is at least `offset`."""
        found = await self.read()
        try:
            async with asyncio.timeout(RETRY_SECONDS):
                while found[2] < offset:
                    await asyncio.sleep(0.02)
                    found = await self.read()
        except TimeoutError as error:
            error.add_note(f"the last stable offset has to be {offset} or more; batches, offsets: {found}")
            raise


async def visibility(requests: TransactionRequests) -> list[Any]:
    """Records visible to read_committed and read_uncommitted consumers, before and after the markers."""
    seen: list[Any] = []
    error, producer = await requests.init()
    assert error == E.NONE
    assert await requests.add(producer, 0) == [E.NONE]
    assert await requests.write(producer, b"a", b"b") == E.NONE
    seen += [await requests.read(), await requests.read(isolation=0)]
    assert (await requests.end(producer))[0] == E.NONE
    await requests.until_stable(3)
    assert await requests.add(producer, 0) == [E.NONE]
    assert await requests.write(producer, b"c", sequence=2) == E.NONE
    seen.append(await requests.read())
    assert (await requests.end(producer, commit=False))[0] == E.NONE
    await requests.until_stable(5)
    seen += [await requests.read(), await requests.read(isolation=0), await requests.read(offset=4)]
    return seen


VISIBILITY_RESULTS = [
    ([], 2, 0, []),
    (["0-1"], 2, 0, []),
    (["0-1", "2!"], 4, 3, []),
    (["0-1", "2!", "3-3", "4!"], 5, 5, [3]),
    (["0-1", "2!", "3-3", "4!"], 5, 5, []),
    (["4!"], 5, 5, [3]),
]


async def old_clients(requests: TransactionRequests) -> list[str]:
    """Clients before KIP-890: AddPartitionsToTxn, Produce, EndTxn; and the errors of wrong requests."""
    record = requests.record
    error, first = await requests.init()
    record("init", error)
    record("unknown producer adds", *await requests.add(ProducerIdAndEpoch(first.id + 100_000, 0), 0))
    record("newer epoch adds", *await requests.add(ProducerIdAndEpoch(first.id, 9), 0))
    record("adds what is not there", *await requests.add(first, 0, 7))
    record("commits nothing", (await requests.end(first))[0])
    for version in (10, 11):
        record(f"writes unannounced, version {version}", await requests.write(first, version=version))
    record("adds", *await requests.add(first, 0))
    record("adds again", *await requests.add(first, 0, 1))
    record("writes", await requests.write(first))
    record("writes out of order", await requests.write(first, sequence=5))
    record("commits", (await requests.end(first))[0])
    record("commits again", (await requests.end(first))[0])
    record("aborts what is committed", (await requests.end(first, commit=False))[0])
    record("old epoch commits", (await requests.end(ProducerIdAndEpoch(first.id, 7)))[0])
    await requests.add(first, 0)
    await requests.write(first, sequence=1)
    error, second = await requests.init()
    record(f"init aborts and fences, epoch {second.epoch - first.epoch} higher", error)
    for version in (1, 3):
        record(f"fenced adds, version {version}", *await requests.add(first, 0, version=version))
        record(f"fenced ends, version {version}", (await requests.end(first, version=version))[0])
    record("fenced writes", await requests.write(first, sequence=2))
    record("fenced inits", (await requests.init(first))[0])
    record("fenced inits, version 3", (await requests.init(first, version=3))[0])
    error, third = await requests.init(second)
    record(f"init of the same, epoch {third.epoch - second.epoch} higher", error)
    record("init repeated", (await requests.init(second))[0])
    record("no time at all", (await requests.init(timeout=0))[0])
    record("too much time", (await requests.init(timeout=900_001))[0])
    return requests.results


OLD_CLIENT_RESULTS = """
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


async def new_clients(requests: TransactionRequests) -> list[str]:
    """KIP-890: Produce adds partitions implicitly, and each EndTxn bumps the epoch."""

    async def end(what: str, producer: ProducerIdAndEpoch, *, commit: bool) -> ProducerIdAndEpoch:
        error, after = await requests.end(producer, commit=commit, version=5)
        step = f", epoch {after.epoch - producer.epoch} higher" if not error else ""
        requests.record(what + step, error)
        return after

    _, first = await requests.init()
    await end("commits nothing", first, commit=True)
    second = await end("aborts nothing", first, commit=False)
    requests.record("old epoch writes", await requests.write(first, version=12))
    requests.record("writes", await requests.write(second, version=12))
    requests.record("writes elsewhere", await requests.write(second, version=13, partition=1))
    third = await end("commits", second, commit=True)
    await end("commits again", second, commit=True)
    await end("aborts what is committed", second, commit=False)
    await end("commits what never began", third, commit=True)
    requests.record("goes on counting", await requests.write(third, version=12, sequence=1))
    requests.record("starts anew", await requests.write(third, version=12))
    fourth = await end("aborts", third, commit=False)
    await end("aborts again", third, commit=False)
    requests.record("commits offsets unannounced", await requests.commit_offset(fourth, 4, version=5))
    requests.record("offset while open", (await requests.offset())[1])
    fifth = await end("commits offsets", fourth, commit=True)
    requests.record("writes", await requests.write(fifth, version=12))
    error, sixth = await requests.init(fifth)
    requests.record(f"init of the same aborts, epoch {sixth.epoch - fifth.epoch} higher", error)
    await end("aborts what was aborted", fifth, commit=False)
    requests.record("writes", await requests.write(sixth, version=12))
    error, seventh = await requests.init()
    requests.record(f"init of another fences, epoch {seventh.epoch - sixth.epoch} higher", error)
    await end("fenced aborts", sixth, commit=False)
    requests.record("fenced inits", (await requests.init(sixth))[0])
    return requests.results


NEW_CLIENT_RESULTS = """
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


async def offsets(requests: TransactionRequests) -> list[str]:
    """Offset commits in transactions."""

    async def fetch(what: str, *, stable: bool = True) -> None:
        offset, error = await requests.offset(stable=stable)
        requests.record(f"{what} {offset}", error)

    _, producer = await requests.init()
    for version in (3, 4):
        error = await requests.commit_offset(producer, 5, version=version)
        requests.record(f"commits unannounced, version {version}", error)
    requests.record("adds the group", await requests.add_group(producer))
    requests.record("commits", await requests.commit_offset(producer, 5))
    requests.record(
        "in a generation", await requests.commit_offset(producer, 6, generation_id=3, member_id="m")
    )
    await fetch("stable")
    await fetch("any", stable=False)
    requests.record("ends", (await requests.end(producer))[0])
    async with asyncio.timeout(RETRY_SECONDS):
        while (await requests.offset())[1]:
            await asyncio.sleep(0.02)
    await fetch("stable")
    await requests.add_group(producer)
    await requests.commit_offset(producer, 9)
    await fetch("any", stable=False)
    requests.record("aborts", (await requests.end(producer, commit=False))[0])
    async with asyncio.timeout(RETRY_SECONDS):
        while (await requests.offset())[1]:
            await asyncio.sleep(0.02)
    await fetch("stable")
    _, newer = await requests.init()
    requests.record("fenced adds the group", await requests.add_group(producer))
    requests.record("fenced commits", await requests.commit_offset(producer, 9))
    assert newer.epoch == producer.epoch + 1
    return requests.results


OFFSET_RESULTS = """
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


STORIES: list[tuple[Callable[[TransactionRequests], Awaitable[list[Any]]], list[Any]]] = [
    (visibility, VISIBILITY_RESULTS),
    (old_clients, OLD_CLIENT_RESULTS.strip().splitlines()),
    (new_clients, NEW_CLIENT_RESULTS.strip().splitlines()),
    (offsets, OFFSET_RESULTS.strip().splitlines()),
]
"""The stories, each with its expected result."""
