"""Fault injection: make chosen requests fail, wait or lose their responses.

    cluster.faults.on("Heartbeat", group="orders").error(ErrorCode.NOT_COORDINATOR)
    cluster.faults.on("Fetch", node=2, nth=3).delay(1.5)
    held = cluster.faults.on("JoinGroup", client_id="b").hold()
    ...
    held.release()

A fault hits one request unless `times` is given. Its actions can be combined: some act before the request is handled
(`hold`, `delay`, `disconnect("before")`, `error`, `answer`), others on the response (`mutate`, `drop`, `disconnect`,
`throttle`). A fault that only observes (`observe`, or no action at all) does not stop other faults from acting.

A fault that was never hit tests nothing: the cluster's exit raises `UnusedFaults`, unless the fault is `optional()` or
was withdrawn by `cancel()` or `clear()`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, Final, Self, TypeAlias, get_args

from asyncgroup.broker.control.injection import Cut, Injection, Injector
from asyncgroup.broker.control.message_fields import group_ids_in, parse_error_code
from asyncgroup.broker.control.recorder import Exchange
from asyncgroup.broker.net.service import RequestContext
from asyncgroup.checks import check_duration_or_zero
from asyncgroup.error_codes import ErrorCode
from asyncgroup.errors import ConfigError, UsageError
from asyncgroup.wire.protocol import API_BY_NAME

__all__ = ["Cut", "Fault", "Faults"]

TopicNames: TypeAlias = Callable[[RequestContext, Any], Iterable[str]]

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

    def __init__(self, injection: Injection, *, request_level_only: bool) -> None:
        self._injection = injection
        self._request_level_only = request_level_only
        """Whether `error` accepts only request-level errors of Fetch."""

    def __repr__(self) -> str:
        return repr(self._injection)

    @property
    def hits(self) -> int:
        """The number of requests hit."""
        return self._injection.hits

    async def wait_hit(self, hits: int = 1) -> None:
        """Wait until the fault has been hit `hits` times."""
        await self._injection.wait_hit(hits)

    # -- actions ---------------------------------------------------------------------------------------------

    def error(self, code: int | str) -> Self:
        """Respond with this error, a code or its name, without handling the request.

        With `topic=`, only that topic's partitions get the error and all others are served; an API that has no errors
        per topic or partition returns it for the whole request. Without `topic=`, everything in the request gets it.
        """
        error_code = parse_error_code(code, "code")
        if self._request_level_only and error_code not in FETCH_ERRORS:
            self.cancel()
            allowed = ", ".join(sorted(each.name for each in FETCH_ERRORS))
            raise ConfigError(
                "code",
                error_code.name,
                f"only with topic=…, as Fetch has this error per partition; a whole Fetch can get {allowed}",
            )
        self._injection.code = error_code
        return self._disturb()

    def delay(self, seconds: float) -> Self:
        """Handle the request `seconds` later; later requests on the same connection wait for it."""
        check_duration_or_zero("seconds", seconds)
        self._injection.delay = seconds
        return self._disturb()

    def hold(self) -> Self:
        """Park the request until `release()`."""
        self._injection.gate = asyncio.Event()
        return self._disturb()

    def release(self) -> None:
        """Resume the requests that `hold` parked; later requests are no longer held."""
        self._injection.release()

    def answer(self, make: Callable[[Any], Any]) -> Self:
        """Respond with the message that `make(request)` returns, without handling the request."""
        self._injection.answer = make
        return self._disturb()

    def mutate(self, change: Callable[[Any], Any]) -> Self:
        """Handle the request, then change the response: `change(response)` modifies it in place or returns another one.

        `change` gets a copy, so later responses are not affected. Several mutations are applied in order. A field
        that the API version does not have is dropped when it is encoded; if the field may not be dropped, the
        connection is closed.
        """
        self._injection.mutations.append(change)
        return self._disturb()

    def drop(self) -> Self:
        """Handle the request but never respond; the connection stays open, and later requests on it are not handled."""
        self._injection.drops_response = True
        return self._disturb()

    def disconnect(self, when: Cut = "before") -> Self:
        """Close the connection, at the time given by `when` (see `Cut`)."""
        if when not in get_args(Cut):
            raise ConfigError("when", when, " or ".join(map(repr, get_args(Cut))))
        self._injection.cut = when
        return self._disturb()

    def throttle(self, milliseconds: int) -> Self:
        """Respond with this throttle time, and mute the connection for as long (KIP-219).

        Raise ConfigError unless it is a whole number from 0 to 2147483647.
        """
        if type(milliseconds) is not int or not 0 <= milliseconds < 2**31:
            self.cancel()
            raise ConfigError("milliseconds", milliseconds, "a whole number from 0 to 2147483647")
        self._injection.throttle_ms = milliseconds
        return self._disturb()

    def observe(self, see: Callable[[Exchange], object]) -> Self:
        """Call `see(exchange)` when a request is hit, before anything else happens to it.

        The exchange holds the request, and later its response. An exception raised by `see`, such as a failed
        `assert`, is raised again by the cluster's exit.
        """
        self._injection.observers.append(see)
        return self

    def optional(self) -> Self:
        """Do not fail the test if the fault is never hit."""
        self._injection.optional = True
        return self

    def cancel(self) -> None:
        """Withdraw the fault: it hits no more requests, and those that it holds continue."""
        self._injection.cancelled = True
        self.release()

    def _disturb(self) -> Self:
        self._injection.disturbs = True
        return self


class Faults:
    """The faults of a cluster. If several match a request, the one created first acts on it."""

    def __init__(self, injector: Injector, topic_names_in: TopicNames) -> None:
        self._injector = injector
        self._topic_names_in = topic_names_in
        self._faults: dict[Injection, Fault] = {}
        self.strict = False
        """Whether errors that Kafka never returns are refused; set by the pytest fixtures and `KafkaServer`."""

    def __repr__(self) -> str:
        return f"<Faults {len(self._injector.injections)}, {len(self.unused)} unused>"

    def __bool__(self) -> bool:
        return bool(self._injector.injections)

    def on(
        self,
        api: str | None = None,
        *,
        node: int | None = None,
        topic: str | None = None,
        group: str | None = None,
        client_id: str | None = None,
        where: Callable[[Any], object] | None = None,
        nth: int = 1,
        times: int | None = 1,
    ) -> Fault:
        """Create a fault for requests that match all arguments given.

        Its methods set what happens: `error`, `delay`, `hold`, `drop`, `disconnect`, `throttle`, `answer`, `mutate`,
        `observe`, and `optional`; see `Fault`.

        `api` is Kafka's name (`Fetch`, `JoinGroup`, …; UsageError for an unknown one); `where` is a predicate on the
        request message. `nth` is the first matching request to hit (from 1), `times` how many are hit from there (None:
        all). Each fault counts for itself, whether or not another one acts.
        """
        if api is not None and api not in API_BY_NAME:
            raise UsageError(f"unknown API {api!r}; the APIs are {', '.join(sorted(API_BY_NAME))}")
        if nth < 1:
            raise ConfigError("nth", nth, "1 (the first matching request) or more")
        if times is not None and times < 1:
            raise ConfigError("times", times, "1 or more, or None for all")

        def matches(context: RequestContext, request: Any) -> bool:
            # the cheap comparisons first; `where` is called only for requests that match everything else
            return (
                (api is None or context.api == api)
                and (node is None or context.node_id == node)
                and (client_id is None or context.client_id == client_id)
                and (group is None or group in group_ids_in(request))
                and (topic is None or topic in self._topic_names_in(context, request))
                and (where is None or bool(where(request)))
            )

        named = {"node": node, "topic": topic, "group": group, "client_id": client_id, "nth": nth}
        shown = [f"{key}={value!r}" for key, value in named.items() if value is not None]
        injection = Injection(
            " ".join([api or "any request", *shown]), matches, nth, times, self._injector.failures.append
        )
        injection.topic = topic
        self._injector.injections.append(injection)
        fault = Fault(injection, request_level_only=self.strict and api == "Fetch" and topic is None)
        self._faults[injection] = fault
        return fault

    @property
    def unused(self) -> list[Fault]:
        """The faults that were never hit though they had to be."""
        return [self._faults[each] for each in self._injector.injections if each.is_unused]

    def clear(self) -> None:
        """Remove all faults, including unused ones; held requests continue."""
        self._injector.clear()
        self._faults.clear()
