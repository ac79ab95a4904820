"""The next fetch is sent in the turn of the event loop that received a response, or after the readers of a small one."""

from __future__ import annotations

import asyncio

import pytest

from asyncgroup.broker import EmbeddedCluster
from tests.consumer.brokers import client, fill

pytestmark = pytest.mark.virtual(max_virtual_time=600)


class Turns:
    """What happens about fetches, in order, with the number of turns of the event loop since the last response."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self._turn = 0

    def note(self, event: str) -> None:
        if event == "response":
            self._turn = 0
            asyncio.get_running_loop().call_soon(self._next_turn, 1)
        self.events.append(f"{event} {self._turn}")

    def _next_turn(self, number: int) -> None:
        self._turn = number
        if number < 5:
            asyncio.get_running_loop().call_soon(self._next_turn, number + 1)

    def after_responses(self) -> set[str]:
        """Return what follows the responses with records, up to the next one."""
        parts = " ".join(self.events).split("response 0")
        return {part.strip() for part in parts if "record" in part}


@pytest.mark.parametrize(
    ("size", "expected"),
    [(100, "record 1 request 1"), (100_000, "request 0 record 1")],
    ids=["small", "large"],
)
async def test_when_the_next_fetch_is_sent(monkeypatch: pytest.MonkeyPatch, size: int, expected: str) -> None:
    """Before, it took five turns: the response woke the lane's task, that the other lane's, and each planned again."""
    async with EmbeddedCluster() as brokers:
        brokers.create_topic("orders", 1)
        async with client(brokers, fetch_max_wait=0.5) as reader:
            turns, emit = Turns(), reader.cluster.hooks.emit

            def observed(event: str, *values: object) -> None:
                if event in ("on_request", "on_response") and values[1] == "Fetch":
                    turns.note(event.removeprefix("on_"))
                emit(event, *values)

            monkeypatch.setattr(reader.cluster.hooks, "emit", observed)
            (consumer,) = reader.read("orders", 0)

            async def read() -> None:
                async for _ in consumer:
                    turns.note("record")

            reading = asyncio.create_task(read())
            for _ in range(20):
                await asyncio.sleep(0.1)
                fill(brokers, "orders", 0, batches=1, size=size)
            await asyncio.sleep(0.1)
            reading.cancel()
            await asyncio.wait([reading])
    assert turns.events.count("record 1") == 20
    assert turns.after_responses() == {expected}
