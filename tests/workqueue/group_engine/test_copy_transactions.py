"""CopyTransactions with a producer that is answered by hand: which copies share a transaction, and what its failure concerns."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
import pytest_asyncio

from asyncgroup import ConsumerConfig, ProducerConfig
from asyncgroup.ack_window import AckWindow
from asyncgroup.cluster import ClusterClient
from asyncgroup.errors import (
    BrokerError,
    ClosedError,
    CommitFailedError,
    ConfigError,
    ErrorCode,
    RequestTimedOut,
)
from asyncgroup.model import GroupOffsets, RecordMetadata, TopicPartition
from asyncgroup.offsets import Committer, PartitionMarks
from asyncgroup.offsets.window_marks import WindowMarks
from asyncgroup.producer import Producer
from asyncgroup.workqueue import DeadLetter, RetryTopic, WorkQueue
from asyncgroup.workqueue.engine import OutgoingCopy
from asyncgroup.workqueue.group_engine import copy_queue
from asyncgroup.workqueue.group_engine.claim_window import ClaimWindow
from asyncgroup.workqueue.group_engine.copy_transactions import CopyTransactions
from asyncgroup.workqueue.group_engine.copy_writer import transactions_config
from asyncgroup.workqueue.group_engine.source import GroupPlan
from asyncgroup.workqueue.group_engine.window_transaction import WindowTransaction
from tests.work_queues import group_queue

pytestmark = pytest.mark.usefixtures("no_asyncio_errors")

DLQ, RETRY = "dead", "again"
TP, OTHER = TopicPartition("orders", 0), TopicPartition("orders", 1)


class HandProducer:
    """Records transactions as lists of values; `refuse` are values that fail, `answers` errors of the offsets, in order.

    A value goes to the partition of its last digit; `silent` are partitions that do not answer.
    """

    def __init__(self) -> None:
        self.log: list[str] = []
        self.offsets: list[GroupOffsets] = []
        self.refuse: dict[bytes, Exception] = {}
        self.answers: list[Exception | None] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self._inner = self
        self.has_failed = False
        self.silent: set[int] = set()
        self._unwritten: set[TopicPartition] = set()
        self._open: list[bytes] = []

    async def __aenter__(self) -> None:
        pass

    async def aclose(self, *, drain: bool = True) -> None:
        pass

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        self._open, self._unwritten = [], set()
        try:
            yield
        except BaseException:
            self.log.append(f"abort {b' '.join(self._open).decode()}")
            raise
        self.log.append(f"commit {b' '.join(self._open).decode()}")

    def choose(self, topic: str, key: bytes, _size: int, _avoided: object) -> TopicPartition:
        return TopicPartition(topic, int(key))

    def unwritten(self, _topic: str) -> set[TopicPartition]:
        return self._unwritten

    async def send(self, topic: str, value: bytes, *, partition: int, **_more: Any) -> RecordMetadata:
        self._open.append(value)
        if value in self.refuse:
            raise self.refuse[value]
        if partition in self.silent:
            self._unwritten.add(TopicPartition(topic, partition))
            await asyncio.get_running_loop().create_future()
        return RecordMetadata(topic, partition, len(self._open), 0)

    async def send_offsets(self, offsets: GroupOffsets) -> None:
        await self.gate.wait()
        self.offsets.append(offsets)
        if self.answers and (error := self.answers.pop(0)) is not None:
            raise error


class HandWindow:
    """The window of a claim, of which nothing else is committed."""

    def __init__(self, tp: TopicPartition, limit: int) -> None:
        self.session = self
        self._inner = self
        self.marks = PartitionMarks(0)
        self.window = self.marks.window = WindowMarks(tp, AckWindow(0), limit=limit)
        self.transaction = WindowTransaction("g", tp, cast(Committer, self), self.marks)

    def __contains__(self, _tp: object) -> bool:
        return True

    def of(self, _topic: str, _partition: int) -> PartitionMarks:
        return self.marks

    async def wait_in_flight(self) -> None:
        pass

    def group_offsets(self, offsets: Any) -> GroupOffsets:
        return GroupOffsets("g", offsets)


class Desk:
    def __init__(self, limit: int = 4096) -> None:
        self.producer = HandProducer()
        self.windows = {tp: HandWindow(tp, limit) for tp in (TP, OTHER)}
        self.errors: list[Exception] = []
        self.ends = 0
        self.emit = self.track = self.untrack = lambda *_: None
        self.hooks = self
        self.transactions = CopyTransactions(
            cast(ClusterClient, self),
            "g",
            lambda: cast(Producer, self.producer),
            time_limit=10.0,
            send_limit=10.0,
            raises_fenced=False,
            window_of=lambda tp: cast(ClaimWindow | None, self.windows.get(tp)),
            on_error=self.errors.append,
            on_failure=self.errors.append,
            on_end=self._note_end,
        )

    def _note_end(self) -> None:
        self.ends += 1

    def write(
        self, offset: int, topic: str = DLQ, tp: TopicPartition = TP, *, alone: bool = False, size: int = 0
    ) -> asyncio.Task[RecordMetadata]:
        """Begin to write the copy of a record; it is acknowledged when it is written."""
        record = OutgoingCopy(topic, b"%d" % offset + b"." * size, b"%d" % (offset % 10), [], None)

        def written(_metadata: RecordMetadata) -> None:
            window = self.windows[tp]
            assert window.marks.transactional
            window.window.window.ack(offset)
            window.marks.touch()

        return asyncio.create_task(self.transactions.write(tp, offset, record, written, alone=alone))

    def acked(self, tp: TopicPartition = TP) -> list[int]:
        window = self.windows[tp].window.window
        return [offset for offset in range(window.end) if offset in window]

    @property
    def log(self) -> list[str]:
        return self.producer.log


@asynccontextmanager
async def desk(**options: Any) -> AsyncIterator[Desk]:
    made = Desk(**options)
    await made.transactions.open()
    try:
        yield made
    finally:
        await made.transactions.aclose()
        assert not made.windows[TP].transaction.is_open or made.windows[TP].transaction.is_given_up


async def outcomes(*tasks: asyncio.Task[RecordMetadata]) -> list[type[Exception] | None]:
    """Wait for calls of `write`, and return the types of their errors."""
    results = await asyncio.gather(*tasks, return_exceptions=True)
    return [None if isinstance(each, RecordMetadata) else type(each) for each in results]  # type: ignore[misc]


# --- which copies share a transaction ------------------------------------------------------------------------------------


@pytest_asyncio.fixture
async def made() -> AsyncIterator[Desk]:
    """A desk with the default options."""
    async with desk() as made:
        yield made


async def test_copies_that_wait_share_a_transaction(made):
    assert await outcomes(made.write(0), made.write(2), made.write(1, tp=OTHER)) == [None] * 3
    assert made.log == ["commit 0 2 1"]
    (sent,) = made.producer.offsets
    assert {tp: value.offset for tp, value in sent.offsets.items()} == {TP: 1, OTHER: 0}
    assert (made.acked(), made.acked(OTHER)) == ([0, 2], [1])
    assert (made.windows[TP].marks.dirty, made.ends) == (False, 0)  # nothing else is to be committed


async def test_topics_and_copies_that_are_to_be_alone_have_transactions_of_their_own():
    async with desk() as made:
        calls = [
            made.write(0),
            made.write(1, RETRY),
            made.write(2, alone=True),
            made.write(3, RETRY),
            made.write(4),
            made.write(5, alone=True),
        ]
        assert await outcomes(*calls) == [None] * 6
    assert made.log == ["commit 0 4", "commit 1 3", "commit 2", "commit 5"]


async def test_limits(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(copy_queue, "MAX_COPIES", 3)
    monkeypatch.setattr(copy_queue, "MAX_BYTES", 1000)
    async with desk() as made:
        assert await outcomes(*(made.write(offset) for offset in range(5))) == [None] * 5
        assert made.log == ["commit 0 1 2", "commit 3 4"]
        made.log.clear()
        await outcomes(made.write(5, size=2000), made.write(6, size=500), made.write(7, size=600))
        assert [line.count(".") for line in made.log] == [2000, 500, 600]


# --- failures ----------------------------------------------------------------------------------------------------------


async def test_only_the_refused_copy_fails(made):
    made.producer.refuse[b"1"] = BrokerError(ErrorCode.MESSAGE_TOO_LARGE, "dead-0")
    assert await outcomes(*(made.write(offset) for offset in range(3))) == [None, BrokerError, None]
    assert made.log == ["abort 0 1 2", "commit 0 2"]
    assert made.acked() == [0, 2]


async def test_all_fail_if_the_transaction_does(made):
    made.producer.answers = [RequestTimedOut("no answer")]
    assert await outcomes(made.write(0), made.write(1)) == [RequestTimedOut, RequestTimedOut]
    assert (made.log, made.acked()) == (["abort 0 1"], [])
    assert await outcomes(made.write(0)) == [None]


async def test_a_rebalance_is_no_failure(made):
    refusal = BrokerError(ErrorCode.ILLEGAL_GENERATION, "g")
    made.producer.answers = [CommitFailedError("g", {TP: refusal})] * 3
    assert await outcomes(made.write(0)) == [None]
    assert made.log == ["abort 0"] * 3 + ["commit 0"]


async def test_a_window_that_the_group_finds_too_large_is_committed_in_part(made):
    window = made.windows[TP]
    for offset in range(10, 2000, 3):
        window.window.window.ack(offset)
    refusal = BrokerError(ErrorCode.OFFSET_METADATA_TOO_LARGE, "g")
    made.producer.answers = [CommitFailedError("g", {TP: refusal})]
    assert await outcomes(made.write(0)) == [None]
    sizes = [len(offsets.offsets[TP].metadata) for offsets in made.producer.offsets]
    assert sizes[1] < sizes[0]
    assert 0 in made.acked()


async def test_no_room_for_the_acknowledgement():
    """A record beyond what fits into the metadata would be delivered again after a restart: its copy waits."""
    async with desk(limit=100) as made:
        window = made.windows[TP]
        rng = random.Random(1)
        for offset in rng.sample(range(10, 5000), 900):
            window.window.window.ack(offset)
        assert await outcomes(made.write(6001), made.write(0, tp=OTHER)) == [BrokerError, None]
        assert made.log == ["abort 6001 0", "commit 0"]
        assert await outcomes(made.write(0)) == [None]


async def test_the_producer_cancels_a_record(made):
    """As when it is closed because of a bug; the task goes on."""
    made.producer.refuse[b"0"] = cast(Exception, asyncio.CancelledError())
    assert await outcomes(made.write(0)) == [ClosedError]
    assert await outcomes(made.write(1)) == [None]


async def test_a_bug_in_an_acknowledgement(made: Desk, caplog: pytest.LogCaptureFixture):
    """The others of the transaction are acknowledged."""

    def broken(_metadata: RecordMetadata) -> None:
        raise ZeroDivisionError

    record = OutgoingCopy(DLQ, b"bad", b"0", [], None)
    bad = asyncio.create_task(made.transactions.write(TP, 7, record, broken, alone=False))
    with caplog.at_level(logging.ERROR, "asyncgroup.workqueue"):
        assert await outcomes(bad, made.write(1)) == [None, None]
    assert "ZeroDivisionError" in caplog.text
    assert made.acked() == [1]


async def test_a_bug_of_the_task_ends_the_queue(made: Desk, caplog: pytest.LogCaptureFixture):
    made.transactions._queue._window_of = cast(Any, None)
    with caplog.at_level(logging.ERROR, "asyncgroup.workqueue"):
        assert await outcomes(made.write(0)) == [ClosedError]
    assert [type(error) for error in made.errors] == [TypeError]
    assert await outcomes(made.write(0)) == [ClosedError]


# --- partitions that do not answer ---------------------------------------------------------------------------------------


async def test_a_partition_that_does_not_answer_fails_only_its_own_copies():
    """Those that were written are repeated without any other, and later ones do not wait for the partition."""
    async with desk() as made:
        made.producer.silent = {1}
        first = [made.write(offset) for offset in (0, 1, 2, 11)]
        await asyncio.sleep(5)
        later = [made.write(4), made.write(21)]
        assert await outcomes(*first) == [None, RequestTimedOut, None, RequestTimedOut]
        assert "dead-1: no response within the time of a transaction, 10 s" in str(first[1].exception())
        assert await outcomes(later[0], made.write(3)) == [None, None]
        assert made.log == ["abort 0 1 2 11", "commit 0 2", "commit 4", "commit 3"]
        assert made.acked() == [0, 2, 3, 4]
        assert not later[1].done()
    assert await outcomes(later[1]) == [ClosedError]


async def test_a_partition_that_does_not_answer_is_tried_at_a_bounded_rate(made):
    """With all its copies at once, however many there are; when one is written, the others follow at once."""
    made.producer.silent = {1, 2}

    async def until_written(offset: int) -> None:
        while await outcomes(made.write(offset)) != [None]:
            await asyncio.sleep(0.1)

    bad = [asyncio.create_task(until_written(at)) for at in range(400) if at % 10 in (1, 2)]
    for offset in range(0, 400, 10):
        assert await outcomes(made.write(offset)) == [None]
        await asyncio.sleep(5)
    trials = [line for line in made.log if line.startswith("abort")]
    assert 4 < len(trials) <= 1 + 300 / 40
    assert {line.count(" ") for line in trials[1:]} == {80}
    made.producer.silent = {2}
    made.log.clear()
    await asyncio.sleep(60)
    assert [line.split()[0] for line in made.log[:2]] == ["abort", "commit"]
    assert {int(value) % 10 for value in made.log[1].split()[1:]} == {1}
    assert await outcomes(made.write(401)) == [None]
    made.producer.silent.clear()
    await asyncio.gather(*bad)
    assert made.acked() == sorted({*range(0, 400, 10), *range(1, 402, 10), *range(2, 400, 10)})


async def test_copies_that_wait_for_a_partition_are_given_up(made):
    made.producer.silent = {1}
    assert await outcomes(made.write(0), made.write(1)) == [None, RequestTimedOut]
    given_up, others = made.write(1), made.write(11, tp=OTHER)
    await asyncio.sleep(1)
    given_up.cancel()
    made.transactions.abandon(TP, 0, is_over=True)
    made.producer.silent.clear()
    assert await outcomes(others) == [None]
    assert made.log[-1] == "commit 11"


async def test_a_partition_that_no_copy_has_to_go_to_is_forgotten(made):
    """Copies without a key avoid it no longer."""
    made.producer.silent = {1}
    assert await outcomes(made.write(0), made.write(1)) == [None, RequestTimedOut]
    assert list(made.transactions._queue.stalled) == [(DLQ, 1)]
    await asyncio.sleep(100)
    assert await outcomes(made.write(2)) == [None]
    assert made.transactions._queue.stalled == {}


# --- ends of claims and of the queue -------------------------------------------------------------------------------------


async def test_a_partition_is_given_up_before_the_commit(made):
    """Ordinary commits of all partitions go on at once; the copies of the others are repeated."""
    made.producer.gate.clear()
    mine, others = made.write(0), made.write(0, tp=OTHER)
    await asyncio.sleep(1)
    assert made.windows[TP].marks.transactional
    mine.cancel()
    made.transactions.abandon(TP, 0, is_over=True)
    assert not made.windows[TP].marks.transactional
    assert not made.windows[OTHER].marks.transactional
    made.producer.gate.set()
    assert await outcomes(others) == [None]
    assert made.log == ["abort 0 0", "commit 0"]
    assert (made.acked(), made.acked(OTHER)) == ([], [0])


async def test_the_records_before_a_truncation_are_kept(made):
    made.producer.gate.clear()
    kept, lost = made.write(0), made.write(5)
    await asyncio.sleep(1)
    lost.cancel()
    made.transactions.abandon(TP, 3, is_over=False)
    made.producer.gate.set()
    assert await outcomes(kept) == [None]
    assert (made.log, made.acked()) == (["abort 0 5", "commit 0"], [0])


async def test_acknowledgements_that_waited_are_committed_then(made):
    made.producer.gate.clear()
    copy = made.write(0)
    await asyncio.sleep(1)
    made.windows[TP].window.window.ack(1)
    made.windows[TP].marks.touch()
    assert not made.windows[TP].marks.is_due(retry_rejected=True)
    made.producer.gate.set()
    assert await outcomes(copy) == [None]
    assert (made.ends, made.windows[TP].marks.is_due(retry_rejected=True)) == (1, True)


async def test_a_claim_that_has_ended_and_a_closed_queue(made):
    gone = TopicPartition("orders", 9)
    record = OutgoingCopy(DLQ, b"", None, [], None)
    with pytest.raises(ClosedError, match="orders-9"):
        await made.transactions.write(gone, 0, record, print, alone=False)
    made.producer.gate.clear()
    in_hand = made.write(0)
    await asyncio.sleep(1)
    waiting = made.write(1)
    await asyncio.sleep(0)
    await made.transactions.aclose()
    assert await outcomes(in_hand, waiting, made.write(2)) == [ClosedError] * 3
    assert (made.log, made.acked()) == (["abort 0"], [])


# --- settings -----------------------------------------------------------------------------------------------------------


async def test_settings():
    def queue(**more: Any) -> WorkQueue:
        options: dict[str, Any] = {"transactional_copies": True, "retry": RetryTopic()}
        return group_queue("localhost:9092", "g", "orders", **(options | more))

    assert queue().config.isolation_level == "read_committed"
    assert cast(GroupPlan, queue()._plan).producer_config.transaction_timeout == 10.0
    assert queue(transactional_copies=False).config.isolation_level == "read_uncommitted"
    committed = ConsumerConfig(isolation_level="read_committed")
    assert queue(config=committed).config.isolation_level == "read_committed"
    queue(retry=None, dead_letter=DeadLetter(), config=ConsumerConfig())
    for more, key in (
        ({"config": ConsumerConfig()}, "isolation_level"),
        ({"retry": None}, "transactional_copies"),
        ({"transactional_copies": "yes"}, "transactional_copies"),
        (
            {"transactional_copies": False, "producer_config": ProducerConfig(transactional_id="x")},
            "transactional_id",
        ),
        ({"producer_config": ProducerConfig(enable_idempotence=False)}, "enable_idempotence"),
    ):
        with pytest.raises(ConfigError) as caught:
            queue(**more)
        assert caught.value.key == key


async def test_the_transactional_id():
    rng = random.Random(1)
    group = ConsumerConfig(close_timeout=10.0)
    names = {transactions_config(ProducerConfig(), group, "g", rng).transactional_id or "" for _ in range(3)}
    assert len(names) == 3
    assert all(name.startswith("g-") for name in names)
    static = ConsumerConfig(group_instance_id="one")
    assert transactions_config(ProducerConfig(), static, "g", rng).transactional_id == "g-one"
    mine = ProducerConfig(transactional_id="mine")
    assert transactions_config(mine, static, "g", rng).transactional_id == "mine"
    assert transactions_config(ProducerConfig(), group, "g", rng).close_timeout == 1.0
