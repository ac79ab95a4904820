"""Messages and frames of the tests of Pulsar producers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from asyncgroup.pulsar.producer.encoding import MessageEncoder
from asyncgroup.pulsar.producer.outgoing import OutgoingMessage, outgoing_message
from asyncgroup.pulsar.wire.commands import CommandMessage, CommandSend, MessageIdData
from asyncgroup.pulsar.wire.entry import Entry, decode_entry
from asyncgroup.pulsar.wire.frames import decode_frame

NOW: Final = 1_700_000_000_000
LIMIT: Final = 5 * 1024 * 1024


def clock() -> int:
    return NOW


class Results:
    """A receiver that remembers what it gets; `done` once it has."""

    def __init__(self) -> None:
        self.id: Any = None
        self.error: Exception | None = None

    def done(self) -> bool:
        return self.id is not None or self.error is not None

    def set_result(self, message_id: Any, /) -> None:
        assert not self.done()
        self.id = message_id

    def set_exception(self, error: Exception, /) -> None:
        assert not self.done()
        self.error = error


def message(value: bytes | None = b"v", receiver: Any = None, **options: Any) -> OutgoingMessage:
    given: dict[str, Any] = dict.fromkeys(
        ("key", "properties", "ordering_key", "event_time", "deliver_at", "deliver_after", "sequence_id")
    )
    found = outgoing_message(value, **(given | options), clock=clock)
    found.receiver = receiver
    return found


def encoder(compression: str = "none", name: str = "p", min_size: int = 0) -> MessageEncoder:
    found = MessageEncoder(3, compression, min_size, clock)
    found.producer_name = name
    return found


def sent(pieces: Iterable[bytes]) -> tuple[CommandSend, Entry]:
    """Return the command of a SEND frame, and its payload as a consumer reads it."""
    frame = b"".join(pieces)
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    command, at = decode_frame(frame[4:])
    assert isinstance(command, CommandSend)
    pushed = CommandMessage(consumer_id=1, message_id=MessageIdData(ledger_id=7, entry_id=8))
    return command, decode_entry(pushed, frame[4:], at, -1, 100 * LIMIT)
