"""Faults on request: what should go wrong, with which request, how often.

    cluster.faults.on("Heartbeat", group="orders").error(ErrorCode.NOT_COORDINATOR)
    cluster.faults.on("Fetch", node=2, nth=3).delay(1.5)
    held = cluster.faults.on("JoinGroup", client_id="b").hold()
    ...
    held.release()

A fault hits once unless `times` says otherwise. Its actions combine: what happens before the request is
handled (`hold`, `delay`, `disconnect("before")`, `error`) and what happens to the answer (`drop`,
`disconnect`, `throttle`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, Literal, Self, TypeAlias
from uuid import UUID

from asyncgroup.broker.context import RequestContext
from asyncgroup.error_codes import ErrorCode
from asyncgroup.errors import UsageError
from asyncgroup.wire.protocol import API_BY_NAME

__all__ = ["Cut", "Fault", "Faults"]

Cut: TypeAlias = Literal["before", "after", "mid-frame"]
"""When a connection is cut: before the request is handled, instead of the answer, or in the middle of it."""

Names: TypeAlias = Callable[[RequestContext, Any], Iterable[str]]


class Fault:
    """One thing to go wrong. `hits` counts how often it did; without an action it only counts.

    Made by `Faults.on`. `times=None` hits from the nth matching request on without end.
    """

    def __init__(self, matches: Callable[[RequestContext, Any], bool], nth: int, times: int | None) -> None:
        self.hits = 0
        self.code: ErrorCode | None = None
        self.topic: str | None = None
        self.seconds = 0.0
        self.cut: Cut | None = None
        self.dropped = False
        self.throttle_ms = 0
        self._matches = matches
        self._nth = nth
        self._times = times
        self._seen = 0
        self._gate: asyncio.Event | None = None
        self._hit_waiters: list[tuple[int, asyncio.Future[None]]] = []
        self._description = ""

    def __repr__(self) -> str:
        return f"<Fault on {self._description}, {self.hits} hits>"

    # -- actions ---------------------------------------------------------------------------------------------

    def error(self, code: int) -> Self:
        """Answer with this error code and don't handle the request.

        With `topic=` only that topic's partitions get it and the others are served; otherwise all that is
        asked for.
        """
        self.code = ErrorCode(code)
        return self

    def delay(self, seconds: float) -> Self:
        """Handle the request so much later; others on its connection wait behind it."""
        self.seconds = seconds
        return self

    def hold(self) -> Self:
        """Park the request until `release()`."""
        self._gate = asyncio.Event()
        return self

    def release(self) -> None:
        """Let the requests that `hold` parked go on, and later ones pass."""
        if self._gate is not None:
            self._gate.set()

    def drop(self) -> Self:
        """Handle the request but never answer; the connection stays open and stuck."""
        self.dropped = True
        return self

    def disconnect(self, when: Cut = "before") -> Self:
        """Cut the connection."""
        self.cut = when
        return self

    def throttle(self, milliseconds: int) -> Self:
        """Answer with this throttle time, and read nothing more from the connection for as long (KIP-219)."""
        self.throttle_ms = milliseconds
        return self

    # -- watching --------------------------------------------------------------------------------------------

    async def wait_hit(self, hits: int = 1) -> None:
        """Wait until the fault has been hit so often."""
        if self.hits < hits:
            future = asyncio.get_running_loop().create_future()
            self._hit_waiters.append((hits, future))
            await future

    def takes(self, context: RequestContext, request: Any) -> bool:
        """Whether this request is hit; counts it."""
        if self._times is not None and self.hits >= self._times:
            return False
        if not self._matches(context, request):
            return False
        self._seen += 1
        if self._seen < self._nth:
            return False
        self.hits += 1
        for hits, future in self._hit_waiters:
            if hits <= self.hits and not future.done():
                future.set_result(None)
        return True

    async def before(self) -> None:
        """The waiting that comes before the request is handled."""
        if self._gate is not None:
            await self._gate.wait()
        if self.seconds > 0:
            await asyncio.sleep(self.seconds)

    def describe(self, description: str) -> Self:
        """Name the fault for its repr."""
        self._description = description
        return self


class Faults:
    """The faults of a cluster. They are asked in the order in which they were made; the first that applies
    acts.
    """

    def __init__(self, topics_of: Names) -> None:
        self._faults: list[Fault] = []
        self._topics_of = topics_of

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
        nth: int = 1,
        times: int | None = 1,
    ) -> Fault:
        """A new fault for requests that fit everything named; say what happens by its methods.

        `api` is Kafka's name (`Fetch`, `JoinGroup`, …; UsageError for an unknown one), `nth` counts the
        requests that fit from 1, `times` says how many are hit from there (None: all).
        """
        if api is not None and api not in API_BY_NAME:
            raise UsageError(f"no API is called {api!r}; these are: {', '.join(sorted(API_BY_NAME))}")

        def matches(context: RequestContext, request: Any) -> bool:
            return (
                (api is None or context.api == api)
                and (node is None or context.node_id == node)
                and (client_id is None or context.client_id == client_id)
                and (group is None or group in groups_of(request))
                and (topic is None or topic in self._topics_of(context, request))
            )

        named = {"node": node, "topic": topic, "group": group, "client_id": client_id, "nth": nth}
        shown = [f"{key}={value!r}" for key, value in named.items() if value is not None]
        fault = Fault(matches, nth, times).describe(" ".join([api or "any request", *shown]))
        fault.topic = topic
        self._faults.append(fault)
        return fault

    @property
    def unused(self) -> list[Fault]:
        """The faults that were never hit: a test that made them does not test what it says."""
        return [fault for fault in self._faults if fault.hits == 0]

    def clear(self) -> None:
        """Forget all faults; held requests go on."""
        for fault in self._faults:
            fault.release()
        self._faults.clear()

    def take(self, context: RequestContext, request: Any) -> Fault | None:
        """The fault that hits this request."""
        return next((fault for fault in self._faults if fault.takes(context, request)), None)


def groups_of(request: Any) -> list[str]:
    """The group ids that a request names, whatever its message calls them."""
    found = [getattr(request, "group_id", None)]
    if getattr(request, "key_type", None) == 0:  # FindCoordinator for groups
        found += [request.key, *request.coordinator_keys]
    found += getattr(request, "groups_names", [])
    for group in getattr(request, "groups", []):
        found.append(group if isinstance(group, str) else group.group_id)
    return [group for group in found if group]


def topics_of(request: Any, topic_name: Callable[[UUID], str | None]) -> set[str]:
    """The names of the topics that a request names, by name or by id."""
    found: set[str] = set(getattr(request, "topic_names", []))
    listed = list(getattr(request, "topics", None) or []) + list(getattr(request, "topic_data", []))
    listed += getattr(request, "v3_and_below_topics", [])
    for part in ("groups", "transactions", "markers"):
        for one in getattr(request, part, []):
            listed += getattr(one, "topics", None) or []
    for topic in listed:
        name = getattr(topic, "name", None) or getattr(topic, "topic", None)
        topic_id = getattr(topic, "topic_id", None)
        name = name or (topic_name(topic_id) if topic_id is not None else None)
        if name:
            found.add(name)
    return found
