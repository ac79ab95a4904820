"""Entries: single messages, batches and chunks, whole and malformed."""

from __future__ import annotations

import re
import struct
import time
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, strategies as st

from asyncgroup.errors import DecodeError
from asyncgroup.pulsar.wire.ack_set import words_of
from asyncgroup.pulsar.wire.batch import append_message
from asyncgroup.pulsar.wire.commands import CommandMessage, MessageIdData
from asyncgroup.pulsar.wire.entry import Entry, EntryError
from asyncgroup.pulsar.wire.frames import encode_frame
from asyncgroup.pulsar.wire.message_id import MessageId
from asyncgroup.pulsar.wire.metadata import BrokerEntryMetadata, EncryptionKeys, SingleMessageMetadata
from tests.memory_use import memory_under
from tests.pulsar.wire.entries import LIMIT, batch_body, batch_frame, message_frame, metadata_of, opened
from tests.pulsar.wire.strategies import drawn
from tests.pulsar.wire.test_malformed import HOSTILE

SIZE, DECOMPRESSION, CHECKSUM, BATCH, DECRYPTION = range(5)
"""`CommandAck.ValidationError`."""


def refused(frame: bytes | bytearray, number: int, reason: str, count: int = 1, **options: Any) -> None:
    with pytest.raises(EntryError, match=reason) as raised:
        opened(frame, **options)
    assert raised.value.found.number == number
    assert raised.value.found.reason == str(raised.value)
    assert raised.value.count == count


def compacted(start: bytes = b"") -> bytes:
    metadata = SingleMessageMetadata(payload_size=0, compacted_out=True).encode() + start
    return struct.pack(">I", len(metadata)) + metadata


# --- single messages ----------------------------------------------------------------------------------------------------


def test_a_single_message() -> None:
    metadata = metadata_of(partition_key="key", properties={"a": "b"}, event_time=7, ordering_key=b"o")
    entry = opened(message_frame(metadata, b"value"), partition=2)
    assert (entry.id, entry.count, entry.redelivery_count, entry.epoch) == (MessageId(3, 4, 2), 1, 5, None)
    assert not entry.is_batch
    assert entry.unacked == 1
    assert repr(entry) == "<Entry 3:4:2: 1 messages>"
    (message,) = entry.messages()
    assert message.id == entry.id
    assert (message.value, message.key, message.properties, message.sequence_id) == (
        b"value",
        b"key",
        {"a": "b"},
        10,
    )
    assert message.own is entry.metadata
    assert message.position is None
    assert repr(message) == "<EntryMessage 3:4:2>"


def test_an_empty_value_is_not_a_null_value() -> None:
    (empty,) = opened(message_frame(metadata_of(), b"")).messages()
    assert empty.value == b""
    (null,) = opened(message_frame(metadata_of(null_value=True), b"")).messages()
    assert null.value is None


def test_keys() -> None:
    def key(**fields: Any) -> bytes | None:
        (message,) = opened(message_frame(metadata_of(**fields), b"")).messages()
        (batched,) = opened(batch_frame(single(**fields), 1)).messages()
        assert batched.key == message.key
        return message.key

    def single(**fields: Any) -> bytes:
        metadata = SingleMessageMetadata(payload_size=0, **fields).encode()
        return struct.pack(">I", len(metadata)) + metadata

    assert key() is None
    assert key(partition_key="") == b""
    assert key(partition_key="é") == "é".encode()
    assert key(partition_key="AP8=", partition_key_b64_encoded=True) == b"\x00\xff"
    assert key(partition_key="", partition_key_b64_encoded=True) == b""
    assert key(partition_key="AP8", partition_key_b64_encoded=True) == b"AP8", "no base64: as it is"
    assert key(partition_key="\udcff", partition_key_b64_encoded=True) == b"\xff"
    assert key(partition_key="x", null_partition_key=True) is None


def test_the_position_in_the_topic() -> None:
    (message,) = opened(message_frame(metadata_of(), b"", broker=BrokerEntryMetadata(index=7))).messages()
    assert message.position == 7
    frame = message_frame(
        metadata_of(num_messages_in_batch=3),
        batch_body(b"a", b"b", b"c"),
        broker=BrokerEntryMetadata(index=7),
    )
    assert [one.position for one in opened(frame).messages()] == [5, 6, 7]
    (message,) = opened(
        message_frame(metadata_of(), b"", broker=BrokerEntryMetadata(broker_timestamp=7))
    ).messages()
    assert message.position is None


# --- batches ------------------------------------------------------------------------------------------------------------

