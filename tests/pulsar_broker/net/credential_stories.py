"""Connections with credentials, and the frames with which a broker answers: the same of Apache Pulsar and of the embedded one."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from asyncgroup.pulsar.wire import commands as c
from asyncgroup.pulsar.wire.frames import decode_frame, encode_frame
from asyncgroup.pulsar.wire.server_errors import ServerError

__all__ = ["STORIES", "CredentialStory", "Tokens"]


class Tokens(NamedTuple):
    """Tokens of a broker: three of one role, the last of which expires, and one of another role."""

    valid: str
    fresh: str
    expiring: str
    other: str
    unknown: str = "unknown"


class CredentialStory(NamedTuple):
    """A connection, by the names of its tokens."""

    expected: Sequence[str]
    token: str | None = None
    answers: Sequence[str] = ()
    """The tokens that it answers challenges with; it answers no others."""
    method: str | None = "token"
    can_refresh: bool = True
    version: int = 21

    async def run(self, url: str, tokens: Tokens, expire: Callable[[], None], seconds: float) -> list[str]:
        """Return what comes until the end of the connection, or for some seconds; `expire` is called once it is connected."""
        host, _, port = url.removeprefix("pulsar://").rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        connect = c.CommandConnect(
            client_version="wire",
            protocol_version=self.version,
            auth_method_name=self.method,
            auth_data=None if self.token is None else getattr(tokens, self.token).encode(),
            feature_flags=c.FeatureFlags(supports_auth_refresh=self.can_refresh),
        )
        writer.write(encode_frame(connect))
        answers, found = list(self.answers), []
        try:
            async with asyncio.timeout(seconds):
                while True:
                    (size,) = struct.unpack(">I", await reader.readexactly(4))
                    command, _ = decode_frame(await reader.readexactly(size))
                    if isinstance(command, c.CommandPing):
                        writer.write(encode_frame(c.CommandPong()))
                        continue
                    found.append(_shown(command))
                    if isinstance(command, c.CommandConnected):
                        expire()
                    elif isinstance(command, c.CommandAuthChallenge) and answers:
                        data = c.AuthData(
                            auth_method_name="token", auth_data=getattr(tokens, answers.pop(0)).encode()
                        )
                        writer.write(
                            encode_frame(c.CommandAuthResponse(client_version="wire", response=data))
                        )
        except (asyncio.IncompleteReadError, ConnectionError):
            found.append("closed")
        except TimeoutError:
            found.append("open")
        finally:
            writer.close()
        return found


def _shown(command: c.Command | None) -> str:
    if isinstance(command, c.CommandConnected):
        return f"connected {command.protocol_version}"
    if isinstance(command, c.CommandError):
        number = command.request_id - (1 << 64) if command.request_id >> 63 else command.request_id
        return f"error {number} {ServerError(command.error).published_name}: {command.message}"
    if isinstance(command, c.CommandAuthChallenge):
        challenge = command.challenge or c.AuthData()
        return f"challenge {challenge.auth_method_name} {challenge.auth_data!r} {command.protocol_version} {command.server_version}"
    return type(command).__name__


_CONNECTED: Final = "connected 21"
_CHALLENGE: Final = "challenge token b'PulsarAuthRefresh' 21 None"
_REFUSED: Final = ("error -1 AuthenticationError: Failed to authenticate", "closed")

STORIES: Final[Mapping[str, CredentialStory]] = {
    "none": CredentialStory(_REFUSED, method=None),
    "a token without its method": CredentialStory(_REFUSED, "valid", method=None),
    "another method": CredentialStory(_REFUSED, "valid", method="athenz"),
    "no token": CredentialStory(_REFUSED),
    "an unknown token": CredentialStory(_REFUSED, "unknown"),
    "a token": CredentialStory([_CONNECTED, "open"], "valid"),
    "another one": CredentialStory([_CONNECTED, _CHALLENGE, "open"], "expiring", ["fresh"]),
    "the expired one": CredentialStory([_CONNECTED, _CHALLENGE, *_REFUSED], "expiring", ["expiring"]),
    "one of another role": CredentialStory([_CONNECTED, _CHALLENGE, "closed"], "expiring", ["other"]),
    "no answer": CredentialStory([_CONNECTED, _CHALLENGE, "closed"], "expiring"),
    "no refresh": CredentialStory([_CONNECTED, "closed"], "expiring", can_refresh=False),
    "an older client": CredentialStory(
        ["connected 15", _CHALLENGE.replace("21", "15"), "open"], "expiring", ["fresh"], version=15
    ),
}
"""By name."""
