"""Errors of a Pulsar broker: code, name, and what a client does about each (`ServerError` in `PulsarApi.proto`)."""

from __future__ import annotations

from enum import Enum
from typing import ClassVar, Final, NamedTuple

from asyncgroup.errors import AsyncGroupError, ConnectError
from asyncgroup.escaping import MAX_TEXT_LENGTH, printable

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

SERVER_ERRORS: Final = {
    0: ServerErrorSpec("UnknownError", _RETRY),
    1: ServerErrorSpec("MetadataError", _RETRY),
    2: ServerErrorSpec("PersistenceError", _RETRY),
    3: ServerErrorSpec("AuthenticationError", _RETRY),
    4: ServerErrorSpec("AuthorizationError", _AT_FIRST),
    5: ServerErrorSpec("ConsumerBusy", _AT_FIRST),
    6: ServerErrorSpec("ServiceNotReady", _RETRY),
    7: ServerErrorSpec("ProducerBlockedQuotaExceededError", _RETRY),
    8: ServerErrorSpec("ProducerBlockedQuotaExceededException", _RETRY),
    9: ServerErrorSpec("ChecksumError", _RETRY),
    10: ServerErrorSpec("UnsupportedVersionError", _RAISE),
    11: ServerErrorSpec("TopicNotFound", _RAISE),
    12: ServerErrorSpec("SubscriptionNotFound", _AT_FIRST),
    13: ServerErrorSpec("ConsumerNotFound", _RETRY),
    14: ServerErrorSpec("TooManyRequests", _RETRY),
    15: ServerErrorSpec("TopicTerminatedError", _RAISE),
    16: ServerErrorSpec("ProducerBusy", _AT_FIRST),
    17: ServerErrorSpec("InvalidTopicName", _RAISE),
    18: ServerErrorSpec("IncompatibleSchema", _RAISE),
    19: ServerErrorSpec("ConsumerAssignError", _AT_FIRST),
    20: ServerErrorSpec("TransactionCoordinatorNotFound", _RETRY),
    21: ServerErrorSpec("InvalidTxnStatus", _RAISE),
    22: ServerErrorSpec("NotAllowedError", _RAISE),
    23: ServerErrorSpec("TransactionConflict", _RAISE),
    24: ServerErrorSpec("TransactionNotFound", _RAISE),
    25: ServerErrorSpec("ProducerFenced", _RAISE),
}
"""The codes of Pulsar 4."""

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
        super().__init__(f"{about}: {self.name} ({code})" + (f": {self.text}" if text else ""))


class TooManyRedirects(ConnectError):
    """The brokers redirect the lookup of a topic to each other."""
