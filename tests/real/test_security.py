"""TLS and SASL on a real Kafka: one node with a listener for each kind of security, and errors at the wrong listener."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from asyncgroup import (
    Claim,
    Cluster,
    Consumer,
    ConsumerConfig,
    ConsumerGroup,
    OffsetManager,
    Producer,
    Session,
)
from asyncgroup.config import ClientConfig, ProducerConfig
from asyncgroup.errors import AuthenticationError, NoBrokersError
from asyncgroup.hooks import Hooks
from asyncgroup.security import OAuthBearer, Plain, Scram, Security, Tls
from asyncgroup.spark import register
from asyncgroup.testing.apache_kafka import ApacheKafka
from asyncgroup.wire import messages as m
from tests.real.certificates import Authority

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PASSWORD = 'se=cr,et "quoted"'
JAAS = "org.apache.kafka.common.security"


class Secured(NamedTuple):
    kafka: ApacheKafka
    ca_file: str
    client_file: str
    other_ca_file: str

    def servers(self, listener: str) -> str:
        return self.kafka.address(1, listener)


def listener(name: str, **more: str) -> dict[str, str]:
    return {f"listener.name.{name}.{key.replace('__', '.')}": value for key, value in more.items()}


def properties(authority: Authority) -> dict[str, Any]:
    plain = (
        f'{JAAS}.plain.PlainLoginModule required user_alice="{PASSWORD.replace(chr(34), chr(92) + chr(34))}";'
    )
    scram = f"{JAAS}.scram.ScramLoginModule required;"
    bearer = f'{JAAS}.oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="broker";'
    stores = {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": authority.sign("broker", "IP:127.0.0.1"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": authority.ca_file,
    }
    return {
        **{
            f"listener.name.{name}.{key}": value
            for name in ("secure", "mutual")
            for key, value in stores.items()
        },
        "listener.name.mutual.ssl.client.auth": "required",
        "listener.name.sasl.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
        "listener.name.sasl.plain.sasl.jaas.config": plain,
        "listener.name.sasl.scram-sha-256.sasl.jaas.config": scram,
        "listener.name.sasl.scram-sha-256.connections.max.reauth.ms": 1000,
        "listener.name.sasl.scram-sha-512.sasl.jaas.config": scram,
        "listener.name.sasl.oauthbearer.sasl.jaas.config": bearer,
        "listener.name.secure.sasl.enabled.mechanisms": "SCRAM-SHA-512",
        "listener.name.secure.scram-sha-512.sasl.jaas.config": scram,
    }


@pytest.fixture(scope="module")
def secured(kafka_at_hand: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("certificates")
    authority, other_authority = Authority(folder), Authority(folder, "stranger")
    listeners = {"SASL": "SASL_PLAINTEXT", "SECURE": "SASL_SSL", "MUTUAL": "SSL"}
    with ApacheKafka(
        properties=properties(authority),
        listeners=listeners,
        scram_users={"alice": "scr-secret", "bob": "scr-secret"},
    ) as kafka:
        yield Secured(
            kafka, authority.ca_file, authority.sign("client", "DNS:client"), other_authority.ca_file
        )


async def unsecured_token() -> str:
    """Return an unsecured JWS, which Kafka's default OAUTHBEARER handlers accept."""
    parts = ({"alg": "none"}, {"sub": "alice", "iat": 1_700_000_000, "exp": 4_000_000_000})
    return (
        ".".join(base64.urlsafe_b64encode(json.dumps(p).encode()).decode().rstrip("=") for p in parts) + "."
    )


async def create_topic(cluster: Cluster, name: str) -> None:
    topic = m.CreateTopicsRequest.CreatableTopic(name=name, num_partitions=1, replication_factor=1)
    request = m.CreateTopicsRequest(topics=[topic], timeout_ms=30_000)
    response = await cluster.request(cluster.view.controller_id, request)
    assert response.topics[0].error_code in (0, 36)
    await cluster.topics([name])


