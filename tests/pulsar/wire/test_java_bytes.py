"""What Pulsar's Java classes write is read, and what is written here is equal where the fields are the same."""

from __future__ import annotations

import pytest

from asyncgroup.pulsar.wire.commands import (
    NO_REQUEST,
    CommandAck,
    CommandConnected,
    CommandError,
    CommandFlow,
    CommandLookupTopic,
    CommandMessage,
    CommandSend,
    FeatureFlags,
    MessageIdData,
)
from asyncgroup.pulsar.wire.compression import COMPRESSIONS, decompress_body
from asyncgroup.pulsar.wire.entry import decode_entry
from asyncgroup.pulsar.wire.enums import AckType
from asyncgroup.pulsar.wire.frames import decode_frame, encode_frame, payload_bounds
from asyncgroup.pulsar.wire.message_id import EARLIEST, LATEST, MessageId
from asyncgroup.pulsar.wire.metadata import EncryptionKeys, MessageMetadata
from asyncgroup.pulsar.wire.server_errors import ServerError
from asyncgroup.pulsar.wire.topic_name import topics_hash
from tests.pulsar.wire import java_bytes as java

LIMIT = 1 << 20


@pytest.mark.parametrize(("name", "body", "compressed"), java.COMPRESSED)
def test_compressions(name: str, body: bytes, compressed: str) -> None:
    assert decompress_body(COMPRESSIONS[name], bytes.fromhex(compressed), len(body), LIMIT) == body


@pytest.mark.parametrize(("data", "text"), java.IDS)
def test_serialized_ids(data: str, text: str) -> None:
    found = MessageId.from_bytes(bytes.fromhex(data))
    *first, last = text.split(";")
    assert str(found) == last
    assert MessageId.parse(last) == found
    assert MessageId.from_bytes(bytes(found)) == found
    assert [str(found.first_chunk_id)] == (first or ["None"])
    assert found.batch_size == (10 if "300a" in data else None)
    # Java's client writes a size of 0 without a batch, which it reads as none
    assert bytes(found).hex() == data.replace("3000", "").replace("3a09", "3a07")


def test_the_first_and_the_last_id() -> None:
    assert [MessageId.from_bytes(bytes.fromhex(data)) for data, _ in java.IDS[4:6]] == [EARLIEST, LATEST]


@pytest.mark.parametrize(("names", "expected"), java.TOPICS_HASHES)
def test_hashes_of_topics(names: list[str], expected: str) -> None:
    assert topics_hash(names) == topics_hash(reversed(names)) == expected


def test_metadata() -> None:
    found = MessageMetadata.decode(java.METADATA)
    assert found == MessageMetadata(
        producer_name="standalone-0-1",
        sequence_id=1000,
        publish_time=1790000000000,
        properties={"a": "b", "é": ""},
        replicated_from="other",
        partition_key="key",
        replicate_to=["__local__", "x"],
        compression=3,
        uncompressed_size=0xFFFFFFFF,  # -1 in Java
        num_messages_in_batch=1,
        event_time=1790000000001,
        encryption_keys=[EncryptionKeys(key="k", value=b"\x00", metadata={"m": "v"})],
        schema_version=b"\x09",
        partition_key_b64_encoded=True,
        ordering_key=b"\x01\x02",
        deliver_at_time=-1,
        marker_type=20,
        txnid_least_bits=(1 << 64) - 1,
        txnid_most_bits=5,
        highest_sequence_id=1003,
        null_value=True,
        uuid="u",
        num_chunks_from_msg=3,
        total_chunk_msg_size=-5,
        chunk_id=1,
        compacted_batch_indexes=[0, 300],
    )
    found.uncompressed_size = 0
    again = found.encode()
    assert again == java.METADATA.replace(b"\x48" + b"\xff" * 9 + b"\x01", b"")


def test_send() -> None:
    command, end = decode_frame(java.SEND[4:])
    assert command == CommandSend(producer_id=1, sequence_id=1000, num_messages=5, highest_sequence_id=1004)
    parts = payload_bounds(java.SEND[4:], end)
    metadata = MessageMetadata.decode(java.SEND[4:], *parts.metadata)
    assert decompress_body(1, java.SEND[4 + parts.payload :], len(java.BATCH), LIMIT) == java.BATCH
    assert metadata.uncompressed_size == len(java.BATCH)


