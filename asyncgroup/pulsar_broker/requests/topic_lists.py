"""TopicLists: the topics of a namespace, and watchers that are sent those that are created or deleted (Pulsar's `TopicListService`)."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable
from typing import Final

from asyncgroup.broker.re2_pattern import PatternError, Re2Pattern
from asyncgroup.errors import ProtocolError
from asyncgroup.pulsar.wire import commands as c
from asyncgroup.pulsar.wire.enums import TopicsMode
from asyncgroup.pulsar.wire.server_errors import ServerError
from asyncgroup.pulsar.wire.topic_name import TopicName, topics_hash
from asyncgroup.pulsar_broker.errors import ServerFailure
from asyncgroup.pulsar_broker.requests.services import ConnectedClient, NodeServices

__all__ = ["TopicLists"]

MAX_PATTERN: Final = 50
"""Characters of a pattern that a broker uses (`subscriptionPatternMaxLength`); it lists all topics for a longer one."""

_NAMESPACE: Final = re.compile(r"[-=:.\w]+(?:/[-=:.\w]+){1,2}")  # of an older Pulsar with a cluster
_SCHEME: Final = re.compile(r"(?:non-)?persistent://")
_SYSTEM_TOPICS: Final = ("__change_events", "__transaction_buffer_snapshot", "__transaction_log_")
_SYSTEM_TOPIC_ENDS: Final = ("__transaction_pending_ack",)

Matches = Callable[[str], bool]


def check_namespace(name: str) -> None:
    """Raise ProtocolError for a text that is no name of a namespace."""
    if not _NAMESPACE.fullmatch(name):
        raise ProtocolError(f"{name!r} is no namespace")


def compile_pattern(text: str, error_code: ServerError) -> Matches:
    """Return what matches a topic's name without its scheme. Raises ServerFailure with a code for a text that is no pattern.

    As by Pulsar's `RE2J_WITH_JDK_FALLBACK`, a pattern that RE2 lacks is one of a backtracking matcher.
    """
    bare = _SCHEME.sub("", text, count=1)
    try:
        return Re2Pattern(bare).fullmatch
    except PatternError:
        pass
    try:
        pattern = re.compile(bare)
    except re.error as error:
        raise ServerFailure(error_code, f"{error} in the pattern {bare}") from None
    return lambda name: pattern.fullmatch(name) is not None


def matching(names: Iterable[TopicName], matches: Matches) -> list[str]:
    """Return those whose topic, without the number of a partition, matches a pattern."""
    return [str(name) for name in names if _is_matched(name, matches)]


def _is_matched(name: TopicName, matches: Matches) -> bool:
    whole = name.whole
    return matches(f"{whole.namespace_name}/{whole.local_name}")


def _is_system_topic(name: TopicName) -> bool:
    """Whether Pulsar's `SystemTopicNames` has it: lists leave it out."""
    local = name.whole.local_name
    return local.startswith(_SYSTEM_TOPICS) or local.endswith(_SYSTEM_TOPIC_ENDS)


class _Watch:
    """A watcher, and the names that it was sent."""

    def __init__(self, namespace: str, matches: Matches, names: list[str]) -> None:
        self.namespace = namespace
        self.matches = matches
        self.names = set(names)


class TopicLists:
    """GET_TOPICS_OF_NAMESPACE and the commands of watchers; `table` has them by type."""

    def __init__(self, node: NodeServices) -> None:
        self._namespaces = node.namespaces
        self._namespaces.on_change.append(self._changed)
        self._watches: dict[ConnectedClient, dict[int, _Watch]] = {}
        self.table: dict[type[c.Command], Callable[..., None]] = {
            c.CommandGetTopicsOfNamespace: self._list,
            c.CommandWatchTopicList: self._watch,
            c.CommandWatchTopicListClose: self._close,
        }

    def __repr__(self) -> str:
        return f"<TopicLists: {sum(map(len, self._watches.values()))} watchers>"

    def _names(self, namespace: str, mode: int) -> list[TopicName]:
        wanted = (mode in (TopicsMode.PERSISTENT, TopicsMode.ALL), mode != TopicsMode.PERSISTENT)
        return [
            name
            for name in sorted(self._namespaces.topics, key=str)
            if name.namespace_name == namespace and wanted[not name.is_persistent]
        ]

    def _list(self, connection: ConnectedClient, command: c.CommandGetTopicsOfNamespace) -> None:
        check_namespace(command.namespace)
        found = [name for name in self._names(command.namespace, command.mode) if not _is_system_topic(name)]
        pattern = command.topics_pattern
        is_filtered = pattern is not None and len(pattern) <= MAX_PATTERN
        if pattern is not None and is_filtered:
            names = matching(found, compile_pattern(pattern, ServerError.METADATA_ERROR))
        else:
            names = [str(name) for name in found]
        known = topics_hash(names)
        is_same = command.topics_hash == known
        connection.reply(
            command,
            c.CommandGetTopicsOfNamespaceResponse(
                request_id=command.request_id,
                topics=[] if is_same else names,
                filtered=is_filtered,
                topics_hash=known,
                changed=not is_same,
            ),
        )

    def _watch(self, connection: ConnectedClient, command: c.CommandWatchTopicList) -> None:
        check_namespace(command.namespace)
        if len(command.topics_pattern) > MAX_PATTERN:
            raise ServerFailure(
                ServerError.NOT_ALLOWED_ERROR,
                f"Unable to create topic list watcher: Pattern longer than maximum: {MAX_PATTERN}",
            )
        matches = compile_pattern(command.topics_pattern, ServerError.INVALID_TOPIC_NAME)
        names = matching(self._names(command.namespace, TopicsMode.PERSISTENT), matches)
        watches = self._watches.setdefault(connection, {})
        watches[command.watcher_id] = _Watch(command.namespace, matches, names)
        known = topics_hash(names)
        connection.reply(
            command,
            c.CommandWatchTopicListSuccess(
                request_id=command.request_id,
                watcher_id=command.watcher_id,
                topic=[] if command.topics_hash == known else names,
                topics_hash=known,
            ),
        )

    def _close(self, connection: ConnectedClient, command: c.CommandWatchTopicListClose) -> None:
        self._watches.get(connection, {}).pop(command.watcher_id, None)
        connection.reply(command, c.CommandSuccess(request_id=command.request_id))

    def forget(self, connection: ConnectedClient) -> None:
        """A connection has ended, and its watchers with it."""
        self._watches.pop(connection, None)

    def _changed(self, name: TopicName, exists: bool) -> None:
        """A topic or partition was created or deleted: its watchers get it, after the answer to what has caused it."""
        if self._watches and name.is_persistent:
            asyncio.get_running_loop().call_soon(self._send_update, name, exists)

    def _send_update(self, name: TopicName, exists: bool) -> None:
        text = str(name)
        for connection, watches in self._watches.items():
            for number, watch in watches.items():
                is_known = text in watch.names
                if watch.namespace != name.namespace_name or exists == is_known:
                    continue
                if not _is_matched(name, watch.matches):
                    continue
                if exists:
                    watch.names.add(text)
                else:
                    watch.names.discard(text)
                connection.send(
                    c.CommandWatchTopicUpdate(
                        watcher_id=number,
                        new_topics=[text] if exists else [],
                        deleted_topics=[] if exists else [text],
                        topics_hash=topics_hash(watch.names),
                    )
                )
