"""The loop of attempts and pauses, without a network."""

from __future__ import annotations

import asyncio

import pytest

from asyncgroup.cluster.coordinators import CoordinatorMoved
from asyncgroup.cluster.requests.actions import RequestAction
from asyncgroup.cluster.requests.repeat import repeat, retry_errors
from asyncgroup.cluster.requests.time_limit import within
from asyncgroup.errors import AsyncGroupError, BrokerError, ConnectionLost, ErrorCode, RequestTimedOut
from asyncgroup.net.backoff import RetryBackoff, RetryLoop
from tests.cluster.requests.scene import now

DONE, REPEAT, RETRY, LOOK_UP, FAIL = RequestAction
REFUSED = BrokerError(ErrorCode.GROUP_AUTHORIZATION_FAILED, "g")
LOADING = BrokerError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "g")


def loop_of(seconds: float = 1.0, retries: float = float("inf"), timeout: float | None = None) -> RetryLoop:
    return RetryLoop(RetryBackoff(seconds, seconds, None), retries=retries, timeout=timeout)


class Script:
    """Attempts with given results; errors are raised."""

    def __init__(self, *results: object) -> None:
        self.results = list(results)
        self.times: list[float] = []

    async def __call__(self) -> object:
        self.times.append(now())
        result = self.results.pop(0)
        if isinstance(result, Exception):
            raise result
        return result


@pytest.mark.parametrize("end", [DONE, FAIL])
async def test_attempts_end_with_done_or_fail(end: RequestAction) -> None:
    retry = loop_of()
    script, seen = Script(RETRY, LOOK_UP, REPEAT, end, RETRY), []
    assert await repeat(script, lambda action: action, lambda _: retry, seen.append) is end
    assert script.times == [0, 1, 2, 2]  # no pause after REPEAT
    assert seen == [RETRY, LOOK_UP]


async def test_the_last_result_is_returned_when_no_retry_is_left() -> None:
    retry = loop_of(retries=2)
    script, seen = Script(RETRY, RETRY, LOOK_UP), []
    assert await repeat(script, lambda action: action, lambda _: retry, seen.append) is LOOK_UP
    assert script.times == [0, 1, 2]
    assert seen == [RETRY, RETRY]


async def test_each_result_may_have_a_loop_of_its_own() -> None:
    slow, quick = loop_of(5.0), loop_of(0.5, retries=2)
    script = Script("slow", "quick", "quick", "quick")
    last = await repeat(script, lambda _: RETRY, lambda result: quick if result == "quick" else slow)
    assert last == "quick"
    assert script.times == [0, 5, 5.5, 6]


@pytest.mark.parametrize("result", [RETRY, REPEAT])
async def test_without_a_loop_there_is_one_attempt(result: RequestAction) -> None:
    script = Script(result)
    assert await repeat(script, lambda action: action, lambda _: None) is result


async def test_errors_that_may_pass_are_repeated() -> None:
    script, seen = Script(LOADING, ConnectionLost("cut"), CoordinatorMoved("to node 2"), "found"), []
    assert await retry_errors(script, loop_of(), on_error=seen.append) == "found"
    assert script.times == [0, 1, 2, 2]
    assert [type(error) for error in seen] == [BrokerError, ConnectionLost]


@pytest.mark.parametrize("error", [REFUSED, AsyncGroupError("a final one")])
async def test_a_final_error_is_raised_at_once(error: AsyncGroupError) -> None:
    script = Script(LOADING, error)
    with pytest.raises(type(error)) as raised:
        await retry_errors(script, loop_of())
    assert raised.value is error
    assert script.times == [0, 1]


async def test_what_is_no_error_of_the_package_is_not_repeated() -> None:
    script = Script(ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        await retry_errors(script, loop_of())


async def test_the_last_error_is_raised_at_the_time_limit() -> None:
    script = Script(LOADING, LOADING, ConnectionLost("cut"), "never")
    with pytest.raises(ConnectionLost, match="cut"):
        await retry_errors(script, loop_of(timeout=2.5))
    assert script.times == [0, 1, 2]


async def test_the_caller_may_decide() -> None:
    script = Script(REFUSED, LOADING)
    with pytest.raises(BrokerError, match="LOAD_IN_PROGRESS"):
        await retry_errors(script, loop_of(), decide=lambda error: RETRY if error is REFUSED else FAIL)


async def test_errors_that_are_not_counted_use_up_no_retry() -> None:
    script = Script(LOADING, LOADING, ConnectionLost("one"), LOADING, ConnectionLost("two"), "never")
    with pytest.raises(ConnectionLost, match="two"):
        await retry_errors(script, loop_of(retries=1), is_counted=lambda error: error is not LOADING)
    assert script.times == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("first", "text"),
    [
        ([], "no answer in time"),
        ([LOADING], "no answer in time; before that: g: COORDINATOR_LOAD_IN_PROGRESS (14)"),
    ],
)
async def test_an_attempt_may_be_cut_at_the_deadline(first: list[Exception], text: str) -> None:
    script = Script(*first)

    async def attempt() -> object:
        return await (script() if script.results else asyncio.sleep(60))

    with pytest.raises(RequestTimedOut) as raised:
        await retry_errors(attempt, loop_of(timeout=10), is_cut=True)
    assert str(raised.value) == text
    assert now() == 10


@pytest.mark.parametrize("deadline", [5.0, float("inf")])
async def test_work_within_its_deadline(deadline: float) -> None:
    assert await within(deadline, asyncio.sleep(1, "done")) == "done"


async def test_a_timeout_of_the_work_itself_stays_what_it_is() -> None:
    async def own() -> None:
        async with asyncio.timeout(1):
            await asyncio.sleep(5)

    with pytest.raises(TimeoutError):
        await within(10, own())
    assert now() == 1
