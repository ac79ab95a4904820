"""Failures below ConsumeTransformProduce: brokers that die, late responses, full buffers; and transactions by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from asyncgroup import (
    Batch,
    Claim,
    Handler,
    Producer,
    ProducerConfig,
    Session,
    TopicPartition,
    TransactionOutput,
)
from asyncgroup.broker.metadata.features import DEFAULT_LEVELS
from asyncgroup.errors import TransactionOutcomeUnknown
from asyncgroup.model import CommittedOffset
from tests.scenario.support import Gate, committed, member, now, running
from tests.scenario.three_protocols import in_each_protocol
from tests.scenario.transactions.test_consume_transform_produce import create_out
from tests.scenario.transactions.transforming import (
    OUT,
    Copy,
    all_once,
    end_txns,
    host_of,
    outputs,
    transforming,
)
from tests.stories.traffic import partitions_of
from tests.stories.virtual import VirtualEnvironment

pytestmark = pytest.mark.full


# -- brokers -----------------------------------------------------------------------------------------------------------


@in_each_protocol
async def test_both_coordinators_die_in_a_transaction(env: VirtualEnvironment) -> None:
    create_out(env)
    gate = Gate(0, 2)
    await env.produce(3, range(4))
    async with transforming(env, Copy(env, gate)):
        await gate.reached.wait()
        (name,) = env.cluster.transactions
        for node in {env.cluster.coordinator("g"), env.cluster.transaction_coordinator(name)}:
            await env.cluster.stop_node(node)
        gate.open.set()
        await all_once(env)
        await env.produce(3, range(4))
        await all_once(env)


@in_each_protocol
async def test_a_commit_without_a_response(env: VirtualEnvironment) -> None:
    """Whether it was made is unknown: the next session begins at the committed offsets."""
    create_out(env)
    lost = env.cluster.faults.on("EndTxn", times=None).drop()
    transform = Copy(env)
    await env.produce(3, range(4))
    config = ProducerConfig(delivery_timeout=10.0, request_timeout=3.0, transaction_timeout=60.0)
    async with transforming(env, transform, settings={"producer_config": config}) as (group, _):
        errors = group.errors()
        while not isinstance(error := await anext(errors), TransactionOutcomeUnknown):
            pass
        assert error.commit
        lost.cancel()
        await env.produce(3, range(4))
        await all_once(env)
    assert transform.calls.count("done 0@2") == 1, "the commit was made"


SILENT = pytest.mark.parametrize("api", ["InitProducerId", "TxnOffsetCommit", "EndTxn", "Produce"])


@SILENT
@in_each_protocol
async def test_a_coordinator_that_never_answers_does_not_cost_the_membership(
    env: VirtualEnvironment, api: str
) -> None:
    """The rebalance goes on at the time limit of the handlers; requests of the join do not wait for those of transactions."""
    create_out(env)
    silent = env.cluster.faults.on(api, times=None, client_id="ann").drop()
    await env.produce(3, range(4))
    config = {"rebalance_timeout": 12.0, "close_timeout": 60.0}
    async with transforming(env, Copy(env), **config):
        await asyncio.sleep(2.0)
        async with transforming(env, Copy(env), "bob", **config):
            await asyncio.sleep(1.0)
            for _ in range(40):
                assert len(env.cluster.group("g").members) == 2
                await asyncio.sleep(1.0)
            silent.cancel()
            await all_once(env)


@SILENT
@in_each_protocol
async def test_a_member_closes_in_time_while_a_coordinator_never_answers(
    env: VirtualEnvironment, api: str
) -> None:
    create_out(env)
    env.cluster.faults.on(api, times=None, client_id="ann").drop()
    await env.produce(3, range(4))
    async with transforming(env, Copy(env), close_timeout=5.0) as (group, _):
        await asyncio.sleep(2.0)
        closing_at = now()
        await group.aclose()
        assert now() - closing_at <= 5.1
        assert not env.cluster.group("g").members


@pytest.mark.parametrize("version", [0, 1])
async def test_older_transaction_versions(
    env: VirtualEnvironment, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Brokers before KIP-890."""
    monkeypatch.setitem(DEFAULT_LEVELS, "transaction.version", version)
    create_out(env)
    env.cluster.faults.on("TxnOffsetCommit", nth=2).error("ILLEGAL_GENERATION")
    await env.produce(3, range(4))
    async with transforming(env, Copy(env)):
        await all_once(env)
        await env.produce(3, range(4))
        await all_once(env)
    assert env.cluster.history.of("AddOffsetsToTxn")


async def test_the_coordinator_is_away_at_the_start(env: VirtualEnvironment) -> None:
    """The session ends before it begins; the next one has a producer."""
    create_out(env)
    env.cluster.faults.on("InitProducerId", times=200).error("COORDINATOR_NOT_AVAILABLE").optional()
    await env.produce(3, range(4))
    config = ProducerConfig(delivery_timeout=10.0, request_timeout=3.0)
    async with transforming(env, Copy(env), settings={"producer_config": config}):
        await all_once(env)


