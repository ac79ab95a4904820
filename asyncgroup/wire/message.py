"""Bases of the generated message classes: value equality and a readable repr, nothing else."""

from __future__ import annotations

from typing import ClassVar, Generic, TypeVar

__all__ = ["Message", "Request"]


class Message:
    """A message or a struct inside one: a mutable slotted object, equal to another with equal fields."""

    __slots__: tuple[str, ...] = ()
    NAME: ClassVar[str] = ""
    API_KEY: ClassVar[int] = -1

    def __eq__(self, other: object) -> bool:
        if self.__class__ is not other.__class__:
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.__slots__)

    __hash__ = None  # type: ignore[assignment]  # mutable: equal today, other tomorrow

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={_short(getattr(self, name))}" for name in self.__slots__)
        return f"{type(self).__qualname__}({shown})"


def _short(value: object) -> str:
    if isinstance(value, (bytes, memoryview)) and len(value) > 32:
        return f"<{len(value)} bytes>"
    return repr(value)


# `Request["FetchResponse"]` ties a request to the type of its response, so that a typed `send(request)` can return it.
Response_co = TypeVar("Response_co", bound=Message, covariant=True)


class Request(Message, Generic[Response_co]):
    """A request message; the parameter is the class of its response."""

    __slots__ = ()
