"""Generator of well-formed requests with odd values.

Existing and impossible names, numbers at the limits of their types, ids from earlier responses, corrupt batches with a
valid CRC.
"""

from __future__ import annotations

import random
from collections import deque
from typing import Any, Final
from uuid import UUID

from asyncgroup.wire import messages as m
from asyncgroup.wire.codec import encode_versioned
from asyncgroup.wire.message import Message
from asyncgroup.wire.records import BatchBuilder
from asyncgroup.wire.schema import FieldSpec, MessageSpec, StructSpec, message_spec
from tests.wire.batches import with_valid_crc

BITS: Final = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
UNSIGNED: Final = {"uint16": 16, "uint32": 32}
USUAL: Final = ["name", "compact", "g", "tx", "range", "consumer", ""]
ODD: Final = [
    *["times", "__consumer_offsets", "__transaction_state", "../x", "a/b", ".", "..", "name-0", "x" * 249],
    *["x" * 250, "x" * 32_766, "\x00", "\n", "ü€😀", "None", "1", "2", "-1", "9" * 20, "9" * 5000, "²", "٣"],
    *["1_0", " 5", "+5", "0x10", "1e400", "nan", "true", "100", "*", "(" * 3000, "[", "a.*", "(a+)+", "{"],
    *["retention.ms", "retention.bytes", "segment.ms", "segment.bytes", "cleanup.policy", "compact,delete"],
    *["max.message.bytes", "compression.type", "gzip", "message.timestamp.type", "LogAppendTime", "delete"],
    *["min.insync.replicas", "message.timestamp.before.max.ms", "Stable", "Empty", "Ongoing", "classic"],
]
HEADER_NUMBERS: Final = {0: 8, 12: 4, 23: 4, 27: 8, 35: 8, 43: 8, 51: 2, 53: 4, 57: 4}
"""Position and size in bytes of the numbers in a batch's header."""


