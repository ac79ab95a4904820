"""Batches whose metadata claims a number of messages that they cannot have: the permits that they have used."""

from __future__ import annotations

import pytest

from asyncgroup.pulsar.consumer.receiving.arrivals import permits_of
from asyncgroup.pulsar.wire.commands import CommandMessage
from asyncgroup.pulsar.wire.frames import decode_frame
from tests.memory_use import memory_under
from tests.pulsar.wire.entries import batch_body, batch_frame


@pytest.mark.parametrize(
    ("count", "ack_set", "permits"),
    [
        (3, (), 3),
        (3, (0b101,), 2),
        (3, (-1,), 3),
        (0, (), 1),
        (-5, (), 1),
        (-(1 << 31), (0b11,), 1),
        ((1 << 31) - 1, (), (1 << 31) - 1),
        ((1 << 31) - 1, (0b11,), 2),
        ((1 << 31) - 1, (-1, 1), 65),
    ],
)
def test_permits(count: int, ack_set: tuple[int, ...], permits: int) -> None:
    frame = batch_frame(batch_body(b"a", b"b", b"c"), count, ack_set=ack_set)
    command, end = decode_frame(frame)
    assert isinstance(command, CommandMessage)
    with memory_under(100_000):
        assert permits_of(command, frame, end) == permits
