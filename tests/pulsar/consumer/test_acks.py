"""UnackedEntries and PendingAcks: alone, and together against a broker that loses connections."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from asyncgroup.pulsar.consumer.acks.pending_acks import MAX_IDS, AckBatch, PendingAcks
from asyncgroup.pulsar.consumer.acks.unacked import UNKNOWN_END, AckedEntry, EntryKey, UnackedEntries
from asyncgroup.pulsar.wire.ack_set import bits_of, full_set
from asyncgroup.pulsar.wire.commands import CommandAck
from asyncgroup.pulsar.wire.message_id import BatchMessageId, MessageId
from tests.profiles import examples
from tests.pulsar.consumer.support import batch, batch_body, entry_of, id_of, metadata, pushed, single


def pending(group_time: float = 0.1, max_size: int = 1000, *, index_acks: bool = True) -> PendingAcks:
    return PendingAcks(group_time, max_size, index_acks=index_acks)


def take(acks: PendingAcks) -> AckBatch:
    found = acks.take()
    assert found is not None
    return found


def ids(command: CommandAck) -> list[tuple[int, int, int]]:
    return [(one.ledger_id, one.entry_id, bits_of(one.ack_set)) for one in command.message_id]


# --- entries ------------------------------------------------------------------------------------------------------------


def test_the_last_message_of_a_batch_acknowledges_its_entry() -> None:
    entries = UnackedEntries(index_acks=True)
    assert entries.arrive(batch(4, 3)) == 0b111
    assert entries.ack(id_of(4, 1)) == AckedEntry(((1, 4),), 0b101)
    assert entries.ack(id_of(4, 1)) is None, "once"
    assert entries.ack(id_of(4, 0)) == AckedEntry(((1, 4),), 0b100)
    assert entries.ack(id_of(4, 2)) == AckedEntry(((1, 4),), 0)
    assert entries.ack(id_of(4, 2)) is None


def test_the_ack_set_of_the_broker_is_where_a_batch_begins() -> None:
    entries = UnackedEntries(index_acks=True)
    assert entries.arrive(batch(4, 3, unacked=0b110)) == 0b110
    assert entries.ack(id_of(4, 0)) is None
    assert entries.ack(id_of(4, 1)) == AckedEntry(((1, 4),), 0b101), "the others may be in a transaction"
    assert entries.ack(id_of(4, 2)) == AckedEntry(((1, 4),), 0b001, is_last=True)
    assert entries.ack(id_of(4, 2)) is None


def test_messages_that_come_back_to_an_entry_are_acknowledged_with_it() -> None:
    entries = UnackedEntries(index_acks=True)
    entries.arrive(batch(4, 3, unacked=0b110))
    entries.ack(id_of(4, 1))
    assert entries.arrive(batch(4, 3, unacked=0b101)) == 0b001, "2 is with a receiver"
    assert entries.ack(id_of(4, 0)) == AckedEntry(((1, 4),), 0b100)
    assert entries.ack(id_of(4, 2)) == AckedEntry(((1, 4),), 0)


def test_an_entry_of_which_nothing_is_left_here_keeps_what_others_have_acknowledged() -> None:
    entries = UnackedEntries(index_acks=False)
    entries.arrive(batch(4, 3))
    entries.ack(id_of(4, 0))
    for index in (1, 2):
        entries.release(id_of(4, index))
    assert entries.end_if_done((1, 4)) is None
    assert entries.arrive(batch(4, 3, unacked=0b001)) == 0
    assert entries.end_if_done((1, 4)) == AckedEntry(((1, 4),), 0b110, is_last=True)
    assert entries.end_if_done((1, 4)) == AckedEntry(((1, 4),), 0), "as an entry that is not known"


def test_messages_that_others_have_acknowledged_end_with_a_cumulative_acknowledgement() -> None:
    entries = UnackedEntries(index_acks=True)
    entries.arrive(batch(4, 4, unacked=0b1110))
    assert entries.ack_cumulative(id_of(4, 1)) == AckedEntry(((1, 4),), 0b1100)
    assert entries.ack(id_of(4, 2)) == AckedEntry(((1, 4),), 0b1000)
    assert entries.ack(id_of(4, 3)) == AckedEntry(((1, 4),), 0)


def test_a_batch_that_comes_again_has_only_what_was_released() -> None:
    entries = UnackedEntries(index_acks=True)
    entries.arrive(batch(4, 4))
    entries.ack(id_of(4, 0))
    entries.release(id_of(4, 2))
    assert entries.is_acked(id_of(4, 0))
    assert not entries.is_acked(id_of(4, 2))
    assert entries.arrive(batch(4, 4)) == 0b0100, "0 is acknowledged, 1 and 3 are with a receiver"
    entries.release_all()
    assert entries.arrive(batch(4, 4)) == 0b1110, "on a new connection also what is with a receiver"


@pytest.mark.parametrize("index_acks", [True, False])
def test_a_new_connection_forgets_batches_that_no_receiver_has(*, index_acks: bool) -> None:
    entries = UnackedEntries(index_acks=index_acks)
    entries.arrive(batch(4, 2))
    entries.arrive(batch(5, 2))
    entries.ack(id_of(5, 0))
    for entry, index in (4, 0), (4, 1), (5, 1):
        entries.release(id_of(entry, index))
    entries.release_all()
    assert entries.arrive(batch(4, 2)) == 0b11
    # a broker that knows the acknowledgement says so in the ack set
    assert entries.arrive(batch(5, 2)) == (0b11 if index_acks else 0b10)


def test_a_message_is_acknowledged_after_several_connections() -> None:
    entries = UnackedEntries(index_acks=True)
    entries.arrive(batch(4, 2))
    entries.release_all()
    entries.arrive(batch(4, 2))
    for index in range(2):
        entries.release(id_of(4, index))
    entries.release_all()
    assert entries.ack(id_of(4, 0)) == AckedEntry(((1, 4),), 0b10)


def test_an_id_without_an_index_acknowledges_the_whole_batch() -> None:
    entries = UnackedEntries(index_acks=True)
    entries.arrive(batch(4, 4))
    assert entries.ack(id_of(4)) == AckedEntry(((1, 4),), 0)
    assert entries.ack(id_of(4, 1)) is None


def test_unwanted_messages_are_not_waited_for() -> None:
    entries = UnackedEntries(index_acks=True)
    assert entries.arrive(batch(4, 3), unwanted=0b011) == 0b100
    assert entries.ack(id_of(4, 2)) == AckedEntry(((1, 4),), 0)


def test_a_cumulative_acknowledgement_beside_those_of_others_names_what_is_left() -> None:
    """A cumulative one would replace those in the batch: it ends before, and the messages of the batch are named one by one."""
    entries, acks = UnackedEntries(index_acks=True), pending()
    entries.arrive(batch(4, 4, unacked=0b0111))
    acks.add_cumulative(entries.ack_cumulative(id_of(4, 1)), 0)
    first, second = take(acks).command(7, None), take(acks).command(7, None)
    assert (first.ack_type, ids(first)) == (1, [(1, 3, 0)])
    assert (second.ack_type, ids(second)) == (0, [(1, 4, 0b1100)])
    acks.add_cumulative(entries.ack_cumulative(id_of(4, 2)), 0)
    take(acks)
    assert ids(take(acks).command(7, None)) == [(1, 4, 0b1000)]


def test_a_cumulative_acknowledgement_in_a_batch_that_is_not_here() -> None:
    entries, acks = UnackedEntries(index_acks=True), pending()
    acks.add_cumulative(entries.ack_cumulative(BatchMessageId(1, 4, -1, 1, 4)), 0)
    assert ids(take(acks).command(7, None)) == [(1, 3, 0)]
    assert ids(take(acks).command(7, None)) == [(1, 4, 0b1100)]
    acks.add_cumulative(entries.ack_cumulative(BatchMessageId(1, 5, -1, 3, 4)), 0)
    assert ids(take(acks).command(7, None)) == [(1, 5, 0)]
    acks.add_cumulative(entries.ack_cumulative(MessageId(1, 6, -1, 1)), 0)
    assert ids(take(acks).command(7, None)) == [(1, 5, 0)], "its size is not known"
    acks.add_cumulative(entries.ack_cumulative(BatchMessageId(1, 8, -1, 1 << 30, (1 << 31) - 1)), 0)
    assert ids(take(acks).command(7, None)) == [(1, 7, 0)], (
        "no batch is as large as an id that was stored may say"
    )
    assert acks.take() is None


def test_messages_that_the_broker_has_compacted_do_not_return_after_a_seek() -> None:
    entries = UnackedEntries(index_acks=True)
    kept = metadata(num_messages_in_batch=3, compacted_batch_indexes=[0, 2])
    body = batch_body([b"a", b"b", b"c"])
    assert entries.arrive(entry_of(pushed(4, unacked=0b100), kept, body)) == 0b100
    entries.clear((1, 4))
    assert entries.arrive(entry_of(pushed(4, unacked=0b100), kept, body)) == 0b101


def test_a_cumulative_acknowledgement_forgets_what_is_before() -> None:
    entries = UnackedEntries(index_acks=True)
    for number in range(3, 6):
        entries.arrive(batch(number, 3))
    assert entries.ack_cumulative(id_of(4, 1)) == AckedEntry(((1, 4),), 0b100)
    assert entries.ack(id_of(3, 0)) is None
    assert entries.ack(id_of(4, 0)) is None
    assert entries.ack(id_of(4, 2)) == AckedEntry(((1, 4),), 0)
    assert entries.ack_cumulative(id_of(5, 2)) == AckedEntry(((1, 5),), 0)


def test_all_entries_of_a_value_in_chunks_are_acknowledged_together() -> None:
    entries = UnackedEntries(index_acks=True)
    entries.add_chunks([id_of(4), id_of(6), id_of(9)])
    assert entries.entries_of(id_of(9)) == [(1, 4), (1, 6), (1, 9)]
    assert entries.ack(id_of(9)) == AckedEntry([(1, 4), (1, 6), (1, 9)], 0)
    assert entries.ack(id_of(9)) == AckedEntry(((1, 9),), 0), "as any entry"


def test_ack_sets_of_before_a_seek_are_ignored_once() -> None:
    entries = UnackedEntries(index_acks=True)
    entries.clear((1, 5))
    assert entries.arrive(batch(5, 2, unacked=0b10)) == 0b11
    entries.ack(id_of(5, 1))
    entries.release(id_of(5, 0))
    assert entries.arrive(batch(5, 2, unacked=0b10)) == 0b01, "the broker may not know yet"
    assert entries.arrive(batch(6, 2, unacked=0b10)) == 0b10
    entries.clear(UNKNOWN_END)
    assert entries.arrive(batch(6, 2, unacked=0b10)) == 0b11
    assert entries.arrive(batch(7, 2, unacked=0b10, redelivery_count=1)) == 0b10


def test_a_batch_with_an_ack_set_of_before_a_seek_is_acknowledged_as_a_whole() -> None:
    """Else the broker has all of it too early, and pushes the rest no more."""
    entries = UnackedEntries(index_acks=True)
    entries.clear((1, 9))
    entries.arrive(batch(4, 3, unacked=0b010))
    assert entries.ack(id_of(4, 1)) == AckedEntry((), 0b101)
    entries.release(id_of(4, 2))
    assert not entries.is_alone(id_of(4, 2))
    assert entries.ack(id_of(4, 0)) == AckedEntry((), 0b100)
    assert not entries.is_alone(id_of(4, 2)), (
        "the broker pushes those that it does not know to be acknowledged"
    )
    entries.release_all()
    assert entries.arrive(batch(4, 3, unacked=0b010)) == 0b100
    assert entries.ack(id_of(4, 2)) == AckedEntry(((1, 4),), 0)
    entries.arrive(batch(6, 3))
    assert entries.ack(id_of(6, 1)) == AckedEntry(((1, 6),), 0b101), "the broker has no ack set"
    entries.arrive(batch(7, 3, unacked=0b110), unwanted=0b001)
    assert entries.ack(id_of(7, 1)) == AckedEntry(((1, 7),), 0b100), "the seek was into the batch"


# --- groups -------------------------------------------------------------------------------------------------------------


def test_a_group_is_due_after_its_time_or_at_its_size() -> None:
    acks = pending(max_size=3)
    assert acks.due_at == inf
    acks.add(AckedEntry([(1, 1)], 0), 10.0)
    acks.add(AckedEntry([(1, 2)], 0), 10.05)
    assert acks.due_at == 10.1
    acks.add(AckedEntry([(1, 3)], 0), 10.07)
    assert acks.due_at == 10.07
    assert ids(take(acks).command(7, None)) == [(1, 1, 0), (1, 2, 0), (1, 3, 0)]
    assert acks.due_at == inf
    assert acks.take() is None


def test_a_cumulative_acknowledgement_goes_first_and_includes_the_others() -> None:
    acks = pending()
    acks.add(AckedEntry([(1, 2)], 0), 0)
    acks.add(AckedEntry([(1, 9)], 0b10), 0)
    acks.add_cumulative(AckedEntry([(1, 3)], 0b100), 0)
    acks.add_cumulative(AckedEntry([(1, 3)], 0b110), 0)
    acks.add_cumulative(AckedEntry([(1, 1)], 0), 0)
    first = take(acks).command(7, 5)
    assert (first.ack_type, first.request_id, ids(first)) == (1, 5, [(1, 3, 0b100)])
    second = take(acks).command(7, None)
    assert (second.ack_type, ids(second)) == (0, [(1, 9, 0b10)])
    assert acks.take() is None


def test_without_index_acks_only_whole_entries_are_sent() -> None:
    acks = pending(index_acks=False)
    acks.add(AckedEntry([(1, 2)], 0b1), 0)
    assert acks.due_at == inf
    acks.add_cumulative(AckedEntry([(1, 4)], 0b1), 0)
    assert ids(take(acks).command(7, None)) == [(1, 3, 0)]
    acks.add_cumulative(AckedEntry([(2, 0)], 0b1), 0)
    command = take(acks).command(7, None)
    assert CommandAck.decode(command.encode()).message_id[0].entry_id == 2**64 - 1


def test_without_index_acks_the_last_message_names_what_was_acknowledged_here() -> None:
    acks = pending(index_acks=False)
    acks.add(AckedEntry([(1, 2)], 0b001, is_last=True), 0)
    assert ids(take(acks).command(7, None)) == [(1, 2, 0b001)]


def test_what_fails_or_loses_its_connection_is_pending_again() -> None:
    acks = pending()
    acks.add(AckedEntry([(1, 2)], 0b11), 0)
    failed = take(acks)
    acks.add(AckedEntry([(1, 2)], 0b01), 0)
    assert acks.unacked_of((1, 2)) == 0b01
    acks.fail(failed.number, retry_at=3.0)
    acks.fail(failed.number, retry_at=1.0)
    assert acks.due_at == 0.1
    lost = take(acks)
    assert ids(lost.command(7, None)) == [(1, 2, 0b01)]
    acks.add_cumulative(AckedEntry([(1, 1)], 0), 1.0)
    take(acks)
    assert acks.in_flight == 2
    acks.disconnect()
    assert (acks.in_flight, acks.due_at) == (0, inf)
    acks.confirm(lost.number)
    acks.reconnect(9.0)
    assert acks.due_at == 9.0
    assert ids(take(acks).command(7, None)) == [(1, 1, 0)]
    assert ids(take(acks).command(7, None)) == [(1, 2, 0b01)]


def test_entries_that_are_acknowledged_here_are_recognized_until_the_broker_has_answered() -> None:
    acks = pending()
    acks.add(AckedEntry([(1, 2)], 0), 0)
    assert acks.unacked_of((1, 2)) == 0
    assert acks.unacked_of((1, 1)) == -1
    individual = take(acks)
    acks.add_cumulative(AckedEntry([(1, 9)], 0b1), 0)
    cumulative = take(acks)
    assert acks.unacked_of((1, 2)) == 0
    assert acks.unacked_of((1, 8)) == 0
    assert acks.unacked_of((1, 9)) == -1, "in part, and all messages come in order"
    acks.confirm(cumulative.number)
    assert acks.unacked_of((1, 8)) == -1
    assert acks.unacked_of((1, 2)) == 0
    acks.confirm(individual.number)
    assert acks.unacked_of((1, 2)) == -1


def test_a_command_has_a_limit() -> None:
    acks = pending(max_size=10**9)
    for number in range(MAX_IDS + 1):
        acks.add(AckedEntry([(1, number)], 0), 0)
    assert len(take(acks).entries) == MAX_IDS
    assert acks.due_at == 0.1
    assert len(take(acks).entries) == 1
    acks.add(AckedEntry([(1, 1)], 0), 0)
    acks.clear()
    assert (len(acks), acks.in_flight, acks.due_at) == (0, 0, inf)


# --- together -----------------------------------------------------------------------------------------------------------


class BrokerAndAcks(RuleBasedStateMachine):
    """A broker with batches. Commands arrive, are refused, or are lost with the connection."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []
        self.unacked: dict[EntryKey, int] = {}  # at the broker
        self.reserved: dict[EntryKey, int] = {}  # there, by the open transaction of another consumer
        self.committed: set[MessageId] = set()  # of such transactions
        self.out: set[MessageId] = set()  # with receivers
        self.acked: set[MessageId] = set()  # here
        self.sent: list[tuple[int, CommandAck]] = []
        self.unanswered: list[int] = []
        self.now = 0.0

    @initialize(
        sizes=st.lists(st.integers(1, 4), min_size=1, max_size=8),
        index_acks=st.booleans(),
        reserved=st.lists(st.integers(0, 15), min_size=8, max_size=8) | st.none(),
        is_shared=st.booleans(),
    )
    def begin(self, sizes: list[int], index_acks: bool, reserved: list[int] | None, is_shared: bool) -> None:
        self.index_acks = index_acks
        self.entries = UnackedEntries(index_acks=index_acks)
        self.acks = pending(index_acks=index_acks)
        self.sizes = sizes
        self.unacked = {(1, number): full_set(size) for number, size in enumerate(sizes)}
        self.is_shared = is_shared
        if index_acks and reserved is not None:
            self.reserved = {key: bits & reserved[key[1]] for key, bits in self.unacked.items()}
        for number in range(len(sizes)):
            self.push(number)

    @rule(number=st.integers(0, 7))
    def push(self, number: int) -> None:
        """Any entry that is not acknowledged at the broker may be pushed again."""
        key = (1, number)
        unacked = self.unacked.get(key, 0) & ~self.reserved.get(key, 0)
        if not unacked:
            return
        size = self.sizes[number]
        entry = batch(number, size, unacked=unacked) if self.index_acks else batch(number, size)
        missing = self.acks.unacked_of(key)
        if not missing:
            return
        found = self.entries.arrive(entry, unwanted=full_set(size) & ~missing)
        if not found and (acked := self.entries.end_if_done(key)) is not None:
            self.acks.add(acked, self.now)
        for index in range(size):
            message = id_of(number, index)
            if found >> index & 1:
                assert message not in self.acked, "acknowledged here"
                self.out.add(message)
            elif message not in self.acked:
                assert message in self.out or not unacked >> index & 1

    @precondition(lambda self: self.out)
    @rule(data=st.data(), cumulative=st.booleans())
    def ack(self, data: st.DataObject, cumulative: bool) -> None:
        message = data.draw(st.sampled_from(sorted(self.out)))
        if cumulative and not self.is_shared:
            self.acks.add_cumulative(self.entries.ack_cumulative(message), self.now)
            self.acked |= {each for each in self.messages() if each <= message}
        else:
            acked = self.entries.ack(message)
            assert acked is not None
            self.acks.add(acked, self.now)
            self.acked.add(message)
        self.out -= self.acked

    @precondition(lambda self: any(self.reserved.values()))
    @rule(number=st.integers(0, 7), commits=st.booleans())
    def end_another_transaction(self, number: int, commits: bool) -> None:
        """What another consumer has acknowledged is so now, or comes here."""
        key = (1, number)
        reserved = self.reserved.pop(key, 0)
        if commits and reserved:
            self.unacked[key] &= ~reserved
            self.committed |= {
                each for each in self.messages() if each[:2] == key and reserved >> each.batch_index & 1
            }
        self.push(number)

    @rule()
    def send(self) -> None:
        while (group := self.acks.take()) is not None:
            self.sent.append((group.number, group.command(7, group.number)))

    @precondition(lambda self: self.sent)
    @rule(refused=st.booleans())
    def process(self, refused: bool) -> None:
        number, command = self.sent.pop(0)
        if not refused:
            self.apply(command)
        self.answer(number, refused=refused)

    def answer(self, number: int, *, refused: bool) -> None:
        if refused:
            self.acks.fail(number, self.now)
        else:
            self.acks.confirm(number)

    @rule(arrive=st.integers(0, 3))
    def reconnect(self, arrive: int) -> None:
        """Some commands arrive, but no answer does. The queue was empty; receivers keep their messages."""
        for _, command in self.sent[:arrive]:
            self.apply(command)
        self.sent.clear()
        self.acks.disconnect()
        self.entries.release_all()
        self.acks.reconnect(self.now)
        self.send()
        # the broker has processed these commands before it gets permits
        while self.sent:
            self.process(refused=False)
        for number in range(len(self.sizes)):
            self.push(number)

    def apply(self, command: CommandAck) -> None:
        for one in CommandAck.decode(command.encode()).message_id:
            entry_id = one.entry_id if one.entry_id < 1 << 63 else -1
            key = (one.ledger_id, entry_id)
            if command.ack_type == 1:
                for each in self.unacked:
                    if each < key:
                        self.unacked[each] = 0
            if key in self.unacked:
                assert self.index_acks or not one.ack_set
                left, known = bits_of(one.ack_set), self.unacked[key]
                if command.ack_type == 0 or not left or known == full_set(self.sizes[entry_id]):
                    self.unacked[key] &= left
                elif known and left & -left > known & -known:  # it replaces what was acknowledged one by one
                    self.unacked[key] = left

    def messages(self) -> list[MessageId]:
        return [id_of(number, index) for number, size in enumerate(self.sizes) for index in range(size)]

    @invariant()
    def nothing_is_acknowledged_that_was_not(self) -> None:
        for message in self.messages():
            if not self.unacked[message[:2]] >> message.batch_index & 1:
                assert message in self.acked or message in self.committed

    def teardown(self) -> None:
        self.send()
        while self.sent:
            self.process(refused=False)
        for message in self.messages():
            if message in self.acked and (self.index_acks or self.is_whole(message)):
                assert not self.unacked[message[:2]] >> message.batch_index & 1, message

    def is_whole(self, message: MessageId) -> bool:
        entry = [each for each in self.messages() if each[:2] == message[:2]]
        return all(each in self.acked for each in entry)


BrokerAndAcks.TestCase.settings = settings(max_examples=examples(300), stateful_step_count=30)
TestBrokerAndAcks = BrokerAndAcks.TestCase


def test_messages_without_a_batch_need_no_state() -> None:
    entries = UnackedEntries(index_acks=True)
    assert entries.arrive(single(3)) == 1
    assert repr(entries) == "<UnackedEntries 0 batches, 0 values in chunks>"
    assert entries.ack(id_of(3)) == AckedEntry(((1, 3),), 0)
    assert not entries.is_acked(id_of(3))
    assert entries.ack_cumulative(id_of(3)) == AckedEntry(((1, 3),), 0)
