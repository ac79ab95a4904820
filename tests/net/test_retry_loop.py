"""RetryLoop: limits by count and by time, pauses, progress, and waits that end early."""

from __future__ import annotations

import ast
import asyncio
import itertools
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

import asyncgroup
from asyncgroup.net.backoff import JITTER, RetryBackoff, RetryLoop
from asyncgroup.testing import run_virtual

PACKAGE = Path(asyncgroup.__file__).parent

BASES = st.floats(0.001, 2)
FACTORS = st.floats(1, 50)
SEEDS = st.integers(0, 2**32)


class Refused(Exception):
    pass


def loop_of(base: float = 0.1, limit: float = 2.0, seed: int = 1, **limits: Any) -> RetryLoop:
    return RetryLoop(RetryBackoff(base, limit, random.Random(seed)), **limits)


def time() -> float:
    return asyncio.get_running_loop().time()


async def fail_until_over(retry: RetryLoop) -> list[float]:
    """Fail until no attempt is left; return the times of the attempts since the first one."""
    began, attempts = time(), []
    while True:
        attempts.append(time() - began)
        if not retry.failed():
            return attempts
        await retry.wait()


# --- the pause ----------------------------------------------------------------------------------------------------------


@given(BASES, FACTORS, SEEDS, st.floats(0.001, 10), st.integers(1, 12))
def test_pauses_are_those_of_the_backoff_up_to_the_longest(
    base: float, factor: float, seed: int, longest: float, failures: int
) -> None:
    same = RetryBackoff(base, base * factor, random.Random(seed))
    retry = loop_of(base, base * factor, seed, longest=longest)
    for number in range(failures):
        middle = min(base * 2.0**number, base * factor)
        assert retry.failed()
        assert retry.seconds == min(same.next(), longest)
        assert retry.seconds <= longest
        assert retry.seconds == longest or (1 - JITTER) * middle <= retry.seconds <= (1 + JITTER) * middle
    assert (retry.failures, retry.tries) == (failures, failures)


@given(BASES, SEEDS, st.lists(st.booleans(), max_size=6))
def test_a_wait_lasts_as_long_as_the_pause_that_was_chosen(
    base: float, seed: int, chosen: list[bool]
) -> None:
    """A wait without `failed` chooses its own pause, which is not that of the failure before."""

    async def story() -> None:
        same, retry = RetryBackoff(base, 60.0, random.Random(seed)), loop_of(base, 60.0, seed)
        for is_chosen in chosen:
            if is_chosen:
                assert retry.failed()
            began = time()
            assert not await retry.wait()
            assert time() - began == pytest.approx(same.next(), abs=1e-6)
        assert (retry.failures, retry.tries) == (len(chosen), sum(chosen))

    run_virtual(story())


def test_without_a_random_generator_there_is_no_jitter() -> None:
    retry = RetryLoop(RetryBackoff(0.1, 1.6, None))
    assert [retry.next() for _ in range(6)] == [0.1, 0.2, 0.4, 0.8, 1.6, 1.6]


@given(SEEDS, st.integers(1, 8), st.integers(1, 8))
def test_progress_makes_pauses_short_again_but_gives_no_try_back(seed: int, before: int, after: int) -> None:
    retry = loop_of(0.1, 100.0, seed, retries=before + after)
    assert all(retry.failed() for _ in range(before))
    retry.reset()
    assert retry.failures == 0
    for number in range(after):
        assert retry.failed()
        assert (1 - JITTER) * 0.1 * 2**number <= retry.seconds <= (1 + JITTER) * 0.1 * 2**number
    assert not retry.failed()


# --- the limits ---------------------------------------------------------------------------------------------------------


@given(st.integers(0, 20), st.lists(st.booleans(), max_size=40))
def test_only_counted_failures_use_up_the_retries(retries: int, counted: list[bool]) -> None:
    retry, tries = loop_of(retries=retries), 0
    for number, counts in enumerate(counted):
        assert retry.is_used_up == (tries >= retries)
        assert retry.failures == number
        tries += counts
        if tries > retries:
            seconds = retry.seconds
            assert not retry.failed(counted=counts)
            # no random number is drawn for a pause that does not follow
            assert (retry.seconds, retry.failures) == (seconds, number)
            return
        assert retry.failed(counted=counts)
        assert retry.tries == tries


