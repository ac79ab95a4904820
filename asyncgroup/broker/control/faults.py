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

from collections.abc import Callable, Iterable
from typing import Any, Final, Never, Self, TypeAlias

from asyncgroup.broker.control.injection import InjectedError, KafkaInjection
from asyncgroup.broker.control.message_fields import group_ids_in, parse_error_code
from asyncgroup.broker.control.recorder import Exchange
from asyncgroup.broker.net.service import RequestContext
from asyncgroup.broker.traffic.fault import RequestFault
from asyncgroup.broker.traffic.injection import Cut, Injector
from asyncgroup.broker.traffic.matching import check_counts, check_no_actions, request_filter
from asyncgroup.error_codes import ErrorCode
from asyncgroup.errors import ConfigError, UsageError
from asyncgroup.wire.apis import API_BY_NAME

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


class Fault(RequestFault[Exchange]):
    """An injected fault, created by `Faults.on`. `hits` counts the requests hit; without an action it only counts them.

    It hits `times` matching requests beginning with the `nth`; `times=None` hits all from there on.
    """

    def __init__(self, injection: KafkaInjection, topic: str | None, *, request_level_only: bool) -> None:
        super().__init__(injection)
        self._kafka = injection
        self._topic = topic
        self._request_level_only = request_level_only
        """Whether `error` accepts only request-level errors of Fetch."""

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
        return self._fail_with(InjectedError(error_code, self._topic))

    def throttle(self, milliseconds: int) -> Self:
        """Respond with this throttle time, and mute the connection for as long (KIP-219).

        Raise ConfigError unless it is a whole number from 0 to 2147483647.
        """
        if type(milliseconds) is not int or not 0 <= milliseconds < 2**31:
            self.cancel()
            raise ConfigError("milliseconds", milliseconds, "a whole number from 0 to 2147483647")
        self._kafka.throttle_ms = milliseconds
        return self._disturb()


class Faults:
    """The faults of a cluster. If several match a request, the one created first acts on it."""

    def __init__(self, injector: Injector[KafkaInjection], topic_names_in: TopicNames) -> None:
        self._injector = injector
        self._topic_names_in = topic_names_in
        self._faults: dict[KafkaInjection, Fault] = {}
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
        **actions: Never,
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
        check_no_actions(Fault, actions)
        check_counts(nth, times)

        def has_names(context: RequestContext, request: Any) -> bool:
            return (group is None or group in group_ids_in(request)) and (
                topic is None or topic in self._topic_names_in(context, request)
            )

        names = None if group is None and topic is None else has_names
        matches = request_filter(api, node=node, client_id=client_id, names=names, where=where)
        named = {"node": node, "topic": topic, "group": group, "client_id": client_id, "nth": nth}
        shown = [f"{key}={value!r}" for key, value in named.items() if value is not None]
        injection = KafkaInjection(
            " ".join([api or "any request", *shown]), matches, nth, times, self._injector.failures.append
        )
        self._injector.injections.append(injection)
        fault = Fault(injection, topic, request_level_only=self.strict and api == "Fetch" and topic is None)
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