@pytest.mark.parametrize("sasl", [
    Plain("alice", PASSWORD),
    Scram("alice", "scr-secret", "SCRAM-SHA-256"),
    Scram("alice", "scr-secret", "SCRAM-SHA-512"),
    OAuthBearer(unsecured_token, {"traceId": "123"}),
], ids=lambda sasl: sasl.mechanism)  # fmt: skip
async def test_every_mechanism(secured: Secured, sasl: Any) -> None:
    config = ClientConfig(security=Security(sasl=sasl))
    async with Cluster(secured.servers("SASL"), config) as cluster:
        assert await cluster.all_topics() is not None
        assert str(cluster.view.brokers[1].port) in secured.servers("SASL")


async def test_a_group_over_tls_and_scram(secured: Secured) -> None:
    """Both clients are configured by Kafka's property names."""
    given = {
        "bootstrap.servers": secured.servers("SECURE"),
        "security.protocol": "SASL_SSL",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": secured.ca_file,
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": f'{JAAS}.scram.ScramLoginModule required username="alice" password="scr-secret";',
    }
    produce, rest = ProducerConfig.from_properties({**given, "linger.ms": "0"})
    servers = rest["bootstrap.servers"]
    values = [b"%d" % number * 20_000 for number in range(10)]  # larger than a TLS record and than one read
    async with Cluster(servers, produce) as cluster:
        await create_topic(cluster, "secured")
        async with Producer(cluster, produce) as producer:
            await asyncio.gather(*(producer.send("secured", value) for value in values))
    consume, rest = ConsumerConfig.from_properties(
        {**given, "auto.offset.reset": "earliest", "group.id": "readers"}
    )
    seen: list[bytes | None] = []
    async with ConsumerGroup(rest["bootstrap.servers"], rest["group.id"], consume) as group:

        async def read(session: Session, claim: Claim) -> None:
            async for record in claim:
                seen.append(record.value)
                claim.mark(record)
                if len(seen) == len(values):
                    return

        async with asyncio.timeout(20):
            await group.consume("secured", read)
    assert seen == values


async def test_reauthentication_before_the_session_ends(secured: Secured) -> None:
    """connections.max.reauth.ms is 1 s: at a later request the broker would close the connection."""

    class ConnectHook:
        connected = 0
        lost: list[Any] = []

        def on_connect(self, *_: Any) -> None:
            self.connected += 1

    events = ConnectHook()
    config = ClientConfig(security=Security(sasl=Scram("alice", "scr-secret", "SCRAM-SHA-256")))
    async with Cluster(secured.servers("SASL"), config, hooks=Hooks([events])) as cluster:
        start = asyncio.get_running_loop().time()
        while asyncio.get_running_loop().time() < start + 2.2:
            await cluster.request(1, m.ListGroupsRequest())
            await asyncio.sleep(0.05)
    assert 3 <= events.connected <= 4


@pytest.mark.parametrize(("sasl", "secret"), [
    (Plain("alice", "wr0ng-one"), "wr0ng-one"),
    (Scram("alice", "wr0ng-one", "SCRAM-SHA-512"), "wr0ng-one"),
    (Scram("nobody", "scr-secret", "SCRAM-SHA-256"), "scr-secret"),
], ids=["PLAIN", "SCRAM", "SCRAM user"])  # fmt: skip
async def test_wrong_credentials_raise_from_run(
    secured: Secured, sasl: Any, secret: str, caplog: pytest.LogCaptureFixture
) -> None:
    config = ConsumerConfig(security=Security(sasl=sasl))
    with pytest.raises(AuthenticationError) as caught:
        async with ConsumerGroup(secured.servers("SASL"), "g", config) as group:
            await group.run("t", read_nothing)
    message = str(caught.value)
    assert f"SASL/{sasl.mechanism} as user {sasl.username!r}: SASL_AUTHENTICATION_FAILED (58)" in message
    assert secured.servers("SASL") in message
    assert secret not in message + caplog.text + repr(config)


async def read_nothing(session: Session, claim: Claim) -> None:
    async for _ in claim:
        pass


