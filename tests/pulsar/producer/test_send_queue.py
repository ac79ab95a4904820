"""The queue of a producer: batches, receipts, reconnects, failures, limits, and a broker that deduplicates."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from asyncgroup.errors import ClosedError, InvalidRecordError, RequestTimedOut
from asyncgroup.pulsar.producer.batch_container import KeyBasedContainer, OneBatchContainer
from asyncgroup.pulsar.producer.encoding import MessageEncoder
from asyncgroup.pulsar.producer.send_queue import SendQueue
from asyncgroup.pulsar.producer.sequence_ids import SequenceIds
from asyncgroup.pulsar.wire.commands import CommandSendReceipt, MessageIdData
from asyncgroup.pulsar.wire.message_id import MessageId
from tests.pulsar.producer.messages import LIMIT, Results, encoder, message, sent

DROPPED = (1 << 64) - 1


class Writer:
    """A connection that keeps what is written."""

    def __init__(self, max_message_size: int = LIMIT) -> None:
        self.max_message_size = max_message_size
        self.frames: list[tuple[bytes, ...]] = []

    def send(self, *pieces: bytes) -> None:
        self.frames.append(pieces)

    def values(self) -> list[list[bytes | None]]:
        return [[each.value for each in sent(frame)[1].messages()] for frame in self.frames]


class Room:
    """What the queue gives back."""

    def __init__(self) -> None:
        self.count = self.size = self.lost = 0

    def __call__(self, count: int, size: int, lost: int, error: Exception | None) -> None:
        assert error is not None or not lost
        self.count += count
        self.size += size
        self.lost += lost


def queue(
    *,
    batching: bool = True,
    by_key: bool = False,
    max_count: int = 3,
    max_size: int = 10_000,
    initial: int | None = None,
    compression: str = "none",
) -> tuple[SendQueue, Room]:
    room = Room()
    container = (KeyBasedContainer if by_key else OneBatchContainer)(max_count, max_size)
    found = SendQueue(
        encoder(compression),
        SequenceIds(initial),
        container if batching else None,
        room,
        partition=2,
        max_batch_size=max_size,
        by_key=by_key,
    )
    return found, room


def receipt(first: int, last: int = 0, entry: int = 0) -> CommandSendReceipt:
    return CommandSendReceipt(
        producer_id=3,
        sequence_id=first,
        highest_sequence_id=last,
        message_id=MessageIdData(ledger_id=1, entry_id=entry),
    )


def test_a_full_batch_is_written_and_its_messages_get_their_ids() -> None:
    sends, room = queue()
    writer = Writer()
    assert sends.attach(writer) == 0
    results = [Results() for _ in range(4)]
    assert [sends.add(message(b"%d" % n, each), 1.0) for n, each in enumerate(results)] == [
        False, False, True, False,
    ]  # fmt: skip
    assert writer.values() == [[b"0", b"1", b"2"]]
    assert sends.batch_since == 1.0
    sends.close_batch()
    assert writer.values()[1:] == [[b"3"]]
    assert sends.receive(receipt(0, 2, entry=5))
    assert sends.receive(receipt(3, 0, entry=6))
    assert [each.id for each in results] == [
        *(MessageId(1, 5, 2, index) for index in range(3)),
        MessageId(1, 6, 2),
    ]
    assert sends.is_idle
    assert (room.count, room.lost) == (4, 0)
    assert sends.ids.last_stored == 3


def test_a_message_that_does_not_fit_closes_the_batch_first() -> None:
    sends, _ = queue(max_size=100)
    writer = Writer()
    sends.attach(writer)
    assert not sends.add(message(bytes(60)), 1.0)
    assert sends.add(message(bytes(50)), 2.0)
    assert writer.values() == [[bytes(60)]]
    assert sends.batch_since == 2.0


@pytest.mark.parametrize("options", [{"deliver_at": 5}, {"value": bytes(200)}, {"sequence_id": 0}])
def test_messages_that_are_never_in_a_batch_close_it(options: dict[str, Any]) -> None:
    sends, _ = queue(max_size=100)
    writer = Writer()
    sends.attach(writer)
    sends.add(message(b"first"), 1.0)
    assert sends.add(message(**{"value": b"alone", **options}), 1.0)
    sends.add(message(b"next"), 1.0)
    sends.close_batch()
    assert [len(each) for each in writer.values()] == [1, 1, 1]
    assert writer.values()[0] == [b"first"]
    assert [sent(frame)[0].sequence_id for frame in writer.frames] == (
        [0, 0, 1] if "sequence_id" in options else [0, 1, 2]
    )


def test_what_is_accepted_without_a_connection_waits_for_one() -> None:
    sends, _ = queue(batching=False)
    results = [Results() for _ in range(3)]
    for number, each in enumerate(results):
        sends.add(message(b"%d" % number, each), 1.0)
    writer = Writer()
    assert sends.attach(writer) == 3
    assert writer.values() == [[b"0"], [b"1"], [b"2"]]


def test_a_reconnect_sends_again_in_order_before_new_messages() -> None:
    sends, room = queue(batching=False)
    first, second = Writer(), Writer()
    sends.attach(first)
    for number in range(3):
        sends.add(message(b"%d" % number), 1.0)
    assert sends.receive(receipt(0))
    sends.detach()
    sends.add(message(b"3"), 1.0)
    assert sends.attach(second) == 3
    sends.add(message(b"4"), 1.0)
    assert second.values() == [[b"1"], [b"2"], [b"3"], [b"4"]]
    assert room.count == 1


def test_frames_above_a_smaller_limit_fail_at_the_reconnect() -> None:
    sends, room = queue(batching=False)
    sends.attach(Writer())
    small, large = Results(), Results()
    sends.add(message(bytes(10), small), 1.0)
    sends.add(message(bytes(2000), large), 1.0)
    writer = Writer(max_message_size=1000)
    assert sends.attach(writer) == 1
    assert isinstance(large.error, InvalidRecordError)
    assert large.error.may_be_written  # it was written on the first connection
    assert not small.done()
    assert room.count == 1


def test_a_message_above_the_limit_is_refused_at_once_and_has_no_number() -> None:
    sends, room = queue()
    writer = Writer(max_message_size=1000)
    sends.attach(writer)
    with pytest.raises(InvalidRecordError, match="chunking=True") as caught:
        sends.add(message(bytes(20_000)), 1.0)
    assert caught.value.field == "size"
    assert not caught.value.may_be_written
    sends.add(message(b"next"), 1.0)
    sends.close_batch()
    assert [sent(frame)[0].sequence_id for frame in writer.frames] == [0]
    assert room.count == 0  # the caller of `add` gives back what it reserved


def test_a_message_of_a_batch_above_the_limit_fails_alone() -> None:
    sends, room = queue(max_count=10)
    writer = Writer(max_message_size=1000)
    sends.attach(writer)
    results = [Results() for _ in range(3)]
    for size, each in zip((10, 2000, 10), results, strict=True):
        sends.add(message(bytes(size), each), 1.0)
    sends.close_batch()
    assert [type(each.error) for each in results] == [type(None), InvalidRecordError, type(None)]
    assert not results[1].error.may_be_written  # type: ignore[union-attr]
    assert sum(len(each) for each in writer.values()) == 2
    assert room.count == 1


def test_late_receipts_are_ignored_and_those_ahead_close_the_connection() -> None:
    sends, _ = queue(batching=False)
    sends.attach(Writer())
    old, new = Results(), Results()
    sends.add(message(b"old", old), 1.0)
    sends.add(message(b"new", new), 5.0)
    assert sends.expire(1.0, lambda: RequestTimedOut("too long")) == 1
    assert isinstance(old.error, RequestTimedOut)
    assert old.error.may_be_written
    assert sends.receive(receipt(0))  # late
    assert not new.done()
    assert not sends.receive(receipt(2))  # ahead
    assert sends.receive(receipt(1))
    assert new.id == MessageId(1, 0, 2)


def test_a_send_that_was_never_written_is_certainly_missing() -> None:
    sends, _ = queue(batching=False)
    result = Results()
    sends.add(message(b"v", result), 1.0)
    sends.expire(1.0, lambda: RequestTimedOut("too long"))
    assert result.error is not None
    assert not result.error.may_be_written  # type: ignore[attr-defined]


def test_a_dropped_duplicate_has_the_id_minus_one() -> None:
    sends, _ = queue(batching=False)
    sends.attach(Writer())
    result = Results()
    sends.add(message(b"v", result), 1.0)
    answer = receipt(0)
    answer.message_id = MessageIdData(ledger_id=DROPPED, entry_id=DROPPED)
    assert sends.receive(answer)
    assert result.id == MessageId(-1, -1, 2)


def test_a_refusal_fails_one_send() -> None:
    sends, room = queue(batching=False)
    sends.attach(Writer())
    results = [Results() for _ in range(2)]
    for each in results:
        sends.add(message(b"v", each), 1.0)
    assert sends.refuse(1, lambda: ClosedError("no"))
    assert not sends.refuse(1, lambda: ClosedError("no"))
    assert [type(each.error) for each in results] == [type(None), ClosedError]
    assert room.count == 1


@pytest.mark.parametrize("by_key", [False, True])
def test_all_fail_each_with_a_separate_error_and_the_room_is_given_back(by_key: bool) -> None:
    sends, room = queue(by_key=by_key)
    sends.attach(Writer())
    results = [Results() for _ in range(5)]
    accepted = 0
    for number, each in enumerate(results):
        one = message(b"v", each if number else None, key=str(number % 2))
        accepted += one.size
        sends.add(one, 1.0)
    sends.fail_all(lambda: ClosedError("closed"))
    errors = [each.error for each in results[1:]]
    assert all(isinstance(each, ClosedError) for each in errors)
    assert len({id(each) for each in errors}) == 4
    assert [each.may_be_written for each in errors] == [True, True, False, False]  # type: ignore[union-attr]
    assert (room.count, room.size, room.lost) == (5, accepted, 1)
    assert sends.is_idle


def test_a_batch_that_cannot_be_encoded_fails_its_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    sends, room = queue()
    sends.attach(Writer())
    result = Results()
    monkeypatch.setattr(MessageEncoder, "encode_batch", lambda *_, **__: 1 // 0)
    sends.add(message(b"v", result), 1.0)
    sends.close_batch()
    assert isinstance(result.error, ZeroDivisionError)
    assert room.count == 1
    assert sends.is_idle


def test_chunks_are_one_value() -> None:
    sends, room = queue()
    writer = Writer(max_message_size=400)
    sends.attach(writer)
    sends.add(message(b"before"), 1.0)
    result = Results()
    value = message(bytes(1000), result)
    plan = encoder().cut(value, 400)
    sends.add_chunks(value, plan, 1.0)
    assert len(writer.frames) == 1 + plan.chunks
    assert sends.receive(receipt(0))
    for number in range(plan.chunks):
        assert not result.done()
        assert sends.receive(receipt(1, entry=number))
    assert result.id == MessageId(1, plan.chunks - 1, 2)
    assert room.count == 1 + plan.chunks


# --- a broker with deduplication ----------------------------------------------------------------------------------------


class Broker:
    """Stores messages in order, drops duplicates as `MessageDeduplication` does, and loses connections and receipts."""

    def __init__(self) -> None:
        self.stored: list[tuple[int, bytes | None]] = []
        self.pushed = self.persisted = -1

    def receive(self, frame: tuple[bytes, ...]) -> CommandSendReceipt:
        command, entry = sent(frame)
        first, last = command.sequence_id, max(command.sequence_id, command.highest_sequence_id)
        answer = receipt(first, command.highest_sequence_id, entry=len(self.stored))
        if first <= self.persisted:
            answer.message_id = MessageIdData(ledger_id=DROPPED, entry_id=DROPPED)
            return answer
        self.persisted = last
        self.stored += [(each.sequence_id, each.value) for each in entry.messages()]
        return answer


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.sampled_from([None, "a", "b"])),
        st.tuples(st.just("again"), st.integers(0, 20)),
        st.tuples(st.just("close"), st.none()),
        st.tuples(st.just("serve"), st.integers(1, 3)),
        st.tuples(st.just("lose"), st.booleans()),
    ),
    max_size=40,
)


@settings(max_examples=200)
@given(STEPS, st.booleans(), st.booleans())
def test_each_message_is_stored_once_and_in_order_through_reconnects(
    steps: list[tuple[str, Any]], batching: bool, by_key: bool
) -> None:
    """`again` sends a message with a number that was used before; `lose` drops the connection, with or without receipts."""
    sends, room = queue(batching=batching, by_key=by_key)
    broker, writer = Broker(), Writer()
    sends.attach(writer)
    results: list[Results] = []
    originals: list[tuple[int, bytes]] = []

    def serve(count: int, *, answers: bool = True) -> None:
        for _ in range(min(count, len(writer.frames))):
            answer = broker.receive(writer.frames.pop(0))
            if answers:
                assert sends.receive(answer)

    for step, argument in [*steps, ("close", None), ("serve", 1000)]:
        if step == "send":
            results.append(Results())
            number = sends.ids.next
            sends.add(message(b"%d" % number, results[-1], key=argument), 1.0)
            originals.append((number, b"%d" % number))
        elif step == "again" and argument < sends.ids.next:
            results.append(Results())
            sends.add(message(b"again", results[-1], sequence_id=argument), 1.0)
        elif step == "close":
            sends.close_batch()
        elif step == "serve":
            serve(argument)
        elif step == "lose":
            serve(1000 if argument else 0, answers=False)  # stored, but the receipts are lost
            writer = Writer()
            sends.detach()
            sends.attach(writer)
    assert sends.is_idle
    assert all(each.id is not None for each in results)
    assert sorted(broker.stored) == originals
    if not by_key:
        assert broker.stored == originals
    assert room.count == len(results)
