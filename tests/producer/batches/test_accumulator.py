"""The record accumulator without idempotence against a simple model: order, one batch in flight per partition, bytes, deadlines."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, precondition, rule

from asyncgroup.config import ProducerConfig
from asyncgroup.model import TopicPartition
from asyncgroup.producer.batches.accumulator import RecordAccumulator
from asyncgroup.producer.batches.batch import ProducerBatch, record_size
from asyncgroup.wire.batch_view import BatchView
from asyncgroup.wire.records import decode_batch
from tests.profiles import examples

TPS = [TopicPartition("t", number) for number in range(4)]
LEADER = {tp: tp.partition % 2 for tp in TPS}


class Time:
    """A clock that the test advances."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def made(**config: Any) -> tuple[RecordAccumulator, Time]:
    config = {
        "linger": 1.0,
        "batch_size": 1000,
        "max_request_size": 2500,
        "buffer_bytes": 5000,
        "enable_idempotence": False,
    } | config
    time = Time()
    return RecordAccumulator(ProducerConfig(**config), time), time


def put(accumulator: RecordAccumulator, tp: TopicPartition, value: bytes) -> bool | None:
    """Append a record; None if the buffer is full."""
    size = record_size(value, None, ())
    if not accumulator.memory.try_reserve(size):
        return None
    return accumulator.append(accumulator.queue(tp), value, None, (), 0, size, None)


def values(batch: ProducerBatch) -> list[bytes | None]:
    data = batch.encoded()
    return [record.value for record in decode_batch("t", 0, BatchView(data))]


@dataclass
class Model:
    """The expected state of a partition."""

    sent: list[bytes] = field(default_factory=list)
    done: list[bytes] = field(default_factory=list)
    in_flight: ProducerBatch | None = None
    retry_at: float = float("-inf")


class AccumulatorMachine(RuleBasedStateMachine):
    batches = Bundle("batches")

    @initialize(linger=st.sampled_from([0.0, 1.0]), batch_size=st.sampled_from([100, 1000]))
    def begin(self, linger: float, batch_size: int) -> None:
        self.linger, self.batch_size = linger, batch_size
        self.accumulator, self.time = made(linger=linger, batch_size=batch_size)
        self.models = {tp: Model() for tp in TPS}
        self.reserved = 0
        self.count = 0
        self.lost: set[bytes] = set()

    @rule(tp=st.sampled_from(TPS), length=st.integers(0, 700))
    def add(self, tp: TopicPartition, length: int) -> None:
        value = b"%06d" % self.count + b"." * length
        size = record_size(value, None, ())
        fits = self.reserved == 0 or self.reserved + size <= 5000
        taken = put(self.accumulator, tp, value)
        assert (taken is not None) == fits
        if taken is not None:
            self.count += 1
            self.reserved += size
            self.models[tp].sent.append(value)

    @rule(seconds=st.sampled_from([0.3, 1.0, 40.0]))
    def wait(self, seconds: float) -> None:
        self.time.now += seconds

    @rule(
        target=batches,
        busy=st.sets(st.integers(0, 1)),
        leaderless=st.sets(st.sampled_from(TPS)),
        skip_linger=st.booleans(),
    )
    def send(self, busy: set[int], leaderless: set[TopicPartition], skip_linger: bool) -> Any:
        plan = self.accumulator.schedule.plan(
            self.time.now, lambda tp: -1 if tp in leaderless else LEADER[tp], busy, skip_linger=skip_linger
        )
        assert leaderless or not plan.has_leaderless
        assert plan.wake_at > self.time.now
        for batch in plan.expired:
            assert batch.deadline <= self.time.now
            self.lost.update(value for value in values(batch) if value is not None)
            assert self.accumulator.deallocate(batch)
            batch.fail(lambda: TimeoutError())
            self.reserved -= batch.reserved
        for node, sending in plan.requests.items():
            assert node not in busy
            assert sum(batch.size for batch in sending) <= 2500 or len(sending) == 1
            for batch in sending:
                model = self.models[batch.tp]
                assert model.in_flight is None
                assert LEADER[batch.tp] == node
                assert batch.tp not in leaderless
                assert self.time.now >= model.retry_at
                assert skip_linger or batch.closed or self.time.now >= batch.created_at + self.linger
                assert len(batch.encoded()) <= self.batch_size or batch.count == 1
                model.in_flight = batch
        return [batch for sending in plan.requests.values() for batch in sending]

    @rule(sending=batches, ok=st.booleans(), pause=st.sampled_from([0.0, 2.0]))
    def answer(self, sending: Any, ok: bool, pause: float) -> None:
        for batch in sending:
            model = self.models[batch.tp]
            if model.in_flight is not batch:
                continue  # already answered
            model.in_flight = None
            if not ok:
                model.retry_at = self.time.now + pause
                self.accumulator.retry(batch, model.retry_at)
                continue
            model.retry_at = float("-inf")
            self.accumulator.succeed(batch)
            if self.accumulator.deallocate(batch):
                self.reserved -= batch.reserved
                batch.complete(0)
                model.done += [value for value in values(batch) if value is not None]

    @rule()
    def flush(self) -> None:
        self.accumulator.close_open()
        assert all(batch.closed for batch in self.accumulator.incomplete)

    @precondition(lambda self: self.count)
    @rule()
    def drain(self) -> None:
        """With healthy brokers every record is written, in order, or was reported lost."""
        self.accumulator.close_open()
        for _ in range(200):
            now = self.time.now
            waiting = [model.in_flight for model in self.models.values() if model.in_flight is not None]
            self.answer([*waiting], True, 0.0)
            self.answer(self.send(set(), set(), True), True, 0.0)
            self.time.now = max(now, min(now + 2.0, now + 2.0))
            if not self.accumulator.incomplete:
                break
        assert not self.accumulator.incomplete
        for model in self.models.values():
            assert model.done == [value for value in model.sent if value not in self.lost]

    @invariant()
    def bytes_add_up(self) -> None:
        if hasattr(self, "accumulator"):
            assert self.accumulator.memory.used == self.reserved
            assert self.accumulator.records == sum(batch.count for batch in self.accumulator.incomplete)

    @invariant()
    def order_is_kept(self) -> None:
        for model in getattr(self, "models", {}).values():
            assert model.done == [value for value in model.sent if value in set(model.done)]


