"""TopicDiscovery: the topics of a consumer by a pattern, as they are created and deleted (Java's `PatternMultiTopicsConsumerImpl`).

The broker's list has topics without partitions and partitions, each of which is consumed for itself: a new partition is a new name.
A broker that watches the topics sends what changes. The list is asked for again when a watch begins, since topics may have come
and gone before, and when its hash differs from that of the names that are known; without a watch from time to time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Iterator
from typing import Protocol

from asyncgroup.errors import AsyncGroupError, ConfigError
from asyncgroup.escaping import escaping_logger
from asyncgroup.lifecycle import copy_error
from asyncgroup.pulsar.consumer.topics.topic_list_watcher import TopicListWatcher
from asyncgroup.pulsar.consumer.topics_pattern import TopicsPattern
from asyncgroup.pulsar.core import ClientCore
from asyncgroup.pulsar.errors import PulsarServerError, Refusal
from asyncgroup.pulsar.wire.commands import CommandWatchTopicUpdate
from asyncgroup.pulsar.wire.server_errors import ServerError
from asyncgroup.pulsar.wire.topic_name import TopicName, topics_hash

__all__ = ["PatternMembers", "TopicDiscovery"]

_log = escaping_logger("asyncgroup.pulsar")


class PatternMembers(Protocol):
    """The topics without partitions, and the partitions, that are consumed."""

    def names(self) -> Collection[TopicName]:
        """Return those that have a consumer."""
        ...

    def start(self, core: ClientCore, names: Iterable[TopicName], *, is_new: bool) -> None:
        """Consume some, of which others may have a consumer; `is_new`: they were not in the first list.

        What ends them is given to `TopicDiscovery.on_end`.
        """
        ...

    async def wait(self, names: Iterable[TopicName]) -> None:
        """Wait until each of them was registered at its broker or has failed."""
        ...

    async def remove(self, names: Iterable[TopicName]) -> None:
        """Consume some no longer: they were deleted, or have ended."""
        ...


class TopicDiscovery:
    """Topics that match a pattern. One that cannot be consumed stops no other; it is tried again with the next list.

    `period` is the time between lists without a watch; 0 for never.
    """

    def __init__(self, pattern: TopicsPattern, members: PatternMembers, period: float) -> None:
        self._pattern = pattern
        self._members = members
        self._period = period
        self._text = pattern.broker_text
        self._listed: set[str] = set()  # the broker's list, as far as it is known
        self._wanted: set[TopicName] = set()  # those of it that match
        self._hash: str | None = None  # the broker's, of its last list
        self._updated_hash: str | None = None  # that of the last update, until it was compared
        self._ended: set[TopicName] = set()  # what a broker has ended
        self._is_due = False  # a list
        self._changed = asyncio.Event()
        self._watcher: TopicListWatcher | None = None
        self.errors: dict[str, Exception] = {}
        """Why topics are not consumed, and under the pattern why there is no list."""

    def __repr__(self) -> str:
        return f"<TopicDiscovery {self._pattern}: {len(self._listed)} listed, {len(self.errors)} errors>"

    async def open(self, core: ClientCore) -> bool:
        """Subscribe to those that there are. Raises if none of them can be consumed."""
        names = await self.find(core)
        await self._members.wait(names)
        if names and len(self._ended) == len(names) and self.errors:
            raise copy_error(next(iter(self.errors.values())))
        return True

    async def find(self, core: ClientCore) -> list[TopicName]:
        """Begin to consume those that there are, and return them. Raises PulsarServerError, TransportError."""
        await self._list(core)
        names = sorted(self._wanted)
        self._members.start(core, names, is_new=False)
        return names

    async def watch(self, core: ClientCore, name: str) -> None:
        """Consume topics that are created, from their first message on, and leave those that are deleted."""
        watcher = self._watcher
        if self._pattern.is_watchable and self._text is not None:
            watcher = self._watcher = TopicListWatcher(
                core, self._pattern.namespace, self._text, self._list_is_due, self._on_update
            )
            watcher.start()
        try:
            while True:
                await self._wait()
                await self._update(core, name)
        finally:
            if watcher is not None:
                await watcher.aclose()

    async def _wait(self) -> None:
        """Wait for a change; without a watch, and to try again what has failed, for `period` at most."""
        is_watched = self._watcher is not None and self._watcher.is_attached and not self.errors
        try:
            async with asyncio.timeout(None if is_watched else self._period or None):
                await self._changed.wait()
        except TimeoutError:
            self._is_due = True
        self._changed.clear()

    async def _update(self, core: ClientCore, name: str) -> None:
        ended, self._ended = self._ended, set()
        if self._updated_hash is not None:
            self._compare()
        if self._is_due:
            self._is_due = False
            try:
                await self._list(core)
                self.errors.clear()  # what has failed is tried again
            except AsyncGroupError as error:
                self.errors[str(self._pattern)] = error
                _log.warning("%s: no list of topics, it is asked for again: %s", name, error)
        self.errors = {
            key: error
            for key, error in self.errors.items()
            if key in self._listed or key == self._pattern.text
        }
        gone = set(self._members.names()) - self._wanted
        await self._members.remove(gone | ended)
        missing = self._wanted.difference(self._members.names())
        new = sorted(each for each in missing if str(each) not in self.errors)
        self._members.start(core, new, is_new=True)

    def _compare(self) -> None:
        """If the broker's list differs from what its updates have made of the last one, it is due."""
        self._hash, self._updated_hash = self._updated_hash, None
        if topics_hash(self._listed) != self._hash:
            self._hash, self._is_due = None, True

    # --- the list ---------------------------------------------------------------------------------------------------------

    async def _list(self, core: ClientCore) -> None:
        pattern = self._pattern
        try:
            answer = await core.lookup.topics_of(pattern.namespace, self._text, pattern.mode, self._hash)
        except PulsarServerError as error:
            if self._text is None or error.refusal is not Refusal.RAISE:
                raise
            self._text = None  # the broker does not take the pattern: it is compared here
            answer = await core.lookup.topics_of(pattern.namespace, None, pattern.mode)
        if answer.changed:
            self._listed = set(answer.topics)
            self._wanted = set(self._matching(answer.topics))
            self._hash = answer.topics_hash

    def _matching(self, names: Iterable[str]) -> Iterator[TopicName]:
        for text in names:
            try:
                name = TopicName.parse(text)
            except ConfigError:  # of an older Pulsar, with a cluster
                continue
            if self._pattern.matches(name):
                yield name

    def _list_is_due(self) -> None:
        self._is_due = True
        self._changed.set()

    def _on_update(self, update: CommandWatchTopicUpdate) -> None:
        """Topics were created or deleted."""
        deleted = set(self._matching(update.deleted_topics))
        self._ended |= deleted  # also if they are created again: their subscriptions begin again
        self._wanted -= deleted
        self._wanted.update(self._matching(update.new_topics))
        self._listed.difference_update(update.deleted_topics)
        self._listed.update(update.new_topics)
        self._updated_hash = update.topics_hash
        self._changed.set()

    # --- topics that end --------------------------------------------------------------------------------------------------

    def on_end(self, name: TopicName, error: Exception) -> None:
        """A broker has ended the consumer of a topic or partition; if it was deleted, that is no error."""
        self._ended.add(name)
        if isinstance(error, PulsarServerError) and error.code == ServerError.TOPIC_NOT_FOUND:
            self._listed.discard(str(name))
            self._wanted.discard(name)
            self._hash = None  # the next list is a complete one
            _log.info("%s: it was deleted, and is consumed no longer", name)
        else:
            self.errors[str(name)] = error
            _log.warning("%s: it is not consumed, and tried again: %s", name, error)
        self._changed.set()

    def matches(self, topic: str) -> bool:
        """Whether a topic is one of the pattern, now or once."""
        return self._pattern.matches(TopicName.parse(topic))