@in_each_protocol
async def test_an_assignment_before_the_producer_is_ready(env: VirtualEnvironment) -> None:
    """The added claims also wait for the producer."""
    create_out(env)
    await env.produce(3, range(4))
    async with transforming(env, Copy(env), "bob") as (bob, _):
        await all_once(env)
        held = env.cluster.faults.on("InitProducerId").hold()
        async with transforming(env, Copy(env)) as (ann, _):
            await held.wait_hit()
            await bob.aclose()
            await asyncio.sleep(15.0)
            await env.produce(3, range(4))
            held.release()
            await all_once(env)
            assert len(partitions_of(ann)) == 4


async def test_missing_authorization_is_raised(env: VirtualEnvironment) -> None:
    create_out(env)
    env.cluster.faults.on("InitProducerId").error("TRANSACTIONAL_ID_AUTHORIZATION_FAILED")
    async with transforming(env, Copy(env)) as (_, run):
        with pytest.raises(Exception, match="TRANSACTIONAL_ID_AUTHORIZATION_FAILED"):
            await run


# -- what an abort must not leave behind -------------------------------------------------------------------------------


async def test_a_late_response_does_not_undo_the_return(env: VirtualEnvironment) -> None:
    """A fetch that was sent before the abort is answered after it."""
    create_out(env)
    env.cluster.faults.on("TxnOffsetCommit").error("TRANSACTION_ABORTABLE")
    transform = Copy(env)
    await env.produce(3, [0])
    async with transforming(env, transform) as (group, _):
        held = env.cluster.faults.on("Fetch", client_id="ann", nth=2, times=None).hold()
        errors = group.errors()
        await env.produce(3, [0])
        await anext(errors)
        await asyncio.sleep(0.5)
        assert group.session is not None
        assert group.session.claims[0].position == 0
        held.cancel()
        await all_once(env)


async def test_functions_that_wait_for_memory(env: VirtualEnvironment) -> None:
    """Their records are not written in the transaction after the one that was aborted."""
    create_out(env)
    env.cluster.faults.on("TxnOffsetCommit", times=2).error("TRANSACTION_ABORTABLE")
    produced = env.cluster.faults.on("Produce", topic=OUT, nth=2, times=3).delay(1.0).optional()
    config = ProducerConfig(buffer_bytes=2000, batch_size=1000, max_request_size=1000)
    settings = {"producer_config": config, "max_records": 5, "commit_interval": 0.01}
    await env.produce(60, range(4))
    async with transforming(env, Copy(env), settings=settings):
        await all_once(env)
    assert produced.hits


@in_each_protocol
async def test_a_function_that_ignores_its_cancellation(env: VirtualEnvironment) -> None:
    """Its transaction is aborted at the end of its drain timeout; the other claims do not wait for it."""
    create_out(env)
    may_end = asyncio.Event()
    ignored = asyncio.Event()

    class Stubborn(Copy):
        async def __call__(self, batch: Batch, output: TransactionOutput) -> None:
            await super().__call__(batch, output)
            if (batch.partition, batch.last_offset) == (3, 2):
                await asyncio.sleep(0.5)  # its output is sent
                while not may_end.is_set():
                    try:
                        await may_end.wait()
                    except asyncio.CancelledError:
                        ignored.set()

    transform, other = Stubborn(env), Copy(env)
    await env.produce(3, [3])  # else the claims that wait for it in the drain abort the transaction
    settings = {"producer_config": ProducerConfig(transaction_timeout=600.0)}
    async with transforming(env, transform, settings=settings, rebalance_timeout=12.0):
        await transform.until("done 3@2")
        async with transforming(env, other, "bob") as (bob, _):
            await ignored.wait()
            if env.sessions_last:  # else the session waits for the function
                await env.bell.until(
                    lambda: 3 in partitions_of(bob), "the partition of the function", env.limit
                )
                await all_once(env)
            may_end.set()
            await env.produce(2, range(4))
            await all_once(env)


async def test_a_stray_task(env: VirtualEnvironment) -> None:
    """A call that was begun in time belongs to the transaction: the commit waits for it."""
    create_out(env)
    tasks: list[asyncio.Task[None]] = []

    class Stray(Copy):
        async def __call__(self, batch: Batch, output: TransactionOutput) -> None:
            for record in batch:
                call = output.enqueue(OUT, record.value, partition=batch.partition)
                tasks.append(asyncio.create_task(call))
            await asyncio.sleep(0)

    config = ProducerConfig(buffer_bytes=1000, batch_size=500, max_request_size=500)
    await env.produce(40, [0])
    async with transforming(env, Stray(env), settings={"producer_config": config}):
        await all_once(env)
    assert all(task.done() and task.exception() is None for task in tasks)


# -- input and monitoring ----------------------------------------------------------------------------------------------


