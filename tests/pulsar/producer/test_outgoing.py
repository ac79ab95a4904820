"""Messages on their way out: checks of their arguments, keys on the wire, sizes."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, strategies as st

from asyncgroup.errors import InvalidRecordError
from asyncgroup.pulsar.producer.outgoing import MESSAGE_OVERHEAD, key_text
from asyncgroup.pulsar.wire.entry import decode_key
from tests.pulsar.producer.messages import NOW, message


@given(st.binary() | st.text(st.characters(codec="utf-8")), st.booleans())
def test_a_consumer_reads_the_bytes_of_a_key(key: bytes | str, base64_keys: bool) -> None:
    text, is_base64 = key_text(key, base64_keys=base64_keys)
    assert decode_key(text, is_base64=is_base64) == (key if isinstance(key, bytes) else key.encode())


@pytest.mark.parametrize(
    ("key", "text", "is_base64"),
    [
        ("eggs", "eggs", False),
        (b"eggs", "eggs", False),
        ("Spiegel-Ei ä", "Spiegel-Ei ä", False),
        ("ä".encode(), "ä", False),
        (b"", "", False),
        (b"\xff\x00", "/wA=", True),
    ],
)
def test_bytes_that_are_text_are_the_same_key_as_the_text(
    key: bytes | str, text: str, is_base64: bool
) -> None:
    assert key_text(key) == (text, is_base64)


def test_base64_keys_are_those_of_javas_key_bytes() -> None:
    assert key_text(b"eggs", base64_keys=True) == ("ZWdncw==", True)
    assert key_text("eggs", base64_keys=True) == ("eggs", False)


def test_a_key_that_was_read_as_surrogates_is_written_back() -> None:
    text = b"\xff".decode("utf-8", "surrogateescape")
    assert key_text(text) == (text, False)
    assert message(ordering_key=text).ordering_key == b"\xff"


def test_the_parts_of_a_message() -> None:
    found = message(
        b"one dozen",
        key="eggs",
        properties={"a": "b"},
        ordering_key="o",
        event_time=datetime(2024, 1, 1, tzinfo=UTC),
        deliver_after=1.5,
        sequence_id=5,
    )
    assert (found.key, found.properties, found.ordering_key, found.sequence_id) == (
        "eggs",
        {"a": "b"},
        b"o",
        5,
    )
    assert found.event_time == 1_704_067_200_000
    assert found.deliver_at == NOW + 1500
    assert found.size == 2 * MESSAGE_OVERHEAD + len(b"one dozeneggsabo")


def test_properties_are_copied() -> None:
    properties = {"a": "b"}
    found = message(properties=properties)
    properties["c"] = "d"
    assert found.properties == {"a": "b"}


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"value": "text"}, "value"),
        ({"value": 5}, "value"),
        ({"key": 5}, "key"),
        ({"key": "\ud800"}, "key"),
        ({"properties": {"a": 1}}, "properties"),
        ({"properties": {b"a": "b"}}, "properties"),
        ({"properties": {"a": "\ud800"}}, "properties"),
        ({"properties": [("a", "b")]}, "properties"),
        ({"properties": []}, "properties"),
        ({"ordering_key": 5}, "ordering_key"),
        ({"event_time": -1}, "event_time"),
        ({"event_time": datetime(2024, 1, 1)}, "event_time"),  # noqa: DTZ001
        ({"event_time": 1.5}, "event_time"),
        ({"deliver_at": "now"}, "deliver_at"),
        ({"deliver_after": -1}, "deliver_after"),
        ({"deliver_at": 5, "deliver_after": 1}, "deliver_after"),
        ({"sequence_id": -1}, "sequence_id"),
        ({"sequence_id": True}, "sequence_id"),
        ({"sequence_id": 2**63}, "sequence_id"),
    ],
)
def test_invalid_arguments_are_refused_by_name(options: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRecordError) as caught:
        message(**options)
    assert caught.value.field == field
