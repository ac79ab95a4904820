"""The connections of a work queue end after any byte, in each direction: with its commits, copies and joins in them."""

from __future__ import annotations

import asyncio
import random

import pytest

from asyncgroup.errors import NoBrokersError
from asyncgroup.testing.virtual.connection import Signal
from asyncgroup.workqueue import DeadLetter, Delivery, RetryTopic
from tests.scenario.three_protocols import PROTOCOLS, made_for
from tests.stories.byte_cuts import ByteCuts, Direction, End
from tests.stories.queue_members import acked, opened, read_topic, send
from tests.stories.virtual import VirtualEnvironment

pytestmark = [pytest.mark.virtual(max_virtual_time=864_000), pytest.mark.usefixtures("no_asyncio_errors")]

SOME = 2040
"""Bytes between two cuts; with --soak it is 17."""
HOST = "10.1.0.1"
"""From which the first member of an environment connects."""
MOST_CUTS = 4


class Work:
    """Fails for the record at offset 1, copies the one at offset 2 to the retry topic, and handles the others."""

    def __init__(self) -> None:
        self.done: list[tuple[str, int]] = []

    async def __call__(self, delivery: Delivery) -> None:
        topic, offset = delivery.record.topic, delivery.record.offset
        if topic == "orders" and offset == 1:
            raise ValueError("fails")
        if topic == "orders" and offset == 2:
            await delivery.reconsume_later(0.05)
        else:
            self.done.append((topic, offset))


async def read_all(env: VirtualEnvironment, work: Work) -> None:
    """Run a queue until all records, and the copy in the retry topic, are done."""
    options = {"ack_group_time": 0.02, "nack_backoff": 0.01, "config": {"close_timeout": 5.0}}
    async with opened(env, dead_letter=DeadLetter(1), retry=RetryTopic(), **options) as queue:
        running = asyncio.create_task(queue.run(work))
        while not running.done() and not (
            await acked(env) == [0, 1, 2, 3] and any(topic != "orders" for topic, _ in work.done)
        ):
            await asyncio.sleep(0.05)
        await queue.aclose()
        await running


async def story(protocol: str, cuts: ByteCuts, direction: Direction, places: list[int], end: End) -> int:
    """Run a queue while connections are cut; return how many bytes were sent."""
    async with made_for(protocol, nodes=1) as env:
        await send(env, *[b"v"] * 4)
        work = Work()
        cuts.start(direction, *places, end=end)
        for _ in range(1 + MOST_CUTS):
            try:
                await read_all(env, work)
                break
            except NoBrokersError:  # the only broker did not answer the first request
                continue
        sent = cuts.bytes
        cuts.start(direction)
        assert await acked(env) == [0, 1, 2, 3]
        assert {0, 3} <= {offset for topic, offset in work.done if topic == "orders"}
        for topic in ("orders-g-DLQ", "orders-g-RETRY"):
            copies = await read_topic(env, topic, 1)
            assert 1 <= len(copies) <= 1 + len(places)
        assert len(work.done) <= 3 + 3 * len(places)
        return sent


@pytest.mark.parametrize("end", [Signal.EOF, Signal.RESET])
@pytest.mark.parametrize("direction", ["requests", "responses"])
@pytest.mark.parametrize(
    "protocol", [pytest.param(name, marks=[] if name == "eager" else pytest.mark.full) for name in PROTOCOLS]
)
@pytest.mark.parametrize("step", [SOME, pytest.param(17, marks=[pytest.mark.soak, pytest.mark.timeout(900)])])
async def test_cut_after_each_byte(
    monkeypatch: pytest.MonkeyPatch, step: int, protocol: str, direction: Direction, end: End
) -> None:
    """No record is lost, and each cut repeats at most what was acquired: any connection may end after any byte."""
    rng, cuts = random.Random(1), ByteCuts(monkeypatch, HOST)
    whole = await story(protocol, cuts, direction, [], end)
    assert whole > 1000
    for count, after in enumerate(range(0, whole + 1, step)):
        places = [after, *(rng.randint(1, 1000) for _ in range(count % 2 * (MOST_CUTS - 1)))]
        try:
            await story(protocol, cuts, direction, places, end)
        except BaseException as error:
            error.add_note(f"cut after {places} of {whole} bytes of {direction}")
            raise
