"""ErrorStream: bounded buffers, counted drops, and no reader delays another."""

from __future__ import annotations

import asyncio

import pytest

from asyncgroup.consumer.error_stream import ErrorStream

BUFFER = 256


def error(number: int) -> ValueError:
    return ValueError(number)


def numbers(errors: list[Exception]) -> list[int]:
    return [each.args[0] for each in errors]


@pytest.fixture
def stream() -> ErrorStream:
    """A stream that keeps as many errors as its buffer."""
    return ErrorStream(BUFFER)


async def test_every_reader_gets_every_error_since_its_creation(stream: ErrorStream) -> None:
    stream.put(error(0))
    first = stream.reader()
    stream.put(error(1))
    second = stream.reader()
    stream.put(error(2))
    stream.close()
    assert numbers([each async for each in first]) == [1, 2]
    assert numbers([each async for each in second]) == [2]


async def test_a_reader_waits_for_the_next_and_ends_with_the_stream(stream: ErrorStream) -> None:
    reader = stream.reader()
    found: list[Exception] = []

    async def read() -> None:
        async for each in reader:
            found.append(each)  # noqa: PERF401  watched from outside

    task = asyncio.ensure_future(read())
    await asyncio.sleep(1)
    stream.put(error(1))
    stream.put(error(2))
    await asyncio.sleep(1)
    assert numbers(found) == [1, 2]
    stream.close()
    await asyncio.wait_for(task, 1)


async def test_a_full_buffer_drops_and_counts_its_oldest_error(stream: ErrorStream) -> None:
    slow, quick = stream.reader(), stream.reader()
    for number in range(BUFFER + 10):
        stream.put(error(number))
        assert numbers([await anext(quick)]) == [number]
    assert (slow.dropped, quick.dropped) == (10, 0)
    stream.close()
    assert numbers([each async for each in slow]) == list(range(10, BUFFER + 10))


async def test_a_cancelled_read_loses_nothing(stream: ErrorStream) -> None:
    reader = stream.reader()
    task = asyncio.ensure_future(anext(reader))
    await asyncio.sleep(1)
    stream.put(error(1))
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert numbers([await anext(reader)]) == [1]


async def test_a_closed_reader_gets_no_more_errors(stream: ErrorStream) -> None:
    reader, other = stream.reader(), stream.reader()
    stream.put(error(1))
    await reader.aclose()
    await reader.aclose()
    stream.put(error(2))
    assert numbers([each async for each in reader]) == [1]
    stream.close()
    assert numbers([each async for each in other]) == [1, 2]


async def test_the_former_name_of_aclose_names_the_new_one() -> None:
    with pytest.raises(AttributeError, match=r"'close'; here it is: await errors\.aclose\(\)"):
        ErrorStream(BUFFER).reader().close()  # type: ignore[attr-defined]


async def test_a_reader_of_a_closed_stream_ends_at_once(stream: ErrorStream) -> None:
    stream.close()
    stream.close()
    stream.put(error(1))
    assert [each async for each in stream.reader()] == []


async def test_two_tasks_on_one_reader_share_its_errors(stream: ErrorStream) -> None:
    reader = stream.reader()
    tasks = [asyncio.ensure_future(anext(reader)) for _ in range(2)]
    await asyncio.sleep(1)
    stream.put(error(1))
    await asyncio.sleep(1)
    stream.put(error(2))
    assert sorted(numbers(list(await asyncio.gather(*tasks)))) == [1, 2]
