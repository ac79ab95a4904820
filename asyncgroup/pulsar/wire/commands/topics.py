"""Commands for topics: the broker of one, the number of its partitions, the topics of a namespace, moves to another cluster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from asyncgroup.pulsar.wire.commands.command import Command
from asyncgroup.pulsar.wire.fields import BOOL, INT32, STRING, UINT32, UINT64, Field

__all__ = [
    "CommandGetTopicsOfNamespace",
    "CommandGetTopicsOfNamespaceResponse",
    "CommandLookupTopic",
    "CommandLookupTopicResponse",
    "CommandPartitionedTopicMetadata",
    "CommandPartitionedTopicMetadataResponse",
    "CommandTopicMigrated",
    "CommandWatchTopicList",
    "CommandWatchTopicListClose",
    "CommandWatchTopicListSuccess",
    "CommandWatchTopicUpdate",
]


@dataclass(slots=True, kw_only=True)
class CommandLookupTopic(Command):
    """Asks for the broker of a topic; it also makes that broker load the topic."""

    TYPE: ClassVar = 23
    topic: Annotated[str, Field(1, STRING)]
    request_id: Annotated[int, Field(2, UINT64)]
    authoritative: Annotated[bool, Field(3, BOOL)] = False
    advertised_listener_name: Annotated[str | None, Field(7, STRING)] = None


@dataclass(slots=True, kw_only=True)
class CommandLookupTopicResponse(Command):
    """A broker to connect to (`response` 1), or to ask next (0), or an error (2)."""

    TYPE: ClassVar = 24
    broker_service_url: Annotated[str | None, Field(1, STRING)] = None
    broker_service_url_tls: Annotated[str | None, Field(2, STRING)] = None
    response: Annotated[int | None, Field(3, INT32)] = None
    request_id: Annotated[int, Field(4, UINT64)]
    authoritative: Annotated[bool, Field(5, BOOL)] = False
    error: Annotated[int | None, Field(6, INT32)] = None
    message: Annotated[str | None, Field(7, STRING)] = None
    proxy_through_service_url: Annotated[bool, Field(8, BOOL)] = False


@dataclass(slots=True, kw_only=True)
class CommandPartitionedTopicMetadata(Command):
    """Asks for the number of a topic's partitions."""

    TYPE: ClassVar = 21
    topic: Annotated[str, Field(1, STRING)]
    request_id: Annotated[int, Field(2, UINT64)]
    metadata_auto_creation_enabled: Annotated[bool, Field(6, BOOL)] = True


@dataclass(slots=True, kw_only=True)
class CommandPartitionedTopicMetadataResponse(Command):
    """The number of partitions, 0 for a topic without; `response` is 1 for an error."""

    TYPE: ClassVar = 22
    partitions: Annotated[int | None, Field(1, UINT32)] = None
    request_id: Annotated[int, Field(2, UINT64)]
    response: Annotated[int | None, Field(3, INT32)] = None
    error: Annotated[int | None, Field(4, INT32)] = None
    message: Annotated[str | None, Field(5, STRING)] = None


@dataclass(slots=True, kw_only=True)
class CommandGetTopicsOfNamespace(Command):
    """Asks for the topics of a namespace, which match a pattern."""

    TYPE: ClassVar = 32
    request_id: Annotated[int, Field(1, UINT64)]
    namespace: Annotated[str, Field(2, STRING)]
    mode: Annotated[int, Field(3, INT32)] = 0
    topics_pattern: Annotated[str | None, Field(4, STRING)] = None
    topics_hash: Annotated[str | None, Field(5, STRING)] = None


@dataclass(slots=True, kw_only=True)
class CommandGetTopicsOfNamespaceResponse(Command):
    """The topics, unless `changed` is False: then the hash of the request is still right."""

    TYPE: ClassVar = 33
    request_id: Annotated[int, Field(1, UINT64)]
    topics: Annotated[Sequence[str], Field(2, STRING, repeated=True)] = ()
    filtered: Annotated[bool, Field(3, BOOL)] = False
    topics_hash: Annotated[str | None, Field(4, STRING)] = None
    changed: Annotated[bool, Field(5, BOOL)] = True


@dataclass(slots=True, kw_only=True)
class CommandWatchTopicList(Command):
    """Asks for news of the topics of a namespace that match a pattern (PIP-145)."""

    TYPE: ClassVar = 64
    request_id: Annotated[int, Field(1, UINT64)]
    watcher_id: Annotated[int, Field(2, UINT64)]
    namespace: Annotated[str, Field(3, STRING)]
    topics_pattern: Annotated[str, Field(4, STRING)]
    topics_hash: Annotated[str | None, Field(5, STRING)] = None


@dataclass(slots=True, kw_only=True)
class CommandWatchTopicListSuccess(Command):
    """The topics at the beginning of a watch."""

    TYPE: ClassVar = 65
    request_id: Annotated[int, Field(1, UINT64)]
    watcher_id: Annotated[int, Field(2, UINT64)]
    topic: Annotated[Sequence[str], Field(3, STRING, repeated=True)] = ()
    topics_hash: Annotated[str, Field(4, STRING)]


@dataclass(slots=True, kw_only=True)
class CommandWatchTopicUpdate(Command):
    """Topics that were created or deleted since the last news."""

    TYPE: ClassVar = 66
    watcher_id: Annotated[int, Field(1, UINT64)]
    new_topics: Annotated[Sequence[str], Field(2, STRING, repeated=True)] = ()
    deleted_topics: Annotated[Sequence[str], Field(3, STRING, repeated=True)] = ()
    topics_hash: Annotated[str, Field(4, STRING)]


@dataclass(slots=True, kw_only=True)
class CommandWatchTopicListClose(Command):
    """Ends a watch."""

    TYPE: ClassVar = 67
    request_id: Annotated[int, Field(1, UINT64)]
    watcher_id: Annotated[int, Field(2, UINT64)]


@dataclass(slots=True, kw_only=True)
class CommandTopicMigrated(Command):
    """The topic of a producer (`resource_type` 0) or consumer (1) has moved to another cluster (PIP-188)."""

    TYPE: ClassVar = 68
    resource_id: Annotated[int, Field(1, UINT64)]
    resource_type: Annotated[int, Field(2, INT32)]
    broker_service_url: Annotated[str | None, Field(3, STRING)] = None
    broker_service_url_tls: Annotated[str | None, Field(4, STRING)] = None
