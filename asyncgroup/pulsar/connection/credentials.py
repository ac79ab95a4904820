"""ConnectionCredentials: the credential that one connection sends, in CONNECT and when the broker challenges it (PIP-30)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime

from asyncgroup.errors import AsyncGroupError, AuthenticationError, ConnectError
from asyncgroup.escaping import escaping_logger
from asyncgroup.lifecycle import cancel_and_wait, start_task
from asyncgroup.pulsar.authentication import PulsarAuthentication, expiry_of
from asyncgroup.pulsar.service_url import BrokerAddress
from asyncgroup.pulsar.wire.commands import AuthData, Command, CommandAuthChallenge, CommandAuthResponse
from asyncgroup.version import __version__

__all__ = ["CLIENT_VERSION", "ConnectionCredentials"]

CLIENT_VERSION = f"asyncgroup-{__version__}"

_log = escaping_logger("asyncgroup.pulsar")


class ConnectionCredentials:
    """Asks the provider, for each use; `send` writes a command, `fail` ends the connection with an error.

    A provider's exception is the cause of ours; its text, which may contain the credential, is not in ours.
    """

    def __init__(
        self,
        authentication: PulsarAuthentication | None,
        address: BrokerAddress,
        send: Callable[[Command], None],
        fail: Callable[[Exception], None],
    ) -> None:
        self._authentication = authentication
        self._address = address
        self._send = send
        self._fail = fail
        self._answering: asyncio.Task[None] | None = None
        self._expiry: float | None = None  # of the last token, seconds since 1970
        self.is_waiting = False
        """Whether the provider is asked now, or was when its caller was cancelled."""

    def __repr__(self) -> str:
        method = self._authentication.method if self._authentication is not None else "none"
        return f"<ConnectionCredentials {method}{': waiting for the provider' if self.is_waiting else ''}>"

    @property
    def method(self) -> str | None:
        """Pulsar's name of the method, None without."""
        return None if self._authentication is None else self._authentication.method

    async def fetch(self) -> bytes | None:
        """Return the credential of CONNECT, None without authentication. Raises AuthenticationError, ConnectError."""
        return None if self._authentication is None else await self._ask(self._authentication)

    async def _ask(self, authentication: PulsarAuthentication) -> bytes:
        subject = f"{self._address}: authentication by {authentication.method}"
        self.is_waiting = True
        try:
            found = await authentication.credential()
        except asyncio.CancelledError as error:
            if (task := asyncio.current_task()) is None or task.cancelling():
                raise
            # raised by a task inside the provider: this one was not cancelled
            self.is_waiting = False
            raise ConnectError(f"{subject}: the provider failed: it was cancelled") from error
        except AuthenticationError as error:
            self.is_waiting = False
            raise AuthenticationError(f"{subject}: {error}") from error
        except ConnectError as error:
            self.is_waiting = False
            raise ConnectError(f"{subject}: {error}") from error
        except Exception as error:
            self.is_waiting = False
            text = f"the provider raised {type(error).__name__} (see __cause__; its text may contain the credential)"
            raise ConnectError(f"{subject}: {text}") from error
        self.is_waiting = False
        self._expiry = expiry_of(found) if authentication.method == "token" else None
        return found

    def hint(self) -> str:
        """Return what may explain that the last credential was refused, else "". A broker does not say that a token has expired."""
        if self._expiry is None or self._expiry > time.time():
            return ""
        return f" (by this machine's clock the token has expired at {datetime.fromtimestamp(self._expiry, UTC):%Y-%m-%d %H:%M:%S} UTC)"

    def challenged(self, challenge: CommandAuthChallenge) -> None:
        """Answer a challenge, in a task: the connection goes on. A challenge during that is answered by it."""
        if self._answering is None or self._answering.done():
            self._answering = start_task(self._answer(challenge), name=f"{self._address}: challenge")

    async def _answer(self, challenge: CommandAuthChallenge) -> None:
        try:
            if self._authentication is None:
                raise AuthenticationError(
                    f"{self._address}: the broker asks for a credential, and none is configured"
                )
            data = AuthData(
                auth_method_name=self._authentication.method, auth_data=await self._ask(self._authentication)
            )
        except AsyncGroupError as error:
            _log.warning("no credential for the broker's challenge: %s", str(error))
            self._fail(error)
            return
        self._send(
            CommandAuthResponse(
                client_version=CLIENT_VERSION, response=data, protocol_version=challenge.protocol_version
            )
        )

    def cancel(self) -> None:
        """The connection has ended: answer nothing more."""
        if self._answering is not None:
            self._answering.cancel()

    async def aclose(self) -> None:
        """Wait until nothing runs."""
        if self._answering is not None:
            await cancel_and_wait(self._answering)
