"""Answers as plain values that two brokers can be compared by: what cannot be equal is replaced by a named table."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final
from uuid import UUID

from asyncgroup.error_codes import ErrorCode
from asyncgroup.wire.control import read_control_type
from asyncgroup.wire.message import Message
from asyncgroup.wire.messages import NO_UUID
from asyncgroup.wire.records import BatchHeader, decode_batch, iter_batch_headers

__all__ = ["GONE", "REPLACED", "TYPED_IDS_FROM", "Names", "paths", "plain"]

GONE: Final = object()
"""Stands for a field that is left out of the comparison."""

TYPED_IDS_FROM: Final = 1_000_000_000
"""Producer ids from here on are those that stories have made up; brokers give out smaller ones."""

CLOCKS_FROM: Final = 1_000_000_000_000
"""Milliseconds from here on come from a clock; the stories' own timestamps are smaller."""

CLOCKS_TO: Final = 1 << 41
"""And milliseconds from here on (2039) are the stories' again."""

_GIVEN_OUT: Final = re.compile(r".*[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
"""What ids of members that brokers give out look like."""


class Names:
    """Gives what a broker has thought up (ids) names in the order in which they are seen; `suffix` is cut from texts."""

    def __init__(self, suffix: str) -> None:
        self._suffix = suffix
        self._names: dict[tuple[str, object], str] = {}
        self._counts: dict[str, int] = {}

    def name(self, kind: str, value: object) -> str:
        """The name of `value`, a new one if it was not seen before."""
        if (kind, value) not in self._names:
            self._counts[kind] = self._counts.get(kind, 0) + 1
            self._names[kind, value] = f"<{kind} {self._counts[kind]}>"
        return self._names[kind, value]

    def shorten(self, value: str) -> str:
        """A text without the story's suffix."""
        return value.replace(self._suffix, "~")


def _member(names: Names, value: str) -> str:
    return names.name("member", value) if _GIVEN_OUT.fullmatch(value) else names.shorten(value)


def _topic_id(names: Names, value: UUID) -> str:
    return "" if value == NO_UUID else names.name("topic id", value)


def _producer_id(names: Names, value: int) -> int | str:
    return names.name("producer", value) if 0 <= value < TYPED_IDS_FROM else value


def _said(_names: Names, value: str | None) -> str | None:
    return "<said>" if value else value


REPLACED: Final[Mapping[str, Callable[[Names, Any], Any]]] = {
    # how long a broker lets a client wait is its own affair
    "throttle_time_ms": lambda _names, _value: GONE,
    # thought up by the broker: compared by who is who, not by value
    "member_id": _member,
    "leader": _member,
    "topic_id": _topic_id,
    "producer_id": _producer_id,
    "session_id": lambda names, value: names.name("fetch session", value) if value else 0,
    "cluster_id": lambda _names, value: "<cluster id>" if value else value,
    # with KRaft any node that is alive
    "controller_id": lambda _names, value: "<node>" if value > 0 else value,
    # where it listens
    "port": lambda _names, value: "<port>" if value > 0 else value,
    # its own clock
    "transaction_start_time_ms": lambda _names, value: "<time>" if value > 0 else value,
    "last_timestamp": lambda _names, value: "<time>" if value > CLOCKS_FROM else value,
    "log_append_time_ms": lambda _names, value: "<time>" if value > CLOCKS_FROM else value,
    "timestamp": lambda _names, value: "<time>" if CLOCKS_FROM < value < CLOCKS_TO else value,
    # its own words; whether there are any is compared
    "error_message": _said,
    "batch_index_error_message": _said,
    "documentation": _said,
    # counts changes of the metadata log
    "finalized_features_epoch": lambda _names, _value: GONE,
}
"""What is done with fields of these names, in any message."""


def plain(value: object, names: Names, field: str = "") -> Any:
    """Dicts, lists and scalars. Lists of structs are sorted: their order has no meaning in Kafka's protocol."""
    if field in REPLACED:
        return REPLACED[field](names, value)
    if isinstance(value, Message):
        found = {each: plain(getattr(value, each), names, each) for each in value.__slots__}
        return {each: kept for each, kept in found.items() if kept is not GONE}
    if isinstance(value, list):
        plained = [plain(each, names) for each in value]
        if field == "configs":
            return {each["name"]: each for each in plained}
        return sorted(plained, key=repr) if value and isinstance(value[0], Message) else plained
    if field.endswith("error_code") and isinstance(value, int):
        return ErrorCode(value).name
    if field == "records":
        return None if value is None else _records(bytes(value), names)  # type: ignore[call-overload]
    if isinstance(value, str):
        return names.shorten(value)
    return bytes(value) if isinstance(value, memoryview) else value


def _records(data: bytes, names: Names) -> tuple[dict[str, Any], ...]:
    """Batches with their records, as one value; the time of a transaction's marker is the broker's own."""
    return tuple(
        _batch(data[header.start : header.start + header.size], header, names)
        for header in iter_batch_headers(data)
    )


def _batch(data: bytes, header: BatchHeader, names: Names) -> dict[str, Any]:
    kept = ("base_offset", "leader_epoch", "magic", "attributes", "last_offset_delta", "producer_epoch")
    found: dict[str, Any] = {name: getattr(header, name) for name in (*kept, "base_sequence", "record_count")}
    found["producer_id"] = _producer_id(names, header.producer_id)
    if header.is_control:
        return found | {"control": str(read_control_type(data, header))}
    stamped = header.timestamp_type == 1
    found["timestamps"] = "<time>" if stamped else (header.base_timestamp, header.max_timestamp)
    found["records"] = [(r.offset, r.key, r.value, r.headers) for r in decode_batch("", 0, data, header)]
    return found


def paths(value: object, path: str = "") -> Iterator[tuple[str, object]]:
    """Every scalar of a plain value with its place; an empty list or dict counts as one."""
    if isinstance(value, dict) and value:
        for name, each in value.items():
            yield from paths(each, f"{path}.{name}" if path else name)
    elif isinstance(value, list) and value:
        for index, each in enumerate(value):
            yield from paths(each, f"{path}[{index}]")
    else:
        yield path, value