@given(BASES, FACTORS, SEEDS, st.floats(0, 30))
def test_no_pause_ends_after_the_deadline(base: float, factor: float, seed: int, timeout: float) -> None:
    async def story() -> None:
        same = RetryBackoff(base, base * factor, random.Random(seed))
        attempts = await fail_until_over(loop_of(base, base * factor, seed, timeout=timeout))
        assert attempts[0] == 0
        assert all(at < timeout for at in attempts[1:])
        assert [later - at for at, later in itertools.pairwise(attempts)] == pytest.approx(
            [same.next() for _ in attempts[1:]], abs=1e-6
        )
        # the next pause would have been too long
        assert attempts[-1] + same.next() >= timeout - 1e-6

    run_virtual(story())


@given(BASES, FACTORS, SEEDS, st.floats(0.001, 30))
def test_a_pause_that_is_cut_leaves_an_attempt_at_the_deadline(
    base: float, factor: float, seed: int, timeout: float
) -> None:
    async def story() -> None:
        retry = loop_of(base, base * factor, seed, timeout=timeout, cuts_pause=True)
        attempts = await fail_until_over(retry)
        assert attempts[-1] == pytest.approx(timeout, abs=1e-6)
        assert all(at < timeout for at in attempts[:-1])

    run_virtual(story())


def test_the_deadline_may_be_moved() -> None:
    async def story() -> None:
        retry = loop_of(1.0, 1.0, timeout=0.5)
        assert not retry.failed()
        retry.deadline = time() + 3.0
        assert retry.left == pytest.approx(3.0)
        assert len(await fail_until_over(retry)) in (3, 4)

    run_virtual(story())


def test_without_limits_it_never_ends() -> None:
    retry = loop_of()
    assert all(retry.failed() for _ in range(10_000))
    assert retry.seconds <= 2.0 * (1 + JITTER)


@given(st.integers(0, 6))
def test_a_pause_raises_the_error_of_the_last_attempt(retries: int) -> None:
    async def story() -> None:
        retry, errors = loop_of(retries=retries), [Refused(str(number)) for number in range(retries + 1)]
        with pytest.raises(Refused, match=f"^{retries}$") as raised:
            for error in errors:
                await retry.pause(error)
        assert raised.value is errors[-1]

    run_virtual(story())


# --- ends of a wait -----------------------------------------------------------------------------------------------------


@given(st.floats(0.001, 3))
def test_an_event_ends_the_wait_early(after: float) -> None:
    async def story() -> None:
        retry, event, began = loop_of(1.0, 1.0), asyncio.Event(), time()
        asyncio.get_running_loop().call_later(after, event.set)
        assert retry.failed()
        is_set = await retry.wait(event)
        assert is_set == event.is_set()
        assert time() - began == pytest.approx(min(after, retry.seconds), abs=1e-6)
        if is_set:
            assert await retry.wait(event)

    run_virtual(story())


@pytest.mark.parametrize("with_event", [False, True])
def test_a_wait_can_be_canceled_and_the_next_one_has_a_pause_of_its_own(with_event: bool) -> None:
    async def story() -> None:
        retry, began = loop_of(1.0, 8.0), time()
        waiting = asyncio.ensure_future(retry.wait(asyncio.Event() if with_event else None))
        await asyncio.sleep(0.1)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert time() - began == pytest.approx(0.1)
        assert retry.failures == 1
        await retry.wait()
        assert 0.1 + 1.6 <= time() - began <= 0.1 + 2.4

    run_virtual(story())


def test_a_pause_of_zero_seconds_lets_other_tasks_run() -> None:
    async def story() -> list[str]:
        order: list[str] = []
        asyncio.get_running_loop().call_soon(order.append, "other")
        await loop_of(0.0, 0.0).wait()
        order.append("loop")
        return order

    assert run_virtual(story()) == ["other", "loop"]


# --- one of its kind ----------------------------------------------------------------------------------------------------


def waits_for_next(source: str) -> list[int]:
    """Lines on which the result of a `next()` is waited for: a pause beside RetryLoop."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("sleep", "wait_within")):
            inner = [one for argument in node.args for one in ast.walk(argument)]
            if any(isinstance(one, ast.Call) and ast.unparse(one).endswith(".next()") for one in inner):
                found.append(node.lineno)
    return found


def test_no_other_file_waits_for_a_backoff_or_has_a_jitter() -> None:
    assert waits_for_next("await asyncio.sleep(min(backoff.next(), left()))") == [1]
    assert waits_for_next("await wait_within(event, retry.next())") == [1]
    sources = {path: path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py")}
    del sources[PACKAGE / "net" / "backoff.py"]
    assert len(sources) > 300
    # parsing every file takes a second
    places = {
        path.relative_to(PACKAGE): waits_for_next(source)
        for path, source in sources.items()
        if ".next()" in source
    }
    assert places
    assert {path: lines for path, lines in places.items() if lines} == {}
    assert [path for path, source in sources.items() if "JITTER" in source] == []
