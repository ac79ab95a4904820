"""Transactions of work queues at the end of a claim, of a producer, or of the queue; and random faults.

`working(env, "ann", work)` runs the handler `work` with the work queue of the member `ann`. Its `calls` are `begin 0@5#1`, for the
first delivery (`#1`) of the record at offset 5 of partition 0, and then `end 0@5#1`, `error 0@5#1` or `cancelled 0@5#1`.
"""

from __future__ import annotations

import asyncio
import contextlib
import random

import pytest

from asyncgroup import Producer, ProducerConfig
from asyncgroup.errors import CopyFailedError, ErrorCode, ProducerFencedError, TransportError
from asyncgroup.workqueue import DeadLetter, Delivery
from tests.profiles import long_family
from tests.scenario.queues.copies.transactional_queues import (
    DLQ,
    RETRY,
    Process,
    copies,
    producer_of,
    work,
)
from tests.scenario.three_protocols import in_each_protocol
from tests.stories.queue_members import Gates, acked, cut_off, send
from tests.stories.virtual import VirtualEnvironment

pytestmark = [pytest.mark.virtual(max_virtual_time=864_000), pytest.mark.usefixtures("no_asyncio_errors")]


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


async def test_a_broker_does_not_answer(env: VirtualEnvironment):
    """A transaction is given up after its timeout, long before the delivery timeout of its copies."""
    await send(env, b"reject 0", b"retry 1")
    fault = env.cluster.faults.on("Produce", topic=DLQ, client_id="ann", times=None).drop()
    async with Process(env, "ann") as ann:
        await fault.wait_hit()
        began = asyncio.get_running_loop().time()
        await ann.until("end 0@1#1")
        assert asyncio.get_running_loop().time() - began < 60.0
        fault.cancel()
        await ann.until("end 0@0#1")
    assert await copies(env, DLQ) == [b"reject 0"]


async def test_a_second_queue_with_the_same_id(env: VirtualEnvironment):
    """With a transactional id of the user the queue ends: two queues with the same id would fence each other in turn."""
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


# --- ends of claims -----------------------------------------------------------------------------------------------------


async def reject(delivery: Delivery) -> None:
    """Reject each record."""
    await delivery.reject("bad")


async def all_rejected(env: VirtualEnvironment) -> None:
    """Wait until the record in each partition is acknowledged, and check that each has one copy."""
    async with asyncio.timeout(env.limit):
        while [await acked(env, number) for number in range(4)] != [[0]] * 4:
            await asyncio.sleep(0.2)
    assert await copies(env, DLQ) == [b"0", b"1", b"2", b"3"]


@in_each_protocol
@pytest.mark.parametrize("released_after", [3.0, 60.0])
@pytest.mark.parametrize("api", ["Produce", "TxnOffsetCommit", "EndTxn"])
async def test_partitions_are_revoked_during_a_transaction(
    env: VirtualEnvironment, api: str, released_after: float
):
    """Within the grace it is completed; after that it is aborted, or its outcome is left to the coordinator."""
    for number in range(4):
        await send(env, b"%d" % number, partition=number)
    config = {"rebalance_timeout": 10.0}
    held = env.cluster.faults.on(api, client_id="ann").hold()
    async with Process(env, "ann", reject, config=config):
        await held.wait_hit()
        releasing = asyncio.get_running_loop().call_later(released_after, held.release)
        async with Process(env, "bob", reject, config=config):
            await all_rejected(env)
            releasing.cancel()
            held.release()


