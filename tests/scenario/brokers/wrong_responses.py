"""Responses that decode but have wrong values in some fields."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any, Final
from uuid import UUID

from asyncgroup.broker.net.frames import encode_response
from asyncgroup.errors import DecodeError, UnsupportedVersionError
from asyncgroup.wire import messages as m
from asyncgroup.wire.codec import decode, encode
from asyncgroup.wire.message import Message
from asyncgroup.wire.schema import FieldSpec, MessageSpec, StructSpec, message_spec

RANGES: Final = {
    "int8": (-(2**7), 2**7 - 1),
    "int16": (-(2**15), 2**15 - 1),
    "int32": (-(2**31), 2**31 - 1),
    "int64": (-(2**63), 2**63 - 1),
}
TEXTS: Final = [
    "",
    "x",
    "orders",
    "g",
    "\x00",
    "a" * 300,
    "ü",
    "-1",
    "127.0.0.1",
    "no such host",
    "999.1.1.1",
    "[::1",
]
UNCHANGED: Final = ("JoinGroupResponse", "SyncGroupResponse")
"""Responses that are not changed: a member without partitions would stay so until the next rebalance."""

Found = list[tuple[Any, FieldSpec]]


class ResponseMutator:
    """Changes fields of one response in `every`, while it is `active`; replaces the server's response encoder.

    Error codes are changed less often, as most of them end the request. Epochs are not changed: a client keeps a higher
    one forever, because no broker may go back to a lower one (KIP-320).
    """

    def __init__(self, rng: random.Random, every: int, unchanged: Iterable[str] = ()) -> None:
        self.rng = rng
        self.unchanged = {*UNCHANGED, *unchanged}
        self.every = every
        self.active = False
        self.changes: list[str] = []

    def encode(self, response: Message, version: int, correlation_id: int) -> list[bytes]:
        """As `protocol.encode_response`."""
        if self.active and response.NAME not in self.unchanged and not self.rng.randrange(self.every):
            try:
                # a copy: the response may contain lists that belong to the broker
                changed = decode(type(response), version, encode(response, version))
                changes = self._mutate(changed, version)
                pieces = encode_response(changed, version, correlation_id)
            except (DecodeError, UnsupportedVersionError):
                pass
            else:
                self.changes += changes
                return pieces
        return encode_response(response, version, correlation_id)

    def _mutate(self, response: Message, version: int) -> list[str]:
        spec, found, changes = message_spec(response.NAME), [], []
        _collect(response, spec, spec.top, version, found)
        for _ in range(self.rng.choice([1, 1, 2, 3])):
            message, field = self.rng.choice(found)
            if _is_assignment(response, message, field):
                continue
            if "Epoch" in field.name or ("ErrorCode" in field.name and self.rng.random() < 0.9):
                continue
            value = self._other_value(field, version, getattr(message, field.attribute))
            setattr(message, field.attribute, value)
            changes.append(f"{type(message).__qualname__}.{field.attribute} = {value!r:.60}")
        return changes

    def _other_value(self, field: FieldSpec, version: int, value: Any) -> Any:
        rng = self.rng
        if version in field.nullable and rng.random() < 0.3:
            return None
        if field.name == "ThrottleTimeMs":
            return rng.choice([-(2**31), -1, 0, 500])
        if field.is_array:
            found = list(value or [])
            return rng.choice([[], found + found, found[: len(found) // 2], found[::-1]])
        if field.element in RANGES:
            low, high = RANGES[field.element]
            number = rng.choice(
                [0, 1, 2, 3, -1, low, high, value + 1, value - 1, 16, 25, rng.randint(low, high)]
            )
            return min(max(number, low), high)
        if field.element in ("bytes", "records"):
            data = bytes(value or b"")
            return rng.choice(
                [b"", rng.randbytes(40), data[: len(data) // 2], data + data, data[:-1] + b"\xff"]
            )
        if field.element == "uuid":
            return rng.choice([m.NO_UUID, UUID(int=5)])
        return {"string": rng.choice(TEXTS), "bool": not value}.get(field.element, value)


def _is_assignment(response: Message, message: Any, field: FieldSpec) -> bool:
    """Whether it belongs to an assignment of the consumer protocol, which is not sent again either."""
    is_heartbeat = response.NAME == "ConsumerGroupHeartbeatResponse"
    return is_heartbeat and (message is not response or field.name == "Assignment")


def _collect(message: Any, spec: MessageSpec, struct: StructSpec, version: int, found: Found) -> None:
    """Collect all fields of a message, with the objects that contain them."""
    for field in struct.fields:
        if version not in field.versions:
            continue
        found.append((message, field))
        if field.element in spec.structs:
            value = getattr(message, field.attribute)
            for part in (value if field.is_array else [value]) or []:
                if part is not None:
                    _collect(part, spec, spec.structs[field.element], version, found)
