"""An embedded Apache Pulsar: brokers that speak its protocol, in memory. Any Pulsar client can connect to it.

    async with EmbeddedPulsar(brokers=3, topics={"orders": 6}) as pulsar:
        pulsar.faults.on("Send", topic="orders").error("ServiceNotReady")
        ...  # clients at pulsar.service_url
        print(pulsar.history.story())

Each name is imported on first use. How the package is built:

- `embedded`: EmbeddedPulsar, what users hold; `options`: its arguments, `views`: what it returns of brokers, topics and subscriptions,
  `stored_messages`: the messages of a topic, decoded; `seeding`: messages without a client.
- `runtime`: what it is made of. `node`: one broker; `namespaces`: the topics that there are, of all brokers.
- `traffic`: the history of requests, and injected faults. `server_connection`: a client's connection. `requests`: what is done for
  each command, by a table; `producer_requests` and `consumer_requests` have those of producers and consumers, `topic_lists`
  those of lists of topics and their watchers. `services`: what they
  need of a node. `errors`: the error that a request is answered with.
- `admin`: requests of the admin API. `policies`: those of namespaces and topics; `policy_checks`: what follows from them, and
  `publish_throttle`: how many messages a topic takes. `schema_registry`: the schemas of topics, `avro_compatibility`: which of them may follow one
  another, `schema_requests`: the commands for them. `compaction`: the last value of each key. `non_persistent_topic`: a topic that keeps nothing.
- `topic`: a topic or partition. `topic_log`: its entries; `topic_producers`: its producers, their access modes and deduplication.
- `subscription`: the consumers that share a `cursor`, which is what they have acknowledged. `subscribed_consumer`: one of them.
- `dispatch_single`: who gets an entry in Exclusive and Failover subscriptions, `dispatch_shared`: in Shared and Key_Shared ones,
  there by `consumer_rotation` and `key_selectors`.
- `transaction_requests`: what is done for the commands of transactions, with `transaction_answers`; `transaction_coordinators` keep them.
  `transaction_buffer` has those of a topic, `pending_ack_handle` those of a subscription.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncgroup.lazy_names import lazy_names

if TYPE_CHECKING:
    from asyncgroup.broker.errors import UnusedFaults
    from asyncgroup.pulsar_broker.embedded import EmbeddedPulsar
    from asyncgroup.pulsar_broker.errors import ServerFailure
    from asyncgroup.pulsar_broker.options import PulsarOptions
    from asyncgroup.pulsar_broker.stored_messages import StoredMessage
    from asyncgroup.pulsar_broker.traffic import PulsarExchange, PulsarFault, PulsarFaults, PulsarHistory
    from asyncgroup.pulsar_broker.views import (
        BrokerView,
        ConsumerView,
        ProducerView,
        PulsarTopicView,
        PulsarTransactionView,
        SubscriptionView,
    )

__all__ = [
    "BrokerView",
    "ConsumerView",
    "EmbeddedPulsar",
    "ProducerView",
    "PulsarExchange",
    "PulsarFault",
    "PulsarFaults",
    "PulsarHistory",
    "PulsarOptions",
    "PulsarTopicView",
    "PulsarTransactionView",
    "ServerFailure",
    "StoredMessage",
    "SubscriptionView",
    "UnusedFaults",
]

_NAMES = {
    ".broker.errors": ["UnusedFaults"],
    "embedded": ["EmbeddedPulsar"],
    "errors": ["ServerFailure"],
    "options": ["PulsarOptions"],
    "stored_messages": ["StoredMessage"],
    "traffic": ["PulsarExchange", "PulsarFault", "PulsarFaults", "PulsarHistory"],
    "views": [
        "BrokerView",
        "ConsumerView",
        "ProducerView",
        "PulsarTopicView",
        "PulsarTransactionView",
        "SubscriptionView",
    ],
}
"""The public names of each module."""


if not TYPE_CHECKING:  # type checkers would take any name for an existing one if they saw __getattr__
    __getattr__, __dir__ = lazy_names(__name__, _NAMES)