async def test_deleted_credentials_end_group_and_consumer(secured: Secured) -> None:
    """At the next reauthentication, within 1 s here, they raise the error instead of retrying."""
    config = ConsumerConfig(
        security=Security(sasl=Scram("bob", "scr-secret", "SCRAM-SHA-256")), heartbeat_interval=0.3
    )
    servers, kafka = secured.servers("SASL"), secured.kafka
    async with Cluster(kafka.bootstrap_servers) as cluster:
        await create_topic(cluster, "guarded")
    reading = asyncio.Event()

    async def read(session: Session, claim: Claim) -> None:
        reading.set()
        await read_nothing(session, claim)

    async with ConsumerGroup(servers, "guards", config) as group, Consumer(servers, config) as consumer:
        partition = await consumer.partition("guarded", 0)
        running = [
            asyncio.create_task(group.run("guarded", read)),
            asyncio.create_task(anext(aiter(partition))),
        ]
        await reading.wait()
        await asyncio.to_thread(
            kafka.run_tool, "kafka.admin.ConfigCommand", "--bootstrap-server", kafka.bootstrap_servers, "--alter",
            "--delete-config", "SCRAM-SHA-256", "--entity-type", "users", "--entity-name", "bob",
        )  # fmt: skip
        ends = await asyncio.wait_for(asyncio.gather(*running, return_exceptions=True), 20)
    assert [type(end) for end in ends] == [AuthenticationError, AuthenticationError]


async def connection_error(servers: str, security: Security | None) -> str:
    """Return class and text of the error of a connection; an error that retries cannot fix is an AuthenticationError."""
    with pytest.raises((AuthenticationError, NoBrokersError)) as caught:
        async with Cluster(servers, ClientConfig(security=security, connect_timeout=3.0)):
            pass
    return f"{type(caught.value).__name__}: {caught.value}"


async def test_errors_of_the_wrong_listener(secured: Secured) -> None:
    tls = Tls(ca_file=secured.ca_file)
    alice = Scram("alice", "scr-secret")
    assert "AuthenticationError" in (
        message := await connection_error(
            secured.servers("SECURE"), Security(tls=tls, sasl=Plain("alice", "x"))
        )
    )
    assert "does not offer SASL/PLAIN; it offers SCRAM-SHA-512" in message
    assert "does not support SASL/SCRAM-SHA-512" in await connection_error(
        secured.servers("PLAINTEXT"), Security(sasl=alice)
    )
    assert "does the listener require SASL?" in await connection_error(secured.servers("SASL"), None)
    assert "is it a TLS listener?" in await connection_error(secured.servers("PLAINTEXT"), Security(tls=tls))
    assert "TLS" in await connection_error(secured.servers("SECURE"), None)


async def test_certificates(secured: Secured) -> None:
    mutual = secured.servers("MUTUAL")
    trusting = Tls(ca_file=secured.ca_file, cert_file=secured.client_file)
    async with Cluster(mutual, ClientConfig(security=Security(tls=trusting))) as cluster:
        assert 1 in cluster.view.brokers
    pem = Path(secured.client_file).read_text()
    inline = Tls(ca_data=Path(secured.ca_file).read_text(), cert_data=pem, key_data=pem)
    async with Cluster(mutual, ClientConfig(security=Security(tls=inline))) as cluster:
        assert 1 in cluster.view.brokers
    assert "NoBrokersError" in (
        message := await connection_error(mutual, Security(tls=Tls(ca_file=secured.ca_file)))
    )
    assert "certificate" in message.lower()
    message = await connection_error(mutual, Security(tls=Tls(ca_file=secured.other_ca_file)))
    assert "AuthenticationError" in message
    assert "not trusted" in message
    named = mutual.replace("127.0.0.1", "localhost")
    message = await connection_error(named, Security(tls=trusting))
    assert "AuthenticationError" in message
    assert "is not valid for 'localhost'" in message
    loose = Tls(ca_file=secured.ca_file, cert_file=secured.client_file, check_hostname=False)
    async with Cluster(named, ClientConfig(security=Security(tls=loose))) as cluster:
        assert 1 in cluster.view.brokers


# --- Spark's source ---------------------------------------------------------------------------------------------------


