"""MessageId: order, text and bytes."""

from __future__ import annotations

import copy
import pickle

import pulsar
import pytest
from hypothesis import given, strategies as st

from asyncgroup.errors import ConfigError, DecodeError
from asyncgroup.pulsar.wire.commands import MessageIdData
from asyncgroup.pulsar.wire.message_id import (
    EARLIEST,
    LATEST,
    BatchMessageId,
    ChunkMessageId,
    MessageId,
    TopicMessageId,
)
from tests.pulsar.wire.strategies import drawn, signed

IDS = st.builds(MessageId, signed(64), signed(64), signed(32), st.integers(-1, (1 << 31) - 1))


@given(IDS)
@drawn(300)
def test_text_bytes_and_the_part_of_a_command_are_the_id(found: MessageId) -> None:
    assert MessageId.parse(str(found)) == found
    assert MessageId.from_bytes(bytes(found)) == found
    assert MessageId.of(found.data()) == found
    assert MessageId.of(MessageIdData.decode(found.data().encode())) == found


BATCHES = st.integers(1, 2000).flatmap(
    lambda size: st.builds(
        BatchMessageId, signed(64), signed(64), signed(32), st.integers(0, size - 1), st.just(size)
    )
)
CHUNKS = st.builds(
    lambda first, last: ChunkMessageId(MessageId(*last), MessageId(*first)),
    st.tuples(signed(64), signed(64), signed(32)),
    st.tuples(signed(64), signed(64), signed(32)),
)


@given(st.one_of(BATCHES, CHUNKS))
@drawn(300)
def test_bytes_have_the_size_of_a_batch_and_the_first_chunk(found: MessageId) -> None:
    plain = MessageId(*found)
    assert (found, hash(found), str(found), found.data()) == (plain, hash(plain), str(plain), plain.data())
    for same in (
        MessageId.from_bytes(bytes(found)),
        copy.copy(found),
        copy.deepcopy(found),
        pickle.loads(pickle.dumps(found)),
    ):
        assert same == found
        assert type(same) is type(found)
        assert (same.batch_size, same.first_chunk_id) == (found.batch_size, found.first_chunk_id)
    assert (plain.batch_size, plain.first_chunk_id) == (None, None)


@pytest.mark.parametrize(
    "found",
    [
        MessageId(1, 2),
        MessageId(1, 2, 3),
        BatchMessageId(1, 2, -1, 0, 1),
        BatchMessageId(1, 2, 3, 4, 700),
        ChunkMessageId(MessageId(1, 20), MessageId(1, 2)),
        ChunkMessageId(MessageId(1, 20, 3), MessageId(1, 2, 3)),
    ],
)
def test_the_c_plus_plus_client_stores_the_same_bytes(found: MessageId) -> None:
    theirs = pulsar.MessageId.deserialize(bytes(found))
    assert (theirs.ledger_id(), theirs.entry_id(), theirs.partition(), theirs.batch_index()) == found
    assert theirs.serialize() == bytes(found)


@pytest.mark.parametrize(
    "found",
    [
        MessageId(1, 2, 3),
        BatchMessageId(1, 2, 3, 4, 700),
        ChunkMessageId(MessageId(1, 20, 3), MessageId(1, 2, 3)),
    ],
)
def test_an_id_with_its_topic_is_the_id(found: MessageId) -> None:
    named = TopicMessageId("orders", found)
    assert (named, hash(named), str(named), bytes(named)) == (found, hash(found), str(found), bytes(found))
    for same in (named, copy.copy(named), copy.deepcopy(named), pickle.loads(pickle.dumps(named))):
        assert type(same) is TopicMessageId
        assert (same.topic, same.message_id) == ("persistent://public/default/orders", found)
        assert (same.batch_size, same.first_chunk_id) == (found.batch_size, found.first_chunk_id)
    assert "orders" in repr(named)


def test_the_topic_of_an_id_may_be_a_partition() -> None:
    found = TopicMessageId("shop/eu/orders-partition-3", MessageId(1, 2))
    assert (found.topic, found.partition) == ("persistent://shop/eu/orders", 3)
    assert TopicMessageId("orders-partition-3", MessageId(1, 2, 3)).partition == 3
    with pytest.raises(ConfigError, match="an id of persistent://public/default/orders-partition-3"):
        TopicMessageId("orders-partition-3", MessageId(1, 2, 4))
    with pytest.raises(ConfigError, match="a MessageId"):
        TopicMessageId("orders", "1:2:3")  # type: ignore[arg-type]


def test_a_size_that_is_no_size_is_left_out() -> None:
    """Java's clients write 0 if they do not know it."""
    for size in (0, 5, -1):
        data = MessageIdData(ledger_id=1, entry_id=2, batch_index=5, batch_size=size)
        assert MessageId.from_bytes(data.encode()).batch_size is None


def test_ids_sort_in_the_order_of_messages() -> None:
    ids = [
        EARLIEST,
        MessageId(1, 5),
        MessageId(1, 6, -1, 0),
        MessageId(1, 6, -1, 1),
        MessageId(1, 10),
        MessageId(2, 0),
        LATEST,
    ]
    shuffled = ids[::-1]
    shuffled.sort()
    assert shuffled == ids
    assert MessageId(3, 4, 5, 6) == (3, 4, 5, 6)


def test_the_partition_of_a_command_may_be_replaced() -> None:
    data = MessageIdData(ledger_id=1, entry_id=2)
    assert MessageId.of(data) == MessageId(1, 2, -1)
    assert MessageId.of(data, 7) == MessageId(1, 2, 7)


@pytest.mark.parametrize(
    "text",
    [
        "", "1", "1:2", "1:2:3:4:5", "1:2:x", "1::3", " 1:2:3", "1:2:3 ", "1:2:3\n", "+1:2:3", "1_0:2:3", "1:2:3:", "١:2:3",
        "1:2:3;1:3:3", "9223372036854775808:0:0", "0:-9223372036854775809:0", "0:0:2147483648", "0:0:0:2147483648",
        "9" * 5000 + ":0:0",
    ],
)  # fmt: skip
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"ledger:entry:partition or ledger:entry:partition:index"):
        MessageId.parse(text)


@pytest.mark.parametrize("data", [b"", b"\x08\x01", b"\x08\x01\x10", b"\x08\x01\x10\x02\x00", b"12:345:-1"])
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(DecodeError):
        MessageId.from_bytes(data)


def test_numbers_that_do_not_fit_are_refused() -> None:
    with pytest.raises(DecodeError, match="does not fit 64 bits"):
        MessageId.of(MessageIdData(ledger_id=1 << 64, entry_id=0))
    with pytest.raises(ValueError, match="does not fit 64 bits"):
        bytes(MessageId(1 << 64, 0))
