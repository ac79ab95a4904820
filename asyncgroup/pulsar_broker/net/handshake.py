"""ClientHandshake: CONNECT of a connection, and the credential of its client (CONNECT and AUTH_RESPONSE in Pulsar's `ServerCnx`)."""

from __future__ import annotations

from typing import Final, Protocol

from asyncgroup.pulsar.wire import commands as c
from asyncgroup.pulsar.wire.server_errors import ServerError
from asyncgroup.pulsar_broker.credentials import (
    REFRESH,
    AcceptedCredentials,
    ClientCredential,
    CredentialRefused,
)
from asyncgroup.pulsar_broker.errors import ServerFailure

__all__ = ["ClientHandshake", "HandshakeNode"]

FEATURES: Final = c.FeatureFlags(
    supports_topic_watchers=True,
    supports_get_partitioned_metadata_without_auto_creation=True,
    supports_repl_dedup_by_lid_and_eid=True,
    supports_topic_watcher_reconcile=True,
)
"""Those of Pulsar 4.2."""


class HandshakeNode(Protocol):
    """What a handshake has to know of the node."""

    max_message_size: int
    server_version: str
    credentials: AcceptedCredentials


class AnsweringConnection(Protocol):
    """What a handshake calls of its connection."""

    def send(self, command: c.Command) -> None:
        """Write a command that is no answer."""
        ...

    def reply(self, request: c.Command, answer: c.Command) -> None:
        """Write the answer to a request."""
        ...

    def fail(self, command: c.Command, failure: ServerFailure) -> None:
        """Answer a request with an error."""
        ...

    def close(self) -> None:
        """Close it after what was written."""
        ...

    def cut(self) -> None:
        """Abort it."""
        ...


class ClientHandshake:
    """Which client is connected, and with which credential."""

    def __init__(self, node: HandshakeNode, connection: AnsweringConnection) -> None:
        self.is_done = False
        """Whether the client is connected: until then it may only send CONNECT."""
        self.client_version = ""
        self._node = node
        self._connection = connection
        self._protocol_version = 0
        self._credential: ClientCredential | None = None  # of a client that needs one

    def __repr__(self) -> str:
        state = "connected" if self.is_done else "not connected"
        return f"<ClientHandshake of {self.client_version!r}, {state}>"

    def connect(self, command: c.Command) -> None:
        """Answer CONNECT; end the connection at another command, and after the answer to a credential that is not accepted."""
        if not isinstance(command, c.CommandConnect):
            self._connection.cut()
            return
        self._protocol_version = min(command.protocol_version, c.PROTOCOL_VERSION)
        try:
            self._credential = self._accepted(command)
        except CredentialRefused:
            self._refuse(command)
            return
        self.is_done = True
        self.client_version = command.client_version
        self._connection.reply(
            command,
            c.CommandConnected(
                server_version=self._node.server_version,
                protocol_version=self._protocol_version,
                max_message_size=self._node.max_message_size,
                feature_flags=FEATURES,
            ),
        )

    def _accepted(self, command: c.CommandConnect) -> ClientCredential | None:
        """Return the credential of a client; None at a node that needs none. Raises CredentialRefused."""
        accepted = self._node.credentials
        if not accepted.are_required:
            return None
        features, method = command.feature_flags, command.auth_method_name or "none"
        can_refresh = features is not None and features.supports_auth_refresh
        return ClientCredential(accepted, method, command.auth_data or b"", can_refresh=can_refresh)

    def _refuse(self, command: c.Command) -> None:
        """Answer that a credential is not accepted, and close the connection (`ServerCnx.authenticationFailed`)."""
        failure = ServerFailure(ServerError.AUTHENTICATION_ERROR, "Failed to authenticate")
        self._connection.fail(command, failure)
        self._connection.close()

    def check_credential(self) -> None:
        """Ask for another credential if that of the client has expired; close the connection of one that has not answered, or cannot.

        (`ServerCnx.refreshAuthenticationCredentials`.)
        """
        credential = self._credential
        if credential is None or not credential.is_expired:
            return
        if credential.is_asked or not credential.can_refresh:
            self._connection.close()
            return
        credential.is_asked = True
        self._connection.send(
            c.CommandAuthChallenge(challenge=REFRESH, protocol_version=self._protocol_version)
        )

    def renew_credential(self, command: c.CommandAuthResponse) -> None:
        """Take another credential in place of the one that has expired; the role must be the same."""
        credential, response = self._credential, command.response
        if credential is None or response is None or response.auth_data is None:
            self._connection.cut()
            return
        try:
            if not credential.renew(response.auth_data):
                self._connection.close()
        except CredentialRefused:
            self._refuse(command)
