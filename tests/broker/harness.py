"""A group coordinator without an event loop: the test advances its timers; responses are collected in lists."""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable

from asyncgroup.broker.errors import Refused
from asyncgroup.broker.groups.classic.classic_group import ClassicGroup
from asyncgroup.broker.groups.consumer.heartbeat_messages import MemberHeartbeat, MemberHeartbeatResult
from asyncgroup.broker.groups.consumer.topics import NO_TOPICS, TopicsImage
from asyncgroup.broker.groups.coordinator import GroupCoordinator
from asyncgroup.broker.groups.shared.interfaces import CoordinatorConfig
from asyncgroup.broker.groups.shared.requests import (
    ClientDetails,
    CommitRequest,
    JoinRequest,
    JoinResult,
    LeavingMember,
    MemberTimeouts,
    OffsetAndMetadata,
    RequestMember,
    SyncRequest,
    SyncResult,
)
from asyncgroup.broker.groups.store.offset_store import OffsetStore
from asyncgroup.broker.log.partition_log import PartitionLog
from asyncgroup.error_codes import ErrorCode
from asyncgroup.model import TopicPartition
from asyncgroup.wire.batch_view import iter_batches
from asyncgroup.wire.records import ControlType
from tests.broker.batches import append

GROUP = "g"
RANGE = (("range", b"m"),)


class FakeTimers:
    """`Timers` with the clock `now`; `advance` fires the timers that are due, in order."""

    def __init__(self) -> None:
        self.now = 0.0
        self._made = 0
        self._set: dict[Hashable, tuple[float, int, Callable[[], None]]] = {}

    def schedule(self, key: Hashable, delay: float, action: Callable[[], None]) -> None:
        self._made += 1
        self._set[key] = (self.now + delay, self._made, action)

    def cancel(self, key: Hashable) -> None:
        self._set.pop(key, None)

    def clear(self) -> None:
        self._set.clear()

    @property
    def keys(self) -> set[Hashable]:
        """The keys of the timers, without that of offset expiration, which runs as long as there are groups."""
        return set(self._set) - {("expiry",)}

    def next_deadline(self) -> float | None:
        return min((deadline for deadline, _, _ in self._set.values()), default=None)

    def advance(self, seconds: float) -> None:
        end = self.now + seconds
        while self._set:
            key, (deadline, _, action) = min(self._set.items(), key=lambda item: item[1][:2])
            if deadline > end:
                break
            del self._set[key]
            self.now = max(self.now, deadline)
            action()
        self.now = end


class OneLog:
    """An `OffsetsLog` with one partition, shared by all coordinators; appends raise the error `refuses`, if set."""

    def __init__(self) -> None:
        self.log = PartitionLog("__consumer_offsets", 0)
        self.refuses: ErrorCode | None = None

    def exists(self) -> bool:
        return True

    def read(self, _partition: int):
        offset = self.log.start_offset
        while data := self.log.read(offset, 1 << 30, at_least_one=True):
            yield data
            offset = max(batch.next_offset for batch in iter_batches(data))

    def append(self, _partition: int, batch: bytes) -> int:
        if self.refuses is not None:
            raise Refused(self.refuses)
        return append(self.log, batch, 0, by_coordinator=True).base_offset

    def end_offset(self, _partition: int) -> int:
        return self.log.end_offset

    def high_watermark(self, _partition: int) -> int:
        return self.log.high_watermark

    def end_transaction(self, coordinator: GroupCoordinator, producer_id: int, *, commit: bool) -> None:
        """Append a marker and notify the coordinator, as the transaction coordinator does."""
        kind = ControlType.COMMIT if commit else ControlType.ABORT
        self.log.append_marker(kind, producer_id, 0, 0)
        coordinator.end_transaction(producer_id, 0, commit=commit)


