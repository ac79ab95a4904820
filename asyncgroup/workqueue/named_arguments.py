"""NamedArguments: an unknown keyword argument raises ConfigError with what may be meant, as in the configurations."""

from __future__ import annotations

import inspect
from typing import Any, Self

from asyncgroup.errors import ConfigError

__all__ = ["NamedArguments"]


class NamedArguments:
    """Base of classes with many keyword arguments; the TypeError of a call with an unknown one has no hint."""

    __slots__ = ()

    def __new__(cls, *_: Any, **given: Any) -> Self:
        """Raise ConfigError for an unknown argument."""
        code = cls.__init__.__code__ if given and hasattr(cls.__init__, "__code__") else None
        if code is not None and not code.co_flags & inspect.CO_VARKEYWORDS:
            known = code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount]
            if unknown := [key for key in given if key not in known]:
                raise _unknown_argument(unknown[0], given[unknown[0]], known)
        return super().__new__(cls)


def _unknown_argument(key: str, value: object, known: tuple[str, ...]) -> ConfigError:
    from dataclasses import fields

    from asyncgroup.config import ConsumerConfig
    from asyncgroup.properties.reader import shown
    from asyncgroup.workqueue.foreign_names import argument_hint

    config_keys = {field.name for field in fields(ConsumerConfig)}
    return ConfigError(key, shown(key, value), argument_hint(key, known, config_keys))
