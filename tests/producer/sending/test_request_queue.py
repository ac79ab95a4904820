"""Responses are passed on in the order of the requests, also if some of these had to wait for the connection."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, cast

import pytest

from asyncgroup.errors import ConnectionLost
from asyncgroup.producer.sending.requests import PendingRequest, RequestQueue
from asyncgroup.wire import messages as m

pytestmark = pytest.mark.real


class FakeNetwork:
    """Has a connection once `connected` is set; responses and errors are passed on by the test."""

    def __init__(self) -> None:
        self.connected = asyncio.Event()
        self.in_flight: list[Any] = []

    def try_submit(self, _node: int, _cls: object, _build: object, on_response: Any, **_options: Any) -> bool:
        if self.connected.is_set():
            self.in_flight.append(on_response)
        return self.connected.is_set()

    async def submit(
        self, _node: int, _cls: object, _build: object, on_response: Any, **_options: Any
    ) -> None:
        await self.connected.wait()
        self.in_flight.append(on_response)


class Outcome:
    def __init__(self) -> None:
        self.ended: list[tuple[PendingRequest, object]] = []

    def on_response(
        self, request: PendingRequest, response: m.ProduceResponse | None, error: Exception | None
    ) -> None:
        self.ended.append((request, response or error))

    def on_oneway_sent(self, request: PendingRequest) -> None:
        raise AssertionError(request)

    def on_failure(self, request: PendingRequest, error: Exception) -> None:
        raise AssertionError(request) from error


async def test_responses_to_requests_that_waited_and_that_did_not() -> None:
    network, outcome, tasks = FakeNetwork(), Outcome(), list[asyncio.Task[None]]()

    def spawn(function: Any, *args: Any, name: str) -> None:
        work: Coroutine[Any, Any, None] = function(*args)
        tasks.append(asyncio.create_task(work, name=name))

    queue = RequestQueue(cast("Any", network), outcome, lambda *_: m.ProduceRequest(), spawn, is_oneway=False)
    requests = [PendingRequest(0, [], {}, highest=number) for number in range(3)]
    queue.send(requests[0])
    queue.send(requests[1])
    await asyncio.sleep(0)
    network.connected.set()
    await asyncio.wait(tasks)
    queue.send(requests[2])
    assert len(network.in_flight) == 3
    # received together, in one turn of the loop
    lost = ConnectionLost("the broker closed the connection")
    response = m.ProduceResponse()
    for on_response, result in zip(network.in_flight, [response, response, None], strict=True):
        on_response(result, lost if result is None else None)
    assert outcome.ended == list(zip(requests, [response, response, lost], strict=True))