class OddRequests:
    """Generates requests; `learn` collects values from responses for use in later requests."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self._numbers: deque[int] = deque(maxlen=60)
        self._texts: deque[str] = deque(maxlen=40)
        self._uuids: deque[UUID] = deque(maxlen=20)

    def request(self, name: str, version: int) -> Message:
        """Return a request of an API that can be encoded in `version` (with rare exceptions)."""
        spec = message_spec(name)
        return self._struct(spec, spec.top, version)

    def learn(self, answer: object) -> None:
        """Collect the values in a response."""
        if isinstance(answer, Message):
            for name in type(answer).__slots__:
                self.learn(getattr(answer, name))
        elif isinstance(answer, list):
            for part in answer[:5]:
                self.learn(part)
        elif isinstance(answer, str) and 0 < len(answer) < 300:
            self._texts.append(answer)
        elif isinstance(answer, UUID) and answer.int:
            self._uuids.append(answer)
        elif isinstance(answer, int) and not isinstance(answer, bool) and answer not in (0, -1):
            self._numbers.append(answer)

    # -- values ----------------------------------------------------------------------------------------------

    def _struct(self, spec: MessageSpec, struct_: StructSpec, version: int) -> Message:
        top = getattr(m, spec.name)
        cls = top if struct_ is spec.top else getattr(top, struct_.name)
        fields = [field for field in struct_.fields if version in field.versions]
        made: Message = cls(**{field.attribute: self._value(spec, field, version) for field in fields})
        return made

    def _value(self, spec: MessageSpec, field: FieldSpec, version: int) -> object:
        if version in field.nullable and self.rng.random() < 0.2:
            return None
        if not field.is_array:
            return self._one(spec, field, version)
        count = self.rng.choice([0, 1, 1, 1, 2, 3]) if self.rng.random() < 0.97 else 40
        found = [self._one(spec, field, version) for _ in range(count)]
        if found and self.rng.random() < 0.15:
            found.append(self.rng.choice(found))
        return found

    def _one(self, spec: MessageSpec, field: FieldSpec, version: int) -> Any:
        kind = field.element
        if kind in spec.structs:
            return self._struct(spec, spec.structs[kind], version)
        if kind in BITS:
            return self._number(-(1 << BITS[kind] - 1), (1 << BITS[kind] - 1) - 1)
        if kind in UNSIGNED:
            return self._number(0, (1 << UNSIGNED[kind]) - 1)
        return {
            "string": self._text,
            "bytes": self._blob,
            "records": self._batch,
            "uuid": self._uuid,
            "bool": lambda: self.rng.random() < 0.5,
            "float64": lambda: self.rng.choice([0.0, 1.0, -1.0, float("nan"), float("inf")]),
        }[kind]()

    def _number(self, low: int, high: int) -> int:
        rng, kind = self.rng, self.rng.random()
        if kind < 0.4:
            number = rng.choice([0, 1, 2, 3])
        elif kind < 0.6:
            number = -1
        elif kind < 0.75 and self._numbers:
            number = rng.choice(self._numbers)
        elif kind < 0.9:
            number = rng.choice([low, high, low + 1, high - 1, -2, 100, 6000, 30_000])
        else:
            number = rng.randint(low, high)
        return number if low <= number <= high else 0

    def _text(self) -> str:
        kind = self.rng.random()
        if kind < 0.3 and self._texts:
            return self.rng.choice(self._texts)
        return self.rng.choice(USUAL if kind < 0.6 else ODD)

    def _uuid(self) -> UUID:
        if self._uuids and self.rng.random() < 0.6:
            return self.rng.choice(self._uuids)
        return self.rng.choice([m.NO_UUID, UUID(int=1), UUID(int=self.rng.getrandbits(128))])

    def _blob(self) -> bytes:
        kind = self.rng.random()
        if kind < 0.3:
            return b""
        if kind < 0.5:
            return encode_versioned(m.ConsumerProtocolSubscription(topics=["name"]), self.rng.randint(0, 3))
        return self.rng.randbytes(self.rng.choice([1, 3, 20, 70_000]) if kind < 0.6 else 30)

    # -- batches ---------------------------------------------------------------------------------------------

    def _batch(self) -> bytes | None:
        rng = self.rng
        if rng.random() < 0.05:
            return rng.choice([None, b"", rng.randbytes(80)])
        builder = BatchBuilder(
            rng.choice(["none", "none", "gzip", "snappy", "lz4", "zstd"]),
            transactional=rng.random() < 0.3,
            producer_id=self._number(-1, 2**63 - 1) if rng.random() < 0.6 else -1,
            producer_epoch=self._number(-1, 2**15 - 1) if rng.random() < 0.6 else -1,
            base_sequence=self._number(-1, 2**31 - 1) if rng.random() < 0.6 else -1,
        )
        for _ in range(rng.randint(1, 4)):
            time = rng.choice([0, -1, 1000, 2**62, 1_700_000_000_000])
            key, value = rng.choice([None, b"k", b""]), rng.choice([None, b"v", b"v" * 300])
            builder.append(time, key, value, [("h", b"x")] if rng.random() < 0.3 else [])
        data = builder.build()
        for _ in range(rng.choice([0, 0, 0, 1, 1, 3])):
            data = self._spoilt(data)
        return with_valid_crc(data) if len(data) >= 61 and rng.random() < 0.8 else data

    def _spoilt(self, data: bytes) -> bytes:
        rng, kind = self.rng, self.rng.random()
        if kind < 0.4 and data:
            at = rng.randrange(len(data))
            return data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]
        if kind < 0.6:
            at = rng.choice(list(HEADER_NUMBERS))
            size = HEADER_NUMBERS[at]
            number = rng.choice([-1, 0, (1 << 8 * size - 1) - 1, -(1 << 8 * size - 1)])
            return data[:at] + number.to_bytes(size, "big", signed=True) + data[at + size :]
        if kind < 0.7:  # a header that claims the maximum number of records
            return data[:23] + (2**31 - 2).to_bytes(4, "big") + data[27:57] + b"\x7f\xff\xff\xff" + data[61:]
        if kind < 0.8:
            return data[: rng.randrange(len(data) + 1)]
        return data + (data if kind < 0.9 else rng.randbytes(rng.randint(1, 20)))
