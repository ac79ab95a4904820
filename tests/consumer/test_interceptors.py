"""Interceptors: each is called once for each record, however it is read, and none can break the chain."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from asyncgroup import ConfigError, ConsumerGroup, Interceptor, ProducerRecord
from asyncgroup.consumer.interceptors import Interceptors
from asyncgroup.model import Record
from asyncgroup.testing import VirtualTimeLoop
from tests.consumer.support import batch, feed, make_consumer
from tests.profiles import examples


def record(offset: int = 0, value: bytes = b"v", partition: int = 3) -> Record:
    return Record("orders", partition, offset, value=value)


def test_an_empty_chain_is_none() -> None:
    assert Interceptors.of(()) is None
    assert Interceptors.of(Interceptors(())) is None
    chain = Interceptors([lambda record: record])
    assert Interceptors.of(chain) is chain


def test_each_interceptor_gets_the_record_of_the_previous_one() -> None:
    chain = Interceptors(
        [lambda r: record(r.offset, r.value + b"1"), lambda r: record(r.offset, r.value + b"2")]
    )
    assert chain(record(5)).value == b"v12"


def test_an_object_with_on_consume() -> None:
    """Without other methods, or one of `Interceptor`; a base class that overrides nothing is not called."""

    class Object:
        def on_consume(self, record_: Record) -> Record:
            return record(record_.offset, b"object")

    class Base(Interceptor):
        def on_consume(self, record_: Record) -> Record:
            return record(record_.offset, (record_.value or b"") + b", base")

    class Sent(Interceptor):
        def on_send(self, record_: ProducerRecord) -> None:
            raise AssertionError(record_)

    assert Interceptors([Object(), Base(), Sent(), Interceptor()])(record()).value == b"object, base"
    assert Interceptors.of([Sent(), Interceptor()]) is None


async def _late(record_: Record) -> None:
    raise AssertionError(record_)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (None, "interceptors=None is not allowed: a list of functions, or of objects with on_consume: inter"),
        ("count", "interceptors='count' is not"),
        ([Interceptor], "interceptors=<class"),
        ([object()], "interceptors=<object"),
        ([_late], "not coroutine functions"),
    ],
)
def test_wrong_interceptors(wrong: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Interceptors(wrong)
    with pytest.raises(ConfigError, match=message):
        ConsumerGroup("localhost:9092", "g", interceptors=wrong)


@pytest.mark.parametrize(
    "returned",
    [record(1), record(0, partition=4), Record("other", 3, 0), True, "text", (1, 2)],
    ids=repr,
)
def test_a_record_of_another_place_is_ignored(returned: object, caplog: pytest.LogCaptureFixture) -> None:
    """A mark of it would commit records that the reader has not seen."""
    seen: list[bytes | None] = []
    chain = Interceptors([lambda _: returned, lambda r: seen.append(r.value)])  # type: ignore[list-item,func-returns-value,return-value]
    for _ in range(100):
        assert chain(record()).value == b"v"
    assert seen == [b"v"] * 100
    assert len(caplog.records) == 1
    assert repr(returned) in caplog.text


def test_an_exception_is_logged_once_for_each_interceptor_and_type(caplog: pytest.LogCaptureFixture) -> None:
    def broken(taken: Record) -> Record:
        raise (KeyError if taken.offset % 2 else ValueError)(taken.offset)

    chain = Interceptors([broken, lambda r: record(r.offset, b"next"), broken])
    assert [chain(record(offset)).value for offset in range(1000)] == [b"next"] * 1000
    assert len(caplog.records) == 4, "two interceptors, two exception types"
    assert all(entry.exc_info for entry in caplog.records)


def test_a_cancellation_is_logged_as_an_exception(caplog: pytest.LogCaptureFixture) -> None:
    """Regression test: the reader was cancelled, and the record was lost, as it had left the buffer."""

    def broken(taken: Record) -> Record:
        raise asyncio.CancelledError("the result of a cancelled future")

    chain = Interceptors([broken, lambda r: record(r.offset, b"next")])
    assert [chain(record(offset)).value for offset in range(3)] == [b"next"] * 3
    assert len(caplog.records) == 1


# -- exactly once ------------------------------------------------------------------------------------------------------

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("records"), st.integers(1, 9)),
        st.tuples(st.just("batch"), st.integers(1, 9)),
        st.tuples(st.just("gather"), st.integers(1, 9)),
        st.tuples(st.just("cancel"), st.integers(0, 3)),
        st.tuples(st.just("stall"), st.integers(1, 4)),
        st.tuples(st.just("pause"), st.integers(0, 3)),
        st.tuples(st.just("seek"), st.integers(0, 30)),
        st.tuples(st.just("feed"), st.integers(1, 12)),
    ),
    max_size=25,
)


@settings(max_examples=examples(60), deadline=None)
@given(STEPS)
def test_interceptors_are_called_once_for_each_record_handed_out(steps: list[tuple[str, int]]) -> None:
    """In sarama they are called twice for the record at which a partition stalls."""
    seen: list[int] = []
    got: list[int] = []

    async def story() -> None:
        consumer = make_consumer(interceptors=[lambda r: seen.append(r.offset)])

        async def read_records(count: int) -> None:
            for _ in range(count):
                got.append((await anext(consumer)).offset)  # noqa: PERF401  it may be cancelled

        async def read_batch(most: int, wait: float) -> None:
            got.extend(r.offset for r in await anext(consumer.batches(max_records=most, max_wait=wait)))

        async def within(work, seconds: float = 0.3) -> None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await work

        for step, number in steps:
            match step:
                case "records":
                    await within(read_records(number))
                case "batch":
                    await within(read_batch(number, 0.0))
                case "gather":
                    await within(read_batch(number, 0.1))
                case "cancel":
                    task = asyncio.ensure_future(read_records(5))
                    for _ in range(number):
                        await asyncio.sleep(0)
                    task.cancel()
                    await asyncio.wait([task])
                case "stall":
                    for _ in range(number):
                        consumer._inner.check_progress()
                case "pause":
                    consumer.pause()
                    await within(read_records(1), 0.01)
                    consumer.resume()
                case "seek":
                    consumer.seek(number)
                case "feed":
                    feed(consumer, batch(consumer._inner.fetch_offset, count=number))
        consumer._inner.end()

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(story())
    assert seen == got
    if not any(step == "seek" for step, _ in steps):
        assert max(Counter(seen).values(), default=1) == 1
        assert got == sorted(got)


@pytest.mark.parametrize("wrong", [print, [1], ["on_record"]])
def test_values_that_are_no_functions_are_refused(wrong: Any) -> None:
    with pytest.raises(ConfigError, match=r"interceptors=.* is not allowed: .*function"):
        Interceptors(wrong)
    with pytest.raises(ConfigError, match="interceptors="):
        ConsumerGroup("127.0.0.1:9092", "g", interceptors=wrong)
