"""Errors of a Pulsar broker: code, name, and what a client does about each (`ServerError` in `PulsarApi.proto`)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum
from typing import ClassVar, Final, NamedTuple

from asyncgroup.errors import AsyncGroupError, ConnectError
from asyncgroup.escaping import MAX_TEXT_LENGTH, printable
from asyncgroup.pulsar.wire.server_errors import ServerError

__all__ = ["SERVER_ERRORS", "PulsarServerError", "Refusal", "ServerErrorSpec", "TooManyRedirects"]


class Refusal(Enum):
    """What a producer or consumer does when its registration is refused."""

    RETRY = "retry"
    """Look up the topic again, after a pause."""
    RAISE_AT_FIRST = "raise at first"
    """Raise when it is opened; after a success the broker may still hold the earlier registration: retry."""
    RAISE = "raise"
    """It ends, also later."""


class ServerErrorSpec(NamedTuple):
    """A code of a broker."""

    name: str
    refusal: Refusal


_RETRY, _AT_FIRST, _RAISE = Refusal.RETRY, Refusal.RAISE_AT_FIRST, Refusal.RAISE

_REFUSALS: Final = {
    ServerError.UNKNOWN_ERROR: _RETRY,
    ServerError.METADATA_ERROR: _RETRY,
    ServerError.PERSISTENCE_ERROR: _RETRY,
    ServerError.AUTHENTICATION_ERROR: _RETRY,
    ServerError.AUTHORIZATION_ERROR: _AT_FIRST,
    ServerError.CONSUMER_BUSY: _AT_FIRST,
    ServerError.SERVICE_NOT_READY: _RETRY,
    ServerError.PRODUCER_BLOCKED_QUOTA_EXCEEDED_ERROR: _RETRY,
    ServerError.PRODUCER_BLOCKED_QUOTA_EXCEEDED_EXCEPTION: _RETRY,
    ServerError.CHECKSUM_ERROR: _RETRY,
    ServerError.UNSUPPORTED_VERSION_ERROR: _RAISE,
    ServerError.TOPIC_NOT_FOUND: _RAISE,
    ServerError.SUBSCRIPTION_NOT_FOUND: _AT_FIRST,
    ServerError.CONSUMER_NOT_FOUND: _RETRY,
    ServerError.TOO_MANY_REQUESTS: _RETRY,
    ServerError.TOPIC_TERMINATED_ERROR: _RAISE,
    ServerError.PRODUCER_BUSY: _AT_FIRST,
    ServerError.INVALID_TOPIC_NAME: _RAISE,
    ServerError.INCOMPATIBLE_SCHEMA: _RAISE,
    ServerError.CONSUMER_ASSIGN_ERROR: _AT_FIRST,
    ServerError.TRANSACTION_COORDINATOR_NOT_FOUND: _RETRY,
    ServerError.INVALID_TXN_STATUS: _RAISE,
    ServerError.NOT_ALLOWED_ERROR: _RAISE,
    ServerError.TRANSACTION_CONFLICT: _RAISE,
    ServerError.TRANSACTION_NOT_FOUND: _RAISE,
    ServerError.PRODUCER_FENCED: _RAISE,
}

SERVER_ERRORS: Final[Mapping[int, ServerErrorSpec]] = {
    code: ServerErrorSpec(code.published_name, refusal) for code, refusal in _REFUSALS.items()
}
"""The codes of Pulsar 4."""

_JAVA_CLASS: Final = re.compile(r"\A(?:[a-z][\w]*\.)+[\w$]*Exception: ", re.ASCII)
"""A broker's text often begins with the class of its exception."""

_WITHOUT_TEXT: Final[Mapping[int, str]] = {
    ServerError.TOPIC_NOT_FOUND: "the topic or its namespace does not exist"
}
"""What errors mean that brokers send without a text."""

_UNKNOWN: Final = ServerErrorSpec("an error that this client does not know", _RETRY)


class PulsarServerError(AsyncGroupError):
    """A broker has refused a request.

    `code` and `name` are Pulsar's (`ServerError`), `about` says what was asked for, `text` is the broker's.
    """

    _has_foreign_text: ClassVar[bool] = True

    def __init__(self, code: int, about: str, text: str | None = None) -> None:
        self.code = code
        self.about = about
        self.text = printable(text or "", MAX_TEXT_LENGTH)
        spec = SERVER_ERRORS.get(code, _UNKNOWN)
        self.name = spec.name
        self.refusal = spec.refusal
        self.retriable = spec.refusal is Refusal.RETRY  # whether the same request may succeed later
        shown = _JAVA_CLASS.sub("", self.text) or _WITHOUT_TEXT.get(code, "")
        super().__init__(f"{about}: {self.name} ({code})" + (f": {shown}" if shown else ""))


class TooManyRedirects(ConnectError):
    """The brokers redirect the lookup of a topic to each other."""
