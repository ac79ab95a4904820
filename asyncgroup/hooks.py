"""Hooks: objects whose methods are called at what a client does, as franz-go's (`kgo/hooks.go`)."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from asyncgroup.errors import AsyncGroupError, ConfigError, SessionEnd
from asyncgroup.model import TopicPartition

if TYPE_CHECKING:
    from asyncgroup.group import Session
    from asyncgroup.offsets import CommittedOffset

__all__ = ["EVENTS", "Hook", "Hooks"]

_log = logging.getLogger("asyncgroup.hooks")


# A method that is nothing but a docstring would be an abstract one for mypy: hence their `return`.
# ruff: noqa: ARG002
class Hook(Protocol):
    """What a hook object may implement; given as `hooks=[…]` to a client or a Cluster, which calls its methods.

    Any subset will do, on any object: methods that it lacks are not called. As a base class Hook offers all of them,
    doing nothing. They are plain methods, run on the event loop and have to return at once. What one raises is logged
    (`asyncgroup.hooks`) and goes no further. All durations are seconds, all sizes bytes. `node_id` is negative for a
    bootstrap address. Methods and arguments may be added in later versions: take those that you use, or `*rest` too.
    """

    def on_connect(self, node_id: int, host: str, port: int, purpose: str) -> None:
        """A connection stands, TLS and SASL included, at the address that answered.

        `purpose` is what it is for: each node has a connection for each of "control", "group" (heartbeats and commits),
        a group's joins, "fetch" and so on.
        """
        return

    def on_disconnect(self, node_id: int, host: str, port: int, purpose: str, error: AsyncGroupError) -> None:
        """A connection that was announced by `on_connect` has ended; `error` says why, also after an ordinary close."""
        return

    def on_request(self, node_id: int, api: str, version: int, size: int) -> None:
        """A request was written: Kafka's name of the API (`Fetch`, `OffsetCommit`, …), its version, bytes on the wire."""
        return

    def on_response(self, node_id: int, api: str, seconds: float, size: int) -> None:
        """A response came, `seconds` after its request was written; `size` in bytes on the wire."""
        return

    def on_throttle(self, node_id: int, api: str, seconds: float) -> None:
        """A broker throttles this client: its connection gets no request for `seconds` (KIP-219)."""
        return

    def on_metadata(self, cluster_id: str | None, brokers: int, topics: int) -> None:
        """The metadata was refreshed; how many brokers there are, and how many topics are known."""
        return

    def on_join(self, group_id: str, member_id: str, generation_id: int, is_leader: bool) -> None:
        """The member has joined a generation and has its assignment."""
        return

    def on_session_start(self, session: Session) -> None:
        """A session begins: its claims are there, `setup` is called next."""
        return

    def on_session_end(self, session: Session, cause: SessionEnd | None) -> None:
        """A session that began has ended, its last commit included."""
        return

    def on_heartbeat(self, group_id: str, seconds: float) -> None:
        """A heartbeat was answered without an error, `seconds` after it was sent."""
        return

    def on_commit(
        self,
        group_id: str,
        offsets: Mapping[TopicPartition, CommittedOffset],
        errors: Mapping[TopicPartition, AsyncGroupError] | None,
    ) -> None:
        """A commit was answered or failed: what was sent, and the errors of the partitions that were refused.

        `errors` is None if all offsets are committed.
        """
        return

    def on_fetch(self, node_id: int, size: int, partitions: int) -> None:
        """A fetch was answered: bytes of record batches, as compressed as they are, and partitions asked for."""
        return

    def on_stalled(self, topic: str, partition: int) -> None:
        """A partition's reader took nothing for `max_processing_time` while records waited: it is not fetched now."""
        return

    def on_resumed(self, topic: str, partition: int) -> None:
        """A partition that was stalled is fetched again."""
        return

    def on_produce(self, topic: str, partition: int, records: int, error: Exception | None) -> None:
        """A batch of `records` records was acknowledged, or is given up because of `error`."""
        return

    def on_delivered(self, topic: str, partition: int, base_offset: int, records: int) -> None:
        """A batch was acknowledged: offset of its first record (-1 with acks=0), number of records."""
        return


EVENTS: frozenset[str] = frozenset(name for name in vars(Hook) if name.startswith("on_"))
"""The names of all methods of `Hook`."""


class Hooks:
    """Several hook objects as one; `hooks.emit("on_commit", …)` calls those that have the method.

    Raises ConfigError for a coroutine method: its coroutine would never be awaited.
    """

    def __init__(self, hooks: Iterable[object] = ()) -> None:
        given = list(hooks)
        self._listeners: dict[str, list[Any]] = {
            event: [getattr(hook, event) for hook in given if _implements(hook, event)] for event in EVENTS
        }
        for event, listeners in self._listeners.items():
            if any(map(inspect.iscoroutinefunction, listeners)):
                raise ConfigError("hooks", f"async def {event}", "plain methods, which return at once")

    def emit(self, event: str, *values: object) -> None:
        """Call every listener; an exception in one is logged."""
        for listener in self._listeners[event]:
            try:
                listener(*values)
            except Exception:  # noqa: BLE001  a hook must not hurt the client
                _log.exception("hook %s raised", event)


def _implements(hook: object, event: str) -> bool:
    """Whether a hook has the method itself; what it inherits from `Hook` does nothing, and calling it costs time."""
    return hasattr(hook, event) and getattr(type(hook), event, None) is not getattr(Hook, event)
