"""Offsets of consumer groups in a transaction: AddOffsetsToTxn (version 1) and TxnOffsetCommit."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from asyncgroup.errors import AsyncGroupError, BrokerError, ClosedError, CommitFailedError
from asyncgroup.lifecycle import copy_error, mark_retrieved, start_task
from asyncgroup.model import GroupOffsets
from asyncgroup.producer.transactions.coordinator import Answer, TransactionCoordinatorClient
from asyncgroup.producer.transactions.ending import is_stopped
from asyncgroup.producer.transactions.requests import TransactionAction
from asyncgroup.producer.transactions.state import TransactionManager, TransactionPhase

__all__ = ["TransactionOffsets"]


class TransactionOffsets:
    """Commits of offsets with the open transaction; each is a task, so that a cancelled caller leaves none half done.

    `lock` is held during a request; `goes_on(answer)` says whether it is repeated. `on_failed(answer)` is called if it has
    failed, and returns the error.
    """

    def __init__(
        self,
        coordinator: TransactionCoordinatorClient,
        manager: TransactionManager,
        lock: asyncio.Lock,
        goes_on: Callable[[Answer], bool],
        on_failed: Callable[[Answer], Awaitable[AsyncGroupError]],
    ) -> None:
        self._coordinator = coordinator
        self._manager = manager
        self._lock = lock
        self._goes_on = goes_on
        self._on_failed = on_failed
        self.tasks: set[asyncio.Task[None]] = set()
        """The commits under way."""

    def __repr__(self) -> str:
        return f"<TransactionOffsets: {len(self.tasks)} commits under way>"

    async def send(self, group: GroupOffsets) -> None:
        """Commit offsets of a group with the transaction. They are also committed if the caller is cancelled."""
        self._manager.check_open("send_offsets")
        if not group.offsets:
            return
        task = start_task(self._send(group), name="Producer: send offsets")
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        task.add_done_callback(mark_retrieved)
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            if is_stopped(task):
                raise ClosedError(
                    f"the producer was closed before group {group.group_id!r} had the offsets"
                ) from None
            raise

    async def wait(self) -> None:
        """Wait until no commit is under way."""
        if self.tasks:
            await asyncio.wait(self.tasks)

    async def _send(self, group: GroupOffsets) -> None:
        manager, coordinator = self._manager, self._coordinator
        async with self._lock:
            if manager.state is TransactionPhase.FATAL_ERROR:
                raise manager.refusal()
            if not manager.may_add:
                raise manager.aborted_error()
            if manager.is_v2:
                manager.on_group_added()  # the request adds it, even if its response is lost
            else:
                answer = await coordinator.add_offsets(manager.producer, group.group_id, self._goes_on)
                if answer.error is not None:
                    raise copy_error(await self._on_failed(answer))
                manager.on_group_added()
            left = dict(group.offsets)
            answer, codes = await coordinator.commit_offsets(
                manager.producer, group, left, lambda _: manager.may_add, is_v2=manager.is_v2
            )
            if answer.error is None:
                return
            if codes and answer.action < TransactionAction.FATAL:
                what = f"group {group.group_id!r}"
                errors = {tp: BrokerError(code, f"{what}, {tp}") for tp, code in codes.items()}
                answer = answer._replace(error=CommitFailedError(group.group_id, errors))
            raise copy_error(await self._on_failed(answer))
