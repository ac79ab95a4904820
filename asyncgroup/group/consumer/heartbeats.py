"""ConsumerHeartbeats: sends the heartbeats of one member of a KIP-848 group, and waits between them.

They go out at the interval that the coordinator names in each response, and earlier when the member has something to report
or may be about to get partitions (`EARLY_INTERVAL`). They never stop while a revocation drains.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, NamedTuple

from asyncgroup.cluster import ClusterClient
from asyncgroup.config import ConsumerConfig
from asyncgroup.errors import (
    AsyncGroupError,
    AuthenticationError,
    BrokerError,
    NoBrokersError,
    RequestTimedOut,
    UnsupportedVersionError,
)
from asyncgroup.group.consumer.heartbeat_errors import RESULTS, HeartbeatAction, heartbeat_refusal
from asyncgroup.group.consumer.member_state import ConsumerMemberState
from asyncgroup.group.liveness.heartbeat_snapshot import ConsumerSnapshot, ThreadHandover
from asyncgroup.group.liveness.silence import has_expired
from asyncgroup.group.membership import (
    HEARTBEAT_LANE,
    RETRY_BACKOFF_SHARE,
    HeartbeatResult,
    heartbeat_timeout,
)
from asyncgroup.lifecycle import wait_within
from asyncgroup.offsets import GROUP_LANE
from asyncgroup.wire import messages as m

__all__ = ["EARLY_INTERVAL", "SESSION_TIMEOUT", "ConsumerHeartbeats", "HeartbeatOutcome"]

EARLY_INTERVAL: Final = 0.3
"""Seconds between heartbeats while the assignment is empty or has just grown.

