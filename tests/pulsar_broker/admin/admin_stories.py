"""Requests of the admin API with the answers of Apache Pulsar: they run on it and on the embedded Pulsar."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple

from asyncgroup.pulsar.client import PulsarClient
from asyncgroup.pulsar.producer.config import PulsarProducerConfig
from asyncgroup.testing.apache_pulsar import PulsarAdmin, PulsarAdminError

__all__ = ["STORIES", "AdminStory", "Answers"]


class Answers:
    """An admin client that keeps the answers; errors are kept as their status."""

    def __init__(self, admin: PulsarAdmin) -> None:
        self.admin = admin
        self.seen: list[Any] = []

    async def ask(self, method: str, path: str, body: object = None, *, take: str = "") -> Any:
        """Send a request; of its answer only a member is kept with `take`."""
        try:
            found = await self.admin.request(method, path, body)
        except PulsarAdminError as error:
            found = error.status
        else:
            for member in filter(None, take.split("/")):
                found = found[member]
        self.seen.append(found)
        return found


class AdminStory(NamedTuple):
    """Requests about a topic of its own, in a namespace of its own, and the answers."""

    run: Callable[[Answers, PulsarClient, str, str], Awaitable[None]]
    """The arguments are the answers, a client, the namespace, which does not exist yet, and the name of a topic."""
    expected: list[Any]


TEXT: Final = {"type": "STRING", "schema": "", "properties": {"a": "b"}}
NUMBER: Final = {"type": "INT8", "schema": ""}


async def _schemas(answers: Answers, _: PulsarClient, namespace: str, topic: str) -> None:
    ask, path = answers.ask, f"schemas/{namespace}/{topic}"
    await ask("PUT", f"namespaces/{namespace}")
    await ask("PUT", f"persistent/{namespace}/{topic}")
    await ask("GET", f"{path}/schema")
    await ask("POST", f"{path}/schema", TEXT)
    await ask("POST", f"{path}/schema", TEXT)
    await ask("POST", f"{path}/version", TEXT)
    await ask("POST", f"{path}/version", NUMBER)
    await ask("GET", f"{path}/schema", take="type")
    await ask("GET", f"{path}/schema/0", take="properties")
    await ask("GET", f"{path}/schema/1")
    await ask("POST", f"{path}/compatibility", TEXT)
    await ask("POST", f"{path}/compatibility", NUMBER)
    await ask("POST", f"{path}/schema", NUMBER)
    await ask("DELETE", f"{path}/schema")
    await ask("GET", f"{path}/schema")
    await ask("GET", f"{path}/schema/0")
    await ask("GET", f"{path}/schemas")
    await ask("POST", f"{path}/schema", NUMBER)
    await ask("GET", f"{path}/schema", take="version")


async def _topics(answers: Answers, _: PulsarClient, namespace: str, topic: str) -> None:
    ask, path = answers.ask, f"persistent/{namespace}/{topic}"
    await ask("GET", f"namespaces/{namespace}/topics")
    await ask("PUT", path)
    await ask("PUT", f"namespaces/{namespace}")
    await ask("PUT", f"namespaces/{namespace}")
    await ask("GET", f"namespaces/{namespace}/topics")
    await ask("PUT", path)
    await ask("PUT", path)
    await ask("GET", f"{path}/partitions", take="partitions")
    await ask("PUT", f"{path}-2/partitions", 0)
    await ask("PUT", f"{path}-2/partitions", 2)
    await ask("PUT", f"{path}-2/partitions", 2)
    await ask("GET", f"{path}-2/partitions", take="partitions")
    await ask("POST", f"{path}-2/partitions", 1)
    await ask("POST", f"{path}-2/partitions", 3)
    await ask("GET", f"{path}-2/partitions", take="partitions")
    await ask("GET", f"{path}/lastMessageId", take="entryId")
    await ask("POST", f"{path}/terminate", take="entryId")
    await ask("DELETE", f"{path}")
    await ask("DELETE", f"{path}")
    await ask("DELETE", f"{path}-2/partitions")
    await ask("DELETE", f"{path}-2/partitions")
    await ask("GET", f"namespaces/{namespace}/topics")
    await ask("DELETE", f"namespaces/{namespace}")
    await ask("GET", f"namespaces/{namespace}", take="replication_clusters")


async def _policies(answers: Answers, _: PulsarClient, namespace: str, topic: str) -> None:
    ask, path = answers.ask, f"namespaces/{namespace}"
    await ask("GET", f"{path}/messageTTL")
    await ask("PUT", path)
    for name, value in [("messageTTL", 5), ("schemaValidationEnforced", True)]:
        await ask("GET", f"{path}/{name}")
        await ask("POST", f"{path}/{name}", value)
        await ask("GET", f"{path}/{name}")
    await ask("DELETE", f"{path}/messageTTL")
    await ask("GET", f"{path}/messageTTL")
    await ask("GET", f"{path}/schemaCompatibilityStrategy")
    await ask("PUT", f"{path}/schemaCompatibilityStrategy", "BACKWARD")
    await ask("GET", f"{path}/schemaCompatibilityStrategy")
    await ask("GET", f"{path}/backlogQuotaMap")
    await ask("POST", f"{path}/backlogQuota", {"limit": "1024", "policy": "producer_exception"})
    await ask("GET", f"{path}/backlogQuotaMap", take="destination_storage/policy")
    await ask("GET", f"{path}/backlogQuotaMap", take="destination_storage/limitSize")
    await ask("DELETE", f"{path}/backlogQuota")
    await ask("GET", f"{path}/backlogQuotaMap")


async def _kept(answers: Answers, _: PulsarClient, namespace: str, topic: str) -> None:
    ask, path = answers.ask, f"namespaces/{namespace}"
    await ask("PUT", path)
    await ask("GET", f"{path}/retention")
    for minutes, megabytes in [(5, 10), (-1, -1), (0, 0), (10, -1), (1, 0), (0, 1), (-2, 1), (1, -2)]:
        limits = {"retentionTimeInMinutes": minutes, "retentionSizeInMB": megabytes}
        await ask("POST", f"{path}/retention", limits)
        await ask("GET", f"{path}/retention", take="retentionTimeInMinutes")
        await ask("GET", f"{path}/retention", take="retentionSizeInMB")
    await ask("DELETE", f"{path}/retention")
    await ask("GET", f"{path}/retention")
    await ask("GET", f"{path}/deduplication")
    for value in (True, False):
        await ask("POST", f"{path}/deduplication", value)
        await ask("GET", f"{path}/deduplication")
    await ask("DELETE", f"{path}/deduplication")
    await ask("GET", f"{path}/deduplication")


async def _subscriptions(answers: Answers, client: PulsarClient, namespace: str, topic: str) -> None:
    ask, path = answers.ask, f"persistent/{namespace}/{topic}"
    await ask("PUT", f"namespaces/{namespace}")
    await ask("PUT", path)
    await ask("GET", f"{path}/subscriptions")
    for _ in range(2):
        await ask("PUT", f"{path}/subscription/s", "earliest")
    async with client.producer(f"{namespace}/{topic}", PulsarProducerConfig(batching=False)) as producer:
        ids = [await producer.send(b"%d" % number) for number in range(4)]

    async def backlog() -> None:
        await ask("GET", f"{path}/stats", take="subscriptions/s/msgBacklog")

    await backlog()
    await ask("POST", f"{path}/subscription/s/skip/1")
    await backlog()
    await ask("POST", f"{path}/subscription/s/skip_all")
    await backlog()
    await ask("GET", f"{path}/subscription/s/position/1")
    start = {"ledgerId": ids[2].ledger_id, "entryId": ids[2].entry_id}
    await ask("POST", f"{path}/subscription/s/resetcursor", start)
    await backlog()
    await ask("GET", f"{path}/subscription/s/position/1")
    await ask("GET", f"{path}/subscription/s/position/9")
    await ask("POST", f"{path}/subscription/s/resetcursor/0")
    await backlog()
    await ask("GET", f"{path}/ledger/{ids[1].ledger_id}/entry/{ids[1].entry_id}")
    await ask("POST", f"{path}/subscription/none/skip_all")
    await ask("DELETE", f"{path}/subscription/s")
    await ask("DELETE", f"{path}/subscription/s")
    await ask("GET", f"{path}/subscriptions")


SCHEMAS: Final[list[Any]] = [
    None, None, 404, {"version": {"version": 0}}, {"version": {"version": 0}}, {"version": 0}, {"version": -1}, "STRING", {"a": "b"}, 404,
    {"schemaCompatibilityStrategy": "FULL", "compatibility": True}, 500, 409, {"version": 1}, 404, 404, {"getSchemaResponses": []},
    {"version": {"version": 2}}, 2,
]  # fmt: skip
TOPICS: Final[list[Any]] = [
    404, 404, None, 409, [], None, 409, 0, 406, None, 409, 2, 422, None, 3, -1, -1, None, 404, None, 404, [], None, 404,
]  # fmt: skip
POLICIES: Final[list[Any]] = [
    404, None, None, None, 5, False, None, True, None, None, "UNDEFINED", None, "BACKWARD", {}, None, "producer_exception", 1024, None, {},
]  # fmt: skip
KEPT: Final[list[Any]] = [
    None, None, None, 5, 10, None, -1, -1, None, 0, 0, None, 10, -1, 400, 10, -1, 400, 10, -1, 400, 10, -1, 400, 10, -1, None, None,
    None, None, True, None, False, None, None,
]  # fmt: skip
SUBSCRIPTIONS: Final[list[Any]] = [
    None, None, [], None, 409, 4, None, 3, None, 0, 404, None, 2, 2, 404, None, 4, 1, 404, None, 404, [],
]  # fmt: skip

STORIES: Final = {
    "schemas": AdminStory(_schemas, SCHEMAS),
    "topics": AdminStory(_topics, TOPICS),
    "policies": AdminStory(_policies, POLICIES),
    "kept": AdminStory(_kept, KEPT),
    "subscriptions": AdminStory(_subscriptions, SUBSCRIPTIONS),
}
"""By name."""
