"""Create a broker fault from keyword options in one call: for the pytest marker, and for calls from other threads.

If another thread configured a fault with several calls, a request could be handled between two of them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, TypedDict, Unpack

from asyncgroup.broker import Exchange, Fault, Faults
from asyncgroup.broker.control.faults import Cut
from asyncgroup.errors import ConfigError

__all__ = ["FaultOptions", "create_fault", "is_number", "make_fault"]


class FaultOptions(TypedDict, total=False):
    """The options of a fault: which requests it hits, and what happens to them.

    `node` to `times` select requests, as for `Faults.on`; the others are `Fault`'s methods. `error` is a code or its
    name, `delay` is in seconds, `throttle` in milliseconds; `hold`, `drop` and `optional` are True or omitted.
    """

    node: int | None
    topic: str | None
    group: str | None
    client_id: str | None
    where: Callable[[Any], object] | None
    nth: int
    times: int | None
    error: int | str
    delay: float
    throttle: int
    disconnect: Cut
    answer: Callable[[Any], Any]
    mutate: Callable[[Any], Any]
    observe: Callable[[Exchange], object]
    hold: bool
    drop: bool
    optional: bool


_VALUE_ACTIONS: Final = ("error", "delay", "throttle", "disconnect", "answer", "mutate", "observe")
_NUMBERS: Final = ("node", "broker", "nth", "times", "delay", "throttle")
_FLAG_ACTIONS: Final = ("hold", "drop", "optional")


def make_fault(faults: Faults, api: str | None = None, **options: Unpack[FaultOptions]) -> Fault:
    """Add a fault to `faults`, fully configured before the next request. Raise ConfigError for an unknown option."""
    fault: Fault = create_fault(faults.on, api, {**options}, FaultOptions.__annotations__)
    return fault


def create_fault(
    on: Callable[..., Any], api: str | None, given: Mapping[str, Any], known: Collection[str]
) -> Any:
    """Return a fault that `on` creates, with all its actions set; `known` are the options that it may have."""
    for name, value in given.items():
        if name not in known:
            raise ConfigError(name, value, f"a fault's options are {', '.join(known)}")
        if name in _NUMBERS and value is not None and not is_number(value, whole=name != "delay"):
            raise ConfigError(name, value, "a number" if name == "delay" else "a whole number")
    actions = (*_VALUE_ACTIONS, *_FLAG_ACTIONS)
    fault = on(api, **{name: value for name, value in given.items() if name not in actions})
    try:
        for action in _VALUE_ACTIONS:
            if given.get(action) is not None:
                _apply(fault, action, given[action])
        for action in _FLAG_ACTIONS:
            if given.get(action):
                getattr(fault, action)()
    except ConfigError:
        fault.cancel()
        raise
    return fault


def is_number(value: object, *, whole: bool = False) -> bool:
    """Return whether `value` is an int or a float (with `whole`, an int); a bool is not a number."""
    return isinstance(value, int if whole else int | float) and not isinstance(value, bool)


def _apply(fault: Any, action: str, value: object) -> None:
    """Call a method of the fault; a ConfigError names the option instead of the method's argument."""
    try:
        getattr(fault, action)(value)
    except ConfigError as error:
        raise ConfigError(action, value, error.allowed) from None
