"""Diagnosis of a group member: the value for `health()`, with texts for the problems and for what the member waits for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from asyncgroup.error_codes import error_name
from asyncgroup.group.health.health import ClaimHealth, ErrorSeen, Health
from asyncgroup.group.health.member_health import (
    ENDING,
    JOINING_AGAIN,
    NOT_YET,
    WAITS_FOR,
    MemberHealth,
    MemberState,
    RunningCalls,
    error_kind,
    error_text,
)
from asyncgroup.group.health.problems import MemberProblem, ProblemKind, WaitKind
from asyncgroup.group.membership import JOIN_GRACE

if TYPE_CHECKING:
    from asyncgroup.config import ConsumerConfig
    from asyncgroup.group.sessions.claim import Claim
    from asyncgroup.group.sessions.start_lookups import PendingStart
    from asyncgroup.group.topics.topics import Absence
    from asyncgroup.model import TopicPartition
    from asyncgroup.offsets import MemberIdentity

__all__ = ["HOOK_TIMEOUT_SHOWN", "HealthSnapshot", "diagnose"]

ERRORS_SHOWN: Final = 5
"""Maximum number of different errors in `Health.errors`."""
MISSED_HEARTBEATS: Final = 2
"""Heartbeat intervals without a response that are not yet a problem."""
FETCH_GRACE: Final = 2.0
"""Seconds beyond `fetch_max_wait` after which a fetch without a response is a problem."""
START_GRACE: Final = 5.0
"""Seconds without a response to the lookup of a start offset that are not yet a problem."""
HOOK_TIMEOUT_SHOWN: Final = 10.0
"""Seconds for which a hook that was cancelled at its limit is a problem. The member works again: a liveness probe that
restarts it after three failures at intervals of 10 s (Kubernetes' defaults) does not see three."""
QUICK_STEPS: Final = 1.0
"""Seconds of a join before its present state that are not worth a mention."""


class HealthSnapshot(NamedTuple):
    """The input of a diagnosis."""

    group_id: str
    config: ConsumerConfig
    identity: MemberIdentity
    member_health: MemberHealth
    session_timeout: float
    """Seconds; by the consumer protocol the group's, as for the interval."""
    heartbeat_interval: float
    """Seconds."""
    group_protocol: str
    """`classic` or `consumer`."""
    claims: Sequence[Claim] = ()
    pending_starts: Sequence[PendingStart] = ()
    """Assigned partitions whose start offsets are not known yet."""
    running_calls: Sequence[RunningCalls] = ()
    unanswered_fetches: Mapping[int, float] = MappingProxyType({})
    """Nodes with a fetch in flight, and the loop time at which it was sent."""
    idle_reason: WaitKind = WaitKind.PARTITION
    """What a member without claims waits for."""
    absent_topics: Mapping[str, Absence] = MappingProxyType({})
    """Topics that do not exist, or cannot be used."""


def diagnose(snapshot: HealthSnapshot, now: float) -> Health:
    """Return the health of a member at loop time `now`."""
    member_health = snapshot.member_health
    problems = tuple(_problems(snapshot, now))
    return Health(
        group_id=snapshot.group_id,
        state=member_health.state.value,
        state_age=_age(now, member_health.state_since),
        member_id=snapshot.identity.member_id,
        generation_id=snapshot.identity.generation_id,
        group_protocol=snapshot.group_protocol,
        last_heartbeat=_age_if_any(now, member_health.last_heartbeat),
        last_fetch=_age_if_any(now, member_health.last_fetch),
        claims=tuple(map(_claim_health, snapshot.claims)),
        waits_for=_waits_for(snapshot, now, problems),
        problems=problems,
        errors=tuple(
            ErrorSeen(text, times, _age(now, last_at))
            for text, times, last_at in list(reversed(member_health.errors.values()))[:ERRORS_SHOWN]
        ),
        fatal=member_health.liveness.fatal,
        not_ready=_not_ready(snapshot, now),
    )


def _not_ready(snapshot: HealthSnapshot, now: float) -> str | None:
    """Return why the member does not take part in its group; None if it does, also without a partition."""
    member_health, liveness = snapshot.member_health, snapshot.member_health.liveness
    # a member that only a restart helps is not ready for that reason
    if liveness.fatal is not None:
        return liveness.fatal
    if (state := member_health.state) in _IDLE:
        return MemberProblem(_IDLE[state])
    if (lost := member_health.problems.get(ProblemKind.LOST)) is not None:
        return MemberProblem(ProblemKind.LOST, text=lost.text)
    if not liveness.has_joined:
        return MemberProblem(ProblemKind.NOT_JOINED)
    # any response shows that brokers answer
    age = now - max(member_health.last_heartbeat, member_health.last_fetch)
    return MemberProblem(ProblemKind.SILENT_BROKERS, age) if age > snapshot.session_timeout else None


def _age(now: float, when: float) -> float:
    return max(0.0, now - when)


def _age_if_any(now: float, when: float) -> float | None:
    return None if when == NOT_YET else _age(now, when)


def _claim_health(claim: Claim) -> ClaimHealth:
    known = claim.high_watermark >= 0
    return ClaimHealth(
        topic=claim.topic,
        partition=claim.partition,
        position=claim.position,
        next_mark=claim.next_mark,
        high_watermark=claim.high_watermark if known else None,
        lag=claim.lag if known else None,
        stalled=claim.stalled,
        paused=claim.paused,
    )


_IN_SESSION: Final = (MemberState.STARTING, MemberState.STABLE, MemberState.DRAINING, MemberState.COMMITTING)

_STARTS: Final = (MemberState.STARTING, MemberState.STABLE, *JOINING_AGAIN)
"""States in which `setup` and `on_assigned` run."""

_IDLE: Final = {
    MemberState.CLOSED: ProblemKind.CLOSED,
    MemberState.NOT_CONSUMING: ProblemKind.NOT_CONSUMING,
    MemberState.LEAVING: ProblemKind.LEAVING,
}
"""States in which the member neither consumes nor is about to consume, with the problem that is reported."""

_REPORTED: Final = (
    ProblemKind.HANDLER,
    ProblemKind.HOOK,
    ProblemKind.LOST,
    ProblemKind.JOIN,
    ProblemKind.COMMIT,
)
"""Problems that are reported where they occur, with the text of the last error."""


def _time_limit(state: MemberState, snapshot: HealthSnapshot) -> float:
    """Return the seconds in a state beyond which it is a problem. That of JOINING is also the limit for all attempts together."""
    if state in (MemberState.JOINING, MemberState.SYNCING):
        return snapshot.config.rebalance_timeout + JOIN_GRACE
    if state in (MemberState.LOOKING_UP_COORDINATOR, MemberState.LOOKING_UP_TOPICS, MemberState.COMMITTING):
        return snapshot.session_timeout
    return float("inf")


def _problems(snapshot: HealthSnapshot, now: float) -> Iterable[MemberProblem]:
    member_health = snapshot.member_health
    state = member_health.state
    problems, join_age = dict(member_health.problems), member_health.join_age(now)
    is_long_join = join_age > _time_limit(MemberState.JOINING, snapshot)
    # refusals belong to a join, as long as it is not a long one
    if is_long_join and member_health.join_refusal is not None:
        problems.setdefault(ProblemKind.JOIN, member_health.join_refusal)
    if not _shows_hook(member_health, now):
        problems.pop(ProblemKind.HOOK, None)
    yield from (MemberProblem(kind, text=problems[kind].text) for kind in _REPORTED if kind in problems)
    is_lost = state in ENDING and ProblemKind.LOST in problems  # then no heartbeats are sent
    if state in _IN_SESSION and not is_lost and member_health.last_heartbeat > NOT_YET:
        yield from _heartbeat_problems(member_health, snapshot.heartbeat_interval, now)
    if state in (MemberState.STARTING, MemberState.STABLE):
        yield from _start_problems(snapshot, now)
    if state is MemberState.STABLE:
        yield from _fetch_problems(snapshot, now)
    for topic, absence in sorted(snapshot.absent_topics.items()):
        kind = ProblemKind.TOPIC_MISSING if absence.is_missing else ProblemKind.TOPIC_UNUSABLE
        text = error_name(absence.code)
        yield MemberProblem(kind, _age(now, absence.since), names=[repr(topic)], text=text)
    if (age := _age(now, member_health.state_since)) > _time_limit(state, snapshot):
        yield MemberProblem(ProblemKind.STATE, age, text=state.value)
    elif is_long_join:
        yield MemberProblem(ProblemKind.STATE, join_age, text=MemberState.JOINING.value)
    yield from _call_problems(snapshot, now)
    if state in _IDLE:
        yield MemberProblem(_IDLE[state])


def _call_problems(snapshot: HealthSnapshot, now: float) -> Iterable[MemberProblem]:
    """Name the calls that ignore their cancellation, and the hooks that claims have waited for too long."""
    running, limit = snapshot.running_calls, snapshot.config.rebalance_timeout
    if overdue := [calls for calls in running if now > calls.deadline]:
        age = now - min(calls.deadline for calls in overdue)
        yield MemberProblem(ProblemKind.CALL_NOT_CANCELLED, age, names=_labels(overdue))
    is_start = snapshot.member_health.state in _STARTS
    slow = [calls for calls in running if now <= calls.deadline and _age(now, calls.since) > limit]
    if is_start and slow:
        age = _age(now, min(calls.since for calls in slow))
        yield MemberProblem(ProblemKind.CALL_SLOW, age, names=_labels(slow))


def _labels(running: Iterable[RunningCalls]) -> list[str]:
    return [label for calls in running for label in calls.labels]


def _shows_hook(member_health: MemberHealth, now: float) -> bool:
    """Return whether a hook has timed out so recently that it is still a problem."""
    problem = member_health.problems.get(ProblemKind.HOOK)
    return problem is not None and now < problem.last_at + HOOK_TIMEOUT_SHOWN


def _heartbeat_problems(member_health: MemberHealth, interval: float, now: float) -> Iterable[MemberProblem]:
    problem = member_health.problems.get(ProblemKind.HEARTBEAT)
    age = _age(now, member_health.last_heartbeat)
    # a heartbeat that was answered since has ended the problem
    if problem is not None and problem.last_at >= member_health.last_heartbeat:
        yield MemberProblem(ProblemKind.HEARTBEAT, age, text=problem.text)
    elif age > MISSED_HEARTBEATS * interval:
        yield MemberProblem(ProblemKind.HEARTBEAT_UNANSWERED, age)


def _fetch_problems(snapshot: HealthSnapshot, now: float) -> Iterable[MemberProblem]:
    found: list[_Failing] = []
    for claim in snapshot.claims:
        failures = claim._inner.consumer._inner.fetch_failures
        if failures.error is not None:
            found.append(_Failing(claim.tp, failures.began_at, failures.error))
    yield from _by_reason(ProblemKind.FETCH, found, now)
    for node_id, sent_at in snapshot.unanswered_fetches.items():
        if (age := _age(now, sent_at)) > snapshot.config.fetch_max_wait + FETCH_GRACE:
            yield MemberProblem(ProblemKind.FETCH_UNANSWERED, age, names=[f"node {node_id}"])


def _start_problems(snapshot: HealthSnapshot, now: float) -> Iterable[MemberProblem]:
    found = [
        _Failing(pending.tp, pending.since, pending.error)
        for pending in snapshot.pending_starts
        if pending.error is not None or _age(now, pending.since) > START_GRACE
    ]
    yield from _by_reason(ProblemKind.START, found, now)


class _Failing(NamedTuple):
    tp: TopicPartition
    since: float
    error: BaseException | None
    """None if there is no response."""


def _by_reason(kind: ProblemKind, failing: Iterable[_Failing], now: float) -> Iterable[MemberProblem]:
    """Name the partitions that fail for one reason together."""
    by_reason: dict[object, list[_Failing]] = {}
    for each in failing:
        # a thousand partitions of one broker are one sentence
        by_reason.setdefault(each.error and error_kind(each.error), []).append(each)
    for alike in by_reason.values():
        age, error = _age(now, min(each.since for each in alike)), alike[0].error
        text = "no response" if error is None else error_text(error)
        yield MemberProblem(kind, age, names=[str(each.tp) for each in alike], text=text)


def _waits_for(snapshot: HealthSnapshot, now: float, problems: Sequence[str]) -> str | None:
    state, running = snapshot.member_health.state, snapshot.running_calls
    age, join_age = _age(now, snapshot.member_health.state_since), snapshot.member_health.join_age(now)
    if state in WAITS_FOR:
        # a state begins again with each attempt to join
        of_join = f", {join_age:.1f} s since it began to join" if join_age > age + QUICK_STEPS else ""
        return f"{WAITS_FOR[state].text([repr(snapshot.group_id)])}: {age:.1f} s{of_join}"
    if running:
        since, deadline = min(calls.since for calls in running), min(calls.deadline for calls in running)
        limit = f" of {deadline - since:.1f} s" if deadline < float("inf") else ""
        return f"{WaitKind.CALLS.text(_labels(running))}: {_age(now, since):.1f} s{limit}"
    if state is MemberState.STARTING:
        return f"{WaitKind.STARTS.text()}: {age:.1f} s"
    if state is not MemberState.STABLE:
        return None
    # with claims beside them the member reads
    if snapshot.pending_starts and not snapshot.claims:
        names = [str(pending.tp) for pending in snapshot.pending_starts]
        age = _age(now, min(pending.since for pending in snapshot.pending_starts))
        return f"{WaitKind.PENDING_START.text(names)}: {age:.1f} s"
    # problems that no broker's answer ends
    others = len(snapshot.absent_topics) + _shows_hook(snapshot.member_health, now)
    others += ProblemKind.HANDLER in snapshot.member_health.problems
    if len(problems) > others:
        return WaitKind.BROKERS.text(seconds=snapshot.session_timeout)
    if snapshot.absent_topics:
        topic, absence = min(snapshot.absent_topics.items())
        kind = WaitKind.TOPIC_MISSING if absence.is_missing else WaitKind.TOPIC_UNUSABLE
        return kind.text([repr(topic)])
    return None if snapshot.claims else snapshot.idle_reason.text()
