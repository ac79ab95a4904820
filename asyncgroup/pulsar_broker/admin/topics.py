"""TopicRequests: requests for topics and partitions (Pulsar's `PersistentTopics`).

GET  persistent/T/N, …/partitioned           PUT, DELETE  …/X        GET, PUT, POST, DELETE  …/X/partitions
GET  …/X/stats, partitioned-stats, internalStats, subscriptions, lastMessageId           PUT …/X/unload
POST …/X/terminate                           PUT, GET …/X/compaction                     GET …/X/ledger/L/entry/E
…/X/subscription/S/…: see `subscriptions`    POST, GET, DELETE …/X/POLICY: see `policies`
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any, Final, Protocol

from asyncgroup.pulsar.wire.topic_name import TopicName
from asyncgroup.pulsar_broker.admin.http import HttpRefusal, HttpRequest
from asyncgroup.pulsar_broker.admin.messages import entry_answer
from asyncgroup.pulsar_broker.admin.namespaces import AdministeredNamespaces
from asyncgroup.pulsar_broker.admin.policies import serve_policy
from asyncgroup.pulsar_broker.admin.stats import internal_stats, partitioned_stats, topic_stats
from asyncgroup.pulsar_broker.admin.subscriptions import AdministeredSubscriptions, SubscriptionRequests
from asyncgroup.pulsar_broker.topics.topic import BrokerTopic

__all__ = ["AdministeredTopics", "TopicRequests"]


class AdministeredTopics(AdministeredNamespaces, AdministeredSubscriptions, Protocol):
    """What these requests change."""


class TopicRequests:
    """What is done for each of them."""

    def __init__(self, pulsar: AdministeredTopics) -> None:
        self._pulsar = pulsar
        self._subscriptions = SubscriptionRequests(pulsar)

    def __repr__(self) -> str:
        return f"<TopicRequests of {self._pulsar.namespaces!r}>"

    def handle(self, request: HttpRequest, domain: str, rest: list[str]) -> Any:
        """Return the answer to a request for topics of a domain."""
        match rest:
            case [tenant, namespace] if request.method == "GET":
                return self._list(f"{domain}://{tenant}/{namespace}/")
            case [tenant, namespace, "partitioned"] if request.method == "GET":
                names = self._pulsar.namespaces.partitioned_topics()
                return sorted(
                    str(name) for name in names if str(name).startswith(f"{domain}://{tenant}/{namespace}/")
                )
            case [tenant, namespace, local, *more]:
                return self._topic(request, TopicName.parse(f"{domain}://{tenant}/{namespace}/{local}"), more)
        raise HttpRefusal(HTTPStatus.NOT_FOUND, f"{request.method} {'/'.join(request.parts)} is not served")

    def _list(self, prefix: str) -> list[str]:
        namespace = prefix.partition("://")[2].rstrip("/")
        self._pulsar.namespaces.check_namespace(namespace)
        return [name for name in self._pulsar.namespaces.of_namespace(namespace) if name.startswith(prefix)]

    def _topic(self, request: HttpRequest, name: TopicName, rest: list[str]) -> Any:
        namespaces = self._pulsar.namespaces
        match request.method, rest:
            case "PUT", []:
                namespaces.create(name)
            case "PUT", ["partitions"]:
                namespaces.create(name, _count(request.body))
            case "POST", ["partitions"]:
                self._add_partitions(name, _count(request.body))
            case "GET", ["partitions"]:
                creates = request.query.get("checkAllowAutoCreation") == "true"
                return {"partitions": namespaces.partitions_of(name, creates=creates)}
            case "DELETE", [] | ["partitions"]:
                self._pulsar.delete_topic(str(name))
            case "PUT", ["unload"]:
                namespaces.parts_of(name)
                self._pulsar.unload(str(name))
            case "POST", ["terminate"]:
                return self._terminate(name)
            case "PUT", ["compaction"]:
                for topic in namespaces.parts_of(name):
                    topic.compact()
            case "GET", ["ledger", ledger, "entry", entry]:
                return self._entry(name, ledger, entry)
            case _, ["subscription", subscription, *more]:
                return self._subscriptions.handle(request, namespaces.parts_of(name), subscription, more)
            case "GET", [what] if what in _READS:
                return self._read(name, what)
            case _, [policy]:
                parts = namespaces.parts_of(name)
                found = [serve_policy(part.policies.own, request, policy) for part in parts]
                namespaces.policies_changed()
                return found[0]
            case _:
                raise HttpRefusal(
                    HTTPStatus.PRECONDITION_FAILED, f"{request.method} {'/'.join(rest)} is not served"
                )
        return None

    def _add_partitions(self, name: TopicName, count: int) -> None:
        if count < self._pulsar.namespaces.partitions_of(name, creates=False):
            raise HttpRefusal(HTTPStatus.UNPROCESSABLE_ENTITY, "Expect partitions can't less than before")
        self._pulsar.namespaces.add_partitions(name, count)

    def _terminate(self, name: TopicName) -> Mapping[str, int]:
        topic = self._pulsar.namespaces.topic(name, creates=False)
        topic.terminate()
        return _last_id(topic)

    def _entry(self, name: TopicName, ledger: str, entry: str) -> Any:
        topic = self._pulsar.namespaces.topic(name, creates=False)
        found = (
            topic.log.find((int(ledger), int(entry))) if ledger.isdecimal() and entry.isdecimal() else None
        )
        if found is None:
            raise HttpRefusal(HTTPStatus.NOT_FOUND, "Message id not found")
        return entry_answer(found)

    def _read(self, name: TopicName, what: str) -> Any:
        parts = self._pulsar.namespaces.parts_of(name)
        if what == "partitioned-stats":
            return partitioned_stats(parts)
        if what == "subscriptions":
            return sorted({each for topic in parts for each in topic.subscriptions})
        return _READERS[what](self._pulsar.namespaces.topic(name, creates=False))


def _last_id(topic: BrokerTopic) -> dict[str, int]:
    last = topic.last_id
    return {"ledgerId": last.ledger_id, "entryId": last.entry_id}


def _compaction(topic: BrokerTopic) -> dict[str, str]:
    is_compacted = topic.log.compacted is not None
    return {"status": "SUCCESS" if is_compacted else "NOT_RUN", "lastError": ""}


_READERS: Mapping[str, Callable[[BrokerTopic], Any]] = {
    "stats": topic_stats,
    "internalStats": internal_stats,
    "lastMessageId": _last_id,
    "compaction": _compaction,
}
_READS = frozenset({*_READERS, "partitioned-stats", "subscriptions"})

_MAX_PARTITIONS: Final = 100_000
"""Partitions of a topic (`maxNumPartitionsPerPartitionedTopic`, which Pulsar does not limit by default)."""


def _count(body: Any) -> int:
    if isinstance(body, dict):  # `PartitionedTopicMetadata`
        body = body.get("partitions")
    if not isinstance(body, int) or isinstance(body, bool) or body < 1:
        raise HttpRefusal(HTTPStatus.NOT_ACCEPTABLE, "Number of partitions should be greater than 0")
    if body > _MAX_PARTITIONS:
        raise HttpRefusal(
            HTTPStatus.NOT_ACCEPTABLE,
            f"Number of partitions should be less than or equal to {_MAX_PARTITIONS}",
        )
    return body
