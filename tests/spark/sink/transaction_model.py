"""A model of Kafka's transactions for the transactional sink, and of a Spark that runs batches and dies.

Each request is a turn: a random one of the waiting requests is processed next. Processes die at a turn, before the
request or after it and before its response. Rows are numbers.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from asyncgroup.errors import AsyncGroupError
from asyncgroup.spark.sink.transactions.decisions import SlotResult
from asyncgroup.spark.sink.transactions.errors import TransactionalSinkError
from asyncgroup.spark.sink.transactions.records import (
    BatchRecord,
    QueryBatch,
    SlotTransaction,
    decode_record,
    encode_record,
)
from asyncgroup.spark.sink.transactions.steps import abort_batch, commit_batch, open_slot

__all__ = ["Fenced", "Model", "Query", "Turns"]


TURNS = 20_000
"""The most turns of a query; one with a dozen faults takes about a tenth of them."""


class Fenced(AsyncGroupError):
    """The producer's epoch is not the current one, or a transaction must end first."""


class Turns:
    """Lets one waiting request at a time continue, at random; kills processes."""

    def __init__(self, rng: random.Random, faults: int) -> None:
        self.rng = rng
        self.faults = faults
        """The number of deaths, timeouts and second attempts that are left."""
        self._waiting: list[tuple[Process, asyncio.Future[None]]] = []

    def fault(self, chance: float) -> bool:
        """Return whether one of the remaining faults happens now."""
        happens = self.faults > 0 and self.rng.random() < chance
        self.faults -= happens
        return happens

    async def wait(self, process: Process) -> None:
        if process.dead:
            raise asyncio.CancelledError
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((process, turn))
        await turn

    async def run_until(self, task: asyncio.Task[Any], on_turn: Callable[[], None]) -> None:
        """Give turns until the task is done. Raises AssertionError after too many."""
        for _ in range(TURNS):
            if task.done():
                return
            for _ in range(3):  # tasks that were woken reach their next request
                await asyncio.sleep(0)
            self._waiting = [each for each in self._waiting if not each[1].done()]
            if not self._waiting or task.done():
                continue
            on_turn()
            process, turn = self._waiting.pop(self.rng.randrange(len(self._waiting)))
            if turn.done():
                continue
            if self.fault(process.mortality):
                process.kill()
            if not turn.done():
                turn.set_result(None)
        raise AssertionError("the query does not end")


class Process:
    """Coroutines that die together."""

    def __init__(self, turns: Turns, mortality: float) -> None:
        self.turns = turns
        self.mortality = mortality
        """The probability of dying at a turn."""
        self.dead = False
        self.tasks: list[asyncio.Task[Any]] = []

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.create_task(work)
        task.add_done_callback(
            lambda done: done.cancelled() or done.exception()
        )  # also if nothing waits for it
        self.tasks.append(task)
        return task

    def kill(self) -> None:
        self.dead = True
        for task in self.tasks:
            task.cancel()


@dataclass
class Slot:
    """What the transaction coordinator and the group coordinator know of one transactional id."""

    epoch: int = 0
    rows: list[int] | None = None
    """Rows of the open transaction; None: no transaction is open."""
    pending: QueryBatch | None = None
    committed: QueryBatch | None = None
    ended: tuple[int, bool] | None = None
    """Epoch and outcome of the last transaction, while no producer was initialized since."""


class Model:
    """The cluster."""

    def __init__(self) -> None:
        self.slots: dict[int, Slot] = {}
        self.record: tuple[str, int, str] | None = None
        self.log: list[int] = []
        """Rows of committed transactions."""

    def slot(self, number: int) -> Slot:
        return self.slots.setdefault(number, Slot())

    def end_open(self, number: int, *, commit: bool) -> None:
        slot = self.slot(number)
        assert slot.rows is not None
        if commit:
            self.log += slot.rows
            slot.committed = slot.pending or slot.committed
        slot.ended = (slot.epoch, commit)
        slot.epoch, slot.rows, slot.pending = slot.epoch + 1, None, None

    def init(self, number: int) -> int:
        slot = self.slot(number)
        if slot.rows is not None:
            self.end_open(number, commit=False)
        slot.epoch, slot.ended = slot.epoch + 1, None
        return slot.epoch

    def write(self, number: int, epoch: int, row: int) -> None:
        slot = self.slot(number)
        if slot.epoch != epoch:
            raise Fenced(f"slot {number}")
        slot.rows = [*(slot.rows or []), row]

    def expire(self, rng: random.Random) -> None:
        """Abort an open transaction, as its timeout does."""
        if open_ones := [number for number, slot in self.slots.items() if slot.rows is not None]:
            self.end_open(rng.choice(open_ones), commit=False)


