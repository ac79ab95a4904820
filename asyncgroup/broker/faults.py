"""Faults on request: what should go wrong, with which request, how often.

    cluster.faults.on("Heartbeat", group="orders").error(ErrorCode.NOT_COORDINATOR)
    cluster.faults.on("Fetch", node=2, nth=3).delay(1.5)
    held = cluster.faults.on("JoinGroup", client_id="b").hold()
    ...
    held.release()

A fault hits once unless `times` says otherwise. Its actions combine: what happens before the request is
handled (`hold`, `delay`, `disconnect("before")`, `error`, `answer`) and what happens to the answer (`mutate`,
`drop`, `disconnect`, `throttle`). One that only watches (`observe`, or no action at all) takes no request away
from the others.

A fault that was never hit tests nothing: the cluster's exit raises `UnusedFaults`, unless the fault is
`optional()` or was taken back by `cancel()` or `clear()`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from asyncgroup.broker.context import RequestContext
from asyncgroup.broker.errors import UnusedFaults
from asyncgroup.broker.fault import Cut, Fault
from asyncgroup.broker.history import Exchange
from asyncgroup.broker.named import groups_of
from asyncgroup.errors import ConfigError, UsageError
from asyncgroup.wire.protocol import API_BY_NAME

__all__ = ["Cut", "Fault", "Faults"]

Names: TypeAlias = Callable[[RequestContext, Any], Iterable[str]]


class Faults:
    """The faults of a cluster. They are asked in the order in which they were made; the first that applies
    acts.
    """

    def __init__(self, topics_of: Names) -> None:
        self._faults: list[Fault] = []
        self._topics_of = topics_of
        self._failures: list[BaseException] = []
        self.strict = False
        """Whether errors are refused that Kafka has no answer for; the fixtures and `KafkaServer` do."""

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
        """A new fault for requests that fit everything named; say what happens by its methods: `error`, `delay`,
        `hold`, `drop`, `disconnect`, `throttle`, `answer`, `mutate`, `observe`, and `optional`; see `Fault`.

        `api` is Kafka's name (`Fetch`, `JoinGroup`, …; UsageError for an unknown one), `where` looks at the
        request message itself. `nth` counts the requests that fit from 1, `times` says how many are hit from
        there (None: all). Every fault counts for itself, whether or not another one acts.
        """
        if api is not None and api not in API_BY_NAME:
            raise UsageError(f"no API is called {api!r}; these are: {', '.join(sorted(API_BY_NAME))}")
        if nth < 1:
            raise ConfigError("nth", nth, "1 for the first request that fits, or more")
        if times is not None and times < 1:
            raise ConfigError("times", times, "1 or more, or None for all")

        def matches(context: RequestContext, request: Any) -> bool:
            return (
                (api is None or context.api == api)
                and (node is None or context.node_id == node)
                and (client_id is None or context.client_id == client_id)
                and (group is None or group in groups_of(request))
                and (topic is None or topic in self._topics_of(context, request))
                and (where is None or bool(where(request)))
            )

        named = {"node": node, "topic": topic, "group": group, "client_id": client_id, "nth": nth}
        shown = [f"{key}={value!r}" for key, value in named.items() if value is not None]
        fault = Fault(matches, nth, times, self._failures.append).describe(
            " ".join([api or "any request", *shown])
        )
        fault.topic = topic
        fault.only_of_request = self.strict and api == "Fetch" and topic is None
        self._faults.append(fault)
        return fault

    @property
    def unused(self) -> list[Fault]:
        """The faults that were never hit: a test that made them does not test what it says."""
        return [fault for fault in self._faults if fault.owes_hit]

    def clear(self) -> None:
        """Forget all faults, unused ones too; held requests go on."""
        for fault in self._faults:
            fault.release()
        self._faults.clear()

    def check(self) -> None:
        """Raise what is wrong with the test itself: the first error of its own `observe`, `mutate`, `answer` or
        `where` functions, or else UnusedFaults where a fault was never hit.
        """
        if self._failures:
            raise self._failures[0]
        if unused := self.unused:
            raise UnusedFaults([repr(fault) for fault in unused])

    # -- what the broker asks ----------------------------------------------------------------------------------

    def take(self, context: RequestContext, request: Any, exchange: Exchange) -> Fault | None:
        """The fault that disturbs this request; those that only watch have seen it."""
        chosen = None
        for fault in self._faults:
            if fault.takes(context, request, spare=chosen is not None):
                fault.show(exchange)
                if fault.disturbs:
                    chosen = fault
        return chosen
