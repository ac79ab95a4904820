"""FetchScheduler: every decision about fetching, as synchronous steps on the partitions' states.

`plan` returns the next request of a broker and lane, `apply` takes the outcomes of its response; the same for position
validation (KIP-320) and offset lookups. `Fetcher` sends the plans and waits for the answers and the times.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final
from uuid import UUID

from asyncgroup.config import ConsumerConfig
from asyncgroup.consumer.broker_partitions import BrokerPartitions
from asyncgroup.consumer.fetch_outcome import (
    EpochEnd,
    EpochEndOffset,
    Fatal,
    FetchedRecords,
    FetchOutcome,
    FetchOutcomes,
    OutOfRange,
    ReadReplica,
    Retriable,
    TooLarge,
)
from asyncgroup.consumer.fetch_plan import MAIN_LANE, NO_LIMIT, FetchPlan, PlannedFetch
from asyncgroup.consumer.fetch_session import PartitionData, response_limit
from asyncgroup.consumer.fetch_state import FetchState
from asyncgroup.consumer.offset_resets import OffsetResets, out_of_range_policy
from asyncgroup.consumer.partition import TopicPartitionState
from asyncgroup.consumer.partition_states import NEVER, PartitionStates
from asyncgroup.consumer.validation import PositionCheck, Validation, complete_validation, validation_outcome
from asyncgroup.errors import (
    AuthenticationError,
    ErrorCode,
    RequestTimedOut,
    TopicRecreatedError,
    TransportError,
    UnsupportedVersionError,
)
from asyncgroup.lifecycle import copy_error
from asyncgroup.log_events import log_fields
from asyncgroup.model import MillisClock, TopicPartition

__all__ = ["FetchScheduler"]

_log = logging.getLogger("asyncgroup.consumer")


DEFAULT_LEASE: Final = 600.0
"""Seconds that a preferred read replica is kept if metadata is not refreshed periodically (as in sarama)."""

AVOID_SECONDS: Final = 60.0
"""Seconds that a follower is not read from after it did not answer or refused a partition.

