"""Members of the demonstration's group, with their state for the screen, and the gate in front of their handlers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final, Self, cast

from asyncgroup.config import ConsumerConfig
from asyncgroup.demo.progress import Gate, GroupProgress, RateMeter
from asyncgroup.demo.target import DemoTarget
from asyncgroup.errors import SessionEnd
from asyncgroup.group import Claim, ConsumerGroup, Handler, Session
from asyncgroup.model import Batch, TopicPartition
from asyncgroup.offsets import CommittedOffset

__all__ = ["DemoMember", "GatedHandler"]

HEARTBEAT: Final = 0.3
"""Seconds; short, as members learn of a rebalance by the responses to their heartbeats."""


class DemoMember:
    """One member, from joining to leaving.

    It is a hook of the member's `ConsumerGroup`, which reports sessions and commits to it.
    """

    def __init__(
        self, name: str, target: DemoTarget, progress: GroupProgress, handler: Handler, gate: Gate
    ) -> None:
        config = target.config(
            ConsumerConfig,
            client_id=name.replace(" ", "-"),
            auto_offset_reset="earliest",
            heartbeat_interval=HEARTBEAT,
            auto_commit_interval=0.2,
            allow_auto_topic_creation=False,
        )
        self.name = name
        self.failure: Exception | None = None  # why it has failed
        self.committed = 0  # records
        self.meter = RateMeter(asyncio.get_running_loop().time)
        self._topic = target.topic
        self._progress = progress
        self._handler = GatedHandler(handler, gate, progress)
        self._group = ConsumerGroup(target.bootstrap_servers, target.group_id, config, hooks=[self])
        self._session: Session | None = None
        self._was_in_session = False
        self._has_left = False
        self._leaving = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    # --- start and stop -----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Join, and consume until `leave`."""
        self._task = asyncio.create_task(self._run(), name=self.name)

    async def _run(self) -> None:
        try:
            async with self._group:
                running = asyncio.create_task(
                    self._group.run(self._topic, self._handler), name=f"{self.name}: run"
                )
                leaving = asyncio.create_task(self._leaving.wait(), name=f"{self.name}: leave")
                try:
                    await asyncio.wait([running, leaving], return_when=asyncio.FIRST_COMPLETED)
                finally:
                    leaving.cancel()
                    await self._group.aclose()
                    await asyncio.wait([running, leaving])
                running.result()
        except Exception as error:  # noqa: BLE001  GroupRun raises it
            self.failure = error
        self._has_left = True
        self._session = None
        self._progress.notify()

    def leave(self) -> None:
        """Finish the current batches, commit them, and leave the group; `gone` waits for it. Safe to call twice."""
        self._leaving.set()

    async def gone(self) -> None:
        """Wait until the member has left."""
        if self._task is not None:
            await self._task

    # --- state for the screen -----------------------------------------------------------------------------------

    @property
    def state(self) -> str:
        """The state in one word, one of `views.STATE_COLORS`."""
        if self._has_left or self._leaving.is_set():
            return "left" if self._has_left else "leaving"
        if self.session is None:
            return "rejoining" if self._was_in_session else "joining"
        return "draining" if self.session.ended else "consuming"

    @property
    def session(self) -> Session | None:
        """The current session, if any."""
        return self._session

    @property
    def live_session(self) -> Session | None:
        """The current session, unless it is ending."""
        return self._session if self.state == "consuming" else None

    @property
    def claims(self) -> list[Claim]:
        return self._session.claims if self._session is not None else []

    @property
    def lag(self) -> int:
        """Records of its claims that are not committed yet."""
        committed = self._progress.committed_offsets
        return sum(max(0, claim.high_watermark - committed.get(claim.tp, 0)) for claim in self.claims)

    # --- hooks --------------------------------------------------------------------------------------------------

    def on_session_start(self, session: Session) -> None:
        self._session = session
        self._was_in_session = True
        self._progress.notify()

    def on_session_end(self, session: Session, cause: SessionEnd) -> None:  # noqa: ARG002
        self._session = None
        self._progress.notify()

    def on_commit(
        self,
        group_id: str,  # noqa: ARG002
        offsets: Mapping[TopicPartition, CommittedOffset],
        failed: Mapping[TopicPartition, Exception] | None,
    ) -> None:
        for tp, committed in offsets.items():
            if failed is None or tp not in failed:
                new = self._progress.commit(tp, committed.offset)
                self.committed += new
                self.meter.add(new)


class GatedHandler(Handler):
    """Wraps a handler so that its claims wait at the gate before each batch."""

    def __init__(self, handler: Handler, gate: Gate, progress: GroupProgress) -> None:
        self._handler = handler
        self._gate = gate
        self._progress = progress

    async def consume_claim(self, session: Session, claim: Claim) -> None:
        # records that a former owner got but did not commit are delivered again: they must not keep the gate closed
        self._progress.set_delivered(claim.tp, claim.position)
        gated = cast("Claim", _GatedClaim(claim, self._gate, self._progress))
        await self._handler.consume_claim(session, gated)


class _GatedClaim:
    """A claim whose batches wait at the gate; all other attributes are the claim's."""

    def __init__(self, claim: Claim, gate: Gate, progress: GroupProgress) -> None:
        self._claim = claim
        self._gate = gate
        self._progress = progress

    def __getattr__(self, name: str) -> Any:
        return getattr(self._claim, name)

    def batches(self, **limits: Any) -> _GatedBatches:
        return _GatedBatches(self._claim, limits, self._gate, self._progress)


class _GatedBatches:
    def __init__(self, claim: Claim, limits: dict[str, Any], gate: Gate, progress: GroupProgress) -> None:
        self._claim = claim
        self._gate = gate
        self._progress = progress
        self._batches = claim.batches(**limits)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Batch:
        await self._gate.wait(self._claim)
        batch = await anext(self._batches)
        self._progress.set_delivered(self._claim.tp, batch.last_offset + 1)
        return batch
