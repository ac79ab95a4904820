"""The state of a KIP-848 member: what its heartbeats carry, and what responses and errors mean."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from uuid import UUID

import pytest
from hypothesis import given, strategies as st

from asyncgroup import ErrorCode, SubscriptionPattern
from asyncgroup.group.consumer.heartbeat_errors import (
    CONSUMER_HEARTBEAT_ACTIONS,
    RESULTS,
    HeartbeatAction,
    heartbeat_action,
)
from asyncgroup.group.consumer.member_state import ConsumerMemberState, Reconciliation
from asyncgroup.group.membership import HeartbeatResult
from asyncgroup.offsets import MemberIdentity
from asyncgroup.wire import messages as m

A, B = UUID(int=0xA), UUID(int=0xB)
NAMES = {A: "aa", B: "bb"}
Given = dict[UUID, list[int]]


def ids() -> Iterator[UUID]:
    return (UUID(int=number) for number in count(1))


def member(instance: str | None = None, assignor: str | None = None) -> ConsumerMemberState:
    numbers = ids()
    state = ConsumerMemberState(
        "readers",
        rebalance_timeout=60.0,
        group_instance_id=instance,
        rack_id="r1",
        assignor=assignor,
        make_id=lambda: next(numbers),
    )
    state.begin(["bb", "aa"])
    return state


def response(
    epoch: int, assigned: Given | None = None, interval: int = 5000
) -> m.ConsumerGroupHeartbeatResponse:
    Topic = m.ConsumerGroupHeartbeatResponse.TopicPartitions
    assignment = None
    if assigned is not None:
        assignment = m.ConsumerGroupHeartbeatResponse.Assignment(
            [Topic(topic_id, numbers) for topic_id, numbers in assigned.items()]
        )
    return m.ConsumerGroupHeartbeatResponse(
        member_epoch=epoch, heartbeat_interval_ms=interval, assignment=assignment
    )


def exchange(
    state: ConsumerMemberState, epoch: int, assigned: Given | None = None
) -> m.ConsumerGroupHeartbeatRequest:
    """Send a heartbeat and apply its response; return the request."""
    request = state.next_request()
    state.on_response(response(epoch, assigned))
    return request


def apply(state: ConsumerMemberState, names: dict[UUID, str] | None = None) -> Reconciliation:
    step = state.begin_reconciliation(NAMES if names is None else names)
    assert step is not None
    state.reconciled(step)
    return step


def owned(request: m.ConsumerGroupHeartbeatRequest) -> Given | None:
    if request.topic_partitions is None:
        return None
    return {entry.topic_id: entry.partitions for entry in request.topic_partitions}


def has_news(state: ConsumerMemberState) -> bool:
    return state.has_news


def is_full(request: m.ConsumerGroupHeartbeatRequest) -> bool:
    return (
        request.rebalance_timeout_ms == 60_000
        and request.subscribed_topic_names == ["aa", "bb"]
        and request.topic_partitions is not None
    )


def is_keep_alive(request: m.ConsumerGroupHeartbeatRequest) -> bool:
    return (
        request.rebalance_timeout_ms,
        request.subscribed_topic_names,
        request.server_assignor,
        request.rack_id,
        request.topic_partitions,
    ) == (-1, None, None, None, None)


def settled(assigned: Given) -> ConsumerMemberState:
    """A member that has joined, applied this assignment and reported it."""
    state = member()
    exchange(state, 1, assigned)
    apply(state)
    exchange(state, 1)
    return state


# --- the rules that other clients learned -----------------------------------------------------------------------------


def test_rule_1_the_member_makes_its_id_and_keeps_it_and_sends_all_fields_after_a_lost_response() -> None:
    state = member(assignor="uniform")
    first = state.next_request()
    assert (first.member_id, first.member_epoch) == (str(UUID(int=1)), 0)
    assert is_full(first)
    assert (first.rack_id, first.server_assignor) == ("r1", "uniform")
    state.on_response(response(1, {A: [0]}))
    apply(state)
    assert owned(exchange(state, 1)) == {A: [0]}
    assert is_keep_alive(exchange(state, 1))
    state.next_request()
    state.on_lost_response()
    again = state.next_request()
    assert is_full(again)
    assert (again.member_id, again.member_epoch, owned(again)) == (first.member_id, 1, {A: [0]})


def test_rule_2_a_join_owns_nothing_and_forgets_topic_ids_without_a_name() -> None:
    state = member()
    exchange(state, 3, {A: [0], UUID(int=0xC): [1]})
    apply(state)
    assert state.unresolved
    assert state.on_error(ErrorCode.FENCED_MEMBER_EPOCH) is HeartbeatAction.REJOIN
    request = state.next_request()
    assert (request.member_epoch, owned(request), is_full(request)) == (0, {}, True)
    assert not state.unresolved
    assert not state.has_assignment
    assert state.begin_reconciliation(NAMES) is None


def test_rule_3_heartbeats_during_a_revocation_send_no_list_and_the_next_one_the_shorter_list() -> None:
    state = settled({A: [0, 1, 2]})
    exchange(state, 1, {A: [0]})
    step = state.begin_reconciliation(NAMES)
    assert step is not None
    assert is_keep_alive(exchange(state, 1))
    assert is_keep_alive(exchange(state, 1))
    assert not has_news(state)
    state.reconciled(step)
    assert has_news(state), "it is reported at once"
    assert owned(exchange(state, 2)) == {A: [0]}


def test_rule_3_all_fields_during_a_revocation_still_have_the_revoked_partitions() -> None:
    state = settled({A: [0, 1]})
    exchange(state, 1, {A: [0]})
    state.next_request()
    state.on_lost_response()
    assert owned(exchange(state, 1, {A: [0]})) == {A: [0, 1]}


def test_rule_4_a_keep_alive_does_not_change_what_was_reported() -> None:
    state = settled({A: [0, 1]})
    for _ in range(3):
        assert is_keep_alive(exchange(state, 1))
    exchange(state, 1, {A: [0]})
    assert is_keep_alive(exchange(state, 1))
    apply(state)
    assert owned(exchange(state, 2)) == {A: [0]}
    assert is_keep_alive(exchange(state, 2))


def test_rule_5_an_empty_list_is_always_sent() -> None:
    state = settled({})
    for _ in range(3):
        request = exchange(state, 1)
        assert owned(request) == {}
        assert request.subscribed_topic_names is None
    assert not has_news(state), "but not early"


def test_rule_6_topic_ids_without_a_name_are_owned_and_wait() -> None:
    state = member()
    exchange(state, 1, {A: [0], B: [1, 0]})
    step = apply(state, {A: "aa"})
    assert (step.assignment, step.unresolved) == ({"aa": [0]}, frozenset({B}))
    assert owned(exchange(state, 1)) == {A: [0], B: [0, 1]}
    assert state.begin_reconciliation({A: "aa"}) is None
    step = apply(state)
    assert (step.assignment, step.unresolved) == ({"aa": [0], "bb": [0, 1]}, frozenset())
    assert not has_news(state)


def test_rule_6_the_part_with_names_is_applied_also_if_it_is_empty() -> None:
    state = settled({A: [0]})
    exchange(state, 2, {B: [0]})
    step = apply(state, {A: "aa"})
    assert step.assignment == {}
    assert owned(exchange(state, 2)) == {B: [0]}


def test_rule_7_ids_after_refusals() -> None:
    state = settled({A: [0]})
    first = state.member_id
    assert state.on_error(ErrorCode.FENCED_MEMBER_EPOCH) is HeartbeatAction.REJOIN
    assert (state.member_id, state.epoch) == (first, 0)
    assert state.on_error(ErrorCode.FENCED_MEMBER_EPOCH) is HeartbeatAction.REJOIN_WITH_NEW_ID, (
        "a broker without KAFKA-19233"
    )
    second = state.member_id
    exchange(state, 5, {A: [0]})
    assert state.on_error(ErrorCode.STALE_MEMBER_EPOCH) is HeartbeatAction.REJOIN
    exchange(state, 6, {A: [0]})
    assert state.on_error(ErrorCode.UNKNOWN_MEMBER_ID) is HeartbeatAction.REJOIN_WITH_NEW_ID
    assert len({first, second, state.member_id}) == 3


def test_rule_7_an_instance_id_that_is_not_released() -> None:
    refused = ErrorCode.UNRELEASED_INSTANCE_ID
    assert member("desk-1").on_error(refused) is HeartbeatAction.FAIL, "another member has it"
    state = member("desk-1")
    exchange(state, 1, {})
    state.on_error(ErrorCode.FENCED_MEMBER_EPOCH)
    actions = [state.on_error(refused) for _ in range(4)]
    assert actions == [HeartbeatAction.WAIT_FOR_RELEASE] * 3 + [HeartbeatAction.FAIL]
    state = member("desk-1")
    exchange(state, 1, {})
    state.on_error(ErrorCode.FENCED_MEMBER_EPOCH)
    state.on_error(refused)
    exchange(state, 2, {})
    assert state.on_error(refused) is HeartbeatAction.FAIL, "a success forgets the fence"


def test_rule_9_an_epoch_is_published_with_its_assignment() -> None:
    state = settled({A: [0]})
    exchange(state, 2, {A: [0, 1]})
    step = state.begin_reconciliation(NAMES)
    assert step is not None
    assert (step.identity, step.assignment) == (MemberIdentity(state.member_id, 2), {"aa": [0, 1]})
    state.reconciled(step)
    exchange(state, 3)
    step = apply(state)
    assert (step.identity.generation_id, step.assignment) == (3, {"aa": [0, 1]}), "the same assignment"


@pytest.mark.parametrize("epoch", [-1, -2, 0])
def test_rule_10_epochs_and_intervals_that_no_coordinator_sends_are_ignored(epoch: int) -> None:
    state = settled({A: [0]})
    state.next_request()
    for interval in (0, -5):
        state.on_response(response(epoch, None, interval))
    assert (state.epoch, state.interval) == (1, 5.0)
    state.next_request()
    state.on_response(response(1, None, 1500))
    assert state.interval == 1.5


@pytest.mark.parametrize("epoch", [-1, 0])
def test_rule_10_an_assignment_with_such_an_epoch_is_ignored(epoch: int) -> None:
    """A member that has joined asks for it again; one that joins must not report it as owned, which is refused."""
    state = member()
    state.next_request()
    assert not state.on_response(response(epoch, {A: [0]}))
    assert not state.has_assignment
    request = state.next_request()
    assert (request.member_epoch, owned(request), is_full(request)) == (0, {}, True)
    state = settled({A: [0]})
    state.next_request()
    assert not state.on_response(response(epoch, {A: [1]}))
    assert state.begin_reconciliation(NAMES) is None
    request = state.next_request()
    assert (request.member_epoch, owned(request), is_full(request)) == (1, {A: [0]}, True)


def test_rule_10_repeated_partitions_count_once() -> None:
    state = member()
    Topic = m.ConsumerGroupHeartbeatResponse.TopicPartitions
    state.next_request()
    repeated = response(1, {})
    assert repeated.assignment is not None
    repeated.assignment.topic_partitions = [Topic(A, [0, 0, 1]), Topic(A, [1])]
    assert state.on_response(repeated)
    assert apply(state).assignment == {"aa": [0, 1]}
    state.next_request()
    assert not state.on_response(repeated), "the same assignment is no news"


def test_rule_11_a_leave_may_be_repeated() -> None:
    state = settled({A: [0]})
    for is_static, epoch in ((False, -1), (True, -2)):
        request = state.leave_request(is_static_leave=is_static)
        assert (request.member_id, request.member_epoch) == (state.member_id, epoch)
        assert (request.topic_partitions, request.subscribed_topic_names) == (None, None)
    assert state.epoch == 1


def test_rule_12_errors_that_are_fatal() -> None:
    for code in (ErrorCode.UNSUPPORTED_VERSION, ErrorCode.INVALID_REQUEST, ErrorCode.UNKNOWN_SERVER_ERROR):
        assert settled({A: [0]}).on_error(code) is HeartbeatAction.FAIL
    state = member()
    state.next_request()
    assert state.on_error(ErrorCode.GROUP_ID_NOT_FOUND) is HeartbeatAction.FAIL


def test_a_member_of_a_group_that_is_gone_joins_again() -> None:
    """It was removed, and the group became a classic one, or was deleted."""
    state = settled({A: [0]})
    before = state.member_id
    assert state.on_error(ErrorCode.GROUP_ID_NOT_FOUND) is HeartbeatAction.REJOIN
    assert (state.member_id, state.epoch, state.owned) == (before, 0, frozenset())
    state.next_request()
    assert state.on_error(ErrorCode.GROUP_ID_NOT_FOUND) is HeartbeatAction.FAIL


def test_a_member_that_joins_waits_for_the_first_generation_of_a_classic_group() -> None:
    state = member()
    before = state.member_id
    assert is_full(state.next_request())
    assert state.on_error(ErrorCode.UNKNOWN_SERVER_ERROR) is HeartbeatAction.WAIT_FOR_GENERATION
    assert (state.member_id, state.epoch) == (before, 0)
    assert is_full(state.next_request())


def test_rule_14_a_fenced_member_has_no_identity_to_commit_with() -> None:
    state = settled({A: [0]})
    assert state.identity == MemberIdentity(state.member_id, 1)
    state.on_error(ErrorCode.FENCED_MEMBER_EPOCH)
    assert state.identity == MemberIdentity()
    assert state.owned == frozenset()


# --- further cases ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", CONSUMER_HEARTBEAT_ACTIONS)
def test_every_error_makes_the_next_request_send_all_fields(code: int) -> None:
    if code:
        state = settled({A: [0]})
        state.next_request()
        state.on_error(code)
        assert is_full(state.next_request())


def test_other_codes_are_retried_if_they_are_retriable() -> None:
    assert heartbeat_action(ErrorCode.REQUEST_TIMED_OUT) is HeartbeatAction.RETRY
    assert heartbeat_action(ErrorCode.UNKNOWN_SERVER_ERROR) is HeartbeatAction.FAIL
    assert set(RESULTS) == set(HeartbeatAction)
    assert RESULTS[HeartbeatAction.WAIT_FOR_RELEASE] is HeartbeatResult.LOST


def test_a_new_session_reports_that_it_owns_nothing_and_stays_a_member() -> None:
    state = settled({A: [0]})
    state.begin(["aa"])
    request = exchange(state, 1, {A: [0]})
    assert (request.member_epoch, request.subscribed_topic_names, owned(request)) == (1, ["aa"], {})
    assert apply(state).assignment == {"aa": [0]}
    assert owned(exchange(state, 1)) == {A: [0]}


def test_a_member_that_was_never_accepted_has_nothing_to_leave() -> None:
    state = member("desk-1")
    state.next_request()
    assert state.may_be_known, "the request may be accepted, and its response lost"
    state.on_error(ErrorCode.UNRELEASED_INSTANCE_ID)
    assert not state.may_be_known
    state.next_request()
    state.on_lost_response()
    state.next_request()
    state.on_error(ErrorCode.GROUP_MAX_SIZE_REACHED)
    assert state.may_be_known, "by the request before"


def test_a_pattern_is_sent_when_it_changes_and_with_all_fields() -> None:
    """An empty one removes the former: without it a coordinator that has one would keep it."""
    state = member()
    assert exchange(state, 1, {A: [0]}).subscribed_topic_regex == ""
    state.subscribe(SubscriptionPattern("a+"))
    request = exchange(state, 2)
    assert (request.subscribed_topic_names, request.subscribed_topic_regex) == ([], "a+")
    request = exchange(state, 2)
    assert (request.subscribed_topic_names, request.subscribed_topic_regex) == (None, None)
    state.next_request()
    state.on_lost_response()
    request = exchange(state, 2)
    assert (request.subscribed_topic_names, request.subscribed_topic_regex) == ([], "a+")
    state.begin(["aa"])
    request = exchange(state, 2)
    assert (request.subscribed_topic_names, request.subscribed_topic_regex) == (["aa"], "")


def test_a_reconciliation_during_a_request_is_reported_by_the_next_one() -> None:
    state = settled({A: [0, 1]})
    exchange(state, 1, {A: [0]})
    assert is_keep_alive(state.next_request())
    apply(state)
    state.on_response(response(1))
    assert has_news(state)
    assert owned(exchange(state, 2)) == {A: [0]}
    assert not has_news(state)


# --- any order of events ----------------------------------------------------------------------------------------------

LOST_CODES = [ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID]
OTHER_CODES = [ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS]

assignments = st.dictionaries(
    st.sampled_from([A, B]), st.lists(st.integers(0, 3), min_size=1, max_size=4, unique=True), max_size=2
)
events = st.lists(
    st.one_of(
        st.tuples(st.just("assign"), assignments),
        st.tuples(st.sampled_from(["begin", "apply", "keep", "request lost", "response lost"]), st.none()),
        st.tuples(st.just("error"), st.sampled_from([*LOST_CODES, *OTHER_CODES])),
    ),
    max_size=30,
)


class Story:
    """A member and what its coordinator believes that it owns, by the lists that it has received."""

    def __init__(self) -> None:
        self.state = member()
        self.used: set[tuple[UUID, int]] = set()
        self.believed: set[tuple[UUID, int]] = set()
        self.epoch = 1

    def send(self) -> m.ConsumerGroupHeartbeatRequest:
        """Send a heartbeat that arrives: it never reports less than is used, and a join reports nothing."""
        request = self.state.next_request()
        if request.topic_partitions is not None:
            self.believed = {
                (entry.topic_id, n) for entry in request.topic_partitions for n in entry.partitions
            }
        if request.member_epoch == 0:
            assert is_full(request)
            assert not self.believed
        assert self.used <= self.believed | self.unreported
        return request

    @property
    def unreported(self) -> set[tuple[UUID, int]]:
        """Partitions that the member was assigned, and reports next."""
        return set(self.state.owned) if self.state.has_news else set()

    def apply(self) -> None:
        step = self.state.begin_reconciliation(NAMES)
        if step is not None:
            self.state.reconciled(step)
            self.used = set(step.owned)

    def run(self, kind: str, detail: object) -> None:
        if kind == "apply":
            self.apply()
        elif kind == "begin":
            self.state.begin(["aa", "bb"])
            self.used = set()
        elif kind == "request lost":
            self.state.next_request()
            self.state.on_lost_response()
        elif kind == "response lost":
            self.send()
            self.state.on_lost_response()
        elif kind == "error":
            assert isinstance(detail, int)
            self.send()
            if RESULTS[self.state.on_error(detail)] is HeartbeatResult.LOST:
                self.used = set()
        else:
            self.respond(detail if isinstance(detail, dict) else None)

    def respond(self, assigned: Given | None) -> None:
        request = self.send()
        if request.member_epoch == 0 and assigned is None:
            assigned = {}  # a member that joins is always sent an assignment
        self.epoch += assigned is not None
        self.state.on_response(response(self.epoch, assigned))


@given(events)
def test_the_coordinator_never_believes_that_less_is_owned_than_is_used(
    steps: list[tuple[str, object]],
) -> None:
    """And once an assignment is applied and reported, it believes exactly what the member owns."""
    story = Story()
    for kind, detail in steps:
        story.run(kind, detail)
    for _ in range(3):
        story.respond({A: [1, 2]})
        story.apply()
    story.respond(None)
    assert story.believed == set(story.state.owned) == {(A, 1), (A, 2)}
    assert is_keep_alive(story.send())
