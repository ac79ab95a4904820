"""PulsarTableView: the newest value of each key of a topic, kept in memory (Java's `TableView`)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
from dataclasses import replace
from types import TracebackType
from typing import Generic, Self, TypeVar
from uuid import uuid4
from weakref import WeakSet

from asyncgroup.checks import wrong_type
from asyncgroup.errors import AsyncGroupError, ClosedError, UsageError
from asyncgroup.escaping import escaping_logger, printable
from asyncgroup.lifecycle import BackgroundTasks, copy_error
from asyncgroup.net.backoff import RetryLoop
from asyncgroup.pulsar.consumer.config import PulsarConsumerConfig, SubscriptionType
from asyncgroup.pulsar.consumer.partition.backlog import end_of_backlog
from asyncgroup.pulsar.consumer.partition.pulsar_consumer import PulsarConsumer
from asyncgroup.pulsar.consumer.pulsar_message import PulsarMessage
from asyncgroup.pulsar.consumer.topic_consumer import PulsarTopicConsumer
from asyncgroup.pulsar.consumer.topics.partition_calls import call_each
from asyncgroup.pulsar.core import ClientCore
from asyncgroup.pulsar.wire.message_id import MessageId
from asyncgroup.pulsar.wire.topic_name import TopicName

__all__ = ["PulsarTableView", "TableChanges"]

V = TypeVar("V")

_log = escaping_logger("asyncgroup.pulsar")


class TableChanges(Generic[V]):
    """The keys of a view that change, an asynchronous iterator; made by `PulsarTableView.changes`.

    A key that changes several times before it is taken comes once, with its newest value; None is one that was deleted.
    """

    def __init__(self, changed: Mapping[str, V | None]) -> None:
        self._changed = dict(changed)
        self._event = asyncio.Event()
        self._end: Exception | None = None

    def __repr__(self) -> str:
        return f"<TableChanges: {len(self._changed)} keys>"

    def add(self, key: str, value: V | None) -> None:
        """A key has changed."""
        self._changed.pop(key, None)
        self._changed[key] = value
        self._event.set()

    def end(self, error: Exception) -> None:
        """The view has ended."""
        self._end = error
        self._event.set()

    def __aiter__(self) -> Self:
        """Iterate until the view is closed."""
        return self

    async def __anext__(self) -> tuple[str, V | None]:
        """Return the next key with its value. A cancelled call loses none. Raises the error that has ended the view."""
        while not self._changed:
            if isinstance(self._end, ClosedError):
                raise StopAsyncIteration
            if self._end is not None:
                raise copy_error(self._end)
            self._event.clear()
            await self._event.wait()
        key = next(iter(self._changed))
        return key, self._changed.pop(key)


class PulsarTableView(Mapping[str, V]):
    """The newest value of each key of a topic: a mapping, and an async context manager; made by `PulsarClient.table_view`.

        async with client.table_view("prices", json.loads) as prices:
            print(prices["eggs"], len(prices))
            async for key, price in prices.changes():
                ...

    It is entered when all messages of that time are read, and follows the topic from then on, with the partitions that are added.
    Of a compacted topic the compacted messages are read first. A message with an empty value, or a null value, deletes its key; one
    without a key is ignored. All keys and values are kept in memory. `keys()`, `items()` and `values()` return those of the
    moment, a copy that can be iterated over while the view changes. Keys are text; bytes that are not UTF-8 become surrogates.
    """

    def __init__(
        self,
        core: Callable[[], ClientCore],
        topic: str,
        decode: Callable[[bytes], V],
        config: PulsarConsumerConfig,
    ) -> None:
        """`core` returns what an open client shares, `decode` the value of a message's bytes."""
        if not callable(decode):
            raise wrong_type("decode", decode, "a function of bytes")
        own = replace(
            config,
            durable=False,
            initial_position="earliest",
            read_compacted=TopicName.parse(topic).is_persistent,
            start_paused=False,
        )
        name = f"reader-{uuid4().hex[:10]}"
        consumer = PulsarTopicConsumer(core, topic, name, SubscriptionType.EXCLUSIVE, own)
        self._core_of = core
        self._consumer = consumer
        self._decode = decode
        self._data: dict[str, V] = {}
        self._errors: dict[str, Exception] = {}
        self._read: dict[int, MessageId] = {}  # by partition, the last message that was applied
        self._progress = asyncio.Event()
        self._listeners: list[Callable[[str, V | None], object]] = []
        self._iterators: WeakSet[TableChanges[V]] = WeakSet()
        self._tasks = BackgroundTasks(f"table view of {consumer.topic}", self._finish)
        self._end: Exception | None = UsageError(f"{self._tasks.name}: it is not open: `async with`")

    def __repr__(self) -> str:
        return f"<PulsarTableView {printable(str(self._consumer.topic))}: {len(self._data)} keys>"

    # --- life -----------------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        """Read all messages that there are. Raises PulsarServerError, TransportError, AuthenticationError."""
        await self._consumer.__aenter__()
        self._end = None
        try:
            await self._tasks.start()
            self._tasks.spawn(self._follow)
            await self.refresh()
        except BaseException:
            await self.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""
        await self.aclose()

    async def aclose(self) -> None:
        """Follow the topic no longer; what was read stays. Safe to call twice."""
        self._finish(ClosedError(f"{self._tasks.name}: it is closed"))
        try:
            await self._tasks.stop()
        finally:
            await self._consumer.aclose()

    def _finish(self, error: Exception) -> None:
        if self._end is None or isinstance(self._end, UsageError):
            self._end = error
        self._progress.set()
        for each in self._iterators:
            each.end(self._end)

    @property
    def topic(self) -> str:
        """The name of the topic."""
        return str(self._consumer.topic)

    @property
    def error(self) -> Exception | None:
        """Why the view follows its topic no longer; None while it does."""
        return self._end

    def errors(self) -> dict[str, Exception]:
        """Return the keys whose newest value cannot be decoded, which the mapping does not have, with the errors."""
        return dict(self._errors)

    # --- messages -------------------------------------------------------------------------------------------------------

    async def _follow(self) -> None:
        try:
            while True:
                messages = await self._consumer.receive_batch(1000, max_wait=0)
                for message in messages:
                    self._apply(message)
                    self._read[message.partition] = message.message_id
                self._consumer.ack_read(messages)
                self._progress.set()
        except AsyncGroupError as error:
            if not isinstance(error, ClosedError):
                _log.error("%s: it follows the topic no longer: %s", self._tasks.name, error)
            self._finish(error)

    def _apply(self, message: PulsarMessage) -> None:
        if message.key is None:
            return
        key = message.key.decode("utf-8", "surrogateescape")
        value: V | None = None
        self._errors.pop(key, None)
        if payload := message.value:
            try:
                value = self._data[key] = self._decode(payload)
            except Exception as error:  # noqa: BLE001  of a function of the user
                _log.warning("%s: the value of key %s cannot be decoded: %r", self._tasks.name, key, error)
                self._errors[key] = error
                self._data.pop(key, None)
        else:
            self._data.pop(key, None)
        for each in self._iterators:
            each.add(key, value)
        for listener in list(self._listeners):
            self._call(listener, key, value)

    def _call(self, action: Callable[[str, V | None], object], key: str, value: V | None) -> None:
        try:
            action(key, value)
        except Exception:  # noqa: BLE001  its error must not end the view
            _log.exception("%s: a listener failed", self._tasks.name)

    async def refresh(self) -> None:
        """Return when all messages are read that the topic has now. Raises what has ended the view, and as `receive` does."""
        self._check_open()
        if not self._consumer.topic.is_persistent:
            return  # nothing of before is delivered
        ends = await self._ends(self._consumer.partitions)
        retry = RetryLoop(self._core_of().new_backoff())
        while ends := {number: last for number, last in ends.items() if not self._has_read(number, last)}:
            self._progress.clear()
            if await retry.wait(self._progress):
                retry.reset()
            else:  # messages may be gone, or not be delivered
                behind = [each for each in self._consumer.partitions if each.partition in ends]
                still = await self._ends(behind)
                ends = {number: last for number, last in ends.items() if number in still}
            self._check_open()

    async def _ends(self, consumers: Iterable[PulsarConsumer]) -> dict[int, MessageId]:
        """Return the last messages of partitions, of those that have any that were not read."""
        try:
            found = await call_each(end_of_backlog, consumers, lambda: False)
        except AsyncGroupError:
            self._check_open()
            raise
        return {each.partition: last for each, last in found.items() if last is not None}

    def _check_open(self) -> None:
        if self._end is not None:
            raise copy_error(self._end)

    def _has_read(self, number: int, last: MessageId) -> bool:
        """Whether a partition was read up to a message; the last one of its batch may be compacted."""
        read = self._read.get(number)
        if read is None or read[:2] < last[:2]:
            return False
        return read >= last or not _of(self._consumer, number).queued

    # --- the mapping ----------------------------------------------------------------------------------------------------

    def __getitem__(self, key: str) -> V:
        """Return the value of a key. Raises KeyError."""
        return self._data[key]

    def __iter__(self) -> Iterator[str]:
        """Iterate over a copy of the keys."""
        return iter(list(self._data))

    def __len__(self) -> int:
        return len(self._data)

    def __contains__(self, key: object) -> bool:
        return key in self._data

    def keys(self) -> KeysView[str]:
        """Return the keys of this moment, a copy."""
        return self._data.copy().keys()

    def items(self) -> ItemsView[str, V]:
        """Return the keys with their values of this moment, a copy."""
        return self._data.copy().items()

    def values(self) -> ValuesView[V]:
        """Return the values of this moment, a copy."""
        return self._data.copy().values()

    # --- changes --------------------------------------------------------------------------------------------------------

    def changes(self, *, with_current: bool = False) -> TableChanges[V]:
        """Return an asynchronous iterator over the keys that change from now on, with their values; None is a deleted one.

        `with_current`: begin with all keys that there are.
        """
        self._check_open()
        found: TableChanges[V] = TableChanges(self._data if with_current else {})
        self._iterators.add(found)
        return found

    def listen(self, action: Callable[[str, V | None], object]) -> Callable[[], None]:
        """Have `action(key, value)` called for each change from now on, None for a deleted key; return what ends that.

        It is called in the event loop and must not wait; what it raises is logged.
        """
        if not callable(action):
            raise wrong_type("action", action, "a function of a key and a value")
        self._listeners.append(action)
        return lambda: self._listeners.remove(action) if action in self._listeners else None

    def for_each_and_listen(self, action: Callable[[str, V | None], object]) -> Callable[[], None]:
        """Call `action` for each key that there is, then as `listen` for each change: none is missed between."""
        stop = self.listen(action)
        for key, value in list(self._data.items()):
            self._call(action, key, value)
        return stop


def _of(consumer: PulsarTopicConsumer, number: int) -> PulsarConsumer:
    return next(each for each in consumer.partitions if each.partition == number)
