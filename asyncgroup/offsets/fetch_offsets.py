"""Fetch the committed offsets of a group: one OffsetFetch request for any number of partitions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple
from uuid import UUID

from asyncgroup.cluster import ClusterClient
from asyncgroup.cluster.requests.actions import RequestAction
from asyncgroup.cluster.requests.offset_versions import GROUPS_VERSION
from asyncgroup.cluster.requests.repeat import retry_errors
from asyncgroup.errors import AsyncGroupError, BrokerError, ErrorCode, MalformedResponse
from asyncgroup.model import TopicPartition, by_topic
from asyncgroup.offsets.commit_metadata import CommitMetadata, decode_metadata
from asyncgroup.offsets.commit_requests import LAST_NAME_VERSION
from asyncgroup.offsets.partition_offsets import CommittedOffset, MemberIdentity
from asyncgroup.wire import messages as m

__all__ = [
    "STABLE_TIMEOUT",
    "CommitsResult",
    "StoredCommit",
    "fetch_commits",
    "fetch_commits_once",
    "fetch_offsets",
    "fetch_offsets_and_ids",
    "is_retriable_fetch",
]

REQUIRE_STABLE_VERSION: Final = 7
"""The first OffsetFetch version that can require stable offsets (KIP-447)."""

MEMBER_VERSION: Final = 9
"""The first OffsetFetch version with a member id and epoch (KIP-848)."""

STABLE_TIMEOUT: Final = 60.0
"""Seconds to wait for the end of open transactions; as Java's `default.api.timeout.ms`."""

_UNTIL_TIMEOUT = (ErrorCode.UNSTABLE_OFFSET_COMMIT, ErrorCode.STALE_MEMBER_EPOCH)
_MOVED = (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE)


class StoredCommit(NamedTuple):
    """A committed offset of a group, with all that its metadata contains."""

    committed: CommittedOffset
    """Offset and leader epoch, with the user's text as metadata."""
    metadata: CommitMetadata
    """The decoded metadata; a string that is not an envelope for this offset is text."""
    raw: str
    """The metadata as it is stored."""


class CommitsResult(NamedTuple):
    """The response to one OffsetFetch: the commit or the error of each partition; one without a commit has neither."""

    found: dict[TopicPartition, StoredCommit]
    problems: dict[TopicPartition, AsyncGroupError]


def is_retriable_fetch(error: AsyncGroupError) -> bool:
    """Return whether the committed offset may be known later: also once a transaction has ended (KIP-447), or with a newer epoch."""
    return bool(getattr(error, "retriable", False)) or _code(error) in _UNTIL_TIMEOUT


def _code(error: AsyncGroupError) -> int | None:
    return error.code if isinstance(error, BrokerError) else None


async def fetch_offsets(
    cluster: ClusterClient,
    group_id: str,
    partitions: Iterable[TopicPartition] | None,
    *,
    lane: str,
    require_stable: bool = False,
    member: Callable[[], MemberIdentity | None] | None = None,
) -> dict[TopicPartition, CommittedOffset]:
    """Return the committed offsets of `partitions` (None: of all), with the user's text as metadata.

    Partitions without a committed offset are left out. Raises as `fetch_commits`.
    """
    found = await fetch_commits(
        cluster, group_id, partitions, lane=lane, require_stable=require_stable, member=member
    )
    return {tp: commit.committed for tp, commit in found.items()}


async def fetch_offsets_and_ids(
    cluster: ClusterClient,
    group_id: str,
    partitions: Iterable[TopicPartition] | None,
    *,
    lane: str,
    require_stable: bool = False,
) -> dict[TopicPartition, tuple[CommittedOffset, UUID]]:
    """As `fetch_offsets`, each with the topic id in its metadata; nil if the commit has none (see `commit_metadata`)."""
    found = await fetch_commits(cluster, group_id, partitions, lane=lane, require_stable=require_stable)
    return {tp: (commit.committed, commit.metadata.topic_id) for tp, commit in found.items()}


async def fetch_commits(
    cluster: ClusterClient,
    group_id: str,
    partitions: Iterable[TopicPartition] | None,
    *,
    lane: str,
    require_stable: bool = False,
    member: Callable[[], MemberIdentity | None] | None = None,
) -> dict[TopicPartition, StoredCommit]:
    """Return the committed offsets of `partitions` (None: of all), each with its decoded metadata.

    Partitions without a committed offset are left out. Retriable errors are retried `metadata_retry_max` times. With
    `require_stable` offsets that an open transaction may still change are requested again until they are stable, for at
    most `STABLE_TIMEOUT`; brokers before 2.5 do not support this.
    Topics are requested by id if `cluster` knows it, so that offsets of a deleted topic of the same name are not returned.
    `member` returns the member that asks, with its epoch (KIP-848), or None. If the epoch is stale the request is repeated
    with the newest one, also for at most `STABLE_TIMEOUT`: the offsets exist, so a reset would skip or repeat records.
    Raises BrokerError, TransportError.
    """
    # once: an iterator would be empty in the second attempt
    wanted = None if partitions is None else sorted(partitions)
    time = asyncio.get_running_loop().time
    deadline = time() + STABLE_TIMEOUT
    is_stale = False
    """Whether the metadata has an id of a topic that was deleted, or recreated with another id."""

    async def attempt() -> dict[TopicPartition, StoredCommit]:
        nonlocal is_stale
        # the id of the topic has changed: the metadata has the new one, if the topic exists
        if is_stale:
            is_stale = False
            await cluster.try_refresh()
        result = await fetch_commits_once(
            cluster, group_id, wanted, lane=lane, require_stable=require_stable, member=member
        )
        # all or nothing: the first problem decides what is done about all
        for problem in result.problems.values():
            raise problem
        return result.found

    def decide(error: AsyncGroupError) -> RequestAction:
        nonlocal is_stale
        # noted here, as the pause before the next attempt comes first
        is_stale = _code(error) == ErrorCode.UNKNOWN_TOPIC_ID
        # errors that end with a transaction or an epoch are limited by time, the others by their number
        if is_counted(error):
            return RequestAction.RETRY if error.retriable else RequestAction.FAIL
        return RequestAction.RETRY if time() < deadline else RequestAction.FAIL

    def is_counted(error: AsyncGroupError) -> bool:
        return _code(error) not in _UNTIL_TIMEOUT

    retry = cluster.retry(retries=cluster.config.metadata_retry_max)
    return await retry_errors(attempt, retry, decide=decide, is_counted=is_counted)


