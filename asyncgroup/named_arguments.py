"""NamedArguments: an unknown keyword argument raises ConfigError with what may be meant, as in the configurations."""

from __future__ import annotations

import inspect
from typing import Any, ClassVar, Final, Self

from asyncgroup.errors import ConfigError

__all__ = ["NO_ARGUMENT", "ClientArguments", "NamedArguments"]

NO_ARGUMENT: Final = "there is no such argument"


class NamedArguments:
    """Base of classes with many keyword arguments; the TypeError of a call with an unknown one has no hint."""

    __slots__ = ()

    def __new__(cls, *_: Any, **given: Any) -> Self:
        """Raise ConfigError for an unknown argument."""
        code = cls.__init__.__code__ if given and hasattr(cls.__init__, "__code__") else None
        if code is not None and not code.co_flags & inspect.CO_VARKEYWORDS:
            known = code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount]
            for key, value in given.items():
                if key not in known:
                    from asyncgroup.properties.reader import shown

                    raise ConfigError(key, shown(key, value), cls._argument_hint(key, value, known))
        return super().__new__(cls)

    @classmethod
    def _argument_hint(cls, key: str, value: object, known: tuple[str, ...]) -> str:
        """Return the text for an unknown argument; `known` are those that exist."""
        raise NotImplementedError


class ClientArguments(NamedArguments):
    """Base of clients: other clients have the keys of the configuration as arguments."""

    __slots__ = ()

    _CONFIG: ClassVar[str]
    """The class of the argument `config`."""

    @classmethod
    def _argument_hint(cls, key: str, value: object, known: tuple[str, ...]) -> str:
        from asyncgroup.config.client import keys_by_class
        from asyncgroup.properties.suggestions import close_matches, suggest_key

        keys = keys_by_class()
        if key in keys[cls._CONFIG]:
            return f"{NO_ARGUMENT}; it is a key of the configuration: config={cls._CONFIG}({key}=…)"
        if near := close_matches(key, known):
            return f"{NO_ARGUMENT}; did you mean {' or '.join(near)}?"
        found = suggest_key(cls._CONFIG, key, value, keys).partition("; ")[2]
        if not found:
            return NO_ARGUMENT
        place = f"in config={cls._CONFIG}(…), " if found.startswith("did you mean") else ""
        return f"{NO_ARGUMENT}; {place}{found}"
