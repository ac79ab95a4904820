"""Stories about the whole cluster: quotas, SCRAM users, ACLs, features, log directories, the quorum."""

from __future__ import annotations

import asyncio
from typing import Any

from asyncgroup.wire import messages as m
from tests.interop.parity.scene import LIMIT, PAUSE, Scene
from tests.interop.parity.server import levels_in

__all__ = ["acls", "features", "moved_directories", "quorum", "quotas", "scram_users"]

Named = list[tuple[str, str | None]]
Ops = list[tuple[str, float, bool]]


def _quota(*entries: tuple[Named, Ops], validate: bool = False) -> Any:
    cls = m.AlterClientQuotasRequest
    return cls(
        [
            cls.EntryData([cls.EntityData(*part) for part in entity], [cls.OpData(*op) for op in ops])
            for entity, ops in entries
        ],
        validate,
    )


def _quotas_of(*components: tuple[str, int, str | None], strict: bool = False) -> Any:
    cls = m.DescribeClientQuotasRequest
    return cls([cls.ComponentData(*each) for each in components], strict)


async def quotas(scene: Scene) -> None:
    """AlterClientQuotas and DescribeClientQuotas (KIP-546)."""
    user, client = scene.named("user"), scene.named("client")
    one: Named = [("user", user)]
    rate: Ops = [("producer_byte_rate", 1000.0, False)]
    refused: dict[str, tuple[Named, Ops]] = {
        "nobody": ([], rate),
        "an unknown type": ([("group", "g")], rate),
        "an empty name": ([("user", "")], rate),
        "an address with a user": ([("user", user), ("ip", "127.0.0.1")], rate),
        "an address with a rate of bytes": ([("ip", "127.0.0.1")], rate),
        "no address": ([("ip", "not an address")], [("connection_creation_rate", 1.0, False)]),
        "an unknown key": (one, [("foo", 1.0, False)]),
        "zero": (one, [("producer_byte_rate", 0.0, False)]),
        "less than zero": (one, [("request_percentage", -1.0, False)]),
        "a fraction": (one, [("producer_byte_rate", 1.5, False)]),
        "too large": (one, [("consumer_byte_rate", 1e30, False)]),
        "twice the same": (one, rate * 2),
        "one good, one bad": (one, [*rate, ("foo", 1.0, False)]),
    }
    for label, entry in refused.items():
        await scene.ask(label, _quota(entry))
    await scene.ask("nothing is there", _quotas_of(("user", 0, user)))
    await scene.ask("only tried", _quota((one, rate), validate=True))
    await scene.ask("removed before it is there", _quota((one, [("producer_byte_rate", 0.0, True)])))
    both: Named = [("user", user), ("client-id", client)]
    await scene.ask(
        "several",
        _quota(
            (one, [*rate, ("request_percentage", 12.5, False)]),
            (both, [("consumer_byte_rate", 5.0, False)]),
            ([("client-id", client)], [("controller_mutation_rate", 0.5, False)]),
        ),
    )
    await scene.ask("none", _quota())
    found = {
        "of the client": _quotas_of(("client-id", 0, client)),
        "of the user": _quotas_of(("user", 0, user)),
        "of the user only": _quotas_of(("user", 0, user), strict=True),
        "of both": _quotas_of(("user", 0, user), ("client-id", 0, client)),
        "of the user with any client": _quotas_of(("user", 0, user), ("client-id", 2, None)),
        "of all others": _quotas_of(("user", 1, None)),
        "of an address": _quotas_of(("ip", 0, "127.0.0.1")),
        "of an unknown type": _quotas_of(("group", 0, "g")),
        "of no type": _quotas_of(("", 0, "g")),
        "twice": _quotas_of(("user", 0, user), ("user", 2, None)),
        "of an address and a user": _quotas_of(("ip", 0, "127.0.0.1"), ("user", 2, None)),
        "exact without a name": _quotas_of(("user", 0, None)),
        "default with a name": _quotas_of(("user", 1, user)),
        "any with a name": _quotas_of(("user", 2, user)),
        "an unknown match": _quotas_of(("user", 3, None)),
    }
    for number, (label, request) in enumerate(found.items()):
        await scene.ask(label, request, until=None if number else lambda answer: len(answer.entries) == 2)
    gone: Ops = [(key, 0.0, True) for key in ("producer_byte_rate", "request_percentage")]
    await scene.ask("taken away", _quota((one, gone), (both, [("consumer_byte_rate", 0.0, True)])))
    await scene.ask(
        "and the last", _quota(([("client-id", client)], [("controller_mutation_rate", 0.0, True)]))
    )
    await scene.ask("at last", found["of the client"], until=lambda answer: not answer.entries)


