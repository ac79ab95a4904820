"""Configurations for commands that are a consumer and a producer: each client gets the properties that concern it."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import fields
from typing import TypeVar

from asyncgroup.cli.connection_options import connection_options
from asyncgroup.config import ConsumerConfig, ProducerConfig
from asyncgroup.properties.names import PROPERTIES

__all__ = ["client_config"]

C = TypeVar("C", ConsumerConfig, ProducerConfig)


def client_config(
    options: argparse.Namespace, cls: type[C], keys: Mapping[str, object] | None = None, **defaults: str
) -> C:
    """Return the configuration of one of the two clients; `keys` override properties, `defaults` have lowest priority.

    A property in `-X` that only the other client has is left out, not refused. Raises ConfigError for properties of
    neither, and for wrong values.
    """
    other = ProducerConfig if cls is ConsumerConfig else ConsumerConfig
    foreign = _names(other) - _names(cls)
    mine = argparse.Namespace(
        **{**vars(options), "properties": [each for each in options.properties if each[0] not in foreign]}
    )
    return connection_options(mine, None, **defaults).config(cls, **(keys or {}))


def _names(cls: type[ConsumerConfig | ProducerConfig]) -> set[str]:
    """Return the names of the properties that a configuration class has a field for."""
    own = {field.name for field in fields(cls)}
    return {name for names in PROPERTIES.values() for name, prop in names.items() if prop.key in own}
