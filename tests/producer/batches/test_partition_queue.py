"""The queue of a partition against a model of a broker: after any losses, nothing is written twice or in the wrong order."""

from __future__ import annotations

import itertools
import random
from collections import Counter, deque
from dataclasses import dataclass, field

import pytest

from asyncgroup.model import TopicPartition
from asyncgroup.producer.batches.batch import BatchFormat, ProducerBatch
from asyncgroup.producer.batches.partition_queue import MAX_EPOCH, NO_ID, WINDOW, PartitionQueue
from tests.profiles import examples

TP = TopicPartition("orders", 0)
LIFETIME = 50.0


def batch_of(count: int, first: int = 0, now: float = 0.0) -> ProducerBatch:
    """Return a closed batch with the numbers from `first` on as values."""
    batch = ProducerBatch(TP, BatchFormat("none", 1 << 20), now, now + LIFETIME)
    for number in range(first, first + count):
        assert batch.append(b"%d" % number, None, (), 0, 1, None)
    batch.closed = True
    return batch


@dataclass
class Broker:
    """A log with the producer state that Kafka keeps (`ProducerStateManager`, `ProducerAppendInfo.checkSequence`)."""

    log: list[int] = field(default_factory=list)
    epochs: dict[int, int] = field(default_factory=dict)  # by producer id
    last: dict[int, deque[tuple[int, int, int]]] = field(default_factory=dict)
    """Of each producer its last five batches: first sequence number, number of records, offset."""
    refused: set[int] = field(default_factory=set)
    """Records that are refused and not retried."""

    def append(self, producer_id: int, epoch: int, sequence: int, numbers: list[int]) -> tuple[str, int]:
        if self.refused.intersection(numbers):
            return ("too large" if len(numbers) > 1 else "refused"), -1
        known = self.last.setdefault(producer_id, deque(maxlen=WINDOW))
        if epoch < self.epochs.get(producer_id, -1):
            return "old epoch", -1
        if epoch == self.epochs.get(producer_id):
            for first, count, offset in known:
                if (first, count) == (sequence, len(numbers)):
                    return "ok", offset
            if known and sequence != known[-1][0] + known[-1][1]:
                return "out of order", -1
        elif producer_id in self.epochs and sequence != 0:
            return "out of order", -1
        if epoch != self.epochs.get(producer_id):
            known.clear()
        self.epochs[producer_id] = epoch
        offset = len(self.log)
        self.log += numbers
        known.append((sequence, len(numbers), offset))
        return "ok", offset