async def scram_users(scene: Scene) -> None:
    """AlterUserScramCredentials and DescribeUserScramCredentials (KIP-554)."""
    cls, asked = m.AlterUserScramCredentialsRequest, m.DescribeUserScramCredentialsRequest
    upsert, delete = cls.ScramCredentialUpsertion, cls.ScramCredentialDeletion
    alice, bob = scene.named("alice"), scene.named("bob")
    good = (b"salt", b"salted password")
    cases: dict[str, tuple[list[Any], list[Any]]] = {
        "too few": ([], [upsert(alice, 1, 4095, *good)]),
        "too many": ([], [upsert(alice, 1, 16385, *good)]),
        "no mechanism": ([], [upsert(alice, 3, 4096, *good)]),
        "no name": ([], [upsert("", 1, 4096, *good)]),
        "twice": ([], [upsert(alice, 1, 4096, *good), upsert(alice, 2, 4096, *good)]),
        "not there": ([delete(alice, 1)], []),
        "deleted and made": ([delete(alice, 1)], [upsert(alice, 1, 4096, *good)]),
        "one good, one bad": ([delete(bob, 1)], [upsert(alice, 1, 4096, *good)]),
        "nothing": ([], []),
        "another mechanism": ([], [upsert(alice, 2, 8192, *good)]),
    }
    for label, (deletions, upsertions) in cases.items():
        await scene.ask(label, cls(deletions, upsertions))

    def described(*names: str) -> Any:
        return asked([asked.UserName(name) for name in names])

    await scene.ask(
        "described",
        described(alice, bob),
        until=lambda answer: any(len(each.credential_infos) == 2 for each in answer.results),
    )
    await scene.ask("described twice", described(alice, alice, bob))
    await scene.ask("deleted", cls([delete(alice, 2)], []))
    await scene.ask("deleted again", cls([delete(alice, 2)], []))
    await scene.ask("the last", cls([delete(alice, 1)], []))
    await scene.ask("at last", described(alice), until=lambda answer: answer.results[0].error_code)


async def acls(scene: Scene) -> None:
    """ACL requests without an authorizer (KIP-140)."""
    described, created, deleted = m.DescribeAclsRequest, m.CreateAclsRequest, m.DeleteAclsRequest
    await scene.ask("described", described(1, None, 1, None, None, 1, 1))
    creation = created.AclCreation(2, "topic", 3, "User:alice", "*", 3, 3)
    one = deleted.DeleteAclsFilter(2, "topic", 3, None, None, 1, 1)
    await scene.ask("created", created([creation, creation]))
    await scene.ask("none created", created([]))
    await scene.ask("deleted", deleted([one, one]))
    await scene.ask("none deleted", deleted([]))


