"""One injected fault: which requests it hits, and what it does to them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, Literal, Self, TypeAlias, get_args

from asyncgroup.broker.control.history import Exchange
from asyncgroup.broker.control.message_fields import parse_error_code
from asyncgroup.broker.net.context import RequestContext
from asyncgroup.error_codes import ErrorCode
from asyncgroup.errors import ConfigError
from asyncgroup.wire.message import copy_message

__all__ = ["Cut", "Fault"]

Cut: TypeAlias = Literal["before", "after", "mid-frame"]
"""When the connection is closed: before the request is handled, instead of the response, or in the middle of the
response.
"""

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
"""Request-level errors of Fetch in Kafka (`KafkaApis.handleFetchRequest`, `FetchManager`); all others are per
partition.
"""


class Fault:
    """An injected fault, created by `Faults.on`. `hits` counts the requests hit; without an action it only counts them.

    It hits `times` matching requests beginning with the `nth`; `times=None` hits all from there on.
    """

    def __init__(
        self,
        matches: Callable[[RequestContext, Any], bool],
        nth: int,
        times: int | None,
        on_failure: Callable[[BaseException], object] = lambda _: None,
    ) -> None:
        self.hits = 0
        self.code: ErrorCode | None = None
        self.topic: str | None = None
        self.request_level_only = False
        """Whether `error` accepts only request-level errors of Fetch."""
        self.delay_seconds = 0.0
        self.cut: Cut | None = None
        self.drops_response = False
        self.throttle_ms = 0
        self.disturbs = False
        """Whether the fault has an action that changes what happens, rather than only observing."""
        self._matches = matches
        self._nth = nth
        self._times = times
        self._on_failure = on_failure
        self._seen = 0
        self._gate: asyncio.Event | None = None
        self._observers: list[Callable[[Exchange], object]] = []
        self._mutations: list[Callable[[Any], Any]] = []
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
        """Respond with this error, a code or its name, without handling the request.

        With `topic=`, only that topic's partitions get the error and all others are served; an API that has no errors
        per topic or partition returns it for the whole request. Without `topic=`, everything in the request gets it.
        """
        error_code = parse_error_code(code, "code")
        if self.request_level_only and error_code not in FETCH_ERRORS:
            self.cancel()
            allowed = ", ".join(sorted(each.name for each in FETCH_ERRORS))
            raise ConfigError(
                "code",
                error_code.name,
                f"only with topic=…, as Fetch has this error per partition; a whole Fetch can get {allowed}",
            )
        self.code = error_code
        return self._disturb()

    def delay(self, seconds: float) -> Self:
        """Handle the request `seconds` later; later requests on the same connection wait for it."""
        if seconds < 0:
            raise ConfigError("seconds", seconds, "0 or more")
        self.delay_seconds = seconds
        return self._disturb()

    def hold(self) -> Self:
        """Park the request until `release()`."""
        self._gate = asyncio.Event()
        return self._disturb()

    def release(self) -> None:
        """Resume the requests that `hold` parked; later requests are no longer held."""
        if self._gate is not None:
            self._gate.set()

    def answer(self, make: Callable[[Any], Any]) -> Self:
        """Respond with the message that `make(request)` returns, without handling the request."""
        self._answer = make
        return self._disturb()

    def mutate(self, change: Callable[[Any], Any]) -> Self:
        """Handle the request, then change the response: `change(response)` modifies it in place or returns another one.

        `change` gets a copy, so later responses are not affected. Several mutations are applied in order. A field
        that the API version does not have is dropped when it is encoded; if the field may not be dropped, the
        connection is closed.
        """
        self._mutations.append(change)
        return self._disturb()

    def drop(self) -> Self:
        """Handle the request but never respond; the connection stays open, and later requests on it are not handled."""
        self.drops_response = True
        return self._disturb()

    def disconnect(self, when: Cut = "before") -> Self:
        """Close the connection, at the time given by `when` (see `Cut`)."""
        if when not in get_args(Cut):
            raise ConfigError("when", when, " or ".join(map(repr, get_args(Cut))))
        self.cut = when
        return self._disturb()

    def throttle(self, milliseconds: int) -> Self:
        """Respond with this throttle time, and mute the connection for as long (KIP-219).

        Raise ConfigError unless it is a whole number from 0 to 2147483647.
        """
        if type(milliseconds) is not int or not 0 <= milliseconds < 2**31:
            self.cancel()
            raise ConfigError("milliseconds", milliseconds, "a whole number from 0 to 2147483647")
        self.throttle_ms = milliseconds
        return self._disturb()

    def observe(self, see: Callable[[Exchange], object]) -> Self:
        """Call `see(exchange)` when a request is hit, before anything else happens to it.

        The exchange holds the request, and later its response. An exception raised by `see`, such as a failed
        `assert`, is raised again by the cluster's exit.
        """
        self._observers.append(see)
        return self

    def optional(self) -> Self:
        """Do not fail the test if the fault is never hit."""
        self._optional = True
        return self

    def cancel(self) -> None:
        """Withdraw the fault: it hits no more requests, and those that it holds continue."""
        self._cancelled = True
        self.release()

    def _disturb(self) -> Self:
        self.disturbs = True
        return self

    # -- hits ------------------------------------------------------------------------------------------------

    @property
    def is_unused(self) -> bool:
        """Whether the fault was never hit, and is neither optional nor cancelled."""
        return self.hits == 0 and not self._optional and not self._cancelled

    async def wait_hit(self, hits: int = 1) -> None:
        """Wait until the fault has been hit `hits` times."""
        if self.hits < hits:
            future = asyncio.get_running_loop().create_future()
            self._hit_waiters.append((hits, future))
            await future

    # -- called by the broker ----------------------------------------------------------------------------------

    def try_hit(self, context: RequestContext, request: Any, *, already_disturbed: bool = False) -> bool:
        """Count the request if it matches, and return whether it is hit.

        `already_disturbed`: another fault already acts on the request, so this one hits it only if its sole action is
        `observe`, or if it has none.
        """
        exhausted = self._times is not None and self.hits >= self._times
        if exhausted or self._cancelled or not self._matches_request(context, request):
            return False
        self._seen += 1
        if self._seen < self._nth or (already_disturbed and self.disturbs):
            return False
        self.hits += 1
        for hits, future in self._hit_waiters:
            if hits <= self.hits and not future.done():
                future.set_result(None)
        return True

    def _matches_request(self, context: RequestContext, request: Any) -> bool:
        try:
            return self._matches(context, request)
        except Exception as error:  # noqa: BLE001  the test's own `where`; raised again by the cluster's exit
            self._on_failure(error)
            return False

    def notify_observers(self, exchange: Exchange) -> None:
        """Call the observers; their exceptions are kept for the cluster's exit, as no client could report them."""
        for see in self._observers:
            try:
                see(exchange)
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException as error:  # noqa: BLE001  pytest.fail() does not raise an Exception
                self._on_failure(error)

    async def wait_before(self) -> None:
        """Wait while the request is held, then for its delay."""
        if self._gate is not None:
            await self._gate.wait()
        if self.delay_seconds > 0:
            await asyncio.sleep(self.delay_seconds)

    @property
    def has_answer(self) -> bool:
        """Whether the response comes from `answer` instead of the broker."""
        return self._answer is not None

    def make_answer(self, request: Any) -> Any:
        """Return the fault's response to `request`."""
        assert self._answer is not None
        return self._call_user_code(self._answer, request)

    def apply_mutations(self, response: Any) -> Any:
        """Return a copy of the response with all mutations applied; the handler's own response may be shared."""
        if self._mutations or self.throttle_ms:
            response = copy_message(response)
        for change in self._mutations:
            other = self._call_user_code(change, response)
            response = response if other is None else copy_message(other)
        return response

    def _call_user_code(self, function: Callable[[Any], Any], argument: Any) -> Any:
        try:
            return function(argument)
        except BaseException as error:
            self._on_failure(error)
            raise

    def describe(self, description: str) -> Self:
        """Set the description shown in the repr."""
        self._description = description
        return self
