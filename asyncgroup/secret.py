"""A text that does not show: not in a repr, a format, a dict of the configuration's fields, JSON or a pickle.

| operation on a configuration with secrets | |
|---|---|
| `repr`, `str`, `vars`, `dataclasses.asdict`, `astuple` | hide: the secret stands there as `[hidden]` |
| `json.dumps(asdict(…))` | refuses with TypeError; with `default=str` the secret is `[hidden]` |
| `pickle.dumps` | refuses with UsageError, but within `secrets_in_pickles()`; Spark's settings for executors hold them on purpose |
| `copy.copy`, `copy.deepcopy`, `dataclasses.replace`, `copy.replace`, `==`, `hash` | work |
| `Secret.reveal()` | the text itself |

This protects against secrets that get into logs, tickets and caches by accident, as Kafka's `Password` does; it does not
protect against code that runs in this process.
"""

from __future__ import annotations

import hmac
import pickle
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import fields
from typing import Any, Final, NoReturn, overload

from asyncgroup.errors import ConfigError, UsageError

__all__ = ["HIDDEN", "HiddenProvider", "Secret", "reduce_with_secrets", "reveal", "secrets_in_pickles"]

HIDDEN: Final = "[hidden]"
"""What stands in place of a secret, as in Kafka's `Password`."""

_in_pickles: ContextVar[bool] = ContextVar("asyncgroup secrets in pickles", default=False)


@contextmanager
def secrets_in_pickles() -> Iterator[None]:
    """Let pickles made in this block hold the secrets of configurations, in plain text.

    For sending a configuration to another process that connects with it. Everyone who can read the pickle has the secrets.
    """
    token = _in_pickles.set(True)
    try:
        yield
    finally:
        _in_pickles.reset(token)


def reduce_with_secrets(value: Any) -> tuple[Any, ...]:
    """Return the `__reduce__` of a dataclass instance whose pickles hold secrets on purpose.

    For values that travel to a process of the same job which connects with them, as Spark's executors do.
    """
    with secrets_in_pickles():
        data = pickle.dumps({each.name: getattr(value, each.name) for each in fields(value)})
    return _unpickled, (type(value), data)


def _unpickled(cls: type, data: bytes) -> Any:
    return cls(**pickle.loads(data))  # noqa: S301  part of a pickle that is being read anyway


class _Hiding:
    """A value that shows as `[hidden]`; immutable, so that copies are the same object."""

    __slots__ = ("_value",)

    _value: Any

    def __repr__(self) -> str:
        return HIDDEN

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"{type(self).__name__} cannot be changed")

    def __copy__(self) -> Any:
        return self

    def __deepcopy__(self, memo: object) -> Any:
        return self

    def __reduce_ex__(self, protocol: object) -> tuple[Any, ...]:
        if not _in_pickles.get():
            raise UsageError(
                "a configuration with secrets is not pickled by accident: they would stand in the pickle as plain "
                "text; where that is meant, use `with asyncgroup.secret.secrets_in_pickles():`"
            )
        return type(self), (self._value,)


class Secret(_Hiding):
    """A password, a key or a token. `reveal()` gives the text; equal to other secrets of the same text only."""

    __slots__ = ()

    def __init__(self, text: str) -> None:
        if not isinstance(text, str):
            raise ConfigError("secret", type(text).__name__, "text")
        object.__setattr__(self, "_value", text)

    def reveal(self) -> str:
        """Return the text itself."""
        text: str = self._value
        return text

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Secret):
            return NotImplemented
        # the time that it takes says nothing about where the first difference is
        return hmac.compare_digest(_bytes(self._value), _bytes(other._value))

    def __hash__(self) -> int:
        return hash((Secret, self._value))

    def __bool__(self) -> bool:
        return bool(self._value)


class HiddenProvider(_Hiding):
    """A function that gives tokens; what it is bound to may be a secret (`partial(fetch, password)`)."""

    __slots__ = ()

    def __init__(self, function: Callable[[], Awaitable[str]]) -> None:
        object.__setattr__(self, "_value", function)

    def __call__(self) -> Awaitable[str]:
        """Call the function."""
        made: Awaitable[str] = self._value()
        return made

    def __eq__(self, other: object) -> bool:
        return isinstance(other, HiddenProvider) and bool(self._value == other._value)

    def __hash__(self) -> int:
        return hash((HiddenProvider, self._value))


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


@overload
def reveal(value: Secret | str) -> str: ...
@overload
def reveal(value: Secret | str | None) -> str | None: ...
def reveal(value: Secret | str | None) -> str | None:
    """Return the text of a secret, and anything else as it is."""
    return value.reveal() if isinstance(value, Secret) else value