def spark_options(secured: Secured, way: str) -> dict[str, str]:
    """Return the options of a query in the form of Spark's own source."""
    line = '{0}Module required\n  username="alice"\n  password="{1}";'.format
    client = Path(secured.client_file).read_text()
    key, _, chain = client.partition("-----BEGIN CERTIFICATE-----")
    trust = {"ssl.truststore.type": "PEM", "ssl.truststore.location": secured.ca_file}
    given = {
        "PLAIN": {
            "bootstrap.servers": secured.servers("SASL"),
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.jaas.config": line(f"{JAAS}.plain.PlainLogin", PASSWORD.replace('"', '\\"')),
        },
        "SCRAM-SHA-512": {
            "bootstrap.servers": secured.servers("SECURE"),
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.jaas.config": line(f"{JAAS}.scram.ScramLogin", "scr-secret"),
            **trust,
        },
        "mutual TLS": {
            "bootstrap.servers": secured.servers("MUTUAL"),
            "security.protocol": "SSL",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.certificates": Path(secured.ca_file).read_text(),
            "ssl.keystore.type": "PEM",
            "ssl.keystore.key": key,
            "ssl.keystore.certificate.chain": "-----BEGIN CERTIFICATE-----" + chain,
        },
    }
    return {f"kafka.{name}": value for name, value in given[way].items()}


def explained(frame: Any) -> str:
    """Return Spark's explanation of a query."""
    plan = io.StringIO()
    with contextlib.redirect_stdout(plan):
        frame.explain(True)
    return plan.getvalue()


SECRETS = ("scr-secret", PASSWORD, "PRIVATE KEY")


@pytest.mark.full
@pytest.mark.parametrize("way", ["PLAIN", "SCRAM-SHA-512", "mutual TLS"])
async def test_a_batch_query_of_spark(secured: Secured, spark: SparkSession, way: str) -> None:
    register(spark)
    topic, options = f"batch-{way.replace(' ', '-')}", spark_options(secured, way)
    config = ProducerConfig(security=Security(sasl=Plain("alice", PASSWORD)))
    async with Cluster(secured.servers("SASL"), config) as cluster:
        await create_topic(cluster, topic)
        async with Producer(cluster, config) as producer:
            await asyncio.gather(*(producer.send(topic, b"%d" % number) for number in range(10)))

    def read() -> None:
        frame = spark.read.format("asyncgroup").options(**options, subscribe=topic).load()
        assert sorted(int(row.value) for row in frame.collect()) == list(range(10))
        assert not [secret for secret in SECRETS if secret in explained(frame)]

    await asyncio.to_thread(read)


async def test_a_stream_of_spark_commits_and_resumes(
    secured: Secured, spark: SparkSession, tmp_path: Path
) -> None:
    register(spark)
    options = spark_options(secured, "SCRAM-SHA-512")
    options |= {"subscribe": "streamed", "startingOffsets": "earliest", "kafka.group.id": "secured-reports"}
    config = ProducerConfig(security=Security(sasl=Plain("alice", PASSWORD)))
    rows: list[int] = []

    def keep(frame: Any, _batch: int) -> None:
        rows.extend(int(row.value) for row in frame.collect())

    def run() -> None:
        frame = spark.readStream.format("asyncgroup").options(**options).load()
        writing = frame.writeStream.foreachBatch(keep).option("checkpointLocation", str(tmp_path))
        query = writing.trigger(availableNow=True).start()
        assert query.awaitTermination(60)
        output = f"{query.lastProgress} {explained(frame)} {query.status}"
        assert not [secret for secret in SECRETS if secret in output]

    async with Cluster(secured.servers("SASL"), config) as cluster, Producer(cluster, config) as producer:
        await create_topic(cluster, "streamed")
        for part in range(2):
            for number in range(part * 5, part * 5 + 5):
                await producer.send("streamed", b"%d" % number)
            await asyncio.to_thread(run)
        assert sorted(rows) == list(range(10))
        async with OffsetManager(cluster, "secured-reports") as manager:
            assert (await manager.manage("streamed", 0)).next_offset == 10