async def fetch_commits_once(
    cluster: ClusterClient,
    group_id: str,
    wanted: list[TopicPartition] | None,
    *,
    lane: str,
    require_stable: bool = False,
    member: Callable[[], MemberIdentity | None] | None = None,
) -> CommitsResult:
    """As `fetch_commits`, with one request, and an error for each partition that has one. Raises errors that concern all.

    If the coordinator moves before it answers, the new one is asked.
    """

    async def attempt() -> CommitsResult:
        problems: Iterable[AsyncGroupError] = ()
        try:
            result = await _ask(
                # asked for each attempt: the epoch may have changed
                cluster,
                group_id,
                wanted,
                lane,
                require_stable,
                None if member is None else member(),
            )
            problems = result.problems.values()
            return result
        except BrokerError as error:
            problems = [error]
            raise
        finally:
            # also if single partitions say so: the next attempt looks the coordinator up
            if any(_code(problem) in _MOVED for problem in problems):
                cluster.coordinators.mark_unknown(group_id)

    # no retries, but a coordinator that moves during the lookup is followed
    return await retry_errors(attempt, cluster.retry(retries=0))


async def _ask(
    cluster: ClusterClient,
    group_id: str,
    wanted: list[TopicPartition] | None,
    lane: str,
    require_stable: bool,
    member: MemberIdentity | None,
) -> CommitsResult:
    topics = None if wanted is None else by_topic(wanted)
    # before the request is built: one view for the ids, and for the names of the response
    known = cluster.view.topics
    ids = {name: known[name].topic_id if name in known else m.NO_UUID for name in topics or ()}
    asked_in = 0

    def build(version: int) -> m.OffsetFetchRequest:
        nonlocal asked_in
        asked_in = version
        return _request(group_id, topics, ids, version, require_stable, member)

    response = await cluster.coordinators.request_versioned(
        group_id,
        m.OffsetFetchRequest,
        build,
        lane=lane,
        # from version 10 on topics are named by id only: for all of them, or without an id, an older one is used
        highest=LAST_NAME_VERSION if topics is None or m.NO_UUID in ids.values() else None,
    )
    what = f"committed offsets of group {group_id!r}"
    # by name: a broker could answer for another group
    groups = [group for group in response.groups if group.group_id == group_id]
    if asked_in >= GROUPS_VERSION and not groups:
        raise MalformedResponse(f"{what}: the response does not contain the group")
    answer = groups[0] if asked_in >= GROUPS_VERSION else response
    if answer.error_code:
        raise BrokerError(answer.error_code, what)
    names = {topic_id: name for name, topic_id in ids.items() if topic_id != m.NO_UUID}
    result = CommitsResult({}, {})
    missing = dict.fromkeys(wanted or ())
    for topic in answer.topics:
        # the topics of versions below 8 are of another class, without ids
        name = names.get(getattr(topic, "topic_id", m.NO_UUID), topic.name)
        for part in topic.partitions:
            tp = TopicPartition(name, part.partition_index)
            # without a default, a partition that was not asked for would raise KeyError
            missing.pop(tp, None)
            if part.error_code:
                result.problems[tp] = BrokerError(part.error_code, f"{what}, partition {tp}")
            elif part.committed_offset >= 0:
                raw = part.metadata or ""
                metadata = decode_metadata(tp, part.committed_offset, raw)
                committed = CommittedOffset(part.committed_offset, metadata.text, part.committed_leader_epoch)
                result.found[tp] = StoredCommit(committed, metadata, raw)
    if missing:  # a broker returns -1 for a partition without a committed offset, and never omits it
        text = f"{what}: the response does not contain {', '.join(map(str, missing))}"
        result.problems.update(dict.fromkeys(missing, MalformedResponse(text)))
    return result


def _request(
    group_id: str,
    topics: Mapping[str, list[int]] | None,
    ids: Mapping[str, UUID],
    version: int,
    require_stable: bool,
    member: MemberIdentity | None,
) -> m.OffsetFetchRequest:
    request = m.OffsetFetchRequest
    stable = require_stable and version >= REQUIRE_STABLE_VERSION
    if version < GROUPS_VERSION:
        plain = request.OffsetFetchRequestTopic
        listed = None if topics is None else [plain(name, numbers) for name, numbers in topics.items()]
        return request(group_id=group_id, topics=listed, require_stable=stable)
    with_id = request.OffsetFetchRequestTopics
    grouped = None if topics is None else [with_id(name, ids[name], n) for name, n in topics.items()]
    group = request.OffsetFetchRequestGroup(group_id=group_id, topics=grouped)
    if member is not None and member.member_id and version >= MEMBER_VERSION:
        group.member_id, group.member_epoch = member.member_id, member.generation_id
    return request(groups=[group], require_stable=stable)
