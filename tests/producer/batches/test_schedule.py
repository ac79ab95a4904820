"""The send schedule against a plain scan over all queues: what can be sent is sent, and no plan comes too late."""

from __future__ import annotations

from typing import Any

from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from asyncgroup.model import TopicPartition
from asyncgroup.producer.batches.accumulator import RecordAccumulator
from asyncgroup.producer.batches.batch import COMPRESS_OFF_LOOP, ProducerBatch
from asyncgroup.producer.batches.partition_queue import PartitionQueue
from asyncgroup.producer.batches.schedule import MAX_BATCHES, ROUNDING, SendPlan
from asyncgroup.producer.sending.timing import SendingLoad
from tests.producer.batches.test_accumulator import made, put
from tests.profiles import examples

NODES = (0, 1)
TPS = [TopicPartition("t", number) for number in range(5)]
LINGER, TIMEOUT = 1.0, 50.0


class ScheduleMachine(RuleBasedStateMachine):
    """Random events; after each one, plans are made until there are no requests."""

    @initialize(
        idempotent=st.booleans(), transactional=st.booleans(), compressed=st.booleans(), linger=st.booleans()
    )
    def begin(self, idempotent: bool, transactional: bool, compressed: bool, linger: bool) -> None:
        self.linger = LINGER if linger else 0.0
        config: dict[str, Any] = {"enable_idempotence": idempotent, "linger": self.linger}
        if transactional and idempotent:
            config["transactional_id"] = "name"
        config |= {
            "delivery_timeout": TIMEOUT,
            "request_timeout": 1.0,
            "batch_size": 40_000,
            "buffer_bytes": 1 << 20,
        }
        config |= {"compression_type": "lz4" if compressed else "none", "max_request_size": 90_000}
        self.accumulator, self.time = made(**config)
        self.accumulator.schedule.on_due = self._on_due
        self.is_transactional = "transactional_id" in config
        if self.is_transactional:
            self.accumulator.use_transactional_id(7, 0)
        self.leaders = {tp: tp.partition % 2 for tp in TPS}
        self.busy: set[int] = set()
        self.added: set[TopicPartition] = set()
        self.in_flight: list[ProducerBatch] = []
        self.to_compress: list[ProducerBatch] = []
        self.skip_linger = False
        self.load = SendingLoad(4.0)  # more than linger
        self.wake_at = float("inf")
        self.leaderless: set[ProducerBatch] = (
            set()
        )  # were ready in a plan, except that their partition had no leader

    def _on_due(self, at: float) -> None:
        self.wake_at = min(self.wake_at, self.time.now if self.skip_linger else at)  # as the sender

    # --- events -------------------------------------------------------------------------------------------------

    @rule(tp=st.sampled_from(TPS), length=st.sampled_from([1, 20_000, 50_000]), count=st.integers(1, 3))
    def add(self, tp: TopicPartition, length: int, count: int) -> None:
        for _ in range(count):
            put(self.accumulator, tp, b"." * length)
        self.wake()

    @rule(seconds=st.sampled_from([0.3, 1.0, 20.0]))
    def wait(self, seconds: float) -> None:
        end = self.time.now + seconds
        while self.wake_at <= end:
            self.time.now = max(self.time.now, self.wake_at)
            self.plans()
        self.time.now = end

    @rule(seconds=st.sampled_from([0.01, 0.1, 3.0]))
    def take_time(self, seconds: float) -> None:
        """Sending has kept the event loop."""
        began = self.time.now
        self.time.now += seconds
        self.load.add(began, self.time.now)
        self.plans()

    @rule(busy=st.sets(st.sampled_from(NODES)))
    def respond_of_nodes(self, busy: set[int]) -> None:
        self.busy = busy
        self.plans()

    @rule(tp=st.sampled_from(TPS), node=st.sampled_from([-1, 0, 1]))
    def move(self, tp: TopicPartition, node: int) -> None:
        self.leaders = {**self.leaders, tp: node}
        self.plans()

    @rule(skip=st.booleans())
    def wait_for_memory(self, skip: bool) -> None:
        self.skip_linger = skip
        self.plans()

    @rule()
    def give_id(self) -> None:
        if not self.is_transactional:
            self.accumulator.set_producer_id(3)
            self.plans()

    @rule(tps=st.sets(st.sampled_from(TPS)))
    def add_to_transaction(self, tps: set[TopicPartition]) -> None:
        self.added |= tps
        self.accumulator.schedule.on_partitions_added()
        self.plans()

    @precondition(lambda self: self.to_compress)
    @rule()
    def compress(self) -> None:
        batch = self.to_compress.pop(0)
        batch.compress()
        self.accumulator.on_compressed([batch])
        self.plans()

    @precondition(lambda self: self.in_flight)
    @rule(
        result=st.sampled_from(["ok", "ok", "retry", "out of order", "drop", "split"]),
        place=st.integers(0, 9),
    )
    def answer(self, result: str, place: int) -> None:
        batch = self.in_flight.pop(place % len(self.in_flight))
        if result == "split" and batch.count > 1 and not batch.done:
            self.accumulator.split(batch)
        elif result in ("retry", "out of order"):
            is_out_of_order = result == "out of order" and not self.is_transactional
            self.accumulator.retry(batch, self.time.now + 2.0, is_out_of_order=is_out_of_order)
        else:
            (self.accumulator.drop if result == "drop" else self.accumulator.succeed)(batch)
            self.fail(batch)
        self.plans()

    @rule()
    def flush(self) -> None:
        self.accumulator.close_open()
        self.wake()

    @rule()
    def fail_all(self) -> None:
        for batch in list(self.accumulator.incomplete):
            self.fail(batch)
        self.accumulator.remove_done()
        self.plans()

    def fail(self, batch: ProducerBatch) -> None:
        if self.accumulator.deallocate(batch):
            batch.fail(TimeoutError)

    # --- plans --------------------------------------------------------------------------------------------------

    def wake(self) -> None:
        if self.wake_at <= self.time.now:
            self.plans()
        self.check_against_scan()

    def plans(self) -> None:
        leaders = self.leaders
        admit = self.added.__contains__ if self.is_transactional else None
        while True:
            plan: SendPlan = self.accumulator.schedule.plan(
                self.time.now,
                leaders.__getitem__,
                self.busy,
                skip_linger=self.skip_linger,
                owed=self.load.owed(self.time.now),
                admit=admit,
            )
            for batch in plan.expired:
                assert batch.deadline <= self.time.now
                self.fail(batch)
            for node, batches in plan.requests.items():
                assert node not in self.busy
                assert 0 < len(batches) <= MAX_BATCHES
                assert len({batch.tp for batch in batches}) == len(batches)
                assert all(batch.in_flight and self.leaders[batch.tp] == node for batch in batches)
                self.in_flight += batches
                for batch in batches:
                    if batch.compressing is None:
                        batch.encoded()
            self.to_compress += plan.to_compress
            if not plan.requests:
                break
        self.wake_at = plan.wake_at
        self.check_against_scan()
        queues = list(self.accumulator.queues.values())
        states = {queue: self.state(queue) for queue in queues}
        assert ("leaderless" in states.values()) <= plan.has_leaderless
        assert plan.has_leaderless <= bool({"leaderless", "was leaderless"} & {*states.values()})
        found = {queue.next_batch(self.time.now) for queue, state in states.items() if state == "leaderless"}
        self.leaderless |= {batch for batch in found if batch is not None}
        assert plan.needs_id == any(queue.needs_id and queue.has_waiting for queue in queues)

    def check_against_scan(self) -> None:
        """A scan over all queues finds nothing to send, and no time before `wake_at`."""
        for queue in self.accumulator.queues.values():
            state = self.state(queue)
            assert state != "ready", queue
            if isinstance(state, float):
                assert self.wake_at <= state
            for batch in (*queue.sent, *queue.fresh):
                assert batch.done or self.wake_at <= batch.deadline > self.time.now
            for batch in queue.fresh:
                if batch.closed and batch.size >= COMPRESS_OFF_LOOP and self.compresses(self.accumulator):
                    assert batch.compressing is not None or batch is not queue.fresh[0]

    def compresses(self, accumulator: RecordAccumulator) -> bool:
        return accumulator.schedule._compresses

    def end_of_linger(self, batch: ProducerBatch) -> float:
        """Return when a batch has lingered for as long as the load says, which becomes less as time passes."""
        at, now = batch.created_at + self.linger, self.time.now
        longer = max(self.load.owed(now) - self.linger, 0.0) if self.linger else 0.0
        return at if at <= now - longer + ROUNDING else max(at, (at + now + longer) / 2)

    def state(self, queue: PartitionQueue) -> str | float:
        """Return whether the next batch is ready; or the time at which it will be, or why it has to wait."""
        batch = queue.next_batch(self.time.now)
        if batch is None:
            return "nothing"
        if self.is_transactional and queue.tp not in self.added:
            return "not in the transaction"
        lingers = not (batch.closed or self.skip_linger)
        at = max(queue.retry_at, self.end_of_linger(batch) if lingers else 0.0)
        node = self.leaders[queue.tp]
        if at > self.time.now:
            # a plan is made when the node takes a request: it may have been ready while callers waited for memory
            if queue.retry_at <= self.time.now:
                if node in self.busy:
                    return "busy"
                if node < 0 and batch in self.leaderless:
                    return "was leaderless"  # it is looked at again when the metadata changes
            return at
        if batch.compressing:
            return "compressing"
        if node < 0:
            return "leaderless"
        if node in self.busy or (queue.in_flight and queue.node != node):
            return "busy"
        return "ready"


ScheduleMachine.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=50, deadline=None)
TestSchedule = ScheduleMachine.TestCase
