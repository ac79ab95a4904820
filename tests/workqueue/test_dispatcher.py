"""Dispatcher: the rules of each mode, and the order of deliveries. `test_delivery_states` has its random programs.

`queue.partition("a b.")` adds a partition with a record for each letter, which is its key, at the offset of the letter; a space is
a gap of the log, a dot a record without a key.
"""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from asyncgroup.ack_window import AckWindow
from asyncgroup.errors import UsageError
from asyncgroup.model import Header, Record, TopicPartition
from asyncgroup.workqueue.delivery import AckOutcome, Delivery, DeliveryState
from asyncgroup.workqueue.delivery_reports import DispatcherCallbacks
from asyncgroup.workqueue.dispatcher import Dispatcher
from asyncgroup.workqueue.modes import Mode
from asyncgroup.workqueue.outcomes import Outcomes
from asyncgroup.workqueue.partition_work import PartitionWork

TP = TopicPartition("orders", 0)


class Letters:
    """A publisher that acknowledges at once, or holds the copies."""

    def __init__(self, max_redeliveries: int | None = None) -> None:
        self.max_redeliveries = max_redeliveries
        self.dead: list[int] = []
        self.reasons: list[str] = []
        self.holds = False
        self.queue: Outcomes | None = None

    def is_last(self, attempt: int) -> bool:
        return self.max_redeliveries is not None and attempt > self.max_redeliveries

    def start_dead_letter(self, delivery: Delivery, reason: str) -> None:
        assert self.queue is not None
        assert reason
        self.reasons.append(reason)
        if self.holds:
            return
        self.dead.append(delivery.record.offset)
        self.queue.finish(delivery)

    async def reject(self, delivery: Delivery, reason: str) -> AckOutcome:
        raise NotImplementedError

    async def reconsume_later(self, delivery: Delivery, delay: float, headers: list[Header]) -> AckOutcome:
        raise NotImplementedError


class DueCallbacks(DispatcherCallbacks):
    def __init__(self) -> None:
        self.due: list[float] = []

    def on_due(self, time: float) -> None:
        self.due.append(time)


class Queue:
    """A dispatcher with its own clock, and partitions of records."""

    def __init__(
        self,
        mode: Mode,
        max_redeliveries: int | None = None,
        delay: float = 10.0,
        slots: int | None = None,
        **options: object,
    ):
        self.now = 0.0
        self.letters = Letters(max_redeliveries)
        self.callbacks = DueCallbacks()
        self.dispatcher = Dispatcher(
            mode,
            lambda: self.now,
            self.letters,
            lambda failures: delay * failures,
            callbacks=self.callbacks,
            **options,
        )
        self.dispatcher.ready.set_slots(slots)
        self.letters.queue = self.dispatcher.outcomes

    def partition(self, keys: str, window: AckWindow | None = None, number: int = 0) -> PartitionWork:
        """Add a partition with a record for each letter: its key; a space is a gap, a dot a record without a key."""
        work = PartitionWork(TopicPartition("orders", number), window or AckWindow(0))
        self.dispatcher.add_partition(work)
        records = [
            Record("orders", number, offset, key=None if key == "." else key.encode())
            for offset, key in enumerate(keys)
            if key != " "
        ]
        self.dispatcher.offer(work, records)
        return work

    def take(self) -> Delivery:
        delivery = self.dispatcher.take()
        assert delivery is not None
        return delivery

    def take_all(self) -> list[Delivery]:
        return list(iter(self.dispatcher.take, None))

    def pass_time(self, seconds: float) -> float:
        self.now += seconds
        return self.dispatcher.wake()


def unacked(work: PartitionWork) -> int:
    """Return the number of records that have arrived and are not acknowledged."""
    assert work.wait_numbers.keys() == work.waiting.keys()
    return work.queued + len(work.acquired) + len(work.held) + len(work.waiting) + work.publishing


def offsets(deliveries: list[Delivery]) -> list[int]:
    return [delivery.record.offset for delivery in deliveries]


# --- rules of the modes -------------------------------------------------------------------------------------------------


def test_shared_hands_out_all_and_gaps_count_as_done() -> None:
    queue = Queue(Mode.SHARED)
    work = queue.partition("a a.b")
    taken = queue.take_all()
    assert offsets(taken) == [0, 2, 3, 4]
    for delivery in reversed(taken):
        queue.dispatcher.outcomes.ack(delivery)
    assert (work.window.base, unacked(work)) == (5, 0)


def test_a_restored_window_is_not_delivered_again_and_attempts_go_on() -> None:
    queue = Queue(Mode.SHARED)
    queue.partition("abcdef", AckWindow(0, [(1, 3), (4, 5)], {3: 2}))
    taken = queue.take_all()
    assert sorted((delivery.record.offset, delivery.attempt) for delivery in taken) == [
        (0, 1),
        (3, 3),
        (5, 1),
    ]


