"""PermitLedger against a model of the broker: permits are neither lost nor granted twice, on each way out of the queue."""

from __future__ import annotations

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from asyncgroup.pulsar.consumer.receiving.permits import PermitLedger
from tests.profiles import examples

LARGEST = 1000


class BrokerAndLedger(RuleBasedStateMachine):
    """A broker that charges as Pulsar's does, and a consumer that delivers, drops, pauses and reconnects."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = PermitLedger(0)
        self.permits = 0
        self.granted = 0
        self.queue: list[int] = []

    @initialize(size=st.integers(0, 12), limit=st.none() | st.integers(1, 3000))
    def begin(self, size: int, limit: int | None) -> None:
        self.ledger = PermitLedger(size, max_bytes=limit)
        self.limit = limit
        self.connect()

    @rule()
    def connect(self) -> None:
        """A new connection: the broker's side begins at 0, and what was queued comes again."""
        self.ledger.disconnect()
        assert self.ledger.next_flow() == 0
        self.ledger.connect(LARGEST)
        self.permits = self.granted = 0
        self.queue.clear()
        self.flow()

    @rule()
    def flow(self) -> None:
        due = self.ledger.next_flow()
        assert due >= 0
        self.permits += due
        self.granted += due
        if due:
            assert not self.ledger.is_paused
            assert len(self.queue) + self.permits <= self.ledger.target
            assert self.limit is None or sum(self.queue) < self.limit
        assert self.ledger.next_flow() == 0, "one call grants all"

    @rule(count=st.integers(1, 5))
    def hurry(self, count: int) -> None:
        """Messages go back to the broker: permits are granted as soon as there is room."""
        self.ledger.hurried += count
        self.flow()
        room = self.ledger.target - len(self.queue) - self.permits
        if not self.ledger.is_paused and (self.limit is None or sum(self.queue) < self.limit):
            assert room <= 0

    @precondition(lambda self: self.permits > 0)
    @rule(
        messages=st.lists(st.integers(1, LARGEST), min_size=1, max_size=20),
        acked=st.integers(0, 19),
        filtered=st.integers(0, 20),
    )
    def push(self, messages: list[int], acked: int, filtered: int) -> None:
        """An entry, of which the broker does not charge what is acknowledged, and the consumer filters some."""
        charged = max(1, len(messages) - acked)
        kept = messages[: max(0, charged - filtered)]
        self.permits -= charged
        self.ledger.arrive(charged, len(kept), sum(kept))
        self.queue += kept

    @precondition(lambda self: self.permits > 0)
    @rule(messages=st.lists(st.integers(1, LARGEST), min_size=2, max_size=9))
    def push_after_a_seek(self, messages: list[int]) -> None:
        """More messages are queued than the broker has charged, since their ack set is of before the seek."""
        self.permits -= 1
        self.ledger.arrive(1, len(messages), sum(messages))
        self.queue += messages

    @precondition(lambda self: self.queue)
    @rule(count=st.integers(1, 20), dropped=st.booleans())
    def leave(self, count: int, dropped: bool) -> None:
        taken, self.queue = self.queue[:count], self.queue[count:]
        (self.ledger.drop if dropped else self.ledger.deliver)(len(taken), sum(taken))

    @rule(paused=st.booleans())
    def pause(self, paused: bool) -> None:
        self.ledger.is_paused = paused

    @rule(waiting=st.integers(0, 3))
    def wait(self, waiting: int) -> None:
        self.ledger.waiting = waiting

    @invariant()
    def agrees(self) -> None:
        ledger = self.ledger
        assert (ledger.open, ledger.granted) == (self.permits, self.granted)
        assert (ledger.queued, ledger.bytes) == (len(self.queue), sum(self.queue))

    @invariant()
    def is_never_stuck(self) -> None:
        """An empty queue has open permits after a flow, unless it is paused or nothing is wanted."""
        wanted = self.ledger.size or self.ledger.waiting
        if not self.queue and not self.ledger.is_paused and wanted:
            self.flow()
            assert self.permits > 0


BrokerAndLedger.TestCase.settings = settings(max_examples=examples(400), stateful_step_count=40)
TestBrokerAndLedger = BrokerAndLedger.TestCase


@pytest.fixture
def ledger() -> PermitLedger:
    ledger = PermitLedger(10)
    ledger.connect()
    assert ledger.next_flow() == 10
    return ledger


def test_half_of_the_queue_is_granted_again_at_once(ledger: PermitLedger) -> None:
    ledger.arrive(10, 10, 100)
    ledger.deliver(4, 40)
    assert ledger.next_flow() == 0
    ledger.deliver(1, 10)
    assert ledger.next_flow() == 5
    assert (ledger.open, ledger.queued, ledger.delivered) == (5, 5, 5)


def test_a_batch_larger_than_the_permits_is_not_granted_twice(ledger: PermitLedger) -> None:
    ledger.arrive(9, 9, 9)
    ledger.deliver(9, 9)
    assert ledger.next_flow() == 9
    ledger.arrive(100, 100, 100)
    assert ledger.open == -90
    ledger.deliver(95, 95)
    assert ledger.next_flow() == 95, "the broker is at 5 permits, and 5 messages are queued"
    assert ledger.open == 5


def test_every_way_out_returns_permits(ledger: PermitLedger) -> None:
    ledger.arrive(4, 0, 0)  # a chunk, an old epoch, an entry that is acknowledged here
    ledger.arrive(4, 3, 30)  # one message is acknowledged here
    ledger.drop(2, 20)  # of an older epoch, found when it would be delivered
    ledger.deliver(1, 10)
    assert ledger.next_flow() == 8
    assert ledger.granted == ledger.open + ledger.delivered + ledger.dropped


def test_what_a_pause_held_back_is_granted_at_its_end(ledger: PermitLedger) -> None:
    ledger.arrive(10, 10, 10)
    ledger.is_paused = True
    ledger.deliver(10, 10)
    assert ledger.next_flow() == 0
    ledger.disconnect()
    ledger.connect()
    assert ledger.next_flow() == 0, "also on a new connection"
    ledger.is_paused = False
    assert ledger.next_flow() == 10


def test_without_a_queue_each_waiting_receiver_has_a_permit() -> None:
    ledger = PermitLedger(0)
    ledger.connect()
    assert ledger.next_flow() == 0
    ledger.waiting = 1
    assert ledger.next_flow() == 1
    ledger.disconnect()
    ledger.connect()
    assert ledger.next_flow() == 1, "again on a new connection"
    ledger.arrive(5, 5, 5)
    ledger.waiting = 0
    ledger.deliver(1, 1)
    ledger.waiting = 1
    ledger.deliver(4, 4)
    assert ledger.next_flow() == 5, "the broker is 4 permits below 0"


def test_large_messages_take_the_room_of_many() -> None:
    ledger = PermitLedger(1000, max_bytes=10_000)
    ledger.connect(5_000)
    assert ledger.next_flow() == 2, "no message has arrived, so each counts as the largest"
    ledger.arrive(1, 1, 10)
    assert ledger.target == 1000
    assert ledger.next_flow() == 998
    for _ in range(60):
        ledger.arrive(1, 1, 2_500)
    assert ledger.target in (4, 5)
    assert ledger.next_flow() == 0
    ledger.disconnect()
    ledger.connect(5_000)
    assert ledger.next_flow() in (4, 5), "the mean is kept"
