"""Dispatch of events to hook objects, as in franz-go (`kgo/hooks.go`); `Hook` in `hook.py` describes the events."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterable
from typing import Any, Final, Literal, TypeAlias, TypeVar

from asyncgroup.errors import ConfigError

__all__ = [
    "EVENTS",
    "AttachRole",
    "DeliveryListeners",
    "DeliveryOutcome",
    "Hooks",
    "StallKind",
    "TransactionOutcome",
    "add_default_hook",
    "check_hooks",
    "defines_no_listeners",
    "delivery_listeners",
    "remove_default_hook",
    "with_default_hooks",
]

_log = logging.getLogger("asyncgroup.hooks")

EVENTS: Final = frozenset(
    {
        "on_connect",
        "on_disconnect",
        "on_request",
        "on_response",
        "on_throttle",
        "on_metadata",
        "on_open",
        "on_join",
        "on_session_start",
        "on_session_end",
        "on_handler_start",
        "on_handler_end",
        "on_process_start",
        "on_process_end",
        "on_heartbeat",
        "on_commit",
        "on_fetch",
        "on_member_stalled",
        "on_stalled",
        "on_resumed",
        "on_chunks_dropped",
        "on_delivery_start",
        "on_delivery_end",
        "on_send_start",
        "on_send_end",
        "on_produce",
        "on_delivered",
        "on_batch_done",
        "on_attached",
        "on_detached",
        "on_receive",
        "on_ack",
        "on_transaction_start",
        "on_transaction_end",
    }
)
"""The names of the methods of `Hook`."""

StallKind: TypeAlias = Literal["event loop", "claim", "join", "coordinator"]
"""What a stalled group member waits for, see `Hook.on_member_stalled`."""

AttachRole: TypeAlias = Literal["producer", "consumer"]
"""What is registered at a broker of Pulsar, see `Hook.on_attached`."""

DeliveryOutcome: TypeAlias = Literal[
    "acknowledged", "nacked", "retry", "dead letter", "expired", "released", "lost"
]
"""How a delivery of a work queue was settled, see `Hook.on_delivery_end`."""

TransactionOutcome: TypeAlias = Literal["committed", "aborted", "timed out", "unknown"]
"""How a transaction of Pulsar has ended, see `Hook.on_transaction_end`."""

_BASES: Final[set[type]] = set()
"""Classes whose methods do nothing, so that a call would only cost time."""

T = TypeVar("T", bound=type)


def defines_no_listeners(base: T) -> T:
    """Class decorator: hooks that inherit a method from `base` do not implement it."""
    _BASES.add(base)
    return base


_DEFAULTS: Final[list[object]] = []
"""Hooks that each client gets besides its own."""


def add_default_hook(hook: object) -> None:
    """Give a hook to each client and Cluster that is made from now on, and as an interceptor to producers."""
    check_hooks([hook])
    _DEFAULTS.append(hook)


def remove_default_hook(hook: object) -> None:
    """Undo `add_default_hook`: clients that exist keep the hook."""
    _DEFAULTS[:] = [each for each in _DEFAULTS if each is not hook]


def with_default_hooks(given: tuple[object, ...]) -> tuple[object, ...]:
    """Return the hooks with the default ones, without those of a class that the client has a hook of."""
    classes = set(map(type, given))
    return (*given, *(hook for hook in _DEFAULTS if type(hook) not in classes))


def check_hooks(hooks: object) -> tuple[object, ...]:
    """Return the hook objects; raise ConfigError unless each has a method for at least one event."""
    if isinstance(hooks, str) or not isinstance(hooks, Iterable):
        raise ConfigError("hooks", hooks, "a list of hook objects: hooks=[hook]")
    given = tuple(hooks)
    for hook in given:
        if isinstance(hook, type):
            raise ConfigError("hooks", hook, "objects, not their classes")
        if not any(hasattr(hook, event) for event in EVENTS):
            raise ConfigError(
                "hooks", hook, f"objects with at least one of the methods {', '.join(sorted(EVENTS))}"
            )
    return given


class Hooks:
    """Dispatch events to hook objects: `hooks.emit("on_commit", …)` calls those that have the method.

    Raises ConfigError for an object without any method for an event, and if a method is a coroutine function: its
    coroutine would never be awaited.
    """

    def __init__(self, hooks: Iterable[object] = ()) -> None:
        given = with_default_hooks(check_hooks(hooks))
        self._objects = given
        self._listeners: dict[str, list[Any]] = {
            event: [getattr(hook, event) for hook in given if _implements(hook, event)] for event in EVENTS
        }
        for event, listeners in self._listeners.items():
            if any(map(inspect.iscoroutinefunction, listeners)):
                raise ConfigError("hooks", f"async def {event}", "plain methods, not coroutine functions")
        self._record_filters = [
            getattr(hook, "wants_records", None)
            for hook in given
            if _implements(hook, "on_process_start") or _implements(hook, "on_process_end")
        ]

    def joined(self, hooks: Iterable[object]) -> Hooks:
        """Return these hooks with others, each object once."""
        return Hooks(
            (*self._objects, *(hook for hook in hooks if not any(hook is each for each in self._objects)))
        )

    def has_listener(self, event: str) -> bool:
        """Return whether a hook has a method for the event: a frequent one need not be prepared without."""
        return bool(self._listeners[event])

    def with_listener(self, *events: str) -> Hooks | None:
        """Return these hooks if one has a method for any of the events, else None.

        For events of each record, asked once in advance: without listeners a record then costs a comparison and no call.
        """
        return self if any(map(self.has_listener, events)) else None

    def wants_records(self) -> bool:
        """Return whether a hook wants `on_process_start` and `on_process_end` of single records now.

        Asked once for the records of a batch, before they are delivered. A hook may have a method `wants_records`; one without
        it wants all.
        """
        return any(wants is None or _asks(wants) for wants in self._record_filters)

    def emit(self, event: str, *values: object) -> None:
        """Call every listener; an exception in one is logged."""
        for listener in self._listeners[event]:
            try:
                listener(*values)
            except BaseException as error:
                if not (isinstance(error, Exception) or _is_cancellation(error)):
                    raise
                _log.exception("hook %s raised", event)


class DeliveryListeners:
    """Reports the deliveries of a work queue to its hooks: `start` and `end` once for each, in pairs."""

    def __init__(self, hooks: Hooks) -> None:
        self._hooks = hooks

    def start(self, delivery: object) -> None:
        """A delivery begins: before its handler, or the caller of `receive`, gets it."""
        self._hooks.emit("on_delivery_start", delivery)

    def end(self, delivery: object, outcome: DeliveryOutcome, error: BaseException | None = None) -> None:
        """A delivery that was started is settled; for a copy, once the copy is in its topic."""
        self._hooks.emit("on_delivery_end", delivery, outcome, error)


def delivery_listeners(hooks: Hooks) -> DeliveryListeners | None:
    """Return what a work queue calls for each delivery, or None without listeners; look it up once for all deliveries."""
    listening = hooks.with_listener("on_delivery_start", "on_delivery_end")
    return None if listening is None else DeliveryListeners(listening)


def _asks(wants: Callable[[], bool]) -> bool:
    """Return the answer of a hook; one that raises means no."""
    try:
        return wants()
    except Exception:  # noqa: BLE001  as with the events
        _log.exception("hook wants_records raised")
        return False


def _is_cancellation(error: BaseException) -> bool:
    """Return whether a hook raised CancelledError, as of the result of a cancelled future.

    It would end the task that emits the event, such as the heartbeats, without a trace.
    """
    from asyncio import CancelledError

    return isinstance(error, CancelledError)


def _implements(hook: object, event: str) -> bool:
    """Return whether a hook has a method for the event that it did not inherit from a class without listeners."""
    definer = next((base for base in type(hook).__mro__ if event in vars(base)), None)
    return hasattr(hook, event) and definer not in _BASES
