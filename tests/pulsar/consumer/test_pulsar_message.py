"""PulsarMessage: the fields of a Record and those of Pulsar, of single messages and of batches."""

from __future__ import annotations

import copy
import pickle
import tracemalloc

import pytest

from asyncgroup.errors import DecodeError
from asyncgroup.model import Record
from asyncgroup.pulsar.consumer.pulsar_message import PulsarMessage
from asyncgroup.pulsar.wire.entry import Entry
from tests.pulsar.consumer.support import batch, batch_body, entry_of, id_of, metadata, pushed

TOPIC = "persistent://public/default/orders"


def messages(entry: Entry) -> list[PulsarMessage]:
    return [PulsarMessage(TOPIC, entry, index) for index in range(entry.count)]


def test_fields_of_a_single_message() -> None:
    meta = metadata(
        9,
        partition_key="a2V5",
        partition_key_b64_encoded=True,
        ordering_key=b"order",
        event_time=77,
        properties={"trace": "1", "ü": "ä"},
    )
    [message] = messages(entry_of(pushed(4, redelivery_count=2), meta, b"value"))
    assert isinstance(message, Record)
    assert (message.topic, message.partition, message.offset) == (TOPIC, 3, -1)
    assert (message.key, message.value) == (b"key", b"value")
    assert message.headers == [("trace", b"1"), ("ü", "ä".encode())]
    assert (message.timestamp, message.timestamp_type, message.leader_epoch) == (1000, 0, -1)
    assert message.time.timestamp() == 1
    assert message.message_id == id_of(4)
    assert message.properties == {"trace": "1", "ü": "ä"}
    assert (message.event_time, message.ordering_key, message.sequence_id) == (77, b"order", 9)
    assert (message.producer_name, message.redelivery_count) == ("p", 2)
    assert (message.index_in_topic, message.first_chunk_id) == (None, None)
    assert "1:4:3 key=b'key'" in repr(message)


def test_fields_of_a_batch_are_those_of_each_message() -> None:
    body = batch_body(
        [b"0", None, b""],
        partition_key=["a", None, "b"],
        properties=[{}, {"n": "1"}, {}],
        event_time=[0, 5, 0],
        sequence_id=[None, 30, None],
    )
    found = messages(entry_of(pushed(4), metadata(10, num_messages_in_batch=3), body))
    assert [message.message_id for message in found] == [id_of(4, index) for index in range(3)]
    assert [message.value for message in found] == [b"0", None, b""]
    assert [message.key for message in found] == [b"a", None, b"b"]
    assert [message.headers for message in found] == [[], [("n", b"1")], []]
    assert [message.event_time for message in found] == [None, 5, None]
    assert [message.sequence_id for message in found] == [10, 30, 12]


def test_a_field_is_decoded_once() -> None:
    [message] = messages(batch(4, 1))
    assert message.headers is message.headers
    assert message.properties is message.properties
    with pytest.raises(AttributeError, match="PulsarMessage has no attribute 'topics'"):
        _ = message.topics  # type: ignore[attr-defined]


def test_messages_are_equal_if_their_ids_are() -> None:
    first, second = messages(batch(4, 2))
    [again, _] = messages(batch(4, 2, redelivery_count=1))
    assert first == again
    assert first != second
    assert {first, second, again} == {first, second}
    second.offset = 8
    for copied in copy.copy(second), pickle.loads(pickle.dumps(second)):
        assert (copied, copied.offset, copied.value) == (second, 8, b"1")
    assert first != Record(first.topic, first.partition, first.offset)
    first.offset = 7
    assert first == again


def test_malformed_metadata_of_one_message_spares_the_others() -> None:
    broken = batch_body([b"0"]) + b"\x00\x00\x00\x05\x18\x01\x12\x01\xff" + b"1"
    first, second = messages(entry_of(pushed(4), metadata(num_messages_in_batch=2), broken))
    assert first.key is None
    assert second.value == b"1"
    body = b"\x00\x00\x00\x05\x18\x01\x0a\x01\xff" + b"1"
    [message] = messages(entry_of(pushed(4), metadata(num_messages_in_batch=1), body))
    assert message.value == b"1"
    with pytest.raises(DecodeError):
        _ = message.key


def test_a_message_is_small() -> None:
    entry = batch(4, 1000)
    tracemalloc.start()
    try:
        found = messages(entry)
        size, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert size / len(found) < 200
