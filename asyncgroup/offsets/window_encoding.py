"""Encode an AckWindow as text for the metadata of an offset commit.

    <attempts> <kind> <body>, as base85 with the alphabet of Z85, which has no `;`

`attempts` are their number and pairs of (offset, count); a pair with the count 0 before another one of the same offset says that
no delivery of it had an outcome (`AckWindow.unfinished`). The body has the runs above the base in the smallest of four
forms: a bit for each offset; the lengths of the runs; Golomb-Rice codes of the gaps between the offsets that are not
acknowledged, or between those that are. confluent's parallel-consumer has bitsets and run lengths only, in base64.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from itertools import accumulate, repeat
from operator import add, rshift, sub
from typing import Final, NamedTuple

from asyncgroup.ack_window import AckWindow

__all__ = ["EncodedWindow", "decode_window", "encode_window"]

_B85: Final = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
_Z85: Final = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_TO_Z85: Final = bytes.maketrans(_B85, _Z85)
_FROM_Z85: Final = bytes.maketrans(_Z85, _B85)

_NOTHING, _BITSET, _LENGTHS, _RICE_OF_HOLES, _RICE_OF_ACKED = range(5)
_MAX_SHIFT: Final = 31
_ONE: Final = ord("1")
_RUNS_PER_BYTE: Final = 4
"""No form has more: a run and the hole before it take two bits at least."""
_MAX_SPAN: Final = 1 << 31
"""Offsets that a decoded window may span."""


class EncodedWindow(NamedTuple):
    """A window as text, and how much of it."""

    text: str
    end: int
    """The acknowledged offsets below it are in the text; those from there on had no room."""


class _Form(NamedTuple):
    """One way to encode the runs."""

    size: int
    """Bytes, with all but the attempts."""
    kind: int
    shift: int = 0
    """The parameter of the Golomb-Rice code: bits that are written as they are."""


def encode_window(window: AckWindow, base: int, room: int) -> EncodedWindow:
    """Return the window relative to `base`, which is its own base or lower, in at most `room` characters.

    The text is empty without attempts and without acknowledged records from `base` on. If the whole does not fit, the last
    runs are left out, so that their records are delivered again; attempts get a quarter of the room, those of the lowest
    offsets first. The cost depends on `room`, not on the window.
    """
    size = room * 4 // 5  # base85 makes five characters of four bytes
    most = _RUNS_PER_BYTE * size + 1
    starts, ends = window.first_runs(most)
    if window.base > base:
        # a value in chunks holds back the commit: what is acknowledged from there on is the first run
        starts.insert(0, base)
        ends.insert(0, window.base)
    if not starts and not window.attempts:
        return EncodedWindow("", base)
    head = _encode_attempts(window, base, size // 4 if starts else size)
    runs = _Runs(base, starts, ends)
    count = runs.count_within(size - len(head))
    if not count and head == b"\0":
        return EncodedWindow("", base)
    text = base64.b85encode(head + runs.build(count)).translate(_TO_Z85).decode()
    return EncodedWindow(text, ends[count - 1] if count else base)


def decode_window(text: str, base: int) -> AckWindow:
    """Return the window that `encode_window` made of it. Raises ValueError for any other text."""
    if not text:
        return AckWindow(base)
    try:
        raw = base64.b85decode(text.encode("ascii").translate(_FROM_Z85))
        bytes_left = _Bytes(raw)
        attempts: dict[int, int] = {}
        unfinished: set[int] = set()
        offset = base
        for _ in range(bytes_left.varint()):
            offset += bytes_left.varint()
            if count := bytes_left.varint():
                attempts[offset] = count
            else:
                unfinished.add(offset)
        runs = list(_parse(bytes_left))
    except (IndexError, UnicodeEncodeError, ValueError) as error:
        raise ValueError(f"not an encoded window: {text!r:.60}") from error
    if runs and runs[-1][1] > _MAX_SPAN:
        raise ValueError(f"not an encoded window: it spans {runs[-1][1]} offsets, more than {_MAX_SPAN}")
    window = AckWindow(base, [(base + start, base + end) for start, end in runs], attempts)
    window.unfinished = unfinished & window.attempts.keys()
    return window


# --- choosing a form ---------------------------------------------------------------------------------------------------


class _Runs:
    """Runs of acknowledged offsets, and the sizes of the forms of the first ones: from sums over them, without building any."""

    def __init__(self, base: int, starts: list[int], ends: list[int]) -> None:
        self._base = base
        self._starts = starts
        self._ends = ends
        self._holes = [start - base for start in starts[:1]]
        self._holes += map(sub, starts[1:], ends)
        self._lengths = list(map(sub, ends, starts))
        self._missing = list(accumulate(self._holes))
        self._acked = list(accumulate(self._lengths))
        self._sums: dict[tuple[int, int], list[int]] = {}  # by form and shift

    def count_within(self, room: int) -> int:
        """Return the number of first runs that fit into `room` bytes."""
        fits, too_many = 0, len(self._ends)
        if self.smallest(too_many).size <= room:
            return too_many
        while too_many - fits > 1:
            middle = (fits + too_many) // 2
            if self.smallest(middle).size <= room:
                fits = middle
            else:
                too_many = middle
        return fits

    def smallest(self, count: int) -> _Form:
        """Return the smallest form of the first `count` runs."""
        if not count:
            return _Form(1, _NOTHING)
        at = count - 1
        best = _Form(1 + (self._ends[at] - self._base + 7) // 8, _BITSET)
        if 1 + 2 * count < best.size:  # else it cannot be smaller: a byte for each hole and run at least
            best = min(best, _Form(1 + self._sum(_LENGTHS, 0)[at], _LENGTHS))
        # the gap before the first offset of each hole (or run) is the run (or hole) before it; all other gaps are 0
        missing, acked = self._missing[at], self._acked[at]
        best = self._rice(best, _RICE_OF_HOLES, missing, acked, at - 1)
        return self._rice(best, _RICE_OF_ACKED, acked, missing, at)

    def _rice(self, best: _Form, kind: int, number: int, others: int, last: int) -> _Form:
        """Return the smaller one of `best` and the code of `number` offsets with `others` in between; `last`: the last gap."""
        if not number:
            return best
        end = self._ends[last if kind == _RICE_OF_ACKED else last + 1] - self._base
        head = 2 + _varint_size(number) + _varint_size(end)
        shift = max(0, (others // number).bit_length() - 1)
        for each in range(max(0, shift - 1), min(shift + 2, _MAX_SHIFT + 1)):
            bits = number * (each + 1)
            if head + (bits + 7) // 8 < best.size:  # else it cannot be smaller
                bits += self._sum(kind, each)[last] if last >= 0 else 0
                best = min(best, _Form(head + (bits + 7) // 8, kind, each))
        return best

    def _sum(self, kind: int, shift: int) -> list[int]:
        """Return for each number of runs the bytes of their lengths, or the sum of the quotients of their gaps."""
        found = self._sums.get((kind, shift))
        if found is None:
            if kind == _LENGTHS:
                sizes = map(add, map(_varint_size, self._holes), map(_varint_size, self._lengths))
                found = list(accumulate(sizes))
            else:
                gaps = self._lengths if kind == _RICE_OF_HOLES else self._holes
                found = (
                    list(accumulate(map(rshift, gaps, repeat(shift)))) if shift else list(accumulate(gaps))
                )
            self._sums[kind, shift] = found
        return found

    def build(self, count: int) -> bytes:
        """Return the smallest form of the first `count` runs."""
        form, holes, lengths = self.smallest(count), self._holes[:count], self._lengths[:count]
        if form.kind == _NOTHING:
            return b"\0"
        end = self._ends[count - 1] - self._base
        kind = bytes([form.kind])
        if form.kind == _BITSET:
            return kind + self._bitset(count, end)
        if form.kind == _LENGTHS:
            both = zip(holes, lengths, strict=True)
            return kind + b"".join(_varint(hole) + _varint(length) for hole, length in both)
        return kind + _rice(form, holes, lengths, end)

    def _bitset(self, count: int, end: int) -> bytes:
        base, bits = self._base, bytearray(b"0") * end
        for start, after in zip(self._starts[:count], self._ends[:count], strict=True):
            if after == start + 1:
                bits[start - base] = _ONE
            else:
                bits[start - base : after - base] = b"1" * (after - start)
        # `int` takes the highest bit first
        bits.reverse()
        return int(bits, 2).to_bytes((end + 7) // 8, "little")


# --- building ----------------------------------------------------------------------------------------------------------


def _rice(form: _Form, holes: list[int], lengths: list[int], end: int) -> bytes:
    """Return the Golomb-Rice codes of the holes or runs, with their parameters."""
    code = _RiceCode(form.shift)
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
        both = zip(holes, lengths, strict=True)
        parts = [code(hole) + code(0) * (length - 1) for hole, length in both]
    bits = "".join(parts)
    bits += "0" * (-len(bits) % 8)
    body = int(bits, 2).to_bytes(len(bits) // 8, "big")
    return bytes([form.shift]) + _varint(number) + _varint(end) + body


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


def _encode_attempts(window: AckWindow, base: int, room: int) -> bytes:
    """Return the number of pairs and the pairs of (offset, attempts), of which the first that fit into `room` bytes."""
    attempts, number = window.attempts, 0
    pairs: list[bytes] = []
    size, last = 3, base  # with their number
    for offset in sorted(attempts):
        if offset < base:
            continue
        pair = _varint(offset - last) + _varint(attempts[offset])
        is_unfinished = offset in window.unfinished
        if is_unfinished:
            pair = _varint(offset - last) + b"\0\0" + _varint(attempts[offset])
        size += len(pair)
        if size > room:
            break
        pairs.append(pair)
        number += 1 + is_unfinished
        last = offset
    return _varint(number) + b"".join(pairs)


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
    # the 1 in front keeps the zeros that `bin` would drop
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
