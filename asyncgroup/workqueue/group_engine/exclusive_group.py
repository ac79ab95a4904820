"""Exclusive consumers: raise ConsumerBusy if another member holds the group.

Pulsar's brokers refuse a second consumer of an Exclusive subscription. Kafka's coordinator accepts any member, so a consumer
does it in two steps: `check_not_busy` before it joins, and, because another one may join at the same time, `check_is_holder` in the
handler's `setup`, with ExclusiveAssignor as the group's only assignor.

A consumer that died without leaving the group holds it until its session times out: until then others get ConsumerBusy.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from asyncgroup.cluster import ClusterClient
from asyncgroup.cluster.connection_pool import CONTROL
from asyncgroup.cluster.coordinators import CoordinatorMoved
from asyncgroup.errors import AsyncGroupError, BrokerError, ConsumerBusy, ErrorCode, TransportError
from asyncgroup.group.assignors.cooperative import claimed_partitions, withhold_claimed
from asyncgroup.group.assignors.protocol import Assignment, MemberSubscription
from asyncgroup.group.assignors.sticky import find_owners
from asyncgroup.group.classic.group_members import describe_members
from asyncgroup.group.locks.assignor import encode_since, waiting_order
from asyncgroup.group.sessions.session import Session
from asyncgroup.model import TopicPartition

__all__ = ["ExclusiveAssignor", "GroupHolder", "check_is_holder", "check_not_busy", "decode_holder"]

_log = logging.getLogger("asyncgroup.group")

DESCRIBE_TIMEOUT: Final = 3.0
"""Seconds to wait for the client id and host of the holder, which only the error message needs."""


async def check_not_busy(
    cluster: ClusterClient, group_id: str, *, group_instance_id: str | None = None
) -> None:
    """Raise ConsumerBusy if the group has a member; call it before joining.

    A member with this `group_instance_id` does not count: it is the same static member before a restart (KIP-345). Retriable
    errors are retried `metadata_retry_max` times. Raises BrokerError if the group cannot be described, TransportError.
    """
    retry = cluster.retry(retries=cluster.config.metadata_retry_max)
    while True:
        try:
            members = await describe_members(cluster, group_id, lane=CONTROL)
            break
        except CoordinatorMoved:
            continue
        except (BrokerError, TransportError) as error:
            if not error.retriable:
                raise
            if isinstance(error, BrokerError) and error.code == ErrorCode.COORDINATOR_NOT_AVAILABLE:
                cluster.coordinators.mark_unknown(group_id)
            await retry.pause(error)
    for member in members:
        if group_instance_id is None or member.group_instance_id != group_instance_id:
            raise ConsumerBusy(group_id, str(member))


async def check_is_holder(cluster: ClusterClient, session: Session) -> None:
    """Raise ConsumerBusy if the group's ExclusiveAssignor assigned the group to another member.

    Partitions do not tell: the holder may have none yet, because a former member has to revoke them or because the topic
    does not exist. User data of another assignor says nothing; then a member without partitions is not the holder.
    """
    holder = decode_holder(session.assignment_user_data)
    if holder.is_own if holder is not None else session.partitions:
        return
    if holder is None:
        raise ConsumerBusy(session.group_id)
    raise ConsumerBusy(session.group_id, await _describe_holder(cluster, session.group_id, holder.member_id))


async def _describe_holder(cluster: ClusterClient, group_id: str, member_id: str) -> str:
    """Return the member id with client id and host; only the member id if the coordinator does not describe it."""
    try:
        async with asyncio.timeout(DESCRIBE_TIMEOUT):
            members = await describe_members(cluster, group_id, lane=CONTROL)
    except (AsyncGroupError, TimeoutError) as error:
        _log.debug("group %s: could not describe the holder: %s", group_id, error)
        return member_id
    return next((str(member) for member in members if member.member_id == member_id), member_id)


_HEADER: Final = struct.Struct(">h?h")
"""Version, whether the member holds the group, and the length of the holder's member id, which follows in UTF-8.

Later versions may append fields.
"""

_VERSION: Final = 0


class GroupHolder(NamedTuple):
    """Which member holds the group."""

    is_own: bool
    """Whether it is the member with this assignment. A static member can have another member id since (KIP-345)."""
    member_id: str
    """The holder's member id when the partitions were assigned."""


class ExclusiveAssignor:
    """Assigns all partitions to the member that owns some, or else to the one that waits for the longest time.

    Pulsar's subscription type Exclusive. The assignor cannot refuse the other members: the user data of their assignments
    says that another one holds the group, and they are to leave (see `exclusive_group`).

    It is cooperative (KIP-429), so that the owner is not interrupted while others join and leave. `since_ms` is the time of
    day in ms at which this member began to wait.
    """

    name = "asyncgroup-exclusive"
    is_cooperative = True

    def __init__(self, since_ms: int) -> None:
        self._since = since_ms

    def __repr__(self) -> str:
        return f"<ExclusiveAssignor since {self._since}>"

    def subscription_user_data(self, topics: Sequence[str]) -> bytes:  # noqa: ARG002  the same for all
        """Return the time at which this member began to wait."""
        return encode_since(self._since)

    def assign(
        self, members: Sequence[MemberSubscription], counts: Mapping[str, int]
    ) -> dict[str, Assignment]:
        """Return the assignments by member id; partitions that another member has yet to revoke are assigned to none."""
        queue = sorted(members, key=waiting_order)
        if not queue:
            return {}
        holder = queue[_holder(queue, counts)]
        wanted = {topic: counts[topic] for topic in sorted(counts) if topic in holder.topics}
        everything = [TopicPartition(topic, number) for topic in wanted for number in range(wanted[topic])]
        plan = withhold_claimed(queue, {holder.member_id: everything}, counts)
        return {
            member.member_id: Assignment(
                tuple(plan.get(member.member_id, ())),
                _encode_holder(GroupHolder(member is holder, holder.member_id)),
            )
            for member in queue
        }


def _holder(queue: Sequence[MemberSubscription], counts: Mapping[str, int]) -> int:
    """Return the index of the member that owns partitions, of several the one with the newest claim; else 0."""
    claims = claimed_partitions(queue)
    owners = set(find_owners(queue, counts, claims).values())
    return min(owners, key=lambda index: (-claims[index].generation, index), default=0)


def _encode_holder(holder: GroupHolder) -> bytes:
    member_id = holder.member_id.encode()
    return _HEADER.pack(_VERSION, holder.is_own, len(member_id)) + member_id


def decode_holder(data: bytes | None) -> GroupHolder | None:
    """Decode the user data of an assignment; None if it is not that of an ExclusiveAssignor."""
    try:
        version, is_own, length = _HEADER.unpack_from(data or b"")
        member_id = (data or b"")[_HEADER.size : _HEADER.size + length]
        if version >= 0 and 0 <= length == len(member_id):
            return GroupHolder(is_own, member_id.decode())
    except (struct.error, UnicodeDecodeError):
        pass
    return None