A controller notices a dead broker sooner; after that leaders no longer advise it as a read replica.
"""


class FetchScheduler:
    """Plans the requests about partitions and applies the outcomes to their states.

    Nothing here waits; `now` is the loop's time. A fetch asks for about `request_bytes` at most, beginning with the
    partitions that have waited longest.
    """

    def __init__(
        self,
        states: PartitionStates,
        config: ConsumerConfig,
        clock: MillisClock,
        *,
        request_bytes: float = NO_LIMIT,
    ) -> None:
        self.states = states
        self.resets = OffsetResets(states, config, clock)
        self._config = config
        self._committed_only = config.isolation_level == "read_committed"
        self._request_bytes = request_bytes

    def __repr__(self) -> str:
        return f"<FetchScheduler of {self.states}>"

    # --- fetches ------------------------------------------------------------------------------------------------

    def plan(self, broker: BrokerPartitions, lane: str, now: float) -> FetchPlan | None:
        """Return the next fetch from a broker on a lane, and count it as in flight; None if there is nothing to fetch.

        The outcome has to be given to `apply` or `fetch_failed`; else the fetch has to be ended (`BrokerPartitions.give_up`).
        """
        is_main = lane == MAIN_LANE
        if broker.is_main_in_flight if is_main else now < broker.express_from():
            return None
        self._update_candidates(broker, now)
        max_wait = self._config.fetch_max_wait
        plan = (
            broker.plan_main(max_wait, self._request_bytes)
            if is_main
            else broker.plan_express(max_wait, lane)
        )
        if not plan.partitions:
            return None
        plan = plan._replace(
            max_bytes=self._response_limit(),
            send_rack=bool(self._config.rack_id) and broker.may_send_rack(now),
        )
        broker.begin(plan, now)
        return plan

    def _response_limit(self) -> int:
        most = response_limit(self._config)
        if self._request_bytes != NO_LIMIT:
            return most
        return self.states.budget.response_limit(most, len(self.states.brokers))

    def _update_candidates(self, broker: BrokerPartitions, now: float) -> None:
        """Look at the partitions that have changed since the last plan."""
        lease = self._config.metadata_refresh_interval or DEFAULT_LEASE
        broker.mark_ended_leases(now)
        for partition in broker.take_changed((self.states.metadata.view, self.states.budget.version)):
            epoch = self._prepare(broker, partition, now)
            if epoch is None or not partition.is_fetchable:
                broker.leave_out(partition.tp, is_full=epoch is not None and partition.is_buffer_full)
                continue
            broker.begin_lease(partition, now, lease)
            wanted = PartitionData(
                partition.fetch_offset,
                epoch,
                partition.fetch_size,
                partition.fetched_epoch,
                partition.fetch_source.topic_id,
            )
            has_backlog = self._has_backlog(partition)
            broker.candidates.set_ready(PlannedFetch(partition, partition.version, wanted, has_backlog))

    def _has_backlog(self, partition: TopicPartitionState) -> bool:
        """Return whether the log is known to have records that were not fetched yet and can be."""
        end = partition.buffer.high_watermark
        if self._committed_only and partition.last_stable_offset >= 0:
            end = partition.last_stable_offset
        return partition.fetch_offset < end

    def _prepare(self, broker: BrokerPartitions, partition: TopicPartitionState, now: float) -> int | None:
        """Bring a partition in line with the metadata before a fetch; return its leader's epoch, -1 if unknown.

        None if it cannot be fetched now: its topic was recreated, it has returned to the leader, or it awaits validation.
        """
        partition.fetch_state = FetchState.FETCHING
        topic = self.states.metadata.view.topics.get(partition.tp.topic)
        if topic is None:
            return -1
        source = partition.fetch_source
        if topic.topic_id != source.topic_id and not self._follow_topic(partition, topic.topic_id, now):
            return None
        info = topic.partitions.get(partition.tp.partition)
        if info is None:
            return -1
        must_validate = source.must_validate(partition.fetched_epoch, info)
        if source.preferred_replica == broker.node_id and (
            # only a leader can validate a position
            must_validate or not source.may_read_replica(now, info)
        ):
            source.clear_preferred_replica()
            # the follower that was read from may lead by now: then it stays the node to fetch from
            if must_validate or info.leader != broker.node_id:
                self.states.assign(partition, now)
                return None
        if must_validate:
            partition.fetch_state = FetchState.AWAIT_VALIDATION
            broker.awaits_validation = True
            return None
        return info.leader_epoch

    def _follow_topic(self, partition: TopicPartitionState, topic_id: UUID, now: float) -> bool:
        """Adopt a topic id, or restart at the recreated topic; return whether the partition can be fetched."""
        if partition.adopt_topic_id(topic_id) or not partition.is_fetchable:
            return True
        return self._restart_topic(partition, topic_id, now) and partition.adopt_topic_id(topic_id)

    def _restart_topic(self, partition: TopicPartitionState, topic_id: UUID, now: float) -> bool:
        """Read a recreated topic from its first record; with the policy `error` raise TopicRecreatedError to the reader.

        This holds for the policy `latest` too: all records of the new topic came after the deletion, and the reader would
        miss those written before it noticed. Returns whether the partition can be fetched.
        """
        error = TopicRecreatedError(partition.tp, partition.position)
        if out_of_range_policy(self._config) == "error":
            self.states.raise_to_reader(partition, error, now)
            return False
        fields = log_fields("offset_reset", tp=partition.tp, offset=0, error=error)
        _log.warning("%s; continuing at its first record", error, extra=fields)
        partition.fetch_source.forget()
        partition.restart(0, topic_id=topic_id)
        self.states.report([partition], error)
        return True

    def apply(self, broker: BrokerPartitions, plan: FetchPlan, outcomes: FetchOutcomes, now: float) -> None:
        """Apply the outcomes of a response to its partitions, as far as they are still fetched at this position."""
        broker.end(plan)
        failing = broker.take_unproven(plan)
        answered = set()
        for tp, outcome in outcomes.partitions:
            answered.add(tp)
            planned = plan.partitions.get(tp)
            # not if it was removed or had a seek while the request was in flight
            if planned is not None and broker.is_current(planned.partition, planned.version):
                planned.partition.reserved = 0
                broker.candidates.note_changed(planned.partition)
                self._apply(planned.partition, outcome, now)
        for planned in failing:
            partition = planned.partition
            if partition.tp not in answered and broker.is_current(partition, planned.version):
                partition.fetch_failures.clear()  # a session's response omits partitions without news
        self._ask_for_more(broker, plan, outcomes)
        broker.candidates.rotate(outcomes.served)

    def _ask_for_more(self, broker: BrokerPartitions, plan: FetchPlan, outcomes: FetchOutcomes) -> None:
        """Ask for twice as many bytes of partitions that have more, if the response had room for that.

        That is a partition whose reader keeps up while most others have nothing: it is not to be fetched in many small
        pieces. And one whose next record batch did not fit in the requested bytes: brokers return such a batch for the first
        partition only, and no part of it for the others (KIP-74).
        """
        if not outcomes.served or outcomes.total_bytes + self.states.budget.fetch_size > plan.max_bytes:
            return
        served = set(outcomes.served)
        sent = (plan.partitions[tp] for tp in outcomes.served if tp in plan.partitions)
        more = [planned for planned in sent if self._has_backlog(planned.partition)]
        more += [planned for planned in broker.backlogged(plan) if planned.partition.tp not in served]
        for planned in more:
            partition, size = planned.partition, planned.wanted.max_bytes
            has_room = outcomes.total_bytes + size <= plan.max_bytes
            if has_room and broker.is_current(partition, planned.version):
                partition.ask_for_more(size)

    def _apply(self, partition: TopicPartitionState, outcome: FetchOutcome, now: float) -> None:
        """Take the step that a partition's outcome asks for."""
        match outcome:
            case FetchedRecords():
                partition.fetched(outcome)
            case EpochEnd(end):
                self._complete_validation(partition, end, now)
            case ReadReplica(replica):
                self._move_to_replica(partition, replica, now)
            case Retriable(error, hint):
                if hint is not None:
                    self.states.metadata.update_leader(partition.tp, *hint)
                # if the hint names the same node again, the pause is kept
                hinted = self.states.metadata.view.leader(partition.tp) not in (-1, partition.node_id)
                self._redispatch([partition], error, now, hinted=hinted)
            case OutOfRange() | Fatal() if self._leave_follower(
                partition, partition.fetch_failures.redirected, now
            ):
                # the leader may have what a follower lacks, so only its error counts. A follower to which the leader
                # would send it again is avoided from now on, so no pause is needed
                partition.fetch_failures.redirect()
                self.states.assign(partition, now)
            case OutOfRange():
                self.resets.reset(partition, now)
            case Fatal(error) | TooLarge(error):
                self.states.raise_to_reader(partition, error, now)

    def fetch_failed(self, broker: BrokerPartitions, plan: FetchPlan, error: Exception, now: float) -> None:
        """End a fetch that failed; all its partitions are tried again."""
        error = plan.explained(error)
        broker.give_up(plan)
        partitions = [planned.partition for planned in plan.partitions.values()]
        self._redispatch([p for p in partitions if broker.has(p)], error, now)

    # --- replicas -----------------------------------------------------------------------------------------------

    def _redispatch(
        self, partitions: list[TopicPartitionState], error: Exception, now: float, *, hinted: bool = False
    ) -> None:
        """Fetch from another broker: at once with a hint or if a follower was asked, otherwise after a pause."""
        no_answer = isinstance(error, TransportError)
        at_leader: list[TopicPartitionState] = []
        at_follower: list[TopicPartitionState] = []
        for partition in partitions:
            left = self._leave_follower(partition, no_answer or partition.fetch_failures.redirected, now)
            (at_follower if left else at_leader).append(partition)
            if not left:
                self.states.metadata.doubt_leader(partition.tp, partition.node_id)
        if at_leader:
            self._retry(at_leader, error, now, hinted=hinted)
        if at_follower:
            self._retry(at_follower, error, now, hinted=True)

    def _retry(
        self, partitions: list[TopicPartitionState], error: Exception, now: float, *, hinted: bool
    ) -> None:
        if isinstance(error, AuthenticationError):  # a retry does not help
            for partition in partitions:
                self.states.raise_to_reader(partition, copy_error(error), now)
            return
        if isinstance(error, UnsupportedVersionError):
            partitions = self._raise_repeated(partitions, error, now)
        self.states.report(partitions, error)
        pauses: dict[int, float] = {}
        for partition in partitions:
            if not (hinted and self.states.redirect(partition, now)):
                self.states.retry_later(partition, error, now, pauses)

    def _raise_repeated(
        self, partitions: list[TopicPartitionState], error: UnsupportedVersionError, now: float
    ) -> list[TopicPartitionState]:
        """Raise a missing version to the readers whose last try had the same; return the other partitions.

        The first one may be of a broker that was replaced since: the next try asks for its versions again.
        """
        first_time = []
        for partition in partitions:
            if isinstance(partition.fetch_failures.error, UnsupportedVersionError):
                self.states.raise_to_reader(partition, copy_error(error), now)
            else:
                first_time.append(partition)
        return first_time

    def _move_to_replica(self, partition: TopicPartitionState, replica: int, now: float) -> None:
        """Fetch from the read replica that the leader advises; a second move without a fetch in between waits."""
        source = partition.fetch_source
        if replica == source.avoided_replica and source.is_avoiding_replica(now):
            return  # the request was sent before that follower failed; the next one omits the rack id
        source.update_preferred_replica(replica, NEVER)
        if not self.states.redirect(partition, now):
            self.states.assign_later(partition, now)

    def _leave_follower(self, partition: TopicPartitionState, is_useless: bool, now: float) -> bool:
        """Go back to the leader; return False if the partition was there already. A useless follower is avoided."""
        source = partition.fetch_source
        if source.preferred_replica < 0:
            return False
        if is_useless:
            source.avoid_replica(now, AVOID_SECONDS)
        return source.clear_preferred_replica() or is_useless

    def leave_unresponsive_follower(self, broker: BrokerPartitions, now: float) -> bool:
        """Fetch from the leaders what is fetched from a follower that does not answer; return whether there was any."""
        followed = broker.followed()
        for partition in followed:
            what = f"partition {partition.tp}: follower {broker.node_id} does not answer; fetching from the leader"
            self._leave_follower(partition, is_useless=True, now=now)
            self.states.report([partition], RequestTimedOut(what))
            self.states.assign(partition, now)
        return bool(followed)

    # --- validation of positions --------------------------------------------------------------------------------

    def plan_validation(self, broker: BrokerPartitions) -> Validation:
        """Return the positions that a broker has to validate before more is fetched from it; usually none."""
        view = self.states.metadata.view
        broker.awaits_validation = False
        return {
            p.tp: PositionCheck(p, p.version, p.fetched_epoch, info.leader_epoch)
            for p in broker.all()
            if p.fetch_state is FetchState.AWAIT_VALIDATION
            and (info := view.partition(*p.tp)) is not None
            and p.fetch_source.must_validate(p.fetched_epoch, info)
        }

    def apply_validation(
        self,
        broker: BrokerPartitions,
        validation: Validation,
        ends: Mapping[TopicPartition, tuple[int, EpochEndOffset]],
        now: float,
    ) -> None:
        """Apply a leader's answer; a missing partition counts as an error."""
        for tp, check in validation.items():
            broker.candidates.note_changed(check.partition)
            if not broker.is_current(check.partition, check.version):
                continue
            code, end = ends.get(tp, (ErrorCode.UNKNOWN_SERVER_ERROR, None))
            outcome = validation_outcome(tp, code, end, broker.node_id)
            if isinstance(outcome, EpochEnd):
                check.confirm()
            self._apply(check.partition, outcome, now)

    def skip_validation(self, broker: BrokerPartitions, validation: Validation) -> None:
        """Fetch without validation: brokers before KIP-320 cannot validate."""
        for check in validation.values():
            check.confirm()
            broker.candidates.note_changed(check.partition)

    def validation_failed(
        self, broker: BrokerPartitions, validation: Validation, error: Exception, now: float
    ) -> None:
        """Try the partitions of a failed request again."""
        partitions = [check.partition for check in validation.values()]
        self._redispatch([p for p in partitions if broker.has(p)], error, now)

    def _complete_validation(self, partition: TopicPartitionState, end: EpochEndOffset, now: float) -> None:
        """Go back if the leader's end offset for the last fetched epoch shows that the log was truncated (KIP-320).

        If the policy allows resets, reading continues at the divergent offset, so that no record of the new log is missed;
        if that offset is unknown, the policy decides where. With the policy `error` the error is raised to the reader.
        """
        error = complete_validation(partition, end)
        if error is None:
            return
        if out_of_range_policy(self._config) == "error":
            # the next fetch detects the truncation again, until a seek
            partition.rewind(partition.fetched_epoch)
            self.states.raise_to_reader(partition, error, now)
            return
        fields = log_fields("offset_reset", tp=partition.tp, offset=error.divergent_offset, error=error)
        _log.warning("%s (epoch %d of epoch %d)", error, end.epoch, partition.fetched_epoch, extra=fields)
        if error.divergent_offset is None:
            self.resets.reset(partition, now)
            return
        partition.restart(end.end_offset, end.epoch)
        self.states.report([partition], error)
