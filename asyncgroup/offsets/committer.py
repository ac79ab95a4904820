"""Commit the marks of one member: one request at a time, always with the newest marks, with limited retries.

Requests are sent by a task of the committer and not by the caller, so a canceled caller does not leave a request with an
unknown outcome. Calls made while a request is in flight share the next one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final, NamedTuple
from uuid import UUID
from weakref import WeakSet

from asyncgroup.cluster import ClusterClient
from asyncgroup.cluster.coordinators import CoordinatorMoved
from asyncgroup.errors import (
    AsyncGroupError,
    BrokerError,
    CommitFailedError,
    ConfigError,
    ErrorCode,
    TransportError,
)
from asyncgroup.lifecycle import SingleFlight, copy_error
from asyncgroup.model import TopicPartition
from asyncgroup.offsets.commit_requests import (
    LAST_NAME_VERSION,
    REJECTED_CODES,
    RETENTION_VERSIONS,
    CommitAction,
    CommittingMember,
    ConfirmRefusal,
    broker_codes,
    build_commit,
    commit_action,
    commit_codes,
    is_coordinator_error,
)
from asyncgroup.offsets.partition_offsets import CommittedOffset, MemberIdentity, PartitionMarks
from asyncgroup.wire import messages as m

__all__ = ["GROUP_LANE", "Committer"]

_log = logging.getLogger("asyncgroup.offsets")

GROUP_LANE: Final = "group"
"""The lane of commits, and of heartbeats that no commit in flight delays. Joins have another one, as a JoinGroup that waits at the broker must not delay a
commit."""

MAX_PAUSE: Final = 1.0
"""Maximum seconds between two tries of a commit: heartbeats find the coordinator as quickly."""

Offsets = dict[TopicPartition, CommittedOffset]
Failures = dict[TopicPartition, AsyncGroupError]

_retention_warned: WeakSet[ClusterClient] = WeakSet()
"""Clusters for which the warning that `offset_retention` has no effect was logged."""


class _Sent(NamedTuple):
    """The outcome of a commit request."""

    offsets: Offsets
    """What was sent."""
    failed: Failures
    """Errors that a retry does not change."""
    again: Failures
    """Errors after which the commit may be retried."""
    identity: MemberIdentity = MemberIdentity()
    """Under which it was sent."""


class _Attempt(NamedTuple):
    """A commit request at the moment at which it is sent."""

    offsets: Offsets
    """What it commits: only these are encoded."""
    identity: MemberIdentity
    lookup: int | None
    """The number of the lookup that found its coordinator."""
    sent_at: float
    """Loop time."""


class Committer:
    """Commits the marks of partitions for a group.

    - `identity()` returns the committing member; it is called for each request.
    - `on_lost(error)` is called when a broker refuses a commit because the membership is lost; nothing is committed after
      that. Without `on_lost` there is no membership to lose (a group accepts such commits while it has no members), and the
      next call tries again.
    - `confirm_refusal` is awaited before `on_lost`, as the refusal may come from a former coordinator; if it returns False
      the membership continues, and the commit is retried.
    - `wait_joined` is awaited when the group rebalances: it returns whether the member, which joins again while it keeps
      its claims, has joined, or has a newer epoch (KIP-848). The commit is then retried under the new generation for what
      is still managed, which counts as no retry.
    - `with_topic_ids` stores the topic id with each offset, in an envelope around the metadata (see `commit_metadata`).
    """

    def __init__(
        self,
        cluster: ClusterClient,
        group_id: str,
        *,
        retry_max: int = 3,
        retention: float | None = None,
        identity: Callable[[], MemberIdentity] = MemberIdentity,
        on_lost: Callable[[BrokerError], None] | None = None,
        with_topic_ids: bool = False,
        confirm_refusal: ConfirmRefusal | None = None,
        wait_joined: Callable[[], Awaitable[bool]] | None = None,
    ) -> None:
        self._cluster = cluster
        self.group_id = group_id
        self._retry_max = retry_max
        self._retention = retention  # seconds
        self._member = CommittingMember(identity, on_lost, confirm_refusal, wait_joined)
        self._with_topic_ids = with_topic_ids
        self._partitions: dict[TopicPartition, PartitionMarks] = {}
        self._single_flight = SingleFlight(f"commits of group {group_id!r}", self._commit)
        self._includes_rejected = False  # whether a call that shares the next run has `retry_rejected`
        self.last_error: AsyncGroupError | None = None
        """The error after which a commit was last retried."""
        self._coordinator_deadline = float("-inf")
        """Loop time until which the last commit waits for an unavailable coordinator."""

    def __repr__(self) -> str:
        dirty = sum(offsets.dirty for offsets in self._partitions.values())
        return f"<Committer {self.group_id!r}: {len(self._partitions)} partitions, {dirty} to commit>"

    # --- partitions ---------------------------------------------------------------------------------------------

    def __contains__(self, tp: TopicPartition) -> bool:
        return tp in self._partitions

    @property
    def partitions(self) -> list[TopicPartition]:
        """The managed partitions, sorted."""
        return sorted(self._partitions)

    def manage(
        self, tp: TopicPartition, next_offset: int, metadata: str = "", leader_epoch: int = -1
    ) -> PartitionMarks:
        """Start managing a partition's marks, from `next_offset` on. Raises ConfigError if it is managed already."""
        if tp in self._partitions:
            raise ConfigError("partition", str(tp), "a partition that is not managed yet")
        topic = self._cluster.view.topics.get(tp.topic)
        topic_id = m.NO_UUID if topic is None else topic.topic_id
        offsets = self._partitions[tp] = PartitionMarks(next_offset, metadata, leader_epoch, topic_id)
        return offsets

    def drop(self, tp: TopicPartition) -> None:
        """Stop managing a partition, and drop its marks."""
        self._partitions.pop(tp, None)

    def of(self, topic: str, partition: int) -> PartitionMarks:
        """Return the marks of a partition; raise ConfigError if it is not managed (any more)."""
        try:
            offsets = self._partitions.get(TopicPartition(topic, partition))
        except TypeError:  # a list, for example, has no hash
            offsets = None
        if offsets is None:
            owned = ", ".join(map(str, self.partitions)) or "none"
            raise ConfigError("partition", f"{topic}-{partition}", f"one of the partitions owned: {owned}")
        return offsets

    # --- commits ------------------------------------------------------------------------------------------------

    async def commit(self, *, retry_rejected: bool = True) -> None:
        """Commit all new marks, including those made while this call waits for its turn.

        `retry_rejected=False`, for automatic commits, skips marks that were refused for good and reported already. Raises
        CommitFailedError with the partitions that failed, the others are committed; ClosedError. A canceled caller does not
        cancel the request.
        """
        is_due = any(offsets.is_due(retry_rejected=retry_rejected) for offsets in self._partitions.values())
        # after the close there is an error to raise
        if not is_due and not self._single_flight.is_closed:
            return
        self._includes_rejected |= retry_rejected
        if failed := await self._single_flight():
            raise CommitFailedError(self.group_id, {tp: copy_error(error) for tp, error in failed.items()})

    @property
    def dirty(self) -> list[TopicPartition]:
        """The partitions with uncommitted marks, sorted."""
        return sorted(self._due(retry_rejected=True))

    async def commit_last(
        self, coordinator_timeout: float = 0.0, partitions: Iterable[TopicPartition] | None = None
    ) -> None:
        """As `commit(retry_rejected=False)`, to be called when no marks will follow for `partitions` (None: for any).

        Waits up to `coordinator_timeout` seconds for an unavailable coordinator (moving, loading, refusing connections), as
        Java's last commit is retried until `close` times out (`ConsumerCoordinator.close`). Other errors are retried as
        often as by `commit`.

        Offsets that were committed after an unanswered request are committed once more. A slow coordinator may process
        that request, from a connection that the client has closed, after newer ones, as brokers keep the order only within
        a connection; the next member would begin at an older offset. (Java and sarama do not handle this.)
        """
        for tp in self.partitions if partitions is None else partitions:
            if tp in self._partitions:
                self._partitions[tp].recommit_unanswered()
        self._coordinator_deadline = asyncio.get_running_loop().time() + coordinator_timeout
        await self.commit(retry_rejected=False)

    async def wait_idle(self) -> None:
        """Wait until no request is in flight."""
        await self._single_flight.wait_idle()

    async def wait_in_flight(self) -> None:
        """Wait until the commit that is in flight now has ended; later ones may follow."""
        await self._single_flight.wait_run()

    def mark_lost(self, error: AsyncGroupError) -> None:
        """Commit nothing more, as the membership is lost."""
        self._member.mark_lost(error)

    async def aclose(self) -> None:
        """Cancel the request in flight, whose outcome stays unknown; safe to call twice."""
        await self._single_flight.aclose()

    def _due(self, *, retry_rejected: bool) -> list[TopicPartition]:
        """Return the partitions to commit: those that are dirty."""
        return [
            tp for tp, offsets in self._partitions.items() if offsets.is_due(retry_rejected=retry_rejected)
        ]

    async def _commit(self) -> Failures:
        """Send requests until every due mark is committed, has failed for good, or has been retried often enough.

        New marks of other partitions go with a retry, so that they do not wait for a partition that fails. Return the errors
        of the partitions that failed.
        """
        retry_rejected, self._includes_rejected = self._includes_rejected, False
        retry = self._cluster.retry(longest=MAX_PAUSE)
        failed: Failures = {}
        due = self._due(retry_rejected=retry_rejected)
        first = frozenset(due)
        while due:
            if self._member.lost is not None:
                return failed | dict.fromkeys(due, self._member.lost)
            failed |= self._drop_recreated(due)
            sent = await self._send_all([tp for tp in due if tp not in failed])
            failed |= sent.failed
            again = sent.again
            is_moved = any(isinstance(error, CoordinatorMoved) for error in again.values())
            refusals = broker_codes(again.values())
            is_outdated = self._member.is_outdated(sent.identity, refusals)
            # sent to the new coordinator, or under the new generation next; this does not count as a try
            is_try = not (is_moved or is_outdated or await self._member.has_joined_again(refusals))
            if not is_try:
                retry.reset()
            if again:
                retry.failed(counted=is_try)
            is_over = retry.tries > self._retry_max and not self._may_wait_for_coordinator(
                again, retry.seconds
            )
            if not again or self._member.lost is not None or is_over:
                # what was marked since has not been tried as often: it is left to the next call
                given_up = {tp: error for tp, error in again.items() if tp in first}
                self._reject(sent.offsets, given_up)
                return failed | given_up
            self.last_error = next(iter(again.values()))
            await self._refresh_unknown_topics(again)
            await retry.wait()
            # during the pause marks may have moved, and partitions may have been dropped
            due = [tp for tp in self._due(retry_rejected=True) if tp in again]
            due += [tp for tp in self._due(retry_rejected=False) if tp not in again and tp not in failed]
        return failed

    def _may_wait_for_coordinator(self, again: Failures, pause: float) -> bool:
        """Return whether this is the last commit, the coordinator is unavailable, and there is time for another pause."""
        over = asyncio.get_running_loop().time() + pause >= self._coordinator_deadline
        return not over and any(is_coordinator_error(error) for error in again.values())

    def _drop_recreated(self, due: list[TopicPartition]) -> Failures:
        """Drop the marks of recreated topics, and return their errors: the offsets belong to other records now."""
        errors: Failures = {}
        dropped: Offsets = {}
        topics = self._cluster.view.topics
        for tp in due:
            offsets, topic = self._partitions[tp], topics.get(tp.topic)
            if topic is None or topic.topic_id == offsets.topic_id:
                continue
            if m.NO_UUID not in (offsets.topic_id, topic.topic_id):
                committed = dropped[tp] = offsets.value
                offsets.discard_mark()
                detail = "the topic was deleted and recreated; the mark for the old topic is dropped"
                errors[tp] = self._error(ErrorCode.UNKNOWN_TOPIC_ID, tp, committed, detail)
        if errors:
            self._cluster.hooks.emit("on_commit", self.group_id, dropped, errors)
        return errors

    async def _refresh_unknown_topics(self, again: Failures) -> None:
        """Refresh the metadata if a topic was unknown: it may have been deleted or recreated."""
        codes = broker_codes(again.values())
        if any(commit_action(code) is CommitAction.REFRESH_METADATA for code in codes):
            await self._cluster.try_refresh()

    # --- one request --------------------------------------------------------------------------------------------

    async def _send_all(self, due: list[TopicPartition]) -> _Sent:
        """Send one request, or two: one by topic id, which cannot reach a recreated topic, one by name for unknown ids."""
        ids = {tp: self._partitions[tp].topic_id for tp in due}
        unknown = [tp for tp in due if ids[tp] == m.NO_UUID]
        known = [tp for tp in due if ids[tp] != m.NO_UUID] if unknown else due
        sent = _Sent({}, {}, {})
        for part in (known, unknown):
            if part:
                one = await self._send(part, ids)
                sent = _Sent(
                    sent.offsets | one.offsets, sent.failed | one.failed, sent.again | one.again, one.identity
                )
        return sent

    async def _send(self, wanted: list[TopicPartition], ids: Mapping[TopicPartition, UUID]) -> _Sent:
        """Send one request."""
        attempt: _Attempt | None = None

        def build(version: int) -> m.OffsetCommitRequest:
            nonlocal attempt
            attempt = self._attempt(wanted)
            self._warn_retention_ignored(version)
            values, topic_ids = attempt.offsets, self._with_topic_ids
            return build_commit(
                version, self.group_id, attempt.identity, values, ids, self._retention, topic_ids
            )

        try:
            response = await self._cluster.coordinators.request_versioned(
                self.group_id,
                m.OffsetCommitRequest,
                build,
                lane=GROUP_LANE,
                # later versions have topic ids instead of names
                highest=LAST_NAME_VERSION if m.NO_UUID in map(ids.get, wanted) else None,
            )
        except AsyncGroupError as error:  # a BrokerError here means that no coordinator was found
            offsets = self._values(wanted) if attempt is None else attempt.offsets
            errors = dict.fromkeys(offsets, error)
            sent = _Sent(offsets, {}, errors) if error.retriable else _Sent(offsets, errors, {})
            if isinstance(error, TransportError):
                self._note_unanswered(offsets)
        else:
            assert attempt is not None, "a response to a request that was built"
            sent = await self._apply(commit_codes(response, ids), attempt)
        self._cluster.hooks.emit("on_commit", self.group_id, sent.offsets, sent.failed | sent.again or None)
        return sent if attempt is None else sent._replace(identity=attempt.identity)

    def _attempt(self, wanted: list[TopicPartition]) -> _Attempt:
        """Return what a request has to contain that is sent now. Raises the error of a membership that is lost."""
        if self._member.lost is not None:
            raise self._member.lost
        lookup = self._cluster.coordinators.lookup_number(self.group_id)
        sent_at = asyncio.get_running_loop().time()
        return _Attempt(self._values(wanted), self._member.identity, lookup, sent_at)

    def _note_unanswered(self, sent: Offsets) -> None:
        """Remember that a request was given up and may still be processed (see `commit_last`)."""
        for tp in sent:
            if tp in self._partitions:
                self._partitions[tp].unanswered = True

    def _values(self, wanted: list[TopicPartition]) -> Offsets:
        """Return what to commit now of those partitions that are still managed, and still dirty."""
        found: Offsets = {}
        for tp in wanted:
            offsets = self._partitions.get(tp)
            if offsets is not None and offsets.dirty and not offsets.transactional:
                found[tp] = offsets.value
        return found

    async def _apply(self, codes: Mapping[TopicPartition, int], attempt: _Attempt) -> _Sent:
        """Apply the action for each partition's error code."""
        is_final = await self._member.confirm_loss(
            codes.values(), attempt.identity, attempt.lookup, attempt.sent_at
        )
        failed: Failures = {}
        again: Failures = {}
        for tp, value in attempt.offsets.items():
            # a partition that the response lacks has not been committed
            code = codes.get(tp, ErrorCode.UNKNOWN_SERVER_ERROR)
            action = self._action(tp, code, is_final=is_final)
            if action is CommitAction.COMMITTED:
                if tp in self._partitions:
                    self._partitions[tp].committed(value)
                continue
            error = self._error(code, tp, value)
            if action in (CommitAction.FAIL, CommitAction.LOST):
                failed[tp] = error
                self._reject(attempt.offsets, {tp: error})
                if action is CommitAction.LOST:
                    self._member.lose(error)
            else:
                again[tp] = error
                if action is CommitAction.FIND_COORDINATOR:
                    self._cluster.coordinators.mark_unknown(self.group_id)
        return _Sent(attempt.offsets, failed, again)

    def _action(self, tp: TopicPartition, code: int, *, is_final: bool) -> CommitAction:
        action = commit_action(code)
        if action is CommitAction.LOST and not is_final:
            return CommitAction.RETRY
        if tp in self._partitions and self._partitions[tp].shrink(code):
            return CommitAction.RETRY  # with a smaller window
        return action

    def _error(
        self, code: int, tp: TopicPartition, committed: CommittedOffset, detail: str | None = None
    ) -> BrokerError:
        return BrokerError(code, f"commit of {tp} at {committed.offset} by group {self.group_id!r}", detail)

    def _reject(self, sent: Offsets, errors: Failures) -> None:
        """Mark the sent offsets as rejected where the error cannot change before the next mark."""
        for tp, error in errors.items():
            offsets = self._partitions.get(tp)
            if offsets is not None and isinstance(error, BrokerError) and error.code in REJECTED_CODES:
                offsets.reject(sent[tp])

    def _warn_retention_ignored(self, version: int) -> None:
        """Log once per cluster that `offset_retention` has no effect (sarama ignores it silently)."""
        if self._retention is None or version in RETENTION_VERSIONS or self._cluster in _retention_warned:
            return
        _retention_warned.add(self._cluster)
        _log.warning(
            "offset_retention=%r has no effect: only OffsetCommit versions %d to %d have a retention time, and version %d is "
            "used with this broker; its offsets.retention.minutes applies",
            self._retention,
            RETENTION_VERSIONS.start,
            RETENTION_VERSIONS.stop - 1,
            version,
        )