TEXTS = st.text(max_size=5) | st.just("x" * 200)
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {
            "payload": st.none()
            | st.binary(max_size=5)
            | st.sampled_from([b"x" * 127, b"x" * 128, b"x" * 20_000])
        },
        optional={
            "partition_key": TEXTS,
            "ordering_key": st.binary(max_size=5),
            "event_time": st.integers(0, (1 << 64) - 1),
            "properties": st.dictionaries(TEXTS, TEXTS, max_size=3),
            "sequence_id": st.integers(0, (1 << 64) - 1),
        },
    ),
    min_size=1,
    max_size=20,
)


@given(MESSAGES, st.integers(0, 4), st.data())
@drawn(300)
def test_batches_are_read_back(messages: list[dict[str, Any]], kind: int, data: st.DataObject) -> None:
    body = bytearray()
    for each in messages:
        append_message(body, **each)
    unacked = data.draw(st.sets(st.integers(0, len(messages) - 1), min_size=1) | st.none())
    ack_set = () if unacked is None else words_of(sum(1 << index for index in unacked))
    entry = opened(batch_frame(body, len(messages), kind=kind, ack_set=ack_set))
    assert entry.is_batch
    assert entry.count == len(messages)
    expected = [index for index in range(len(messages)) if unacked is None or index in unacked]
    found = [*entry.messages()]
    assert [one.index for one in found] == expected
    for one in found:
        written = messages[one.index]
        key = written.get("partition_key")
        assert one.id == MessageId(3, 4, -1, one.index)
        assert one.value == written["payload"]
        assert one.key == (None if key is None else key.encode())
        assert one.properties == written.get("properties", {})
        assert one.own.event_time == written.get("event_time", 0)
        assert one.own.ordering_key == written.get("ordering_key")
        assert one.sequence_id == written.get("sequence_id", 10 + one.index)


def test_a_batch_of_one_has_the_format_of_a_batch() -> None:
    entry = opened(batch_frame(batch_body(b"one"), 1))
    assert entry.is_batch
    (message,) = entry.messages()
    assert (message.id, message.value) == (MessageId(3, 4, -1, 0), b"one")


@given(MESSAGES, st.data())
@drawn(400)
def test_mutated_batches(messages: list[dict[str, Any]], data: st.DataObject) -> None:
    body = bytearray()
    for each in messages:
        append_message(body, **each)
    at = data.draw(st.integers(0, len(body)))
    until = data.draw(st.integers(at, min(at + 3, len(body))))
    body[at:until] = data.draw(st.binary(max_size=4) | st.sampled_from(HOSTILE))
    count = data.draw(st.just(len(messages)) | st.integers(-2, 25))
    frame = batch_frame(body, count)
    if (entry := opened_or_none(frame, max(1, count))) is not None:
        assert entry.count == count
        for start, payload, end in entry.bounds or ():
            assert 4 <= start <= payload <= end <= len(body)


def opened_or_none(frame: bytes, count: int) -> Entry | None:
    found: list[Entry] = []
    with suppress(EntryError):
        found.append(opened(frame))
    if not found:
        refused(frame, BATCH, ".", count)
    return found[0] if found else None


@pytest.mark.parametrize("count", [0, -1, -(1 << 31), 4, 5, 1000, (1 << 31) - 1])
def test_counts_that_are_wrong(count: int) -> None:
    frame = batch_frame(batch_body(b"a", b"b", b"c"), count)
    with memory_under(100_000):
        refused(frame, BATCH, "cannot have|ends", count=max(1, count))


def test_messages_after_the_last_one_are_ignored() -> None:
    # as in other clients
    assert [one.value for one in opened(batch_frame(batch_body(b"a", b"b", b"c"), 2)).messages()] == [
        b"a",
        b"b",
    ]


@pytest.mark.parametrize(
    ("metadata", "reason"),
    [
        (b"", "required field payload_size is missing"),
        (b"\x18", "payload_size is negative, or ends after its message"),
        (b"\x18\x80", "ends"),
        (b"\x18" + b"\xff" * 9 + b"\x01", "payload_size is negative, or ends after its message"),
        (b"\x18\xff\xff\xff\xff\x0f", "payload_size is negative, or ends after its message"),
        (b"\x18\xff\xff\xff\xff\x07", "a message ends after its batch"),
        (b"\x18\x05", "a message ends after its batch"),
        (b"\x18" + b"\xff" * 11, "longer than ten bytes"),
        (b"\x12\x01k\x20\x00", "required field payload_size is missing"),
        (b"\x12\x7fk\x18\x00", "required field payload_size is missing|ends"),
        (b"\x12\xff\xff\xff\xff\x07", "ends .* bytes after its message"),
        (b"\x02\x01k\x18\x00", "is not the tag of a field"),
        (b"\x0b\x18\x00\x00\x00\x00", "is not the tag of a field"),
        (b"\x00\x00\x18\x00\x00\x00", "is not the tag of a field"),
    ],
)
def test_metadata_of_a_message_that_are_malformed(metadata: bytes, reason: str) -> None:
    body = struct.pack(">I", len(metadata)) + metadata
    refused(batch_frame(body + bytes(6 - min(6, len(body))), 1), BATCH, reason)


