"""HedgedRequests: the next node is asked after a failure, or after a second without an answer."""

from __future__ import annotations

import asyncio

import anyio
import pytest

from asyncgroup.cluster.connection import Address
from asyncgroup.cluster.hedged_requests import HEDGE_SECONDS, HedgedRequests
from asyncgroup.errors import (
    BrokerError,
    ClosedError,
    ConnectError,
    DecodeError,
    NoBrokersError,
    UnsupportedVersionError,
)

pytestmark = pytest.mark.virtual


def ignore(_node: Address) -> None:
    """Take no note of a slow node."""


NODES = [Address(number, f"kafka{number}", 9092) for number in range(1, 5)]


class Asking:
    """An `ask` function: for each node the seconds before it answers, and the answer or the exception."""

    def __init__(self, **plans: tuple[float, object]) -> None:
        self.plans = {int(name[1:]): plan for name, plan in plans.items()}
        self.asked: list[tuple[int, float]] = []
        self.cancelled: list[int] = []

    async def __call__(self, node: Address) -> object:
        self.asked.append((node.node_id, asyncio.get_running_loop().time()))
        seconds, answer = self.plans.get(node.node_id, (3600.0, None))
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            self.cancelled.append(node.node_id)
            raise
        if isinstance(answer, BaseException):
            raise answer
        return answer


async def test_no_other_node_is_asked_if_the_first_answers() -> None:
    ask = Asking(n1=(0.5, "yes"))
    assert await HedgedRequests(ignore).first_response("X", NODES, ask) == "yes"
    assert ask.asked == [(1, 0.0)]


async def test_after_a_second_without_an_answer_the_next_node_is_asked() -> None:
    ask, lookups = Asking(n2=(0.1, "yes")), HedgedRequests(ignore)
    assert await lookups.first_response("X", NODES, ask) == "yes"
    assert ask.asked == [(1, 0.0), (2, HEDGE_SECONDS)]
    assert ask.cancelled == [1]
    assert not lookups._running


async def test_after_a_failure_the_next_node_is_asked_at_once() -> None:
    ask = Asking(n1=(0.0, ConnectError("one")), n2=(0.0, DecodeError("two")), n3=(0.0, "yes"))
    assert await HedgedRequests(ignore).first_response("X", NODES, ask) == "yes"
    assert [at for _, at in ask.asked] == [0.0, 0.0, 0.0]


async def test_a_slow_node_can_still_answer_first() -> None:
    ask = Asking(n1=(1.5, "slow"), n2=(5.0, "never"))
    assert await HedgedRequests(ignore).first_response("X", NODES, ask) == "slow"
    assert ask.cancelled == [2]


async def test_the_error_lists_the_error_of_every_node() -> None:
    ask = Asking(
        **{f"n{number}": (float(number), ConnectError(f"node {number} is down")) for number in range(1, 5)}
    )
    with pytest.raises(
        NoBrokersError, match=r"no broker answered X: node 1 is down; node 2 .*node 4 is down"
    ):
        await HedgedRequests(ignore).first_response("X", NODES, ask)


async def test_the_cause_is_the_missing_version_if_all_nodes_lack_it() -> None:
    errors = [UnsupportedVersionError(f"node {number} is too old") for number in range(1, 5)]
    plans: dict[str, tuple[float, object]] = {f"n{n}": (0.0, error) for n, error in enumerate(errors, 1)}
    with pytest.raises(NoBrokersError) as caught:
        await HedgedRequests(ignore).first_response("X", NODES, Asking(**plans))
    assert caught.value.__cause__ is errors[0]
    plans["n3"] = (0.0, ConnectError("node 3 is down"))  # it may be newer
    with pytest.raises(NoBrokersError) as caught:
        await HedgedRequests(ignore).first_response("X", NODES, Asking(**plans))
    assert caught.value.__cause__ is None


async def test_any_other_error_is_raised_at_once() -> None:
    ask = Asking(n2=(0.0, BrokerError(30, "group 'g'")))
    with pytest.raises(BrokerError):
        await HedgedRequests(ignore).first_response("X", NODES, ask)
    assert ask.cancelled == [1]
    assert len(ask.asked) == 2


async def test_no_nodes() -> None:
    with pytest.raises(NoBrokersError):
        await HedgedRequests(ignore).first_response("X", [], Asking())


async def test_a_cancelled_caller_leaves_no_task() -> None:
    ask, lookups = Asking(), HedgedRequests(ignore)
    task = asyncio.create_task(lookups.first_response("X", NODES, ask))
    await asyncio.sleep(1.5)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ask.cancelled == [1, 2]
    assert not lookups._running


async def test_a_cancelled_anyio_scope_leaves_no_task() -> None:
    ask, lookups = Asking(), HedgedRequests(ignore)
    with anyio.move_on_after(1.5) as scope:
        await lookups.first_response("X", NODES, ask)
    assert scope.cancelled_caught
    assert ask.cancelled == [1, 2]
    assert not lookups._running


async def test_closing_raises_closed_error_in_callers() -> None:
    lookups = HedgedRequests(ignore)
    task = asyncio.create_task(lookups.first_response("X", NODES, Asking()))
    await asyncio.sleep(0.5)
    await lookups.aclose()
    with pytest.raises(ClosedError):
        await task
