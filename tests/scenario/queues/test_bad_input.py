"""What callers of a work queue get wrong: one clear error each, and no record is acknowledged or lost by it.

`working(env, "ann", work)` runs the handler `work` with the work queue of the member `ann`. Its `calls` are `begin 0@5#1`, for the
first delivery (`#1`) of the record at offset 5 of partition 0, and then `end 0@5#1`, `error 0@5#1` or `cancelled 0@5#1`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from asyncgroup import Cluster, ConfigError, ConsumerConfig, InvalidRecordError, ProducerConfig
from asyncgroup.errors import AsyncGroupError, ClosedError, UsageError
from asyncgroup.workqueue import (
    AckOutcome,
    Backoff,
    BatchPolicy,
    DeadLetter,
    Delivery,
    DeliveryState,
    Mode,
    RetryTopic,
    WorkQueue,
    in_thread,
)
from asyncgroup.workqueue.group_engine.failover_assignor import FailoverAssignor
from tests.stories import queue_members
from tests.stories.queue_members import acked, opened, send, working
from tests.stories.virtual import VirtualEnvironment
from tests.work_queues import group_queue

ENDS: dict[str, Callable[[Delivery], Awaitable[object]]] = {
    "ack": lambda delivery: delivery.ack(),
    "ack_durably": lambda delivery: delivery.ack(durable=True),
    "nack": lambda delivery: delivery.nack(),
    "reject": lambda delivery: delivery.reject("no"),
    "reconsume_later": lambda delivery: delivery.reconsume_later(1.0),
}


@pytest.mark.parametrize("first", ENDS)
@pytest.mark.parametrize("second", [*ENDS, "renew", "ack_cumulative"])
async def test_a_delivery_is_ended_twice(env: VirtualEnvironment, first: str, second: str):
    await send(env, b"0", b"1")
    again: dict[str, Callable[[Delivery], Awaitable[object]]] = {
        **ENDS,
        "renew": lambda delivery: delivery.renew(),
        "ack_cumulative": lambda delivery: delivery.ack_cumulative(),
    }
    async with opened(env, retry=RetryTopic(), dead_letter=DeadLetter()) as queue:
        delivery = await queue.receive()
        other = await queue.receive()
        await ENDS[first](delivery)
        state = delivery.state
        with pytest.raises(
            UsageError, match=r"of <Delivery orders-0@0, attempt 1: .*>: the delivery was ended before"
        ):
            await again[second](delivery)
        assert delivery.state is state
        assert other.state is DeliveryState.ACQUIRED


async def test_a_delivery_of_a_closed_queue(env: VirtualEnvironment):
    """A delivery belongs to its queue; after that is closed its calls come too late."""
    await send(env, b"0")
    async with opened(env, "ann", config={"close_timeout": 2.0}) as queue:
        delivery = await queue.receive()
    assert delivery.state is DeliveryState.RELEASED
    assert await delivery.ack() is AckOutcome.LOST
    assert not await delivery.nack()
    async with working(env, "bob") as bob:
        await bob.until("end 0@0#1")


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda delivery: delivery.nack(delay=-1), ConfigError, "delay=-1"),
        (lambda delivery: delivery.nack(delay=float("nan")), ConfigError, "delay=nan"),
        (lambda delivery: delivery.nack(delay=float("inf")), ConfigError, "delay=inf"),
        (lambda delivery: delivery.nack(delay="1"), ConfigError, "delay='1'"),
        (lambda delivery: delivery.reconsume_later(-0.5), ConfigError, "delay=-0.5"),
        (lambda delivery: delivery.reconsume_later(1e10), ConfigError, "delay=10000000000.0"),
        (
            lambda delivery: delivery.reconsume_later(1, headers=[("a", "text")]),
            InvalidRecordError,
            "headers",
        ),
        (lambda delivery: delivery.reconsume_later(1, headers=[(b"a", b"b")]), InvalidRecordError, "headers"),
        (lambda delivery: delivery.reconsume_later(1, headers="ab"), InvalidRecordError, "headers"),
        (lambda delivery: delivery.ack_cumulative(), UsageError, "no order"),
    ],
)
async def test_arguments_of_a_delivery(
    env: VirtualEnvironment, call: Callable[[Delivery], Awaitable[object]], error: type[Exception], text: str
):
    """The delivery stays open."""
    await send(env, b"0")
    async with opened(env, retry=RetryTopic()) as queue:
        delivery = await queue.receive()
        with pytest.raises(error) as caught:
            await call(delivery)
        assert text in str(caught.value)
        assert delivery.state is DeliveryState.ACQUIRED
        await delivery.ack()
    assert await acked(env) == [0]


async def test_without_topics_for_copies(env: VirtualEnvironment):
    await send(env, b"0")
    async with opened(env) as queue:
        assert (queue.retry_topic, queue.dead_letter_topic) == (None, None)
        delivery = await queue.receive()
        with pytest.raises(UsageError, match=r"no dead letter topic \(dead_letter=…\)"):
            await delivery.reject()
        with pytest.raises(UsageError, match=r"no retry topic \(retry=…\)"):
            await delivery.reconsume_later(1.0)
        assert delivery.state is DeliveryState.ACQUIRED
        await delivery.ack()


def plain(_delivery: Delivery) -> None:
    """Not a coroutine function."""


async def without_parameters() -> None:
    """Cannot be called with a delivery."""


async def with_two_parameters(_delivery: Delivery, _more: object) -> None:
    """Neither."""


class AsyncCallable:
    async def __call__(self, delivery: Delivery) -> None:
        """An object with an async `__call__` is fine."""


@pytest.mark.parametrize(
    "handle",
    [
        *(plain, None, AsyncCallable, len, lambda _delivery: None),
        *(without_parameters, with_two_parameters, AsyncCallable.__call__),
        AsyncCallable().__call__,
    ],
)
async def test_handlers(env: VirtualEnvironment, handle: Any):
    async with opened(env) as queue:
        running = asyncio.create_task(queue.run(handle))
        if isinstance(getattr(handle, "__self__", None), AsyncCallable):
            await asyncio.sleep(1.0)
            assert not running.done()
            running.cancel()
        else:
            with pytest.raises(ConfigError, match=r"handle=.* an async function"):
                await running
        await asyncio.wait([running])
        running = asyncio.create_task(
            queue.run(queue_members.no_work)
        )  # the refused call has changed nothing
        await asyncio.sleep(1.0)
        assert not running.done()
        running.cancel()
        await asyncio.wait([running])


async def test_plain_functions_run_in_threads(env: VirtualEnvironment):
    with pytest.raises(
        ConfigError,
        match=r"in_thread=.* a plain function \(session, claim\), or \(delivery\) for a work queue",
    ):
        in_thread(queue_members.no_work)
    seen: list[bytes | None] = []

    def work(delivery: Delivery) -> None:
        if delivery.attempt == 1:
            raise ValueError("again")
        seen.append(delivery.value)

    await send(env, b"0", b"1")
    async with opened(env, nack_backoff=0.5) as queue:
        run = asyncio.create_task(queue.run(in_thread(work)))
        await env.bell.until(lambda: len(seen) == 2, "both", env.limit)
        await queue.aclose()
        await run
    assert await acked(env) == [0, 1]


INVALID: list[tuple[dict[str, Any], str]] = [
    ({"concurrency": 0}, "concurrency=0"),
    ({"concurrency": True}, "concurrency=True"),
    ({"ack_timeout": 0.5}, "ack_timeout=0.5"),
    ({"ack_timeout": float("inf")}, "ack_timeout=inf"),
    ({"on_ack_timeout": "ignore"}, "on_ack_timeout='ignore'"),
    ({"nack_backoff": -1}, "nack_backoff=-1"),
    ({"nack_backoff": "1"}, "nack_backoff='1'"),
    ({"retry": 5}, "retry=5"),
    ({"dead_letter": -5}, "max_redeliveries=-5"),
    ({"dead_letter": "dead"}, "dead_letter='dead'"),
    ({"ack_group_time": -1}, "ack_group_time=-1"),
    ({"ack_group_time": 100}, "hundreds as a float; durations are seconds: 0.1?"),
    ({"ack_group_size": 0}, "ack_group_size=0"),
    ({"receiver_queue": -1}, "receiver_queue=-1"),
    ({"receive_buffer_bytes": 0}, "receive_buffer_bytes=0"),
    ({"max_waiting": 0}, "max_waiting=0"),
    ({"retry_share": 0}, "retry_share=0"),
    ({"retry_share": 1.5}, "retry_share=1.5"),
    ({"mode": "sharing"}, "mode='sharing'"),
    ({"mode": 1}, "mode=1"),
    ({"engine": "group"}, "engine='group'"),
    ({"migrate_from": "streams"}, "migrate_from='streams'"),
    ({"initial_position": "first"}, "initial_position='first'"),
    ({"interceptors": [object()]}, "interceptors="),
    ({"config": {}}, "config={}"),
    ({"config": ConsumerConfig(auto_commit=False)}, "auto_commit=False"),
    ({"producer_config": ProducerConfig(acks=1)}, "acks="),
    ({"producer_config": ProducerConfig(transactional_id="t")}, "transactional_id='t'"),
    ({"mode": Mode.SHARED, "allow_out_of_order": True}, "allow_out_of_order=True"),
    ({"mode": Mode.EXCLUSIVE, "allow_out_of_order": True}, "allow_out_of_order=True"),
    ({"mode": Mode.SHARED, "priority": 1}, "priority=1"),
    ({"mode": Mode.KEY_SHARED, "priority": 1}, "priority=1"),
    ({"mode": Mode.FAILOVER, "priority": -1}, "priority=-1"),
    (
        {"mode": Mode.FAILOVER, "config": ConsumerConfig(group_protocol="consumer")},
        "group_protocol='consumer'",
    ),
    ({"mode": Mode.EXCLUSIVE, "config": ConsumerConfig(assignors=("range",))}, "assignors=('range',)"),
    ({"mode": Mode.FAILOVER, "config": ConsumerConfig(assignors=(FailoverAssignor(0, "n"),))}, "assignors="),
    ({"retry": RetryTopic("orders")}, "topic='orders'"),
    ({"dead_letter": DeadLetter(topic="orders")}, "topic='orders'"),
    ({"retry": RetryTopic("x"), "dead_letter": DeadLetter(topic="x")}, "topic='x'"),
    ({"retry": RetryTopic(names=lambda _topic, _group: "no/topic")}, "topic='no/topic'"),
    ({"group_id": "a group", "dead_letter": DeadLetter()}, "topic='orders-a group-DLQ'"),
    ({"group_id": "x" * 249, "dead_letter": DeadLetter()}, "(it has 260)"),
    ({"group_id": ""}, "group_id=''"),
    ({"topics": []}, "topics=[]"),
    ({"topics": "no/topic"}, "no/topic"),
]


@pytest.mark.parametrize(("options", "text"), INVALID, ids=[text for _, text in INVALID])
async def test_what_does_not_go_together(options: dict[str, Any], text: str):
    """When the queue is made, with the reason."""
    arguments = {"group_id": "g", "topics": "orders", **options}
    with pytest.raises(ConfigError) as caught:
        group_queue("localhost:9092", **arguments)
    assert text in str(caught.value)


@pytest.mark.parametrize(
    "make", [lambda: DeadLetter(-1), lambda: Backoff(2, 2, 1), lambda: BatchPolicy(max_records=0)]
)
async def test_policies(make: Callable[[], object]):
    with pytest.raises(ConfigError):
        make()


async def test_a_queue_that_is_not_open(env: VirtualEnvironment):
    queue = WorkQueue(env.bootstrap_servers, "g", "orders")
    with pytest.raises(ClosedError, match="is not open"):
        await queue.receive()
    with pytest.raises(ClosedError, match="is not open"):
        queue.statistics()
    await queue.aclose()  # nothing to close
    assert repr(queue) == "<WorkQueue 'g', shared: not open>"
    async with opened(env) as other, asyncio.timeout(5.0):
        with pytest.raises(ConfigError, match="policy=5"):
            await other.batch_receive(5)  # type: ignore[arg-type]


async def test_a_topic_that_does_not_exist(env: VirtualEnvironment):
    """`receive()` raises the error of the group."""
    async with opened(env, topics="missing") as queue:
        with pytest.raises(AsyncGroupError, match="missing"):
            await queue.receive()
        with pytest.raises(AsyncGroupError, match="missing"):
            await queue.run(queue_members.no_work)
        with pytest.raises(AsyncGroupError, match="missing"):
            async for _ in queue:
                pytest.fail("there are no records")


async def test_a_shared_cluster_stays_open(env: VirtualEnvironment):
    await send(env, b"0")
    async with Cluster(env.bootstrap_servers) as cluster:
        config = ConsumerConfig(**env.config("ann"))
        for _ in range(2):
            async with WorkQueue(cluster, "g", "orders", config=config, dead_letter=DeadLetter()) as queue:
                async with await queue.receive() as delivery:
                    assert delivery.value == b"0"
                await send(env, b"0")
        assert cluster.is_open
    assert await acked(env) == [0, 1]