async def test_input_that_was_written_in_transactions(env: VirtualEnvironment) -> None:
    """Aborted records are not transformed, and the group's lag is 0 after the last marker."""
    create_out(env)
    async with transforming(env, Copy(env)):
        config = ProducerConfig(transactional_id="input")
        async with Producer(env.bootstrap_servers, config) as producer:
            for number in range(6):
                try:
                    async with producer.transaction():
                        await producer.send("orders", b"%d" % number, partition=0)
                        if number % 2:
                            raise ValueError
                except ValueError:
                    pass
        end = env.cluster.partition("orders", 0).high_watermark
        await env.bell.until(lambda: committed(env).get(0, 0) >= end - 2, "all committed", env.limit)
        await asyncio.sleep(1.0)
    assert (await outputs(env))[0] == [b"0", b"2", b"4"]
    assert end == 12


async def test_commits_are_reported_to_hooks(env: VirtualEnvironment) -> None:
    create_out(env)
    seen: list[tuple[str, Mapping[TopicPartition, CommittedOffset], object]] = []

    class Commits:
        def on_commit(
            self, group_id: str, offsets: Mapping[TopicPartition, CommittedOffset], errors: object
        ) -> None:
            seen.append((group_id, offsets, errors))

    from asyncgroup import ConsumeTransformProduce

    await env.produce(3, [0])
    async with (
        member(env, hooks=(Commits(),), isolation_level="read_committed") as group,
        running(group.run("orders", ConsumeTransformProduce(Copy(env)))),
    ):
        await all_once(env)
        (one,) = seen
        assert one == ("g", {TopicPartition("orders", 0): CommittedOffset(3, "", 0)}, None)
        assert group.health().is_healthy


# -- by hand -----------------------------------------------------------------------------------------------------------


class ByHand(Handler):
    """The handler of the guide, with a pause in each transaction."""

    def __init__(self, producer: Producer, pause: float = 0.0, *, fails_at: int = -1) -> None:
        self.producer = producer
        self.lock = asyncio.Lock()
        self.pause = pause
        self.fails_at = fails_at
        self.failures = 0

    async def consume_claim(self, session: Session, claim: Claim) -> None:
        async for batch in claim.batches(max_records=2):
            try:
                async with self.lock, self.producer.transaction():
                    for record in batch:
                        await self.producer.enqueue(OUT, record.value, partition=batch.partition)
                    await asyncio.sleep(self.pause)
                    if batch.last_offset == self.fails_at and self.failures < 3:
                        raise ValueError("bad record")
                    await self.producer.send_offsets(session.group_offsets(batch))
            except ValueError:
                self.failures += 1
                claim.seek(batch.first_offset)


@in_each_protocol
async def test_transactions_by_hand(env: VirtualEnvironment) -> None:
    """With auto_commit on, as nothing is marked; a batch that fails is repeated; a rebalance in a transaction."""
    create_out(env)
    await env.produce(9, range(4))
    read = {"isolation_level": "read_committed"}
    async with (
        Producer(env.bootstrap_servers, ProducerConfig(transactional_id="one")) as one,
        Producer(env.bootstrap_servers, ProducerConfig(transactional_id="two")) as two,
        member(env, **read) as ann,
        running(ann.run("orders", handler := ByHand(one, 0.4, fails_at=3))),
    ):
        await env.bell.until(lambda: committed(env).get(0, 0) > 0, "the first commits", env.limit)
        async with (
            member(env, "bob", host="10.2.0.2", **read) as bob,
            running(bob.run("orders", ByHand(two, 0.4))),
        ):
            await env.bell.until(lambda: len(partitions_of(bob)) == 2, "half of them", env.limit)
            await all_once(env)
    assert handler.failures == 3
    assert not env.cluster.history.of("OffsetCommit", client_id="ann")


async def test_a_zombie_by_hand(env: VirtualEnvironment) -> None:
    """Its offsets name a member that the group has removed, so its transaction is aborted."""
    create_out(env)
    await env.produce(4, [0])
    read = {"isolation_level": "read_committed"}
    host = host_of("one")
    with env.network.source(host):
        one = Producer(
            env.bootstrap_servers, ProducerConfig(transactional_id="one", transaction_timeout=600.0)
        )
        await one.__aenter__()
    async with (
        Producer(env.bootstrap_servers, ProducerConfig(transactional_id="two")) as two,
        member(env, host=host, **read) as ann,
        running(ann.run("orders", ByHand(one, 40.0))) as run,
    ):
        await asyncio.sleep(5.0)
        env.network.blackhole(host)
        async with (
            member(env, "bob", host="10.2.0.2", **read) as bob,
            running(bob.run("orders", ByHand(two))),
        ):
            await asyncio.sleep(20.0)
            env.network.heal(host)
            await all_once(env)
        await asyncio.wait([run], timeout=100.0)
    await one.aclose()
    await all_once(env)
    assert end_txns(env, commits=False) == 1
