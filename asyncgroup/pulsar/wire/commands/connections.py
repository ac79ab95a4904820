"""Commands of a connection: the handshake, credentials, pings, and the answers that fit every request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Final

from asyncgroup.pulsar.wire.commands.command import Command
from asyncgroup.pulsar.wire.fields import BOOL, BYTES, INT32, MESSAGE, STRING, UINT64, Field
from asyncgroup.pulsar.wire.message import ProtoMessage

__all__ = [
    "PROTOCOL_VERSION",
    "AuthData",
    "CommandAuthChallenge",
    "CommandAuthResponse",
    "CommandConnect",
    "CommandConnected",
    "CommandError",
    "CommandPing",
    "CommandPong",
    "CommandSuccess",
    "FeatureFlags",
]

PROTOCOL_VERSION: Final = 21
"""The version that this client asks for; a broker answers with the smaller of both."""


@dataclass(slots=True, kw_only=True)
class FeatureFlags(ProtoMessage):
    """What a client or a broker understands beyond its protocol version."""

    supports_auth_refresh: Annotated[bool, Field(1, BOOL)] = False
    supports_broker_entry_metadata: Annotated[bool, Field(2, BOOL)] = False
    supports_partial_producer: Annotated[bool, Field(3, BOOL)] = False
    supports_topic_watchers: Annotated[bool, Field(4, BOOL)] = False
    supports_get_partitioned_metadata_without_auto_creation: Annotated[bool, Field(5, BOOL)] = False
    supports_repl_dedup_by_lid_and_eid: Annotated[bool, Field(6, BOOL)] = False
    supports_topic_watcher_reconcile: Annotated[bool, Field(7, BOOL)] = False


@dataclass(slots=True, kw_only=True)
class AuthData(ProtoMessage):
    """A credential, or the question for one."""

    auth_method_name: Annotated[str | None, Field(1, STRING)] = None
    auth_data: Annotated[bytes | None, Field(2, BYTES)] = None


@dataclass(slots=True, kw_only=True)
class CommandConnect(Command):
    """The first command of a client."""

    TYPE: ClassVar = 2
    client_version: Annotated[str, Field(1, STRING)]
    auth_data: Annotated[bytes | None, Field(3, BYTES)] = None
    protocol_version: Annotated[int, Field(4, INT32)] = 0
    auth_method_name: Annotated[str | None, Field(5, STRING)] = None
    proxy_to_broker_url: Annotated[str | None, Field(6, STRING)] = None
    feature_flags: Annotated[FeatureFlags | None, Field(10, MESSAGE)] = None


@dataclass(slots=True, kw_only=True)
class CommandConnected(Command):
    """The broker's answer to Connect."""

    TYPE: ClassVar = 3
    server_version: Annotated[str, Field(1, STRING)]
    protocol_version: Annotated[int, Field(2, INT32)] = 0
    max_message_size: Annotated[int | None, Field(3, INT32)] = None
    feature_flags: Annotated[FeatureFlags | None, Field(4, MESSAGE)] = None


@dataclass(slots=True, kw_only=True)
class CommandAuthChallenge(Command):
    """The broker asks for a credential, at the beginning or when one expires."""

    TYPE: ClassVar = 36
    server_version: Annotated[str | None, Field(1, STRING)] = None
    challenge: Annotated[AuthData | None, Field(2, MESSAGE)] = None
    protocol_version: Annotated[int, Field(3, INT32)] = 0


@dataclass(slots=True, kw_only=True)
class CommandAuthResponse(Command):
    """The answer to AuthChallenge."""

    TYPE: ClassVar = 37
    client_version: Annotated[str | None, Field(1, STRING)] = None
    response: Annotated[AuthData | None, Field(2, MESSAGE)] = None
    protocol_version: Annotated[int, Field(3, INT32)] = 0


@dataclass(slots=True, kw_only=True)
class CommandPing(Command):
    """Asks whether the other side lives."""

    TYPE: ClassVar = 18


@dataclass(slots=True, kw_only=True)
class CommandPong(Command):
    """The answer to Ping."""

    TYPE: ClassVar = 19


@dataclass(slots=True, kw_only=True)
class CommandSuccess(Command):
    """A request has succeeded."""

    TYPE: ClassVar = 13
    request_id: Annotated[int, Field(1, UINT64)]


@dataclass(slots=True, kw_only=True)
class CommandError(Command):
    """A request has failed."""

    TYPE: ClassVar = 14
    request_id: Annotated[int, Field(1, UINT64)]
    error: Annotated[int, Field(2, INT32)]
    message: Annotated[str, Field(3, STRING)]
