"""Their consumers and ours in one subscription: each message goes to one of them, is acknowledged by it, and keys keep their order."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from asyncgroup import Delivery, WorkQueue
from asyncgroup.pulsar.wire.message_id import MessageId
from asyncgroup.workqueue.pulsar_engine.source import PulsarSource
from tests.apache_pulsar import RunningPulsar
from tests.pulsar.interop.members import MEMBERS, Member, Received, until
from tests.pulsar.interop.messages import new_topic, producer

pytestmark = [pytest.mark.real, pytest.mark.full]

CHANGE_DELAY = 1.5
"""Seconds; a broker makes another consumer active after one (`activeConsumerFailoverDelayTimeMillis`)."""
PAIRS = [("ours", "java"), ("java", "ours"), ("ours", "cpp"), ("cpp", "ours")]


class Group:
    """The members of a subscription `s`, and what they have received, in order."""

    def __init__(self, server: RunningPulsar, topic: str, kind: str) -> None:
        self._server = server
        self._topic = topic
        self._kind = kind
        self._stack = AsyncExitStack()
        self._reports: list[Callable[[Received], object]] = []
        self.received: list[Received] = []

    async def add(self, kind: str, **options: Any) -> Member:
        member: Member = MEMBERS[kind](self._server, self._topic, self._kind, self._report, **options)
        self._stack.push_async_callback(member.close)
        await member.start()
        return member

    async def aclose(self) -> None:
        await self._stack.aclose()

    def on_received(self, report: Callable[[Received], object]) -> None:
        """Call a function for each message from now on."""
        self._reports.append(report)

    def _report(self, received: Received) -> None:
        self.received.append(received)
        for each in self._reports:
            each(received)

    def of(self, member: Member) -> list[Received]:
        return [each for each in self.received if each.member == member.name]

    def values(self) -> list[bytes]:
        return [each.value for each in self.received]

    async def settled(self) -> None:
        """Wait until the broker has every acknowledgement."""
        async with asyncio.timeout(60):
            while True:
                stats = (await self._server.admin.stats(self._topic))["subscriptions"]["s"]
                if not stats["msgBacklog"]:
                    return
                await asyncio.sleep(0.1)


@asynccontextmanager
async def group_of(server: RunningPulsar, kind: str) -> AsyncIterator[tuple[Group, str]]:
    topic = new_topic()
    # one without a subscription keeps nothing
    async with producer(server, topic, initial_subscription="s"):
        pass
    group = Group(server, topic, kind)
    try:
        yield group, topic
    finally:
        await group.aclose()


async def send(
    server: RunningPulsar,
    topic: str,
    values: Iterable[bytes],
    keys: Iterable[str | None] | None = None,
    **options: Any,
) -> list[MessageId]:
    """Send messages, without batches unless `options` say otherwise."""
    all_values = list(values)
    async with producer(server, topic, **{"batching": False} | options) as sends:
        futures = [
            sends.send_nowait(value, key=key)
            for value, key in zip(all_values, keys or [None] * len(all_values), strict=True)
        ]
        return [await each for each in futures]


def numbers(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


async def test_each_message_goes_to_one_of_three(apache_pulsar: RunningPulsar) -> None:
    """Every seventh is negatively acknowledged at first: it comes once more, to any of them."""
    async with group_of(apache_pulsar, "shared") as (group, topic):
        members = {name: await group.add(name) for name in MEMBERS}
        await send(apache_pulsar, topic, numbers(60))
        await until(lambda: len(group.received) == 60, "all messages")
        assert sorted(group.values()) == sorted(numbers(60))
        assert {each.member for each in group.received} == set(MEMBERS)
        nacked = {each.value for each in group.received[::7]}
        for each in list(group.received):
            if each.value in nacked:
                await members[each.member].nack(each.value)
            else:
                await members[each.member].ack(each.value)
        await until(
            lambda: len(group.received) == 60 + len(nacked), "those that were negatively acknowledged"
        )
        for each in group.received[60:]:
            assert (each.value in nacked, each.redelivery_count) == (True, 1)
            await members[each.member].ack(each.value)
        await group.settled()
        assert Counter(group.values()) == Counter(numbers(60)) + Counter(nacked)


@pytest.mark.parametrize(("here", "there"), PAIRS)
async def test_a_nack_here_is_delivered_there(apache_pulsar: RunningPulsar, here: str, there: str) -> None:
    async with group_of(apache_pulsar, "shared") as (group, topic):
        members = {name: await group.add(name) for name in (here, there)}
        await send(apache_pulsar, topic, [b"again"])
        async with asyncio.timeout(60):
            seen = 0
            while [each.member for each in group.received[-2:]] != [here, there]:
                seen += 1
                await until(lambda seen=seen: len(group.received) == seen, "the next delivery")
                last = group.received[-1]
                assert last.redelivery_count == seen - 1
                if [each.member for each in group.received[-2:]] != [here, there]:
                    await members[last.member].nack(b"again")
        await members[there].ack(b"again")
        await group.settled()


@pytest.mark.parametrize(("here", "there"), PAIRS)
async def test_what_one_has_not_acknowledged_at_its_end_goes_to_the_other(
    apache_pulsar: RunningPulsar, here: str, there: str
) -> None:
    """A batch and single messages, half of each acknowledged: the broker gives only the others again."""
    async with group_of(apache_pulsar, "shared") as (group, topic):
        first = await group.add(here)
        ids = await send(apache_pulsar, topic, numbers(10), batching=True, batching_max_delay=1.0)
        assert len({each.entry_id for each in ids}) == 1
        await send(apache_pulsar, topic, [b"%d" % number for number in range(10, 20)])
        await until(lambda: len(group.received) == 20, "all messages")
        for number in range(0, 20, 2):
            await first.ack(b"%d" % number)
        await first.close()
        second = await group.add(there)
        left = [b"%d" % number for number in range(1, 20, 2)]
        await until(lambda: len(group.of(second)) == 10, "those that are not acknowledged")
        assert sorted(each.value for each in group.of(second)) == sorted(left)
        for value in left[:3]:
            await second.ack(value)
        third = await group.add(here)
        await second.close()
        await until(lambda: len(group.of(third)) == 27, "those that neither has acknowledged")
        assert sorted(group.values()[30:]) == sorted(left[3:])
        for value in left[3:]:
            await third.ack(value)
        await group.settled()


async def test_keys_keep_their_order_while_members_join_and_leave(apache_pulsar: RunningPulsar) -> None:
    """Ours, Java's and C++'s in a Key_Shared subscription; a key moves when all that was given to its consumer is acknowledged."""
    count, keys = 600, [f"key-{number % 25}" for number in range(600)]
    async with group_of(apache_pulsar, "key_shared") as (group, topic):
        await group.add("ours", acks=True)
        java = await group.add("java", acks=True)
        async with producer(apache_pulsar, topic, key_based_batching=True, batching_max_delay=0.01) as sends:
            for number in range(count):
                await sends.enqueue(b"%d" % number, key=keys[number])
                if number % 10 == 0:
                    await asyncio.sleep(0.02)
                if number == 200:
                    await group.add("cpp", acks=True)
                elif number == 400:
                    await java.close()
            await sends.flush()
        await until(lambda: len(set(group.values())) == count, "all messages")
        await group.settled()
        firsts: defaultdict[str, list[int]] = defaultdict(list)
        for value in dict.fromkeys(group.values()):
            firsts[keys[int(value)]].append(int(value))
        assert all(each == sorted(each) for each in firsts.values())
        assert {each.member for each in group.received} == set(MEMBERS)
        for each in group.received:
            assert each.key == keys[int(each.value)].encode()
        # the close of a consumer may be before the acknowledgement of what it has printed
        assert len(group.received) - count <= 100


async def test_what_our_queue_gives_back_is_handled_by_java(apache_pulsar: RunningPulsar) -> None:
    """In Shared a message that has failed here may go to any consumer."""
    failed: list[bytes | None] = []

    async def handle(delivery: Delivery) -> None:
        failed.append(delivery.value)
        raise ValueError("it fails here")

    async with group_of(apache_pulsar, "shared") as (group, topic):
        source = PulsarSource(apache_pulsar.service_url, "s", topic)
        async with WorkQueue(source, mode="shared", nack_backoff=0.2, initial_position="earliest") as queue:
            run = asyncio.create_task(queue.run(handle))
            await send(apache_pulsar, topic, numbers(20))
            await until(lambda: set(failed) == set(numbers(20)), "all messages have failed")
            java = await group.add("java", acks=True)
            await until(lambda: len(group.of(java)) == 20, "Java gets each of them")
            await group.settled()
            await queue.aclose()
            await run
        assert sorted(group.values()) == sorted(numbers(20)), "each once"


async def test_a_key_stays_with_our_queue_after_a_nack(apache_pulsar: RunningPulsar) -> None:
    """Java's consumer joins while messages wait for their second delivery here: it gets none before them of their keys."""
    keys = [f"key-{number % 20}" for number in range(200)]
    completed: list[tuple[str, int]] = []

    async def handle(delivery: Delivery) -> None:
        number = int(delivery.value or b"-1")
        if number % 7 == 0 and delivery.attempt == 1:
            raise ValueError("its first delivery fails")
        await asyncio.sleep(0.02)
        completed.append(("ours", number))

    async with group_of(apache_pulsar, "key_shared") as (group, topic):
        source = PulsarSource(apache_pulsar.service_url, "s", topic)
        async with WorkQueue(source, mode="key_shared", nack_backoff=1.0, concurrency=20) as queue:
            run = asyncio.create_task(queue.run(handle))
            await send(apache_pulsar, topic, numbers(100), keys[:100])
            group.on_received(lambda each: completed.append(("java", int(each.value))))
            await group.add("java", acks=True)
            await send(apache_pulsar, topic, [b"%d" % number for number in range(100, 200)], keys[100:])
            await until(lambda: len({number for _, number in completed}) == 200, "all messages")
            await group.settled()
            await queue.aclose()
            await run
        assert len(completed) == 200, "each once"
        by_key: defaultdict[str, list[int]] = defaultdict(list)
        for _, number in completed:
            by_key[keys[number]].append(number)
        assert all(own == sorted(own) for own in by_key.values())
        assert {who for who, _ in completed} == {"ours", "java"}


