"""Bytes that nobody should send: every decoder answers with a message or a DecodeError, soon and in little memory."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import suppress

import pytest
from hypothesis import given, strategies as st

from asyncgroup.errors import DecodeError
from asyncgroup.wire import messages as m
from asyncgroup.wire.codec import decode, decode_from, encode
from asyncgroup.wire.decoder import MAX_ELEMENTS
from asyncgroup.wire.message import Message
from asyncgroup.wire.primitives import uvarint
from asyncgroup.wire.schema import FieldSpec, MessageSpec, StructSpec, message_spec
from asyncgroup.wire.versioned import decode_versioned
from tests.memory import memory_under
from tests.wire.strategies import ALL_VERSIONS, few_examples, random_messages

HOSTILE = [
    b"\xff\xff\xff\xff",  # -1; a varint's beginning
    b"\x7f\xff\xff\xff",  # the largest count
    b"\x80\x00\x00\x00",  # the smallest
    b"\xff\xff\xff\xff\x0f",  # the largest varint
    b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",  # a varint without end
    b"\xc3\x28\xed\xa0\x80",  # no UTF-8
    b"\x00",
    b"\x00\x00\x00\x00",
]
MEMORY_LIMIT = 2_000_000
"""Bytes; messages here have a few hundred."""


def answers(name: str, version: int, data: bytes) -> None:
    with suppress(DecodeError):
        decode(getattr(m, name), version, data)


def full_message(name: str, version: int) -> Message:
    """A message with an element in every array and something in every field that is not a number."""
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


def test_full_messages_are_full():
    (topic,) = full_message("FetchRequest", 12).topics
    assert (topic.topic, topic.partitions[0].partition) == ("name", 3)


@pytest.mark.parametrize(("name", "version"), ALL_VERSIONS)
def test_random_bytes(name, version):
    @few_examples(6)
    @given(st.binary(max_size=120))
    def check(data: bytes) -> None:
        answers(name, version, data)

    check()


@pytest.mark.parametrize(("name", "version"), ALL_VERSIONS)
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


@pytest.mark.parametrize(("name", "version"), ALL_VERSIONS)
def test_something_hostile_at_every_place(name, version):
    """Among the places are all counts, lengths, tags and sizes that the message has."""
    for data in with_something_hostile(name, version):
        answers(name, version, data)


def with_something_hostile(name: str, version: int) -> Iterator[bytes]:
    data = encode(full_message(name, version), version)
    assert decode(getattr(m, name), version, data)
    compact = version in message_spec(name).flexible  # a length is one byte here, else two or four
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
def test_hostile_counts_and_lengths_cost_no_memory(name, version):
    with memory_under(MEMORY_LIMIT):
        for data in with_something_hostile(name, version):
            answers(name, version, data)


@pytest.mark.parametrize("version", [8, 12])
def test_a_count_of_billions_costs_nothing(version):
    head = b"\x00" * 10
    many = b"\xff\xff\xff\xff\x0f" if version == 12 else b"\x7f\xff\xff\xff"
    with memory_under(MEMORY_LIMIT), pytest.raises(DecodeError):
        decode(m.MetadataResponse, version, head[:4] + many + b"\x00" * 1000)


def refused_under(limit, cls, version, data) -> None:
    """It is refused for its counts, and that takes less than `limit` bytes of memory."""
    said = "more than the bytes can hold, or than a message may have"
    with memory_under(limit), pytest.raises(DecodeError, match=said):
        decode(cls, version, data)


@pytest.mark.parametrize("version", [8, 12])
def test_a_count_that_the_rest_cannot_hold_makes_no_element(version):
    """A megabyte follows, enough for 20,000 elements; 200,000 are announced."""
    many = uvarint(200_001) if version == 12 else struct.pack(">i", 200_000)
    refused_under(50_000, m.MetadataResponse, version, b"\x00" * 4 + many + b"\x00" * 1_000_000)


@pytest.mark.parametrize("version", [8, 12])
def test_a_request_has_an_end_however_long_its_frame(version):
    """Elements of two or three bytes, each an object: a frame of 100 MiB would take gigabytes."""
    compact = version == 12
    count = 30_000_000
    head = uvarint(count + 1) if compact else struct.pack(">i", count)
    elements = (bytes(16) + b"\x01\x00" if compact else b"\x00\x00") * (count if not compact else 3_000_000)
    refused_under(1_000_000, m.MetadataRequest, version, head + elements)


def test_a_requests_arrays_count_together():
    """In nested arrays, each of them harmless by itself."""
    topic = b"\x02t" + uvarint(1001) + bytes(4) * 1000 + b"\x00"
    group = b"\x02g" + uvarint(121) + topic * 120 + b"\x00"
    whole = uvarint(3) + group * 2 + b"\x00\x00"
    assert len(decode(m.OffsetFetchRequest, 8, whole).groups[1].topics[119].partition_indexes) == 1000
    with pytest.raises(DecodeError, match="1000 PartitionIndexes are more than"):
        decode(m.OffsetFetchRequest, 8, uvarint(4) + group * 3 + b"\x00\x00")
    assert 240 * 1000 < MAX_ELEMENTS["request"] < 360 * 1000


def test_a_response_has_an_end_as_well():
    """Each three bytes of this would take a hundred of memory."""
    count = 20_000_000
    data = bytes(4) + uvarint(count + 1) + b"\x01\x01\x00" * count
    refused_under(1_000_000, m.OffsetFetchResponse, 7, data)


def test_a_response_may_be_as_large_as_a_cluster():
    nodes = [1, 2, 3]
    topic = m.MetadataResponse.MetadataResponseTopic(
        name="t",
        partitions=[m.MetadataResponse.MetadataResponsePartition(replica_nodes=nodes, isr_nodes=nodes)]
        * 60_000,
    )
    data = encode(m.MetadataResponse(topics=[topic]), 12)
    assert len(decode(m.MetadataResponse, 12, data).topics[0].partitions) == 60_000


def test_the_same_bytes_are_not_read_twice_through_a_wrong_tag_size():
    """Else each two bytes of tags could have a whole array behind them read again."""
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
def test_a_position_behind_the_end(position):
    with pytest.raises(DecodeError):
        decode_from(m.HeartbeatResponse, 3, struct.pack(">ih", 0, 0), position + 3)
