"""What a broker does for transactions, as programs on the wire: each returns what it has seen.

`expected` was seen at an Apache Pulsar 4.2; the tests of the embedded Pulsar and of a real one compare with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from asyncgroup.pulsar.wire.enums import SubType
from tests.pulsar_broker.wire_client import WireClient

__all__ = ["STORIES", "Story"]

EXCLUSIVE, SHARED, FAILOVER, KEY_SHARED = SubType


class Story(NamedTuple):
    """A program, which gets a client that is connected to coordinator 0 and the name of a new topic."""

    run: Callable[[WireClient, str], Awaitable[list[Any]]]
    expected: list[Any]


STORIES: dict[str, Story] = {}


def story(expected: list[Any]) -> Callable[[Any], Any]:
    """Add a program to STORIES."""

    def add(run: Callable[[WireClient, str], Awaitable[list[Any]]]) -> Any:
        STORIES[run.__name__] = Story(run, expected)
        return run

    return add


async def filled(client: WireClient, topic: str, *messages: bytes | tuple[bytes, ...]) -> None:
    producer = await client.produce_to(topic)
    for each in messages:
        await producer.send(*(each if isinstance(each, tuple) else (each,)))


async def acking(client: WireClient, topic: str, name: str = "s") -> tuple[int, int]:
    """Open a transaction that acknowledges in a subscription."""
    transaction = await client.begin()
    assert await client.add_subscription(transaction, topic, name) == "ok"
    return transaction


def uncounted(messages: list[str]) -> list[str]:
    """Return messages without the numbers of their redeliveries."""
    return [each.partition("+")[0] for each in messages]


# --- messages ---------------------------------------------------------------------------------------------------------


@story(
    [
        [0, 1, 2],
        ["0:a"],
        "0",
        "ok",
        ["1:b", "2:c"],
        "2",
        4,
        ["4:d"],
        "4",
    ]
)
async def commit(client: WireClient, topic: str) -> list[Any]:
    """Nothing from the first message of an open transaction on is delivered; the marker takes an entry."""
    consumer = await client.subscribe(topic, "s", EXCLUSIVE)
    producer = await client.produce_to(topic)
    transaction = await client.begin(topic)
    seen: list[Any] = [
        [
            await producer.send(b"a"),
            await producer.send(b"b", transaction=transaction),
            await producer.send(b"c"),
        ]
    ]
    seen += [await consumer.received(1), await consumer.last_id()]
    seen += [await client.commit(transaction), await consumer.received(2), await consumer.last_id()]
    seen += [await producer.send(b"d"), await consumer.received(1), await consumer.last_id()]
    return seen


@story(["none", [], "ok", ["1:b"], "1", 4, "ok", [], "1", ["1:b"], 6, ["6:d"]])
async def abort(client: WireClient, topic: str) -> list[Any]:
    """Messages of an aborted transaction are never delivered, also not to a subscription that begins later."""
    consumer = await client.subscribe(topic, "s", EXCLUSIVE)
    producer = await client.produce_to(topic)
    transaction = await client.begin(topic)
    await producer.send(b"a", transaction=transaction)
    await producer.send(b"b")
    await producer.send(b"c", transaction=transaction)
    seen: list[Any] = [await consumer.last_id(), await consumer.received()]
    seen += [await client.abort(transaction), await consumer.received(1), await consumer.last_id()]
    another = await client.begin(topic)
    seen += [await producer.send(b"x", transaction=another), await client.abort(another)]
    seen += [await consumer.received(), await consumer.last_id()]
    later = await client.subscribe(topic, "later", SHARED)
    seen += [await later.received(1), await producer.send(b"d"), await later.received(1)]
    return seen


@story([[0, 1, 2, 3, 4], [], "ok", [], "none", "ok", "ok", ["0:a1", "1:b1", "3:a2", "4:b2"], 8])
async def interleaved(client: WireClient, topic: str) -> list[Any]:
    """Of several transactions the first one with a message holds all."""
    consumer = await client.subscribe(topic, "s", SHARED)
    producer = await client.produce_to(topic)
    first, second, third = [await client.begin(topic) for _ in range(3)]
    seen: list[Any] = [
        [
            await producer.send(b"a1", transaction=first),
            await producer.send(b"b1", transaction=second),
            await producer.send(b"c", transaction=third),
            await producer.send(b"a2", transaction=first),
            await producer.send(b"b2", transaction=second),
        ]
    ]
    seen += [await consumer.received(), await client.commit(second), await consumer.received()]
    seen += [await consumer.last_id(), await client.abort(third), await client.commit(first)]
    return [*seen, await consumer.received(4), await producer.send(b"d")]


@story(["ok", 0, "ok", 2, "ok", 3, 5, ["0:a", "2:b", "5:c"]])
async def without_messages(client: WireClient, topic: str) -> list[Any]:
    """A commit writes its marker in each topic that was added, an abort only where a transaction has written before."""
    consumer = await client.subscribe(topic, "s", EXCLUSIVE)
    producer = await client.produce_to(topic)
    seen: list[Any] = [await client.abort(await client.begin(topic)), await producer.send(b"a")]
    seen += [await client.commit(await client.begin(topic)), await producer.send(b"b")]
    transaction = await client.begin(topic)
    seen += [await client.abort(transaction)]
    transaction = await client.begin(topic)
    seen += [await producer.send(b"x", transaction=transaction)]
    await client.abort(transaction)
    return [*seen, await producer.send(b"c"), await consumer.received(3)]


@story(["ok", ["0:a,b", "1:c,d"], "1/1"])
async def batches(client: WireClient, topic: str) -> list[Any]:
    """A batch of a transaction is delivered as a whole; the last id has its last index."""
    consumer = await client.subscribe(topic, "s", EXCLUSIVE)
    producer = await client.produce_to(topic)
    transaction = await client.begin(topic)
    await producer.send(b"a", b"b", transaction=transaction)
    await producer.send(b"c", b"d", transaction=transaction)
    return [await client.commit(transaction), await consumer.received(2), await consumer.last_id()]


# --- errors -----------------------------------------------------------------------------------------------------------


@story(
    [
        "TransactionNotFound",
        "TransactionNotFound",
        "TransactionNotFound",
        "ok",
        "TransactionNotFound",
        "TransactionNotFound",
        "TransactionNotFound",
        "TransactionCoordinatorNotFound",
    ]
)
async def unknown_transactions(client: WireClient, topic: str) -> list[Any]:
    """A transaction that has ended is not found, like one that never was."""
    never = (0, 1 << 40)
    seen = [
        await client.add_partition(never, topic),
        await client.add_subscription(never, topic, "s"),
        await client.commit(never),
    ]
    transaction = await client.begin(topic)
    seen += [await client.commit(transaction), await client.commit(transaction)]
    seen += [await client.abort(transaction), await client.add_partition(transaction, topic)]
    return [*seen, await client.commit((1 << 30, 0))]


@story([[], "TransactionNotFound", "TransactionNotFound", ["0:a+1", "2:c"], "2"])
async def time_outs(client: WireClient, topic: str) -> list[Any]:
    """The coordinator aborts a transaction when its time is over."""
    await filled(client, topic, b"a")
    consumer = await client.subscribe(topic, "s", SHARED)
    await consumer.received(1)
    producer = await client.produce_to(topic)
    transaction = await client.begin(topic, ttl=2_000)
    await client.add_subscription(transaction, topic, "s")
    await producer.send(b"b", transaction=transaction)
    await consumer.ack(0, transaction=transaction)
    await producer.send(b"c")
    seen: list[Any] = [await consumer.received()]
    await asyncio.sleep(3.0)
    seen += [await client.commit(transaction), await client.add_partition(transaction, topic)]
    return [*seen, sorted(await consumer.received(2)), await consumer.last_id()]


# --- acknowledgements -------------------------------------------------------------------------------------------------


@story(
    [
        ["0:a", "1:b", "2:c"],
        "ok",
        "TransactionConflict",
        "TransactionConflict",
        "ok",
        [],
        "ok",
        ["1:b", "2:c"],
        "TransactionConflict",
    ]
)
async def individual_commit(client: WireClient, topic: str) -> list[Any]:
    """What a transaction has acknowledged is refused to others, not delivered again meanwhile, and gone when it commits."""
    await filled(client, topic, b"a", b"b", b"c")
    consumer = await client.subscribe(topic, "s", SHARED)
    seen: list[Any] = [await consumer.received(3)]
    first, second = await acking(client, topic), await acking(client, topic)
    seen += [await consumer.ack(0, transaction=first), await consumer.ack(0, transaction=second)]
    seen += [await consumer.ack(0, transaction=first), await consumer.ack(1, transaction=second)]
    consumer.redeliver(0, 1)
    seen += [await consumer.received(), await client.commit(first)]
    await client.abort(second)
    await consumer.close()
    again = await client.subscribe(topic, "s", SHARED)
    seen += [await again.received(2)]
    third = await acking(client, topic)
    return [*seen, await again.ack(0, transaction=third)]


@story([["0:a", "1:b", "2:c"], "ok", "ok", ["0:a+1", "1:b+1"], "ok", "ok", ["1:b+2"], "ok", "ok", []])
async def individual_abort(client: WireClient, topic: str) -> list[Any]:
    """What an aborted transaction has acknowledged comes again, with a redelivery more."""
    await filled(client, topic, b"a", b"b", b"c")
    consumer = await client.subscribe(topic, "s", SHARED)
    seen: list[Any] = [await consumer.received(3)]
    transaction = await acking(client, topic)
    seen += [await consumer.ack(0, 1, transaction=transaction), await client.abort(transaction)]
    seen += [sorted(await consumer.received(2))]
    transaction = await acking(client, topic)
    await consumer.ack(1, transaction=transaction)
    seen += [await consumer.ack(0), await client.abort(transaction), await consumer.received(1)]
    transaction = await acking(client, topic)
    await consumer.ack(1, 2, transaction=transaction)
    seen += [await consumer.ack(1), await client.commit(transaction), await consumer.received()]
    return seen


@story(["ok", ["1:b"], "ok", ["0:a"], "ok", "ok", []])
async def consumers_that_leave(client: WireClient, topic: str) -> list[Any]:
    """A message that an open transaction has acknowledged stays so when its consumer leaves."""
    await filled(client, topic, b"a", b"b")
    first = await client.subscribe(topic, "s", SHARED)
    await first.received(2)
    transaction = await acking(client, topic)
    seen: list[Any] = [await first.ack(0, transaction=transaction)]
    await first.close()
    second = await client.subscribe(topic, "s", SHARED)
    seen += [await second.received(1), await client.abort(transaction)]
    seen += [uncounted(await second.received(1))]
    transaction = await acking(client, topic)
    seen += [await second.ack(0, 1, transaction=transaction), await client.commit(transaction)]
    await second.close()
    third = await client.subscribe(topic, "s", SHARED)
    return [*seen, await third.received()]


@story(
    [
        ["0:a,b,c"],
        "ok",
        "TransactionConflict",
        "ok",
        "ok",
        ["0:b"],
        ["0:b"],
        "TransactionConflict",
        "ok",
        ["0:b,c"],
        "ok",
        "ok",
        "ok",
        [],
    ]
)
async def batch_indexes(client: WireClient, topic: str) -> list[Any]:
    """Messages of a batch are acknowledged one by one; the entry comes again with those that are left."""
    await filled(client, topic, (b"a", b"b", b"c"))
    consumer = await client.subscribe(topic, "s", SHARED)
    seen: list[Any] = [await consumer.received(1)]
    first, second = await acking(client, topic), await acking(client, topic)
    seen += [await consumer.ack(0, index=0, size=3, transaction=first)]
    seen += [await consumer.ack(0, index=0, size=3, transaction=second)]
    seen += [await consumer.ack(0, index=2, size=3, transaction=second), await client.commit(first)]
    await consumer.close()
    consumer = await client.subscribe(topic, "s", SHARED)
    seen += [uncounted(await consumer.received(1))]
    consumer.redeliver(0)
    seen += [uncounted(await consumer.received(1))]
    third = await acking(client, topic)
    seen += [await consumer.ack(0, index=0, size=3, transaction=third), await client.abort(second)]
    seen += [uncounted(await consumer.received(1))]
    seen += [await consumer.ack(0, index=1, size=3, transaction=third)]
    seen += [await consumer.ack(0, index=2, size=3, transaction=third), await client.commit(third)]
    await consumer.close()
    consumer = await client.subscribe(topic, "s", SHARED)
    return [*seen, await consumer.received()]


@story(
    [
        ["0:a", "1:b", "2:c", "3:d"],
        "ok",
        "TransactionConflict",
        "TransactionConflict",
        "ok",
        "ok",
        [],
        ["0:a", "1:b", "2:c", "3:d"],
        "ok",
        "ok",
        "TransactionConflict",
        ["3:d"],
    ]
)
async def cumulative(client: WireClient, topic: str) -> list[Any]:
    """One transaction at a time acknowledges cumulatively; after an abort everything comes again when the consumer asks for it."""
    await filled(client, topic, b"a", b"b", b"c", b"d")
    consumer = await client.subscribe(topic, "s", EXCLUSIVE)
    seen: list[Any] = [await consumer.received(4)]
    first, second = await acking(client, topic), await acking(client, topic)
    seen += [await consumer.ack(1, transaction=first, cumulative=True)]
    seen += [await consumer.ack(2, transaction=second, cumulative=True)]
    seen += [await consumer.ack(0, transaction=first, cumulative=True)]
    seen += [await consumer.ack(2, transaction=first, cumulative=True)]
    seen += [await client.abort(first), await consumer.received()]
    consumer.redeliver()
    seen += [await consumer.received(4)]
    seen += [await consumer.ack(2, transaction=second, cumulative=True), await client.commit(second)]
    third = await acking(client, topic)
    seen += [await consumer.ack(1, transaction=third, cumulative=True)]
    await consumer.close()
    again = await client.subscribe(topic, "s", EXCLUSIVE)
    return [*seen, await again.received(1)]


@story([["0:a,b,c"], "ok", "TransactionConflict", "ok", [], ["0:a,b,c"], "ok", "ok", ["0:c"]])
async def cumulative_in_batches(client: WireClient, topic: str) -> list[Any]:
    """A cumulative acknowledgement may end within a batch."""
    await filled(client, topic, (b"a", b"b", b"c"))
    consumer = await client.subscribe(topic, "s", EXCLUSIVE)
    seen: list[Any] = [await consumer.received(1)]
    transaction = await acking(client, topic)
    seen += [await consumer.ack(0, index=1, size=3, transaction=transaction, cumulative=True)]
    seen += [await consumer.ack(0, index=0, size=3, transaction=transaction, cumulative=True)]
    seen += [await client.abort(transaction), await consumer.received()]
    consumer.redeliver()
    seen += [await consumer.received(1)]
    transaction = await acking(client, topic)
    seen += [await consumer.ack(0, index=1, size=3, transaction=transaction, cumulative=True)]
    seen += [await client.commit(transaction)]
    await consumer.close()
    again = await client.subscribe(topic, "s", EXCLUSIVE)
    return [*seen, await again.received(1)]


@story([["0:a,b,c"], "ok", ["0:c"], "ok", ["0:c,d"]])
async def cumulative_beside_a_transaction(client: WireClient, topic: str) -> list[Any]:
    """A cumulative acknowledgement names the messages after it, also those that an open transaction has acknowledged."""
    await filled(client, topic, (b"a", b"b", b"c", b"d"))
    consumer = await client.subscribe(topic, "s", EXCLUSIVE)
    await consumer.received(1)
    transaction = await acking(client, topic)
    await consumer.ack(0, index=3, size=4, transaction=transaction)
    await consumer.close()
    second = await client.subscribe(topic, "s", EXCLUSIVE)
    seen: list[Any] = [await second.received(1), await second.ack(0, index=1, size=4, cumulative=True)]
    await second.close()
    third = await client.subscribe(topic, "s", EXCLUSIVE)
    seen += [await third.received(1), await client.abort(transaction)]
    await third.close()
    fourth = await client.subscribe(topic, "s", EXCLUSIVE)
    return [*seen, await fourth.received(1)]


@story(["3:", "0:c,d", "3,0:", "0:c,d", "3,0,1:", "0:c", "2,0:", "0:d", "1,3,0:", "0:c"])
async def cumulative_after_others(client: WireClient, topic: str) -> list[Any]:
    """In a batch a cumulative acknowledgement replaces those of single messages, unless they have a later first message left."""
    seen: list[Any] = []
    for acked, last in (((3,), 1), ((3, 0), 1), ((3, 0, 1), 1), ((2, 0), 2), ((1, 3, 0), 0)):
        name = f"{topic}-{'-'.join(map(str, acked))}"
        await filled(client, name, (b"a", b"b", b"c", b"d"))
        consumer = await client.subscribe(name, "s", EXCLUSIVE)
        await consumer.received(1)
        for index in acked:
            await consumer.ack(0, index=index, size=4)
        await consumer.ack(0, index=last, size=4, cumulative=True)
        await consumer.close()
        again = await client.subscribe(name, "s", EXCLUSIVE)
        seen += [f"{','.join(map(str, acked))}:", *await again.received(1)]
    return seen


@story(["EXCLUSIVE", ["0:a,b"], ["0:b"], [], "SHARED", ["0:a,b"], ["0:b"], []])
async def seeks_after_commits(client: WireClient, topic: str) -> list[Any]:
    """What a transaction has acknowledged of a batch is left out after a seek as well, and what an ack set leaves out: perhaps all."""
    seen: list[Any] = []
    for kind in (EXCLUSIVE, SHARED):
        seen.append(kind.name)
        for left in (None, (1, 2), (2,)):
            name = f"{topic}-{kind.name}-{left and len(left)}"
            await filled(client, name, (b"a", b"b", b"c"))
            consumer = await client.subscribe(name, "s", kind)
            await consumer.received(1)
            transaction = await acking(client, name)
            await consumer.ack(0, index=2, size=3, transaction=transaction)
            await client.commit(transaction)
            await asyncio.sleep(0.5)
            await consumer.seek(0, left, 3)
            again = await client.subscribe(name, "s", kind)
            seen.append(await again.received())
    return seen


@story([["0:a", "1:b", "2:c"], "ok", "ok", "ok", ["0:a", "2:c"], "ok", "ok", ["2:c"]])
async def one_active_consumer(client: WireClient, topic: str) -> list[Any]:
    """An Exclusive subscription gets everything again that is not acknowledged, in order."""
    await filled(client, topic, b"a", b"b", b"c")
    consumer = await client.subscribe(topic, "s", EXCLUSIVE)
    seen: list[Any] = [await consumer.received(3)]
    transaction = await acking(client, topic)
    seen += [await consumer.ack(0, transaction=transaction), await consumer.ack(1)]
    seen += [await client.abort(transaction), await consumer.received(2)]
    transaction = await acking(client, topic)
    seen += [await consumer.ack(0, transaction=transaction)]
    await consumer.close()
    again = await client.subscribe(topic, "s", EXCLUSIVE)
    found = await again.received(1)
    return [*seen, await client.commit(transaction), found]


@story(["ok", "ok", ["0:x"], [], ["0:y"], "ok", ["0:y"]])
async def consume_and_produce(client: WireClient, topic: str) -> list[Any]:
    """A commit applies acknowledgements and messages in several topics."""
    source, other = f"{topic}-in", f"{topic}-out"
    await filled(client, source, b"a")
    consumer = await client.subscribe(source, "s", KEY_SHARED)
    outs = [await client.subscribe(each, "s", SHARED) for each in (topic, other)]
    await consumer.received(1)
    transaction = await client.begin(topic, other)
    await client.add_subscription(transaction, source, "s")
    for each, value in ((topic, b"x"), (other, b"y")):
        producer = await client.produce_to(each)
        await producer.send(value, transaction=transaction)
    seen: list[Any] = [await consumer.ack(0, transaction=transaction), await client.commit(transaction)]
    seen += [await outs[0].received(1)]
    await consumer.close()
    again = await client.subscribe(source, "s", KEY_SHARED)
    seen += [await again.received(), await outs[1].received(1)]
    # one of its topics is read again
    transaction = await acking(client, other)
    await outs[1].ack(0, transaction=transaction)
    seen += [await client.abort(transaction)]
    return [*seen, uncounted(await outs[1].received(1))]


@story([2, [], ["3:b"]])
async def late_messages(client: WireClient, topic: str) -> list[Any]:
    """A message of a transaction that was aborted is stored, and never delivered."""
    consumer = await client.subscribe(topic, "s", SHARED)
    producer = await client.produce_to(topic)
    transaction = await client.begin(topic)
    await producer.send(b"a", transaction=transaction)
    await client.abort(transaction)
    seen: list[Any] = [await producer.send(b"late", transaction=transaction), await consumer.received()]
    await producer.send(b"b")
    return [*seen, await consumer.received(1)]


@story([["0:a", "1:b"], "ok", "ok", ["1:b+1"], [], "ok", [], "ok", ["0:a+1"]])
async def late_acknowledgements(client: WireClient, topic: str) -> list[Any]:
    """An acknowledgement after the end of its transaction is kept, until the subscription is asked to end that again."""
    await filled(client, topic, b"a", b"b")
    consumer = await client.subscribe(topic, "s", SHARED)
    seen: list[Any] = [await consumer.received(2)]
    transaction = await acking(client, topic)
    seen += [await client.abort(transaction), await consumer.ack(0, transaction=transaction)]
    consumer.redeliver(0, 1)
    seen += [await consumer.received(1), await consumer.received()]
    seen += [await client.abort(await acking(client, topic)), await consumer.received()]
    return [*seen, await client.abort_on_subscription(transaction, topic, "s"), await consumer.received(1)]


@story([0, [], "ok", ["1:b"]])
async def late_messages_of_a_new_topic(client: WireClient, topic: str) -> list[Any]:
    """A message after the end of its transaction holds up a topic that had none, until it is asked to end that again."""
    consumer = await client.subscribe(topic, "s", SHARED)
    producer = await client.produce_to(topic)
    transaction = await client.begin(topic)
    await client.abort(transaction)
    seen: list[Any] = [await producer.send(b"late", transaction=transaction), await consumer.received()]
    await producer.send(b"b")
    return [*seen, await client.abort_on_partition(transaction, topic), await consumer.received(1)]


@story(["ok", "ok", "ok", ["0:a"]])
async def ends_where_nothing_is(client: WireClient, topic: str) -> list[Any]:
    """A subscription or topic that does not exist, or has nothing of a transaction, may be asked to end it."""
    await filled(client, topic, b"a")
    consumer = await client.subscribe(topic, "s", SHARED)
    transaction = await client.begin()
    seen: list[Any] = [await client.abort_on_subscription(transaction, topic, "s")]
    seen += [await client.abort_on_subscription(transaction, topic, "other")]
    seen += [await client.abort_on_partition(transaction, topic)]
    return [*seen, await consumer.received(1)]


# --- rules in combination ---------------------------------------------------------------------------------------------


@story([["0:a", "1:b", "2:c"], "ok", "TransactionConflict", "ok", ["2:c+1"], [], ["0:a+1", "1:b+1"]])
async def several_in_one_ack(client: WireClient, topic: str) -> list[Any]:
    """An acknowledgement of several messages is refused as a whole."""
    await filled(client, topic, b"a", b"b", b"c")
    consumer = await client.subscribe(topic, "s", SHARED)
    seen: list[Any] = [await consumer.received(3)]
    first, second = await acking(client, topic), await acking(client, topic)
    seen += [await consumer.ack(0, transaction=first), await consumer.ack(0, 1, transaction=second)]
    seen += [await consumer.ack(1, transaction=first)]
    consumer.redeliver(2)
    seen += [await consumer.received(1)]
    consumer.redeliver(1)
    seen += [await consumer.received()]
    await client.abort(first)
    return [*seen, sorted(await consumer.received(2))]


@story(["ok", "ok", "TransactionConflict", "ok", ["0:b,c"]])
async def whole_batches_after_a_transaction(client: WireClient, topic: str) -> list[Any]:
    """It cannot be if a transaction has acknowledged one of its messages, in an Exclusive subscription as well."""
    await filled(client, topic, (b"a", b"b", b"c"))
    consumer = await client.subscribe(topic, "s", EXCLUSIVE)
    await consumer.received(1)
    first = await acking(client, topic)
    seen: list[Any] = [await consumer.ack(0, index=0, size=3, transaction=first), await client.commit(first)]
    second = await acking(client, topic)
    seen += [await consumer.ack(0, size=3, transaction=second), await client.abort(second)]
    await consumer.close()
    again = await client.subscribe(topic, "s", EXCLUSIVE)
    return [*seen, await again.received(1)]


@story(["ok", "TransactionConflict", "ok", "ok", "ok", ["0:b,c"]])
async def whole_batches(client: WireClient, topic: str) -> list[Any]:
    """A batch of which messages are acknowledged can be acknowledged as a whole in an Exclusive subscription only."""
    await filled(client, topic, (b"a", b"b", b"c"))
    shared = await client.subscribe(topic, "s", SHARED)
    await shared.received(1)
    transaction = await acking(client, topic)
    seen: list[Any] = [await shared.ack(0, index=0, size=3)]
    seen += [await shared.ack(0, size=3, transaction=transaction)]
    exclusive = await client.subscribe(topic, "e", EXCLUSIVE)
    await exclusive.received(1)
    transaction = await acking(client, topic, "e")
    seen += [await exclusive.ack(0, index=0, size=3)]
    seen += [await exclusive.ack(0, size=3, transaction=transaction), await client.abort(transaction)]
    return [*seen, await exclusive.received(1)]


@story(["ok", "ok", "ok", "ok", ["0:c+1"], ["0:c", "1:d"]])
async def ordinary_acks(client: WireClient, topic: str) -> list[Any]:
    """What is acknowledged without a transaction stays so when a transaction that has acknowledged it aborts."""
    await filled(client, topic, (b"a", b"b", b"c"), b"d")
    consumer = await client.subscribe(topic, "s", SHARED)
    await consumer.received(2)
    transaction = await acking(client, topic)
    seen: list[Any] = [await consumer.ack(0, index=0, size=3, transaction=transaction)]
    seen += [await consumer.ack(0, index=0, size=3), await consumer.ack(0, index=1, size=3)]
    seen += [await client.abort(transaction), await consumer.received(1)]
    await consumer.close()
    again = await client.subscribe(topic, "s", SHARED)
    return [*seen, await again.received(2)]


@story(["ok", "ok", "ok", ["2:c"]])
async def both_kinds_of_acks(client: WireClient, topic: str) -> list[Any]:
    """A transaction acknowledges one by one and cumulatively."""
    await filled(client, topic, b"a", b"b", b"c", b"d")
    consumer = await client.subscribe(topic, "s", EXCLUSIVE)
    await consumer.received(4)
    transaction = await acking(client, topic)
    seen: list[Any] = [await consumer.ack(3, transaction=transaction)]
    seen += [await consumer.ack(1, transaction=transaction, cumulative=True)]
    seen += [await client.commit(transaction)]
    await consumer.close()
    again = await client.subscribe(topic, "s", EXCLUSIVE)
    return [*seen, await again.received(1)]


@story([["1:b"], "ok", [], ["1:b"]])
async def seeks(client: WireClient, topic: str) -> list[Any]:
    """After a seek to the beginning a message that an open transaction has acknowledged is not delivered."""
    await filled(client, topic, b"a", b"b")
    consumer = await client.subscribe(topic, "s", SHARED)
    await consumer.received(2)
    transaction = await acking(client, topic)
    await consumer.ack(0, transaction=transaction)
    await consumer.seek_to_earliest()
    consumer = await client.subscribe(topic, "s", SHARED)
    seen: list[Any] = [await consumer.received(1), await client.commit(transaction)]
    seen += [await consumer.received()]
    await consumer.close()
    again = await client.subscribe(topic, "s", SHARED)
    return [*seen, await again.received(1)]


@story([["0:a", "2:c"], ["0:a", "2:c"]])
async def seeks_over_aborted_messages(client: WireClient, topic: str) -> list[Any]:
    """Aborted messages and markers are left out again after a seek."""
    producer = await client.produce_to(topic)
    consumer = await client.subscribe(topic, "s", SHARED)
    first, second = await client.begin(topic), await client.begin(topic)
    await producer.send(b"a", transaction=first)
    await producer.send(b"b", transaction=second)
    await producer.send(b"c", transaction=first)
    await client.commit(first)
    await client.abort(second)
    seen: list[Any] = [await consumer.received(2)]
    await consumer.seek_to_earliest()
    again = await client.subscribe(topic, "s", SHARED)
    return [*seen, await again.received(2)]


@story(["ok", ["2:c"], "ok", ["0:a", "1:b", "2:c"]])
async def the_next_active_consumer(client: WireClient, topic: str) -> list[Any]:
    """The next consumer of a Failover subscription gets what no open transaction has acknowledged."""
    await filled(client, topic, b"a", b"b", b"c")
    first = await client.subscribe(topic, "s", FAILOVER)
    await first.received(3)
    transaction = await acking(client, topic)
    seen: list[Any] = [await first.ack(0, 1, transaction=transaction)]
    await first.close()
    second = await client.subscribe(topic, "s", FAILOVER)
    seen += [await second.received(1), await client.abort(transaction)]
    return [*seen, await second.received(3)]


@story(["ok", ["2:c+1"], "ok", ["0:a+1", "1:b+1"]])
async def key_shared(client: WireClient, topic: str) -> list[Any]:
    """In a Key_Shared subscription it is as in a Shared one."""
    await filled(client, topic, b"a", b"b", b"c")
    consumer = await client.subscribe(topic, "s", KEY_SHARED)
    await consumer.received(3)
    transaction = await acking(client, topic)
    seen: list[Any] = [await consumer.ack(0, 1, transaction=transaction)]
    consumer.redeliver(0, 1, 2)
    seen += [await consumer.received(1), await client.abort(transaction)]
    return [*seen, sorted(await consumer.received(2))]


@story(["ok", "ok", ["1:c+1", "2:d+1"], "ok", ["0:a+1", "1:b,c+2"]])
async def redelivery_of_everything(client: WireClient, topic: str) -> list[Any]:
    """A consumer that asks for everything gets what no open transaction has acknowledged."""
    await filled(client, topic, b"a", (b"b", b"c"), b"d")
    consumer = await client.subscribe(topic, "s", SHARED)
    await consumer.received(3)
    transaction = await acking(client, topic)
    seen: list[Any] = [await consumer.ack(0, transaction=transaction)]
    seen += [await consumer.ack(1, index=0, size=2, transaction=transaction)]
    consumer.redeliver()
    seen += [sorted(await consumer.received(2)), await client.abort(transaction)]
    return [*seen, sorted(await consumer.received(2))]


@story(["none", "ok", [], ["2:b"], "2"])
async def the_latest_position(client: WireClient, topic: str) -> list[Any]:
    """A subscription that begins at the latest message begins after those of open transactions."""
    producer = await client.produce_to(topic)
    transaction = await client.begin(topic)
    await producer.send(b"a", transaction=transaction)
    consumer = await client.subscribe(topic, "s", EXCLUSIVE, is_early=False)
    seen: list[Any] = [await consumer.last_id(), await client.commit(transaction), await consumer.received()]
    await producer.send(b"b")
    return [*seen, await consumer.received(1), await consumer.last_id()]


@story(["ok", "ok", ["0:a"]])
async def a_subscription_that_is_deleted(client: WireClient, topic: str) -> list[Any]:
    """A transaction commits though a subscription of it is gone."""
    await filled(client, topic, b"a")
    consumer = await client.subscribe(topic, "s", SHARED)
    await consumer.received(1)
    transaction = await acking(client, topic)
    seen: list[Any] = [await consumer.ack(0, transaction=transaction)]
    await consumer.unsubscribe()
    seen += [await client.commit(transaction)]
    again = await client.subscribe(topic, "s", SHARED)
    return [*seen, await again.received(1)]