class Run:
    """A queue that is used at random."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.now = 0.0
        self.broker = Broker()
        self.queue = PartitionQueue(TP, is_idempotent=True)
        self.ids = itertools.count(7)
        self.numbers = itertools.count()
        self.pipe: list[tuple[ProducerBatch, tuple[int, int, int, list[int]], tuple[str, int] | None]] = []
        self.of: dict[ProducerBatch, list[int]] = {}
        self.acknowledged: dict[int, int] = {}
        self.dropped: set[int] = set()
        self.counts: Counter[str] = Counter()

    def add(self) -> None:
        count = self.rng.choice([1, 1, 2, 3])
        numbers = [next(self.numbers) for _ in range(count)]
        if self.rng.random() < 0.03:
            self.broker.refused.add(self.rng.choice(numbers))
        batch = batch_of(count, numbers[0], self.now)
        self.of[batch] = numbers
        self.queue.add(batch)
        self.queue.close_open()

    def send(self) -> bool:
        if self.queue.needs_id:
            self.queue.set_producer_id(next(self.ids))
        batch = self.queue.next_batch(self.now)
        if batch is None or self.queue.retry_at > self.now:
            return False
        self.queue.begin(batch, 1)
        state = batch.producer_id, batch.epoch, batch.sequence, self.of[batch]
        self.pipe.append((batch, state, None))
        assert 0 < self.queue.in_flight == len(self.pipe) <= WINDOW
        return True

    def process(self) -> None:
        """The broker handles the first request that it has not handled yet."""
        for place, (batch, state, result) in enumerate(self.pipe):
            if result is None:
                chance = self.rng.random()
                if chance < 0.1 and not self.is_healthy:
                    outcome: tuple[str, int] = ("not leader", -1)
                else:
                    outcome = self.broker.append(*state)
                    if chance < 0.2 and not self.is_healthy and outcome[0] == "ok":
                        outcome = ("not enough replicas after append", -1)
                self.pipe[place] = (batch, state, outcome)
                return

    is_healthy = False

    def receive(self) -> None:
        if not self.pipe or self.pipe[0][2] is None:
            return
        batch, _, result = self.pipe.pop(0)
        assert result is not None
        error, offset = result
        self.counts[error] += 1
        if error == "ok":
            self.acknowledge(batch, offset)
        elif error == "refused":
            self.leave(batch)
        elif error == "too large" and not batch.done:
            parts = batch.split()
            first = self.of[batch][0]
            for part in parts:
                self.of[part] = list(range(first, first + part.count))
                first += part.count
            self.queue.split(batch, parts)
        else:
            batch.may_be_written |= error != "out of order"
            self.again(batch, is_out_of_order=error == "out of order")

    def again(self, batch: ProducerBatch, *, is_out_of_order: bool = False) -> None:
        if batch.done:
            self.leave(batch)
        else:
            pause = self.rng.choice([0.0, 1.0])
            self.queue.fail(batch, self.now + pause, is_out_of_order=is_out_of_order)

    def acknowledge(self, batch: ProducerBatch, offset: int) -> None:
        self.queue.succeed(batch, self.now)
        assert self.broker.log[offset : offset + batch.count] == self.of[batch]
        if not batch.done:
            batch.done = True
            self.acknowledged.update(zip(self.of[batch], range(offset, offset + batch.count), strict=True))

    def leave(self, batch: ProducerBatch) -> None:
        batch.done = True
        self.dropped.update(self.of[batch])
        self.queue.drop(batch)

    def lose_connection(self) -> None:
        """The broker may have handled some of the requests; no response arrives."""
        for _ in range(self.rng.randrange(len(self.pipe) + 1)):
            self.process()
        lost, self.pipe = self.pipe, []
        for batch, _, _ in lost:
            self.counts["lost"] += 1
            batch.may_be_written = True
            self.again(batch)

    def wait(self) -> None:
        self.now += self.rng.choice([0.5, 5.0, 5.0, 20.0])
        for batch in self.queue.expire(self.now):
            self.counts["expired"] += 1
            batch.done = True
            self.dropped.update(self.of[batch])
        for batch, _, _ in self.pipe:
            if batch.deadline <= self.now and not batch.done:  # its callers get the error now
                self.counts["expired in flight"] += 1
                batch.done = True
                self.dropped.update(self.of[batch])

    def check(self) -> None:
        log = self.broker.log
        assert log == sorted(set(log)), "written twice or in the wrong order"
        for number, offset in self.acknowledged.items():
            assert log[offset] == number

    def finish(self) -> None:
        """With a healthy broker all is done soon."""
        self.is_healthy = True
        for _ in range(1000):
            self.now += 1.0
            while self.send():
                pass
            self.process()
            self.receive()
        assert self.queue.is_idle
        assert not self.pipe
        assert self.acknowledged.keys() | self.dropped >= set(range(next(self.numbers)))
        assert self.acknowledged.keys().isdisjoint(self.dropped)


ACTIONS = ["add", "add", "add", "send", "send", "send", "process", "process", "receive", "receive"]


def run(seed: int, steps: int = 150) -> Run:
    """Return a run after random actions and a good end."""
    run = Run(seed)
    rare = run.rng.choice([["lose_connection"], ["wait"], ["lose_connection", "wait"]])
    for _ in range(steps):
        getattr(run, run.rng.choice(ACTIONS * 3 + rare))()
        run.check()
    run.finish()
    run.check()
    return run


def test_random_faults() -> None:
    total: Counter[str] = Counter()
    for seed in range(examples(3000)):
        try:
            total += run(seed).counts
        except AssertionError as error:
            error.add_note(f"seed {seed}")
            raise
    assert total["out of order"] > 10
    assert min(total[what] for what in ("expired", "expired in flight", "lost", "refused", "too large")) > 0


def ready(*batches: ProducerBatch, producer_id: int = 7) -> PartitionQueue:
    """Return a queue with a first success and these batches."""
    queue = PartitionQueue(TP, is_idempotent=True)
    queue.set_producer_id(producer_id)
    queue.add(first := batch_of(1))
    queue.begin(first, 1)
    queue.succeed(first, 0.0)
    for batch in batches:
        queue.add(batch)
    queue.close_open()
    return queue


def send_all(queue: PartitionQueue, now: float = 0.0) -> list[ProducerBatch]:
    """Send what may be sent."""
    sent = []
    while (batch := queue.next_batch(now)) is not None:
        queue.begin(batch, 1)
        sent.append(batch)
    return sent


def test_one_batch_until_the_first_success() -> None:
    """A broker without state accepts any sequence number (`ProducerAppendInfo.checkSequence`)."""
    queue = PartitionQueue(TP, is_idempotent=True)
    queue.set_producer_id(7)
    batches = [batch_of(1) for _ in range(3)]
    for batch in batches:
        queue.add(batch)
    assert send_all(queue) == batches[:1]
    queue.succeed(batches[0], 0.0)
    assert send_all(queue) == batches[1:]
    for batch in batches[1:]:
        queue.succeed(batch, 1.0)
    queue.add(batch_of(1))
    queue.add(batch_of(1))
    assert len(send_all(queue, 100_000.0)) == 1, "the broker may have forgotten the producer"


def test_five_batches_without_a_result() -> None:
    batches = [batch_of(2) for _ in range(8)]
    queue = ready(*batches)
    assert send_all(queue) == batches[:5]
    assert [batch.sequence for batch in batches[:5]] == [1, 3, 5, 7, 9]
    queue.succeed(batches[1], 0.0)
    assert send_all(queue) == [], "a broker recognizes only the last five, the first is among them"
    queue.succeed(batches[0], 0.0)
    assert send_all(queue) == batches[5:7]


def test_after_a_failure_all_are_sent_again_in_order() -> None:
    a, b, c, d = batches = [batch_of(1) for _ in range(4)]
    queue = ready(*batches)
    send_all(queue)
    queue.fail(a, 3.0)
    queue.fail(b, 2.0, is_out_of_order=True)
    assert queue.next_batch(5.0) is None
    queue.fail(c, 2.0, is_out_of_order=True)
    queue.fail(d, 2.0, is_out_of_order=True)
    assert queue.retry_at == 3.0
    assert send_all(queue, 5.0) == batches
    assert [(batch.epoch, batch.sequence) for batch in batches] == [(0, 1), (0, 2), (0, 3), (0, 4)]


def test_a_gap_that_is_in_the_log() -> None:
    """The batch after the gap was accepted, so the sequence goes on."""
    a, b, c = batch_of(1), batch_of(1), batch_of(1)
    queue = ready(a, b, c)
    send_all(queue)
    queue.drop(a)
    queue.succeed(b, 0.0)
    queue.succeed(c, 0.0)
    queue.add(d := batch_of(1))
    assert send_all(queue) == [d]
    assert (d.epoch, d.sequence) == (0, 4)


def test_a_gap_that_is_not_in_the_log() -> None:
    a, b, c = batch_of(1), batch_of(1), batch_of(1)
    queue = ready(a, b, c)
    send_all(queue)
    queue.add(fresh := batch_of(1))
    queue.drop(a)
    queue.fail(b, 0.0, is_out_of_order=True)
    queue.fail(c, 0.0, is_out_of_order=True)
    assert send_all(queue) == [b, c, fresh]
    assert [(batch.epoch, batch.sequence) for batch in (b, c, fresh)] == [(1, 0), (1, 1), (1, 2)]


def test_a_gap_of_which_nobody_knows() -> None:
    """A batch that was sent expires, and nothing was sent after it: its number could be in use."""
    a = batch_of(1)
    queue = ready(a)
    send_all(queue)
    queue.add(fresh := batch_of(1, now=40.0))
    queue.fail(a, 0.0)
    assert queue.expire(60.0) == [a]
    assert send_all(queue, 60.0) == [fresh]
    assert (fresh.epoch, fresh.sequence) == (1, 0)


def test_what_follows_a_gap_has_the_next_sequence_numbers() -> None:
    """A broker cannot take the next batch for the expired one, and acknowledge what it never wrote."""
    a, b = batch_of(1), batch_of(1, now=40.0)
    queue = ready(a, b)
    send_all(queue)
    queue.add(fresh := batch_of(1, now=40.0))
    queue.fail(a, 0.0)
    queue.fail(b, 0.0)
    assert queue.expire(60.0) == [a]
    assert send_all(queue, 60.0) == [b, fresh]
    assert [(batch.epoch, batch.sequence) for batch in (a, b, fresh)] == [(0, 1), (0, 2), (0, 3)]
    queue.succeed(b, 60.0)
    queue.succeed(fresh, 60.0)
    assert queue.epoch == 0


def test_the_last_epoch_is_followed_by_a_new_producer_id() -> None:
    a, b = batch_of(1), batch_of(1)
    queue = ready(a, b)
    queue.epoch = MAX_EPOCH
    send_all(queue)
    queue.drop(a)
    queue.fail(b, 0.0, is_out_of_order=True)
    assert queue.producer_id == NO_ID
    assert queue.needs_id
    assert queue.next_batch(0.0) is None
    queue.set_producer_id(8)
    assert send_all(queue) == [b]
    assert (b.producer_id, b.epoch, b.sequence) == (8, 0, 0)


@pytest.mark.parametrize("is_idempotent", [True, False])
def test_a_batch_that_is_too_large_is_sent_in_parts(is_idempotent: bool) -> None:
    large, later = batch_of(4), batch_of(1)
    queue = ready(large, later) if is_idempotent else PartitionQueue(TP)
    if not is_idempotent:
        queue.add(large)
        queue.add(later)
    send_all(queue)
    parts = large.split()
    queue.split(large, parts)
    if is_idempotent:
        queue.fail(later, 0.0, is_out_of_order=True)
        assert send_all(queue) == [*parts, later]
        assert [(part.sequence, part.count) for part in (*parts, later)] == [(1, 2), (3, 2), (5, 1)]
    else:
        assert send_all(queue) == parts[:1]
    assert sum(part.count for part in parts) == 4


def test_sequence_numbers_begin_again_after_the_largest() -> None:
    """`DefaultRecordBatch.incrementSequence`."""
    queue = ready(a := batch_of(3), b := batch_of(1))
    queue._next_sequence = (1 << 31) - 2
    send_all(queue)
    assert (a.sequence, b.sequence) == ((1 << 31) - 2, 1)
