"""Interceptors of a work queue: functions, and objects with any of the methods."""

from __future__ import annotations

import asyncio
import logging

import pytest

from asyncgroup import ConfigError, TopicPartition, WorkQueue
from asyncgroup.workqueue import DeadLetter, Delivery, QueueInterceptor
from asyncgroup.workqueue.interceptors import QUEUE_METHODS, QueueInterceptors
from tests.stories.queue_members import acked, label, opened, send
from tests.stories.virtual import VirtualEnvironment


def test_the_methods_are_those_of_the_base_class() -> None:
    assert set(QUEUE_METHODS) == {name for name in vars(QueueInterceptor) if not name.startswith("_")}


async def _late(_delivery: Delivery) -> None:
    raise AssertionError


class _Late:
    async def on_acknowledge(self, delivery: Delivery) -> None:
        raise AssertionError(delivery)


@pytest.mark.parametrize(
    ("interceptors", "text"),
    [
        ([object()], "objects with before_consume or on_acknowledge or on_negative_ack or on_ack_timeout or"),
        ([QueueInterceptor], "interceptors="),  # a class
        ([QueueInterceptor(), "meter"], "interceptors='meter'"),
        ("meter", "interceptors='meter'"),
        (5, "interceptors=5"),
        ([_late], "not coroutine functions"),
        ([_Late()], "not coroutine functions"),
    ],
)
def test_what_is_refused(interceptors: object, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        WorkQueue("a:1", "g", "orders", interceptors=interceptors)  # type: ignore[arg-type]
    assert text in str(caught.value)


class Ends:
    """Two of the methods, without the base class."""

    def __init__(self, notes: list[str]) -> None:
        self.notes = notes

    def on_negative_ack(self, delivery: Delivery, error: BaseException | None) -> None:
        self.notes.append(f"nack {label(delivery)} {error}")

    def on_acknowledge(self, delivery: Delivery) -> None:
        self.notes.append(f"ack {label(delivery)}")


class Active(QueueInterceptor):
    """The base class; it overrides one method."""

    def __init__(self, notes: list[str]) -> None:
        self.notes = notes

    def became_active(self, tp: TopicPartition) -> None:
        if tp.partition == 0:
            self.notes.append("active")


class All(Ends, Active):
    """All other methods, one of which raises."""

    def before_consume(self, delivery: Delivery) -> None:
        self.notes.append(f"before {label(delivery)}")

    def on_dead_letter(self, delivery: Delivery, reason: str) -> None:
        self.notes.append(f"dead {label(delivery)} {reason}")

    def on_ack_timeout(self, delivery: Delivery) -> None:
        self.notes.append(f"timeout {label(delivery)}")
        raise ValueError("no")


class Untouched(QueueInterceptor):
    """Overrides nothing."""


@pytest.mark.parametrize("kind", ["function", "some methods", "the base class", "all"])
async def test_each_kind_is_called(
    env: VirtualEnvironment, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    notes: list[str] = []
    interceptor = {
        "function": lambda delivery: notes.append(f"before {label(delivery)}"),
        "some methods": Ends(notes),
        "the base class": Active(notes),
        "all": All(notes),
    }[kind]
    await send(env, b"0", b"1")
    options = {"nack_backoff": 1.0, "ack_timeout": 5.0, "dead_letter": DeadLetter(1)}
    async with opened(env, interceptors=[Untouched(), interceptor], **options) as queue:
        first, second = await queue.receive(), await queue.receive()
        await first.ack()
        await second.nack()
        expired = await queue.receive()
        with caplog.at_level(logging.ERROR, "asyncgroup.workqueue"):
            while not queue.statistics().counts.dead_lettered:
                await asyncio.sleep(1.0)
        assert label(expired) == "0@1#2"
    assert (
        notes
        == {
            "function": ["before 0@0#1", "before 0@1#1", "before 0@1#2"],
            "some methods": ["ack 0@0#1", "nack 0@1#1 None"],
            "the base class": ["active"],
            "all": [
                "active",
                "before 0@0#1",
                "before 0@1#1",
                "ack 0@0#1",
                "nack 0@1#1 None",
                "before 0@1#2",
                "timeout 0@1#2",
                "dead 0@1#2 not acknowledged within 5 s",
            ],
        }[kind]
    )
    assert ("on_ack_timeout of " in caplog.text) == (kind == "all")
    assert await acked(env) == [0, 1]


async def test_a_function_refuses_a_record(env: VirtualEnvironment) -> None:
    """As `before_consume` that raises: the record is delivered again."""
    refused: list[str] = []

    def refuse(delivery: Delivery) -> None:
        if delivery.attempt == 1:
            refused.append(label(delivery))
            raise ValueError("not now")

    await send(env, b"0")
    async with opened(env, interceptors=[refuse], nack_backoff=1.0) as queue:
        delivery = await queue.receive()
        assert (label(delivery), refused) == ("0@0#2", ["0@0#1"])
        await delivery.ack()


def test_methods_of_the_base_class_are_not_called() -> None:
    chain = QueueInterceptors([Untouched(), Active([])])
    assert {name: len(calls) for name, calls in chain._methods.items() if calls} == {"became_active": 1}
