"""A response is handled and the next fetch is sent in the turn of the event loop that received it."""

from __future__ import annotations

import asyncio

import pytest

from asyncgroup.broker import EmbeddedCluster
from tests.consumer.brokers import client, fill, read

pytestmark = [pytest.mark.asyncio, pytest.mark.virtual(max_virtual_time=600)]


class Turns:
    """A hook object that counts the fetches sent in the turn of a fetch's response."""

    def __init__(self) -> None:
        self.responses = 0
        self.sent_at_once = 0
        self._is_same_turn = False

    def on_response(self, _node: int, api: str, _seconds: float, _size: int) -> None:
        if api == "Fetch":
            self.responses += 1
            self._is_same_turn = True
            asyncio.get_running_loop().call_soon(self._end_turn)

    def on_request(self, _node: int, api: str, _version: int, _size: int) -> None:
        if api == "Fetch" and self._is_same_turn:
            self.sent_at_once += 1

    def _end_turn(self) -> None:
        self._is_same_turn = False


async def test_the_next_fetch_is_sent_in_the_turn_of_the_response(monkeypatch: pytest.MonkeyPatch) -> None:
    """It took five turns: the response woke the lane's task, that the other lane's, and each planned again."""
    async with EmbeddedCluster() as brokers:
        brokers.create_topic("orders", 1)
        async with client(brokers, fetch_max_wait=0.5) as reader:
            turns, emit = Turns(), reader.cluster.hooks.emit

            def observed(event: str, *values: object) -> None:
                if event in ("on_request", "on_response"):
                    getattr(turns, event)(*values)
                emit(event, *values)

            monkeypatch.setattr(reader.cluster.hooks, "emit", observed)
            (consumer,) = reader.read("orders", 0)
            for number in range(20):
                fill(brokers, "orders", 0, batches=1)
                assert await read(consumer, 1) == [number]
            assert turns.responses >= 20
            assert turns.sent_at_once == turns.responses