class Harness:
    """A coordinator that leads the only partition of `__consumer_offsets`; its clock starts at 1,000,000 ms."""

    def __init__(self, *, topics: TopicsImage = NO_TOPICS, **config) -> None:
        self.topics = topics
        self.timers = FakeTimers()
        self.rng = random.Random(7)
        self.log = OneLog()
        self.config = CoordinatorConfig(**config)
        self.coordinator = self.new_coordinator(self.timers)
        self.coordinator.load(0)

    def clock(self) -> int:
        return 1_000_000 + round(self.timers.now * 1000)

    def new_coordinator(self, timers: FakeTimers) -> GroupCoordinator:
        """Return another node's coordinator on the same log."""
        delay = self.config.offsets_append_delay
        self.store = OffsetStore(self.log, timers, lambda _group: 0, self.clock, append_delay=delay)
        return GroupCoordinator(
            self.config,
            timers,
            self.store,
            lambda _group: 0,
            rng=self.rng,
            clock=self.clock,
            topics=self.topics,
        )

    def move(self) -> None:
        """Move the partition of `__consumer_offsets` to another node's coordinator."""
        self.coordinator.unload(0)
        self.crash()

    def crash(self) -> None:
        """Kill the node; another node's coordinator loads the partition."""
        timers = FakeTimers()
        timers.now = self.timers.now
        self.timers, self.coordinator = timers, self.new_coordinator(timers)
        self.coordinator.load(0)

    @property
    def group(self) -> ClassicGroup:
        return self.coordinator.groups[GROUP]

    def advance(self, seconds: float) -> None:
        self.timers.advance(seconds)

    def join(self, member_id: str = "", **fields) -> list[JoinResult]:
        """Send JoinGroup; the response is appended to the returned list."""
        answers: list[JoinResult] = []
        timeouts = MemberTimeouts(fields.pop("rebalance_timeout", 60.0), fields.pop("session_timeout", 10.0))
        client = ClientDetails(fields.pop("client_id", "c"))
        fields = {"client": client, "timeouts": timeouts, "protocols": RANGE, **fields}
        self.coordinator.join(JoinRequest(group_id=GROUP, member_id=member_id, **fields), answers.append)
        return answers

    def new_id(self, **fields) -> str:
        """Return a new dynamic member id that has not joined yet."""
        (answer,) = self.join(**fields)
        assert answer.error == ErrorCode.MEMBER_ID_REQUIRED
        return answer.member_id

    def sync(
        self,
        member_id: str,
        assignments=None,
        *,
        generation: int | None = None,
        group_instance_id: str | None = None,
        **fields,
    ) -> list[SyncResult]:
        answers: list[SyncResult] = []
        request = SyncRequest(
            group_id=GROUP,
            member=RequestMember(
                member_id, self.group.generation_id if generation is None else generation, group_instance_id
            ),
            assignments=assignments or {},
            **fields,
        )
        self.coordinator.sync(request, answers.append)
        return answers

    def heartbeat(
        self, member_id: str, *, generation: int | None = None, instance: str | None = None
    ) -> ErrorCode:
        generation = self.group.generation_id if generation is None else generation
        return self.coordinator.heartbeat(GROUP, RequestMember(member_id, generation, instance))

    def beat(self, member_id: str, epoch: int, **fields) -> list[MemberHeartbeatResult]:
        """Send ConsumerGroupHeartbeat; the response is appended to the returned list. Epoch 0 joins topic `a`."""
        answers: list[MemberHeartbeatResult] = []
        if epoch == 0:
            given = {"topics": frozenset("a"), "rebalance_timeout": 30.0, "owned": frozenset()}
            fields = {**given, **fields}
        request = MemberHeartbeat(group_id=GROUP, member_id=member_id, member_epoch=epoch, **fields)
        self.coordinator.consumer_heartbeat(request, 1, answers.append)
        return answers

    def leave(self, *members: str | LeavingMember) -> list[ErrorCode]:
        leaving = [LeavingMember(m) if isinstance(m, str) else m for m in members]
        result = self.coordinator.leave(GROUP, leaving)
        return [result.error] if result.error else [error for _, error in result.members]

    def commit(self, offset: int = 1, **fields) -> ErrorCode:
        """Commit an offset of one partition; return the error."""
        (answer,) = self.send_commit(offset, **fields)
        return answer

    def send_commit(
        self,
        offset: int = 1,
        *,
        topic: str = "t",
        partition: int = 0,
        metadata: str = "",
        member_id: str = "",
        generation_id: int = -1,
        group_instance_id: str | None = None,
        **fields,
    ) -> list[ErrorCode]:
        """Send OffsetCommit, or TxnOffsetCommit with a `producer_id`; the error is appended to the returned list."""
        answers: list[ErrorCode] = []
        key = TopicPartition(topic, partition)
        request = CommitRequest(
            group_id=GROUP,
            member=RequestMember(member_id, generation_id, group_instance_id),
            offsets={key: OffsetAndMetadata(offset, metadata=metadata)},
            **fields,
        )
        offsets = self.coordinator.offsets
        commit = offsets.commit_transactional if "producer_id" in fields else offsets.commit
        commit(request, lambda result: answers.append(result[key] if isinstance(result, dict) else result))
        return answers

    def committed(self) -> dict[TopicPartition, int]:
        """Return the group's committed offsets."""
        return {tp: kept.offset for tp, kept in self.coordinator.offsets.committed(GROUP).items()}

    def hold_followers(self) -> None:
        """Stop the followers: later writes are not replicated."""
        self.log.log.follower_end_offset = self.log.log.end_offset

    def release_followers(self) -> None:
        self.log.log.follower_end_offset = None
        self.coordinator.on_high_watermark_updated(0)

    def delete(self, group: str = GROUP) -> list[ErrorCode]:
        """Send DeleteGroups for one group; the error is appended to the returned list."""
        answers: list[ErrorCode] = []
        self.coordinator.offsets.delete_group(group, answers.append)
        return answers

    def delete_offsets(self, *places: TopicPartition) -> list:
        """Send OffsetDelete; the response is appended to the returned list."""
        answers: list = []
        self.coordinator.offsets.delete(GROUP, places, answers.append)
        return answers

    def stable(self, count: int, **fields) -> list[str]:
        """Create a stable group of dynamic members; return their ids, the leader's first.

        Each member's assignment is its number.
        """
        ids = [self.new_id(**fields) for _ in range(count)]
        joins = [self.join(member_id, **fields) for member_id in ids]
        self.advance(self.config.initial_rebalance_delay)
        assert all(join and not join[0].error for join in joins)
        self.sync_all(ids)
        return ids

    def sync_all(self, ids: list[str]) -> None:
        """Send SyncGroup of all members, followers first, then the leader's with the assignments."""
        leader = self.group.leader
        plan = {member_id: b"%d" % number for number, member_id in enumerate(ids)}
        followers = [self.sync(member_id) for member_id in ids if member_id != leader]
        syncs = [*followers, self.sync(leader, plan)]
        assert all(sync and not sync[0].error for sync in syncs)