AccumulatorMachine.TestCase.settings = settings(
    max_examples=examples(60), stateful_step_count=40, deadline=None
)
TestAccumulator = AccumulatorMachine.TestCase


# --- single cases ---------------------------------------------------------------------------------------------------


def leader(tp: TopicPartition) -> int:
    return LEADER[tp]


def test_a_batch_lingers_until_wake_at() -> None:
    accumulator, time = made(linger=2.0)
    assert put(accumulator, TPS[0], b"x") is False
    assert put(accumulator, TPS[0], b"y") is False
    time.now = 0.5
    plan = accumulator.schedule.plan(0.5, leader, ())
    assert not plan.requests
    assert plan.wake_at == 2.0
    (batch,) = accumulator.schedule.plan(2.0, leader, ()).requests[0]
    assert values(batch) == [b"x", b"y"]


def test_a_full_batch_does_not_linger() -> None:
    accumulator, _ = made(linger=50.0, batch_size=200)
    assert [put(accumulator, TPS[0], b"." * 90) for _ in range(3)] == [False, True, True]
    (batch,) = accumulator.schedule.plan(0.0, leader, ()).requests[0]
    assert batch.count == 1


def test_a_record_larger_than_batch_size_has_its_own_batch() -> None:
    accumulator, _ = made(batch_size=100)
    for value in (b"a", b"b" * 1500, b"c"):
        put(accumulator, TPS[0], value)
    sizes = []
    for _ in range(3):
        (batch,) = accumulator.schedule.plan(1.0, leader, ()).requests[0]
        sizes.append(values(batch))
        accumulator.succeed(batch)
        accumulator.deallocate(batch)
    assert sizes == [[b"a"], [b"b" * 1500], [b"c"]]


def test_partitions_take_turns_when_a_request_cannot_hold_them_all() -> None:
    accumulator, _ = made(linger=0.0, batch_size=1000, max_request_size=1000, buffer_bytes=100_000)
    tps = [TopicPartition("t", number) for number in range(4)]
    for tp in tps:
        for _ in range(3):
            put(accumulator, tp, b"." * 900)
    served = []
    for _ in range(12):
        (batch,) = accumulator.schedule.plan(0.0, lambda _: 7, ()).requests[7]
        served.append(batch.tp.partition)
        accumulator.succeed(batch)
        accumulator.deallocate(batch)
    assert served == [0, 1, 2, 3] * 3


def test_an_expired_batch_in_flight_is_reported_once_and_blocks_until_its_response() -> None:
    accumulator, time = made(linger=0.0)
    put(accumulator, TPS[0], b"first")
    (batch,) = accumulator.schedule.plan(0.0, leader, ()).requests[0]
    put(accumulator, TPS[0], b"second")
    plan = accumulator.schedule.plan(120.0, leader, ())
    assert batch in plan.expired
    for expired in plan.expired:
        accumulator.deallocate(expired)
        expired.fail(TimeoutError)
    time.now = 121.0
    put(accumulator, TPS[0], b"third")
    assert not accumulator.schedule.plan(121.0, leader, ()).requests
    assert not accumulator.schedule.plan(121.0, leader, ()).expired
    accumulator.retry(batch, 0.0)  # the response came too late: the batch is not sent again
    (late,) = accumulator.schedule.plan(121.0, leader, ()).requests[0]
    assert values(late) == [b"third"]


def test_a_leaderless_partition_reports_its_topic_and_waits() -> None:
    accumulator, _ = made(linger=0.0)
    put(accumulator, TPS[0], b"x")
    plan = accumulator.schedule.plan(0.0, lambda _: -1, ())
    assert plan.has_leaderless
    assert plan.wake_at == 120.0


def test_repr() -> None:
    accumulator, _ = made()
    put(accumulator, TPS[0], b"x")
    assert repr(accumulator) == "<RecordAccumulator 1 batches, 22 of 5000 bytes>"
    (batch,) = accumulator.incomplete
    assert "t-0 1 records" in repr(batch)
    assert "open" in repr(batch)
    assert "idle" in repr(accumulator.queue(TPS[0]))


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_codec(codec: Any) -> None:
    accumulator, _ = made(compression_type=codec, linger=0.0)
    for number in range(20):
        put(accumulator, TPS[0], b"%03d" % number)
    (batch,) = accumulator.schedule.plan(0.0, leader, ()).requests[0]
    assert values(batch) == [b"%03d" % number for number in range(20)]
