"""Names that other clients have and a class here has not: an error that says what the name is here.

The tables of names are beside the classes, in the `foreign_names` of their rooms.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NoReturn

__all__ = ["ForeignName", "add_foreign_names"]


class ForeignName:
    """An attribute that a class and its objects do not have: reading it raises AttributeError with a hint.

    In place of `__getattr__`, with which Python 3.11 reads each attribute of an object at half the speed.
    """

    __slots__ = ("_hint", "_name")

    def __init__(self, name: str, hint: str) -> None:
        self._name = name
        self._hint = hint

    def __repr__(self) -> str:
        return f"<ForeignName {self._name}: {self._hint}>"

    def __get__(self, instance: object, cls: type) -> NoReturn:
        """Raise AttributeError."""
        text = f"{cls.__name__!r} object has no attribute {self._name!r}; here it is: {self._hint}"
        raise AttributeError(text, name=self._name, obj=instance)


def add_foreign_names(cls: type, hints: Mapping[str, str]) -> None:
    """Add the names to a class, in the spelling of Python and in that of Java; `dir` of its objects leaves them out.

    `__aiter__` raises TypeError with its hint: Python itself calls it, and ignores the text of an AttributeError. `__iter__`
    must not be among them: the class would be a `collections.abc.Iterable`, as arguments of several things are.

    `dir` of the class itself still has the names, as only a metaclass could leave them out, which would forbid subclasses with
    another metaclass: `Mock(spec=cls)` has them, `Mock(spec=object_of_it)` does not (see the guide on the testing kit).
    """
    added: set[str] = set()
    for name, hint in hints.items():
        first, *others = name.split("_")
        for spelled in {name, first + "".join(map(str.capitalize, others))} if first else {name}:
            if hasattr(cls, spelled):
                raise TypeError(f"{cls.__name__} has {spelled!r} itself")
            setattr(cls, spelled, ForeignName(spelled, hint) if first else _refusal(hint))
            added.add(spelled)
    shown: Callable[[object], list[str]] = cls.__dir__  # type: ignore[assignment]

    def own_names(self: object) -> list[str]:
        return [name for name in shown(self) if name not in added]

    setattr(cls, "__dir__", own_names)  # noqa: B010  mypy does not let a method be assigned


def _refusal(hint: str) -> Callable[[object], NoReturn]:
    def refuse(self: object) -> NoReturn:
        raise TypeError(f"'async for' cannot read a {type(self).__name__}; here it is: {hint}")

    return refuse
