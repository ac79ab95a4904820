"""Random transactions under random faults: a committed one is in the log once and as a whole, an aborted one not at all."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from contextlib import AsyncExitStack
from typing import Final

import pytest

from asyncgroup.broker import EmbeddedCluster
from asyncgroup.broker.metadata.features import DEFAULT_LEVELS
from asyncgroup.errors import AsyncGroupError, ErrorCode, TransactionOutcomeUnknown
from asyncgroup.model import TopicPartition
from asyncgroup.producer import Producer
from tests.producer.support import TOPIC
from tests.producer.transactions.support import (
    AFTER_LOG,
    INPUT,
    NAME,
    answered,
    committed,
    offsets_of,
    producer_of,
)
from tests.profiles import long_family

E = ErrorCode
PARTITIONS: Final = 3
TRANSACTIONS: Final = 25

RETRIABLE: Final = [
    E.COORDINATOR_LOAD_IN_PROGRESS, E.NOT_COORDINATOR, E.COORDINATOR_NOT_AVAILABLE, E.CONCURRENT_TRANSACTIONS
]  # fmt: skip
ABORTING: Final = [E.TRANSACTION_ABORTABLE, E.UNKNOWN_PRODUCER_ID]
CODES: Final[dict[str, list[ErrorCode]]] = {
    "InitProducerId": RETRIABLE,
    "AddPartitionsToTxn": [*RETRIABLE, *ABORTING, E.TOPIC_AUTHORIZATION_FAILED],
    "AddOffsetsToTxn": [*RETRIABLE, *ABORTING],
    "TxnOffsetCommit": [*RETRIABLE, *ABORTING, E.ILLEGAL_GENERATION],
    "EndTxn": [*RETRIABLE, E.TRANSACTION_ABORTABLE],
    "Produce": [
        E.NOT_LEADER_OR_FOLLOWER, E.NOT_ENOUGH_REPLICAS, E.REQUEST_TIMED_OUT, E.TRANSACTION_ABORTABLE, E.INVALID_RECORD
    ],
    "FindCoordinator": [E.COORDINATOR_NOT_AVAILABLE, E.COORDINATOR_LOAD_IN_PROGRESS],
    "Metadata": [],
}  # fmt: skip
COORDINATED: Final = {"AddPartitionsToTxn", "AddOffsetsToTxn", "EndTxn"}


class CallerError(Exception):
    """Raised in a transaction's block."""


