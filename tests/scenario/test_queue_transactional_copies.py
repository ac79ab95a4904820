"""Work queues that commit a copy and the acknowledgement of its original in one transaction."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, Final, Literal, TypeAlias

import pytest

from asyncgroup import Consumer, ConsumerConfig, Producer, ProducerConfig
from asyncgroup.broker import Exchange
from asyncgroup.errors import CopyFailedError, ErrorCode, ProducerFencedError, TransactionOutcomeUnknown
from asyncgroup.workqueue import AckOutcome, DeadLetter, Delivery, RetryTopic
from asyncgroup.workqueue.copy_transactions import CopyTransactions
from tests.asyncio_errors import no_asyncio_errors
from tests.stories.queue_members import Gates, QueueMember, Work, acked, cut_off, send, working
from tests.stories.virtual import VirtualEnvironment

__all__ = ["no_asyncio_errors"]

pytestmark = [
    pytest.mark.asyncio,
    pytest.mark.virtual(max_virtual_time=864_000),
    pytest.mark.usefixtures("no_asyncio_errors"),
]

RETRY: Final = "orders-g-RETRY"
DLQ: Final = "orders-g-DLQ"
VALUES: Final = [b"reject 0", b"retry 1", b"ack 2", b"fail 3", b"ack 4", b"reject 5", b"retry 6", b"ack 7"]

Crash: TypeAlias = Literal["lost", "handled", "late"]


def options(**more: Any) -> dict[str, Any]:
    """The options of a queue with transactional copies."""
    config = {"isolation_level": "read_committed", "close_timeout": 5.0, **more.pop("config", {})}
    made = {
        "transactional_copies": True,
        "retry": RetryTopic(partitions=1),
        "dead_letter": DeadLetter(3, partitions=1),
        "nack_backoff": 0.2,
    }
    return made | more | {"config": config}


async def work(delivery: Delivery) -> None:
    """Do what the value says; copies in the retry topic are acknowledged."""
    if delivery.record.topic == RETRY:
        return
    match (delivery.value or b"").split()[0]:
        case b"reject":
            await delivery.reject("bad")
        case b"retry":
            await delivery.reconsume_later(0.5)
        case b"fail":
            raise ValueError("broken")


async def copies(env: VirtualEnvironment, topic: str) -> list[bytes]:
    """Return the values that readers with `read_committed` see in a topic of one partition, when no transaction is open."""
    (part,) = env.cluster.topic(topic).partitions
    async with asyncio.timeout(env.limit):
        while part.last_stable_offset != part.high_watermark:
            await asyncio.sleep(1.0)
            (part,) = env.cluster.topic(topic).partitions
    found: list[bytes] = []
    async with Consumer(env.bootstrap_servers, ConsumerConfig(isolation_level="read_committed")) as consumer:
        reader = await consumer.partition(topic, 0, 0)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                async for record in reader:
                    found.append(record.value or b"")
    return sorted(found)


async def until_acked(env: VirtualEnvironment, count: int = len(VALUES)) -> None:
    """Wait until all records of `orders`, and all that are to be seen in the retry topic, are acknowledged by commits."""
    async with asyncio.timeout(env.limit):
        while await acked(env) != list(range(count)) or not await _is_retry_topic_done(env):
            await asyncio.sleep(0.2)


async def _is_retry_topic_done(env: VirtualEnvironment) -> bool:
    done = set(await acked(env, topic=RETRY))
    (part,) = env.cluster.topic(RETRY).partitions
    return done >= set(range(part.high_watermark - 1)) and part.high_watermark > 0


async def each_once(env: VirtualEnvironment) -> None:
    """Each record that was rejected, failed or is to be tried again has one copy."""
    assert await copies(env, DLQ) == [b"fail 3", b"reject 0", b"reject 5"]
    assert await copies(env, RETRY) == [b"retry 1", b"retry 6"]


async def test_each_copy_is_there_once(env: VirtualEnvironment):
    await send(env, *VALUES)
    async with working(env, "ann", work, **options()) as ann:
        await until_acked(env)
        counts = ann.queue.statistics().counts
        assert (counts.dead_lettered, counts.reconsumed) == (3, 2)
    await each_once(env)
    assert env.cluster.history.of("EndTxn")


REQUESTS: Final = (
    *("AddPartitionsToTxn", "Produce", "AddOffsetsToTxn", "TxnOffsetCommit", "EndTxn"),
    "OffsetCommit",
)


class Process:
    """A queue in a task of its own, which connects from its own host; the tasks of the story do not."""

    def __init__(self, env: VirtualEnvironment, name: str, handle: Work = work, **more: Any) -> None:
        self._env = env
        self._handle = handle
        self._name = name
        self._options = options(**more)
        self._ended = asyncio.Event()
        self._opened: asyncio.Future[QueueMember] = asyncio.get_running_loop().create_future()

    async def __aenter__(self) -> QueueMember:
        self._task = asyncio.create_task(self._run(), name=self._name)
        await asyncio.wait([self._task, self._opened], return_when=asyncio.FIRST_COMPLETED)
        if self._task.done():
            self._task.result()
        return self._opened.result()

    async def _run(self) -> None:
        async with working(self._env, self._name, self._handle, **self._options) as member:
            self._opened.set_result(member)
            await self._ended.wait()

    async def __aexit__(self, *_error: object) -> None:
        self._ended.set()
        await self._task


async def crash_at(number: int, crash: Crash) -> bool:
    """Run the queue until its request `number`, end its process there, and start another one; return whether it was reached."""
    async with VirtualEnvironment.made() as env:
        await send(env, *VALUES)
        reached = asyncio.Event()

        def counts(request: Any) -> bool:
            return request.NAME.removesuffix("Request") in REQUESTS

        fault = env.cluster.faults.on(client_id="ann", where=counts, nth=number).optional()
        match crash:
            case "lost":
                fault.disconnect("before")
            case "handled":
                fault.drop()
            case "late":
                fault.hold()
        fault.observe(lambda _: (cut_off(env, "ann"), reached.set()))
        async with Process(env, "ann"):
            finished = asyncio.create_task(until_acked(env))
            crashing = asyncio.create_task(reached.wait())
            await asyncio.wait([finished, crashing], return_when=asyncio.FIRST_COMPLETED)
            crashing.cancel()
            if not reached.is_set():
                await finished
                return False
            finished.cancel()
            await asyncio.wait([finished])
            async with Process(env, "bob"):
                if crash == "late":
                    await asyncio.sleep(5.0)
                    fault.release()
                await until_acked(env)
        await each_once(env)
        env.network.heal(env._hosts["ann"])  # the next environment has the same network
        return True


@pytest.mark.parametrize("crash", ["lost", "handled", "late"])
async def test_a_crash_at_each_request(crash: Crash):
    number = 1
    while True:
        try:
            if not await crash_at(number, crash):
                break
        except BaseException as error:
            error.add_note(f"request {number}, {crash}")
            raise
        number += 1
    assert number > 10


# --- failures without a crash -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("api", REQUESTS)
@pytest.mark.parametrize("when", ["before", "after"])
async def test_connections_end(env: VirtualEnvironment, api: str, when: Literal["before", "after"]):
    """A request that is not answered is repeated, whether it was handled or not."""
    await send(env, *VALUES)
    for nth in (1, 3, 4):
        env.cluster.faults.on(api, client_id="ann", nth=nth).disconnect(when).optional()
    async with Process(env, "ann"):
        await until_acked(env)
    await each_once(env)


UNKNOWN: Final = {
    "producer_config": ProducerConfig(transaction_timeout=10.0, request_timeout=2.0, delivery_timeout=6.0)
}


@pytest.mark.parametrize("is_handled", [True, False])
async def test_the_outcome_is_unknown(env: VirtualEnvironment, is_handled: bool):
    """The next producer has the transaction completed or aborted; the committed offset says which, and nothing is repeated."""
    await send(env, b"reject 0", b"ack 1")
    ending = env.cluster.faults.on("EndTxn", client_id="ann", times=None)
    ending.drop() if is_handled else ending.disconnect("before")
    async with Process(env, "ann", **UNKNOWN) as ann:
        errors = ann.queue.errors()
        await ending.wait_hit(3)
        first = producer_of(ann)
        assert ann.of("begin") == ["0@0#1", "0@1#1"]
        assert await acked(env) == []  # the commit of offset 1 waits
        await env.bell.until(lambda: producer_of(ann) is not first, "a new producer", env.limit)
        ending.cancel()
        async with asyncio.timeout(env.limit):
            while await acked(env) != [0, 1]:
                await asyncio.sleep(0.2)
        assert ann.of("begin") == ["0@0#1", "0@1#1"]  # the record is not delivered again
        if not is_handled:
            error = await anext(errors)
            assert isinstance(error, CopyFailedError)
            assert isinstance(error.__cause__, TransactionOutcomeUnknown)
    assert await copies(env, DLQ) == [b"reject 0"]


def producer_of(member: QueueMember) -> Producer:
    """Return the producer of copies."""
    copies_of = member.queue._engine._copies
    assert isinstance(copies_of, CopyTransactions)
    return copies_of._producer


async def test_acknowledgements_during_a_transaction(env: VirtualEnvironment):
    """They are committed neither with it nor before its end, but at once then, and a durable one returns after that."""
    await send(env, b"reject 0", b"ack 1", b"durable 2", b"ack 3")
    ended: list[str] = []
    at_end = asyncio.Event()

    async def handle(delivery: Delivery) -> None:
        await work(delivery)
        if delivery.record.offset:
            await at_end.wait()
        if delivery.value == b"durable 2":
            assert await delivery.ack(durable=True) is AckOutcome.COMMITTED
            assert {0, 1, 2} <= set(await acked(env))
            ended.append("durable")
        env.bell.ring()

    held = env.cluster.faults.on("EndTxn", client_id="ann").hold()
    async with Process(env, "ann", handle, ack_group_time=0.0) as ann:
        await held.wait_hit()
        at_end.set()
        await ann.until("end 0@1#1", "end 0@3#1")
        await asyncio.sleep(5.0)
        assert await acked(env) == []
        assert ended == []
        commits = len(env.cluster.history.of("OffsetCommit"))
        held.release()
        await ann.until("end 0@0#1", "end 0@2#1")
        assert ended == ["durable"]
        async with asyncio.timeout(1.0):
            while await acked(env) != [0, 1, 2, 3]:
                await asyncio.sleep(0.01)
        assert len(env.cluster.history.of("OffsetCommit")) == commits + 1
    assert await copies(env, DLQ) == [b"reject 0"]


async def test_a_transaction_contains_the_acknowledgements_before_it(env: VirtualEnvironment):
    """Also those whose own commit has not begun; nothing is left to commit then."""
    await send(env, b"ack 0", b"ack 1", b"reject 2")
    gates = Gates()
    gates.open(0, 1)

    async def handle(delivery: Delivery) -> None:
        await gates(delivery)
        await work(delivery)

    async with Process(
        env, "ann", handle, ack_group_time=600.0, config={"auto_commit_interval": 600.0}
    ) as ann:
        await ann.until("end 0@0#1", "end 0@1#1")
        before = len(env.cluster.history.of("OffsetCommit"))
        gates.open()
        await ann.until("end 0@2#1")
        assert await acked(env) == [0, 1, 2]
    late = [each for each in env.cluster.history.of("OffsetCommit")[before:] if topics_of(each) & {"orders"}]
    assert len(late) == 1  # the last one, which says that the claim has ended in order


def topics_of(exchange: Exchange) -> set[str]:
    """Return the topics of an OffsetCommit."""
    names = {topic.name for topic in exchange.request.topics}
    return names - {""} or {"orders", RETRY}


@pytest.mark.parametrize(
    "code",
    [ErrorCode.ILLEGAL_GENERATION, ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.GROUP_AUTHORIZATION_FAILED],
)
async def test_the_group_refuses_the_offsets(env: VirtualEnvironment, code: ErrorCode):
    """The transaction is aborted and repeated; nothing is acknowledged before. Only a rebalance is no error."""
    await send(env, b"reject 0", b"ack 1")
    refusing = env.cluster.faults.on("TxnOffsetCommit", client_id="ann", times=2).error(code)
    async with Process(env, "ann") as ann:
        errors = ann.queue.errors()
        if code is not ErrorCode.ILLEGAL_GENERATION:
            error = await anext(errors)
            assert isinstance(error, CopyFailedError)
            assert (error.record_topic, error.partition, error.offset, error.topic) == ("orders", 0, 0, DLQ)
            assert 0 not in await acked(env)
        await refusing.wait_hit(2)
        await ann.until("end 0@0#1")
        assert await acked(env) == [0, 1]
        assert ann.of("begin") == ["0@0#1", "0@1#1"]
    assert await copies(env, DLQ) == [b"reject 0"]
    aborts = [each for each in env.cluster.history.of("EndTxn") if not each.request.committed]
    assert len(aborts) == 2


async def test_a_copy_that_the_broker_refuses(env: VirtualEnvironment):
    """It is reported and tried again, alone; the others are copied, those to other topics, too."""
    env.cluster.create_topic(DLQ, 1, config={"max.message.bytes": "2000"})
    large = b"reject 1 " + bytes(range(256)) * 20
    await send(env, b"reject 0", large, b"reject 2", b"retry 3", b"reject 4")
    async with Process(env, "ann") as ann:
        errors = ann.queue.errors()
        error = await anext(errors)
        assert isinstance(error, CopyFailedError)
        await ann.until("end 0@0#1", "end 0@2#1", "end 0@3#1", "end 0@4#1")
        await asyncio.sleep(100.0)
        assert [at for at in await acked(env) if at < 5] == [0, 2, 3, 4]
        assert (
            ann.queue.statistics().partitions[0].publishing + ann.queue.statistics().partitions[1].publishing
            == 1
        )
    assert await copies(env, DLQ) == [b"reject 0", b"reject 2", b"reject 4"]
    assert await copies(env, RETRY) == [b"retry 3"]


async def test_both_coordinators_move(env: VirtualEnvironment):
    """In the middle of transactions, at each of their requests."""
    for number, api in enumerate(REQUESTS):
        base = len(await acked(env))
        await send(env, *[value + b" of %d" % number for value in VALUES])
        async with Process(env, "ann") as ann:
            name = producer_of(ann).config.transactional_id or ""
            held = env.cluster.faults.on(api, client_id="ann").hold().optional()
            hit = asyncio.create_task(held.wait_hit())
            finished = asyncio.create_task(until_acked(env, base + len(VALUES)))
            await asyncio.wait([hit, finished], return_when=asyncio.FIRST_COMPLETED)
            for move, node in (
                (env.cluster.move_coordinator, env.cluster.coordinator("g")),
                (env.cluster.move_transaction_coordinator, env.cluster.transaction_coordinator(name)),
            ):
                move("g" if move == env.cluster.move_coordinator else name, node % 3 + 1)
            held.release()
            await finished
            hit.cancel()
    found = await copies(env, DLQ)
    assert found == sorted(
        b"%s of %d" % (value, number)
        for number in range(len(REQUESTS))
        for value in (b"fail 3", b"reject 0", b"reject 5")
    )


# --- fencing ------------------------------------------------------------------------------------------------------------


async def fence(env: VirtualEnvironment, name: str) -> None:
    """Start another producer with the transactional id."""
    async with Producer(env.bootstrap_servers, ProducerConfig(transactional_id=name)):
        pass


async def test_fenced(env: VirtualEnvironment):
    """As after a transaction that took too long: a new producer goes on."""
    await send(env, b"reject 0")
    held = env.cluster.faults.on("TxnOffsetCommit", client_id="ann").hold()
    async with Process(env, "ann") as ann:
        first = producer_of(ann)
        name = first.config.transactional_id or ""
        assert name.startswith("g-")
        await held.wait_hit()
        await fence(env, name)
        held.release()
        await ann.until("end 0@0#1")
        assert producer_of(ann) is not first
        assert await acked(env) == [0]
    assert await copies(env, DLQ) == [b"reject 0"]


async def test_the_brokers_of_the_topic_do_not_answer(env: VirtualEnvironment):
    """The transaction takes longer than its timeout, and other topics are written in between."""
    await send(env, b"reject 0", b"retry 1")
    fault = env.cluster.faults.on("Produce", topic=DLQ, client_id="ann", times=None).error(
        ErrorCode.NOT_ENOUGH_REPLICAS
    )
    async with Process(env, "ann") as ann:
        errors = ann.queue.errors()
        await ann.until("end 0@1#1")
        assert isinstance(await anext(errors), CopyFailedError)
        assert [at for at in await acked(env) if at < 2] == [1]
        fault.cancel()
        await ann.until("end 0@0#1")
    assert await copies(env, DLQ) == [b"reject 0"]
    assert await copies(env, RETRY) == [b"retry 1"]


async def test_a_second_queue_with_the_same_id(env: VirtualEnvironment):
    """With an id of the user the queue ends, as two of them would fence each other in turn."""
    await send(env, b"reject 0")
    held = env.cluster.faults.on("TxnOffsetCommit", client_id="ann").hold()
    config = ProducerConfig(transactional_id="mine", transaction_timeout=10.0)
    with pytest.raises(ProducerFencedError):
        async with Process(env, "ann", producer_config=config) as ann:
            await held.wait_hit()
            await fence(env, "mine")
            held.release()
            assert ann.run is not None
            await asyncio.wait([ann.run])
    assert await acked(env) == []
    async with Process(env, "bob"):
        async with asyncio.timeout(env.limit):
            while await acked(env) != [0]:
                await asyncio.sleep(0.2)
    assert await copies(env, DLQ) == [b"reject 0"]
