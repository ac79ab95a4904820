"""An embedded Apache Pulsar: brokers that speak its protocol, in memory. Any Pulsar client can connect to it.

    async with EmbeddedPulsar(brokers=3, topics={"orders": 6}) as pulsar:
        pulsar.faults.on("Send", topic="orders").error("ServiceNotReady")
        ...  # clients at pulsar.service_url
        print(pulsar.history.story())

Each name is imported on first use. How the package is built, each room importing only from those below it:

- `embedded`: EmbeddedPulsar, what users hold; `control`: what it is made of, and what tests see and do from outside (options, runtime,
  views, stored and seeded messages).
- `node`: one broker; `admin`: the admin API.
- `requests`: what is done for each command.
- `net`: the connections of clients; `transactions`: their coordinators.
- `topics`: topics, namespaces and policies.
- `subscriptions`: cursors, consumers and dispatchers; `schemas`: their registry.
- `log`: the entries of a topic.
- `traffic`: the history of requests, and injected faults; `timing`: time of day and timers; `errors`: the error that a request is
  answered with; `credentials`: those that clients need.

A command passes through `net.server_connection`, which records it and applies faults, and the table of `requests.broker_requests`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncgroup.lazy_names import lazy_names

if TYPE_CHECKING:
    from asyncgroup.broker.errors import UnusedFaults
    from asyncgroup.pulsar_broker.control.options import PulsarOptions
    from asyncgroup.pulsar_broker.control.stored_messages import StoredMessage
    from asyncgroup.pulsar_broker.control.views import (
        BrokerView,
        ConsumerView,
        ProducerView,
        PulsarTopicView,
        PulsarTransactionView,
        SubscriptionView,
    )
    from asyncgroup.pulsar_broker.embedded import EmbeddedPulsar
    from asyncgroup.pulsar_broker.errors import ServerFailure
    from asyncgroup.pulsar_broker.traffic import PulsarExchange, PulsarFault, PulsarFaults, PulsarHistory

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
    "control.options": ["PulsarOptions"],
    "control.stored_messages": ["StoredMessage"],
    "traffic": ["PulsarExchange", "PulsarFault", "PulsarFaults", "PulsarHistory"],
    "control.views": [
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