A partition that another member releases is assigned in the response to this member's next heartbeat: at the coordinator's
interval of 5 s it would wait for that. With Kafka 4.3.1, two members and a third that joins, the partitions that moved stood
still for 0.2 to 0.3 s, without early heartbeats for 3.0 s. No other client sends them early."""

EARLY_INTERVALS: Final = 2
"""For how many regular intervals after a join or new partitions heartbeats are sent early: then the group has settled."""

SESSION_TIMEOUT: Final = 45.0
"""Seconds: the default of `group.consumer.session.timeout.ms`."""

SHORTEST_INTERVAL_LIMIT: Final = 1.0
"""Seconds between heartbeats that any session timeout allows."""

PINNED_VERSION: Final = 1
"""The first ConsumerGroupHeartbeat version in which members make their own ids (KIP-1082, Kafka 4.0)."""

_UNDECIDED: Final = (HeartbeatAction.RETRY, HeartbeatAction.FIND_COORDINATOR)


class HeartbeatOutcome(NamedTuple):
    """The outcome of one heartbeat."""

    action: HeartbeatAction
    error: AsyncGroupError | None
    has_news: bool = False
    """Whether the epoch or the assignment is new."""
    answered: bool = False
    """Whether the coordinator responded to it; else it failed before, for example at the coordinator lookup."""


class ConsumerHeartbeats:
    """The heartbeats of a member; its `state` decides what they carry.

    While any broker responds to any request, the member waits for its coordinator. When none responds for the group's
    session timeout the result is LOST, as in the classic protocol: the coordinator has removed the member by then.
    """

    def __init__(
        self, cluster: ClusterClient, group_id: str, config: ConsumerConfig, state: ConsumerMemberState
    ) -> None:
        self._cluster = cluster
        self._group_id = group_id
        self._config = config
        self._state = state
        self.session_timeout = SESSION_TIMEOUT
        """Seconds after which the coordinator removes a silent member, by the group's configuration."""
        self.is_reconciling = False
        """Whether a revocation drains: a deadline for its handlers counts from the heartbeat that began it."""
        self.last_response_at = float("-inf")
        """Loop time of the last response of the coordinator."""
        self.last_stable_sent_at = float("-inf")
        """Loop time at which the last heartbeat was sent before the revocation, if any, began."""
        self._accepted_sent_at = float("-inf")
        """Loop time at which the last heartbeat was sent that the coordinator accepted."""
        self._started_at = float("-inf")
        self._early_until = float("-inf")
        self._doubt_until = float("-inf")
        """Loop time until which a request that was not answered may still reach the coordinator, after newer ones."""
        self._limit: asyncio.Timeout | None = None
        """Of the heartbeat that is under way."""
        self._sent_at = float("-inf")
        """Loop time at which it was sent."""
        self.handover = ThreadHandover()
        """See `HeartbeatStatus`."""
        self._wake = asyncio.Event()
        self._is_running = False
        self._check: asyncio.Future[HeartbeatOutcome] | None = None
        """Resolved by the next heartbeat whose outcome decides whether the member is still in the group."""

    # --- for the member -------------------------------------------------------------------------------------------

    @property
    def heartbeat_interval(self) -> float:
        """See `HeartbeatStatus`: as the coordinator named it last, but at least two in a session timeout.

        An interval that is far too long, 2**31 - 1 ms for example, would end the membership without the member's knowledge.
        """
        return min(self._state.interval, max(self.session_timeout / 2, SHORTEST_INTERVAL_LIMIT))

    def next_heartbeat_after(self, moment: float) -> float | None:  # noqa: ARG002  the interface of both protocols
        """Return None: members of these groups need not leave together."""
        return None

    async def confirm_refusal(self, lookup: int | None, sent_at: float) -> bool:  # noqa: ARG002  as above
        """Return whether the refusal of a commit ends the membership: a heartbeat sent after the commit decides."""
        if not self._is_running or sent_at < self._accepted_sent_at:
            return not self._is_running
        outcome = await self._ask_now()
        return outcome is None or outcome.action is not HeartbeatAction.CONTINUE

    async def wait_joined(self) -> bool:
        """Send a heartbeat at once, and return whether it brought a newer epoch: a refused commit is repeated with it."""
        before = self._state.epoch
        if not self._is_running:
            return False
        outcome = await self._ask_now()
        return outcome is not None and self._state.epoch > before

    async def _ask_now(self) -> HeartbeatOutcome | None:
        """Return the outcome of the next heartbeat that decides; None if they end first."""
        if self._check is None:
            self._check = asyncio.get_running_loop().create_future()
        self.send_now()
        try:
            return await asyncio.shield(self._check)
        except asyncio.CancelledError:
            if not self._is_running:
                return None
            raise

    def send_now(self) -> None:
        """Send a heartbeat without waiting for the interval."""
        self._wake.set()

    # --- one after the other --------------------------------------------------------------------------------------

    async def run(
        self,
        on_result: Callable[[HeartbeatResult, AsyncGroupError | None], None],
        on_news: Callable[[], None],
    ) -> None:
        """Send heartbeats until cancelled; return after LOST and FATAL. Every result but ALIVE is passed to `on_result`.

        `on_news` is called after a response with another epoch or assignment.
        """
        loop, retry = asyncio.get_running_loop(), self._cluster.retry()
        self._started_at = loop.time()
        self._is_running = True
        self.handover.report = None
        self._set_early()
        pause = self._interval
        failed: HeartbeatOutcome | None = None  # of the last heartbeat, if it is to be sent again
        try:
            while True:
                due = loop.time() + pause
                self._publish(due)
                await wait_within(self._wake, pause)
                self._wake.clear()
                if self._has_left(on_result, on_news):
                    return
                check = self._check
                if failed is not None and has_expired(self._session_expires_at, due):
                    outcome = failed
                else:
                    outcome = await self.send()
                if self._has_left(on_result, on_news):  # the event loop may have been blocked in the meantime
                    return
                result, failed = RESULTS[outcome.action], None
                if outcome.action in _UNDECIDED:
                    failed = outcome
                    if loop.time() >= self._session_expires_at:
                        result = HeartbeatResult.LOST
                        self._state.rejoin()
                    left = self._session_expires_at - loop.time()
                    pause = min(retry.next(), RETRY_BACKOFF_SHARE * self.session_timeout, max(left, 0.0))
                else:
                    retry.reset()
                    self._resolve(check, outcome)
                    if outcome.has_news:
                        if self._state.may_gain:
                            self._set_early()
                        on_news()
                    pause = self._interval
                if result is not HeartbeatResult.ALIVE:
                    on_result(result, outcome.error)
                if result in (HeartbeatResult.LOST, HeartbeatResult.FATAL):
                    self._resolve(self._check, outcome)
                    return
        finally:
            self._is_running = False
            self.handover.snapshot = None
            self._take_report(lambda: None)  # its epoch is the one to join again with
            if self._check is not None:
                self._check.cancel()
                self._check = None

    def _publish(self, due: float) -> None:
        """Publish the member for the heartbeat thread, whose first heartbeat would be due then."""
        identity = self._state.identity
        if identity.member_id:
            leave = self._state.leave_request(is_static_leave=identity.group_instance_id is not None)
            self.handover.snapshot = ConsumerSnapshot(
                self._group_id,
                identity,
                due,
                self.heartbeat_interval,
                self.timeout,
                self._state.reported,
                leave,
            )
        else:
            self.handover.snapshot = None

    def _has_left(
        self,
        on_result: Callable[[HeartbeatResult, AsyncGroupError | None], None],
        on_news: Callable[[], None],
    ) -> bool:
        """Whether the member has left its group while the event loop was blocked, which is reported."""
        left_because = self._take_report(on_news)
        if left_because is None:
            return False
        on_result(HeartbeatResult.LOST, left_because)
        return True

    def _take_report(self, on_news: Callable[[], None]) -> AsyncGroupError | None:
        """Take note of the heartbeats that were sent while the event loop was blocked; return why the member left, if it did.

        Their responses are not known here, only the epoch: requests with all fields make the coordinator repeat the assignment.
        """
        if (report := self.handover.take_report()) is None:
            return None
        self._doubt_until = asyncio.get_running_loop().time() + self.session_timeout
        before = self._state.epoch
        self._state.on_newer_epoch(report.identity.generation_id)
        if self._state.epoch > before:
            on_news()
        self.last_response_at = max(self.last_response_at, report.accepted_at)
        if not self.is_reconciling:
            self.last_stable_sent_at = max(self.last_stable_sent_at, report.stable_at)
        if report.left_because is not None:
            self._state.rejoin()
        return report.left_because

    def _resolve(self, check: asyncio.Future[HeartbeatOutcome] | None, outcome: HeartbeatOutcome) -> None:
        """Resolve a check that was asked for before the heartbeat was sent; a newer one waits for the next."""
        if check is not None and not check.done():
            check.set_result(outcome)
            self._check = None

    def _set_early(self) -> None:
        self._early_until = asyncio.get_running_loop().time() + EARLY_INTERVALS * self.heartbeat_interval

    @property
    def _interval(self) -> float:
        """Seconds until the next heartbeat."""
        is_early = asyncio.get_running_loop().time() < self._early_until and not self.is_reconciling
        return min(EARLY_INTERVAL, self.heartbeat_interval) if is_early else self.heartbeat_interval

    @property
    def _session_expires_at(self) -> float:
        """Loop time at which no broker has responded for the group's session timeout."""
        last = max(self._started_at, self.handover.accepted_at, self._cluster.last_response_at)
        return last + self.session_timeout

    # --- one heartbeat --------------------------------------------------------------------------------------------

    @property
    def timeout(self) -> float:
        """Seconds for one attempt, see `heartbeat_timeout`."""
        return heartbeat_timeout(self.heartbeat_interval, self.session_timeout)

    @property
    def _deadline(self) -> float:
        """Loop time at which the attempt that began at `_sent_at` ends, at the latest when the session expires.

        An attempt that begins after that (the process was suspended) has the full time, since the coordinator may still
        have the member.
        """
        deadline, expires_at = self._sent_at + self.timeout, self._session_expires_at
        return min(deadline, expires_at) if self._is_running and self._sent_at < expires_at else deadline

    def set_session_timeout(self, seconds: float) -> None:
        """The group's session timeout is known now. It limits also the heartbeat that is under way, and reconnection."""
        self.session_timeout = seconds
        self._cluster.pool.limit_reconnect_backoff(RETRY_BACKOFF_SHARE * seconds)
        if self._limit is not None and not self._limit.expired():
            self._limit.reschedule(self._deadline)

    async def send(self) -> HeartbeatOutcome:
        """Send one heartbeat and apply its response to the state; one limit counts for lookup, connecting and sending."""
        time = asyncio.get_running_loop().time
        sent_at = self._sent_at = time()
        try:
            async with asyncio.timeout_at(self._deadline) as self._limit:
                outcome = await self._send(self.timeout)
        except TimeoutError:
            self._cluster.coordinators.mark_unknown(self._group_id)
            error = RequestTimedOut(
                f"no response to the heartbeat of group {self._group_id!r} within {time() - sent_at:g} s"
            )
            outcome = HeartbeatOutcome(HeartbeatAction.FIND_COORDINATOR, error)
        except asyncio.CancelledError:
            self._state.on_lost_response()
            raise
        finally:
            self._limit = None
        if outcome.action in _UNDECIDED:
            self._state.on_lost_response()
            if not isinstance(outcome.error, BrokerError):
                self._doubt_until = time() + self.session_timeout
            return outcome
        if outcome.answered:
            self.last_response_at = time()
            self._cluster.hooks.emit("on_heartbeat", self._group_id, self.last_response_at - sent_at)
        if outcome.action is HeartbeatAction.CONTINUE:
            self._accepted_sent_at = sent_at
            if not self.is_reconciling:
                self.last_stable_sent_at = sent_at
        return outcome

    async def _send(self, timeout: float) -> HeartbeatOutcome:
        try:
            response = await self._cluster.coordinators.request_versioned(
                self._group_id,
                m.ConsumerGroupHeartbeatRequest,
                self._build,
                lane=GROUP_LANE,
                spare_lane=HEARTBEAT_LANE,
                timeout=timeout,
            )
        except NoBrokersError as error:
            return HeartbeatOutcome(HeartbeatAction.RETRY, error)
        except (BrokerError, AuthenticationError, UnsupportedVersionError) as error:
            # of the coordinator lookup, of authentication, or of a broker without KIP-848
            action = HeartbeatAction.FIND_COORDINATOR if error.retriable else HeartbeatAction.FAIL
            return HeartbeatOutcome(action, error)
        except AsyncGroupError as error:
            return HeartbeatOutcome(HeartbeatAction.FIND_COORDINATOR, error)
        if not response.error_code:
            has_news = self._state.on_response(response)
            return HeartbeatOutcome(HeartbeatAction.CONTINUE, None, has_news, answered=True)
        refusal = heartbeat_refusal(
            response, self._group_id, self._state.member_id, self._state.regex, self._config.remote_assignor
        )
        action = self._state.on_error(response.error_code)
        if action is HeartbeatAction.FIND_COORDINATOR:
            self._cluster.coordinators.mark_unknown(self._group_id)
        return HeartbeatOutcome(action, refusal, answered=True)

    def _build(self, version: int) -> m.ConsumerGroupHeartbeatRequest:
        if version < PINNED_VERSION:
            raise UnsupportedVersionError(
                f"ConsumerGroupHeartbeat: the broker offers version {version}, this client needs {PINNED_VERSION} "
                "(Kafka 4.0); use group_protocol='classic'"
            )
        if asyncio.get_running_loop().time() < self._doubt_until:
            # A late request may have brought an epoch or an assignment of which this member does not know. The
            # coordinator repeats them, and accepts the previous epoch, only if a request carries all fields.
            self._state.on_lost_response()
        request = self._state.next_request()
        # from now on the coordinator may have given away what this request no longer reports
        if self._is_running:
            self._publish(asyncio.get_running_loop().time() + self.heartbeat_interval)
        return request
