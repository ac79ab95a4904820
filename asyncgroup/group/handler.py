"""What a user writes: a handler of claims."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias, cast

from asyncgroup.errors import ConfigError
from asyncgroup.model import TopicPartition

if TYPE_CHECKING:
    from asyncgroup.group.claim import Claim
    from asyncgroup.group.session import Session

__all__ = ["ClaimFunction", "Handler", "HandlerLike", "as_handler"]

ClaimFunction: TypeAlias = "Callable[[Session, Claim], Awaitable[None]]"
"""An async function that stands for a handler's `consume_claim`."""

HandlerLike: TypeAlias = "Handler | ClaimFunction"
"""What `consume()` and `run()` take."""


class Handler:
    """Base class of handlers; only `consume_claim` must be written.

    Order of calls in a session:

    1. `setup`, when the claims and their start offsets stand; `on_assigned`.
    2. `consume_claim`, once for each claim, each in a task of its own.
    3. When the session ends, the claims' iterators stop, and every `consume_claim` is waited for.
    4. `on_revoked`: marks may still be made and committed, as in Java, whose listener is called before the partitions
       go. Or `on_lost` in its place, when the membership is gone already and nothing can be committed.
    5. `cleanup`; with `auto_commit` the last commit follows it and takes whatever was marked until then.

    They come in pairs: `on_revoked` or `on_lost` if `on_assigned` was called with partitions (as in Java), `cleanup` if
    `setup` was called, also if that failed, as in sarama. A session that ends before its start offsets are known calls
    nothing.
    """

    async def setup(self, session: Session) -> None:
        """Called when a session begins, before any claim is consumed."""

    async def consume_claim(self, session: Session, claim: Claim) -> None:
        """Consume one partition until the claim's iterator ends; returning earlier ends the session for all claims."""
        raise NotImplementedError(f"{type(self).__name__}.consume_claim(session, claim)")

    async def cleanup(self, session: Session) -> None:
        """Called when all claims have ended, before their marks are committed for the last time."""

    async def on_assigned(self, session: Session, partitions: Sequence[TopicPartition]) -> None:
        """The member got partitions, perhaps none; their claims start afterwards."""

    async def on_revoked(self, session: Session, partitions: Sequence[TopicPartition]) -> None:
        """The member has to give partitions back; their claims have ended, marks can still be made and committed."""

    async def on_lost(self, session: Session, partitions: Sequence[TopicPartition]) -> None:
        """The partitions are gone, perhaps handled by others already; nothing can be committed any more."""


class _FunctionHandler(Handler):
    """A handler of one async function."""

    def __init__(self, function: ClaimFunction) -> None:
        self._function = function

    async def consume_claim(self, session: Session, claim: Claim) -> None:
        await self._function(session, claim)


def as_handler(handler: object) -> Handler:
    """A Handler for a Handler or an async callable `(session, claim)`.

    Raises ConfigError for anything else; for a plain function it names `in_thread`.
    """
    if isinstance(handler, Handler):
        if type(handler).consume_claim is Handler.consume_claim:
            raise ConfigError(
                "handler", type(handler).__name__, "a Handler with a consume_claim(session, claim)"
            )
        for name in ("setup", "consume_claim", "cleanup", "on_assigned", "on_revoked", "on_lost"):
            if not inspect.iscoroutinefunction(getattr(handler, name)):
                raise ConfigError(f"{type(handler).__name__}.{name}", "a plain function", "an `async def`")
        return handler
    if isinstance(handler, type):
        raise ConfigError("handler", handler, "an object, not its class")
    call = getattr(handler, "__call__", None)  # noqa: B004  its nature matters, not only that it exists
    if inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(call):
        return _FunctionHandler(cast("ClaimFunction", handler))
    if callable(handler):
        allowed = "an async function (session, claim); for one that blocks, in_thread(fn)"
        raise ConfigError("handler", handler, allowed)
    raise ConfigError("handler", handler, "a Handler, or an async function (session, claim)")
