"""`asyncgroup quotas` beside `kafka-configs` on the same Apache Kafka."""

from __future__ import annotations

import re
from typing import TypeAlias

import pytest

from tests.real.beside_kafka import Beside, beside_39, beside_breakable
from tests.real.support import until_shown

__all__ = ["beside_39", "beside_breakable"]

pytestmark = pytest.mark.full

Quotas: TypeAlias = set[tuple[str | None, str | None, str | None, str, float]]
"""The user, client id, address, name and value of each quota."""

QUOTA = re.compile(r"Quota configs for (.+) are (.*)")
PART = re.compile(r"(?:the default \S+|\S+ '[^']*')")
PARTS = {"user-principal": "--user", "client-id": "--client-id", "ip": "--ip"}
ENTITIES = (
    (("--user", "al ice"), ("--user", "al ice")),
    (("--client-id", "c"), ("--client", "c")),
    (("--user", "alice", "--client-id", "c"), ("--user", "alice", "--client", "c")),
    (("--user", "alice", "--client-id", "<default>"), ("--user", "alice", "--client-defaults")),
    (("--user", "<default>"), ("--user-defaults",)),
    (("--client-id", "<default>"), ("--client-defaults",)),
    (("--ip", "10.0.0.1"), ("--ip", "10.0.0.1")),
    (("--ip", "<default>"), ("--ip-defaults",)),
)
"""Entities as arguments of our command and of `kafka-configs`."""


ALL = tuple(
    tuple(word for kind in kinds for word in ("--entity-type", kind))
    for kinds in (("users",), ("clients",), ("users", "clients"), ("ips",))
)
"""The arguments of `kafka-configs` for all entities; each call lists those of one kind."""


async def quotas_of_tool(beside: Beside, *calls: tuple[str, ...]) -> Quotas:
    """Return the quotas that `kafka-configs` prints in these calls."""
    found: Quotas = set()
    for entities in calls:
        for line in await beside.lines("kafka-configs", "--describe", *entities):
            if match := QUOTA.fullmatch(line):
                parts = dict(map(named, PART.findall(match[1])))
                for each in match[2].split(", "):
                    quota, value = each.split("=")
                    found.add((*map(parts.get, PARTS.values()), quota, float(value)))  # type: ignore[arg-type]
    return found


def named(part: str) -> tuple[str, str]:
    """Return our option and the name for a part of an entity: `the default client-id`, `user-principal 'alice'`."""
    if part.startswith("the default "):
        return PARTS[part.rsplit(maxsplit=1)[-1]], "<default>"
    kind, _, name = part.partition(" ")
    return PARTS[kind], name.strip("'")


async def quotas_of_ours(beside: Beside, *arguments: str) -> Quotas:
    keys = ("user", "client_id", "ip", "quota", "value")
    rows = await beside.ours.json("quotas", "list", *arguments)
    return {tuple(row[key] for key in keys) for row in rows}  # type: ignore[misc]


async def quotas_of_both(beside: Beside) -> Quotas | None:
    """Return all quotas if both commands print the same ones."""
    ours = await quotas_of_ours(beside)
    return ours if ours == await quotas_of_tool(beside, *ALL) else None


async def test_quotas(beside_breakable: Beside) -> None:
    await quotas_beside(beside_breakable)


async def test_quotas_of_an_old_kafka(beside_39: Beside) -> None:
    await quotas_beside(beside_39)


async def quotas_beside(beside: Beside) -> None:
    """Set quotas of each kind of entity with both commands, and let each delete that of the other."""
    before = await quotas_of_both(beside)
    assert before is not None
    for arguments, their_arguments in ENTITIES:
        await quotas_of_entity_beside(beside, before, arguments, their_arguments)


async def quotas_of_entity_beside(
    beside: Beside, before: Quotas, arguments: tuple[str, ...], their_arguments: tuple[str, ...]
) -> None:
    parts = dict(zip(arguments[::2], arguments[1::2], strict=True))
    user, client, ip = map(parts.get, PARTS.values())
    row = {"user": user, "client_id": client, "ip": ip, "error": None}
    # an address has one quota only
    names = ["connection_creation_rate"] if ip else ["producer_byte_rate", "request_percentage"]
    first = names[0]
    change, tool = ("quotas", "alter", *arguments), ("kafka-configs", "--alter", *their_arguments)

    async def until_there_are(*quotas: tuple[str, float]) -> None:
        added: Quotas = {(user, client, ip, *quota) for quota in quotas}
        await until_shown(lambda: quotas_of_both(beside), before | added)

    valid = await beside.ours.json(*change, "--set", f"{first}=10000000", "--dry-run")
    assert valid == [{**row, "status": "valid"}]
    assert await quotas_of_both(beside) == before
    altered = await beside.ours.json(*change, "--set", f"{first}=1e7")
    assert altered == [{**row, "status": "altered"}]
    await until_there_are((first, 1e7))
    await beside.lines(*tool, "--delete-config", first)
    await until_there_are()
    await beside.lines(*tool, "--add-config", ",".join(f"{name}=5000" for name in names))
    await until_there_are(*((name, 5000.0) for name in names))
    deleted = await beside.ours.json(
        *change, "--set", f"{first}=6000", *(("--delete", names[1]) if names[1:] else ())
    )
    assert deleted == [{**row, "status": "altered"}]
    await until_there_are((first, 6000.0))
    # those of one entity, without its combinations with others
    one = {(user, client, ip, first, 6000.0)}
    assert await quotas_of_ours(beside, *arguments, "--strict") == one
    assert await quotas_of_tool(beside, their_arguments) == one
    assert await beside.ours.json(*change, "--delete", first) == [{**row, "status": "altered"}]
    await until_there_are()


async def test_what_both_refuse(beside_breakable: Beside) -> None:
    entity = ("--ip", "10.0.0.2")
    await beside_breakable.both_refuse(
        ("quotas", "alter", *entity, "--set", "connection_creation_rate=1.5"),
        ("kafka-configs", "--alter", *entity, "--add-config", "connection_creation_rate=1.5"),
        error="INVALID_REQUEST",
        words="connection_creation_rate cannot be a fractional value",
    )
    await beside_breakable.both_refuse(
        ("quotas", "alter", "--ip", "no address", "--set", "connection_creation_rate=1"),
        ("kafka-configs", "--alter", "--ip", "no address", "--add-config", "connection_creation_rate=1"),
        error="INVALID_REQUEST",
        words="no address is not a valid IP or resolvable host",
        their_words="must be a valid IP or resolvable host, but it is: no address",
    )
    await beside_breakable.both_refuse(
        ("quotas", "alter", "--user", "alice", "--set", "nonsense=1"),
        ("kafka-configs", "--alter", "--user", "alice", "--add-config", "nonsense=1"),
        error="INVALID_REQUEST",
        words="Invalid configuration key nonsense",
        their_words="Unexpected config names: Set(nonsense)",
    )
    await beside_breakable.both_refuse(
        ("quotas", "alter", "--user", "alice", "--set", "producer_byte_rate=0"),
        ("kafka-configs", "--alter", "--user", "alice", "--add-config", "producer_byte_rate=0"),
        error="producer_byte_rate=0.0 is not allowed",
        words="above 0",
        their_words="Quota producer_byte_rate must be greater than 0",
    )
