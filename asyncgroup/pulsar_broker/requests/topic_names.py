"""Names of topics in commands."""

from __future__ import annotations

from asyncgroup.errors import ConfigError
from asyncgroup.pulsar.wire.server_errors import ServerError
from asyncgroup.pulsar.wire.topic_name import TopicName
from asyncgroup.pulsar_broker.errors import ServerFailure

__all__ = ["parse_topic"]


def parse_topic(text: str) -> TopicName:
    """Return a topic's name. Raises ServerFailure."""
    try:
        return TopicName.parse(text)
    except ConfigError as error:
        raise ServerFailure(ServerError.INVALID_TOPIC_NAME, str(error)) from None
