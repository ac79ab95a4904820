"""The handler of a simulated work queue: what becomes of a delivery follows from seed, value and attempt."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from asyncgroup.errors import CommitFailedError
from asyncgroup.model import wall_clock
from asyncgroup.workqueue import Backoff, Delivery, DeliveryBatch, DeliveryState, WorkQueue
from tests.simulate.handler import Disturbances, Injected
from tests.simulate.queues_claims import QueueClaim, Visit
from tests.simulate.queues_oracle import QueueOracle
from tests.simulate.queues_setting import QueueSetting
from tests.simulation.story import Story, Violation

__all__ = ["QueueWork", "is_poison"]


def is_poison(seed: int, setting: QueueSetting, value: bytes) -> bool:
    """Return whether every delivery of the record fails."""
    return random.Random(f"{seed} {value[:6]!r} is poison").random() < setting.poison


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


class QueueWork:
    """Handles the deliveries of one member. With `is_dead` (a simulated crash) it reports nothing more.

    `find_claim(delivery)` returns the claim that a delivery belongs to.
    """

    def __init__(
        self,
        seed: int,
        name: str,
        setting: QueueSetting,
        oracle: QueueOracle,
        story: Story,
        fail: Callable[[Violation], None],
        find_claim: Callable[[Delivery], QueueClaim],
    ) -> None:
        self.name = name
        self.style = setting.specs[name].style
        self.setting = setting
        self.oracle = oracle
        self.story = story
        self.disturbances = Disturbances()
        self.is_dead = False
        self.cancelled_at: float | None = None
        """When `run` was cancelled, until it is called again."""
        self._seed = seed
        self._backoff = Backoff(*setting.backoff)
        self._fail = fail
        self._find_claim = find_claim
        self._loop = asyncio.get_running_loop()

    def _write(self, what: str) -> None:
        if not self.is_dead:
            self.story.write(self.name, what)

    def _try(self, check: Callable[..., Any], *args: Any, **more: Any) -> Any:
        """Report an event to the oracle, unless the member is dead; a violation ends the run."""
        if self.is_dead:
            return None
        try:
            return check(*args, **more)
        except Violation as violation:
            self._fail(violation)
            return None

    # --- deliveries ---------------------------------------------------------------------------------------------------

    async def __call__(self, delivery: Delivery) -> None:
        """Handle a delivery of `run`."""
        visit = self._begin(delivery)
        try:
            await self._handle(visit)
        finally:
            self._end(visit)

    async def loop(self, queue: WorkQueue) -> None:
        """Handle the deliveries of `async for`."""
        async for delivery in queue:
            visit = self._begin(delivery)
            try:
                with suppress(Injected):
                    async with delivery:
                        await self._handle(visit)
            finally:
                self._end(visit)

    async def batches(self, queue: WorkQueue) -> None:
        """Handle the deliveries of `batch_receive` one by one."""
        while True:
            batch = await queue.batch_receive()
            visits = [self._begin(delivery) for delivery in batch]
            try:
                await self._handle_batch(batch, visits)
            finally:
                for visit in visits:
                    self._end(visit)

    async def _handle_batch(self, batch: DeliveryBatch, visits: list[Visit]) -> None:
        async with batch:
            for visit in visits:
                with suppress(Injected):
                    async with visit.delivery:
                        await self._handle(visit)
                self._end(visit)

    def _begin(self, delivery: Delivery) -> Visit:
        if self.is_dead:
            raise asyncio.CancelledError
        claim = self._find_claim(delivery)
        now = self._loop.time()
        goes_on = self.style == "run" and self.cancelled_at is not None and self.cancelled_at < now
        text = f"it was cancelled at {self.cancelled_at}, and {delivery!r} is delivered at {now:.3f}"
        self._check("run() ends when it is cancelled", text, holds=not goes_on)
        if delivery.attempt > 1:
            self._write(f"gets {claim.tp}@{delivery.record.offset}, attempt {delivery.attempt}")
        visit = self._try(self.oracle.began, claim, delivery, now, wall_clock())
        self.story.count("deliveries")
        if delivery.attempt > 1:
            self.story.count("deliveries again")
        return visit or Visit(delivery, claim, None)

    def _end(self, visit: Visit) -> None:
        self._try(self.oracle.ended, visit, self._loop.time())
        self._stop_if_dead()

    def _stop_if_dead(self) -> None:
        if self.is_dead:
            raise asyncio.CancelledError

    # --- one delivery -------------------------------------------------------------------------------------------------

    async def _handle(self, visit: Visit) -> None:
        """Do what the delivery's fate is; returns if it ends acknowledged."""
        setting, delivery = self.setting, visit.delivery
        rng = random.Random(f"{self._seed} {delivery.value!r} {delivery.attempt}")
        await self._work(visit, rng)
        self._stop_if_dead()
        if is_poison(self._seed, setting, delivery.value or b""):
            await self._go_wrong(visit, rng)
        elif setting.has_dead_letters and rng.random() < setting.rejected:
            await self._copy(visit, partial(delivery.reject, "no good"), is_dead=True)
        elif setting.has_retry and delivery.attempt <= 2 and rng.random() < setting.reconsumed:
            delay = rng.choice([0.0, 0.1, 1.0, 2.5])
            await self._copy(visit, partial(delivery.reconsume_later, delay), is_dead=False)
        elif delivery.attempt <= 2 and rng.random() < setting.failing:
            await self._go_wrong(visit, rng)
        else:
            await self._succeed(visit, rng)

    async def _work(self, visit: Visit, rng: random.Random) -> None:
        """Take some time; the disturbances of the member apply."""
        disturbances = self.disturbances
        if disturbances.raise_once:
            disturbances.raise_once = False
            self._raise(visit)
        pace = disturbances.pace or (self.setting.work_seconds if rng.random() < 0.5 else 0.0)
        if pace:
            await asyncio.sleep(pace * rng.uniform(0.1, 1.5))
        while not disturbances.gate.is_set():
            try:
                await disturbances.gate.wait()
            except asyncio.CancelledError:
                if not disturbances.ignores_cancellation:
                    raise
                disturbances.has_ignored = True
                self._write("ignores its cancellation")

    async def _succeed(self, visit: Visit, rng: random.Random) -> None:
        delivery, how = visit.delivery, rng.random()
        if how < 0.1 and delivery.state is DeliveryState.ACQUIRED:
            await delivery.renew()
        is_acquired = delivery.state is DeliveryState.ACQUIRED
        self._try(self.oracle.succeeded, visit)
        self.story.count("handled")
        if how < 0.7:
            return
        outcome: object = False
        if how < 0.9:
            outcome = await delivery.ack()
        else:
            with suppress(CommitFailedError):
                outcome = await delivery.ack(durable=True)
                self._check(
                    "late results are refused", f"{visit}: {outcome}", holds=bool(outcome) or not is_acquired
                )
        self._stop_if_dead()
        if not is_acquired:
            self._check("late results are refused", f"{visit}: {outcome}", holds=not outcome)

    def _check(self, name: str, text: str, *, holds: bool) -> None:
        if not holds and not self.is_dead:
            self._fail(Violation(name, f"{self.name}: {text}"))

    async def _go_wrong(self, visit: Visit, rng: random.Random) -> None:
        """Raise, nack, or take longer than the ack timeout."""
        delivery, timeout = visit.delivery, self.setting.ack_timeout
        if timeout is not None and rng.random() < self.setting.hanging:
            self.story.count("hangs")
            await asyncio.sleep(timeout + rng.choice([0.2, 1.0]))
            self._stop_if_dead()
        elif rng.random() < 0.2 and delivery.state is DeliveryState.ACQUIRED:
            delay = rng.choice([0.0, 0.2, 1.0])
            self._nacked(visit, delay)
            await delivery.nack(delay=delay)
            return
        elif rng.random() < 0.1 and self.style == "run" and not _is_cancelled():
            self._nacked(visit, None)
            raise asyncio.CancelledError  # raised by itself: the handler has failed
        self._raise(visit)

    def _raise(self, visit: Visit) -> None:
        self._nacked(visit, None)
        raise Injected("injected by the simulation")

    def _nacked(self, visit: Visit, delay: float | None) -> None:
        self.story.count("nacks")
        seconds = self._backoff.delay(visit.delivery.attempt) if delay is None else delay
        self._try(self.oracle.failed, visit, self._loop.time() + seconds)

    async def _copy(self, visit: Visit, call: Callable[[], Any], *, is_dead: bool) -> None:
        if visit.delivery.state is not DeliveryState.ACQUIRED:
            self._raise(visit)
        is_last = visit.delivery.attempt == self.setting.last_attempt
        if is_dead:
            self.oracle.rejected.add(visit.delivery.value or b"")
            self.story.count("rejects")
        else:
            self.story.count("reconsumes")
        outcome = await call()
        self._stop_if_dead()
        if outcome:
            self._try(self.oracle.copied, visit, is_dead=is_dead or is_last)
