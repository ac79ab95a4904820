"""Stories about SASL: at a listener without it, and at one of SASL_PLAINTEXT with users (`KAFKA_SASL`, `OUR_SASL`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from asyncgroup.broker import ListenerSecurity
from asyncgroup.cluster.authentication import ScramClient
from asyncgroup.wire import messages as m
from tests.broker.client import VERSIONS, Disconnected
from tests.interop.parity.scene import Scene

__all__ = [
    "KAFKA_SASL",
    "OUR_SASL",
    "SCRAM_USERS",
    "exchanges",
    "sasl_without_a_sasl_listener",
    "sessions",
    "unasked",
]

_JAAS: Final = "org.apache.kafka.common.security"

SCRAM_USERS: Final = {"alice": "alice-secret", "bob": "bob-secret"}

KAFKA_SASL: Final[Mapping[str, str | int | bool]] = {
    "listener.name.sasl.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
    "listener.name.sasl.plain.sasl.jaas.config": f"{_JAAS}.plain.PlainLoginModule required "
    + " ".join(f'user_{name}="{password}"' for name, password in SCRAM_USERS.items())
    + ";",
    "listener.name.sasl.scram-sha-256.sasl.jaas.config": f"{_JAAS}.scram.ScramLoginModule required;",
    "listener.name.sasl.scram-sha-512.sasl.jaas.config": f"{_JAAS}.scram.ScramLoginModule required;",
    "connections.max.reauth.ms": 60_000,
    "connection.failed.authentication.delay.ms": 0,  # otherwise each failure waits for the next poll, up to 0.3 s
}
"""The broker properties of the Apache Kafka that these stories run on; its listener is called SASL."""

OUR_SASL: Final[Mapping[str, Any]] = {"security": ListenerSecurity(users=SCRAM_USERS, max_reauth=60.0)}


async def sasl_without_a_sasl_listener(scene: Scene) -> None:
    """On a listener without SASL both requests are rejected, and the connection stays open."""
    await scene.ask("handshake", m.SaslHandshakeRequest("PLAIN"))
    await scene.ask("a token", m.SaslAuthenticateRequest(b"\0a\0b"))
    # With an unknown group: a list of all would contain the groups of other stories.
    await scene.ask("it goes on", m.DescribeGroupsRequest(["no-such-group"]), version=1)


async def _shake(scene: Scene, label: str, mechanism: str, version: int = 1) -> Any:
    """Sort the mechanisms: in Kafka they have the order of a hash set."""
    request = m.SaslHandshakeRequest(mechanism)
    answer = await scene.peek(await scene.send(label, request, via=label, version=version))
    if answer is not None:
        answer.mechanisms = sorted(answer.mechanisms)
    scene.keep(f"{label}, handshake", answer, version)
    return answer


async def _say(scene: Scene, label: str, said: bytes, step: str = "token") -> Any:
    """Also keep the error messages, but not random values."""
    version = scene.version("SaslAuthenticate")
    answer = await scene.peek(
        await scene.send(label, m.SaslAuthenticateRequest(said), via=label, version=version)
    )
    if answer is None:
        scene.keep(f"{label}, {step}", None)
        return None
    bare, answer.auth_bytes = answer.auth_bytes, bytes(answer.auth_bytes)[:2]
    scene.keep(f"{label}, {step}", answer, version)
    scene.keep(f"{label}, {step}, said", answer.error_message)
    answer.auth_bytes = bare
    return answer


async def _goes_on(scene: Scene, label: str) -> None:
    await scene.ask(f"{label}, afterwards", m.ListGroupsRequest(), via=label, version=1)


async def _scram(scene: Scene, label: str, mechanism: str, user: str, password: str) -> None:
    await _shake(scene, label, mechanism)
    exchange = ScramClient(mechanism, user, password)
    answer = await _say(scene, label, exchange.first(), "first")
    if answer is not None and not answer.error_code:
        await _say(scene, label, exchange.final(answer.auth_bytes), "final")
    await _goes_on(scene, label)


async def exchanges(scene: Scene) -> None:
    """Each mechanism with correct and wrong passwords, and malformed tokens."""
    for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
        await _scram(scene, f"{mechanism}, right", mechanism, "alice", "alice-secret")
        await _scram(scene, f"{mechanism}, wrong", mechanism, "alice", "wrong")
        await _scram(scene, f"{mechanism}, nobody", mechanism, "nobody", "x")
        for number, said in enumerate(
            (b"", b"x", b"n,,n=alice", b"n,a=bob,n=alice,r=1", b"y,,n=alice,r=1", b"n,,n=alice,r=1,z=2", b"n,,n=\xff,r=1")
        ):  # fmt: skip
            label = f"{mechanism}, message {number}"
            await _shake(scene, label, mechanism)
            await _say(scene, label, said)
            await _goes_on(scene, label)
    for number, said in enumerate(
        (b"\0alice\0alice-secret", b"\0alice\0wrong", b"\0nobody\0x", b"\0\0x", b"\0alice\0", b"alice", b"", b"a\0b\0c\0d",
         b"bob\0alice\0alice-secret", b"alice\0alice\0alice-secret")
    ):  # fmt: skip
        label = f"PLAIN, message {number}"
        await _shake(scene, label, "PLAIN")
        await _say(scene, label, said)
        await _goes_on(scene, label)
        await _bare(scene, f"PLAIN, message {number}, no headers", said)


async def _bare(scene: Scene, label: str, said: bytes) -> None:
    """A token after version 0 of the handshake, without headers."""
    await _shake(scene, label, "PLAIN", 0)
    client = await scene.client(label)
    client.send_frame(said)
    try:
        scene.keep(f"{label}, token", (await client.receive_frame()).hex())
    except Disconnected:
        scene.keep(f"{label}, token", None)
        await scene.hang_up(label)
    else:
        await _goes_on(scene, label)


async def unasked(scene: Scene) -> None:
    """Requests at unexpected times."""
    await scene.ask("metadata first", m.MetadataRequest(), via="1")
    answer = await scene.peek(await scene.send("versions", VERSIONS, via="2", version=0))
    scene.keep("versions", bool(answer.api_keys))
    await scene.ask("versions twice", VERSIONS, via="2", version=0)
    await _shake(scene, "versions late", "PLAIN")
    await scene.ask("versions between", VERSIONS, via="versions late", version=0)
    await scene.ask("token first", m.SaslAuthenticateRequest(b"\0alice\0alice-secret"), via="3")
    await _shake(scene, "groups late", "PLAIN")
    await scene.ask("groups between", m.ListGroupsRequest(), via="groups late")
    await _goes_on(scene, "groups late")
    await _shake(scene, "unknown mechanism", "GSSAPI")
    await _goes_on(scene, "unknown mechanism")
    await _shake(scene, "empty mechanism", "", scene.version("SaslHandshake"))
    client = await scene.client("large")
    client.send_bytes((524_289).to_bytes(4, "big") + b"\0\x12\0\0\0\0\0\1\xff\xff")
    try:
        await client.receive_frame()
    except Disconnected:
        scene.keep("a large frame", None)
    await scene.hang_up("large")


async def sessions(scene: Scene) -> None:
    """Reauthentication on the same connection (KIP-368)."""
    right, bob = b"\0alice\0alice-secret", b"\0bob\0bob-secret"
    for label, mechanism, said in (
        ("again", "PLAIN", right),
        ("another user", "PLAIN", bob),
        ("wrong password", "PLAIN", b"\0alice\0wrong"),
        ("another mechanism", "SCRAM-SHA-256", b"n,,n=alice,r=1"),
    ):
        await _shake(scene, label, "PLAIN")
        await _say(scene, label, right)
        await scene.ask(f"{label}, a token too many", m.SaslAuthenticateRequest(right), via=label, version=1)
        request = m.SaslHandshakeRequest(mechanism)
        answer = await scene.peek(await scene.send(label, request, via=label, version=1))
        scene.keep(f"{label}, second handshake", answer.error_code)
        await _say(scene, label, said, "second token")
        await _goes_on(scene, label)
