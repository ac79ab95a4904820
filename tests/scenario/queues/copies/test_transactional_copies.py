"""Work queues that commit a copy and the acknowledgement of its original in one transaction: crashes and failed requests.

`working(env, "ann", work)` runs the handler `work` with the work queue of the member `ann`. Its `calls` are `begin 0@5#1`, for the
first delivery (`#1`) of the record at offset 5 of partition 0, and then `end 0@5#1`, `error 0@5#1` or `cancelled 0@5#1`.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from typing import Any, Final, Literal, TypeAlias, get_args

import pytest

from asyncgroup import ProducerConfig
from asyncgroup.broker.metadata.features import DEFAULT_LEVELS
from asyncgroup.errors import ConnectionLost, CopyFailedError, ErrorCode, TransactionOutcomeUnknown
from asyncgroup.workqueue import AckOutcome, Delivery
from tests.profiles import long_family
from tests.scenario.queues.copies.transactional_queues import (
    DLQ,
    RETRY,
    VALUES,
    Process,
    copies,
    each_once,
    producer_of,
    until_acked,
    work,
)
from tests.scenario.three_protocols import PROTOCOLS, in_each_protocol, made_for
from tests.stories.queue_members import Gates, acked, cut_off, send
from tests.stories.virtual import VirtualEnvironment

pytestmark = [pytest.mark.virtual(max_virtual_time=864_000), pytest.mark.usefixtures("no_asyncio_errors")]

Crash: TypeAlias = Literal["handled", "lost", "late"]
CRASHES: Final[tuple[Crash, ...]] = get_args(Crash)


async def test_each_copy_is_there_once(env: VirtualEnvironment):
    await send(env, *VALUES)
    async with Process(env, "ann") as ann:
        await until_acked(env)
        counts = ann.queue.statistics().counts
        assert (counts.dead_lettered, counts.reconsumed) == (3, 2)
    await each_once(env)
    assert env.cluster.history.of("EndTxn")


REQUESTS: Final = (
    *("AddPartitionsToTxn", "Produce", "AddOffsetsToTxn", "TxnOffsetCommit", "EndTxn"),
    "OffsetCommit",
)


async def crash_at(number: int, crash: Crash, protocol: str) -> bool:
    """Run the queue until its request `number`, end its process there, and start another one; return whether it was reached."""
    async with made_for(protocol, nodes=3) as env:
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


async def crash_at_each_request(crash: Crash, protocol: str) -> None:
    """Run `crash_at` for each request that there is."""
    number = 1
    while True:
        try:
            if not await crash_at(number, crash, protocol):
                break
        except BaseException as error:
            error.add_note(f"request {number}, {crash}")
            raise
        number += 1
    assert number > 10


@pytest.mark.parametrize(("crash", "protocol"), long_family(itertools.product(CRASHES, PROTOCOLS), every=12))
async def test_a_crash_at_each_request(crash: Crash, protocol: str):
    await crash_at_each_request(crash, protocol)


@pytest.mark.full
@pytest.mark.parametrize("crash", long_family(CRASHES))
async def test_a_crash_at_each_request_before_kip_890(monkeypatch: pytest.MonkeyPatch, crash: Crash):
    monkeypatch.setitem(DEFAULT_LEVELS, "transaction.version", 1)
    await crash_at_each_request(crash, "eager")


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


async def _cause_of_copy(errors: AsyncIterator[Exception]) -> BaseException | None:
    error = await anext(errors)
    assert isinstance(error, CopyFailedError)
    return error.__cause__


@in_each_protocol
@pytest.mark.parametrize("is_handled", [True, False])
async def test_the_outcome_is_unknown(env: VirtualEnvironment, is_handled: bool):
    """The next producer has the transaction completed or aborted; the committed offset says which, and nothing is repeated."""
    await send(env, b"reject 0", b"ack 1")
    ending = env.cluster.faults.on("EndTxn", client_id="ann", times=None)
    ending.drop() if is_handled else ending.disconnect("before")
    async with Process(env, "ann", **UNKNOWN) as ann:
        errors = ann.queue.errors()
        first = producer_of(ann)
        await ending.wait_hit()
        await asyncio.sleep(1.0)
        assert ann.of("begin") == ["0@0#1", "0@1#1"]
        assert await acked(env) == ([0, 1] if is_handled else [])  # offset 1 has no other commit
        await env.bell.until(lambda: producer_of(ann) is not first, "a new producer", env.limit)
        ending.cancel()
        async with asyncio.timeout(env.limit):
            while await acked(env) != [0, 1]:
                await asyncio.sleep(0.2)
        assert ann.of("begin") == ["0@0#1", "0@1#1"]  # the record is not delivered again
        if not is_handled:
            async with asyncio.timeout(env.limit):
                causes = [await _cause_of_copy(errors)]
                assert isinstance(causes[0], ConnectionLost)  # at the first failed attempt, which is repeated
                while not isinstance(causes[-1], TransactionOutcomeUnknown):
                    causes.append(await _cause_of_copy(errors))
            assert len(causes) < 10  # one for each new reason, not for each attempt
    assert await copies(env, DLQ) == [b"reject 0"]


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


async def test_a_transaction_contains_the_acknowledgements_before_it(gates: Gates, env: VirtualEnvironment):
    """It also contains acknowledgements whose ordinary commit has not begun; nothing is left to commit after it."""
    await send(env, b"ack 0", b"ack 1", b"reject 2")
    gates.open(0, 1)

    async def handle(delivery: Delivery) -> None:
        await gates(delivery)
        await work(delivery)

    async with Process(env, "ann", handle, ack_group_time=5.0) as ann:
        await ann.until("end 0@0#1", "end 0@1#1")
        commits = len(env.cluster.history.of("OffsetCommit"))
        gates.open()
        await ann.until("end 0@2#1")
        assert await acked(env) == [0, 1, 2]
        await asyncio.sleep(10.0)
        assert len(env.cluster.history.of("OffsetCommit")) == commits


async def test_a_commit_is_in_flight(gates: Gates, env: VirtualEnvironment):
    """The transaction waits for it: handled later, it would undo the acknowledgement in the transaction."""
    await send(env, b"ack 0", b"reject 1")
    gates.open(0)

    async def handle(delivery: Delivery) -> None:
        await gates(delivery)
        await work(delivery)

    held = env.cluster.faults.on(
        "OffsetCommit", client_id="ann", nth=2
    ).hold()  # the first one says that the claim is open
    async with Process(env, "ann", handle, config={"session_timeout": 60.0}) as ann:
        await held.wait_hit()
        gates.open()
        await asyncio.sleep(5.0)
        assert env.cluster.history.of("Produce")[-1].client_id == "ann"
        assert not env.cluster.history.of("TxnOffsetCommit")
        held.release()
        await ann.until("end 0@1#1")
        assert await acked(env) == [0, 1]


async def test_a_durable_acknowledgement_waits_for_a_commit(gates: Gates, env: VirtualEnvironment):
    """Its commit is made before a transaction that begins later."""
    await send(env, b"ack 0", b"durable 1", b"reject 2")
    gates.open(0)
    durable: list[list[int]] = []

    async def handle(delivery: Delivery) -> None:
        await gates(delivery)
        if delivery.value == b"durable 1":
            await delivery.ack(durable=True)
            durable.append(await acked(env))
            env.bell.ring()
        else:
            await work(delivery)

    held = env.cluster.faults.on("OffsetCommit", client_id="ann", nth=2).hold()
    ending = env.cluster.faults.on("EndTxn", client_id="ann").hold()
    async with Process(env, "ann", handle, config={"session_timeout": 60.0}) as ann:
        await held.wait_hit()
        gates.open(1)
        await asyncio.sleep(1.0)
        gates.open(2)
        await asyncio.sleep(1.0)
        held.release()
        await ending.wait_hit()
        await env.bell.until(lambda: durable, "the durable acknowledgement", env.limit)
        assert durable == [[0, 1]]
        ending.release()
        await ann.until("end 0@2#1")


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


@pytest.mark.parametrize("chunking", [True, False])
async def test_a_copy_that_the_broker_refuses(env: VirtualEnvironment, chunking: bool):
    """It is reported and tried again, alone; the others are copied, also those to other topics."""
    config = ProducerConfig(
        transaction_timeout=10.0, max_chunk_size=100_000 if chunking else None, chunking=chunking
    )
    env.cluster.create_topic(DLQ, 1, configs={"max.message.bytes": "2000"})
    large = b"reject 1 " + bytes(range(256)) * 20
    await send(env, b"reject 0", large, b"reject 2", b"retry 3", b"reject 4")
    async with Process(env, "ann", producer_config=config) as ann:
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