def test_key_shared_has_one_of_a_key_in_hand_also_over_a_nack() -> None:
    queue = Queue(Mode.KEY_SHARED)
    work = queue.partition("aabb.a")
    first, second, third = queue.take_all()
    assert offsets([first, second, third]) == [0, 2, 4]
    queue.dispatcher.outcomes.nack(first, None)
    queue.dispatcher.outcomes.ack(second)
    assert offsets(queue.take_all()) == [3]
    queue.pass_time(9.9)
    assert queue.dispatcher.take() is None
    queue.pass_time(0.1)
    again = queue.take()
    assert (again.record.offset, again.attempt, again.redelivery_count) == (0, 2, 1)
    queue.dispatcher.outcomes.ack(again)
    assert offsets(queue.take_all()) == [1]
    assert (work.window.base, work.blocked) == (1, 1)


def test_key_shared_out_of_order_goes_on_with_the_next_of_the_key() -> None:
    queue = Queue(Mode.KEY_SHARED, allow_out_of_order=True)
    queue.partition("aa")
    queue.dispatcher.outcomes.nack(queue.take(), None)
    assert offsets(queue.take_all()) == [1]


@pytest.mark.parametrize("mode", [Mode.EXCLUSIVE, Mode.FAILOVER])
def test_a_nack_in_order_repeats_all_unacknowledged_records(mode: Mode) -> None:
    queue = Queue(mode)
    queue.partition("abcd")
    taken = [queue.take() for _ in range(3)]
    queue.dispatcher.outcomes.ack(taken[1])
    queue.dispatcher.outcomes.nack(taken[0], 5.0)
    queue.pass_time(5.0)
    assert taken[2].state is DeliveryState.EXPIRED
    assert offsets(queue.take_all()) == [0, 2, 3]


def test_a_record_that_is_repeated_in_order_waits_for_nothing_any_more() -> None:
    """Its own delay was longer than that of an earlier record: its entry in DueTimes is void."""
    queue = Queue(Mode.EXCLUSIVE)
    work = queue.partition("abc")
    taken = [queue.take() for _ in range(3)]
    queue.dispatcher.outcomes.nack(taken[1], 10.0)
    queue.dispatcher.outcomes.nack(taken[0], 5.0)
    queue.pass_time(5.0)
    assert (work.waiting, work.wait_numbers) == ({}, {})
    for delivery in queue.take_all():
        queue.dispatcher.outcomes.ack(delivery)
    queue.pass_time(10.0)
    assert unacked(work) == 0


def test_serial_handlers_see_one_record_of_a_partition_at_a_time() -> None:
    queue = Queue(Mode.EXCLUSIVE)
    queue.dispatcher.set_serial(serial=True)
    queue.partition("ab")
    queue.partition("ab", number=1)
    one, other = queue.take_all()
    assert {one.record.partition, other.record.partition} == {0, 1}
    queue.dispatcher.outcomes.nack(one, 1.0)
    assert queue.dispatcher.take() is None
    queue.pass_time(1.0)
    again = queue.take()
    assert (again.record.partition, again.record.offset) == (one.record.partition, 0)
    queue.dispatcher.outcomes.ack(again)
    assert offsets(queue.take_all()) == [1]


def test_cumulative_acks_need_an_order() -> None:
    queue = Queue(Mode.EXCLUSIVE)
    work = queue.partition("abc")
    queue.dispatcher.outcomes.ack_cumulative(queue.take_all()[1])
    assert (work.window.base, list(work.acquired)) == (2, [2])
    shared = Queue(Mode.SHARED)
    shared.partition("a")
    with pytest.raises(
        UsageError, match=r"ack_cumulative\(\) of <Delivery orders-0@0.*acknowledge each record by itself"
    ):
        shared.dispatcher.outcomes.ack_cumulative(shared.take())


# --- nack, ack timeout, dead letters -------------------------------------------------------------------------------------


def test_a_short_delay_does_not_wait_for_a_longer_one() -> None:
    queue = Queue(Mode.SHARED)
    queue.partition("abc")
    for delivery, delay in zip(queue.take_all(), (600.0, 3.0, 7.0), strict=True):
        queue.dispatcher.outcomes.nack(delivery, delay)
    assert queue.callbacks.due == [600.0, 3.0]
    assert queue.pass_time(3.0) == 7.0
    assert offsets(queue.take_all()) == [1]


def test_the_longest_open_delivery_counts_from_the_first_look_at_it() -> None:
    queue = Queue(Mode.SHARED, delay=0.0, ack_timeout=100.0)
    work = queue.partition("ab")
    assert work.open_for(queue.now) == 0.0
    first, second = queue.take(), queue.take()
    queue.pass_time(3)
    assert work.open_for(queue.now) == 0.0
    queue.pass_time(4)
    assert work.open_for(queue.now) == 4.0
    queue.dispatcher.outcomes.renew(first)  # the second one is next
    assert work.open_for(queue.now) == 0.0
    queue.pass_time(1)
    queue.dispatcher.outcomes.ack(second)
    queue.dispatcher.outcomes.nack(first, 0.0)
    queue.pass_time(0)
    again = queue.take()
    assert (again.record.offset, again.attempt) == (0, 2)
    assert work.open_for(queue.now) == 0.0
    queue.pass_time(2)
    assert work.open_for(queue.now) == 2.0
    queue.dispatcher.outcomes.renew(again)
    assert work.open_for(queue.now) == 0.0
    queue.pass_time(5)
    queue.dispatcher.outcomes.release(again)  # its next delivery has the same number
    repeated = queue.take()
    assert (repeated.record.offset, repeated.attempt) == (0, again.attempt)
    assert work.open_for(queue.now) == 0.0
    queue.dispatcher.outcomes.ack(repeated)
    assert work.open_for(queue.now) == 0.0


