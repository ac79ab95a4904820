"""Secrets of configurations, hidden in `repr`, `str`, dicts of fields, JSON and pickles.

| operation on a configuration with secrets | effect |
|---|---|
| `repr`, `str`, `vars`, `dataclasses.asdict`, `astuple` | the secret is shown as `[hidden]` |
| `json.dumps(asdict(…))` | raises TypeError; with `default=str` the secret is `[hidden]` |
| `pickle.dumps` | raises UsageError outside of `secrets_in_pickles()`; settings for Spark executors include secrets |
| `copy.copy`, `copy.deepcopy`, `dataclasses.replace`, `copy.replace`, `==`, `hash` | work |
| `Secret.reveal()` | returns the text |

As Kafka's `Password`, this keeps secrets out of logs, tickets and caches by accident; it does not protect against code
that runs in this process.
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
"""The text shown instead of a secret, as in Kafka's `Password`."""

_in_pickles: ContextVar[bool] = ContextVar("asyncgroup secrets in pickles", default=False)


@contextmanager
def secrets_in_pickles() -> Iterator[None]:
    """Allow pickles made in this block to contain the secrets of configurations, in plaintext.

    For sending a configuration to another process that connects with it. The pickle must be protected like the secrets.
    """
    token = _in_pickles.set(True)
    try:
        yield
    finally:
        _in_pickles.reset(token)


def reduce_with_secrets(value: Any) -> tuple[Any, ...]:
    """Implement `__reduce__` for a dataclass whose pickles contain secrets on purpose.

    For values sent to another process of the same job that connects with them, such as Spark's executors.
    """
    with secrets_in_pickles():
        data = pickle.dumps({each.name: getattr(value, each.name) for each in fields(value)})
    return _unpickled, (type(value), data)


def _unpickled(cls: type, data: bytes) -> Any:
    return cls(**pickle.loads(data))  # noqa: S301  called only while an outer pickle is loaded


class _Hiding:
    """A value whose repr is `[hidden]`; immutable, so copies are the same object."""

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
                "a configuration with secrets cannot be pickled, because the pickle would contain them in plaintext; "
                "to allow this, use `with asyncgroup.secret.secrets_in_pickles():`"
            )
        return type(self), (self._value,)


class Secret(_Hiding):
    """A password, a key or a token. `reveal()` returns the text; equal only to a Secret with the same text."""

    __slots__ = ()

    def __init__(self, text: str) -> None:
        if not isinstance(text, str):
            raise ConfigError("secret", type(text).__name__, "a string")
        object.__setattr__(self, "_value", text)

    def reveal(self) -> str:
        """Return the text itself."""
        text: str = self._value
        return text

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Secret):
            return NotImplemented
        # constant time: the duration does not reveal the position of the first difference
        return hmac.compare_digest(_bytes(self._value), _bytes(other._value))

    def __hash__(self) -> int:
        return hash((Secret, self._value))

    def __bool__(self) -> bool:
        return bool(self._value)


class HiddenProvider(_Hiding):
    """A token provider, hidden because its arguments may be secret (`partial(fetch, password)`)."""

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
    """Return the text of a Secret; return any other value unchanged."""
    return value.reveal() if isinstance(value, Secret) else value
