"""Base classes of the generated message classes: equality by value and a readable repr."""

from __future__ import annotations

import re
from typing import ClassVar, Final, Generic, TypeVar, cast
from uuid import UUID

__all__ = ["NO_UUID", "Message", "Request", "copy_message"]

NO_UUID: Final = UUID(int=0)
"""The topic id of a topic without one, and the default of every field of type UUID."""

_SECRET: Final = frozenset({"auth_bytes", "salted_password"})
"""Fields with passwords or equivalent secrets: the repr shows only their length."""

_SECRET_CONFIG: Final = re.compile(
    r"passw|passphrase|pwd|secret|token|credential|jaas\.config|(keystore|master|private|access|api)[._-]?key",
    re.IGNORECASE,
)
"""Names of configs whose values are secret, in requests that alter them, those of plugins included.

`properties.reader.is_secret` also hides what is only near a secret, such as `sasl.enabled.mechanisms`, and loads `ssl`.
"""


class Message:
    """A message, or a struct inside one: a mutable object with slots, compared by its fields."""

    __slots__: tuple[str, ...] = ()
    NAME: ClassVar[str] = ""
    API_KEY: ClassVar[int] = -1

    def __eq__(self, other: object) -> bool:
        if self.__class__ is not other.__class__:
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.__slots__)

    __hash__ = None  # type: ignore[assignment]  # not hashable, because it is mutable

    def __repr__(self) -> str:
        config, names = getattr(self, "name", None), self.__slots__
        hides = "value" in names and isinstance(config, str) and _SECRET_CONFIG.search(config)
        shown = ", ".join(
            f"{name}={'<secret>' if hides and name == 'value' else _shown(name, getattr(self, name))}"
            for name in names
        )
        return f"{type(self).__qualname__}({shown})"


AnyMessage = TypeVar("AnyMessage", bound=Message)


def copy_message(message: AnyMessage) -> AnyMessage:
    """Return a deep copy of the structs and lists in `message`; byte fields are shared."""
    return cast(AnyMessage, _copied(message))


def _copied(value: object) -> object:
    if isinstance(value, list):
        return [_copied(one) for one in value]
    if not isinstance(value, Message):
        return value
    copied = object.__new__(type(value))
    for name in value.__slots__:
        setattr(copied, name, _copied(getattr(value, name)))
    return copied


def _shown(name: str, value: object) -> str:
    if isinstance(value, (bytes, memoryview)) and (len(value) > 32 or name in _SECRET):
        return f"<{len(value)} bytes>"
    return repr(value)


# `Request["FetchResponse"]` names the type of the response, so that type checkers know what `request(message)` returns.
Response_co = TypeVar("Response_co", bound=Message, covariant=True)


class Request(Message, Generic[Response_co]):
    """A request message; the type parameter is the class of its response."""

    __slots__ = ()
