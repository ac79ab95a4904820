"""ConsumeTransformProduce in each group protocol: output and offsets in one transaction, whatever ends it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from asyncgroup import (
    Batch,
    ConfigError,
    ConsumeTransformProduce,
    Producer,
    ProducerConfig,
    TransactionOutput,
    UsageError,
)
from asyncgroup.errors import (
    CommitFailedError,
    HandlerCancelled,
    InvalidRecordError,
    ProducerFencedError,
    TransactionAbortedError,
)
from tests.profiles import thinned
from tests.scenario.support import Gate, committed, member, now, running
from tests.scenario.three_protocols import in_each_protocol
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

NEVER = {"commit_interval": 1000.0}
"""Transactions that end only when they have to."""


def create_out(env: VirtualEnvironment) -> None:
    env.cluster.create_topic(OUT, 4)


# -- without failures --------------------------------------------------------------------------------------------------


@in_each_protocol
async def test_each_record_is_transformed_once(env: VirtualEnvironment) -> None:
    """The claims share transactions; nothing is committed outside of them."""
    create_out(env)
    transform = Copy(env)
    await env.produce(10, range(4))
    async with transforming(env, transform) as (group, _):
        await all_once(env)
        await env.produce(5, range(4))
        await all_once(env)
        assert group.session is not None
        assert {claim.next_mark for claim in group.session.claims} == {15}
    assert end_txns(env) <= 4, "several claims in each"
    assert not end_txns(env, commits=False)
    assert not env.cluster.history.of("OffsetCommit", client_id="ann")


@in_each_protocol
async def test_a_transaction_ends_with_a_revocation(env: VirtualEnvironment) -> None:
    """It is committed before the partitions are given away; the claims that stay begin the next one."""
    create_out(env)
    transform, other = Copy(env), Copy(env)
    await env.produce(3, range(4))
    async with transforming(env, transform, settings=NEVER) as (ann, _):
        for number in range(4):
            await transform.until(f"done {number}@2")
        assert (await outputs(env))[0] == []
        async with transforming(env, other, "bob", settings=NEVER) as (bob, _):
            await env.bell.until(lambda: len(partitions_of(bob)) == 2, "half of them", env.limit)
            assert set(committed(env).values()) == {3}
            await env.produce(2, range(4))
            for number in partitions_of(bob):
                await other.until(f"done {number}@4")
            for number in partitions_of(ann):
                await transform.until(f"done {number}@4")
        await env.bell.until(lambda: len(partitions_of(ann)) == 4, "all again", env.limit)
    await all_once(env)
    assert not [call for call in other.calls if call.endswith("@2")], "nothing is read twice"
    assert not end_txns(env, commits=False)


@in_each_protocol
async def test_a_batch_in_work_is_completed_in_the_drain(env: VirtualEnvironment) -> None:
    create_out(env)
    gate = Gate(0, 1)
    transform, other = Copy(env, gate), Copy(env)
    await env.produce(3, range(4))
    async with transforming(env, transform):
        await gate.reached.wait()
        async with transforming(env, other, "bob"):
            await asyncio.sleep(4.0)
            assert not other.calls or env.sessions_last
            gate.open.set()
            await all_once(env)
    assert not end_txns(env, commits=False)


@in_each_protocol
@pytest.mark.parametrize("by", ["close", "cancel"])
async def test_the_member_ends(env: VirtualEnvironment, by: str) -> None:
    """At close the transaction is committed; a cancelled caller has no time for that, so it is aborted."""
    create_out(env)
    transform = Copy(env)
    await env.produce(3, range(4))
    async with transforming(env, transform, settings=NEVER) as (group, run):
        for number in range(4):
            await transform.until(f"done {number}@2")
        await asyncio.sleep(1.0)  # the output is sent
        if by == "close":
            await group.aclose()
        else:
            run.cancel()
        await asyncio.wait([run])
    assert (end_txns(env), end_txns(env, commits=False)) == ((1, 0) if by == "close" else (0, 1))
    if by == "cancel":
        assert committed(env) == {}
        async with transforming(env, Copy(env)):
            await all_once(env)
    await all_once(env)


async def test_short_transactions(env: VirtualEnvironment) -> None:
    """Without an interval a transaction has the batches that waited for it."""
    create_out(env)
    transform = Copy(env)
    await env.produce(20, range(4))
    async with transforming(env, transform, settings={"commit_interval": 0.0, "max_records": 5}):
        await all_once(env)
    assert 4 <= end_txns(env) <= 16


# -- the function ------------------------------------------------------------------------------------------------------


@in_each_protocol
async def test_the_functions_exception_aborts_and_is_raised(env: VirtualEnvironment) -> None:
    create_out(env)

    class Broken(Copy):
        async def __call__(self, batch: Batch, output: TransactionOutput) -> None:
            await super().__call__(batch, output)
            if batch.partition == 2:
                raise ValueError("bad record")

    await env.produce(3, range(4))
    async with transforming(env, Broken(env), settings=NEVER) as (_, run):
        with pytest.raises(ValueError, match="bad record") as raised:
            await run
        assert "of the batch of orders-2 with offsets 0 to 2" in raised.value.__notes__
        assert "consume_claim of orders-2" in "".join(raised.value.__notes__)
    assert committed(env) == {}
    assert not end_txns(env)
    assert not any((await outputs(env)).values())
    async with transforming(env, Copy(env)):
        await all_once(env)


@pytest.mark.full
async def test_the_function_raises_a_cancellation(env: VirtualEnvironment) -> None:
    """As itself it would look like a cancellation of the caller."""
    create_out(env)

    class Stray(Copy):
        async def __call__(self, batch: Batch, output: TransactionOutput) -> None:
            raise asyncio.CancelledError

    await env.produce(3, [2])
    async with transforming(env, Stray(env), settings=NEVER) as (_, run):
        with pytest.raises(HandlerCancelled, match="transform raised CancelledError") as raised:
            await run
        assert "of the batch of orders-2 with offsets 0 to 2" in raised.value.__notes__


async def test_a_function_that_is_slower_than_its_drain(env: VirtualEnvironment) -> None:
    """It is cancelled, and the transaction is aborted; claims that stay repeat their batches."""
    create_out(env)
    gate = Gate(0, 1)
    transform, other = Copy(env, gate), Copy(env)
    await env.produce(3, range(4))
    settings = {"producer_config": ProducerConfig(transaction_timeout=600.0)}
    async with transforming(env, transform, settings=settings, rebalance_timeout=12.0):
        await gate.reached.wait()
        async with transforming(env, other, "bob"):
            await transform.until("cancelled 0@2")
            gate.open.set()
            await all_once(env)


async def test_output_that_is_used_too_late(env: VirtualEnvironment) -> None:
    create_out(env)
    kept: list[TransactionOutput] = []

    class Keeps(Copy):
        async def __call__(self, batch: Batch, output: TransactionOutput) -> None:
            kept.append(output)
            await super().__call__(batch, output)

    transform = Keeps(env)
    await env.produce(3, [0])
    async with transforming(env, transform):
        await all_once(env)
        with pytest.raises(UsageError, match="used after its function had returned"):
            await kept[0].enqueue(OUT, b"late")


async def test_other_ways_to_write(env: VirtualEnvironment) -> None:
    create_out(env)

    class Sends(Copy):
        async def __call__(self, batch: Batch, output: TransactionOutput) -> None:
            first, second, *others = batch
            where = await output.send(OUT, first.value, partition=batch.partition)
            assert (where.topic, where.partition) == (OUT, batch.partition)
            output.send_nowait(OUT, second.value, partition=batch.partition)
            await output.enqueue_all((OUT, each.value, None, (), batch.partition, None) for each in others)

    await env.produce(4, range(4))
    async with transforming(env, Sends(env)):
        await all_once(env)


async def test_arguments(env: VirtualEnvironment) -> None:
    async def transform(_batch: Batch, _output: TransactionOutput) -> None:
        """Do nothing."""

    def plain(_batch: Batch, _output: TransactionOutput) -> None:
        """Do nothing."""

    wrong: list[dict[str, Any]] = [
        {"transform": plain},
        {"commit_interval": -1.0},
        {"max_records": 0},
        {"max_failures": 0},
        {"transactional_id_prefix": ""},
        {"transactional_id_prefix": "a", "producer_config": ProducerConfig(transactional_id="b")},
        {"producer_config": "localhost:9092"},
    ]
    for arguments in wrong:
        with pytest.raises(ConfigError):
            ConsumeTransformProduce(**{"transform": transform, **arguments})
    create_out(env)
    async with transforming(env, Copy(env), isolation_level="read_uncommitted") as (_, run):
        with pytest.raises(ConfigError, match="'read_committed' with ConsumeTransformProduce"):
            await run
    async with transforming(env, Copy(env), chunks="assemble") as (_, run):
        with pytest.raises(ConfigError, match="'as_is' with ConsumeTransformProduce"):
            await run


# -- failures of the producer ------------------------------------------------------------------------------------------


@in_each_protocol
@pytest.mark.parametrize(
    "code", thinned(["TRANSACTION_ABORTABLE", "ILLEGAL_GENERATION", "UNKNOWN_MEMBER_ID"])
)
async def test_an_aborted_transaction_is_repeated(env: VirtualEnvironment, code: str) -> None:
    create_out(env)
    env.cluster.faults.on("TxnOffsetCommit", nth=2).error(code)
    transform = Copy(env)
    await env.produce(3, range(4))
    async with transforming(env, transform) as (group, _):
        errors = group.errors()
        await all_once(env)
        await env.produce(3, range(4))
        assert isinstance(await anext(errors), CommitFailedError)
        await all_once(env)
    assert end_txns(env, commits=False) == 1
    assert sum(call.startswith("done") for call in transform.calls) > 8


async def test_failures_in_a_row(env: VirtualEnvironment) -> None:
    """After `max_failures` the error is raised."""
    create_out(env)
    env.cluster.faults.on("TxnOffsetCommit", times=3).error("TRANSACTION_ABORTABLE")
    await env.produce(3, [0])
    async with transforming(env, Copy(env), settings={"max_failures": 2}) as (_, run):
        with pytest.raises(CommitFailedError, match="TRANSACTION_ABORTABLE"):
            await run
    async with transforming(env, Copy(env)):
        await all_once(env)


async def test_an_error_that_does_not_pass(env: VirtualEnvironment) -> None:
    create_out(env)
    env.cluster.faults.on("Produce", topic=OUT).error("TOPIC_AUTHORIZATION_FAILED")
    await env.produce(3, [0])
    async with transforming(env, Copy(env)) as (_, run):
        with pytest.raises(TransactionAbortedError, match="TOPIC_AUTHORIZATION_FAILED"):
            await run
    assert committed(env) == {}


@pytest.mark.parametrize(
    "record", [{"value": b"x" * 2_000_000}, {"value": b"x", "partition": 9}, {"value": b"x" * 2000}]
)
async def test_a_record_that_cannot_be_written_is_not_repeated(
    env: VirtualEnvironment, record: dict[str, Any]
) -> None:
    env.cluster.create_topic(OUT, 4, configs={"max.message.bytes": "1000"})
    calls = 0

    async def write(batch: Batch, output: TransactionOutput) -> None:
        nonlocal calls
        calls += 1
        await output.send(OUT, **record)

    await env.produce(1, [0])
    async with transforming(env, write) as (_, run):
        with pytest.raises(InvalidRecordError):
            await run
    assert calls == 1
    assert committed(env) == {}


@pytest.mark.full
@in_each_protocol
async def test_a_transaction_that_takes_longer_than_its_timeout(env: VirtualEnvironment) -> None:
    """The coordinator aborts it and fences the producer; the next session has another one."""
    create_out(env)
    gate = Gate(0, 2)
    transform = Copy(env, gate)
    await env.produce(3, range(4))
    async with transforming(env, transform) as (group, _):
        errors = group.errors()
        await gate.reached.wait()
        await asyncio.sleep(30.0)
        gate.open.set()
        assert isinstance(await anext(errors), ProducerFencedError)
        await all_once(env)


@pytest.mark.parametrize("at_the_end", [False, True])
async def test_another_producer_with_the_users_transactional_id(
    env: VirtualEnvironment, at_the_end: bool
) -> None:
    """It is raised also if the session ends at the same time: a new producer would fence the other one."""
    create_out(env)
    gate = Gate(0, 2)
    await env.produce(3, [0])
    config = ProducerConfig(transactional_id="mine")
    async with transforming(env, Copy(env, gate), settings={"producer_config": config}) as (group, run):
        await gate.reached.wait()
        async with Producer(env.bootstrap_servers, config):
            pass
        if at_the_end:
            await env.create_topic("more", 1)
            group.set_topics(["orders", "more"])
        gate.open.set()
        with pytest.raises(ProducerFencedError, match="mine"):
            await run
    assert committed(env) == {}


@in_each_protocol
async def test_both_coordinators_move(env: VirtualEnvironment) -> None:
    create_out(env)
    transform = Copy(env)
    await env.produce(3, range(4))
    async with transforming(env, transform, settings=NEVER) as (group, _):
        for number in range(4):
            await transform.until(f"done {number}@2")
        (name,) = env.cluster.transactions
        for move, key, node in (
            (env.cluster.move_coordinator, "g", env.cluster.coordinator("g")),
            (env.cluster.move_transaction_coordinator, name, env.cluster.transaction_coordinator(name)),
        ):
            move(key, node % 3 + 1)
        await group.aclose()
    await all_once(env)
    assert end_txns(env, commits=False) == 0


# -- members that die or freeze ----------------------------------------------------------------------------------------


@in_each_protocol
async def test_a_member_dies_in_a_transaction(env: VirtualEnvironment) -> None:
    """The next owner waits until the coordinator has aborted the open transaction."""
    create_out(env)
    transform, other = Copy(env), Copy(env)
    await env.produce(3, range(4))
    async with transforming(env, transform, settings=NEVER) as (_, run):
        for number in range(4):
            await transform.until(f"done {number}@2")
        env.network.blackhole(host_of("ann"))
        env.network.cut(host_of("ann"))
        async with transforming(env, other, "bob"):
            await all_once(env)
        run.cancel()
        env.network.heal(host_of("ann"))
    await all_once(env)
    assert sum(call.startswith("done") for call in other.calls) == 4


@in_each_protocol
async def test_a_frozen_member_commits_nothing(env: VirtualEnvironment) -> None:
    """It comes back after another one has its partitions (KIP-447)."""
    create_out(env)
    gate = Gate(0, 2)
    transform, other = Copy(env, gate), Copy(env)
    long = ProducerConfig(transaction_timeout=600.0)
    await env.produce(3, range(4))
    async with transforming(env, transform, settings={"producer_config": long}) as (ann, _):
        await gate.reached.wait()
        env.network.blackhole(host_of("ann"))
        async with transforming(env, other, "bob"):
            await env.bell.until(lambda: len(other.calls) >= 8, "bob has them", env.limit)
            env.network.heal(host_of("ann"))
            gate.open.set()
            await env.bell.until(lambda: len(partitions_of(ann)) == 2, "ann is back", env.limit)
            await env.produce(3, range(4))
            await all_once(env)


async def test_a_static_member_that_starts_again(env: VirtualEnvironment) -> None:
    """It has the same transactional id, and aborts what it left open at once."""
    create_out(env)
    transform, other = Copy(env), Copy(env)
    long = {"producer_config": ProducerConfig(transaction_timeout=600.0), **NEVER}
    await env.produce(3, range(4))
    static = {"group_instance_id": "a", "session_timeout": 100.0}
    async with transforming(env, transform, settings=long, **static) as (_, run):
        for number in range(4):
            await transform.until(f"done {number}@2")
        env.network.blackhole(host_of("ann"))
        env.network.cut(host_of("ann"))
        started = asyncio.get_running_loop().time()
        async with transforming(env, other, "zoe", **static):
            await all_once(env)
            assert asyncio.get_running_loop().time() - started < 20.0
        run.cancel()
        env.network.heal(host_of("ann"))
    assert list(env.cluster.transactions) == ["g-a"]


# -- time --------------------------------------------------------------------------------------------------------------


@pytest.mark.full
async def test_claims_that_wait_for_a_slow_one_are_not_stuck(env: VirtualEnvironment) -> None:
    """Only the slow function itself counts as stuck."""
    create_out(env)
    gate = Gate(0, 1)
    transform = Copy(env, gate)
    await env.produce(3, range(4))
    long = ProducerConfig(transaction_timeout=600.0)
    settings = {"producer_config": long, "max_records": 1}
    async with transforming(env, transform, settings=settings, max_poll_interval=20.0) as (group, _):
        await gate.reached.wait()
        assert group.session is not None
        slow = group.session.claims[0]
        slow.renew(60.0)
        await asyncio.sleep(1.0)  # the transaction is ending
        await env.produce(1, [1, 2, 3])
        await asyncio.sleep(50.0)
        assert not group.session.ended
        gate.open.set()
        await all_once(env)


@pytest.mark.full
async def test_a_slow_function_is_stuck(env: VirtualEnvironment) -> None:
    create_out(env)
    gate = Gate(0, 1)
    transform = Copy(env, gate)
    await env.produce(3, range(4))
    long = ProducerConfig(transaction_timeout=600.0)
    async with transforming(env, transform, settings={"producer_config": long}, max_poll_interval=20.0):
        await gate.reached.wait()
        await transform.until("cancelled 0@2")
        gate.open.set()
        await all_once(env)


async def test_one_object_for_two_members(env: VirtualEnvironment) -> None:
    create_out(env)
    handler = ConsumeTransformProduce(Copy(env))
    from tests.scenario.support import member

    read = {"isolation_level": "read_committed"}
    async with member(env, **read) as ann, member(env, "bob", **read) as bob:
        async with running(ann.run("orders", handler)):
            await env.bell.until(lambda: len(partitions_of(ann)) == 4, "partitions", env.limit)
            with pytest.raises(UsageError, match="belongs to one member"):
                await bob.run("orders", handler)


@in_each_protocol
async def test_a_source_topic_is_deleted_while_a_transaction_has_its_records(env: VirtualEnvironment) -> None:
    """The transaction is aborted, and the records of the other topic are transformed again, without waiting for the deleted one."""
    create_out(env)
    env.cluster.create_topic("other", 1)
    transform = Copy(env)
    handler = ConsumeTransformProduce(transform, commit_interval=5.0)
    await env.produce(3, [0])
    async with member(env, "ann", isolation_level="read_committed") as group:
        async with running(group.run(["orders", "other"], handler)):
            env.cluster.produce("other", b"x", partition=0)
            await transform.until("done 0@0")
            env.cluster.delete_topic("other")
            deleted_at = now()
            while committed(env).get(0) != 3:
                await asyncio.sleep(0.5)
            assert now() - deleted_at < 30.0, "the delivery timeout is 120 s"
            await env.produce(2, [1])
            await env.all_committed()
    assert (await outputs(env))[1] == [
        record.value for record in env.cluster.records("orders") if record.partition == 1
    ]
