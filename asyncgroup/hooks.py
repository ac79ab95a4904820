"""Optional hooks: tiny protocols that see what a client does, franz-go's idea (`kgo/hooks.go`).

A hook object implements any of the methods below; those that it lacks are never called. Hooks are plain methods: they
run on the event loop, must return at once, and an exception in one is logged and goes no further.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterable
from typing import Any

from asyncgroup.errors import ConfigError

__all__ = ["EVENTS", "Hooks"]

_log = logging.getLogger("asyncgroup.hooks")

EVENTS: frozenset[str] = frozenset(
    {
        "on_connect",  # (node_id, host, port, purpose)
        "on_disconnect",  # (node_id, host, port, purpose, error)
        "on_request",  # (node_id, api, version, bytes)
        "on_response",  # (node_id, api, seconds, bytes)
        "on_throttle",  # (node_id, api, seconds)
        "on_metadata",  # (cluster_id, brokers, topics)
        "on_join",  # (group_id, member_id, generation_id, is_leader)
        "on_session_start",  # (session)
        "on_session_end",  # (session, cause)
        "on_heartbeat",  # (group_id, seconds)
        "on_commit",  # (group_id, offsets, errors by partition or None)
        "on_fetch",  # (node_id, bytes, partitions)
        "on_produce",  # (topic, partition, records, error)
        "on_delivered",  # (topic, partition, base_offset, records), once acknowledged
        "on_stalled",  # (topic, partition)
        "on_resumed",  # (topic, partition)
    }
)


class Hooks:
    """Several hook objects as one; `hooks.emit("on_commit", …)` calls those that listen.

    Raises ConfigError for a coroutine method, which nobody would await.
    """

    def __init__(self, hooks: Iterable[object] = ()) -> None:
        self._listeners: dict[str, list[Any]] = {
            event: [getattr(hook, event) for hook in hooks if hasattr(hook, event)]
            for hooks in [list(hooks)]
            for event in EVENTS
        }
        for event, listeners in self._listeners.items():
            if any(map(inspect.iscoroutinefunction, listeners)):
                raise ConfigError("hooks", f"async def {event}", "plain methods, which return at once")

    def emit(self, event: str, *values: object) -> None:
        """Tell every listener; an exception in one is logged."""
        for listener in self._listeners[event]:
            try:
                listener(*values)
            except Exception:  # noqa: BLE001  a hook must not hurt the client
                _log.exception("hook %s raised", event)
