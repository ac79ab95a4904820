"""Admin, SCRAM users: described, created, changed and deleted; the passwords never leave this process and are never shown."""

from __future__ import annotations

import copy
import hashlib
import pickle
from dataclasses import asdict
from typing import Any

import pytest

from asyncgroup import ConfigError, ErrorCode
from asyncgroup.admin import Admin, UserScramCredentialDeletion, UserScramCredentialUpsertion
from asyncgroup.errors import UsageError
from asyncgroup.secret import Secret
from tests.admin.test_brokers import code
from tests.stories.virtual import VirtualEnvironment

SHA_256, SHA_512 = "SCRAM-SHA-256", "SCRAM-SHA-512"
PASSWORD = "hunter2"

Upsertion, Deletion = UserScramCredentialUpsertion, UserScramCredentialDeletion


async def test_users_from_their_creation_to_their_end(admin: Admin, env: VirtualEnvironment) -> None:
    assert not await admin.users.describe()
    created = await admin.users.alter(
        [
            Upsertion("alice", PASSWORD),
            Upsertion("alice", Secret(PASSWORD), SHA_256, iterations=8192),
            Upsertion("bob", PASSWORD),
        ]
    )
    assert set(created.raise_first()) == {("alice", SHA_512), ("alice", SHA_256), ("bob", SHA_512)}
    # one request may name a user once only
    assert len(env.cluster.history.of("AlterUserScramCredentials")) == 2
    found = (await admin.users.describe()).raise_first()
    assert found == {"alice": {SHA_256: 8192, SHA_512: 4096}, "bob": {SHA_512: 4096}}
    some = await admin.users.describe(["bob", "carol"])
    assert some.values_by_name == {"bob": {SHA_512: 4096}}
    assert code(some["carol"]) == ErrorCode.RESOURCE_NOT_FOUND
    assert str(some["carol"]).startswith("describing SCRAM user 'carol': RESOURCE_NOT_FOUND (91)")
    changed = await admin.users.alter([Deletion("alice", SHA_256), Deletion("bob"), Deletion("carol")])
    assert set(changed.values_by_name) == {("alice", SHA_256), ("bob", SHA_512)}
    assert code(changed[("carol", SHA_512)]) == ErrorCode.RESOURCE_NOT_FOUND
    assert (await admin.users.describe()).raise_first() == {"alice": {SHA_512: 4096}}


async def test_the_broker_gets_the_salted_hash(admin: Admin, env: VirtualEnvironment) -> None:
    changes = [
        Upsertion("a", PASSWORD, SHA_256, salt=b"salt"),
        Upsertion("b", PASSWORD),
        Upsertion("c", PASSWORD),
    ]
    (await admin.users.alter(changes)).raise_first()
    (exchange,) = env.cluster.history.of("AlterUserScramCredentials")
    first, *others = exchange.request.upsertions
    assert bytes(first.salted_password) == hashlib.pbkdf2_hmac("sha256", PASSWORD.encode(), b"salt", 4096)
    assert {len(each.salt) for each in others} == {32}
    assert others[0].salt != others[1].salt
    assert PASSWORD not in repr(exchange.request)
    assert PASSWORD.encode() not in first.salted_password


async def test_a_password_is_never_shown() -> None:
    change = Upsertion("alice", PASSWORD)
    assert isinstance(change.password, Secret)
    for text in (repr(change), str(change), repr(asdict(change)), repr(copy.deepcopy(change))):
        assert PASSWORD not in text
        assert "[hidden]" in text
    with pytest.raises(UsageError):
        pickle.dumps(change)


async def test_a_deletion_whose_response_is_lost_is_a_success(admin: Admin, env: VirtualEnvironment) -> None:
    (await admin.users.alter([Upsertion("alice", PASSWORD)])).raise_first()
    env.cluster.faults.on("AlterUserScramCredentials").error("NOT_CONTROLLER")
    env.cluster.faults.on("AlterUserScramCredentials").disconnect("after")
    (await admin.users.alter([Deletion("alice")])).raise_first()
    assert not await admin.users.describe()


async def test_the_repetition_of_a_request_without_response_has_only_what_is_left(
    admin: Admin, env: VirtualEnvironment
) -> None:
    mechanisms = ("SCRAM-SHA-256", "SCRAM-SHA-512")
    (await admin.users.alter([Upsertion("bob", "s", each) for each in mechanisms])).raise_first()
    # one request may name each user once only
    env.cluster.faults.on("AlterUserScramCredentials", nth=2).disconnect("after")
    (await admin.users.alter([Deletion("bob", each) for each in mechanisms])).raise_first()
    assert not (await admin.users.describe()).values_by_name


async def test_a_refusal_of_the_whole_request(admin: Admin, env: VirtualEnvironment) -> None:
    env.cluster.faults.on("DescribeUserScramCredentials").error("CLUSTER_AUTHORIZATION_FAILED")
    found = await admin.users.describe(["alice"])
    assert code(found["alice"]) == ErrorCode.CLUSTER_AUTHORIZATION_FAILED


async def test_bad_arguments(admin: Admin, env: VirtualEnvironment) -> None:
    cases: list[tuple[str, list[Any]]] = [
        ("user=''", [Upsertion("", PASSWORD)]),
        ("mechanism='PLAIN' .*SCRAM-SHA-256", [Upsertion("a", PASSWORD, "PLAIN")]),
        ("password='\\[hidden]'", [Upsertion("a", "")]),
        ("password='\\[hidden]'", [Upsertion("a", PASSWORD.encode())]),  # type: ignore[arg-type]
        ("iterations=4095 .*4096 to 16384", [Upsertion("a", PASSWORD, iterations=4095)]),
        ("iterations=16385", [Upsertion("a", PASSWORD, iterations=16385)]),
        ("salt='\\[hidden]'", [Upsertion("a", PASSWORD, salt=b"")]),
        ("one change for SCRAM-SHA-512", [Upsertion("a", PASSWORD), Deletion("a")]),
        ("UserScramCredentialUpsertion", [("a", PASSWORD)]),
        ("mechanism='PLAIN'", [Deletion("a", "PLAIN")]),
    ]
    for text, changes in cases:
        with pytest.raises(ConfigError, match=text) as caught:
            await admin.users.alter(changes)
        assert PASSWORD not in str(caught.value)
    with pytest.raises(ConfigError, match="user=''"):
        await admin.users.describe("")
    assert not env.cluster.history.of("AlterUserScramCredentials", "DescribeUserScramCredentials")
