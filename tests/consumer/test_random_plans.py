"""Plans from what has changed ask for the same partitions as a scan over all partitions, after any random events."""

from __future__ import annotations

import random

import pytest

from asyncgroup.consumer.fetch_outcome import FetchOutcomes
from asyncgroup.consumer.fetch_plan import EXPRESS_LANE, MAIN_LANE, SHORT_WAIT, FetchPlan
from asyncgroup.consumer.partition import TopicPartitionState
from asyncgroup.errors import ErrorCode, RequestTimedOut
from asyncgroup.model import TopicPartition
from tests.consumer.fetch_stories import ScheduledPartitions
from tests.consumer.support import batch, pop
from tests.profiles import thinned

PARTITIONS = 12
STEPS = 300


class Program:
    """A random program: each step changes partitions, or begins or ends a fetch."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.story = ScheduledPartitions(
            PARTITIONS, fetch_max_wait=0.5, buffer_bytes=self.rng.choice([3_000, 64_000])
        )
        self.partitions: dict[int, TopicPartitionState] = {}
        self.plans: dict[str, FetchPlan] = {}
        self.planned = 0

    def run(self) -> None:
        steps = (
            self.add,
            self.remove,
            self.seek,
            self.pause,
            self.resume,
            self.fail,
            self.new_epoch,
            self.validate,
        )
        for _ in range(STEPS):
            self.rng.choice((*steps, self.drain, self.drain, self.main, self.main, self.express))()
            self.story.now += self.rng.choice([0.0, 0.001, 0.03])
            held = sum(partition.buffer.bytes for partition in self.partitions.values())
            assert self.story.states.budget.used == held

    def any(self) -> TopicPartitionState | None:
        return self.rng.choice(list(self.partitions.values())) if self.partitions else None

    # --- steps --------------------------------------------------------------------------------------------------

    def add(self) -> None:
        number = self.rng.randrange(PARTITIONS)
        if number not in self.partitions:
            self.partitions[number] = self.story.add(number)

    def remove(self) -> None:
        if len(self.partitions) > 3 and (partition := self.any()) is not None:
            self.story.states.remove(partition)
            del self.partitions[partition.tp.partition]

    def seek(self) -> None:
        if (partition := self.any()) is not None:
            partition.seek_to(self.rng.randrange(100))

    def pause(self) -> None:
        if (partition := self.any()) is not None:
            partition.pause()

    def resume(self) -> None:
        for partition in self.partitions.values():
            partition.resume()

    def fail(self) -> None:
        """An error for the reader, who takes it at once or later; or a stall."""
        partition = self.any()
        if partition is None:
            return
        partition.fail(OSError("broken"))
        if self.rng.random() < 0.8:
            for each in self.partitions.values():
                each.take_error()
        for _ in range(2):
            partition.check_progress()

    def new_epoch(self) -> None:
        if (partition := self.any()) is not None:
            epoch = self.story.metadata.view.topics["orders"].partitions[partition.tp.partition].leader_epoch
            self.story.metadata.update_leader(partition.tp, 1, epoch + 1)

    def validate(self) -> None:
        """The leader confirms the positions of its new epoch."""
        if 1 in self.story.states.brokers:
            broker = self.story.broker
            self.story.scheduler.skip_validation(broker, self.story.scheduler.plan_validation(broker))

    def drain(self) -> None:
        if (partition := self.any()) is not None and not partition.blocked:
            while partition.buffer and self.rng.random() < 0.9:
                if not partition.buffer.decoded:
                    partition.buffer.advance()
                pop(partition.buffer)
                partition.made_room()

    def main(self) -> None:
        self.fetch(MAIN_LANE)

    def express(self) -> None:
        self.fetch(EXPRESS_LANE)

    def fetch(self, lane: str) -> None:
        if not self.partitions or 1 not in self.story.states.brokers:
            return
        if lane in self.plans:
            self.end(self.plans.pop(lane))
            return
        expected, max_wait = self.scan(lane)
        plan = self.story.send(lane)
        if plan is None:
            assert not expected
            return
        self.planned += 1
        assert {tp: planned.partition for tp, planned in plan.partitions.items()} == expected
        assert plan.max_wait == max_wait
        for tp, planned in plan.partitions.items():
            wanted = planned.wanted
            info = self.story.metadata.view.topics["orders"].partitions[tp.partition]
            partition = expected[tp]
            assert (wanted.offset, wanted.leader_epoch) == (partition.fetch_offset, info.leader_epoch)
            assert wanted.max_bytes == partition.fetch_size == partition.reserved
            assert planned.version == partition.version
        if lane == MAIN_LANE:
            assert self.story.session.wanted == {tp: p.fetch_offset for tp, p in expected.items()}
        self.plans[lane] = plan

    def end(self, plan: FetchPlan) -> None:
        planned = list(plan.partitions.items())
        kind = self.rng.random()
        if kind < 0.1:
            self.story.scheduler.fetch_failed(
                self.story.broker, plan, RequestTimedOut("no answer"), self.story.now
            )
            waiting = self.story.states.begin_refresh(float("inf"))
            self.story.states.end_refresh(waiting, self.story.now)
            return
        if kind < 0.15:
            self.story.broker.give_up(plan)
            return
        data = {}
        for tp, each in self.rng.sample(planned, k=self.rng.randrange(len(planned) + 1)):
            count = self.rng.randrange(3)
            data[tp] = batch(each.wanted.offset, count=count, epoch=5, value=b"v" * 300) if count else b""
        self.story.answer(plan, data, high_watermark=self.rng.choice([0, 1000]))

    # --- the scan -----------------------------------------------------------------------------------------------

    def scan(self, lane: str) -> tuple[dict[TopicPartition, TopicPartitionState], float]:
        """Return what a fetch has to ask for, and its `max_wait`, by looking at every partition."""
        other = self.plans.get(MAIN_LANE if lane == EXPRESS_LANE else EXPRESS_LANE)
        in_flight = {
            tp for tp, planned in (other.partitions.items() if other else ())
            if planned.is_current and self.story.broker.has(planned.partition)
        }  # fmt: skip
        idle = {p.tp: p for p in self.story.broker.all() if p.tp not in in_flight}
        reserved = [(partition, partition.reserved) for partition in idle.values()]
        try:
            for partition, _ in reserved:
                partition.reserved = 0  # what the last request asked for is not in flight any more
            return self.choose(lane, idle, in_flight)
        finally:
            for partition, size in reserved:
                partition.reserved = size

    def choose(
        self, lane: str, idle: dict[TopicPartition, TopicPartitionState], in_flight: set[TopicPartition]
    ) -> tuple[dict[TopicPartition, TopicPartitionState], float]:
        # a leader of a new epoch validates the position first
        ready = {tp: p for tp, p in idle.items() if p.is_fetchable and not self.must_validate(p)}
        if lane == MAIN_LANE:
            full = any(p.is_buffer_full and not self.must_validate(p) for p in idle.values())
            self.skipped = {tp: self.partitions[tp.partition].version for tp in in_flight}
            return ready, SHORT_WAIT if full or in_flight else 0.5
        if self.story.now < self.story.broker.express_from():
            return {}, 0.0
        if self.plans[MAIN_LANE].max_wait <= SHORT_WAIT:
            ready = {tp: p for tp, p in ready.items() if self.skipped.get(tp) != p.version}
        return ready, SHORT_WAIT

    def must_validate(self, partition: TopicPartitionState) -> bool:
        info = self.story.metadata.view.topics["orders"].partitions[partition.tp.partition]
        return partition.fetch_source.must_validate(partition.fetched_epoch, info)


@pytest.mark.parametrize("seed", thinned(range(40)))
def test_plans_are_those_of_a_scan_over_all_partitions(seed: int) -> None:
    program = Program(seed)
    program.run()
    assert program.planned > STEPS / 20


def test_a_session_error_is_followed_by_a_full_request() -> None:
    story = ScheduledPartitions(3)
    partitions = [story.add(number) for number in range(3)]
    plan = story.send()
    assert plan is not None
    assert len(story.session.wanted) == 3
    story.answer(plan, {})
    story.session.wanted = {}
    plan = story.send()
    assert plan is not None
    assert story.session.wanted == {}, "nothing has changed"
    assert story.broker.session is not None
    assert story.broker.session.handle_error(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
    story.scheduler.apply(story.broker, plan, FetchOutcomes([], [], 0), story.now)
    assert story.send() is not None
    assert list(story.session.wanted) == [partition.tp for partition in partitions]
