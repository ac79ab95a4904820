"""From a member's state to its health: what it waits for and what is wrong, in words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

from asyncgroup.config import ConsumerConfig
from asyncgroup.group.claim import Claim
from asyncgroup.group.health import ClaimHealth, ErrorSeen, Health
from asyncgroup.group.join_plan import JOIN_GRACE
from asyncgroup.group.vitals import GroupState, Source, Vitals
from asyncgroup.offsets import MemberIdentity

__all__ = ["NOT_BUSY", "Busy", "Scene", "diagnose"]

ERRORS_SHOWN: Final = 5
MISSED_BEATS: Final = 2
FETCH_GRACE: Final = 2.0
"""Seconds beyond `fetch_max_wait` that the answer to a fetch may take before the silence is worth a word."""


class Busy(NamedTuple):
    """What runs of the handler while a session begins or ends: labels, since when, and until when (loop times)."""

    labels: Sequence[str]
    since: float
    until: float


NOT_BUSY: Final = Busy((), 0.0, 0.0)
"""Nothing of the handler is waited for."""


class Scene(NamedTuple):
    """All that a diagnosis looks at."""

    group_id: str
    config: ConsumerConfig
    identity: MemberIdentity
    vitals: Vitals
    claims: Sequence[Claim] = ()
    busy: Busy = NOT_BUSY
    asked_at: Mapping[int, float] = MappingProxyType({})
    """The nodes that owe the answer to a fetch, and since when."""
    for_claims: str = "a partition: others own all of them"
    """What a member without claims waits for."""
    missing: Mapping[str, float] = MappingProxyType({})
    """Topics that are gone, and since when."""


def diagnose(scene: Scene, now: float) -> Health:
    """The health of a member at loop time `now`."""
    vitals, identity = scene.vitals, scene.identity
    problems = tuple(_problems(scene, now))
    errors = tuple(
        ErrorSeen(error.text, error.times, _age(now, error.last)) for error in vitals.errors[:ERRORS_SHOWN]
    )
    return Health(
        group_id=scene.group_id,
        state=vitals.state.value,
        state_age=_age(now, vitals.since),
        member_id=identity.member_id,
        generation_id=identity.generation_id,
        last_heartbeat=None if vitals.last_heartbeat is None else _age(now, vitals.last_heartbeat),
        last_fetch=None if vitals.last_fetch is None else _age(now, vitals.last_fetch),
        claims=tuple(map(_claim, scene.claims)),
        waits_for=_waits_for(scene, now, problems),
        problems=problems,
        errors=errors,
    )


def _age(now: float, when: float) -> float:
    return max(0.0, now - when)


def _claim(claim: Claim) -> ClaimHealth:
    known = claim.high_water_mark >= 0
    return ClaimHealth(
        topic=claim.topic,
        partition=claim.partition,
        position=claim.position,
        next_mark=claim.next_mark,
        high_water_mark=claim.high_water_mark if known else None,
        lag=claim.lag if known else None,
        stalled=claim.stalled,
        paused=claim.paused,
    )


# --- what is wrong ----------------------------------------------------------------------------------------------------


def _problems(scene: Scene, now: float) -> Iterable[str]:
    vitals, config = scene.vitals, scene.config
    for source in (Source.HANDLER, Source.LOST, Source.JOIN, Source.COMMIT):
        if (trouble := vitals.troubles.get(source)) is not None:
            yield f"{source.value}: {trouble.text}"
    yield from _silent_heartbeats(vitals, config, now)
    yield from _failing_fetches(scene, now)
    for topic, since in sorted(scene.missing.items()):
        yield (
            f"topic {topic!r} does not exist any more: for {_age(now, since):.1f} s, "
            f"given up after {config.session_timeout:g} s"
        )
    yield from _overdue(scene, now)
    if vitals.state in _IDLE:
        yield _IDLE[vitals.state]


_IDLE: Final = {
    GroupState.CLOSED: "the group is closed",
    GroupState.NOT_CONSUMING: "nothing consumes: neither run() nor consume() is under way",
    GroupState.LEAVING: "nothing consumes: the member leaves the group",
}
"""States in which no record is consumed and none will be: a member in one of them is not healthy."""

_IN_SESSION: Final = (GroupState.STARTING, GroupState.STABLE, GroupState.DRAINING, GroupState.COMMITTING)


def _silent_heartbeats(vitals: Vitals, config: ConsumerConfig, now: float) -> Iterable[str]:
    trouble = vitals.troubles.get(Source.HEARTBEAT)
    if vitals.state not in _IN_SESSION or vitals.last_heartbeat is None:
        return
    age = _age(now, vitals.last_heartbeat)
    if trouble is not None and trouble.last >= vitals.last_heartbeat:
        yield f"heartbeats fail, the last good one was {age:.1f} s ago: {trouble.text}"
    elif age > MISSED_BEATS * config.heartbeat_interval:
        yield f"no heartbeat was answered for {age:.1f} s"


def _failing_fetches(scene: Scene, now: float) -> Iterable[str]:
    vitals = scene.vitals
    if vitals.state is not GroupState.STABLE:
        return
    failing = [str(claim.tp) for claim in scene.claims if claim.consumer.trouble.failures]
    trouble = vitals.troubles.get(Source.FETCH)
    if failing and trouble is not None:
        yield f"{_names(failing)} cannot be fetched: {trouble.text}"
    for node_id, asked_at in scene.asked_at.items():
        age = _age(now, asked_at)
        if age > scene.config.fetch_max_wait + FETCH_GRACE:
            yield f"node {node_id} has not answered a fetch for {age:.1f} s"


def _overdue(scene: Scene, now: float) -> Iterable[str]:
    """States that should be over by now."""
    vitals, config, busy = scene.vitals, scene.config, scene.busy
    age = _age(now, vitals.since)
    if vitals.state in (GroupState.JOINING, GroupState.SYNCING):
        if age > config.rebalance_timeout + JOIN_GRACE:
            yield f"{vitals.state.value} for {age:.1f} s"
    elif vitals.state in (GroupState.LOOKING, GroupState.LOOKING_UP_TOPICS, GroupState.COMMITTING):
        if age > config.session_timeout:
            yield f"{vitals.state.value} for {age:.1f} s"
    elif vitals.state is GroupState.DRAINING and busy.labels and now > busy.until:
        yield f"{_names(busy.labels)} went on for {now - busy.until:.1f} s after the cancellation"


# --- what it waits for ------------------------------------------------------------------------------------------------


def _waits_for(scene: Scene, now: float, problems: Sequence[str]) -> str | None:
    vitals, config, busy = scene.vitals, scene.config, scene.busy
    age = f"{_age(now, vitals.since):.1f} s"
    if vitals.state is GroupState.JOINING:
        text = f"the group to complete its join: {age}"
    elif vitals.state is GroupState.SYNCING:
        text = f"the group's leader to hand out its plan: {age}"
    elif vitals.state is GroupState.LOOKING:
        text = f"the coordinator of group {scene.group_id!r}: {age}"
    elif vitals.state is GroupState.LOOKING_UP_TOPICS:
        text = f"the metadata of its topics: {age}"
    elif vitals.state is GroupState.WAITING:
        text = f"a pause before it joins again: {age}"
    elif vitals.state is GroupState.COMMITTING:
        text = f"its last commit to be answered: {age}"
    elif vitals.state is GroupState.LEAVING:
        text = f"the coordinator to let it go: {age}"
    elif vitals.state is GroupState.STARTING and not busy.labels:
        text = f"its start offsets: {age}"
    elif busy.labels:
        limit = f" of {busy.until - busy.since:.1f} s" if busy.until < float("inf") else ""
        text = f"{_names(busy.labels)} to end: {_age(now, busy.since):.1f} s{limit}"
    elif vitals.state is GroupState.STABLE and scene.missing and not scene.claims:
        text = f"topic {min(scene.missing)!r} to be there again"
    elif vitals.state is GroupState.STABLE and problems:
        text = "brokers to answer and to accept: it tries again; the session ends after "
        text += f"{config.session_timeout:g} s without a heartbeat"
    elif vitals.state is GroupState.STABLE and not scene.claims:
        text = scene.for_claims
    else:
        return None
    return text


def _names(labels: Sequence[str]) -> str:
    shown = ", ".join(labels[:3])
    return shown if len(labels) <= 3 else f"{shown} and {len(labels) - 3} others"
