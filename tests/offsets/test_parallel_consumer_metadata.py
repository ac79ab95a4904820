"""The metadata of Confluent's parallel-consumer: vectors of the real encoder, an independent one, and other texts."""

from __future__ import annotations

import base64
import contextlib
import itertools
import struct
import tracemalloc

import pytest
from cramjam import zstd
from hypothesis import given, strategies as st

from asyncgroup.offsets.parallel_consumer_metadata import decode_parallel_consumer

# by parallel-consumer-core 0.5.3.3: OffsetSimultaneousEncoder with compressionForced, for offsets 100 to 119, of which 100, 105,
# 106 and 110 are incomplete
MIXED = {
    "l": "bAAUnvsPAA==",
    "a": "YSi1L/0AWDEAAAAUnvsPAA==",
    "n": "bgABAAQAAgADAAEACQ==",
    "J": "Sii1L/0AWGEAAAABAAQAAgADAAEACQ==",
    "o": "bwAAABSe+w8A",
    "s": "cyi1L/0AWEEAAAAAABSe+w8A",
    "e": "ZQAAAAEAAAAEAAAAAgAAAAMAAAABAAAACQ==",
    "p": "cCi1L/0AWMEAAAAAAAEAAAAEAAAAAgAAAAMAAAABAAAACQ==",
}
# offsets 5000 to 44999, of which 5000, 9000, 13000 … are incomplete: too many for the bitset with an int16
LONG = {
    "n": "bgABD58AAQ+fAAEPnwABD58AAQ+fAAEPnwABD58AAQ+fAAEPnwABD58=",
    "J": "Sii1L/0AWFUAACAAAQ+fAQAnHRE=",
    "s": "cyi1L/0AWJUAADgAAJxA/v8AAgCRcb968K6CIg==",
    "p": "cCi1L/0AWH0AAEAAAAABAAAPnwEANbRwAQ==",
}


@pytest.mark.parametrize("form", MIXED)
def test_vectors_of_the_real_encoder(form: str) -> None:
    window = decode_parallel_consumer(MIXED[form], 100)
    assert (window.base, window.runs) == (100, [(101, 105), (107, 110), (111, 120)])
    assert window.attempts == {}


@pytest.mark.parametrize("form", LONG)
def test_long_vectors_of_the_real_encoder(form: str) -> None:
    window = decode_parallel_consumer(LONG[form], 5_000)
    assert window.base == 5_000
    assert window.runs == [(at + 1, at + 4_000) for at in range(5_000, 45_000, 4_000)]


@pytest.mark.parametrize("text", ["", "bAAAAA==", "bgAA", "bwAAAAAA", "ZQAAAAA=", "cyi1L/0AWCkAAAAAAAAA"])
def test_no_completed_offsets(text: str) -> None:
    """The real encoder's output for a base without completed records above it."""
    window = decode_parallel_consumer(text, 7)
    assert (window.base, window.runs) == (7, [])


@pytest.mark.parametrize(
    "text", ["bAABAQA=", "bgAAAAE=", "bwAAAAEBAA==", "ZQAAAAAAAAAB", "Sii1L/0AWCEAAAAAAAE="]
)
def test_the_record_at_the_committed_offset_is_delivered(text: str) -> None:
    """The real encoder's output before anything has succeeded: it marks the record at the base as completed (#875)."""
    window = decode_parallel_consumer(text, 7)
    assert (window.base, window.runs) == (7, [])


# --- an independent encoder ----------------------------------------------------------------------------------------------


def encode(form: str, done: list[bool]) -> str:
    """Encode which records, from the base on, are completed."""
    plain = {"a": "l", "s": "o", "J": "n", "p": "e"}.get(form, form)
    if plain in "lo":
        body = struct.pack(">h" if plain == "l" else ">i", len(done))
        for at in range(0, len(done), 8):
            body += bytes([sum(1 << bit for bit, is_done in enumerate(done[at : at + 8]) if is_done)])
        body += b"\0"
    else:
        lengths = [(is_done, len(list(run))) for is_done, run in itertools.groupby(done)]
        if not lengths or lengths[0][0]:
            lengths.insert(0, (False, 0))
        body = b"".join(struct.pack(">h" if plain == "n" else ">i", length) for _, length in lengths)
    if form in "asJp":
        body = bytes(zstd.compress(body))
    return base64.b64encode(form.encode() + body).decode()


