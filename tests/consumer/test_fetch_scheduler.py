"""FetchScheduler without an event loop: plans and outcomes as values, and the state of each partition after them."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from asyncgroup.cluster.requests.list_offsets import EARLIEST, LATEST, ListedOffset
from asyncgroup.config import ConsumerConfig
from asyncgroup.consumer.fetch_outcome import (
    EpochEnd,
    EpochEndOffset,
    Fatal,
    FetchedRecords,
    FetchOutcome,
    FetchOutcomes,
    LeaderHint,
    OutOfRange,
    ReadReplica,
    Retriable,
)
from asyncgroup.consumer.fetch_plan import EXPRESS_LANE, MAIN_LANE, SHORT_WAIT, FetchPlan
from asyncgroup.consumer.fetch_scheduler import FetchScheduler
from asyncgroup.consumer.fetch_state import NO_NODE, FetchState
from asyncgroup.consumer.list_offsets import ListOffsetsResult
from asyncgroup.consumer.partition import TopicPartitionState
from asyncgroup.consumer.partition_states import REFRESH_WINDOW, PartitionStates
from asyncgroup.errors import (
    BrokerError,
    ErrorCode,
    LogTruncatedError,
    OffsetOutOfRangeError,
    RequestTimedOut,
)
from asyncgroup.hooks import Hooks
from asyncgroup.model import TopicPartition
from asyncgroup.net.backoff import RetryBackoff
from asyncgroup.wire import messages as m
from tests.consumer.fetch_stories import Metadata
from tests.consumer.support import batch

NOT_LEADER = BrokerError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "fetch")
OUT_OF_RANGE = BrokerError(ErrorCode.OFFSET_OUT_OF_RANGE, "fetch")
UNAUTHORIZED = BrokerError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "fetch")


class Story:
    """A scheduler at a time that the test sets."""

    def __init__(self, **config: object) -> None:
        self.config = ConsumerConfig(**{"retry_backoff": 1.0, "retry_backoff_max": 1.0, **config})  # type: ignore[arg-type]
        self.metadata = Metadata(4)
        self.woken: list[int] = []
        self.timers: list[FetchState] = []
        self.reported: list[Exception] = []
        rng = random.Random(1)
        self.states = PartitionStates(
            self.metadata,
            self.config,
            lambda: RetryBackoff(1.0, 1.0, rng),
            rng,
            wake=self.woken.append,
            wake_timer=self.timers.append,
            report=lambda _partitions, error: self.reported.append(error),
            sessions={},
        )
        self.scheduler = FetchScheduler(self.states, self.config, lambda: 0)
        self.now = 100.0

    def add(self, number: int = 0, offset: int = 0, epoch: int = -1) -> TopicPartitionState:
        tp = TopicPartition("orders", number)
        partition = TopicPartitionState(tp, offset, self.config, self.states.budget, Hooks(), epoch)
        self.states.add(partition, self.now)
        return partition

    def plan(self, node_id: int = 1, lane: str = MAIN_LANE) -> FetchPlan | None:
        return self.scheduler.plan(self.states.brokers[node_id], lane, self.now)

    def fetch(self, outcome: FetchOutcome | None, node_id: int = 1) -> None:
        """Send the next fetch from a node and answer it with one outcome for each partition."""
        plan = self.plan(node_id)
        assert plan is not None
        outcomes = [] if outcome is None else [(tp, outcome) for tp in plan.partitions]
        self.scheduler.apply(
            self.states.brokers[node_id],
            plan,
            FetchOutcomes(outcomes, [tp for tp, _ in outcomes], 0),
            self.now,
        )

    def fail(self, node_id: int = 1, error: Exception | None = None) -> None:
        plan = self.plan(node_id)
        assert plan is not None
        self.scheduler.fetch_failed(
            self.states.brokers[node_id], plan, error or RequestTimedOut("no answer"), self.now
        )


def records(data: bytes | None = None) -> FetchedRecords:
    return FetchedRecords(data, 10, 0, 10, None, zero_copy=True)


# -- fetches -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def story() -> Story:
    """A scheduler without partitions."""
    return Story()


def test_a_partition_is_fetched_from_its_leader(story: Story) -> None:
    partition = story.add(offset=3)
    assert (partition.state, partition.node_id, story.woken) == (FetchState.FETCHING, 1, [1])
    plan = story.plan()
    assert plan is not None
    assert (plan.node_id, plan.lane, list(plan.partitions)) == (1, MAIN_LANE, [partition.tp])
    assert (plan.wanted[partition.tp].offset, plan.wanted[partition.tp].leader_epoch) == (3, 5)
    assert partition.reserved == plan.wanted[partition.tp].max_bytes
    assert story.plan() is None, "it is in flight"
    outcomes = FetchOutcomes([(partition.tp, records(batch(3, count=2)))], [partition.tp], 100)
    story.scheduler.apply(story.states.brokers[1], plan, outcomes, story.now)
    assert (partition.state, partition.reserved, partition.fetch_offset) == (FetchState.FETCHING, 0, 5)


def test_the_express_lane_is_used_only_while_the_main_lane_waits() -> None:
    story = Story(fetch_max_wait=5.0)
    story.add(0)
    second = story.add(1)
    second.pause()
    assert story.plan(lane=EXPRESS_LANE) is None
    plan = story.plan()
    assert plan is not None
    assert (list(plan.partitions), plan.max_wait) == ([("orders", 0)], 5.0)
    second.resume()
    express = story.plan(lane=EXPRESS_LANE)
    assert express is not None
    assert (list(express.partitions), express.max_wait) == ([second.tp], SHORT_WAIT)
    # the next main fetch is short as it has to leave out the other; the express lane leaves that one to it
    story.scheduler.apply(story.states.brokers[1], plan, FetchOutcomes([], [], 0), story.now)
    short = story.plan()
    assert short is not None
    assert short.max_wait == SHORT_WAIT
    story.scheduler.apply(story.states.brokers[1], express, FetchOutcomes([], [], 0), story.now)
    assert story.plan(lane=EXPRESS_LANE) is None


def test_a_response_without_a_session_has_to_name_all_partitions() -> None:
    """Otherwise a broker that leaves a partition out would be asked for it again and again without a pause."""
    story = Story(fetch_max_wait=5.0)
    story.add(0)
    second = story.add(1)
    second.pause()
    story.plan()
    second.resume()
    express = story.plan(lane=EXPRESS_LANE)
    assert express is not None
    broker = story.states.brokers[1]
    throttled = broker.read_response(express, m.FetchResponse(throttle_time_ms=10), story.config)
    assert throttled.partitions == [], "the broker has not processed the request"
    outcomes = broker.read_response(express, m.FetchResponse(), story.config)
    ((tp, outcome),) = outcomes.partitions
    assert tp == second.tp
    assert isinstance(outcome, Retriable)
    story.scheduler.apply(broker, express, outcomes, story.now)
    assert second.state is FetchState.LEADERLESS
    assert "orders-1 from node 1" in str(story.reported[0])


def test_a_partition_with_an_end_is_fetched_up_to_it(story: Story) -> None:
    partition = story.add()
    partition.end_offset = 4
    story.fetch(records(batch(0, count=3, epoch=5)))
    assert partition.is_fetchable
    story.fetch(records(batch(3, count=3, epoch=5)))
    assert (partition.fetch_offset, partition.is_fetchable, partition.is_buffer_full) == (6, False, False)
    assert story.plan() is None
    partition.end_offset = 7
    assert story.plan() is not None


def test_an_outcome_is_ignored_after_a_seek(story: Story) -> None:
    partition = story.add()
    plan = story.plan()
    assert plan is not None
    partition.seek_to(7)
    outcomes = FetchOutcomes([(partition.tp, records(batch(0, count=5)))], [], 0)
    again = story.plan(lane=EXPRESS_LANE)
    assert again is not None, "it is fetched at once from the new position"
    story.scheduler.apply(story.states.brokers[1], plan, outcomes, story.now)
    assert (partition.position, partition.fetch_offset, bool(partition.buffer)) == (7, 7, False)
    assert partition.reserved > 0, "by the second fetch"


# -- leaders -----------------------------------------------------------------------------------------------------------


def test_a_moved_partition_is_fetched_from_the_named_leader_once_without_a_pause(story: Story) -> None:
    partition = story.add()
    story.fetch(Retriable(NOT_LEADER, LeaderHint(2, 6, [])))
    assert (partition.state, partition.node_id) == (FetchState.FETCHING, 2)
    story.fetch(Retriable(NOT_LEADER, LeaderHint(3, 7, [])), node_id=2)
    assert (partition.state, partition.node_id) == (FetchState.LEADERLESS, NO_NODE)
    assert story.now + 0.8 <= partition.retry_at <= story.now + 1.2
    assert story.reported == [NOT_LEADER, NOT_LEADER]


def test_each_leaderless_partition_is_due_at_its_own_time(story: Story) -> None:
    partitions = [story.add(number) for number in range(3)]
    story.fail()
    assert {p.state for p in partitions} == {FetchState.LEADERLESS}
    assert len({p.retry_at for p in partitions}) == 1, "those that fail together share a refresh"
    for partition, pause in zip(partitions, (3.0, 1.0, 1.0 + REFRESH_WINDOW / 2), strict=True):
        partition.retry_at = story.now + pause
    assert story.states.next(FetchState.LEADERLESS) == story.now + 1
    story.now += 1
    waiting = story.states.begin_refresh(story.now)
    assert waiting == partitions[1:], "the second one is due within the window"
    assert story.states.next(FetchState.LEADERLESS) == story.now + 2
    story.states.end_refresh(waiting, story.now)
    assert [p.state.name for p in partitions] == ["LEADERLESS", "FETCHING", "FETCHING"]


def test_a_partition_that_begins_to_wait_wakes_the_timer(story: Story) -> None:
    partition = story.add()
    assert story.timers == []
    story.fail()
    assert story.timers == [FetchState.LEADERLESS]
    partition.seek_by_lookup("latest")
    assert story.timers == [FetchState.LEADERLESS, FetchState.AWAIT_RESET]
    assert story.states.next(FetchState.LEADERLESS) == float("inf")


def test_a_removed_partition_is_not_due(story: Story) -> None:
    partition = story.add()
    story.fail()
    waiting = story.states.begin_refresh(partition.retry_at)
    assert waiting == [partition]
    story.states.remove(partition)
    story.states.end_refresh(waiting, story.now)
    assert (partition.state, partition.node_id) == (FetchState.INITIALIZING, NO_NODE)
    story.states.remove(partition)
    assert (len(story.states.partitions), story.states.next(FetchState.LEADERLESS)) == (0, float("inf"))


def test_new_metadata_moves_partitions_and_ends_waits(story: Story) -> None:
    moved, waiting = story.add(0), story.add(1)
    plan = story.plan()
    assert plan is not None
    outcomes = [(waiting.tp, Retriable(NOT_LEADER))]
    story.scheduler.apply(story.states.brokers[1], plan, FetchOutcomes(outcomes, [], 0), story.now)
    assert waiting.state is FetchState.LEADERLESS
    plan = story.plan()
    assert plan is not None
    for partition in (moved, waiting):
        story.metadata.update_leader(partition.tp, 2, 6)
    assert story.states.metadata_changed(story.now) == {1}
    assert [(p.state, p.node_id) for p in (moved, waiting)] == [(FetchState.FETCHING, 2)] * 2
    assert not story.states.brokers[1].is_wanted(plan)


def test_without_a_leader_it_is_leaderless_and_metadata_is_refreshed(story: Story) -> None:
    story.metadata.view = replace(story.metadata.view, brokers={})
    partition = story.add()
    assert partition.state is FetchState.LEADERLESS
    assert story.states.next_refresh() <= partition.retry_at


def test_a_leader_that_a_response_named_is_given_up_when_its_fetch_fails(story: Story) -> None:
    """Its leader epoch may be false: the next metadata decides."""
    partition = story.add()
    story.fetch(Retriable(NOT_LEADER, (2, 1000)))
    assert partition.node_id == 2
    story.fail(2)
    info = story.metadata.view.partition("orders", 0)
    assert info is not None
    assert (info.leader, info.leader_epoch) == (2, 5)


def test_a_leader_in_doubt_causes_refreshes_only_while_its_partition_is_to_be_fetched(story: Story) -> None:
    partition = story.add()
    story.fail()
    waiting = story.states.begin_refresh(partition.retry_at)
    story.states.end_refresh(waiting, story.now)
    assert (partition.state, story.states.next_refresh() < float("inf")) == (FetchState.FETCHING, True)
    partition.pause()
    assert story.states.next_refresh() == story.states.next_refresh() == float("inf")
    partition.resume()
    assert story.states.next_refresh() < float("inf"), "it has not been fetched since"
    story.fetch(records())
    assert story.states.next_refresh() == float("inf")


# -- replicas ----------------------------------------------------------------------------------------------------------


def test_a_preferred_read_replica_is_read_until_its_lease_ends() -> None:
    story = Story(rack_id="a", metadata_refresh_interval=60.0)
    partition = story.add()
    story.fetch(ReadReplica(3))
    assert (partition.state, partition.node_id) == (FetchState.FETCHING, 3)
    story.fetch(records(), node_id=3)
    story.now += 61
    assert story.plan(3) is None
    assert (partition.state, partition.node_id) == (FetchState.FETCHING, 1)


@pytest.mark.parametrize("outcome", [OutOfRange(OUT_OF_RANGE), Fatal(UNAUTHORIZED)])
def test_errors_of_a_follower_lead_back_to_the_leader(outcome: FetchOutcome) -> None:
    story = Story(rack_id="a")
    partition = story.add()
    story.fetch(ReadReplica(3))
    story.fetch(records(), node_id=3)
    story.fetch(outcome, node_id=3)
    assert (partition.state, partition.node_id, partition.error) == (FetchState.FETCHING, 1, None)


@pytest.mark.parametrize("outcome", [OutOfRange(OUT_OF_RANGE), Fatal(UNAUTHORIZED)])
def test_a_follower_that_refuses_the_first_fetch_is_avoided_and_the_leader_asked_at_once(
    outcome: FetchOutcome,
) -> None:
    """The request to the leader has no rack id, so that it cannot advise the follower again: there is no busy loop."""
    story = Story(rack_id="a")
    partition = story.add()
    story.fetch(ReadReplica(3))
    story.fetch(outcome, node_id=3)
    assert (partition.state, partition.node_id, partition.error) == (FetchState.FETCHING, 1, None)
    plan = story.plan()
    assert plan is not None
    assert not plan.send_rack
    assert partition.fetch_source.is_avoiding_replica(story.now)


# -- errors for the reader ---------------------------------------------------------------------------------------------


def test_an_error_is_raised_once_and_then_the_partition_is_fetched_again(story: Story) -> None:
    partition = story.add()
    story.fetch(Fatal(UNAUTHORIZED))
    assert (partition.state, partition.fetch_state) == (FetchState.FAILED, FetchState.FETCHING)
    assert story.plan() is None
    with pytest.raises(BrokerError):
        raise partition.take_error()
    assert partition.state is FetchState.FETCHING
    story.fetch(Fatal(UNAUTHORIZED))
    with pytest.raises(BrokerError):
        raise partition.take_error()
    assert partition.state is FetchState.LEADERLESS, "the second error in a row has a pause"
    partition.end()
    assert partition.state is FetchState.ENDED


# -- resets and validation ---------------------------------------------------------------------------------------------


def listed(partition: TopicPartitionState, offset: int) -> ListOffsetsResult:
    return ListOffsetsResult({partition.tp: ListedOffset(offset, -1, 5)}, {})


def test_an_offset_out_of_range_is_looked_up() -> None:
    story = Story(auto_offset_reset="earliest")
    partition = story.add(offset=50)
    story.fetch(OutOfRange(OUT_OF_RANGE))
    assert (partition.state, partition.node_id) == (FetchState.AWAIT_RESET, NO_NODE)
    assert story.scheduler.resets.next_lookup() == story.now
    (lookup,) = story.scheduler.resets.plan(story.now)
    assert lookup.requests == [{}, {partition.tp: EARLIEST}, {partition.tp: LATEST}]
    assert story.scheduler.resets.plan(story.now) == [], "it is under way"
    answers = [ListOffsetsResult({}, {}), listed(partition, 4), listed(partition, 20)]
    story.scheduler.resets.apply(lookup, answers, story.now)
    assert (partition.state, partition.position) == (FetchState.FETCHING, 4)
    assert [type(error) for error in story.reported] == [OffsetOutOfRangeError]


def test_a_seek_makes_a_lookup_void() -> None:
    story = Story(auto_offset_reset="earliest")
    partition = story.add(offset=50)
    story.fetch(OutOfRange(OUT_OF_RANGE))
    (lookup,) = story.scheduler.resets.plan(story.now)
    partition.seek_to(9)
    answers = [ListOffsetsResult({}, {}), listed(partition, 4), listed(partition, 20)]
    story.scheduler.resets.apply(lookup, answers, story.now)
    assert (partition.state, partition.position) == (FetchState.FETCHING, 9)


def test_of_two_seeks_by_name_the_last_counts(story: Story) -> None:
    partition = story.add()
    partition.seek_by_lookup("earliest")
    (first,) = story.scheduler.resets.plan(story.now)
    partition.seek_by_lookup("latest")
    story.scheduler.resets.apply(first, [listed(partition, 4)], story.now)
    assert (partition.state, partition.position) == (FetchState.AWAIT_RESET, 0)
    (second,) = story.scheduler.resets.plan(story.now)
    assert second.requests[0] == {partition.tp: LATEST}
    story.scheduler.resets.apply(second, [listed(partition, 20)], story.now)
    assert (partition.state, partition.position) == (FetchState.FETCHING, 20)


def test_a_new_leader_validates_the_position_before_it_is_fetched_from(story: Story) -> None:
    partition = story.add(offset=8, epoch=4)
    broker = story.states.brokers[1]
    assert story.plan() is None
    assert (partition.state, broker.awaits_validation) == (FetchState.AWAIT_VALIDATION, True)
    validation = story.scheduler.plan_validation(broker)
    check = validation[partition.tp]
    assert (check.fetched_epoch, check.leader_epoch) == (4, 5)
    story.scheduler.apply_validation(
        broker, validation, {partition.tp: (0, EpochEndOffset(4, 12))}, story.now
    )
    assert story.plan() is not None
    assert (partition.state, partition.position) == (FetchState.FETCHING, 8)


def test_a_truncated_log_is_read_from_where_it_diverges() -> None:
    story = Story(auto_offset_reset="earliest")
    partition = story.add(offset=8, epoch=5)
    story.fetch(EpochEnd(EpochEndOffset(4, 6)))
    assert (partition.state, partition.position) == (FetchState.FETCHING, 6)
    assert [type(error) for error in story.reported] == [LogTruncatedError]
