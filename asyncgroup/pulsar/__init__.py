"""A native asyncio client for Apache Pulsar 4; it knows nothing of Kafka.

    from asyncgroup.pulsar import PulsarClient

    async with PulsarClient("pulsar://localhost:6650") as client:
        async with client.producer("orders") as producer:
            await producer.send(b"one dozen", key="eggs")
        async with client.subscribe("orders", "billing", type="shared") as consumer:
            message = await consumer.receive()
            consumer.ack(message)

A work queue on a subscription is `WorkQueue("pulsar://localhost:6650", "billing", "orders")`.

- `client`: PulsarClient, with its `core`, `config` (`client_properties` and `java_properties` read the names of Java), `service_url` and `authentication`.
- `errors`: the codes of a broker.
- `connection/`: connections and lookups. `reconnector`: keeps a producer or consumer at its broker, and its `attach_history`.
- `producer/`: batches, pending messages, receipts, each for its `send_receiver`.
- `consumer/`: consumers of a partition and of a topic.
- `transactions/`: messages and acknowledgements that become visible together. `consume_transform_produce`: from topic to topic.
- `wire/`: the bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncgroup.lazy_names import lazy_names

if TYPE_CHECKING:
    from asyncgroup.pulsar.authentication import BasicAuthentication, TlsAuthentication, TokenAuthentication
    from asyncgroup.pulsar.client import PulsarClient
    from asyncgroup.pulsar.config import PulsarConfig
    from asyncgroup.pulsar.consume_transform_produce import (
        PulsarConsumeTransformProduce,
        PulsarTransactionOutput,
    )
    from asyncgroup.pulsar.consumer.config import PulsarConsumerConfig, SubscriptionType
    from asyncgroup.pulsar.consumer.pulsar_message import PulsarMessage
    from asyncgroup.pulsar.consumer.reader import PulsarReader
    from asyncgroup.pulsar.consumer.table_view import PulsarTableView
    from asyncgroup.pulsar.consumer.topic_consumer import PulsarTopicConsumer
    from asyncgroup.pulsar.errors import PulsarServerError
    from asyncgroup.pulsar.producer.config import PulsarProducerConfig
    from asyncgroup.pulsar.producer.interceptors import PulsarInterceptor, PulsarProducerRecord
    from asyncgroup.pulsar.producer.producer import PulsarProducer
    from asyncgroup.pulsar.transactions.errors import (
        PulsarTransactionAborted,
        PulsarTransactionConflict,
        PulsarTransactionError,
        PulsarTransactionOutcomeUnknown,
        PulsarTransactionTimedOut,
        TransactionsNotEnabled,
    )
    from asyncgroup.pulsar.transactions.transaction import PulsarTransaction, PulsarTransactionState
    from asyncgroup.pulsar.transactions.txn_id import TxnId
    from asyncgroup.pulsar.wire.message_id import EARLIEST, LATEST, MessageId, TopicMessageId

__all__ = [
    "EARLIEST",
    "LATEST",
    "BasicAuthentication",
    "MessageId",
    "PulsarClient",
    "PulsarConfig",
    "PulsarConsumeTransformProduce",
    "PulsarConsumerConfig",
    "PulsarInterceptor",
    "PulsarMessage",
    "PulsarProducer",
    "PulsarProducerConfig",
    "PulsarProducerRecord",
    "PulsarReader",
    "PulsarServerError",
    "PulsarTableView",
    "PulsarTopicConsumer",
    "PulsarTransaction",
    "PulsarTransactionAborted",
    "PulsarTransactionConflict",
    "PulsarTransactionError",
    "PulsarTransactionOutcomeUnknown",
    "PulsarTransactionOutput",
    "PulsarTransactionState",
    "PulsarTransactionTimedOut",
    "SubscriptionType",
    "TlsAuthentication",
    "TokenAuthentication",
    "TopicMessageId",
    "TransactionsNotEnabled",
    "TxnId",
]

_NAMES = {
    "authentication": ["BasicAuthentication", "TlsAuthentication", "TokenAuthentication"],
    "client": ["PulsarClient"],
    "config": ["PulsarConfig"],
    "consume_transform_produce": ["PulsarConsumeTransformProduce", "PulsarTransactionOutput"],
    "consumer.config": ["PulsarConsumerConfig", "SubscriptionType"],
    "consumer.pulsar_message": ["PulsarMessage"],
    "consumer.reader": ["PulsarReader"],
    "consumer.table_view": ["PulsarTableView"],
    "consumer.topic_consumer": ["PulsarTopicConsumer"],
    "errors": ["PulsarServerError"],
    "producer.config": ["PulsarProducerConfig"],
    "producer.interceptors": ["PulsarInterceptor", "PulsarProducerRecord"],
    "producer.producer": ["PulsarProducer"],
    "transactions.errors": [
        "PulsarTransactionAborted",
        "PulsarTransactionConflict",
        "PulsarTransactionError",
        "PulsarTransactionOutcomeUnknown",
        "PulsarTransactionTimedOut",
        "TransactionsNotEnabled",
    ],
    "transactions.transaction": ["PulsarTransaction", "PulsarTransactionState"],
    "transactions.txn_id": ["TxnId"],
    "wire.message_id": ["EARLIEST", "LATEST", "MessageId", "TopicMessageId"],
}
"""The public names of each module."""

if not TYPE_CHECKING:  # a type checker that saw __getattr__ would accept any name
    __getattr__, __dir__ = lazy_names(__name__, _NAMES)