@pytest.mark.parametrize("size", [3, 100, 1 << 31, (1 << 32) - 1])
def test_sizes_of_metadata_beyond_the_batch(size: int) -> None:
    refused(
        batch_frame(struct.pack(">I", size) + b"\x18\x00", 1),
        BATCH,
        "the metadata of a message ends after its batch",
    )


def test_a_batch_that_ends_between_two_messages() -> None:
    refused(batch_frame(batch_body(b"a", b"x" * 50), 3), BATCH, "the batch ends within a message", count=3)


def test_the_payload_size_is_found_after_any_field() -> None:
    metadata = (
        b"\x12\x81\x01"
        + b"k" * 129
        + b"\x9a\x06\x01x"
        + b"\x28\x05"
        + b"\x98\x06\x80\x01"
        + b"\x18\x83\x00"
        + b"\x40\x07"
    )
    (message,) = opened(batch_frame(struct.pack(">I", len(metadata)) + metadata + b"abc", 1)).messages()
    assert (message.value, message.key, message.sequence_id) == (b"abc", b"k" * 129, 7)


def test_metadata_of_a_message_are_decoded_when_they_are_asked_for() -> None:
    metadata = b"\x18\x01\x12\x7f"
    (message,) = opened(batch_frame(struct.pack(">I", len(metadata)) + metadata + b"v", 1)).messages()
    assert message.value == b"v"
    with pytest.raises(DecodeError, match="field partition_key ends after its message"):
        _ = message.own


# --- acknowledged and compacted -----------------------------------------------------------------------------------------


def values(frame: bytes) -> list[bytes | None]:
    return [one.value for one in opened(frame).messages()]


def test_messages_that_are_acknowledged_are_left_out() -> None:
    body = batch_body(*(bytes([number]) for number in range(70)))
    assert values(batch_frame(body, 70, ack_set=[0b1010])) == [b"\x01", b"\x03"], (
        "a missing word: acknowledged"
    )
    assert values(batch_frame(body, 70, ack_set=[0, 1])) == [b"\x40"]
    assert len(values(batch_frame(body, 70, ack_set=[-1, -1]))) == 70
    assert values(batch_frame(body, 70, ack_set=[0])) == []
    assert opened(batch_frame(body, 70, ack_set=[1])).present == (1 << 70) - 1
    entry = opened(batch_frame(body, 70, ack_set=[-1, -1, -1]))
    assert entry.unacked == (1 << 70) - 1


def test_of_a_compacted_batch_the_retained_messages_are_listed() -> None:
    body = batch_body(b"a") + compacted() + batch_body(b"c") + compacted()
    entry = opened(batch_frame(body, 4, compacted_batch_indexes=[0, 2]))
    assert [(one.index, one.value) for one in entry.messages()] == [(0, b"a"), (2, b"c")]
    assert (entry.count, entry.unacked, entry.present) == (4, 0b101, 0b101)
    assert values(batch_frame(body, 4, compacted_batch_indexes=[0, 2], ack_set=[0b110])) == [b"c"]
    assert values(batch_frame(body, 4, compacted_batch_indexes=[2, 2, -1, 4, 1 << 30])) == [b"c"]


def test_a_batch_of_an_earlier_compaction_marks_the_other_messages() -> None:
    body = batch_body(b"a") + compacted() + batch_body(None, b"") + compacted(b"\x2a\x00")
    entry = opened(batch_frame(body, 5))
    assert [(one.index, one.value) for one in entry.messages()] == [(0, b"a"), (2, None), (3, b"")]
    assert (entry.count, entry.unacked, entry.present) == (5, 0b01101, 0b01101)


def test_bytes_that_look_like_the_mark_are_none() -> None:
    assert values(batch_frame(batch_body(b"", partition_key="\x20\x01"), 1)) == [b""]


