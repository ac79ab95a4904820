"""A batch whose records turn out to be corrupt when a handler reads them: later marks do not pass it."""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Callable

import pytest
from aiokafka.record.util import calc_crc32c

from asyncgroup.consumer.fetch_outcome import FetchedRecords
from asyncgroup.errors import CorruptRecordsError
from asyncgroup.group.sessions.claim import Claim
from asyncgroup.group.sessions.session import Session
from asyncgroup.model import Batch
from tests.consumer.support import batch
from tests.group.parts import consumer_of, make_session

GOOD = batch(0, count=5)
AFTER = batch(15, count=5)


def bad_from(base: int, count: int, good: int) -> bytes:
    """Return a batch with a valid checksum and invalid records after the first `good` ones."""
    data = bytearray(batch(base, count=count))
    size = (len(data) - 61) // count
    start = 61 + good * size
    data[start:] = b"\xff" * (len(data) - start)
    struct.pack_into(">I", data, 17, calc_crc32c(memoryview(data)[21:]))
    return bytes(data)


BAD = bad_from(5, 10, good=4)
"""Offsets 5 to 14; those from 9 on cannot be read."""


def claim_of(session: Session) -> Claim:
    return session.claims[0]


def feed(claim: Claim, *batches: bytes) -> None:
    consumer_of(claim)._inner.fetched(FetchedRecords(b"".join(batches), 1 << 40, 0, zero_copy=True))


def fed(*batches: bytes) -> Claim:
    session, _ = make_session([("orders", 0)])
    claim = claim_of(session)
    feed(claim, *batches)
    return claim


def refetch(claim: Claim) -> None:
    """Feed what a broker returns at the fetch offset: whole batches from the one that contains it."""
    position = consumer_of(claim)._inner.fetch_offset
    feed(claim, *(data for end, data in ((5, GOOD), (15, BAD), (20, AFTER)) if position < end))


USES: dict[str, Callable[[Batch], object]] = {
    "list": list,
    "loop": lambda records: [record.offset for record in records],
    "index": lambda records: records[0],
    "slice": lambda records: records[:2],
    "arrow": Batch.to_arrow,
}


@pytest.mark.parametrize("use", USES)
async def test_a_corrupt_batch_is_read_again_and_marks_do_not_pass_it(
    use: str, caplog: pytest.LogCaptureFixture
) -> None:
    claim = fed(GOOD, BAD, AFTER)
    first = await anext(claim.batches())
    assert (first.first_offset, first.last_offset) == (0, 19)
    with caplog.at_level(logging.WARNING), pytest.raises(CorruptRecordsError):
        USES[use](first)
    assert "orders-0" in caplog.text
    assert "seek" in caplog.text
    assert claim.position == 0
    claim.mark(first)
    assert claim.next_mark == 0, "its records were not read"
    refetch(claim)
    again = await anext(claim.batches())
    assert [record.offset for record in again] == [0, 1, 2, 3, 4]
    claim.mark(again)
    assert claim.next_mark == 5
    for _ in range(3):
        with pytest.raises(CorruptRecordsError, match="orders-0 at offset 5"):
            await anext(claim.batches())
        assert claim.position == 5


async def test_records_that_were_marked_before_the_error_are_not_read_again() -> None:
    claim = fed(GOOD, BAD, AFTER)
    with pytest.raises(CorruptRecordsError):
        for record in await anext(claim.batches()):
            claim.mark(record)
    assert claim.next_mark == claim.position == 9
    refetch(claim)
    with pytest.raises(CorruptRecordsError, match="orders-0 at offset 5"):
        await anext(claim)
    assert claim.next_mark == 9


async def test_after_a_seek_past_it_marks_advance() -> None:
    claim = fed(GOOD, BAD, AFTER)
    with pytest.raises(CorruptRecordsError):
        list(await anext(claim.batches()))
    claim.seek(15)
    refetch(claim)
    found = await anext(claim.batches())
    assert [record.offset for record in found] == [15, 16, 17, 18, 19]
    claim.mark(found)
    assert claim.next_mark == 20


async def test_the_mark_of_a_later_batch_does_not_pass_it() -> None:
    """The handler reads the next batch before it has processed the corrupt one."""
    claim = fed(GOOD, BAD, AFTER)
    first = await anext(claim.batches(max_records=15))
    second = await anext(claim.batches())
    assert (first.last_offset, second.first_offset) == (14, 15)
    with pytest.raises(CorruptRecordsError):
        list(first)
    claim.mark(second)
    assert claim.next_mark == 0
    assert claim.position == 0


async def test_a_batch_from_before_a_seek_changes_nothing() -> None:
    claim = fed(GOOD, BAD)
    first = await anext(claim.batches())
    claim.seek(40)
    with pytest.raises(CorruptRecordsError):
        list(first)
    assert claim.position == 40
    feed(claim, batch(40, count=2))
    claim.mark(await anext(claim.batches()))
    assert claim.next_mark == 42


async def test_an_error_after_the_claims_end_holds_marks_back_too() -> None:
    session, _ = make_session([("orders", 0)])
    claim = claim_of(session)
    feed(claim, GOOD, BAD, AFTER)
    first = await anext(claim.batches(max_records=15))
    second = await anext(claim.batches())
    consumer_of(claim)._inner.end()
    with pytest.raises(CorruptRecordsError):
        list(first)
    claim.mark(second)
    assert claim.next_mark == 0


@pytest.mark.virtual(real_wait_limit=20.0)
async def test_an_error_in_a_thread() -> None:
    claim = fed(GOOD, BAD, AFTER)
    first = await anext(claim.batches(max_records=15))
    second = await anext(claim.batches())
    with pytest.raises(CorruptRecordsError):
        await asyncio.to_thread(list, first)
    claim.mark(second)
    assert (claim.next_mark, claim.position) == (0, 0)


async def test_interceptors_raise_it_while_the_batch_is_created() -> None:
    session, _ = make_session([("orders", 0)])
    claim = claim_of(session)
    seen: list[int] = []
    consumer = consumer_of(claim)
    consumer._inner.intercept = lambda record: seen.append(record.offset) or record  # type: ignore[assignment, func-returns-value]
    feed(claim, GOOD, BAD)
    with pytest.raises(CorruptRecordsError):
        await anext(claim.batches())
    assert claim.position == 0
