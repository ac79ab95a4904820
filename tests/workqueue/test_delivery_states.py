"""Each record is in exactly one place, and moves only as `MOVES` allows, in random programs of all outcomes."""

from __future__ import annotations

import random
from collections import Counter
from typing import Final

import pytest
from hypothesis import given, settings, strategies as st

from asyncgroup.ack_window import AckWindow
from asyncgroup.model import Record, TopicPartition
from asyncgroup.workqueue.delivery import Delivery
from asyncgroup.workqueue.delivery_state import MOVES, DeliveryState
from asyncgroup.workqueue.modes import Mode
from asyncgroup.workqueue.partition_work import PartitionWork
from tests.workqueue.test_dispatcher import Queue

S = DeliveryState
BETWEEN: Final = {S.NACKED, S.EXPIRED, S.RELEASED}
"""States of a delivery that has ended, through which its record passes within a call."""


def legal(before: DeliveryState, after: DeliveryState) -> bool:
    """Whether one call may bring a record from one place to another."""
    moves = MOVES[before]
    return before is after or after in moves or any(after in MOVES[state] for state in moves & BETWEEN)


class Program:
    """A queue with one partition, whose copies end when the program wants it."""

    def __init__(self, rng: random.Random, mode: Mode) -> None:
        self.rng = rng
        self.in_order = mode.in_order
        self.queue = Queue(
            mode, rng.choice([None, 1, 3]), ack_timeout=50.0, allow_out_of_order=rng.random() < 0.3
        )
        self.queue.letters.holds = True
        self.queue.dispatcher.set_serial(serial=mode.in_order and rng.random() < 0.5)
        self.work = PartitionWork(TopicPartition("orders", 0), AckWindow(0))
        self.queue.dispatcher.add_partition(self.work)
        self.ends = self.queue.dispatcher.outcomes
        self.arrived = 0
        self.open: list[Delivery] = []
        """Deliveries that were taken, also those that have ended: their handlers may run, their copies be written."""
        self.copying: list[Delivery] = []
        self.places: dict[int, DeliveryState] = {}
        self.seen: set[tuple[DeliveryState, DeliveryState]] = set()
        begin = self.ends.publisher.start_dead_letter

        def start(delivery: Delivery, reason: str) -> None:
            begin(delivery, reason)
            self.copying.append(delivery)

        self.ends.publisher.start_dead_letter = start

    def found(self) -> list[tuple[int, DeliveryState]]:
        """Return the records of each container."""
        work = self.work
        return [
            *((record.offset, S.QUEUED) for record in (*work.fresh, *work.retries)),
            *((record.offset, S.BLOCKED) for lane in work.key_queues.values() for record in lane),
            *((offset, S.WAITING) for offset in work.waiting),
            *((offset, S.ACQUIRED) for offset in work.acquired),
            *((offset, S.HELD) for offset in work.held),
            *((delivery.record.offset, S.PUBLISHING) for delivery in self.copying),
            *((offset, S.ACKED) for offset in range(self.arrived) if offset in work.window),
        ]

    def check(self) -> None:
        """Each record has one place, and has come there by a legal move."""
        found = self.found()
        assert Counter(offset for offset, _ in found) == Counter(range(self.arrived))
        places = dict(found)
        for offset, before in self.places.items():
            assert legal(before, places[offset]), f"record {offset}: {before.name} to {places[offset].name}"
            self.seen.add((before, places[offset]))
        self.places = places
        assert self.work.publishing == len(self.copying)
        assert all(delivery.state is S.ACQUIRED for delivery in self.work.acquired.values())

    def step(self) -> None:
        """Make one call."""
        rng = self.rng
        what = rng.choice(["arrive", "take", "take", "end", "end", "end", "handler", "copy", "time"])
        if what == "arrive" and self.arrived < 30:
            records = [
                Record("orders", 0, self.arrived + at, key=rng.choice([None, b"a", b"b"])) for at in range(3)
            ]
            self.queue.dispatcher.offer(self.work, records)
            self.arrived += 3
        elif what == "take" and (delivery := self.queue.dispatcher.take()) is not None:
            self.open.append(delivery)
            if rng.random() < 0.5:  # `run`
                delivery._has_handler = True
                self.work.handlers += 1
        elif what == "end" and (held := [each for each in self.open if each.state is S.ACQUIRED]):
            self.end(rng.choice(held))
        elif what == "handler" and (running := [each for each in self.open if each._has_handler]):
            self.ends.end_handler(rng.choice(running), has_returned=rng.random() < 0.5)
        elif what == "copy" and self.copying:
            delivery = self.copying.pop(rng.randrange(len(self.copying)))
            rng.choice([self.ends.finish, self.ends.give_back])(delivery)
        elif what == "time":
            self.queue.pass_time(rng.choice([0.0, 5.0, 60.0]))

    def end(self, delivery: Delivery) -> None:
        """End a delivery in one of the ways."""
        ends, rng = self.ends, self.rng
        how = rng.choice(["ack", "nack", "nack", "release", "reject", *(["cumulative"] * self.in_order)])
        if how == "ack":
            ends.ack(delivery)
        elif how == "nack":
            ends.nack(delivery, rng.choice([None, 0.0, 7.0]))
        elif how == "release":
            ends.release(delivery)
        elif how == "cumulative":
            ends.ack_cumulative(delivery)
        else:
            ends.begin_publishing(delivery)
            self.copying.append(delivery)


@settings(max_examples=150)
@given(st.integers(0, 10**9), st.sampled_from(list(Mode)))
def test_each_record_has_one_place_and_moves_legally(seed: int, mode: Mode) -> None:
    program = Program(random.Random(seed), mode)
    for _ in range(150):
        program.step()
        program.check()


def test_the_programs_make_each_kind_of_move() -> None:
    seen = set()
    for seed in range(80):
        for mode in Mode:
            program = Program(random.Random(seed), mode)
            for _ in range(150):
                program.step()
                program.check()
            seen |= program.seen
    waits = {(S.BLOCKED, S.QUEUED), (S.WAITING, S.QUEUED), (S.WAITING, S.BLOCKED)}
    ends = {(S.ACQUIRED, after) for after in (S.ACKED, S.HELD, S.WAITING, S.QUEUED, S.PUBLISHING)}
    copies = {(S.PUBLISHING, S.ACKED), (S.PUBLISHING, S.WAITING)}
    cumulative = {(S.QUEUED, S.ACKED), (S.WAITING, S.ACKED)}
    assert waits | ends | copies | cumulative | {(S.QUEUED, S.ACQUIRED), (S.HELD, S.WAITING)} <= seen


def test_a_delivery_that_has_ended_makes_no_other_move() -> None:
    queue = Queue(Mode.SHARED)
    queue.partition("a")
    delivery = queue.take()
    queue.dispatcher.outcomes.ack(delivery)
    with pytest.raises(AssertionError, match="cannot become given back"):
        queue.dispatcher.outcomes.release(delivery)


def test_every_state_but_the_last_ones_can_be_left() -> None:
    assert {state for state, following in MOVES.items() if not following} == {S.ACKED, S.LOST}
    assert MOVES.keys() == set(DeliveryState)