@in_each_protocol
@pytest.mark.parametrize("api", ["TxnOffsetCommit", "EndTxn"])
async def test_acknowledgements_of_a_partition_that_is_revoked_during_a_transaction(
    gates: Gates, env: VirtualEnvironment, api: str
):
    """Acknowledgements during the transaction are committed at the revocation, but not while its outcome is unknown."""
    for number in range(4):
        await send(env, b"reject %d" % number, b"ack", partition=number)
    gates.open(0)

    async def handle(delivery: Delivery) -> None:
        await gates(delivery)
        await work(delivery)

    config = {"rebalance_timeout": 10.0}
    held = env.cluster.faults.on(api, client_id="ann").hold()
    async with Process(env, "ann", handle, config=config):
        await held.wait_hit()
        gates.open()
        await asyncio.sleep(1.0)
        releasing = asyncio.get_running_loop().call_later(60.0, held.release)
        async with Process(env, "bob", handle, config=config) as bob:
            async with asyncio.timeout(env.limit):
                while [await acked(env, number) for number in range(4)] != [[0, 1]] * 4:
                    await asyncio.sleep(0.2)
            assert await copies(env, DLQ) == [b"reject %d" % number for number in range(4)]
            repeated = [text for text in bob.of("begin") if "@1#" in text]
            assert bool(repeated) is (api == "EndTxn")
            releasing.cancel()
            held.release()


@in_each_protocol
@pytest.mark.parametrize("api", ["Produce", "TxnOffsetCommit", "EndTxn"])
async def test_a_member_is_lost_and_comes_back(env: VirtualEnvironment, api: str):
    """Its partitions have gone to another member in the meantime; what it had begun is fenced or was completed."""
    for number in range(4):
        await send(env, b"%d" % number, partition=number)
    held = env.cluster.faults.on(api, client_id="ann").hold()
    async with Process(env, "ann", reject):
        await held.wait_hit()
        env.network.blackhole(env._hosts["ann"])
        async with Process(env, "bob", reject) as bob:
            await asyncio.sleep(2.0)
            held.release()
            await asyncio.sleep(40.0)
            env.network.heal(env._hosts["ann"])
            await all_rejected(env)
            assert api == "EndTxn" or len(bob.of("begin")) == 4
            await asyncio.sleep(60.0)
            await all_rejected(env)


@pytest.mark.parametrize("api", ["TxnOffsetCommit", "EndTxn"])
async def test_seek_during_a_transaction(env: VirtualEnvironment, api: str):
    """Before the commit was sent it is aborted; after that the record, which is delivered again, has two copies."""
    await send(env, b"reject 0", b"ack 1")
    held = env.cluster.faults.on(api, client_id="ann").hold()
    async with Process(env, "ann") as ann:
        await held.wait_hit()
        await ann.queue.seek("earliest")
        await ann.until_count("begin", 4)
        assert await acked(env) in ([], [0]) if api == "TxnOffsetCommit" else await acked(env) == []
        held.release()
        async with asyncio.timeout(env.limit):
            while await acked(env) != [0, 1]:
                await asyncio.sleep(0.2)
        assert sorted(ann.of("begin")) == ["0@0#1", "0@0#1", "0@1#1", "0@1#1"]
    assert await copies(env, DLQ) == [b"reject 0"] * (2 if api == "EndTxn" else 1)


@pytest.mark.parametrize("api", ["Produce", "TxnOffsetCommit", "EndTxn"])
async def test_the_queue_closes_during_a_transaction(env: VirtualEnvironment, api: str):
    """The close takes its time at most; the next queue waits for the outcome."""
    await send(env, b"reject 0", b"ack 1")
    held = env.cluster.faults.on(api, client_id="ann", times=None).hold()
    async with Process(env, "ann"):
        await held.wait_hit()
        began = asyncio.get_running_loop().time()
    assert asyncio.get_running_loop().time() - began <= 5.5
    async with Process(env, "bob"):
        await asyncio.sleep(3.0)
        held.release()
        async with asyncio.timeout(env.limit):
            while await acked(env) != [0, 1]:
                await asyncio.sleep(0.2)
    assert await copies(env, DLQ) == [b"reject 0"]


# --- random faults ------------------------------------------------------------------------------------------------------

