"""Each record is in exactly one place, moves only as `MOVES` allows, and is done once in its order: random programs.

`queue.partition("a b.")` adds a partition with a record for each letter, which is its key, at the offset of the letter; a space is
a gap of the log, a dot a record without a key.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Final, TypeAlias

import pytest
from hypothesis import given, settings, strategies as st

from asyncgroup.ack_window import AckWindow
from asyncgroup.model import Record, TopicPartition
from asyncgroup.workqueue.delivery import Delivery
from asyncgroup.workqueue.delivery_state import MOVES, DeliveryState
from asyncgroup.workqueue.modes import Mode
from asyncgroup.workqueue.partition_engine import PartitionEngine
from asyncgroup.workqueue.partition_work import PartitionWork
from tests.workqueue.test_dispatcher import Queue, unacked

S = DeliveryState
Place: TypeAlias = tuple[int, int]
"""Partition and offset of a record."""

BETWEEN: Final = {S.NACKED, S.EXPIRED, S.RELEASED}
"""States of a delivery that has ended, through which its record passes within a call."""


def legal(before: DeliveryState, after: DeliveryState) -> bool:
    """Whether one call may bring a record from one place to another."""
    moves = MOVES[before]
    return before is after or after in moves or any(after in MOVES[state] for state in moves & BETWEEN)


class GivesAgain(PartitionEngine):
    """The engine of a broker that gives these records again."""

    def __init__(self, *offsets: int, rng: random.Random | None = None) -> None:
        self.offsets = set(offsets)
        self.attempts: dict[int, int] = {}
        """Of those that the queue has left to it."""
        self._rng = rng

    def comes_again(self, record: Record, attempts: int) -> bool:
        if record.offset not in self.offsets:
            return False
        self.offsets.remove(record.offset)
        self.attempts[record.offset] = attempts
        return True

    def gives_back(self, record: Record, attempts: int) -> bool:
        if self._rng is None or self._rng.random() < 0.5:
            return False
        assert attempts > 0
        self.attempts[record.offset] = attempts
        return True


class Program:
    """A queue with two partitions; its copies end when the program wants it.

    Records are named by partition and offset. A step is one call: records arrive (with gaps, some without a key), a delivery
    is taken, ends or is renewed, a handler of `run` returns, a copy ends, time passes, a broker gives records again. `finish`
    lets everything succeed.
    """

    def __init__(self, rng: random.Random, mode: Mode) -> None:
        self.rng = rng
        self.mode = mode
        self.is_out_of_order = rng.random() < 0.3
        self.queue = Queue(
            mode,
            rng.choice([None, 1, 3]),
            slots=rng.choice([None, 8]),
            ack_timeout=50.0,
            allow_out_of_order=self.is_out_of_order,
        )
        self.queue.letters.holds = True
        self.queue.dispatcher.set_serial(serial=mode.in_order and rng.random() < 0.5)
        self.engines = [
            GivesAgain(rng=None if mode.in_order or rng.random() < 0.5 else rng) for _ in range(2)
        ]
        self.works = [
            PartitionWork(TopicPartition("orders", number), AckWindow(0), engine=self.engines[number])
            for number in range(2)
        ]
        for work in self.works:
            self.queue.dispatcher.add_partition(work)
        self.ends = self.queue.dispatcher.outcomes
        self.keys: dict[Place, bytes | None] = {}
        """Of the records that have arrived."""
        self.next_offsets = [0, 0]
        self.open: list[Delivery] = []
        """Deliveries that were taken, also those that have ended: their handlers may run, their copies be written."""
        self.copying: list[Delivery] = []
        self.places: dict[Place, DeliveryState] = {}
        self.acked: set[Place] = set()
        """The records that calls may have acknowledged."""
        self.done: list[Place] = []
        """The acknowledged records, in the order in which they were."""
        self.withdrawn = self.left = 0
        self.seen: set[tuple[DeliveryState, DeliveryState]] = set()
        begin = self.ends.publisher.start_dead_letter

        def start(delivery: Delivery, reason: str) -> None:
            begin(delivery, reason)
            self.copying.append(delivery)

        self.ends.publisher.start_dead_letter = start

    def found(self) -> list[tuple[Place, DeliveryState]]:
        """Return the records of each container."""
        copying = [(delivery.record.partition, delivery.record.offset) for delivery in self.copying]
        found = [(place, S.PUBLISHING) for place in copying]
        for number, work in enumerate(self.works):
            found += [
                *(((number, record.offset), S.QUEUED) for record in (*work.fresh, *work.retries)),
                *(((number, record.offset), S.BLOCKED) for key in work.key_queues.values() for record in key),
                *(((number, offset), S.WAITING) for offset in work.waiting),
                *(((number, offset), S.ACQUIRED) for offset in work.acquired),
                *(((number, offset), S.HELD) for offset in work.held),
            ]
        return [*found, *((at, S.ACKED) for at in self.keys if at[1] in self.works[at[0]].window)]

    def ack(self, delivery: Delivery, call: Callable[[Delivery], object]) -> None:
        """Make a call that may acknowledge the record."""
        self.acked.add((delivery.record.partition, delivery.record.offset))
        call(delivery)

    def check(self) -> None:
        """Each record has one place, and has come there by a legal move; one of a key is acquired."""
        self.give_left()
        found = self.found()
        assert Counter(at for at, _ in found) == Counter(list(self.keys))
        places = dict(found)
        for at, before in self.places.items():
            assert legal(before, places[at]), f"record {at}: {before.name} to {places[at].name}"
            self.seen.add((before, places[at]))
        self.done += [at for at in self.keys if places[at] is S.ACKED and self.places.get(at) is not S.ACKED]
        assert set(self.done) <= self.acked
        self.places = places
        assert sum(work.publishing for work in self.works) == len(self.copying)
        for work in self.works:
            assert all(delivery.state is S.ACQUIRED for delivery in work.acquired.values())
            if self.mode is Mode.KEY_SHARED:
                keys = [delivery.key for delivery in work.acquired.values() if delivery.key is not None]
                assert len(set(keys)) == len(keys)

    def step(self) -> None:
        """Make one call."""
        rng = self.rng
        what = rng.choice(
            ["arrive", "take", "take", "end", "end", "end", "renew", "handler", "copy", "time", "withdraw"]
        )
        if what == "arrive" and len(self.keys) < 40:
            self.arrive(rng.randrange(2))
        elif what == "take" and (delivery := self.queue.dispatcher.take()) is not None:
            self.open.append(delivery)
            if rng.random() < 0.5:  # `run`
                delivery._has_handler = True
                self.works[delivery.record.partition].handlers += 1
        elif what in ("end", "renew") and (held := [each for each in self.open if each.state is S.ACQUIRED]):
            (self.end if what == "end" else self.ends.renew)(rng.choice(held))
        elif what == "handler" and (running := [each for each in self.open if each._has_handler]):
            delivery = rng.choice(running)
            if rng.random() < 0.5:
                self.ack(delivery, partial(self.ends.end_handler, has_returned=True))
            else:
                self.ends.end_handler(delivery, has_returned=False)
        elif what == "copy" and self.copying:
            delivery = self.copying.pop(rng.randrange(len(self.copying)))
            if rng.random() < 0.5:
                self.ack(delivery, self.ends.finish)
            else:
                self.ends.give_back(delivery)
        elif what == "withdraw" and rng.random() < 0.3:
            self.withdraw(rng.randrange(2))
        elif what == "time":
            self.queue.pass_time(rng.choice([0.0, 1.0, 5.0, 60.0]))

    def withdraw(self, number: int) -> None:
        """The broker gives records again: those that are not delivered are forgotten, and most of them arrive as others."""
        work = self.works[number]
        gone = [
            at for at, place in self.found() if at[0] == number and place in (S.QUEUED, S.BLOCKED, S.WAITING)
        ]
        expected = {at[1]: work.window.attempts[at[1]] for at in gone if at[1] in work.window.attempts}
        failed = self.queue.dispatcher.withdraw(work)
        assert {record.offset: attempts for record, attempts in failed} == expected
        self.withdrawn += len(gone)
        self.give_again(number, gone)
        copying = [each.record.offset for each in self.copying if each.record.partition == number]
        self.engines[number].offsets = {
            offset for offset in (*work.acquired, *work.held, *copying) if self.rng.random() < 0.5
        }

    def give_left(self) -> None:
        """The broker gives the records again that the queue has left to it."""
        for number, engine in enumerate(self.engines):
            if engine.attempts:
                self.left += len(engine.attempts)
                gone = [(number, offset) for offset in engine.attempts]
                engine.attempts.clear()
                self.give_again(number, gone)

    def give_again(self, number: int, gone: list[Place]) -> None:
        """Most of these records arrive as others."""
        work, records = self.works[number], []
        for at in sorted(gone):
            key = self.keys.pop(at)
            self.places.pop(at, None)
            offset, self.next_offsets[number] = self.next_offsets[number], self.next_offsets[number] + 1
            if self.rng.random() < 0.8:
                self.keys[number, offset] = key
                records.append(Record("orders", number, offset, key=key))
        self.queue.dispatcher.offer(work, records)
        if not records or records[-1].offset + 1 < self.next_offsets[number]:
            work.window.ack_range(work.position, self.next_offsets[number])
            work.position = self.next_offsets[number]

    def arrive(self, number: int) -> None:
        """Offer three records; before some of them is a gap."""
        records = []
        for _ in range(3):
            offset = self.next_offsets[number] + self.rng.choice([0, 0, 1])
            self.next_offsets[number] = offset + 1
            self.keys[number, offset] = key = self.rng.choice([None, b"a", b"b"])
            records.append(Record("orders", number, offset, key=key))
        self.queue.dispatcher.offer(self.works[number], records)

    def end(self, delivery: Delivery) -> None:
        """End a delivery in one of the ways."""
        ends, rng = self.ends, self.rng
        how = rng.choice(["ack", "nack", "nack", "release", "reject", *(["cumulative"] * self.mode.in_order)])
        if how == "ack":
            self.ack(delivery, ends.ack)
        elif how == "nack":
            ends.nack(delivery, rng.choice([None, 0.0, 7.0]))
        elif how == "release":
            ends.release(delivery)
        elif how == "cumulative":
            number, offset = delivery.record.partition, delivery.record.offset
            self.acked |= {at for at in self.keys if at[0] == number and at[1] < offset}
            self.ack(delivery, ends.ack_cumulative)
        else:
            ends.begin_publishing(delivery)
            self.copying.append(delivery)

    def finish(self) -> None:
        """End all that is open, and acknowledge each delivery, until all records are done."""
        for delivery in self.open:
            if delivery._has_handler:
                self.ack(delivery, partial(self.ends.end_handler, has_returned=True))
                self.check()
        for _ in range(1000):
            while self.copying:
                self.ack(self.copying.pop(), self.ends.finish)
                self.check()
            for work in self.works:
                for delivery in list(work.acquired.values()):
                    self.ack(delivery, self.ends.ack)
                    self.check()
            if len(self.done) == len(self.keys):
                return
            if self.queue.dispatcher.take() is None:
                self.queue.pass_time(30.0)
            self.check()

    def check_end(self) -> None:
        """Each record was done once, those of a key in order; nothing is left of them."""
        assert Counter(self.done) == Counter(list(self.keys))
        for number, work in enumerate(self.works):
            assert (unacked(work), work.window.runs, work.key_queues) == (0, [], {})
            assert work.window.base == self.next_offsets[number]
            if self.mode is Mode.KEY_SHARED and not self.is_out_of_order:
                for key in (b"a", b"b"):
                    mine = [at for at in self.done if at[0] == number and self.keys[at] == key]
                    assert mine == sorted(mine)


def run(rng: random.Random, mode: Mode) -> Program:
    program = Program(rng, mode)
    for _ in range(150):
        program.step()
        program.check()
    program.finish()
    program.check_end()
    return program


@settings(max_examples=250)
@given(st.integers(0, 10**9), st.sampled_from(list(Mode)))
def test_each_record_has_one_place_moves_legally_and_is_done_once_in_order(seed: int, mode: Mode) -> None:
    run(random.Random(seed), mode)


def test_the_programs_make_each_kind_of_move() -> None:
    programs = [run(random.Random(seed), mode) for seed in range(80) for mode in Mode]
    assert sum(program.withdrawn for program in programs) > 100
    assert sum(program.left for program in programs) > 100
    seen = set().union(*(program.seen for program in programs))
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


@pytest.mark.parametrize("is_out_of_order", [False, True])
@pytest.mark.parametrize("has_failed", [False, True])
def test_a_copy_that_is_given_up_leaves_a_record_to_the_broker_that_gives_it_again(
    *, is_out_of_order: bool, has_failed: bool
) -> None:
    queue = Queue(Mode.KEY_SHARED, max_redeliveries=0, allow_out_of_order=is_out_of_order)
    queue.letters.holds = True
    work = queue.partition("aa")
    engine = work.engine = GivesAgain()
    delivery = queue.take()
    if has_failed:
        queue.dispatcher.outcomes.nack(delivery, None)
    else:
        queue.dispatcher.outcomes.begin_publishing(delivery)
    engine.offsets.add(0)
    queue.dispatcher.outcomes.give_back(delivery)
    assert (engine.attempts, work.waiting, work.window.base) == ({0: int(has_failed)}, {}, 1)
    following = queue.take()
    assert following.record.offset == 1
    queue.dispatcher.outcomes.ack(following)
    assert (unacked(work), work.bytes, work.key_queues, work.publishing) == (0, 0, {}, 0)


@pytest.mark.parametrize("mode", list(Mode))
def test_a_record_that_is_given_back_is_left_to_the_broker_that_gives_it_again(mode: Mode) -> None:
    queue = Queue(mode)
    work = queue.partition("aa")
    engine = work.engine = GivesAgain(0)
    queue.dispatcher.outcomes.release(queue.take())
    assert (engine.attempts, work.window.base, work.acquired) == ({0: 0}, 1, {})
    following = queue.take()
    assert following.record.offset == 1
    queue.dispatcher.outcomes.release(following)
    following = queue.take()
    assert following.record.offset == 1
    queue.dispatcher.outcomes.ack(following)
    assert (unacked(work), work.bytes, work.key_queues) == (0, 0, {})


def test_a_copy_that_is_given_up_frees_the_key_where_the_order_may_be_broken() -> None:
    """Otherwise the record would wait for itself when it is due, and the later ones of its key with it."""
    queue = Queue(Mode.KEY_SHARED, max_redeliveries=0, allow_out_of_order=True)
    queue.letters.holds = True
    queue.partition("aa")
    delivery = queue.take()
    queue.dispatcher.outcomes.nack(delivery, None)
    queue.dispatcher.outcomes.give_back(delivery)
    following = queue.take()
    assert following.record.offset == 1
    queue.pass_time(100.0)
    assert len(queue.letters.reasons) == 1, "it waits for the other record of its key"
    queue.dispatcher.outcomes.ack(following)
    assert len(queue.letters.reasons) == 2
