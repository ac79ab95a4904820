"""Methods of the producers of aiokafka, kafka-python and confluent-kafka, each with what it is here: hints of errors only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

__all__ = ["PRODUCER"]

_SEND: Final = (
    "await producer.send(topic, value), or producer.send_nowait(topic, value), which returns a future"
)
_CLOSE: Final = "await producer.aclose(), or the end of `async with`"
_TRANSACTION: Final = "async with producer.transaction()"
_NO_POLL: Final = "not needed: the event loop serves the producer; flush() waits for all records"
_TOPICS: Final = "await consumer.topics(), await consumer.partitions(topic) of a Consumer"

PRODUCER: Final[Mapping[str, str]] = {
    "start": "async with Producer(…) as producer",
    "stop": _CLOSE,
    "close": _CLOSE,
    "send_and_wait": "await producer.send(topic, value)",
    "produce": _SEND,
    "produce_batch": "await producer.enqueue_all(records)",
    "create_batch": "await producer.enqueue_all(records): batches are made by batch_size and linger",
    "send_batch": "await producer.enqueue_all(records): batches are made by batch_size and linger",
    "poll": _NO_POLL,
    "purge": "await producer.aclose(drain=False)",
    "list_topics": _TOPICS,
    "partitions_for": _TOPICS,
    "init_transactions": f"not needed: {_TRANSACTION}",
    "begin_transaction": _TRANSACTION,
    "commit_transaction": f"the end of {_TRANSACTION}",
    "abort_transaction": f"an exception that leaves {_TRANSACTION}",
    "send_offsets_to_transaction": "await producer.send_offsets(session.group_offsets(record))",
    "bootstrap_connected": "entering raises if no broker answers",
    "cluster_id": "cluster.view.cluster_id of a Cluster, passed in place of the servers",
    "metrics": "hooks=[…], see the guide on monitoring",
    "set_sasl_credentials": "OAuthBearer(token_provider), or another Producer",
}
"""As Python spells them."""
