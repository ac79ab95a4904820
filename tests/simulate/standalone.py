"""A program that reads one partition without a group membership and commits its offset with an `OffsetManager`."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Literal

from asyncgroup import Consumer, ConsumerConfig, OffsetManager, TopicPartition
from asyncgroup.errors import AsyncGroupError
from tests.simulate.oracle import ANY, ClaimLog, Oracle
from tests.simulate.plan import STANDALONE_GROUP
from tests.simulation.story import Violation

if TYPE_CHECKING:
    from tests.simulate.world import World

__all__ = ["PARTITION", "StandaloneReader"]

PARTITION: Final = TopicPartition("orders", 0)
PAUSE: Final = 0.5


class StandaloneReader:
    """Begins at its committed offset after each restart. It has no member id, so its late commits are not fenced."""

    name = "reader"

    def __init__(self, world: World, host: str) -> None:
        self.world = world
        self.host = host
        self.rng = random.Random(f"{world.plan.seed} hermit")  # an old name, kept as seeds depend on it
        self.oracle = Oracle()
        self.should_run = True
        self._reading: asyncio.Task[None] | None = None
        self._commit_failed = False

    @property
    def _config(self) -> ConsumerConfig:
        return ConsumerConfig(
            client_id=self.name,
            auto_commit=self.world.plan.seed % 2 == 0,
            auto_commit_interval=0.7,
            fetch_max_wait=1.0,
            request_timeout=4.0,
            connect_timeout=2.0,
            close_timeout=4.0,
            retry_backoff_max=1.0,
            metadata_refresh_interval=3.0,
        )

    def start(self) -> None:
        """Start the program."""
        with self.world.network.source(self.host):
            self.world.spawn(self._run_program(), "program of the standalone reader")

    def restart(self) -> None:
        """Close in order and start again."""
        if self._reading is not None:
            self._reading.cancel()

    def leave(self) -> None:
        """Close for good."""
        self.should_run = False
        self.restart()

    async def _run_program(self) -> None:
        while self.should_run:
            self._reading = asyncio.create_task(self._read(), name="standalone reader")
            await asyncio.wait([self._reading])
            if not self._reading.cancelled() and (error := self._reading.exception()) is not None:
                if not isinstance(error, AsyncGroupError):
                    raise error
                self._write(f"program failed: {type(error).__name__}: {error}")
            if self.should_run:
                await asyncio.sleep(PAUSE)

    async def _read(self) -> None:
        self._commit_failed = False
        claim: ClaimLog | None = None
        consumer = Consumer(self.world.bootstrap_servers, self._config)
        offsets = OffsetManager(self.world.bootstrap_servers, STANDALONE_GROUP, self._config, hooks=[self])
        consumer.cluster._inner.random.seed(f"{self.world.plan.seed} {self.rng.random()}")
        offsets.cluster._inner.random.seed(f"{self.world.plan.seed} {self.rng.random()}")
        try:
            async with consumer, offsets:
                marks = await offsets.manage(*PARTITION)
                begin: int | Literal["earliest"] = marks.next_offset if marks.next_offset >= 0 else "earliest"
                claim = ClaimLog(self.name, "", -1, PARTITION, max(0, marks.next_offset))
                self._write(f"reads {PARTITION} from {begin}")
                doubtful = bool(self.oracle.doubtful)
                self._try(self.oracle.claim_started, claim, is_up_to_date=not doubtful)
                async for record in await consumer.partition(*PARTITION, begin):
                    assert record.value is not None
                    self._try(self.oracle.handed_out, claim, record.offset, record.value)
                    if self.rng.random() < 0.2:
                        await asyncio.sleep(self.rng.choice([0.001, 0.05, 0.4]))
                    self.oracle.handled(claim, record.offset)
                    self.oracle.marked(claim, record.offset + 1, self.world.loop.time())
                    marks.mark_record(record)
                    if not self._config.auto_commit and self.rng.random() < 0.5:
                        await self._commit(offsets)
        finally:
            if claim is not None:
                self._over(claim)

    async def _commit(self, offsets: OffsetManager) -> None:
        try:
            await offsets.commit()
        except asyncio.CancelledError:
            self._fail_to_commit()  # the canceled request may be processed after the next one
            raise

    def _over(self, claim: ClaimLog) -> None:
        self._write(f"has read {claim.initial} to {claim.next}")
        self.oracle.claim_ended(claim)
        if self._config.auto_commit and not self._commit_failed:
            self._try(self.oracle.check_orderly_end, claim)

    def _write(self, what: str) -> None:
        self.world.story.write(self.name, what)

    def _try(self, check: Any, *args: Any, **more: Any) -> None:
        try:
            check(*args, **more)
        except Violation as violation:
            self.world.fail(violation)

    def on_commit(self, _group: str, offsets: Mapping[Any, Any], errors: Mapping[Any, Any] | None) -> None:
        """Record the result of a commit."""
        if errors:
            self._fail_to_commit()
            self._write(f"commit failed: {'; '.join(sorted({str(error) for error in errors.values()}))}")
        elif offsets:
            self._commit_failed = False

    def on_log(self, text: str) -> None:
        """Handle a warning that the client has logged."""
        if "the last commit took too long" in text:
            self._fail_to_commit()

    def _fail_to_commit(self) -> None:
        """Record a commit with an unknown outcome; as it is not fenced, it may be processed at any time."""
        self._commit_failed = True
        self.oracle.doubtful.add(("", PARTITION, ANY))

    @property
    def behind(self) -> str | None:
        """What the reader has not handled or committed yet; None if nothing."""
        oracle, end = self.oracle.at(PARTITION), self.world.cluster.partition(*PARTITION).log_end_offset
        if oracle.handled_end != end:
            return f"the standalone reader has handled {oracle.handled_end} of {end}"
        if self._config.auto_commit and end and oracle.committed != end and not oracle.is_set_back:
            return f"the standalone reader has committed {oracle.committed} of {end}"
        return None
