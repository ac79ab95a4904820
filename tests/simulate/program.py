"""What the simulated programs with a group member and with a work queue have in common: their life, their ends, their settings."""

from __future__ import annotations

import asyncio
import random
import re
from abc import abstractmethod
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any
from uuid import UUID

from asyncgroup import ConsumerGroup, Session
from asyncgroup.errors import BrokerError, ErrorCode
from asyncgroup.group.consumer.heartbeats import SESSION_TIMEOUT, ConsumerHeartbeats
from tests.group.internals import membership_of
from tests.simulate.plan import MemberSpec
from tests.simulation.program import PAUSE, SimulatedProgram
from tests.simulation.story import Violation

if TYPE_CHECKING:
    from tests.simulate.handler import SimHandler
    from tests.simulate.queues_handler import QueueWork
    from tests.simulate.world import World

__all__ = ["GIVEN_UP", "RAISED_BY_RUN", "Program"]

OF_REBALANCES = frozenset({ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION})
"""Codes that refuse the commit of a member that joins again, or has just done so."""

OF_EPOCHS = frozenset({ErrorCode.STALE_MEMBER_EPOCH})
"""Codes that refuse the commit of a member with a newer epoch, of which it does not know yet."""

RAISED_BY_RUN = frozenset({ErrorCode.FENCED_INSTANCE_ID, ErrorCode.UNRELEASED_INSTANCE_ID})
"""Codes that `run()` may raise for a static member: the second one in a consumer group whose former member has not left."""

GIVEN_UP = re.compile(
    r"the handler of (\S+) was cancelled, and still runs .* the member gives the partition up"
)
"""The log line about a revoked partition whose handler ignores its cancellation."""


class Program(SimulatedProgram["World"]):
    """The program of the member `spec.name`. All its connections come from `host`."""

    handler: SimHandler | QueueWork

    def __init__(self, world: World, spec: MemberSpec, host: str) -> None:
        super().__init__(world, spec.name, host)
        self.spec = spec
        self.failed_to_leave = False
        """Whether the client has logged that it could not leave; a connection may stay half-open to the end."""
        self._ids = random.Random(f"{world.plan.seed} {spec.name} ids")
        self._consuming: asyncio.Task[None] | None = None
        self._member_id = ""

    @property
    @abstractmethod
    def group(self) -> ConsumerGroup | None:
        """The group while it is open."""

    @property
    @abstractmethod
    def _is_ending(self) -> bool:
        """Whether the group closes."""

    @property
    def session_timeout(self) -> float:
        """The session timeout of a consumer group, as far as the member knows."""
        heartbeats = None if self.group is None else membership_of(self.group).heartbeats
        return heartbeats.session_timeout if isinstance(heartbeats, ConsumerHeartbeats) else SESSION_TIMEOUT

    @property
    def _settings(self) -> dict[str, Any]:
        """The settings of the member; in a consumer group the rest is set at the brokers."""
        spec, setting = self.spec, self.world.plan.setting
        protocol: dict[str, Any] = {
            "group_protocol": "consumer",
            "remote_assignor": next(iter(spec.assignors), None),
        }
        if not spec.is_consumer:
            protocol = {
                "assignors": spec.assignors,
                "session_timeout": setting.session_timeout,
                "heartbeat_interval": setting.heartbeat_interval,
            }
        return protocol | {
            "client_id": spec.name,
            "group_instance_id": spec.instance_id,
            "rebalance_timeout": spec.rebalance_timeout,
            "fetch_max_wait": spec.fetch_max_wait,
            "buffer_bytes": spec.buffer_bytes,
            "max_partition_fetch_bytes": min(spec.buffer_bytes // 4, 1 << 20),
            "request_timeout": setting.request_timeout,
            "connect_timeout": 2.0,
            "close_timeout": 4.0,
            "retry_backoff_max": 1.0,
            "metadata_refresh_interval": setting.metadata_refresh_interval,
        }

    def _make_id(self) -> UUID:
        return UUID(int=self._ids.getrandbits(128), version=4)

    # --- its life -----------------------------------------------------------------------------------------------------

    async def _consume_again(self, consume: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Consume in a task of its own, again and again until the group closes."""
        while self.is_active and not self._is_ending:
            self._consuming = asyncio.create_task(consume(), name=f"{self.name} consumes")
            await asyncio.wait([self._consuming])
            if not self._consuming.cancelled() and (error := self._consuming.exception()) is not None:
                raise error
            if self.is_active and not self._is_ending:
                await asyncio.sleep(PAUSE)

    def cancel(self) -> None:
        """Cancel the consuming task; the program consumes again after a pause."""
        if self._consuming is not None:
            self._consuming.cancel()

    def die(self) -> None:
        """Simulate a crash: from now on the program reports nothing, and its tasks are canceled."""
        self.is_dead = self.handler.is_dead = True
        self.handler.disturbances.end()
        self._forget_claims()
        if self._consuming is not None:
            self._consuming.cancel()
        super().die()

    @abstractmethod
    def _forget_claims(self) -> None:
        """End the claims of a process that was killed at the oracle."""

    # --- its reports --------------------------------------------------------------------------------------------------

    def _fail(self, name: str, text: str) -> None:
        self.fail(Violation(name, f"{self.name}: {text}"))

    def _write_errors(self, errors: Any) -> None:
        """Note that a commit failed."""
        self.world.story.count("failed commits")
        self.write(f"commit failed: {'; '.join(sorted({str(error) for error in errors.values()}))}")

    def _write_end(self, session: Session, cause: object) -> None:
        """Note the end of a session."""
        self.write(f"session of generation {session.generation_id} over: {type(cause).__name__}: {cause}")
        self.world.story.count(f"ended: {type(cause).__name__}")

    def _check_not_lost(self, session: Session, cause: object) -> None:
        if session.is_lost and self.world.plan.is_orderly:
            self._fail("orderly actions cost nothing", f"a session was lost: {cause}")

    def _will_be_sent_again(self, *errors: object) -> bool:
        """Whether a commit is refused only under the old generation or epoch, as the session goes on."""
        codes = OF_EPOCHS if self.spec.is_consumer else OF_REBALANCES
        return self.spec.sessions_last and all(
            isinstance(error, BrokerError) and error.code in codes for error in errors
        )
