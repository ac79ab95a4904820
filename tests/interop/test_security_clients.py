"""Clients of other libraries on the embedded cluster's TLS and SASL listeners.

Each mechanism accepts the right password and rejects a wrong one.
"""

from __future__ import annotations

import ssl
import time
from typing import Any

import pytest

from asyncgroup.broker import EmbeddedCluster, ListenerSecurity
from tests.interop.test_foreign_clients import in_thread
from tests.real.certificates import Authority

MECHANISMS = ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]
USERS = {"alice": "se=cr,et"}
WAIT = 20.0


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def secured(authority: Authority) -> dict[str, ListenerSecurity]:
    return {
        "SASL_PLAINTEXT": ListenerSecurity(users=USERS),
        "SASL_SSL": ListenerSecurity(users=USERS, cert_file=authority.sign("broker", "IP:127.0.0.1")),
    }


WAYS = [("SASL_PLAINTEXT", mechanism) for mechanism in MECHANISMS] + [("SASL_SSL", "SCRAM-SHA-512")]


@pytest.mark.parametrize(("protocol", "mechanism"), WAYS)
async def test_aiokafka(secured: Any, authority: Authority, protocol: str, mechanism: str) -> None:
    from aiokafka import AIOKafkaProducer
    from aiokafka.errors import KafkaError

    context = ssl.create_default_context(cafile=authority.ca_file) if protocol == "SASL_SSL" else None
    async with EmbeddedCluster(2, security=secured[protocol]) as cluster:
        cluster.create_topic("t")

        def producer(password: str) -> AIOKafkaProducer:
            return AIOKafkaProducer(
                bootstrap_servers=cluster.bootstrap_servers,
                security_protocol=protocol,
                sasl_mechanism=mechanism,
                sasl_plain_username="alice",
                sasl_plain_password=password,
                ssl_context=context,
            )

        async with producer("se=cr,et") as allowed:
            await allowed.send_and_wait("t", b"one")
        assert [record.value for record in cluster.records("t")] == [b"one"]
        refused = producer("wrong")
        with pytest.raises(KafkaError):
            await refused.start()
        await refused.stop()


def confluent(servers: str, ca_file: str, protocol: str, mechanism: str) -> str:
    """Produce a record; then return the error of a client with a wrong password."""
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient

    errors: list[Any] = []
    options = {
        "bootstrap.servers": servers,
        "security.protocol": protocol,
        "sasl.mechanism": mechanism,
        "sasl.username": "alice",
        "ssl.ca.location": ca_file,
        "log_level": 0,
    }
    producer = Producer({**options, "sasl.password": "se=cr,et"})
    producer.produce("t", b"one")
    assert producer.flush(WAIT) == 0
    wrong = AdminClient({**options, "sasl.password": "wrong", "error_cb": errors.append})
    until = time.monotonic() + WAIT
    while not errors and time.monotonic() < until:
        wrong.poll(0.1)
    return errors[0].name()


@pytest.mark.parametrize(("protocol", "mechanism"), WAYS)
async def test_confluent(secured: Any, authority: Authority, protocol: str, mechanism: str) -> None:
    async with EmbeddedCluster(2, security=secured[protocol]) as cluster:
        cluster.create_topic("t")
        error = await in_thread(confluent, cluster.bootstrap_servers, authority.ca_file, protocol, mechanism)
        assert error == "_AUTHENTICATION"
        assert [record.value for record in cluster.records("t")] == [b"one"]


def kafka_python(servers: str, ca_file: str, protocol: str, mechanism: str) -> str:
    """Like `confluent`; return the name of the exception."""
    from kafka import KafkaAdminClient, KafkaProducer
    from kafka.errors import KafkaError

    options = {
        "bootstrap_servers": servers,
        "security_protocol": protocol,
        "sasl_mechanism": mechanism,
        "sasl_plain_username": "alice",
        "ssl_cafile": ca_file,
    }
    producer = KafkaProducer(**options, sasl_plain_password="se=cr,et")
    producer.send("t", b"one").get(WAIT)
    producer.close()
    made: list[Any] = []

    def client(**settings: Any) -> Any:
        made.append(KafkaAdminClient.DEFAULT_CONFIG["kafka_client"](**settings))
        return made[0]

    try:
        KafkaAdminClient(
            **options, sasl_plain_password="wrong", bootstrap_timeout_ms=1000, kafka_client=client
        ).close()
    except KafkaError as error:
        return type(error).__name__
    finally:
        made[0]._net.stop()  # it leaks its thread and sockets if it cannot connect
        made[0].close()
    return "none"


@pytest.mark.full
@pytest.mark.parametrize(("protocol", "mechanism"), WAYS)
async def test_kafka_python(secured: Any, authority: Authority, protocol: str, mechanism: str) -> None:
    async with EmbeddedCluster(2, security=secured[protocol]) as cluster:
        cluster.create_topic("t")
        error = await in_thread(
            kafka_python, cluster.bootstrap_servers, authority.ca_file, protocol, mechanism
        )
        assert [record.value for record in cluster.records("t")] == [b"one"]
        refused = [
            exchange
            for exchange in cluster.history
            if exchange.api == "SaslAuthenticate" and exchange.response.error_code
        ]
        assert refused
        assert error != "none"
