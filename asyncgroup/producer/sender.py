"""The sending side: one request under way for each leader node, batches back in their queue when one fails.

A response that is lost on its way (the connection ended, the request timed out) leaves open whether the records are
in the log. The batch is sent again, as Kafka's own producer does without idempotence: then they may be there twice.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from asyncgroup.cluster import Cluster
from asyncgroup.cluster.backoff import Backoff
from asyncgroup.config import ProducerConfig
from asyncgroup.errors import (
    AsyncGroupError,
    BrokerError,
    ClosedError,
    ProtocolError,
    RequestTimedOut,
    UnsupportedVersionError,
)
from asyncgroup.lifecycle import own_copy
from asyncgroup.model import TopicPartition
from asyncgroup.producer.accumulator import Accumulator
from asyncgroup.producer.batch import MakeError, ProducerBatch
from asyncgroup.producer.outcomes import Action, action_for
from asyncgroup.producer.requests import (
    Answer,
    Part,
    build_request,
    endpoints,
    match_response,
    newest_version,
    topic_ids,
)
from asyncgroup.wire import messages as m

__all__ = ["LANE", "Sender"]

_log = logging.getLogger("asyncgroup.producer")

LANE: Final = "produce"
OnEnd = Callable[[ProducerBatch, Exception | None], None]


class Sender:
    """Sends what its accumulator has ready. `spawn` runs coroutine functions in the owner's task group.

    `on_end(batch, error)` is told of every batch that is done, after its promises were kept or broken. While `hurry`
    is set, no batch waits for more records: somebody waits for room in the buffer.
    """

    def __init__(
        self,
        cluster: Cluster,
        config: ProducerConfig,
        accumulator: Accumulator,
        spawn: Callable[..., None],
        on_end: OnEnd,
    ) -> None:
        self._cluster, self._config, self._accumulator = cluster, config, accumulator
        self._spawn, self._on_end = spawn, on_end
        self._acks = -1 if config.acks == "all" else int(config.acks)
        self._busy: set[int] = set()
        self._backoffs: dict[TopicPartition, Backoff] = {}
        self._news = asyncio.Event()
        self._stale = asyncio.Event()
        self._leaderless = False
        self.hurry = False

    def __repr__(self) -> str:
        return f"<Sender: requests under way to nodes {sorted(self._busy)}>"

    def start(self) -> None:
        """Start sending."""
        self._spawn(self._run, name="sender")
        self._spawn(self._keep_leaders, name="leaders")

    def wake(self) -> None:
        """Something changed: look for batches to send."""
        self._news.set()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self._news.clear()
            wake_at = self._step(loop.time())
            timer = loop.call_at(wake_at, self.wake) if wake_at != float("inf") else None
            try:
                await self._news.wait()
            finally:
                if timer is not None:
                    timer.cancel()

    def _step(self, now: float) -> float:
        """Send what can be sent, fail what has waited too long; returns when to look again."""
        plan = self._accumulator.plan(now, self._cluster.view.leader, self._busy, hurry=self.hurry)
        for batch in plan.expired:
            self._fail(batch, self._expired(batch))
        self._leaderless = bool(plan.homeless)
        if plan.homeless:
            self._stale.set()
        for node, batches in plan.requests.items():
            self._busy.add(node)
            self._spawn(self._send, node, batches, name=f"produce to node {node}")
        return plan.wake_at

    async def _keep_leaders(self) -> None:
        """Refresh the metadata whenever a leader turns out to be unknown or wrong, with pauses in between."""
        backoff = self._cluster.backoff()
        while True:
            await self._stale.wait()
            self._stale.clear()
            try:
                await self._cluster.refresh()
            except ClosedError as error:
                self.fail_all(error)
            except AsyncGroupError as error:
                _log.info("metadata refresh failed: %s", error)
            self.wake()
            await asyncio.sleep(backoff.next())
            if not self._leaderless:
                backoff.reset()

    # --- one request --------------------------------------------------------------------------------------------

    async def _send(self, node: int, batches: list[ProducerBatch]) -> None:
        try:
            parts = [part for batch in batches if (part := self._encode(batch)) is not None]
            if parts:
                await self._exchange(node, parts)
        finally:
            self._busy.discard(node)
            self.wake()

    def _encode(self, batch: ProducerBatch) -> Part | None:
        try:
            return Part(batch, batch.encoded())
        except AsyncGroupError as problem:
            error = problem  # a codec whose library is missing
            self._settle(batch, lambda: own_copy(error))
            return None

    async def _exchange(self, node: int, parts: list[Part]) -> None:
        try:
            answers = await self._ask(node, parts)
        except (UnsupportedVersionError, ClosedError) as problem:
            final: Exception = problem
            for part in parts:
                self._settle(part.batch, lambda: own_copy(final))
        except AsyncGroupError as problem:
            self._stale.set()
            for part in parts:
                self._retry(part.batch, problem)
        except Exception as problem:  # noqa: BLE001  the records must not wait for ever on a bug
            _log.exception("a Produce request to node %s failed in an unforeseen way", node)
            final = problem
            for part in parts:
                self._settle(part.batch, lambda: own_copy(final))
        else:
            for part in parts:
                self._answered(node, part.batch, answers.get(part.batch.tp))

    async def _ask(self, node: int, parts: list[Part]) -> dict[TopicPartition, Answer]:
        ids = topic_ids(parts, self._cluster.view)

        def build(_: int) -> m.ProduceRequest:
            return build_request(parts, ids, self._acks, self._config.request_timeout)

        highest = newest_version(ids)
        if self._acks == 0:
            await self._cluster.post(node, m.ProduceRequest, build, lane=LANE, highest=highest)
            return {part.batch.tp: Answer(part.batch.tp.partition, base_offset=-1) for part in parts}
        response = await self._cluster.request_built(
            node, m.ProduceRequest, build, lane=LANE, highest=highest
        )
        answers = match_response(response, ids)
        for tp, answer in answers.items():
            leader = answer.current_leader
            if leader.leader_id >= 0:
                self._cluster.hint_leader(tp, leader.leader_id, leader.leader_epoch, endpoints(response))
        return answers

    # --- what becomes of a batch --------------------------------------------------------------------------------

    def _answered(self, node: int, batch: ProducerBatch, answer: Answer | None) -> None:
        if answer is None:
            self._retry(batch, ProtocolError(f"node {node} left {batch.tp} out of its response"))
            return
        action = action_for(answer.error_code)
        if action is Action.DONE:
            self._settle(batch, None, answer)
            return
        what, code, detail = f"{batch.count} records for {batch.tp}", answer.error_code, _detail(answer)
        if action is Action.FAIL:
            self._settle(batch, lambda: BrokerError(code, what, detail))
            return
        at_once = False
        if action is Action.REFRESH:
            # where the response named the new leader, there is nothing to wait for (KIP-951)
            at_once = self._cluster.view.leader(batch.tp) not in (node, -1)
            self._stale.set()
        self._retry(batch, BrokerError(code, what, detail), at_once=at_once)

    def _retry(self, batch: ProducerBatch, error: Exception, *, at_once: bool = False) -> None:
        batch.last_error = error
        now = asyncio.get_running_loop().time()
        if batch.tp not in self._backoffs:
            self._backoffs[batch.tp] = self._cluster.backoff()
        pause = self._backoffs[batch.tp].next()
        _log.debug("%s: try %d failed: %s", batch.tp, batch.attempts, error)
        self._accumulator.retry(batch, now if at_once else now + pause)

    def _settle(
        self, batch: ProducerBatch, make_error: MakeError | None, answer: Answer | None = None
    ) -> None:
        """A batch that was under way has its final answer."""
        self._backoffs.pop(batch.tp, None)
        self._accumulator.settle(batch)
        if make_error is not None:
            self._fail(batch, make_error)
        elif answer is not None and self._accumulator.end(batch):
            batch.succeed(answer.base_offset, answer.log_append_time_ms)
            self._on_end(batch, None)

    def _fail(self, batch: ProducerBatch, make_error: MakeError) -> None:
        if self._accumulator.end(batch):
            batch.fail(make_error)
            self._on_end(batch, make_error())

    def fail_all(self, error: Exception) -> None:
        """Give up every batch, under way or not."""
        self._accumulator.close_open()
        for batch in list(self._accumulator.incomplete):
            self._fail(batch, lambda: own_copy(error))

    def _expired(self, batch: ProducerBatch) -> MakeError:
        reason = batch.last_error or "its leader has not answered yet"
        if batch.last_error is None and self._cluster.view.leader(batch.tp) < 0:
            reason = "its leader is unknown"
        text = (
            f"{batch.count} records for {batch.tp}: not acknowledged within delivery_timeout="
            f"{self._config.delivery_timeout:g} s, {batch.attempts} tries: {reason}"
        )

        def make_error() -> RequestTimedOut:
            error = RequestTimedOut(text)
            error.__cause__ = batch.last_error
            return error

        return make_error


def _detail(answer: Answer) -> str | None:
    """What a broker says about the records that it refuses (KIP-467)."""
    said = [answer.error_message] if answer.error_message else []
    said += [f"record {bad.batch_index}: {bad.batch_index_error_message}" for bad in answer.record_errors]
    return "; ".join(said) or None
