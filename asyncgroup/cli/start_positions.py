"""Where `consume` starts reading: the partitions of `--partition`, and the positions of `--offset` and `--from`."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

from asyncgroup.cli.instants import INSTANTS, parse_instant
from asyncgroup.cli.offset_spans import OffsetSpan, having, log_spans
from asyncgroup.errors import UsageError

if TYPE_CHECKING:
    from asyncgroup.consumer import Consumer

__all__ = ["LogOffset", "StartPosition", "parse_offset", "parse_partitions", "parse_start", "start_offsets"]

MAX_PARTITION: Final = 2**31 - 1
MAX_OFFSET: Final = 2**63 - 1

_NAMES: Final[Mapping[str, Literal["earliest", "latest"]]] = {
    **dict.fromkeys(("earliest", "beginning", "smallest", "start"), "earliest"),
    **dict.fromkeys(("latest", "end", "largest"), "latest"),
}
"""The words of Kafka's tools, of kcat and of rpk."""

_OFFSET: Final = re.compile(r"([+-]?)(\d{1,19})", re.ASCII)

_OFFSETS: Final = "an offset, +N from the beginning, -N before the end, earliest or latest"
_TIMES: Final = f"earliest, latest, {INSTANTS}"


class LogOffset(NamedTuple):
    """A position in each log: an offset, or a number of offsets after its start or before its end."""

    base: Literal["", "+", "-"]
    number: int

    def within(self, topic: str, span: OffsetSpan) -> int:
        """Return the offset in a log; a distance that is longer than the log leads to its other end.

        Raises UsageError for an offset outside the log: a consumer would be reset to its end, without a word.
        """
        if self.base == "+":
            return min(span.start + self.number, span.end)
        if self.base == "-":
            return max(span.end - self.number, span.start)
        if not span.start <= self.number <= span.end:
            at = f"{topic}-{span.partition}"
            raise UsageError(f"{at}@{self.number}: no such offset; {at} {span.contents()}")
        return self.number


StartPosition: TypeAlias = LogOffset | Literal["earliest", "latest"] | datetime | timedelta
"""Where reading starts in each partition."""


# --- arguments --------------------------------------------------------------------------------------------------------


def parse_partitions(text: str) -> list[int]:
    """Argument type: a partition, or several separated by commas."""
    parts = [part.strip() for part in text.split(",")]
    if not all(re.fullmatch(r"[0-9]{1,10}", part) and int(part) <= MAX_PARTITION for part in parts):
        raise argparse.ArgumentTypeError(f"{text!r} is not a partition, or several separated by commas")
    return [int(part) for part in parts]


def parse_offset(text: str) -> LogOffset | Literal["earliest", "latest"]:
    """Argument type: an offset, absolute or relative, as kcat and rpk have it."""
    if (name := _NAMES.get(text.lower())) is not None:
        return name
    found = _OFFSET.fullmatch(text)
    if found is None or int(found[2]) > MAX_OFFSET:
        hint = "; --from takes a time" if "@" in text else ""
        raise argparse.ArgumentTypeError(f"{text!r} is not {_OFFSETS}{hint}")
    base: Literal["", "+", "-"] = "+" if found[1] == "+" else "-" if found[1] else ""
    return LogOffset(base, int(found[2]))


def parse_start(text: str) -> Literal["earliest", "latest"] | datetime | timedelta:
    """Argument type: a word for an end of the log, or an instant."""
    return _NAMES.get(text.lower()) or parse_instant(text, _TIMES)


# --- the log ----------------------------------------------------------------------------------------------------------


async def start_offsets(
    consumer: Consumer, topic: str, partitions: Sequence[int], start: StartPosition
) -> dict[int, int | Literal["earliest", "latest"] | datetime | timedelta]:
    """Return where to start in each of `partitions`, or in all if there are none.

    Raises UsageError for a partition or an offset that does not exist, BrokerError for an unknown topic, and as
    `Consumer.end_offsets`.
    """
    existing = await consumer.partitions(topic)
    if missing := sorted(set(partitions) - set(existing)):
        raise UsageError(f"{topic}: there is no partition {missing[0]}; {topic} {having(existing)}")
    chosen = partitions or existing
    if not isinstance(start, LogOffset):
        return dict.fromkeys(chosen, start)
    logs = await log_spans(consumer, topic, chosen)
    try:
        return {number: start.within(topic, logs[number]) for number in chosen}
    except UsageError as error:
        if partitions:
            raise
        raise UsageError(f"{error}; --partition chooses the partitions to read") from None
