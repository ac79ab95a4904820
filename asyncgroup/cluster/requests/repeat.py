"""The loop of all requests that are repeated: make an attempt, decide, pause.

Attempts do not raise what is decided about: their result is a value, and a pure function returns the action for it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Generic, NamedTuple, TypeVar, cast

from asyncgroup.cluster.requests.actions import RequestAction, action_of
from asyncgroup.cluster.requests.time_limit import within
from asyncgroup.errors import AsyncGroupError
from asyncgroup.net.backoff import RetryLoop

__all__ = ["repeat", "retry_errors"]

T = TypeVar("T")


async def repeat(
    attempt: Callable[[], Awaitable[T]],
    decide: Callable[[T], RequestAction],
    retry: Callable[[T], RetryLoop | None],
    on_repeat: Callable[[T], object] | None = None,
    *,
    is_counted: Callable[[T], bool] = lambda _: True,
) -> T:
    """Make attempts until `decide` returns DONE or FAIL for a result, or no retry is left; return the last result.

    `retry(result)` returns the loop that limits the attempts after this result, None for no other attempt; a result that
    is not counted uses up none of its retries. `on_repeat(result)` is called before each pause. Raises what an attempt raises.
    """
    while True:
        result = await attempt()
        action = decide(result)
        if action in (RequestAction.DONE, RequestAction.FAIL):
            return result
        limits = retry(result)
        if limits is None:
            return result
        if action is RequestAction.REPEAT:
            continue
        if not limits.failed(counted=is_counted(result)):
            return result
        if on_repeat is not None:
            on_repeat(result)
        await limits.wait()


class _Outcome(NamedTuple, Generic[T]):
    """What an attempt returned or raised."""

    value: T | None = None
    error: AsyncGroupError | None = None


async def retry_errors(
    attempt: Callable[[], Awaitable[T]],
    retry: RetryLoop,
    *,
    decide: Callable[[AsyncGroupError], RequestAction] = action_of,
    is_counted: Callable[[AsyncGroupError], bool] = lambda _: True,
    is_cut: bool = False,
    on_error: Callable[[AsyncGroupError], object] | None = None,
    what: str = "",
) -> T:
    """Return what `attempt()` returns; repeat it after an error that another attempt may mend. Raises the last error.

    With `is_cut`, or if `retry` cuts attempts, no attempt takes longer than until its deadline; then RequestTimedOut is raised, which names
    the request by `what`. `on_error` is called with each error after which there is a pause; one that is not counted uses up none of the retries.
    """
    last: AsyncGroupError | None = None

    async def once() -> _Outcome[T]:
        nonlocal last
        try:
            deadline = retry.deadline if is_cut else retry.cut_at
            return _Outcome(await within(deadline, attempt(), last, what))
        except AsyncGroupError as error:
            last = error
            return _Outcome(error=error)

    def action(made: _Outcome[T]) -> RequestAction:
        return RequestAction.DONE if made.error is None else decide(made.error)

    def report(made: _Outcome[T]) -> None:
        if on_error is not None and made.error is not None:
            on_error(made.error)

    def counts(made: _Outcome[T]) -> bool:
        return made.error is None or is_counted(made.error)

    outcome = await repeat(once, action, lambda _: retry, report, is_counted=counts)
    if outcome.error is not None:
        raise outcome.error
    return cast("T", outcome.value)
