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
from typing import Any, TypeAlias

from asyncgroup.broker.control.fault import Cut, Fault
from asyncgroup.broker.control.history import Exchange
from asyncgroup.broker.control.message_fields import group_ids_in
from asyncgroup.broker.errors import UnusedFaults
from asyncgroup.broker.net.context import RequestContext
from asyncgroup.errors import ConfigError, UsageError
from asyncgroup.wire.protocol import API_BY_NAME

__all__ = ["Cut", "Fault", "Faults"]

TopicNames: TypeAlias = Callable[[RequestContext, Any], Iterable[str]]


class Faults:
    """The faults of a cluster. Of those that match a request, the one created first acts on it."""

    def __init__(self, topic_names_in: TopicNames) -> None:
        self._faults: list[Fault] = []
        self._topic_names_in = topic_names_in
        self._failures: list[BaseException] = []
        self.strict = False
        """Whether errors that Kafka never returns are refused; set by the pytest fixtures and `KafkaServer`."""

    def __repr__(self) -> str:
        return f"<Faults {len(self._faults)}, {len(self.unused)} unused>"

    def __bool__(self) -> bool:
        return bool(self._faults)

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
        fault = Fault(matches, nth, times, self._failures.append).describe(
            " ".join([api or "any request", *shown])
        )
        fault.topic = topic
        fault.request_level_only = self.strict and api == "Fetch" and topic is None
        self._faults.append(fault)
        return fault

    @property
    def unused(self) -> list[Fault]:
        """The faults that were never hit though they had to be."""
        return [fault for fault in self._faults if fault.is_unused]

    def clear(self) -> None:
        """Remove all faults, including unused ones; held requests continue."""
        for fault in self._faults:
            fault.release()
        self._faults.clear()

    def check(self) -> None:
        """Raise the first exception of the test's own functions, or UnusedFaults if a fault was never hit.

        The test's functions are those given to `observe`, `mutate`, `answer` and `where`.
        """
        if self._failures:
            raise self._failures[0]
        if unused := self.unused:
            raise UnusedFaults([repr(fault) for fault in unused])

    # -- called by the broker ----------------------------------------------------------------------------------

    def select(self, context: RequestContext, request: Any, exchange: Exchange) -> Fault | None:
        """Return the fault that acts on this request, after notifying those that only observe."""
        chosen = None
        for fault in self._faults:
            if fault.try_hit(context, request, already_disturbed=chosen is not None):
                fault.notify_observers(exchange)
                if fault.disturbs:
                    chosen = fault
        return chosen
