"""Work queues over a rebalance in each group protocol: grace, windows, discarded results, retained claims, attempts."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from asyncgroup import ConsumerConfig
from asyncgroup.workqueue import AckOutcome, DeadLetter, Delivery, DeliveryState, Mode, WorkQueue
from tests.scenario.support import now
from tests.scenario.three_protocols import in_each_protocol
from tests.stories import queue_members, queues
from tests.stories.queue_members import Gates, QueueMember, acked, label, opened, send, window_of, working
from tests.stories.virtual import VirtualEnvironment

SHORT = {"config": {"rebalance_timeout": 10.0}}


async def two_each(env: VirtualEnvironment) -> None:
    """Wait until ann and bob share the partitions."""

    def shared() -> bool:
        view = env.cluster.group(env.group_id)
        counts = {each.client_id: len(each.assignment.get("orders", ())) for each in view.members.values()}
        return view.state == "Stable" and counts == {"ann": 2, "bob": 2}

    await env.bell.until(shared, "two each", env.limit)


def owned(env: VirtualEnvironment, name: str) -> list[int]:
    """Return the partitions of a member."""
    (member,) = (each for each in env.cluster.group(env.group_id).members.values() if each.client_id == name)
    return list(member.assignment.get("orders", ()))


async def fill(env: VirtualEnvironment, count: int) -> None:
    """Write records to each partition."""
    for partition in range(4):
        await send(env, *[b"%d" % number for number in range(count)], partition=partition)


@contextlib.asynccontextmanager
async def joined_by(env: VirtualEnvironment, work: queue_members.Work, **options: object):
    """Let bob join while the block runs; its own block begins when the partitions are shared."""
    async with working(env, "bob", work, **options) as bob:
        await two_each(env)
        yield bob


@in_each_protocol
async def test_in_flight_handlers_get_their_grace(env: VirtualEnvironment):
    await queues.rebalance_while_handlers_run(env)


@in_each_protocol
async def test_work_done_out_of_order_moves_with_its_window(gates: Gates, env: VirtualEnvironment):
    """Records acknowledged above the base are not delivered again; cancelled ones are, with the same delivery count."""
    gates.open(1, 3)
    await fill(env, 5)
    async with working(env, "ann", gates, **SHORT) as ann:
        await ann.until_count("end", 8)
        await ann.until_count("begin", 20)
        other = Gates()
        async with joined_by(env, other) as bob:
            await bob.until_count("begin", 6)
            moved = owned(env, "bob")
            expected = [f"{partition}@{offset}#1" for partition in moved for offset in (0, 2, 4)]
            assert sorted(bob.of("begin")) == expected
            assert set(ann.of("cancelled")) >= set(expected)
            outcomes = {await ann.deliveries[text].ack() for text in expected}
            assert outcomes == {AckOutcome.LOST}
            for partition in moved:
                window = await window_of(env, partition)
                assert (window.base, window.runs) == (0, [(1, 2), (3, 4)])
            gates.open()
            other.open()
            await bob.until_count("end", 6)
            for partition in range(4):
                await send(env, b"last", partition=partition)
            await bob.until_count("end", 8)
    for partition in range(4):
        assert await acked(env, partition) == list(range(6))


@in_each_protocol
async def test_deliveries_in_hand_of_retained_partitions_stay_valid(gates: Gates, env: VirtualEnvironment):
    """With incremental protocols the handlers of partitions that stay are not interrupted."""
    await fill(env, 1)
    async with working(env, "ann", gates, **SHORT) as ann:
        await ann.until_count("begin", 4)
        async with joined_by(env, Gates(), config={"close_timeout": 2.0}) as bob:
            await bob.until_count("begin", 2)
            kept = owned(env, "ann")
            assert len(kept) == 2
            if env.protocol.get("assignors") == ("range",) or not env.protocol:
                assert len(ann.of("cancelled")) == 4  # eager: all were revoked
                await ann.until_count("begin", 6)
            else:
                assert sorted(ann.of("cancelled")) == [
                    f"{each}@0#1" for each in sorted({0, 1, 2, 3} - {*kept})
                ]
                states = [ann.deliveries[f"{each}@0#1"].state for each in kept]
                assert states == [DeliveryState.ACQUIRED] * 2
            gates.open()
            await ann.until(*[f"end {each}@0#1" for each in kept])
            assert await ann.deliveries[f"{kept[0]}@0#1"]._work.commit() is AckOutcome.COMMITTED
            assert await acked(env, kept[0]) == [0]


@in_each_protocol
async def test_attempts_go_on_at_the_new_owner(env: VirtualEnvironment):
    async def fails(delivery: Delivery) -> None:
        raise ValueError("fails")

    await fill(env, 1)
    async with working(env, "ann", fails, nack_backoff=1.0) as ann:
        await ann.until_count("error", 8)
        async with joined_by(env, fails, nack_backoff=1.0) as bob:
            await bob.until_count("begin", 2)
            for text in bob.of("begin")[:2]:
                partition, attempt = text.split("@")[0], int(text.split("#")[1])
                last = max(int(each.split("#")[1]) for each in ann.of("error") if each.startswith(partition))
                assert attempt == last + 1


@in_each_protocol
async def test_records_that_wait_after_a_nack_are_delivered_by_the_new_owner(env: VirtualEnvironment):
    """It does not know their time: they are delivered at once, and counted on."""

    async def fails(delivery: Delivery) -> None:
        if delivery.attempt == 1:
            raise ValueError("fails")

    await fill(env, 2)
    async with working(env, "ann", fails, nack_backoff=10_000.0) as ann:
        await ann.until_count("error", 8)
        async with joined_by(env, fails) as bob:
            await bob.until_count("end", 4)
            assert sorted(bob.of("end")) == [
                f"{each}@{offset}#2" for each in owned(env, "bob") for offset in (0, 1)
            ]


@in_each_protocol
async def test_a_loop_keeps_its_delivery_over_a_rebalance(env: VirtualEnvironment):
    """`async for` without `run`: an open delivery delays the rebalance until it is ended."""
    await fill(env, 1)
    async with opened(env, "ann") as queue:
        taken = [await queue.receive() for _ in range(4)]
        began = now()
        opening = asyncio.create_task(_ack_later(taken, 5.0))
        async with joined_by(env, Gates(), config={"close_timeout": 2.0}) as bob:
            assert now() - began >= 5.0
            assert await opening == [AckOutcome.ACKED] * 4
            await asyncio.sleep(5.0)
            assert bob.calls == []
    assert [await acked(env, partition) for partition in range(4)] == [[0]] * 4


async def _ack_later(deliveries: list[Delivery], seconds: float) -> list[AckOutcome]:
    await asyncio.sleep(seconds)
    return [await delivery.ack() for delivery in deliveries]


@in_each_protocol
async def test_a_batch_is_neither_lost_nor_acknowledged(env: VirtualEnvironment):
    """A part-gathered batch over a rebalance: deliveries of revoked partitions are left out, and delivered elsewhere."""
    from asyncgroup.workqueue import BatchPolicy

    await fill(env, 1)
    async with opened(env, "ann", **SHORT) as queue:
        policy = BatchPolicy(max_records=1000, max_bytes=None, timeout=60.0)
        gathering = asyncio.create_task(queue.batch_receive(policy))
        await asyncio.sleep(2.0)
        async with joined_by(env, queue_members.no_work) as bob:
            await bob.until_count("end", 2)
            batch = await gathering
            kept = owned(env, "ann")
            assert sorted(map(label, batch)) == [f"{each}@0#1" for each in kept]
            assert {await delivery.ack() for delivery in batch} == {AckOutcome.ACKED}
    assert [await acked(env, partition) for partition in range(4)] == [[0]] * 4


@in_each_protocol
async def test_keys_stay_in_order_over_rebalances(env: VirtualEnvironment):
    """Of each key the ends are in order, over two consumers that join and leave."""
    done: list[int] = []
    members: list[QueueMember] = []

    async def work(delivery: Delivery) -> None:
        await asyncio.sleep(0.3)
        if delivery.record.offset % 7 == 3 and delivery.attempt == 1:
            raise ValueError("again")
        done.append(delivery.record.offset)

    await send(env, *[(b"k", b"%d" % number) for number in range(40)])
    options = {"mode": Mode.KEY_SHARED, "nack_backoff": 0.5}
    async with working(env, "ann", work, **options) as ann:
        members.append(ann)
        for _ in range(2):
            await asyncio.sleep(3.0)
            async with joined_by(env, work, **options) as bob:
                members.append(bob)
                await asyncio.sleep(3.0)
        await env.bell.until(lambda: len({*done}) == 40, "all", env.limit)
    assert done == list(range(40))
    assert await acked(env) == list(range(40))


# --- a queue without initial_position -------------------------------------------------------------------------------------


@pytest.mark.parametrize("dead_letter", [None, DeadLetter(3)])
async def test_no_record_is_lost_between_two_owners(env: VirtualEnvironment, dead_letter: DeadLetter | None):
    """A queue begins at the end of the log, but only the first owner of a partition does, also if it acknowledges nothing."""

    def queue() -> WorkQueue:
        return WorkQueue(env.bootstrap_servers, "latest", env.topic, dead_letter=dead_letter)

    await fill(env, 1)
    async with queue() as first:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(10.0):
                await first.receive()
    await fill(env, 1)  # while there is no owner
    async with queue() as second, asyncio.timeout(10.0):
        assert {label(await second.receive()) for _ in range(4)} == {f"{number}@1#1" for number in range(4)}


async def test_rebalances_of_a_queue_with_config_are_cooperative(env: VirtualEnvironment):
    """Unless it has other assignors; so members with and without `config` share a group."""
    named = ConsumerConfig(client_id="named", auto_offset_reset="earliest")
    async with (
        asyncio.timeout(60.0),
        WorkQueue(env.bootstrap_servers, "both", env.topic, config=named) as one,
        WorkQueue(env.bootstrap_servers, "both", env.topic) as other,
    ):
        while {len(queue.statistics().partitions) for queue in (one, other)} != {2}:
            await asyncio.sleep(1.0)
        assert env.cluster.group("both").protocol == "cooperative-sticky"


@pytest.mark.parametrize("size", [1, 1000])
async def test_a_restored_window_is_committed_as_it_is_read(env: VirtualEnvironment, size: int):
    """Its first record is acknowledged before the others are read again; the commit contains all acknowledgements."""
    await send(env, *[b"v"] * 20)
    async with opened(env, "ann") as queue:
        first, *rest = [await queue.receive() for _ in range(20)]
        for delivery in rest:
            await delivery.ack()
        assert first.record.offset == 0
    async with opened(env, "bob", receiver_queue=size) as queue:
        await (await queue.receive()).ack()
        await asyncio.sleep(10.0)
        window = await window_of(env)
        assert (window.base, window.runs) == (20, [])
        assert queue.statistics().lag == 0
