"""Where `consume` starts reading: the partitions of `--partition`, and the positions of `--offset` and `--from`."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

from asyncgroup.cli.offset_spans import OffsetSpan, having, log_spans
from asyncgroup.errors import UsageError

if TYPE_CHECKING:
    from asyncgroup.consumer import Consumer

__all__ = ["LogOffset", "StartPosition", "parse_offset", "parse_partitions", "parse_time", "start_offsets"]

MAX_PARTITION: Final = 2**31 - 1
MAX_OFFSET: Final = 2**63 - 1

_NAMES: Final[Mapping[str, Literal["earliest", "latest"]]] = {
    **dict.fromkeys(("earliest", "beginning", "smallest", "start"), "earliest"),
    **dict.fromkeys(("latest", "end", "largest"), "latest"),
}
"""The words of Kafka's tools, of kcat and of rpk."""

_UNITS: Final = {"d": "days", "h": "hours", "m": "minutes", "s": "seconds"}
_DURATION: Final = re.compile(r"-?(\d{1,9})([dhms])", re.ASCII)
_OFFSET: Final = re.compile(r"([+-]?)(\d{1,19})", re.ASCII)

_OFFSETS: Final = "an offset, +N from the beginning, -N before the end, earliest or latest"
_TIMES: Final = (
    "earliest, latest, a time such as 2026-11-27T10:00 (UTC) or 2026-11-27T10:00+01:00, a timestamp of 13 digits (ms) or "
    "10 (seconds), or a duration before now such as 90s, 30m, 24h or 7d"
)


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


def parse_time(text: str) -> Literal["earliest", "latest"] | datetime | timedelta:
    """Argument type: a time in one of the forms of `_TIMES`.

    A time without a time zone is UTC, as for Kafka's own tools (`Utils.getDateTime`) and in the output of `dlq list`.
    """
    if (name := _NAMES.get(text.lower())) is not None:
        return name
    try:
        if found := _DURATION.fullmatch(text):
            if (ago := timedelta(**{_UNITS[found[2]]: int(found[1])})) > timedelta():
                return ago
        elif re.fullmatch(r"[0-9]{13}|[0-9]{10}", text):
            milliseconds = int(text) if len(text) == 13 else 1000 * int(text)
            return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=milliseconds)
        elif re.match(r"[0-9]{4}-", text):
            time = datetime.fromisoformat(text)
            return time if time.tzinfo is not None else time.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        pass
    raise argparse.ArgumentTypeError(f"{text!r} is not {_TIMES}")


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