def test_the_ack_timeout_counts_from_hand_out_and_is_renewed() -> None:
    queue = Queue(Mode.SHARED, ack_timeout=30.0)
    queue.partition("ab")
    queue.pass_time(100.0)
    first, second = queue.take_all()
    assert first.deadline == 130.0
    queue.pass_time(20.0)
    queue.dispatcher.outcomes.renew(first)
    assert queue.pass_time(10.0) == 131.0, "the clock is looked at each second, to see blocks of the loop"
    assert (first.state, second.state) == (DeliveryState.ACQUIRED, DeliveryState.EXPIRED)
    queue.pass_time(0.0)
    again = queue.take()
    assert (again.record.offset, again.attempt) == (1, 2)


@given(st.integers(0, 6), st.integers(1, 5))
def test_dead_letters_follow_one_more_delivery_than_redeliveries(redeliveries: int, records: int) -> None:
    queue = Queue(Mode.SHARED, redeliveries)
    work = queue.partition("." * records)
    for _ in range(redeliveries + 1):
        for delivery in queue.take_all():
            queue.dispatcher.outcomes.nack(delivery, 1.0)
        queue.pass_time(1.0)
    assert queue.dispatcher.take() is None
    assert queue.letters.dead == list(range(records))
    assert (work.window.base, work.window.attempts, unacked(work)) == (records, {}, 0)
    assert queue.dispatcher.counts.delivered == records * (redeliveries + 1)


def test_retries_get_their_share_of_turns_and_slots() -> None:
    queue = Queue(Mode.SHARED, slots=10)
    queue.partition("." * 100)
    for delivery in [queue.take() for _ in range(20)]:
        queue.dispatcher.outcomes.nack(delivery, 0.0)
    queue.pass_time(0.0)
    taken = [queue.take() for _ in range(10)]
    assert sum(delivery.attempt > 1 for delivery in taken) == 2  # turns; the first of them are fresh
    many = [queue.take() for _ in range(30)]
    assert sum(delivery.attempt > 1 for delivery in taken + many) == 3  # slots: 0.3 of 10


# --- revocation -----------------------------------------------------------------------------------------------------------


def test_a_closed_partition_hands_out_nothing_and_counts_what_ends() -> None:
    queue = Queue(Mode.KEY_SHARED)
    work = queue.partition("aab")
    first, second = queue.take_all()
    queue.dispatcher.close_partition(work)
    queue.dispatcher.outcomes.ack(first)
    queue.dispatcher.outcomes.nack(second, None)
    assert queue.dispatcher.take() is None
    assert (work.window.base, work.window.attempts, work.is_idle) == (1, {2: 1}, True)


def test_lost_deliveries_change_nothing() -> None:
    queue = Queue(Mode.SHARED)
    work = queue.partition("ab")
    taken = queue.take_all()
    assert queue.dispatcher.remove_partition(work) == taken
    assert {delivery.state for delivery in taken} == {DeliveryState.LOST}
    assert work.window.base == 0


# --- reasons of dead letters ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("outcomes", "expected"),
    [
        ("cc", "each process that handled it has ended without an outcome"),
        ("fc", "its 2 deliveries failed; the reasons are known only to the processes that made them"),
        ("cf", "its 2 deliveries failed; the reasons are known only to the processes that made them"),
    ],
)
def test_the_reason_of_a_record_that_arrives_after_its_last_delivery(outcomes: str, expected: str) -> None:
    """Deliveries that failed, and those that only a commit counted, as their processes have ended (c)."""
    window = AckWindow(0)
    for number, outcome in enumerate(outcomes):
        window.set_attempts(0, number + 1, in_advance=True)
        if outcome == "f":
            window.set_attempts(0, number + 1)
    queue = Queue(Mode.SHARED, max_redeliveries=1)
    queue.partition("a", window)
    assert queue.letters.reasons == [expected]


def test_the_reason_is_kept_until_the_dead_letter_is_written() -> None:
    """The partition is revoked before, and comes back."""
    queue = Queue(Mode.SHARED, max_redeliveries=0)
    queue.letters.holds = True
    work = queue.partition("a")
    delivery = queue.take()
    queue.dispatcher.outcomes.nack(delivery, None, ValueError("broken"))
    queue.dispatcher.remove_partition(work)
    queue.dispatcher.outcomes.give_back(delivery)
    queue.letters.holds = False
    queue.partition("a", AckWindow(0, attempts={0: 1}))
    assert queue.letters.reasons == ["ValueError: broken", "ValueError: broken"]
