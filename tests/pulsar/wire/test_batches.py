"""Messages as they are written into a batch, and keys."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given, strategies as st

from asyncgroup.pulsar.wire.batch import append_message
from asyncgroup.pulsar.wire.keys import decode_key, encode_key
from asyncgroup.pulsar.wire.metadata import SingleMessageMetadata
from tests.pulsar.wire import java_bytes as java
from tests.pulsar.wire.strategies import BYTES, TEXTS, drawn, unsigned

FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "sequence_id": unsigned(64),
        "partition_key": TEXTS,
        "partition_key_b64_encoded": st.booleans(),
        "ordering_key": BYTES,
        "event_time": unsigned(64),
        "properties": st.dictionaries(TEXTS, TEXTS, max_size=3),
    },
)


@given(BYTES | st.none(), FIELDS)
@drawn(300)
def test_a_message_is_its_metadata_and_its_payload(payload: bytes | None, fields: dict[str, Any]) -> None:
    body = bytearray(b"before")
    append_message(body, payload, **fields)
    metadata = SingleMessageMetadata(
        payload_size=len(payload or b""), null_value=payload is None, **fields
    ).encode()
    assert body == b"before" + struct.pack(">I", len(metadata)) + metadata + (payload or b"")


def test_a_batch_equals_that_of_java() -> None:
    body = bytearray()
    append_message(
        body, b"one", sequence_id=1000, partition_key="k1", event_time=1790000000000, properties={"p": "q"}
    )
    append_message(body, None, sequence_id=1001)
    append_message(body, bytearray(), sequence_id=1002)
    assert java.BATCH.startswith(body)
    key, is_base64 = encode_key(b"k2", base64_keys=True)
    last = bytearray()
    append_message(
        last,
        bytes(200),
        sequence_id=1004,
        partition_key=key,
        partition_key_b64_encoded=is_base64,
        ordering_key=b"\x07",
    )
    assert java.BATCH.endswith(last)


@pytest.mark.parametrize(
    ("payload", "fields", "error"),
    [
        (b"x", {"partition_key": b"bytes"}, TypeError),
        (b"x", {"properties": {"a": None}}, TypeError),
        (b"x", {"properties": [("a", "b")]}, TypeError),
        (b"x", {"properties": {"a": "b", "c": "\ud800"}}, ValueError),
        (b"x", {"ordering_key": "text"}, TypeError),
        (b"x", {"event_time": 1 << 64}, ValueError),
        (b"x", {"sequence_id": 1.5}, TypeError),
        ("text", {}, TypeError),
        (5, {}, TypeError),
        ([1000], {}, TypeError),
    ],
)
def test_a_message_that_does_not_fit_leaves_the_batch_as_it_was(
    payload: Any, fields: dict[str, Any], error: type[Exception]
) -> None:
    body = bytearray()
    append_message(body, b"first")
    before = bytes(body)
    with pytest.raises(error):
        append_message(body, payload, **fields)
    assert body == before


@given(st.binary(max_size=30))
@drawn(200)
def test_keys_of_bytes(key: bytes) -> None:
    text, is_base64 = encode_key(key, base64_keys=True)
    assert is_base64
    assert text.isascii()
    assert decode_key(text, is_base64=True) == key
    text, is_base64 = encode_key(key)
    assert decode_key(text, is_base64=is_base64) == key
    assert is_base64 or text.encode() == key


@given(st.text(max_size=10))
@drawn(200)
def test_keys_of_text(key: str) -> None:
    assert encode_key(key) == encode_key(key, base64_keys=True) == (key, False)
    assert decode_key(key, is_base64=False) == key.encode()


def test_bytes_that_are_not_text_are_base64() -> None:
    assert encode_key(b"key") == ("key", False)
    assert encode_key(b"key", base64_keys=True) == ("a2V5", True)
    assert encode_key(b"\xff") == ("/w==", True)