class RandomTransactions:
    """One program: its seed decides everything."""

    def __init__(self, cluster: EmbeddedCluster, seed: int) -> None:
        self.cluster = cluster
        self.rng = random.Random(seed)
        self.outcomes: dict[int, str] = {}
        """`committed`, `aborted` or `unknown`, by transaction."""
        self.records: dict[int, list[tuple[int, bytes]]] = {}
        """Partition and value of the records of each transaction, in the order of the calls."""
        self.offsets: dict[int, int] = {}
        """The next offset that each transaction commits."""

    async def run(self) -> None:
        async with AsyncExitStack() as stack:
            producer: Producer | None = None
            for number in range(TRANSACTIONS):
                self.disturb()
                if producer is None:
                    producer = await self.new_producer(stack)
                if not await self.transaction(producer, number):
                    producer = None  # another one takes over, which ends what is left
            self.cluster.faults.clear()
            if producer is not None:  # it can still be used
                self.records[TRANSACTIONS] = [(0, b"last")]
                async with producer.transaction():
                    await producer.send(TOPIC, b"last", partition=0)
                self.outcomes[TRANSACTIONS] = "committed"
        async with producer_of(self.cluster):
            pass  # aborts what is left open

    async def new_producer(self, stack: AsyncExitStack) -> Producer:
        while True:
            try:
                limits = {"delivery_timeout": 12.0, "request_timeout": 5.0, "close_timeout": 20.0}
                return await stack.enter_async_context(
                    producer_of(self.cluster, linger=self.rng.choice([0.0, 0.01]), **limits)
                )
            except AsyncGroupError:
                self.cluster.faults.clear()

    def disturb(self) -> None:
        """Inject faults into some of the next requests, or move leaders and coordinators."""
        rng, cluster = self.rng, self.cluster
        for _ in range(rng.choice([0, 0, 1, 1, 2, 3])):
            api = rng.choice(list(CODES))
            fault = cluster.faults.on(
                api, nth=rng.choice([1, 1, 2, 3]), times=rng.choice([1, 1, 2])
            ).optional()
            action = rng.choice(["error", "error", "answered", "before", "after", "delay", "drop"])
            if action == "error" and CODES[api]:
                fault.error(rng.choice(CODES[api]))
            elif action == "answered" and api in COORDINATED:
                fault.mutate(answered(rng.choice(AFTER_LOG)))  # although it was processed
            elif action == "delay":
                fault.delay(rng.choice([0.01, 1.0, 6.0]))
            elif action == "drop":
                fault.drop()
            else:
                fault.disconnect("before" if action == "before" else "after")
        if rng.random() < 0.2:
            cluster.move_transaction_coordinator(NAME, rng.randint(1, 3))
        if rng.random() < 0.2:
            cluster.move_coordinator("g", rng.randint(1, 3))
        if rng.random() < 0.2:
            cluster.move_leader(TOPIC, rng.randrange(PARTITIONS), rng.randint(1, 3))

    async def transaction(self, producer: Producer, number: int) -> bool:
        """Run a transaction; return whether the producer can go on."""
        self.records[number] = []
        self.outcomes[number] = "aborted"
        limit = self.rng.choice([None, None, None, 0.0, 0.01, 3.0])
        try:
            async with asyncio.timeout(limit), producer.transaction():
                await self.block(producer, number)
        except TransactionOutcomeUnknown:
            self.outcomes[number] = "unknown"
        except TimeoutError as error:
            self.outcomes[number] = self.outcome_of(error)
        except (AsyncGroupError, CallerError):
            pass
        else:
            self.outcomes[number] = "committed"
        return str(producer._transactional("state").manager.state) not in {"failed", "closed"}

    @staticmethod
    def outcome_of(error: TimeoutError) -> str:
        """Return the outcome in the note of a cancellation."""
        cancelled = (
            error.__cause__ or error.__context__
        )  # before Python 3.11.3 `asyncio.timeout` names no cause
        notes = [note for note in getattr(cancelled, "__notes__", []) if "the transaction" in note]
        if any("was committed" in note for note in notes):
            return "committed"
        return "unknown" if any("commit" in note for note in notes) else "aborted"

    async def block(self, producer: Producer, number: int) -> None:
        rng = self.rng
        for index in range(rng.choice([0, 1, 3, 10])):
            partition, value = rng.randrange(PARTITIONS), b"%d/%d" % (number, index)
            self.records[number].append((partition, value))
            match rng.choice(["send", "enqueue", "enqueue", "nowait"]):
                case "send":
                    await producer.send(TOPIC, value, partition=partition)
                case "enqueue":
                    await producer.enqueue(TOPIC, value, partition=partition)
                case _:
                    future = producer.send_nowait(TOPIC, value, partition=partition)
                    future.add_done_callback(lambda done: done.cancelled() or done.exception())
        if rng.random() < 0.5:
            self.offsets[number] = number + 1
            await producer.send_offsets(offsets_of("g", number + 1))
        if rng.random() < 0.2:
            raise CallerError

    def check(self) -> None:
        visible = Counter(committed(self.cluster))
        assert max(visible.values(), default=1) == 1, "a record is in the log twice"
        offsets: set[int | None] = {None}
        for number, outcome in self.outcomes.items():
            values = {value for _, value in self.records[number]}
            found = values & visible.keys()
            assert found in {
                "committed": [values], "aborted": [set()], "unknown": [values, set()]
            }[outcome], f"transaction {number} is {outcome}: {len(found)} of {len(values)} records are visible"  # fmt: skip
            if number in self.offsets and outcome == "committed":
                offsets = {self.offsets[number]}
            elif number in self.offsets and outcome == "unknown":
                offsets.add(self.offsets[number])
        kept = self.cluster.group("g").offsets.get(TopicPartition(INPUT, 0))
        assert (None if kept is None else kept.offset) in offsets
        for partition in range(PARTITIONS):
            sent = [value for records in self.records.values() for at, value in records if at == partition]
            in_log = committed(self.cluster, partition)
            assert in_log == [value for value in sent if value in set(in_log)], (
                "not in the order of the calls"
            )


@pytest.mark.virtual(max_virtual_time=100_000)
@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("seed", long_family(range(60)))
async def test_random_transactions(seed: int, version: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(DEFAULT_LEVELS, "transaction.version", version)
    async with EmbeddedCluster(nodes=3, seed=seed) as cluster:
        cluster.create_topic(TOPIC, PARTITIONS)
        cluster.create_topic(INPUT, 1)
        program = RandomTransactions(cluster, seed)
        await program.run()
        program.check()
        assert {"committed", "aborted"} <= set(program.outcomes.values())
