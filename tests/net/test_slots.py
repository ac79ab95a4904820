"""Slots: a semaphore whose slots can also be taken without waiting."""

from __future__ import annotations

import asyncio

import pytest

from asyncgroup.net.slots import Slots

pytestmark = pytest.mark.virtual


async def turn() -> None:
    await asyncio.sleep(0)


async def test_no_slot_is_taken_before_those_who_wait() -> None:
    slots = Slots(1)
    assert slots.try_take()
    assert not slots.try_take()
    order: list[int] = []

    async def take(number: int) -> None:
        await slots.take()
        order.append(number)

    tasks = [asyncio.create_task(take(number)) for number in range(2)]
    await turn()
    assert repr(slots) == "<Slots 0 free, 2 callers waiting>"
    slots.release()
    assert not slots.try_take()
    await turn()
    assert order == [0]
    slots.release()
    await asyncio.gather(*tasks)
    assert order == [0, 1]
    slots.release()
    assert slots.try_take()


@pytest.mark.parametrize("is_granted", [False, True])
async def test_a_cancelled_caller_leaves_its_slot_to_the_next(is_granted: bool) -> None:
    slots = Slots(1)
    await slots.take()
    first, second = asyncio.create_task(slots.take()), asyncio.create_task(slots.take())
    await turn()
    if is_granted:
        slots.release()
    first.cancel()
    await turn()
    assert first.cancelled() or first.cancelling()
    if not is_granted:
        slots.release()
    await second
    assert not slots.try_take()
    slots.release()
    assert slots.try_take()


async def test_a_slot_is_given_back_in_the_turn_in_which_a_waiting_caller_is_cancelled() -> None:
    slots = Slots(1)
    assert slots.try_take()
    waiting = asyncio.create_task(slots.take())
    await turn()
    waiting.cancel()
    slots.release()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert slots.try_take()
