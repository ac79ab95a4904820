"""A small client of Pulsar's admin API (REST), for tests: topics, subscriptions, namespaces and their policies."""

from __future__ import annotations

import asyncio
import http.client
import json
from typing import Any, Final
from urllib.parse import quote, urlencode, urlsplit

from asyncgroup.errors import AsyncGroupError

__all__ = ["PulsarAdmin", "PulsarAdminError", "call"]

_LIMIT: Final = 60.0
"""Seconds that a request may take; on a busy machine the first use of a namespace takes longer than ten."""


class PulsarAdminError(AsyncGroupError):
    """The broker refused a request: `status` is that of HTTP (404: there is no such topic, 409: it exists)."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


def call(
    url: str, method: str, path: str, body: object = None, *, token: str | None = None, limit: float = _LIMIT
) -> Any:
    """Send one request, and return the JSON of the answer; None if it is empty, and text that is not JSON as it is.

    Blocks. Raises PulsarAdminError, and OSError or HTTPException if there is no answer within `limit` seconds.
    """
    address = urlsplit(url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=limit)
    headers = {"Content-Type": "application/json"}
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    try:
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        response = connection.getresponse()
        text = response.read().decode(errors="replace")
    finally:
        connection.close()
    answer = _parsed(text)
    if response.status >= 300:
        details = f": {answer['reason']}" if isinstance(answer, dict) and "reason" in answer else ""
        raise PulsarAdminError(
            f"{method} {path}: {response.status} {response.reason}{details}", response.status
        )
    return answer


def _parsed(text: str) -> Any:
    try:
        return json.loads(text) if text else None
    except ValueError:
        return text


class PulsarAdmin:
    """The admin API of a broker at `admin_url`, as the role of `token` if there is one.

    Topics are named as in Pulsar's clients: `orders` and `public/default/orders` are `persistent://public/default/orders`,
    a partition is `orders-partition-0`. Methods raise `PulsarAdminError` if the broker refuses a request.
    """

    def __init__(self, admin_url: str, token: str | None = None) -> None:
        self._url = admin_url
        self._token = token

    def __repr__(self) -> str:
        return f"<PulsarAdmin {self._url}>"

    async def request(self, method: str, path: str, body: object = None, **query: object) -> Any:
        """Send any request; `path` follows `/admin/v2/`, and `body` is sent as JSON. Return the JSON of the answer."""
        full = f"/admin/v2/{path}{'?' * bool(query)}{urlencode(query)}"
        return await asyncio.to_thread(call, self._url, method, full, body, token=self._token)

    # -- topics

    async def create_topic(self, topic: str) -> None:
        """Create a topic without partitions."""
        await self.request("PUT", _topic(topic))

    async def create_partitioned_topic(self, topic: str, partitions: int) -> None:
        """Create a topic with partitions."""
        await self.request("PUT", f"{_topic(topic)}/partitions", partitions)

    async def update_partitions(self, topic: str, partitions: int) -> None:
        """Increase the number of partitions."""
        await self.request("POST", f"{_topic(topic)}/partitions", partitions)

    async def partitions(self, topic: str) -> int:
        """Return the number of partitions, 0 for a topic without."""
        found = await self.request("GET", f"{_topic(topic)}/partitions")
        return int(found["partitions"])

    async def topics(self, namespace: str = "public/default") -> list[str]:
        """Return the full names of a namespace's persistent topics, with each partition of those that have some."""
        return sorted(await self.request("GET", f"persistent/{namespace}"))

    async def delete_topic(self, topic: str, *, force: bool = True) -> None:
        """Delete a topic, with its partitions; `force` closes its producers and consumers."""
        parts = "/partitions" if await self.partitions(topic) else ""
        await self.request("DELETE", f"{_topic(topic)}{parts}", force=str(force).lower())

    async def stats(self, topic: str) -> dict[str, Any]:
        """Return the statistics of a topic or partition: `subscriptions`, `publishers`, `msgInCounter`, …"""
        return dict(await self.request("GET", f"{_topic(topic)}/stats"))

    async def partitioned_stats(self, topic: str) -> dict[str, Any]:
        """Return the statistics of a topic with partitions, their sums and each by its name in `partitions`."""
        return dict(await self.request("GET", f"{_topic(topic)}/partitioned-stats"))

    async def internal_stats(self, topic: str) -> dict[str, Any]:
        """Return the ledgers of a topic or partition, and the positions of its subscriptions in `cursors`."""
        return dict(await self.request("GET", f"{_topic(topic)}/internalStats"))

    async def unload(self, topic: str) -> None:
        """Unload a topic, with its partitions: the broker closes its producers and consumers, which come back."""
        await self.request("PUT", f"{_topic(topic)}/unload")

    async def terminate(self, topic: str) -> tuple[int, int]:
        """Close a topic or partition to producers; return the ledger and entry of its last message."""
        last = await self.request("POST", f"{_topic(topic)}/terminate")
        return last["ledgerId"], last["entryId"]

    # -- subscriptions

    async def create_subscription(self, topic: str, subscription: str, position: str = "latest") -> None:
        """Create a subscription at "latest" or "earliest"."""
        await self.request("PUT", f"{_topic(topic)}/subscription/{quote(subscription, safe='')}", position)

    async def delete_subscription(self, topic: str, subscription: str, *, force: bool = True) -> None:
        """Delete a subscription; `force` closes its consumers."""
        path = f"{_topic(topic)}/subscription/{quote(subscription, safe='')}"
        await self.request("DELETE", path, force=str(force).lower())

    async def subscriptions(self, topic: str) -> list[str]:
        """Return the names of a topic's subscriptions."""
        return sorted(await self.request("GET", f"{_topic(topic)}/subscriptions"))

    # -- namespaces and policies

    async def create_namespace(self, namespace: str) -> None:
        """Create a namespace such as `public/orders`."""
        await self.request("PUT", f"namespaces/{namespace}")

    async def unload_namespace(self, namespace: str = "public/default") -> None:
        """Unload all topics of a namespace."""
        await self.request("PUT", f"namespaces/{namespace}/unload")

    async def set_policy(self, namespace: str, policy: str, value: object) -> None:
        """Set a policy of a namespace by its name in the admin API, such as `deduplication` or `messageTTL`."""
        await self.request("POST", f"namespaces/{namespace}/{policy}", value)

    async def set_topic_policy(self, topic: str, policy: str, value: object) -> None:
        """Set a policy of a topic by its name in the admin API, such as `maxUnackedMessagesOnConsumer`."""
        await self.request("POST", f"{_topic(topic)}/{policy}", value)

    async def grant(self, namespace: str, role: str, *actions: str) -> None:
        """Let a role `produce`, `consume`, … in a namespace, where tokens are required."""
        await self.request(
            "POST", f"namespaces/{namespace}/permissions/{quote(role, safe='')}", list(actions)
        )


def _topic(topic: str) -> str:
    """Return the path of a topic."""
    domain, separator, name = topic.partition("://")
    if not separator:
        domain, name = "persistent", topic
    tenant, namespace, local = name.split("/", 2) if name.count("/") >= 2 else ("public", "default", name)
    return f"{domain}/{tenant}/{namespace}/{quote(local, safe='')}"
