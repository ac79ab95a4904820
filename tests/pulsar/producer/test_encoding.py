"""Frames of SEND: what a consumer reads in them, batches of one, batches that are too large, chunks."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st

from asyncgroup.errors import InvalidRecordError
from asyncgroup.pulsar.producer.encoding import batch_body
from asyncgroup.pulsar.wire.compression import COMPRESSIONS, decompress_body
from asyncgroup.pulsar.wire.metadata import SingleMessageMetadata
from tests.pulsar.producer.messages import LIMIT, NOW, Results, encoder, message, sent

TEXTS = st.text(st.characters(codec="utf-8"), max_size=10)
MESSAGES = st.fixed_dictionaries(
    {"value": st.none() | st.binary(max_size=300)},
    optional={
        "key": TEXTS | st.binary(max_size=10),
        "properties": st.dictionaries(TEXTS, TEXTS, max_size=3),
        "ordering_key": st.binary(max_size=5),
        "event_time": st.integers(1, 2**50),
    },
)


def key_bytes(options: dict[str, Any]) -> bytes | None:
    key = options.get("key")
    return key.encode() if isinstance(key, str) else key


@given(st.lists(MESSAGES, min_size=1, max_size=8), st.sampled_from(list(COMPRESSIONS)), st.integers(0, 2**40))
def test_a_consumer_reads_what_was_sent(contents: list[dict[str, Any]], compression: str, first: int) -> None:
    messages = [message(**each, sequence_id=first + 3 * number) for number, each in enumerate(contents)]
    (send,) = encoder(compression).encode_batch(messages, 1.0, LIMIT)
    command, entry = sent(send.pieces)
    last = first + 3 * (len(contents) - 1)
    assert (command.producer_id, command.num_messages) == (3, len(contents))
    assert (send.sequence_id, send.highest_sequence_id, send.count) == (first, last, len(contents))
    assert (command.sequence_id, command.highest_sequence_id) == (first, last if len(contents) > 1 else 0)
    assert entry.is_batch == send.is_batch == (len(contents) > 1)
    assert entry.metadata.publish_time == NOW
    assert entry.metadata.producer_name == "p"
    assert entry.metadata.partition_key == messages[0].key  # by which a broker dispatches the batch
    assert entry.metadata.ordering_key == messages[0].ordering_key
    assert send.size == sum(each.size for each in messages)
    for read, each, options in zip(entry.messages(), messages, contents, strict=True):
        assert read.value == options["value"]
        assert read.key == key_bytes(options)
        assert read.properties == options.get("properties", {})
        assert read.own.ordering_key == options.get("ordering_key")
        assert read.own.event_time == options.get("event_time", 0)
        assert read.sequence_id == each.sequence_id


@given(st.binary(max_size=20_000), st.integers(0, 2**63 - 1))
def test_the_shortest_metadata_is_that_of_the_compiled_functions(value: bytes, number: int) -> None:
    metadata = SingleMessageMetadata(payload_size=len(value), sequence_id=number).encode()
    assert (
        batch_body([message(value, sequence_id=number)]) == bytes([0, 0, 0, len(metadata)]) + metadata + value
    )


def test_a_delivery_time_is_in_the_metadata() -> None:
    send = encoder().encode_message(message(deliver_at=NOW + 5, sequence_id=0), 1.0)
    _, entry = sent(send.pieces)
    assert entry.metadata.deliver_at_time == NOW + 5


def test_small_bodies_and_those_that_do_not_shrink_are_not_compressed() -> None:
    small = encoder("zlib", min_size=100).encode_message(message(b"a" * 100, sequence_id=0), 1.0)
    larger = encoder("zlib", min_size=100).encode_message(message(b"a" * 101, sequence_id=0), 1.0)
    noise = encoder("zlib").encode_message(message(bytes(range(256)), sequence_id=0), 1.0)
    assert [sent(send.pieces)[1].metadata.compression for send in (small, larger, noise)] == [0, 2, 0]


def test_a_batch_of_one_key_among_others_has_its_last_number_only() -> None:
    messages = [message(key="a", sequence_id=number) for number in (0, 3, 4)]
    (send,) = encoder().encode_batch(messages, 1.0, LIMIT, by_key=True)
    command, entry = sent(send.pieces)
    assert (command.sequence_id, command.highest_sequence_id) == (4, 0)
    assert (entry.metadata.sequence_id, entry.metadata.highest_sequence_id) == (4, 0)
    assert (send.sequence_id, send.highest_sequence_id) == (4, 4)
    assert [each.sequence_id for each in entry.messages()] == [0, 3, 4]


@given(st.lists(st.integers(0, 400), min_size=1, max_size=20), st.booleans())
def test_a_batch_that_is_too_large_is_divided(sizes: list[int], by_key: bool) -> None:
    messages = [message(bytes(size), sequence_id=number) for number, size in enumerate(sizes)]
    sends = encoder().encode_batch(messages, 1.0, 600, by_key=by_key)
    assert all(send.wire_size <= 600 for send in sends)
    values = [each.value for send in sends for each in sent(send.pieces)[1].messages()]
    assert values == [bytes(size) for size in sizes]
    numbers = [(send.sequence_id, send.highest_sequence_id) for send in sends]
    assert numbers == sorted(numbers)


# --- chunks -------------------------------------------------------------------------------------------------------------


@given(
    st.binary(max_size=3000),
    st.integers(260, 1000),
    st.sampled_from(list(COMPRESSIONS)),
    st.sampled_from([0, 2**63 - 1]),
)
def test_chunks_are_put_together_again(value: bytes, limit: int, compression: str, number: int) -> None:
    encodes = encoder(compression, name="a-producer")
    receiver = Results()
    each = message(value, receiver, key="eggs", properties={"a": "b"})
    plan = encodes.cut(each, limit)
    each.sequence_id = number
    if plan.chunks == 1:
        assert encodes.encode_message(each, 1.0).wire_size <= limit
        return
    sends = encodes.encode_chunks(each, plan, 1.0)
    assert len(sends) == plan.chunks
    body = b""
    for position, send in enumerate(sends):
        assert send.wire_size <= limit
        command, entry = sent(send.pieces)
        metadata = entry.metadata
        assert (command.sequence_id, command.is_chunk, metadata.sequence_id) == (number, True, number)
        assert (metadata.uuid, metadata.chunk_id) == (f"a-producer-{number}", position)
        assert (metadata.num_chunks_from_msg, metadata.total_chunk_msg_size) == (
            len(sends),
            len(plan.payload),
        )
        assert (metadata.partition_key, metadata.properties) == ("eggs", {"a": "b"})
        body += entry.body
    assert decompress_body(metadata.compression, body, metadata.uncompressed_size, LIMIT) == value
    assert [send.size for send in sends] == [0] * (len(sends) - 1) + [each.size]
    assert [list(send.receivers) for send in sends] == [[]] * (len(sends) - 1) + [[receiver]]
    assert [send.count for send in sends] == [1] * len(sends)
    assert [send.is_last_chunk for send in sends] == [False] * (len(sends) - 1) + [True]


def test_metadata_that_fills_a_frame_is_refused() -> None:
    with pytest.raises(InvalidRecordError, match="metadata smaller than 300 bytes"):
        encoder().cut(message(bytes(1000), properties={"a": "b" * 1000}), 300)
