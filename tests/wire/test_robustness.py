"""Malformed and malicious bytes: every decoder returns a message or raises DecodeError, fast and with little memory."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import suppress

import pytest
from hypothesis import given, strategies as st

from asyncgroup.errors import DecodeError
from asyncgroup.wire import messages as m
from asyncgroup.wire.codec import decode, decode_from, decode_versioned, encode
from asyncgroup.wire.decoder import MAX_ELEMENTS
from asyncgroup.wire.message import Message
from asyncgroup.wire.primitives import uvarint
from asyncgroup.wire.schema import FieldSpec, MessageSpec, StructSpec, message_spec
from asyncgroup.wire.tables import TABLES
from tests.memory_use import memory_under
from tests.profiles import long_family, thinned
from tests.wire.strategies import ALL_VERSIONS, few_examples, random_messages

HOSTILE = [
    b"\xff\xff\xff\xff",  # -1; the beginning of a varint
    b"\x7f\xff\xff\xff",  # the largest count
    b"\x80\x00\x00\x00",  # the smallest
    b"\xff\xff\xff\xff\x0f",  # the largest varint
    b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",  # a varint without end
    b"\xc3\x28\xed\xa0\x80",  # no UTF-8
    b"\x00",
    b"\x00\x00\x00\x00",
]
MEMORY_LIMIT = 2_000_000
"""Bytes; the messages have a few hundred bytes."""


def answers(name: str, version: int, data: bytes) -> None:
    with suppress(DecodeError):
        decode(getattr(m, name), version, data)


def full_message(name: str, version: int) -> Message:
    """Return a message with an element in every array and a value in every field."""
    spec = message_spec(name)
    return _full(spec, spec.top, version)


def _full(spec: MessageSpec, struct_: StructSpec, version: int) -> Message:
    top = getattr(m, spec.name)
    cls = top if struct_ is spec.top else getattr(top, struct_.name)
    fields = [field for field in struct_.fields if version in field.versions]
    return cls(**{field.attribute: _full_value(spec, field, version) for field in fields})


def _full_value(spec: MessageSpec, field: FieldSpec, version: int) -> object:
    if field.element in spec.structs:
        one: object = _full(spec, spec.structs[field.element], version)
    else:
        one = {"string": "name", "bytes": b"data", "records": b"data", "bool": True, "uuid": m.NO_UUID}.get(
            field.element, 3
        )
    return [one] if field.is_array else one


def test_full_message():
    (topic,) = full_message("FetchRequest", 12).topics
    assert (topic.topic, topic.partitions[0].partition) == ("name", 3)


@pytest.mark.parametrize(("name", "version"), long_family(ALL_VERSIONS, quick=12))
def test_random_bytes(name, version):
    @few_examples(6)
    @given(st.binary(max_size=120))
    def check(data: bytes) -> None:
        answers(name, version, data)

    check()


@pytest.mark.parametrize(("name", "version"), long_family(ALL_VERSIONS, quick=12))
def test_mutated_messages(name, version):
    changes = st.tuples(
        st.integers(0, 1 << 20),
        st.sampled_from(HOSTILE) | st.binary(max_size=6),
        st.integers(0, 6),
    )

    @few_examples(6)
    @given(random_messages(name, version), st.lists(changes, min_size=1, max_size=3))
    def check(message: Message, mutations: list[tuple[int, bytes, int]]) -> None:
        data = encode(message, version)
        for place, inserted, removed in mutations:
            at = place % (len(data) + 1)
            data = data[:at] + inserted + data[at + removed :]
        answers(name, version, data)

    check()


@pytest.mark.parametrize("name", TABLES)
def test_malicious_bytes_at_every_position(name):
    """The positions include all counts, lengths, tags and sizes of the message, in every version."""
    for version in thinned([version for each, version in ALL_VERSIONS if each == name], every=3):
        for data in with_something_hostile(name, version):
            answers(name, version, data)


def with_something_hostile(name: str, version: int) -> Iterator[bytes]:
    data = encode(full_message(name, version), version)
    assert decode(getattr(m, name), version, data)
    compact = version in message_spec(name).flexible  # lengths have one byte, otherwise two or four
    for place in range(len(data)):
        for hostile in HOSTILE:
            yield data[:place] + hostile + data[place + (1 if compact else len(hostile)) :]


@pytest.mark.parametrize(
    ("name", "version"),
    [
        ("FetchRequest", 11),
        ("FetchRequest", 13),
        ("MetadataResponse", 8),
        ("MetadataResponse", 12),
        ("FetchResponse", 16),
    ],
)
def test_malicious_counts_and_lengths_allocate_no_memory(name, version):
    with memory_under(MEMORY_LIMIT):
        for data in with_something_hostile(name, version):
            answers(name, version, data)


@pytest.mark.parametrize("version", [8, 12])
def test_a_count_of_billions_allocates_no_memory(version):
    head = b"\x00" * 10
    many = b"\xff\xff\xff\xff\x0f" if version == 12 else b"\x7f\xff\xff\xff"
    with memory_under(MEMORY_LIMIT), pytest.raises(DecodeError):
        decode(m.MetadataResponse, version, head[:4] + many + b"\x00" * 1000)


def refused_under(limit, cls, version, data) -> None:
    """Check that decoding fails because of a count, and takes less than `limit` bytes of memory."""
    expected = "more than the remaining bytes can hold or than a message may have"
    with memory_under(limit), pytest.raises(DecodeError, match=expected):
        decode(cls, version, data)


@pytest.mark.parametrize("version", [8, 12])
def test_a_count_larger_than_the_remaining_bytes_creates_no_elements(version):
    """The count is 200,000; the megabyte that follows is enough for 20,000 elements."""
    many = uvarint(200_001) if version == 12 else struct.pack(">i", 200_000)
    refused_under(50_000, m.MetadataResponse, version, b"\x00" * 4 + many + b"\x00" * 1_000_000)


@pytest.mark.parametrize("version", [8, 12])
def test_the_elements_of_a_request_are_limited(version):
    """Each element of two or three bytes becomes an object, so a frame of 100 MiB would take gigabytes."""
    compact = version == 12
    count = 30_000_000
    head = uvarint(count + 1) if compact else struct.pack(">i", count)
    elements = (bytes(16) + b"\x01\x00" if compact else b"\x00\x00") * (count if not compact else 3_000_000)
    refused_under(1_000_000, m.MetadataRequest, version, head + elements)


def test_the_limit_applies_to_all_arrays_of_a_request_together():
    """Nested arrays, each of them within the limit."""
    topic = b"\x02t" + uvarint(1001) + bytes(4) * 1000 + b"\x00"
    group = b"\x02g" + uvarint(121) + topic * 120 + b"\x00"
    whole = uvarint(3) + group * 2 + b"\x00\x00"
    assert len(decode(m.OffsetFetchRequest, 8, whole).groups[1].topics[119].partition_indexes) == 1000
    with pytest.raises(DecodeError, match="PartitionIndexes has 1000 elements: more than"):
        decode(m.OffsetFetchRequest, 8, uvarint(4) + group * 3 + b"\x00\x00")
    assert 240 * 1000 < MAX_ELEMENTS["request"] < 360 * 1000


def test_the_elements_of_a_response_are_limited():
    """Every three bytes would take a hundred bytes of memory."""
    count = 20_000_000
    data = bytes(4) + uvarint(count + 1) + b"\x01\x01\x00" * count
    refused_under(1_000_000, m.OffsetFetchResponse, 7, data)


def test_a_metadata_response_with_60000_partitions():
    nodes = [1, 2, 3]
    topic = m.MetadataResponse.MetadataResponseTopic(
        name="t",
        partitions=[m.MetadataResponse.MetadataResponsePartition(replica_nodes=nodes, isr_nodes=nodes)]
        * 60_000,
    )
    data = encode(m.MetadataResponse(topics=[topic]), 12)
    assert len(decode(m.MetadataResponse, 12, data).topics[0].partitions) == 60_000


def test_bytes_are_not_read_twice_because_of_a_wrong_tag_size():
    """Otherwise every two bytes of tags could cause a whole array after them to be decoded again."""
    nodes = encode(m.FetchResponse(node_endpoints=[m.FetchResponse.NodeEndpoint()] * 100), 16)
    head = encode(m.FetchResponse(), 16)[:-1]
    array = nodes[nodes.index(b"\x01\x00", len(head)) + 4 :]
    hostile = head + b"\x7f" + b"\x00\x00" * 126 + array
    with pytest.raises(DecodeError, match="NodeEndpoints"):
        decode(m.FetchResponse, 16, hostile)


@given(
    st.binary(max_size=60),
    st.sampled_from([m.ConsumerProtocolSubscription, m.OffsetCommitValue, m.GroupMetadataKey]),
)
def test_random_versioned_data(data, cls):
    with suppress(DecodeError):
        decode_versioned(cls, data)


@given(st.integers(0, 200))
def test_a_position_beyond_the_end(position):
    with pytest.raises(DecodeError):
        decode_from(m.HeartbeatResponse, 3, struct.pack(">ih", 0, 0), position + 3)