async def features(scene: Scene) -> None:
    """UpdateFeatures (KIP-584): rejected levels, the current ones, and other levels of the transaction version."""
    cls, version = m.UpdateFeaturesRequest, scene.version("UpdateFeatures")

    def update(*wanted: tuple[str, int, int]) -> Any:
        def one(feature: str, level: int, kind: int) -> Any:
            more = {"upgrade_type": kind} if version >= 1 else {"allow_downgrade": kind > 1}
            return cls.FeatureUpdateKey(feature, level, **more)

        return cls(10_000, [one(*each) for each in wanted])

    cases = {
        "unknown": [("no.such.feature", 1, 1)],
        "unknown, at 0": [("no.such.feature", 0, 1)],
        "metadata, down": [("metadata.version", 29, 2)],
        "metadata, far down": [("metadata.version", 1, 2)],
        "metadata as it is": [("metadata.version", 30, 1)],
        "less than none": [("transaction.version", -1, 1)],
        "too high": [("transaction.version", 99, 1)],
        "down without saying so": [("transaction.version", 1, 1)],
        "so already": [("transaction.version", 2, 1)],
        "one good, one bad": [("transaction.version", 2, 1), ("no.such.feature", 1, 1)],
        "nothing": [],
    }
    for label, wanted in cases.items():
        await scene.ask(label, update(*wanted))
    if version >= 1:
        await scene.ask("an unknown way", update(("transaction.version", 2, 9)))
        await scene.ask(
            "only validated", cls(10_000, update(("transaction.version", 1, 2)).feature_updates, True)
        )
    await _levels(scene, "before", 2)
    now = 2
    for label, level, kind in (
        ("down to 1", 1, 2),
        ("once more", 1, 2),
        ("up, but called down", 2, 2),
        ("down to 0", 0, 3),
        ("up to 2", 2, 1),
    ):
        answer = await scene.ask(label, update(("transaction.version", level, kind)))
        now = now if answer.error_code else level
        await _levels(scene, f"after {label}", now)


async def _levels(scene: Scene, label: str, transactions: int) -> None:
    """Keep the levels of ApiVersions when the transaction version is the expected one."""
    async with asyncio.timeout(LIMIT):
        while True:
            answer = await scene.quietly(m.ApiVersionsRequest("parity", "1.0"), 4)
            levels = levels_in(answer)
            if levels.get("transaction.version", (0, 0)) == (transactions, transactions):
                break
            await asyncio.sleep(PAUSE)
    scene.keep(f"levels {label}", levels)


async def moved_directories(scene: Scene) -> None:
    """AlterReplicaLogDirs: to the current directory, and to unknown ones."""
    topic, cls, logs = await scene.topic("moved", 2), m.AlterReplicaLogDirsRequest, m.DescribeLogDirsRequest
    (here,) = (await scene.quietly(logs([logs.DescribableLogDirTopic(topic, [0])]), 4)).results
    for label, path in {"here": here.log_dir, "nowhere": "/no/such/directory"}.items():
        for name, wanted in {
            "both": [cls.AlterReplicaLogDirTopic(topic, [0, 1])],
            "one that is not there": [cls.AlterReplicaLogDirTopic(topic, [9])],
            "an unknown topic": [cls.AlterReplicaLogDirTopic("nothing", [0])],
            "no topics": [],
        }.items():
            await scene.ask(f"{name} {label}", cls([cls.AlterReplicaLogDir(path, wanted)]))
    await scene.ask("nothing", cls([]))


async def quorum(scene: Scene) -> None:
    """DescribeQuorum (KIP-595): leader and voters; offsets and timestamps are not compared."""
    cls, version = m.DescribeQuorumRequest, scene.version("DescribeQuorum")

    def asked(name: str, *indexes: int) -> Any:
        return cls([cls.TopicData(name, [cls.PartitionData(index) for index in indexes])])

    answer = await scene.quietly(asked("__cluster_metadata", 0), version)
    for partition in (partition for topic in answer.topics for partition in topic.partitions):
        partition.leader_epoch = partition.high_watermark = 0
        for voter in (*partition.current_voters, *partition.observers):
            voter.log_end_offset = voter.last_fetch_timestamp = voter.last_caught_up_timestamp = 0
            if version >= 2:
                voter.replica_directory_id = None
    for node in answer.nodes:
        for listener in node.listeners:
            listener.name = "<listener>"
    scene.keep("the quorum", answer, version)
    await scene.ask("another topic", asked("nothing", 0))
    await scene.ask("another partition", asked("__cluster_metadata", 1))
    await scene.ask("two partitions", asked("__cluster_metadata", 0, 1))
    await scene.ask("no topics", cls([]))