async def test_the_active_consumer_moves_between_ours_and_javas(apache_pulsar: RunningPulsar) -> None:
    """Failover: what is not acknowledged comes again at the next active consumer, in order, and nothing else."""
    names = {"ours": "a", "java": "b"}
    async with group_of(apache_pulsar, "failover") as (group, topic):
        members: dict[str, Any] = {each: await group.add(each, name=name) for each, name in names.items()}
        for begin in (0, 10, 20):
            await asyncio.sleep(CHANGE_DELAY)
            await until(lambda: sum(each.is_active for each in members.values()) == 1, "one is active")
            (active,) = (each for each in members.values() if each.is_active)
            values = [b"%d" % number for number in range(begin, begin + 10)]
            seen = len(group.received)
            await send(apache_pulsar, topic, values)
            await until(lambda seen=seen: len(group.received) == seen + 10, "new messages")
            assert [(each.member, each.value) for each in group.received[seen:]] == [
                (active.name, value) for value in values
            ]
            for value in values[:6]:
                await active.ack(value)
            await active.close()
            (other,) = (each for each in members.values() if each is not active)
            await until(lambda seen=seen: len(group.received) == seen + 14, "what is not acknowledged")
            assert [(each.member, each.value) for each in group.received[seen + 10 :]] == [
                (other.name, value) for value in values[6:]
            ]
            for value in values[6:]:
                await other.ack(value)
            members[active.name] = await group.add(active.name, name=names[active.name])
        await group.settled()
        assert len(group.received) == 42
