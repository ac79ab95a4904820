"""Encode an AckWindow as text for the metadata of an offset commit.

    <attempts> <kind> <body>, as base85 with the alphabet of Z85, which has no `;`

`attempts` are their number and pairs of (offset, count). The body has the runs above the base in the smallest of four
forms: a bit for each offset; the lengths of the runs; Golomb-Rice codes of the gaps between the offsets that are not
acknowledged, or between those that are. confluent's parallel-consumer has bitsets and run lengths only, in base64.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Final, NamedTuple

from asyncgroup.offsets.ack_window import AckWindow

__all__ = ["decode_window", "encode_window"]

_B85: Final = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
_Z85: Final = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_TO_Z85: Final = bytes.maketrans(_B85, _Z85)
_FROM_Z85: Final = bytes.maketrans(_Z85, _B85)

_NOTHING, _BITSET, _LENGTHS, _RICE_OF_HOLES, _RICE_OF_ACKED = range(5)
_MAX_SHIFT: Final = 31
_FIRST_TRY: Final = 1024
"""Runs whose forms are computed first, of a window that may have many more than fit."""
_MAX_SPAN: Final = 1 << 31
"""Offsets that a decoded window may span."""

Runs = list[tuple[int, int]]
"""Acknowledged offsets relative to the base: first, and the one after the last."""


class _Form(NamedTuple):
    """One way to encode the runs."""

    size: int
    """Bytes, with all but the attempts."""
    kind: int
    shift: int = 0
    """The parameter of the Golomb-Rice code: bits that are written as they are."""


def encode_window(window: AckWindow, base: int, room: int) -> str:
    """Return the window relative to `base`, which is its own base or lower, in at most `room` characters.

    Empty if all below the window's base, and nothing above it, is acknowledged and there are no attempts. If the whole does
    not fit, the last runs are left out, so that their records are delivered again; attempts get a quarter of the room,
    those of the lowest offsets first.
    """
    runs = [(start - base, end - base) for start, end in window.runs]
    if window.base > base:
        runs.insert(0, (0, window.base - base))
    if not runs and not window.attempts:
        return ""
    size = room * 4 // 5  # base85 makes five characters of four bytes
    head = _encode_attempts(window.attempts, base, size // 4 if runs else size)
    form, runs = _fit(runs, size - len(head))
    if not runs and head == b"\0":
        return ""
    return base64.b85encode(head + _build(form, runs)).translate(_TO_Z85).decode()


def decode_window(text: str, base: int) -> AckWindow:
    """Return the window that `encode_window` made of it. Raises ValueError for any other text."""
    if not text:
        return AckWindow(base)
    try:
        raw = base64.b85decode(text.encode("ascii").translate(_FROM_Z85))
        bytes_left = _Bytes(raw)
        attempts: dict[int, int] = {}
        offset = base
        for _ in range(bytes_left.varint()):
            offset += bytes_left.varint()
            attempts[offset] = bytes_left.varint()
        runs = list(_parse(bytes_left))
    except (IndexError, UnicodeEncodeError, ValueError) as error:
        raise ValueError(f"not an encoded window: {text!r:.60}") from error
    if runs and runs[-1][1] > _MAX_SPAN:
        raise ValueError(f"not an encoded window: it spans {runs[-1][1]} offsets, more than {_MAX_SPAN}")
    return AckWindow(base, [(base + start, base + end) for start, end in runs], attempts)


# --- choosing a form ---------------------------------------------------------------------------------------------------


def _fit(runs: Runs, room: int) -> tuple[_Form, Runs]:
    """Return as many of the first runs as fit into `room` bytes, and their smallest form."""
    fits, too_many = 0, _FIRST_TRY
    while too_many < len(runs) and _smallest(runs[:too_many]).size <= room:
        fits, too_many = too_many, 2 * too_many
    if too_many >= len(runs):
        form = _smallest(runs)
        if form.size <= room:
            return form, runs
        too_many = len(runs)
    while too_many - fits > 1:
        middle = (fits + too_many) // 2
        if _smallest(runs[:middle]).size <= room:
            fits = middle
        else:
            too_many = middle
    return _smallest(runs[:fits]), runs[:fits]


def _smallest(runs: Runs) -> _Form:
    """Return the smallest form; computed from the runs, without building any."""
    if not runs:
        return _Form(1, _NOTHING)
    end = runs[-1][1]
    holes, lengths = _holes(runs), [end - start for start, end in runs]
    missing, acked = sum(holes), sum(lengths)
    forms = [
        _Form(1 + (end + 7) // 8, _BITSET),
        _Form(1 + sum(map(_varint_size, holes)) + sum(map(_varint_size, lengths)), _LENGTHS),
    ]
    # the gap before the first offset of each hole (or run) is the run (or hole) before it; all other gaps are 0
    before = [0, *lengths] if holes[0] else lengths
    forms += _rice_forms(_RICE_OF_HOLES, missing, acked, before[:-1], end)
    forms += _rice_forms(_RICE_OF_ACKED, acked, missing, holes, end)
    return min(forms)


def _rice_forms(kind: int, number: int, others: int, gaps: list[int], end: int) -> Iterator[_Form]:
    if not number:
        return
    best = max(0, (others // number).bit_length() - 1)
    for shift in range(max(0, best - 1), min(best + 2, _MAX_SHIFT + 1)):
        bits = number * (shift + 1) + sum(gap >> shift for gap in gaps)
        yield _Form(2 + _varint_size(number) + _varint_size(end) + (bits + 7) // 8, kind, shift)


def _holes(runs: Runs) -> list[int]:
    """Return the number of offsets before each run that are not acknowledged."""
    return [runs[0][0], *(runs[i][0] - runs[i - 1][1] for i in range(1, len(runs)))]


# --- building ----------------------------------------------------------------------------------------------------------


def _build(form: _Form, runs: Runs) -> bytes:
    if form.kind == _NOTHING:
        return b"\0"
    holes, lengths = _holes(runs), [end - start for start, end in runs]
    kind = bytes([form.kind])
    if form.kind == _BITSET:
        bits = "".join("0" * hole + "1" * length for hole, length in zip(holes, lengths, strict=True))
        return kind + int(bits[::-1], 2).to_bytes((len(bits) + 7) // 8, "little")
    if form.kind == _LENGTHS:
        pairs = zip(holes, lengths, strict=True)
        return kind + b"".join(_varint(hole) + _varint(length) for hole, length in pairs)
    code = _rice_codes(form.shift)
    if form.kind == _RICE_OF_HOLES:
        number, before = sum(holes), 0
        parts = []
        for hole, length in zip(holes, lengths, strict=True):
            if hole:
                parts.append(code(before) + code(0) * (hole - 1))
                before = 0
            before += length
    else:
        number = sum(lengths)
        pairs = zip(holes, lengths, strict=True)
        parts = [code(hole) + code(0) * (length - 1) for hole, length in pairs]
    bits = "".join(parts)
    bits += "0" * (-len(bits) % 8)
    body = int(bits, 2).to_bytes(len(bits) // 8, "big")
    return kind + bytes([form.shift]) + _varint(number) + _varint(runs[-1][1]) + body


def _rice_codes(shift: int) -> _RiceCode:
    return _RiceCode(shift)


class _RiceCode:
    """Golomb-Rice code: the quotient by 2^shift as so many ones and a zero, then the remainder."""

    def __init__(self, shift: int) -> None:
        self._shift = shift
        self._known: dict[int, str] = {}

    def __call__(self, gap: int) -> str:
        if (bits := self._known.get(gap)) is None:
            rest = format(gap & ((1 << self._shift) - 1), f"0{self._shift}b") if self._shift else ""
            bits = self._known[gap] = "1" * (gap >> self._shift) + "0" + rest
        return bits


def _encode_attempts(attempts: dict[int, int], base: int, room: int) -> bytes:
    """Return the number of attempts and the pairs, of which the first that fit into `room` bytes."""
    pairs: list[bytes] = []
    size, last = 3, base  # with their number
    for offset in sorted(attempts):
        if offset < base:
            continue
        pair = _varint(offset - last) + _varint(attempts[offset])
        size += len(pair)
        if size > room:
            break
        pairs.append(pair)
        last = offset
    return _varint(len(pairs)) + b"".join(pairs)


def _varint(value: int) -> bytes:
    """Return seven bits a byte, the lowest first; the highest bit of a byte says that another one follows."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _varint_size(value: int) -> int:
    return max(1, (value.bit_length() + 6) // 7)


# --- parsing -----------------------------------------------------------------------------------------------------------


class _Bytes:
    """The bytes that are not parsed yet; IndexError after the last one, ValueError for a varint that is too long."""

    def __init__(self, raw: bytes) -> None:
        self._raw = raw
        self._at = 0

    def byte(self) -> int:
        self._at += 1
        return self._raw[self._at - 1]

    def varint(self) -> int:
        value = shift = 0
        while True:
            byte = self.byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
            if shift > 63:
                raise ValueError("a varint of more than nine bytes")

    def rest(self) -> bytes:
        rest, self._at = self._raw[self._at :], len(self._raw)
        return rest

    @property
    def is_empty(self) -> bool:
        return self._at >= len(self._raw)


def _parse(body: _Bytes) -> Iterator[tuple[int, int]]:
    kind = body.byte()
    if kind == _NOTHING:
        if not body.is_empty:
            raise ValueError("bytes after the end")
    elif kind == _BITSET:
        yield from _parse_bits(body.rest())
    elif kind == _LENGTHS:
        at = 0
        while not body.is_empty:
            start = at + body.varint()
            at = start + body.varint()
            yield start, at
    elif kind in (_RICE_OF_HOLES, _RICE_OF_ACKED):
        yield from _parse_rice(body, of_holes=kind == _RICE_OF_HOLES)
    else:
        raise ValueError(f"kind {kind}")


def _parse_bits(raw: bytes) -> Iterator[tuple[int, int]]:
    bits = bin(int.from_bytes(raw, "little"))[:1:-1]
    end = 0
    while (start := bits.find("1", end)) >= 0:
        end = bits.find("0", start)
        end = len(bits) if end < 0 else end
        yield start, end


def _parse_rice(body: _Bytes, *, of_holes: bool) -> Iterator[tuple[int, int]]:
    shift, number, end = body.byte(), body.varint(), body.varint()
    raw = body.rest()
    if shift > _MAX_SHIFT or number > 8 * len(raw):
        raise ValueError("more codes than bits")
    bits = bin(int.from_bytes(b"\1" + raw, "big"))[3:]
    at, offset = 0, 0
    for _ in range(number):
        zero = bits.index("0", at)
        rest = bits[zero + 1 : zero + 1 + shift]
        if len(rest) < shift:
            raise ValueError("cut off")
        gap = (zero - at << shift) + (int(rest, 2) if shift else 0)
        at = zero + 1 + shift
        if not of_holes:
            yield offset + gap, offset + gap + 1
        elif gap:
            yield offset, offset + gap
        offset += gap + 1
    if of_holes and offset < end:
        yield offset, end
    elif offset != end:
        raise ValueError("another end than said")
