"""The answers to commands that have failed, each in the form that its command has for errors."""

from __future__ import annotations

from asyncgroup.pulsar.wire import commands as c
from asyncgroup.pulsar.wire.enums import LookupType
from asyncgroup.pulsar_broker.errors import ServerFailure
from asyncgroup.pulsar_broker.net.transaction_answers import TRANSACTION_ANSWERS, transaction_answer

__all__ = ["failure_answer"]


def failure_answer(command: c.Command, failure: ServerFailure) -> c.Command | None:
    """Return the answer with an error; None if the command has no answer."""
    code, text = failure.code, failure.text
    request_id: int | None = getattr(command, "request_id", None)
    if isinstance(command, c.CommandLookupTopic):
        return c.CommandLookupTopicResponse(
            request_id=command.request_id, response=LookupType.FAILED, error=code, message=text
        )
    if isinstance(command, c.CommandPartitionedTopicMetadata):
        return c.CommandPartitionedTopicMetadataResponse(
            request_id=command.request_id, response=1, error=code, message=text
        )
    if isinstance(command, c.CommandSend):
        return c.CommandSendError(
            producer_id=command.producer_id, sequence_id=command.sequence_id, error=code, message=text
        )
    if isinstance(command, c.CommandAck) and request_id is not None:
        return c.CommandAckResponse(
            consumer_id=command.consumer_id, request_id=request_id, error=code, message=text
        )
    if isinstance(command, c.CommandTcClientConnectRequest):
        return c.CommandTcClientConnectResponse(request_id=command.request_id, error=code, message=text)
    if type(command) in TRANSACTION_ANSWERS:
        return transaction_answer(command, error=code, message=text)
    if request_id is not None or isinstance(command, c.CommandConnect | c.CommandAuthResponse):
        return c.CommandError(
            request_id=c.NO_REQUEST if request_id is None else request_id, error=code, message=text
        )
    return None
