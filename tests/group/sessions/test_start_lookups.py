"""StartLookups: which partitions are asked for when, which answers count, and when start offsets are used."""

from __future__ import annotations

import random

import pytest

from asyncgroup.cluster.metadata import BrokerInfo, ClusterView, PartitionInfo, TopicInfo
from asyncgroup.consumer.retries import SILENT_SECONDS
from asyncgroup.errors import AsyncGroupError, BrokerError, ConnectionLost, ErrorCode
from asyncgroup.group.sessions.claim_source import ClaimStart
from asyncgroup.group.sessions.start_lookups import GATHER_SECONDS, StartLookup, StartLookups
from asyncgroup.model import TopicPartition
from asyncgroup.net.backoff import RetryBackoff

TPS = [TopicPartition("orders", number) for number in range(4)]


class Scene:
    """Lookups with metadata that the test sets: the leader of each partition, and the time of the refresh."""

    def __init__(self) -> None:
        self.view = ClusterView()
        self.refresh({0: 1, 1: 2, 2: 1, 3: 3}, 0.0)
        self.lookups = StartLookups("g", lambda: self.view, lambda: RetryBackoff(0.1, 2.0, None))

    def refresh(self, leaders: dict[int, int], now: float, epoch: int = 0) -> None:
        partitions = {number: PartitionInfo(number, leader, epoch) for number, leader in leaders.items()}
        self.view = ClusterView(
            brokers={node: BrokerInfo(node, "10.0.0.1", 9092) for node in (1, 2, 3)},
            topics={"orders": TopicInfo("orders", partitions=partitions)},
            updated_at=now,
        )

    def add(self, *numbers: int, version: int = 1, now: float = 1.0) -> None:
        self.lookups.add([TPS[number] for number in numbers], version, now)

    def without_commits(self, now: float) -> None:
        """Request the commits that are due; the group has none."""
        commits = self.lookups.plan_commits(now)
        assert commits is not None
        self.lookups.without_commit(commits, commits.partitions, ())

    def found(self, lookup: StartLookup, now: float) -> None:
        self.lookups.found(lookup, {tp: ClaimStart(7) for tp in lookup.partitions}, now)

    def fail(self, lookup: StartLookup, now: float, error: AsyncGroupError | None = None) -> None:
        error = error or BrokerError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "offset")
        self.lookups.fail(lookup, dict.fromkeys(lookup.partitions, error), now)

    def take(self, now: float) -> list[int]:
        return [found.tp.partition for found in self.lookups.take(now)]


@pytest.fixture
def scene() -> Scene:
    return Scene()


def asked(lookups: list[StartLookup]) -> list[list[int]]:
    return [[tp.partition for tp in lookup.partitions] for lookup in lookups]


def test_one_request_for_all_commits_and_one_for_each_leader(scene: Scene) -> None:
    scene.add(0, 1, 2, 3)
    scene.without_commits(1.0)
    assert scene.lookups.plan_commits(1.0) is None
    assert asked(scene.lookups.plan_offsets(1.0)) == [[0, 2], [1], [3]]
    assert scene.lookups.plan_offsets(2.0) == [], "the requests are in flight"


def test_what_has_a_commit_waits_a_little_for_the_others(scene: Scene) -> None:
    """Partitions with a commit start together with the others, but do not wait long, and not for a lookup that has failed."""
    scene.add(0, 1, 2, 3)
    scene.without_commits(1.0)
    first, second, third = scene.lookups.plan_offsets(1.0)
    scene.found(first, 1.1)
    assert scene.take(1.1) == []
    scene.fail(second, 1.11)
    assert scene.take(1.11) == [], "partition 3 was not answered yet"
    assert scene.lookups.next_at() == pytest.approx(1.11 + 0.1)
    assert scene.take(1.1 + GATHER_SECONDS) == [0, 2]
    scene.found(third, 1.4)
    assert scene.take(1.4) == [3], "nothing waits for its first answer"
    assert scene.lookups.is_settled
    assert [pending.tp for pending in scene.lookups.pending] == [TPS[1]]


def test_what_failed_is_asked_again_alone_with_fresh_metadata(scene: Scene) -> None:
    scene.add(0, 1)
    scene.without_commits(1.0)
    _, second = scene.lookups.plan_offsets(1.0)
    scene.fail(second, 1.0)
    assert not scene.lookups.begin_refresh(1.05)
    assert scene.lookups.next_at() == pytest.approx(1.1)
    assert scene.lookups.plan_offsets(1.2) == [], "not with the metadata from before the failure"
    assert scene.lookups.begin_refresh(1.2)
    assert not scene.lookups.begin_refresh(1.2), "one at a time"
    scene.refresh({0: 1, 1: 2}, 1.3)
    scene.lookups.end_refresh(1.3)
    assert asked(scene.lookups.plan_offsets(1.3)) == [[1]]


def test_a_failed_refresh_does_not_end_the_lookup(scene: Scene) -> None:
    scene.add(1)
    scene.without_commits(1.0)
    (lookup,) = scene.lookups.plan_offsets(1.0)
    scene.fail(lookup, 1.0, ConnectionLost("gone"))
    assert scene.lookups.begin_refresh(1.2)
    scene.lookups.end_refresh(1.3)
    assert asked(scene.lookups.plan_offsets(1.3)) == [[1]]