class ModelClient:
    """A `SinkTransactions` of one process."""

    prefix = "p"

    def __init__(self, model: Model, process: Process) -> None:
        self._model = model
        self._process = process

    async def _turn(self) -> None:
        await self._process.turns.wait(self._process)

    async def read_record(self) -> BatchRecord | None:
        await self._turn()
        stored = self._model.record
        await self._turn()
        return None if stored is None else decode_record(*stored)

    async def store_record(self, record: BatchRecord) -> None:
        await self._turn()
        self._model.record = (record.topic, record.number, encode_record(record))
        await self._turn()

    async def has_committed(self, slot: int, batch: QueryBatch) -> bool:
        await self._turn()
        if self._model.slot(slot).pending is not None:
            raise Fenced(f"the offsets of slot {slot} are not stable")
        found = self._model.slot(slot).committed
        await self._turn()
        return found == batch

    async def end(self, transaction: SlotTransaction, *, commit: bool) -> bool:
        await self._turn()
        slot = self._model.slot(transaction.slot)
        was_open = slot.rows is not None and slot.epoch == transaction.producer_epoch
        if was_open:
            self._model.end_open(transaction.slot, commit=commit)
        done = was_open or slot.ended == (transaction.producer_epoch, commit)
        await self._turn()
        return done

    async def slots_not_open(self, transactions: Sequence[SlotTransaction]) -> list[int]:
        await self._turn()
        slots = ((each, self._model.slot(each.slot)) for each in transactions)
        return [each.slot for each, slot in slots if slot.rows is None or slot.epoch != each.producer_epoch]

    async def open_slots(self) -> list[int]:
        await self._turn()
        return [number for number, slot in self._model.slots.items() if slot.rows is not None]

    async def abort_slot(self, slot: int) -> None:
        await self._turn()
        self._model.init(slot)

    async def write_slot(self, batch: QueryBatch, slot: int, rows: Iterable[int]) -> SlotResult:
        """Do what a task does."""

        async def init() -> int:
            await self._turn()
            return self._model.init(slot)

        listed = list(rows)
        epoch, committed = await open_slot(self, batch, slot, init)
        if committed or not listed:
            return SlotResult(len(listed), None, committed)
        for row in listed:
            await self._turn()
            self._model.write(slot, epoch, row)
        await self._turn()
        if self._model.slot(slot).epoch != epoch:
            raise Fenced(f"slot {slot}")
        self._model.slot(slot).pending = batch
        await self._turn()
        return SlotResult(len(listed), SlotTransaction(slot, 1000 + slot, epoch, 2))


Batches = Callable[[int, int], Sequence[Sequence[int]]]
"""The rows of each slot, by batch and attempt."""


@dataclass
class Query:
    """A query with a checkpoint: its driver runs batches, dies, and is started again."""

    model: Model
    turns: Turns
    batches: Batches
    query_id: str = "q"
    last: int = 3
    done: int = 0
    """The commit log: the batches below this are finished."""
    attempts: dict[int, int] = field(default_factory=dict)
    refused: TransactionalSinkError | None = None
    deaths: int = 0
    second_attempts: float = 0.05
    """The probability that a task is started twice."""
    are_executors_killed: bool = False
    """Whether a driver's executors die with it."""
    executors: list[Process] = field(default_factory=list)

    async def run(self) -> None:
        """Run until all batches are finished, or one is refused because its plan is not deterministic."""
        while self.done < self.last and self.refused is None:
            driver = Process(self.turns, mortality=0.02)
            try:
                await driver.spawn(self._drive(driver))
            except asyncio.CancelledError:
                if not driver.dead:
                    raise
                self.deaths += 1
                for executor in self.executors if self.are_executors_killed else ():
                    executor.kill()
            except TransactionalSinkError as error:
                if "deterministic" in str(error):
                    self.refused = error
            except AsyncGroupError:
                pass

    async def _drive(self, driver: Process) -> None:
        while self.done < self.last:
            attempt = self.attempts[self.done] = self.attempts.get(self.done, -1) + 1
            slots = self.batches(self.done, attempt)
            await self._batch(driver, QueryBatch(self.query_id, self.done), slots)
            self.done += 1

    async def _batch(self, driver: Process, batch: QueryBatch, slots: Sequence[Sequence[int]]) -> None:
        client = ModelClient(self.model, driver)
        results: list[SlotResult | None] = [None] * len(slots)
        try:
            running = [self._slot(batch, slot, rows, results) for slot, rows in enumerate(slots)]
            await asyncio.gather(*running)
            topic = "t" if any(result and result.transaction for result in results) else None
            await commit_batch(client, batch, [result for result in results if result], topic)
        except AsyncGroupError as error:
            known = batch if any(results) else None
            await abort_batch(client, results, known)
            raise error

    async def _slot(
        self, batch: QueryBatch, slot: int, rows: Sequence[int], results: list[SlotResult | None]
    ) -> None:
        """Run a task, up to four times; the attempts run in separate processes and survive the driver."""
        for _ in range(4):
            tasks = [self._attempt(batch, slot, rows)]
            if self.turns.fault(self.second_attempts):
                tasks.append(self._attempt(batch, slot, rows))  # speculation
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            first = done.pop()
            if not first.cancelled() and first.exception() is None:
                results[slot] = first.result()
                return
        raise Fenced(f"task {slot} failed four times")

    def _attempt(self, batch: QueryBatch, slot: int, rows: Sequence[int]) -> asyncio.Task[SlotResult]:
        executor = Process(self.turns, mortality=0.01)
        self.executors.append(executor)
        return executor.spawn(ModelClient(self.model, executor).write_slot(batch, slot, rows))
