"""SubscriptionRequests: requests for the subscriptions of a topic and its partitions (Pulsar's `PersistentTopics`).

PUT, DELETE  …/X/subscription/S              POST …/S/skip/N, …/S/skip_all, …/S/resetcursor[/TIME], …/S/expireMessages/N
GET  …/X/subscription/S/position/N
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Any, Protocol

from asyncgroup.pulsar.wire.enums import InitialPosition
from asyncgroup.pulsar_broker.admin.http import HttpRefusal, HttpRequest, number_of
from asyncgroup.pulsar_broker.admin.messages import entry_answer
from asyncgroup.pulsar_broker.subscriptions.subscription import TopicSubscription
from asyncgroup.pulsar_broker.topics.topic import BrokerTopic

__all__ = ["AdministeredSubscriptions", "SubscriptionRequests"]


class AdministeredSubscriptions(Protocol):
    """What these requests change."""

    def close_consumers(self, subscription: TopicSubscription) -> None:
        """Close the consumers of a subscription."""
        ...


class SubscriptionRequests:
    """What is done for each of them."""

    def __init__(self, pulsar: AdministeredSubscriptions) -> None:
        self._pulsar = pulsar

    def __repr__(self) -> str:
        return f"<SubscriptionRequests of {self._pulsar!r}>"

    def handle(self, request: HttpRequest, parts: list[BrokerTopic], name: str, rest: list[str]) -> Any:
        """Return the answer to a request for a subscription of a topic with these parts."""
        if request.method == "PUT" and not rest:
            return self._create(parts, name, request.body)
        found = [topic for topic in parts if name in topic.subscriptions]
        if not found:
            raise HttpRefusal(HTTPStatus.NOT_FOUND, "Subscription not found")
        if request.method == "GET":
            return self._peek(request, found[0].subscriptions[name], rest)
        for topic in found:
            self._change(request, topic, name, rest)
        return None

    def _change(self, request: HttpRequest, topic: BrokerTopic, name: str, rest: list[str]) -> None:
        subscription = topic.subscriptions[name]
        match request.method, rest:
            case "DELETE", []:
                self._pulsar.close_consumers(subscription)
                topic.subscriptions.pop(name, None)
            case "POST", ["skip_all"]:
                subscription.skip(len(topic.log))
            case "POST", ["skip", number] if number.isdecimal():
                subscription.skip(int(number))
            case "POST", ["resetcursor", time] if time.isdecimal():
                self._reset(subscription, topic.log.index_at(int(time)))
            case "POST", ["resetcursor"]:
                self._reset(subscription, topic.log.index_of(_position(request.body)))
            case "POST", ["expireMessages", seconds] if seconds.isdecimal():
                subscription.expire(topic.now() - int(seconds) * 1000)
            case _:
                raise _not_served(request, rest)

    def _peek(self, request: HttpRequest, subscription: TopicSubscription, rest: list[str]) -> Any:
        match rest:
            case ["position", number] if number.isdecimal():
                entry = subscription.peek(int(number))
                if entry is None:
                    raise HttpRefusal(HTTPStatus.NOT_FOUND, "Message not found")
                return entry_answer(entry)
        raise _not_served(request, rest)

    def _create(self, parts: list[BrokerTopic], name: str, body: Any) -> None:
        for topic in parts:
            if name in topic.subscriptions:
                raise HttpRefusal(HTTPStatus.CONFLICT, "Subscription already exists for topic")
            early = body == "earliest" or (isinstance(body, dict) and _position(body)[0] == -1)
            topic.subscription(name, InitialPosition.EARLIEST if early else InitialPosition.LATEST)

    def _reset(self, subscription: TopicSubscription, index: int) -> None:
        self._pulsar.close_consumers(subscription)
        subscription.seek(index)


def _not_served(request: HttpRequest, rest: list[str]) -> HttpRefusal:
    return HttpRefusal(
        HTTPStatus.METHOD_NOT_ALLOWED, f"{request.method} {'/'.join(rest)} of a subscription is not served"
    )


def _position(body: Any) -> tuple[int, int]:
    found = body if isinstance(body, dict) else {}
    return int(number_of(found.get("ledgerId", -1))), int(number_of(found.get("entryId", -1)))
