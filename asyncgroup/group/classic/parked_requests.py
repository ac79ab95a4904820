"""JoinGroup and SyncGroup, whose responses the coordinator holds back until all members have sent theirs.

A response may take `rebalance_timeout`, so a request timeout does not show that it is lost. While one is awaited, the
coordinator is looked up every few seconds: if another broker has taken over, the request is cancelled there with
CoordinatorMoved, to be sent to the new one. A response to SyncGroup may be lost on a connection that stays open although
the group goes on; so it is sent again on a new connection, after pauses that double. A coordinator answers the last one.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final, TypeVar

from asyncgroup.cluster import ClusterClient
from asyncgroup.config import ConsumerConfig
from asyncgroup.errors import AsyncGroupError, TransportError
from asyncgroup.group.membership import JOIN_GRACE
from asyncgroup.lifecycle import cancel_and_wait, start_task
from asyncgroup.wire.message import Message, Request

__all__ = ["COORDINATOR_CHECK", "ParkedRequests"]

_log = logging.getLogger("asyncgroup.group")

COORDINATOR_CHECK: Final = 5.0
"""Longest pause between two lookups of the coordinator while a request is parked there, in seconds."""

CHECK_SHARE: Final = 0.5
"""The same as a share of the session timeout: without other requests no broker would respond for that long."""

REPEAT_SHARE: Final = 2 / 3
"""When a SyncGroup is sent again for the first time, as a share of the session timeout."""

R = TypeVar("R", bound=Message)


class ParkedRequests:
    """Sends the requests of one member that the coordinator parks, one at a time, on the connection `lane`."""

    def __init__(self, cluster: ClusterClient, group_id: str, config: ConsumerConfig, lane: str) -> None:
        self._cluster = cluster
        self._group_id = group_id
        self._config = config
        self._lane = lane
        self._is_waiting = False
        self._repeats = False  # its connection was closed by `repeat`

    def __repr__(self) -> str:
        return f"<ParkedRequests {self._lane}: {'waits for a response' if self._is_waiting else 'idle'}>"

    def repeat(self) -> None:
        """Close the connection of a request that waits for its response, and send it again on a new one."""
        if self._is_waiting:
            self._repeats = True
            self._cluster.pool.abort_lane(self._lane)

    async def send(self, request: Request[R], *, repeats: bool) -> R:
        """Send a request and wait at most `rebalance_timeout` and JOIN_GRACE; raises as `CoordinatorClient.request`.

        `repeats`: whether to send it again after a while. If cancelled, the connection is closed, since the broker would
        process the next request after this one.
        """
        self._is_waiting, self._repeats = True, False
        watching = start_task(
            self._watch(repeats=repeats), name=f"{self._group_id}: waits for {request.NAME}"
        )
        try:
            return await self._send(request)
        except asyncio.CancelledError:
            self._cluster.pool.abort_lane(self._lane)
            raise
        finally:
            self._is_waiting = False
            await cancel_and_wait(watching)

    async def _send(self, request: Request[R]) -> R:
        timeout = self._config.rebalance_timeout + JOIN_GRACE
        while True:
            try:
                return await self._cluster.coordinators.request(
                    self._group_id, request, lane=self._lane, timeout=timeout
                )
            except TransportError:
                if not self._repeats:
                    raise
                self._repeats = False

    async def _watch(self, *, repeats: bool) -> None:
        """Look up the coordinator, and repeat the request, until cancelled."""
        time, session_timeout = asyncio.get_running_loop().time, self._config.effective_session_timeout
        check = min(COORDINATOR_CHECK, CHECK_SHARE * session_timeout)
        pause, limit = REPEAT_SHARE * session_timeout, self._config.rebalance_timeout + JOIN_GRACE
        repeat_at = time() + pause if repeats else float("inf")
        while True:
            await asyncio.sleep(min(check, max(0.0, repeat_at - time())))
            if time() < repeat_at:
                await self._check_coordinator()
                continue
            pause *= 2
            # the last one has its whole time: it fails if the coordinator does not go on
            repeat_at = time() + pause if pause < limit else float("inf")
            _log.info("group %s: no response from the coordinator; sending the request again", self._group_id)
            self.repeat()

    async def _check_coordinator(self) -> None:
        try:
            await self._cluster.coordinators.check(self._group_id)
        except AsyncGroupError as error:
            _log.debug("group %s: could not look up the coordinator: %s", self._group_id, error)