def test_a_partition_without_a_leader_is_asked_for_as_soon_as_it_has_one(scene: Scene) -> None:
    scene.refresh({0: 1, 1: -1}, 0.5)
    scene.add(0, 1)
    scene.without_commits(1.0)
    (first,) = scene.lookups.plan_offsets(1.0)
    assert first.partitions == [TPS[0]]
    (_, pending) = scene.lookups.pending
    assert "LEADER_NOT_AVAILABLE" in str(pending.error)
    scene.refresh({0: 1, 1: 3}, 1.01)
    scene.lookups.metadata_changed()
    assert scene.lookups.next_at() == float("-inf")
    assert asked(scene.lookups.plan_offsets(1.01)) == [[1]]


def test_a_silent_leader_is_given_up_when_metadata_names_another(scene: Scene) -> None:
    scene.add(1)
    scene.without_commits(1.0)
    (silent,) = scene.lookups.plan_offsets(1.0)
    assert scene.lookups.next_at() == 1.0 + SILENT_SECONDS
    assert scene.lookups.begin_refresh(1.0 + SILENT_SECONDS)
    scene.refresh({1: 3}, 2.1, epoch=1)
    scene.lookups.metadata_changed()
    scene.lookups.end_refresh(2.1)
    (other,) = scene.lookups.plan_offsets(2.1)
    scene.fail(silent, 2.2)
    scene.found(silent, 2.2)
    assert scene.take(3.0) == [], "its answer is void"
    scene.found(other, 3.0)
    assert scene.take(3.0) == [1]


def test_answers_and_errors_of_what_is_no_longer_assigned_are_void(scene: Scene) -> None:
    scene.add(0, 1)
    commits = scene.lookups.plan_commits(1.0)
    assert commits is not None
    scene.lookups.keep({TPS[0]})
    assert scene.lookups.current(commits) == [TPS[0]]
    scene.add(1, version=2)
    assert scene.lookups.current(commits) == [TPS[0]], "it is another assignment"
    scene.found(commits, 1.1)
    scene.lookups.keep({TPS[1]})
    assert scene.take(5.0) == [], "it was found, but revoked before it has started"


def test_unstable_offsets_need_no_metadata_and_pauses_grow(scene: Scene) -> None:
    scene.add(0)
    error, now, pauses = BrokerError(ErrorCode.UNSTABLE_OFFSET_COMMIT, "offset"), 1.0, []
    for _ in range(7):
        lookup = scene.lookups.plan_commits(now)
        assert lookup is not None
        scene.fail(lookup, now, error)
        pauses.append(round(scene.lookups.next_at() - now, 3))
        now = scene.lookups.next_at()
        assert not scene.lookups.begin_refresh(now)
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0]


@pytest.mark.parametrize("seed", range(30))
def test_random_answers_start_each_partition_once(seed: int) -> None:
    """Whatever fails, moves or comes late: a partition that stays assigned starts exactly once, and others never."""
    rng, scene = random.Random(seed), Scene()
    flying: list[tuple[bool, StartLookup]] = []
    assigned, started, now = set(TPS), [], 1.0
    scene.add(0, 1, 2, 3)
    for step in range(200):
        now += rng.choice([0.0, 0.05, 0.3, 2.0])
        if (commits := scene.lookups.plan_commits(now)) is not None:
            flying.append((True, commits))
        flying += [(False, lookup) for lookup in scene.lookups.plan_offsets(now)]
        if rng.random() < 0.2 or scene.lookups.begin_refresh(now):
            scene.refresh(
                {n: rng.choice([-1, 1, 2, 3] if step < 150 else [1, 2]) for n in range(4)}, now, step
            )
            scene.lookups.metadata_changed()
            scene.lookups.end_refresh(now)
        if assigned and rng.random() < 0.01:
            assigned.discard(rng.choice(sorted(assigned)))
            scene.lookups.keep(assigned)
        if flying:
            is_commit, lookup = flying.pop(rng.randrange(len(flying)))
            if step < 150 and rng.random() < 0.6:
                scene.fail(lookup, now)
            elif is_commit:
                half = set(lookup.partitions[::2])
                scene.lookups.found(lookup, {tp: ClaimStart(1) for tp in half}, now)
                scene.lookups.without_commit(lookup, set(lookup.partitions) - half, ())
            else:
                scene.found(lookup, now)
        started += [(found.tp, found.tp in assigned) for found in scene.lookups.take(now)]
        assert scene.lookups.next_at() < float("inf") or not scene.lookups.pending or flying
    assert all(is_assigned for _, is_assigned in started)
    assert len({tp for tp, _ in started}) == len(started)
    assert assigned <= {tp for tp, _ in started}


def test_a_start_that_is_withdrawn_while_others_are_awaited_is_not_waited_for(scene: Scene) -> None:
    """The withdrawn start was found first; the end of the wait for the others lay in the past from then on."""
    scene.add(0, 1)
    scene.without_commits(1.0)
    first, second = scene.lookups.plan_offsets(1.0)
    scene.found(first, 1.1)
    assert scene.take(1.1) == []
    scene.lookups.keep({TPS[1]})
    assert scene.take(1.1 + GATHER_SECONDS) == []
    assert scene.lookups.next_at() > 1.1 + GATHER_SECONDS
    scene.found(second, 2.0)
    assert scene.take(2.0) == [1]
