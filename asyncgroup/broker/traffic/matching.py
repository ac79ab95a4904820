"""Which requests a fault hits, by what is known of each besides its message, and by predicates on the message."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from asyncgroup.broker.traffic.recorder import RequestInfo
from asyncgroup.errors import ConfigError

__all__ = ["RequestFilter", "check_counts", "check_no_actions", "request_filter"]

RequestFilter: TypeAlias = Callable[[Any, Any], bool]
"""Returns whether a fault is for a request: called with its RequestInfo and its message."""


def request_filter(
    api: str | None = None,
    *,
    node: int | None = None,
    client_id: str | None = None,
    connection: int | None = None,
    names: RequestFilter | None = None,
    where: Callable[[Any], object] | None = None,
) -> RequestFilter:
    """Return a filter for requests that match all arguments given.

    `names` looks for names in a message, as the protocol has them; `where` is a predicate on the message.
    """

    def matches(info: RequestInfo, request: Any) -> bool:
        # the cheap comparisons first; `where` is called only for requests that match everything else
        return (
            (api is None or info.api == api)
            and (node is None or info.node_id == node)
            and (client_id is None or info.client_id == client_id)
            and (connection is None or info.connection == connection)
            and (names is None or names(info, request))
            and (where is None or bool(where(request)))
        )

    return matches


def check_counts(nth: int, times: int | None) -> None:
    """Raise ConfigError unless a fault can hit `times` requests (None: all) beginning with the `nth`."""
    if nth < 1:
        raise ConfigError("nth", nth, "1 (the first matching request) or more")
    if times is not None and times < 1:
        raise ConfigError("times", times, "1 or more, or None for all")


def check_no_actions(fault: type, others: Mapping[str, object]) -> None:
    """Raise for arguments of `on` that select no requests: ConfigError for an action, which is a method of the `fault`, else TypeError."""
    for name, value in others.items():
        if name.startswith("_") or not hasattr(fault, name):
            raise TypeError(f"on() got an unexpected keyword argument {name!r}")
        argument = "" if value is True else repr(value)
        raise ConfigError(name, value, f"it is a method of the fault: on(…).{name}({argument})")