@pytest.mark.full
def test_large_batches_take_little_time() -> None:
    count = 200_000
    body = batch_body(b"") * (count // 2) + compacted() * (count // 2)
    start = time.process_time()
    entry = opened(batch_frame(body, count, ack_set=[-1] * (count // 64)), limit=10 << 20)
    assert len([*entry.messages()]) == count // 2
    entry = opened(batch_frame(body, count, compacted_batch_indexes=range(count // 2)), limit=10 << 20)
    assert len([*entry.messages()]) == count // 2
    opened(batch_frame(body, count, ack_set=[-1] * 200_000), limit=10 << 20)
    assert time.process_time() - start < 20, "the time is not proportional to the size"


# --- entries that cannot be read ----------------------------------------------------------------------------------------


def test_checksums_and_metadata() -> None:
    refused(message_frame(metadata_of(), b"x", checksum=1), CHECKSUM, "the checksum of a message is wrong")
    refused(message_frame(b"\x0a\x01p", b"x"), CHECKSUM, "required field sequence_id is missing")
    refused(message_frame(b"\x0a\x7fp", b"x"), CHECKSUM, "producer_name ends after its message")
    refused(message_frame(metadata_of(), b"x")[:25], CHECKSUM, "checksum|metadata")
    assert opened(message_frame(metadata_of(), b"x", checksum=1), check=False).count == 1


def test_a_wrong_checksum_costs_the_permits_of_a_batch() -> None:
    refused(message_frame(metadata_of(num_messages_in_batch=7), b"x", checksum=1), CHECKSUM, "wrong", count=7)


def test_metadata_of_the_broker_that_are_malformed() -> None:
    frame = message_frame(metadata_of(), b"x", broker=BrokerEntryMetadata(index=1))
    refused(
        frame.replace(b"\x0e\x02\x00\x00\x00\x02\x10", b"\x0e\x02\x00\x00\x00\x02\x13"),
        CHECKSUM,
        "wire type 3",
    )


def test_compressed_bodies() -> None:
    body = batch_body(b"a" * 1000)
    for kind in (1, 2, 3, 4):
        refused(
            batch_frame(body, 1, kind=kind, uncompressed_size=LIMIT + 1),
            SIZE,
            "larger than the limit of 1048576",
        )
        refused(
            batch_frame(body, 1, kind=kind, uncompressed_size=(1 << 32) - 1), SIZE, "larger than the limit"
        )
        refused(batch_frame(body, 1, kind=kind), SIZE, "larger than the limit of 100", limit=100)
        refused(
            batch_frame(body, 1, kind=kind, uncompressed_size=len(body) - 1),
            DECOMPRESSION,
            "malformed|but its metadata says",
        )
        refused(
            batch_frame(body, 9, kind=kind, uncompressed_size=len(body) + 1),
            DECOMPRESSION,
            "but its metadata says",
            count=9,
        )
        refused(
            message_frame(metadata_of(compression=kind, uncompressed_size=5), b"\xff" * 9),
            DECOMPRESSION,
            "malformed|bytes uncompressed",
        )
        refused(
            message_frame(metadata_of(compression=kind, uncompressed_size=5), b""),
            DECOMPRESSION,
            "malformed|bytes uncompressed",
        )
    refused(message_frame(metadata_of(compression=5), b"x"), DECOMPRESSION, "compression 5 is not known")
    refused(message_frame(metadata_of(compression=-1), b"x"), DECOMPRESSION, "compression -1 is not known")


def test_the_size_of_a_body_that_is_not_compressed_is_its_own() -> None:
    (message,) = opened(message_frame(metadata_of(uncompressed_size=99), b"value"), limit=2).messages()
    assert message.value == b"value"


def test_encrypted_messages_are_recognized() -> None:
    keys = [EncryptionKeys(key="k", value=b"v")]
    for fields in (
        {},
        {"num_messages_in_batch": 1},
        {"num_chunks_from_msg": 3, "chunk_id": 0},
        {"compression": 1},
    ):
        refused(message_frame(metadata_of(encryption_keys=keys, **fields), b"x"), DECRYPTION, "is encrypted")


def test_chunks_stay_compressed() -> None:
    fields = {
        "compression": 3,
        "uncompressed_size": 1 << 30,
        "num_chunks_from_msg": 2,
        "chunk_id": 1,
        "uuid": "p-10",
    }
    entry = opened(message_frame(metadata_of(**fields, total_chunk_msg_size=9), b"chunk"))
    assert (entry.body, entry.count, entry.is_batch) == (b"chunk", 1, False)
    assert entry.metadata.chunk_id == 1
    whole = metadata_of(num_chunks_from_msg=1, compression=3, uncompressed_size=5)
    refused(message_frame(whole, b"chunk"), DECOMPRESSION, "malformed")


def test_a_frame_without_payload() -> None:
    command = CommandMessage(consumer_id=1, message_id=MessageIdData(ledger_id=1, entry_id=1))
    refused(encode_frame(command)[4:], CHECKSUM, re.escape("a message ends before the size of its metadata"))


def test_the_body_does_not_hold_its_frame() -> None:
    for kind in range(5):
        for frame in (
            batch_frame(batch_body(b"a" * 100), 1, kind=kind),
            message_frame(metadata_of(num_chunks_from_msg=2), b"x"),
        ):
            data = bytearray(frame)
            entry = opened(data)
            assert type(entry.body) is bytes
            data.clear()  # BufferError if it were
            refusal = bytearray(frame)
            refusal[-1] ^= 1
            refused(refusal, CHECKSUM, "wrong")
            refusal.clear()
