"""Positions of a reader: arguments that say where it begins, or goes on, in all of its partitions or in single ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Final, TypeAlias

from asyncgroup.errors import ConfigError
from asyncgroup.pulsar.wire.message_id import EARLIEST, LATEST, MessageId, is_message_id

__all__ = ["POSITIONS_OF_READERS", "ReadPosition", "ReaderTarget", "read_position"]

ReaderTarget: TypeAlias = str | MessageId | datetime | Iterable[MessageId]
"""`earliest`, `latest`, a message id, a publication time with a time zone, or ids, one for each partition."""

ReadPosition: TypeAlias = MessageId | int | list[MessageId]
"""EARLIEST, LATEST or the id of a message; a publication time in ms; or ids of messages."""

POSITIONS_OF_READERS: Final[Mapping[str, MessageId]] = {"earliest": EARLIEST, "latest": LATEST}
"""The positions that have a name."""

_ALLOWED: Final = "'earliest', 'latest', a MessageId, or a datetime with a time zone; or a list with an id for each partition"


def read_position(key: str, target: object) -> ReadPosition:
    """Return what an argument means. Raises ConfigError, which names it by `key`."""
    if isinstance(target, MessageId):
        if is_message_id(target):
            return target
    elif isinstance(target, str):
        if target in POSITIONS_OF_READERS:
            return POSITIONS_OF_READERS[target]
    elif isinstance(target, datetime):
        if target.tzinfo is not None:
            return round(target.timestamp() * 1000)
    elif isinstance(target, Iterable) and not isinstance(target, bytes | Mapping):
        ids = list(target)
        if ids and all(map(is_message_id, ids)):
            return ids
    raise ConfigError(key, target, _ALLOWED)
