"""The arguments of `ForeachBatch` and `QueueForeachBatch` that are checked alike, and hints for names of Spark's streams."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from asyncgroup.checks import DURATION, DURATION_OR_ZERO, FLAG, check_count
from asyncgroup.errors import ConfigError
from asyncgroup.named_arguments import NO_ARGUMENT, NamedArguments
from asyncgroup.workqueue.policies import check_unit

__all__ = ["BridgeArguments", "check_batch_limits", "check_flag"]

_ROWS: Final = "max_rows=…"
_WAIT: Final = "max_wait=…, in seconds"
_START: Final = "auto_offset_reset of the group's ConsumerConfig, for partitions without a commit"
_TOPICS: Final = "an argument of group.run, or of the WorkQueue"
_NOT_NEEDED: Final = "the function writes the rows"

SPARK_ARGUMENTS: Final[Mapping[str, str]] = {
    "maxoffsetspertrigger": _ROWS,
    "minoffsetspertrigger": _WAIT,
    "maxbytespertrigger": "max_bytes=…, a number",
    "maxtriggerdelay": _WAIT,
    "processingtime": _WAIT,
    "trigger": _WAIT,
    "includeheaders": "include_headers=…",
    "startingoffsets": _START,
    "startingtimestamp": _START,
    "checkpointlocation": "the group's committed offsets take its place",
    "checkpoint": "the group's committed offsets take its place",
    "failondataloss": "out_of_range_reset of the group's ConsumerConfig",
    "subscribe": _TOPICS,
    "subscribepattern": _TOPICS,
    "topic": _TOPICS,
    "topics": _TOPICS,
    "outputmode": _NOT_NEEDED,
    "format": _NOT_NEEDED,
    "func": "the second argument",
    "function": "the second argument",
}
"""Options of Spark's Kafka source and of `DataStreamWriter`, in lower case without underscores, with what they are here."""


class BridgeArguments(NamedArguments):
    """Base of `ForeachBatch` and `QueueForeachBatch`; see `NamedArguments`."""

    __slots__ = ()

    @classmethod
    def _argument_hint(cls, key: str, value: object, known: tuple[str, ...]) -> str:  # noqa: ARG003
        from asyncgroup.properties.suggestions import close_matches

        if (found := SPARK_ARGUMENTS.get(key.replace("_", "").lower())) is not None:
            return f"{NO_ARGUMENT}; {found}"
        near = close_matches(key, known)
        return f"{NO_ARGUMENT}; did you mean {' or '.join(near)}?" if near else NO_ARGUMENT


def check_batch_limits(max_rows: object, max_bytes: object, max_wait: object, *, may_be_zero: bool) -> None:
    """Check when a batch is complete; raise ConfigError, also for a `max_wait` that is probably in milliseconds."""
    check_count("max_rows", max_rows)
    check_count("max_bytes", max_bytes)
    is_allowed, allowed = DURATION_OR_ZERO if may_be_zero else DURATION
    if not is_allowed(max_wait):
        raise ConfigError("max_wait", max_wait, allowed)
    check_unit("max_wait", max_wait)


def check_flag(key: str, value: object) -> None:
    """Raise ConfigError for anything but True and False: the text "false" would count as true."""
    is_allowed, allowed = FLAG
    if not is_allowed(value):
        raise ConfigError(key, value, allowed)
