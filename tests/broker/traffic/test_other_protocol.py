"""Faults and history for a protocol that is not Kafka's: its messages are dicts, its errors are text."""

from __future__ import annotations

import asyncio
import copy
from dataclasses import dataclass
from typing import Any

import pytest

from asyncgroup.broker import UnusedFaults
from asyncgroup.broker.traffic.fault import RequestFault
from asyncgroup.broker.traffic.history import TrafficHistory
from asyncgroup.broker.traffic.injection import Injection, Injector
from asyncgroup.broker.traffic.matching import RequestFilter, check_counts, request_filter
from asyncgroup.broker.traffic.recorder import RecordedExchange, TrafficRecorder
from asyncgroup.errors import ConfigError


@dataclass
class Command:
    """What the toy broker knows of a request besides its message."""

    api: str
    node_id: int = 1
    client_id: str = "a"
    connection: int = 1
    time: float = 0.0
    api_version: int = 0


class Recorder(TrafficRecorder[RecordedExchange]):
    def _retained_bytes(self, message: Any, frame_bytes: int) -> int:
        return frame_bytes


class History(TrafficHistory[RecordedExchange]):
    def of(self, *apis: str, node: int | None = None, answered: bool | None = None) -> list[RecordedExchange]:
        return list(self._matching(apis, node=node, client_id=None, answered=answered, since=None))

    def _summary(self, exchange: RecordedExchange) -> str:
        return f"{exchange.api} {exchange.request}: {exchange.response}"


class Fault(RequestFault[RecordedExchange]):
    def error(self, text: str) -> Fault:
        return self._fail_with(text)


class ToyBroker:
    """Answers each command with its number, as a broker with faults and a history does."""

    def __init__(self) -> None:
        self.injector: Injector[Injection] = Injector()
        self.recorder = Recorder(RecordedExchange, 100, 1000)
        self.history = History(self.recorder)
        self.closed: list[int] = []
        self._answered = 0

    def on(self, matches: RequestFilter, *, nth: int = 1, times: int | None = 1) -> Fault:
        check_counts(nth, times)
        failures = self.injector.failures.append
        injection = Injection("a command", matches, nth, times, failures, copy.deepcopy)
        self.injector.injections.append(injection)
        return Fault(injection)

    async def call(self, command: Command, message: Any) -> Any:
        exchange = self.recorder.record_request(command, message, 10)
        fault = self.injector.select(command, message, exchange)
        response = await self._respond(fault, message)
        if fault is not None and fault.cut is not None:
            self.closed.append(command.connection)
            response = None
        if response is None or (fault is not None and fault.drops_response):
            return None
        self.recorder.record_response(exchange, response, 20, command.time + 0.5)
        return response

    async def _respond(self, fault: Injection | None, message: Any) -> Any:
        if fault is None:
            return self._number()
        await fault.wait_before()
        if fault.error is not None:
            return {"error": fault.error}
        response = fault.make_answer(message) if fault.answer is not None else self._number()
        return fault.apply_mutations(response)

    def _number(self) -> dict[str, int]:
        self._answered += 1
        return {"number": self._answered}


async def test_errors_answers_changes_and_lost_responses() -> None:
    broker = ToyBroker()
    send = Command("SEND")
    broker.on(request_filter("SEND"), nth=2).error("TopicNotFound")
    broker.on(request_filter("SEND"), nth=3).mutate(lambda response: response.update(seen=True))
    broker.on(request_filter("SEND"), nth=4).answer(lambda request: {"echo": request})
    broker.on(request_filter("SEND"), nth=5).drop()
    broker.on(request_filter("SEND"), nth=6).disconnect("after")
    found = [await broker.call(send, number) for number in range(1, 8)]
    assert found == [
        {"number": 1},
        {"error": "TopicNotFound"},
        {"number": 2, "seen": True},
        {"echo": 4},
        None,
        None,
        {"number": 5},
    ]
    assert broker.closed == [1]
    broker.injector.check()


async def test_a_fault_is_for_requests_that_match_all_that_is_given() -> None:
    broker = ToyBroker()
    matches = request_filter(
        "SEND",
        node=2,
        client_id="b",
        connection=7,
        names=lambda info, message: message["topic"] == "orders",
        where=lambda message: message["size"] > 1,
    )
    fault = broker.on(matches, times=None).error("no")
    right = Command("SEND", 2, "b", 7)
    message = {"topic": "orders", "size": 2}
    for wrong in (
        Command("FLOW", 2, "b", 7),
        Command("SEND", 1, "b", 7),
        Command("SEND", 2, "a", 7),
        Command("SEND", 2, "b", 8),
    ):
        assert "number" in await broker.call(wrong, message)
    assert "number" in await broker.call(right, message | {"topic": "bills"})
    assert "number" in await broker.call(right, message | {"size": 1})
    assert await broker.call(right, message) == {"error": "no"}
    assert fault.hits == 1


async def test_requests_are_delayed_and_held() -> None:
    broker, loop = ToyBroker(), asyncio.get_running_loop()
    began = loop.time()
    broker.on(request_filter("PING")).delay(1.5)
    await broker.call(Command("PING"), None)
    assert loop.time() - began == 1.5
    held = broker.on(request_filter("PING")).hold()
    waiting = asyncio.create_task(broker.call(Command("PING"), None))
    await held.wait_hit()
    await asyncio.sleep(60.0)
    assert not waiting.done()
    held.release()
    assert await waiting == {"number": 2}


async def test_the_history_has_what_was_sent_and_answered_within_its_limits() -> None:
    broker = ToyBroker()
    seen: list[RecordedExchange] = []
    broker.on(request_filter("SEND")).observe(seen.append)
    broker.on(request_filter("FLOW")).drop()
    await broker.call(Command("SEND"), "a")
    await broker.call(Command("FLOW", 2), "b")
    assert seen == [broker.history[0]]
    assert broker.history.of(node=2) == broker.history.of(answered=False) == [broker.history[1]]
    assert broker.history.story() == (
        "     0.000  SEND a: {'number': 1} after 0.500 s\n     0.000  FLOW b: None"
    )
    waiting = asyncio.create_task(broker.history.wait_for("SEND", count=2))
    await asyncio.sleep(0)
    await broker.call(Command("SEND"), "c")
    assert len(await waiting) == 2
    for _ in range(49):
        await broker.call(Command("SEND"), "c")
    assert (len(broker.history), broker.history.bytes, broker.history.dropped) == (33, 990, 19)
    assert "this line 33 times in all" in fold(broker)


def fold(broker: ToyBroker) -> str:
    for exchange in broker.history:
        exchange.response = None
    return broker.history.story(fold=True)


def test_a_fault_that_was_never_hit_is_an_error() -> None:
    broker = ToyBroker()
    broker.on(request_filter("SEND")).error("no").optional()
    broker.on(request_filter("SEND")).error("no").cancel()
    broker.injector.check()
    broker.on(request_filter("SEND")).error("no")
    with pytest.raises(UnusedFaults, match="Fault on a command, 0 hits"):
        broker.injector.check()


@pytest.mark.parametrize(("nth", "times"), [(0, 1), (1, 0)])
def test_counts_that_no_fault_can_have(nth: int, times: int) -> None:
    with pytest.raises(ConfigError):
        ToyBroker().on(request_filter(), nth=nth, times=times)
