"""Handler: the base class of user code that consumes claims."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias, cast

from asyncgroup.checks import is_async, signature_error, wrong_type
from asyncgroup.errors import ConfigError
from asyncgroup.model import TopicPartition

if TYPE_CHECKING:
    from asyncgroup.group.sessions.claim import Claim
    from asyncgroup.group.sessions.claim_source import ClaimSource
    from asyncgroup.group.sessions.session import Session
    from asyncgroup.thread_function import ThreadFunction

__all__ = ["ClaimFunction", "Handler", "HandlerLike", "as_handler"]

ClaimFunction: TypeAlias = "Callable[[Session, Claim], Awaitable[None]]"
"""An async function used as a handler's `consume_claim`."""

HandlerLike: TypeAlias = "Handler | ClaimFunction"
"""The handlers that `consume()` and `run()` accept."""


class Handler:
    """Base class of handlers; only `consume_claim` must be overridden.

    Order of calls in a session:

    1. `setup`, when the first start offsets are known (at once without partitions), then `on_assigned`.
    2. `consume_claim`, once per claim, each in its own task.
    3. When the session ends, the iterators of the claims stop, and the session waits for every `consume_claim`.
    4. `on_revoked`: records can still be marked and committed, as in Java's listener, which is called before partitions
       are revoked. If the membership was lost, so that commits are impossible, `on_lost` instead.
    5. `cleanup`; with `auto_commit` the last commit follows and includes all marks made until then.

    In a cooperative group and by the consumer protocol a session lasts through rebalances. At each of them the claims that are
    revoked end and their marks are committed, then `on_revoked` is called with their partitions; those that are added
    get `on_assigned` and `consume_claim`, as at the start. The other claims go on.

    A partition whose start offset cannot be found yet (it has no leader, or a transaction may still commit another offset)
    does not delay the others: by every protocol it gets `on_assigned` and `consume_claim` later in the session, like one that
    is added by a rebalance. Until then it is in `session.assignment`, but not in `session.claims`.

    Calls are paired: `on_revoked` or `on_lost` is called if `on_assigned` was called with partitions (as in Java),
    `cleanup` if `setup` was called, even if that failed (as in sarama). A session that ends before its first start offsets
    are known calls none of them.
    """

    async def setup(self, session: Session) -> None:
        """Called when a session begins, before any claim is consumed."""

    async def consume_claim(self, session: Session, claim: Claim) -> None:
        """Consume one partition until the claim's iterator ends; returning earlier ends the session for all claims."""
        raise NotImplementedError(f"{type(self).__name__}.consume_claim(session, claim)")

    async def cleanup(self, session: Session) -> None:
        """Called when all claims have ended, before the last commit of their marks."""

    async def on_assigned(self, session: Session, partitions: Sequence[TopicPartition]) -> None:
        """Called with the partitions that are assigned or added, possibly none at the start, before their claims start."""

    async def on_revoked(self, session: Session, partitions: Sequence[TopicPartition]) -> None:
        """Called with the revoked partitions after their claims have ended; marks and commits are still possible."""

    async def on_lost(self, session: Session, partitions: Sequence[TopicPartition]) -> None:
        """Called instead of `on_revoked` if the membership was lost: others may own the partitions; no commits."""

    async def _open(self, session: Session, source: ClaimSource) -> None:
        """For handlers of this package: called when the member has joined, before the start offsets are fetched."""

    async def _close(self, session: Session) -> None:
        """For handlers of this package: called after `cleanup`, also if the session ended before `setup`."""


class _FunctionHandler(Handler):
    """A handler whose `consume_claim` is an async function."""

    def __init__(self, function: ClaimFunction) -> None:
        self._function = function

    async def consume_claim(self, session: Session, claim: Claim) -> None:
        await self._function(session, claim)


class _ThreadHandler(Handler):
    """A handler whose `consume_claim` is a plain function in a thread (`in_thread`)."""

    def __init__(self, function: ThreadFunction) -> None:
        self._function = function

    async def consume_claim(self, session: Session, claim: Claim) -> None:
        from asyncgroup.group.sessions.threads import ThreadClaim

        await self._function(session, ThreadClaim(claim))


def as_handler(handler: object) -> Handler:
    """Return a Handler for a Handler or an async callable `(session, claim)`.

    Raises ConfigError for anything else; for a plain function the message suggests `in_thread`.
    """
    if isinstance(handler, Handler):
        if type(handler).consume_claim is Handler.consume_claim:
            raise wrong_type("handler", handler, "a Handler with a consume_claim(session, claim)")
        for name in ("setup", "consume_claim", "cleanup", "on_assigned", "on_revoked", "on_lost"):
            if not inspect.iscoroutinefunction(getattr(handler, name)):
                raise ConfigError(f"{type(handler).__name__}.{name}", "a plain function", "an `async def`")
        return handler
    if isinstance(handler, type):
        raise ConfigError("handler", handler, "an object, not its class")
    from asyncgroup.thread_function import (
        ThreadFunction,  # it needs asyncio, which importing this module does not load
    )

    if isinstance(handler, ThreadFunction):
        if (error := signature_error(handler, 2)) is not None:
            allowed = f"in_thread(function) with a plain function (session, claim) ({error})"
            raise ConfigError("handler", handler, allowed)
        return _ThreadHandler(handler)
    if is_async(handler):
        return _FunctionHandler(cast("ClaimFunction", handler))
    if callable(handler):
        allowed = "an async function (session, claim); for one that blocks, in_thread(fn)"
        raise ConfigError("handler", handler, allowed)
    allowed = "an object of a subclass of Handler, or an async function (session, claim)"
    raise ConfigError("handler", handler, allowed)