@pytest.mark.parametrize("form", "lonaseJp")
@given(st.lists(st.booleans(), max_size=300), st.integers(0, 2**60))
def test_every_form(form: str, done: list[bool], base: int) -> None:
    window = decode_parallel_consumer(encode(form, done), base)
    expected = {base + at for at, is_done in enumerate(done) if is_done and at}
    assert window.base == base
    assert {at for start, end in window.runs for at in range(start, end)} == expected


def test_the_independent_encoder_is_the_real_one() -> None:
    done = [offset not in (100, 105, 106, 110) for offset in range(100, 120)]
    assert {form: encode(form, done) for form in "lone"} == {form: MIXED[form] for form in "lone"}


# --- other texts ---------------------------------------------------------------------------------------------------------


def b64(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("foreachBatch/1:12@3400", "not base64"),
        ("bAAUnvsPAA=", "not base64"),
        ("b AAU", "not base64"),
        ("é", "not base64"),
        ("asyncgroup/1:00000000:o=1;", "not base64"),
        (b64(b"\x01" + bytes(8)), "unknown magic byte b'\\x01'"),  # Kafka Streams
        (b64(b"\x02" + bytes(16)), "unknown magic byte b'\\x02'"),
        (b64(b"L\x01\x00"), "unknown magic byte b'L'"),
        ("text", "unknown magic byte"),
        (b64(b"l"), "a bitset without a length"),
        (b64(b"o\x00\x00\x00"), "a bitset without a length"),
        (b64(b"l\xff\xff\x00"), "a bitset of -1 bits in 1 bytes"),
        (b64(b"l\x00\x11\x00\x00"), "a bitset of 17 bits in 2 bytes"),
        (b64(b"o\x7f\xff\xff\xff\x00"), "a bitset of 2147483647 bits in 1 bytes"),
        (b64(b"n\x00"), "run lengths of 2 bytes in 1 bytes"),
        (b64(b"e\x00\x00\x00\x01\x00\x00"), "run lengths of 4 bytes in 6 bytes"),
        (b64(b"n\x00\x01\xff\xff"), "a run of -1 records, after 1"),
        (b64(b"e" + b"\x7f\xff\xff\xff" * 2), "a run of 2147483647 records, after 2147483647"),
        (b64(b"aabc"), "zstd"),
        (b64(b"s" + bytes(zstd.compress(bytes(1 << 21)))), "more than the limit of 65536 bytes"),
    ],
)
def test_other_texts_are_errors(text: str, reason: str) -> None:
    with pytest.raises(ValueError) as caught:
        decode_parallel_consumer(text, 7)
    assert reason in str(caught.value)


@given(st.binary(max_size=60), st.sampled_from("lonaseJp"))
def test_any_body_is_a_window_or_an_error(body: bytes, form: str) -> None:
    try:
        window = decode_parallel_consumer(b64(form.encode() + body), 7)
    except ValueError:
        return
    assert window.base == 7


def test_hostile_lengths_allocate_little() -> None:
    texts = (
        b64(b"e" + struct.pack(">2i", 1, 2**31 - 2)),
        b64(b"p" + bytes(zstd.compress(struct.pack(">2i", 1, 1_000) * 8_000))),
        b64(b"s" + bytes(zstd.compress(struct.pack(">i", 8 << 14) + bytes([0x55]) * (1 << 14)))),
        b64(b"s" + bytes(zstd.compress(bytes(1 << 28)))),
    )
    tracemalloc.start()
    try:
        for text in texts:
            with contextlib.suppress(ValueError):
                decode_parallel_consumer(text, 7)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 100 << 20
