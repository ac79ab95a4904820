"""Blocking handlers: `in_thread` makes a handler of a plain function, for the claims of a group and for a work queue."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, overload

from asyncgroup.checks import is_async, signature_error
from asyncgroup.errors import ConfigError
from asyncgroup.thread_function import ThreadFunction

if TYPE_CHECKING:
    from asyncgroup.group.sessions.claim import Claim
    from asyncgroup.group.sessions.session import Session
    from asyncgroup.group.sessions.threads import ThreadClaim
    from asyncgroup.workqueue.delivery import Delivery

__all__ = ["in_thread"]

_ALLOWED = "a plain function (session, claim), or (delivery) for a work queue"


@overload
def in_thread(
    function: Callable[[Session, ThreadClaim], object],
) -> Callable[[Session, Claim], Awaitable[None]]: ...
@overload
def in_thread(function: Callable[[Delivery], object]) -> Callable[[Delivery], Awaitable[None]]: ...
def in_thread(function: Callable[..., object]) -> Callable[..., Awaitable[None]]:
    """Return a handler that runs a plain function in a worker thread: `function(session, claim)`, or `function(delivery)`.

    For a group, as in `group.run(topics, in_thread(function))`: one thread for each claim, which the function reads as a
    ThreadClaim. It must return when the iterator of its claim ends. Session is not thread-safe: the function may read its
    attributes, but not call its methods. To commit without `auto_commit`, call `anyio.from_thread.run(session.commit)`, which
    runs it on the event loop.

    For a work queue, as in `queue.run(in_thread(function))`: as many threads as the queue has handlers (`concurrency`). The
    function may read the delivery; to call a method of it that waits, use `anyio.from_thread.run(delivery.reject, "reason")`.

    A thread cannot be cancelled: the function is waited for when its claim or queue ends, and after an ack timeout. Raises
    ConfigError for an async function, which needs no thread, and for one with other arguments.
    """
    if not callable(function) or is_async(function):
        raise ConfigError("in_thread", function, _ALLOWED)
    error = signature_error(function, 2)
    if error is not None and signature_error(function, 1) is not None:
        raise ConfigError("in_thread", function, f"{_ALLOWED} ({error})")
    return ThreadFunction(function)
