"""Exclusive consumers: raise ConsumerBusy if another member holds the group.

Pulsar's brokers refuse a second consumer of an Exclusive subscription. Kafka's coordinator accepts any member, so a consumer
does it in two steps: `check_not_busy` before it joins, and, because another one may join at the same time, `check_is_holder` in the
handler's `setup`, with ExclusiveAssignor as the group's only assignor.

A consumer that died without leaving the group holds it until its session times out: until then others get ConsumerBusy.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from asyncgroup.cluster import ClusterClient
from asyncgroup.cluster.connection_pool import CONTROL
from asyncgroup.cluster.coordinators import CoordinatorMoved
from asyncgroup.errors import AsyncGroupError, BrokerError, ConsumerBusy, ErrorCode, TransportError
from asyncgroup.group.classic.group_members import describe_members
from asyncgroup.group.sessions.session import Session
from asyncgroup.workqueue.group_engine.exclusive_assignor import decode_holder

__all__ = ["check_is_holder", "check_not_busy"]

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