APIS = (
    "AddPartitionsToTxn",
    "Produce",
    "AddOffsetsToTxn",
    "TxnOffsetCommit",
    "EndTxn",
    "OffsetCommit",
    "OffsetFetch",
    "InitProducerId",
)
COUNT = 40
"""Records of each partition."""
PATIENT = DeadLetter(COUNT, partitions=1)
"""Each crash before a copy is committed is a delivery more: with a few allowed, what is to be tried again becomes a dead letter."""


class Chaos:
    """Members that come, go and crash, while requests fail."""

    def __init__(self, env: VirtualEnvironment, seed: int) -> None:
        self.env = env
        self.rng = random.Random(seed)
        self.number = 0

    async def fail_requests(self) -> None:
        """Make a request fail now and then, until cancelled."""
        rng, faults = self.rng, self.env.cluster.faults
        while True:
            await asyncio.sleep(rng.uniform(0.0, 1.0))
            member = f"m{self.number - rng.randint(0, 2)}"
            fault = faults.on(
                rng.choice(APIS), client_id=member, nth=rng.randint(1, 3), times=rng.randint(1, 3)
            ).optional()
            match rng.randrange(5):
                case 0:
                    fault.disconnect("before")
                case 1:
                    fault.disconnect("after")
                case 2:
                    fault.drop()
                case 3:
                    fault.delay(rng.uniform(0.1, 8.0))
                case 4:
                    fault.error(
                        rng.choice([ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS])
                    )

    async def move_coordinators(self) -> None:
        """Move the coordinator of the group now and then, until cancelled."""
        while True:
            await asyncio.sleep(self.rng.uniform(5.0, 20.0))
            self.env.cluster.move_coordinator("g", self.rng.randint(1, 3))

    async def live(self, ending: asyncio.Event) -> None:
        """Run one member after another; each works for a while, then closes, or crashes."""
        while not ending.is_set():
            self.number += 1
            name = f"m{self.number}"
            config = ProducerConfig(transaction_timeout=10.0, request_timeout=2.0, delivery_timeout=6.0)
            process = Process(
                self.env,
                name,
                self.work,
                config={"request_timeout": 3.0},
                producer_config=config,
                dead_letter=PATIENT,
            )
            with contextlib.suppress(TransportError):  # it may not even open its producer
                async with process:
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(self.rng.uniform(1.0, 30.0)):
                            await ending.wait()
                    if not ending.is_set() and self.rng.random() < 0.5:
                        cut_off(self.env, name)

    async def work(self, delivery: Delivery) -> None:
        """Take some time, then do what the value says."""
        await asyncio.sleep(self.rng.uniform(0.0, 0.5))
        await work(delivery)


@pytest.mark.full
@pytest.mark.parametrize("seed", long_family(range(1, 20), every=10))
async def test_random_faults(env: VirtualEnvironment, seed: int):
    """Each record that is rejected or is to be tried again has one copy in the end."""
    chaos = Chaos(env, seed)
    kinds = ["reject", "retry", "ack"]
    ending = asyncio.Event()
    disturbing = [asyncio.create_task(chaos.fail_requests()), asyncio.create_task(chaos.move_coordinators())]
    living = [asyncio.create_task(chaos.live(ending)) for _ in range(3)]
    for number in range(COUNT):
        for partition in range(4):
            await send(env, f"{kinds[number % 3]} {partition}-{number}".encode(), partition=partition)
        await asyncio.sleep(2.0)
    for task in disturbing:
        task.cancel()
    env.cluster.faults.clear()
    ending.set()
    await asyncio.wait(living)
    for task in living:
        task.result()
    async with Process(env, "last", dead_letter=PATIENT):
        async with asyncio.timeout(env.limit):
            for partition in range(4):
                while await acked(env, partition) != list(range(COUNT)):
                    await asyncio.sleep(0.5)
    for topic, kind in ((DLQ, "reject"), (RETRY, "retry")):
        expected = [
            f"{kind} {p}-{n}".encode() for p in range(4) for n in range(COUNT) if kinds[n % 3] == kind
        ]
        assert await copies(env, topic) == sorted(expected)
