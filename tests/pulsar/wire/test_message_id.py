"""MessageId: order, text and bytes."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from asyncgroup.errors import ConfigError, DecodeError
from asyncgroup.pulsar.wire.commands import MessageIdData
from asyncgroup.pulsar.wire.message_id import EARLIEST, LATEST, MessageId
from tests.pulsar.wire.strategies import drawn, signed

IDS = st.builds(MessageId, signed(64), signed(64), signed(32), st.integers(-1, (1 << 31) - 1))


@given(IDS)
@drawn(300)
def test_text_bytes_and_the_part_of_a_command_are_the_id(found: MessageId) -> None:
    assert MessageId.parse(str(found)) == found
    assert MessageId.from_bytes(bytes(found)) == found
    assert MessageId.of(found.data()) == found
    assert MessageId.of(MessageIdData.decode(found.data().encode())) == found


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
