"""One fault: which requests it hits, and what it does to them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, Literal, Self, TypeAlias, get_args

from asyncgroup.broker.context import RequestContext
from asyncgroup.broker.history import Exchange
from asyncgroup.broker.named import error_named
from asyncgroup.error_codes import ErrorCode
from asyncgroup.errors import ConfigError
from asyncgroup.wire.message import copy_message

__all__ = ["Cut", "Fault"]

Cut: TypeAlias = Literal["before", "after", "mid-frame"]
"""When a connection is cut: before the request is handled, instead of the answer, or in the middle of it."""

FETCH_ERRORS: Final = frozenset(
    {
        ErrorCode.UNKNOWN_SERVER_ERROR,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.UNSUPPORTED_VERSION,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    }
)
"""What Kafka answers a Fetch as a whole (`KafkaApis.handleFetchRequest`, `FetchManager`); all else is of a partition."""


class Fault:
    """One thing to go wrong. `hits` counts how often it did; without an action it only counts.

    Made by `Faults.on`. `times=None` hits from the nth matching request on without end.
    """

    def __init__(
        self,
        matches: Callable[[RequestContext, Any], bool],
        nth: int,
        times: int | None,
        failed: Callable[[BaseException], object] = lambda _: None,
    ) -> None:
        self.hits = 0
        self.code: ErrorCode | None = None
        self.topic: str | None = None
        self.only_of_request = False
        """Whether `error` takes those only that a Fetch as a whole is answered with."""
        self.seconds = 0.0
        self.cut: Cut | None = None
        self.dropped = False
        self.throttle_ms = 0
        self.disturbs = False
        """Whether it does anything to a request besides looking at it."""
        self._matches = matches
        self._nth = nth
        self._times = times
        self._failed = failed
        self._seen = 0
        self._gate: asyncio.Event | None = None
        self._watchers: list[Callable[[Exchange], object]] = []
        self._changes: list[Callable[[Any], Any]] = []
        self._answer: Callable[[Any], Any] | None = None
        self._optional = False
        self._cancelled = False
        self._hit_waiters: list[tuple[int, asyncio.Future[None]]] = []
        self._description = ""

    def __repr__(self) -> str:
        state = ", cancelled" if self._cancelled else ""
        return f"<Fault on {self._description}, {self.hits} hits{state}>"

    # -- actions ---------------------------------------------------------------------------------------------

    def error(self, code: int | str) -> Self:
        """Answer with this error, a code or its name, and don't handle the request.

        With `topic=` only that topic's partitions get it and the others are served (an API that cannot say that
        refuses the request); otherwise all that is asked for.
        """
        named = error_named(code, "code")
        if self.only_of_request and named not in FETCH_ERRORS:
            self.cancel()
            allowed = ", ".join(sorted(each.name for each in FETCH_ERRORS))
            raise ConfigError(
                "code",
                named.name,
                f"for a Fetch without topic=…, which answers partitions with it; without: {allowed}",
            )
        self.code = named
        return self._disturb()

    def delay(self, seconds: float) -> Self:
        """Handle the request so much later; others on its connection wait behind it."""
        if seconds < 0:
            raise ConfigError("seconds", seconds, "0 or more")
        self.seconds = seconds
        return self._disturb()

    def hold(self) -> Self:
        """Park the request until `release()`."""
        self._gate = asyncio.Event()
        return self._disturb()

    def release(self) -> None:
        """Let the requests that `hold` parked go on, and later ones pass."""
        if self._gate is not None:
            self._gate.set()

    def answer(self, make: Callable[[Any], Any]) -> Self:
        """Answer with the message that `make(request)` returns and don't handle the request."""
        self._answer = make
        return self._disturb()

    def mutate(self, change: Callable[[Any], Any]) -> Self:
        """Handle the request, then change the response: `change(response)` changes it, or returns another one. The
        response is a copy: later answers and other clusters stay as they are.

        Several are called in turn. A field that the version on the wire does not have is left out, or closes the
        connection where leaving it out would be a lie.
        """
        self._changes.append(change)
        return self._disturb()

    def drop(self) -> Self:
        """Handle the request but never answer; the connection stays open and stuck."""
        self.dropped = True
        return self._disturb()

    def disconnect(self, when: Cut = "before") -> Self:
        """Cut the connection."""
        if when not in get_args(Cut):
            raise ConfigError("when", when, " or ".join(map(repr, get_args(Cut))))
        self.cut = when
        return self._disturb()

    def throttle(self, milliseconds: int) -> Self:
        """Answer with this throttle time, and read nothing more from the connection for as long (KIP-219).

        Raises ConfigError for what is not a whole number from 0 on that fits into 32 bits.
        """
        if type(milliseconds) is not int or not 0 <= milliseconds < 2**31:
            self.cancel()
            raise ConfigError("milliseconds", milliseconds, "a whole number from 0 to 2147483647")
        self.throttle_ms = milliseconds
        return self._disturb()

    def observe(self, see: Callable[[Exchange], object]) -> Self:
        """Call `see(exchange)` when a request is hit, before anything else happens to it.

        The exchange has the request; its response comes in later. What `see` raises (an `assert`, say) is raised
        again by the cluster's exit.
        """
        self._watchers.append(see)
        return self

    def optional(self) -> Self:
        """The fault need not be hit."""
        self._optional = True
        return self

    def cancel(self) -> None:
        """Take the fault back: nothing is hit any more, what it holds goes on."""
        self._cancelled = True
        self.release()

    def _disturb(self) -> Self:
        self.disturbs = True
        return self

    # -- watching --------------------------------------------------------------------------------------------

    @property
    def owes_hit(self) -> bool:
        """Whether it should have been hit and was not."""
        return self.hits == 0 and not self._optional and not self._cancelled

    async def wait_hit(self, hits: int = 1) -> None:
        """Wait until the fault has been hit so often."""
        if self.hits < hits:
            future = asyncio.get_running_loop().create_future()
            self._hit_waiters.append((hits, future))
            await future

    # -- what the broker asks ----------------------------------------------------------------------------------

    def takes(self, context: RequestContext, request: Any, *, spare: bool = False) -> bool:
        """Whether this request is hit; counts it. `spare`: another fault disturbs it already."""
        spent = self._times is not None and self.hits >= self._times
        if spent or self._cancelled or not self._fits(context, request):
            return False
        self._seen += 1
        if self._seen < self._nth or (spare and self.disturbs):
            return False
        self.hits += 1
        for hits, future in self._hit_waiters:
            if hits <= self.hits and not future.done():
                future.set_result(None)
        return True

    def _fits(self, context: RequestContext, request: Any) -> bool:
        try:
            return self._matches(context, request)
        except Exception as error:  # noqa: BLE001  the test's own `where`; raised at the end
            self._failed(error)
            return False

    def show(self, exchange: Exchange) -> None:
        """Call the observers; what they raise is kept for the end, since no client can be told of it."""
        for see in self._watchers:
            try:
                see(exchange)
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException as error:  # noqa: BLE001  pytest.fail() is no Exception
                self._failed(error)

    async def before(self) -> None:
        """The waiting that comes before the request is handled."""
        if self._gate is not None:
            await self._gate.wait()
        if self.seconds > 0:
            await asyncio.sleep(self.seconds)

    @property
    def answers(self) -> bool:
        """Whether it answers itself instead of the broker."""
        return self._answer is not None

    def made_answer(self, request: Any) -> Any:
        """The answer instead of the broker's."""
        assert self._answer is not None
        return self._own(self._answer, request)

    def changed(self, response: Any) -> Any:
        """The response after all changes, which are made to a copy: a handler's answer may be shared."""
        if self._changes or self.throttle_ms:
            response = copy_message(response)
        for change in self._changes:
            other = self._own(change, response)
            response = response if other is None else copy_message(other)
        return response

    def _own(self, function: Callable[[Any], Any], argument: Any) -> Any:
        try:
            return function(argument)
        except BaseException as error:
            self._failed(error)
            raise

    def describe(self, description: str) -> Self:
        """Name the fault for its repr."""
        self._description = description
        return self