@pytest.mark.parametrize("frame", [java.MESSAGE[4:], java.MESSAGE_WITH_BROKER_METADATA[4:]])
def test_a_batch(frame: bytes) -> None:
    command, end = decode_frame(frame)
    assert command == CommandMessage(
        consumer_id=5,
        message_id=MessageIdData(ledger_id=12, entry_id=345),
        redelivery_count=2,
        ack_set=[0b11011],
        consumer_epoch=3,
    )
    entry = decode_entry(command, frame, end, 7, LIMIT)
    assert (entry.id, entry.count, entry.epoch, entry.redelivery_count) == (MessageId(12, 345, 7), 5, 3, 2)
    assert entry.is_batch
    assert entry.metadata.highest_sequence_id == 1004
    has_index = entry.broker is not None
    first, second, last = entry.messages()
    assert [one.id for one in (first, second, last)] == [MessageId(12, 345, 7, index) for index in (0, 1, 4)]
    assert (first.value, first.key, first.properties, first.own.event_time, first.sequence_id) == (
        b"one",
        b"k1",
        {"p": "q"},
        1790000000000,
        1000,
    )
    assert (second.value, second.key, second.sequence_id) == (None, None, 1001)
    assert (last.value, last.key, last.own.ordering_key, last.sequence_id) == (
        bytes(200),
        b"k2",
        b"\x07",
        1004,
    )
    assert last.position == (104 if has_index else None)
    assert first.position == (100 if has_index else None)


def test_the_broker_metadata_is_in_one_of_the_frames() -> None:
    for frame, expected in ((java.MESSAGE[4:], None), (java.MESSAGE_WITH_BROKER_METADATA[4:], 1790000000005)):
        command, end = decode_frame(frame)
        assert isinstance(command, CommandMessage)
        broker = decode_entry(command, frame, end, -1, LIMIT).broker
        assert (broker.broker_timestamp if broker else None) == expected


def test_commands() -> None:
    flags = FeatureFlags(
        supports_topic_watchers=True,
        supports_get_partitioned_metadata_without_auto_creation=True,
        supports_repl_dedup_by_lid_and_eid=True,
        supports_topic_watcher_reconcile=True,
    )
    commands = {
        java.CONNECTED: CommandConnected(
            server_version="Pulsar Server4.2.4",
            protocol_version=21,
            max_message_size=5 << 20,
            feature_flags=flags,
        ),
        java.ERROR: CommandError(request_id=NO_REQUEST, error=ServerError.AUTHENTICATION_ERROR, message="no"),
        java.FLOW: CommandFlow(consumer_id=5, message_permits=1000),
        java.LOOKUP: CommandLookupTopic(
            topic="persistent://public/default/x", request_id=7, authoritative=True
        ),
    }
    for frame, command in commands.items():
        assert decode_frame(frame[4:])[0] == command
    assert encode_frame(commands[java.FLOW]) == java.FLOW
    assert encode_frame(commands[java.ERROR]) == java.ERROR


def test_acks() -> None:
    whole = MessageIdData(ledger_id=12, entry_id=345)
    assert decode_frame(java.ACK[4:])[0] == CommandAck(
        consumer_id=5, ack_type=AckType.INDIVIDUAL, message_id=[whole], validation_error=3
    ), "properties of acks are skipped"
    indexes = MessageIdData(ledger_id=12, entry_id=345, ack_set=[-9, 15])
    ack = CommandAck(consumer_id=5, ack_type=AckType.INDIVIDUAL, message_id=[indexes], request_id=9)
    assert decode_frame(java.ACK_OF_INDEXES[4:])[0] == ack
    assert encode_frame(ack) == java.ACK_OF_INDEXES


def test_server_errors() -> None:
    assert [error.published_name for error in ServerError] == java.SERVER_ERRORS
    assert [*ServerError] == [*range(len(java.SERVER_ERRORS))]
