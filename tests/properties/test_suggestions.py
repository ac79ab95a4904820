"""Names of other Kafka clients as configuration keys: the error suggests a key, another place, or gives a reason."""

from __future__ import annotations

import inspect
import itertools
import re
import warnings
from dataclasses import fields
from typing import Any

import aiokafka
import pytest
from hypothesis import given, strategies as st

from asyncgroup.config import ClientConfig, ConsumerConfig, ProducerConfig
from asyncgroup.errors import ConfigError
from asyncgroup.properties.names import PROPERTIES

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it reads its own files in a way that is deprecated
    import kafka

CLASSES: dict[str, type[ClientConfig]] = {
    cls.__name__: cls for cls in (ClientConfig, ConsumerConfig, ProducerConfig)
}
KEYS = {name: {field.name for field in fields(cls)} for name, cls in CLASSES.items()}

JAVA = """
acks allow.auto.create.topics auto.commit.interval.ms auto.offset.reset batch.size bootstrap.servers buffer.memory
check.crcs client.dns.lookup client.id client.rack compression.gzip.level compression.lz4.level compression.type
compression.zstd.level config.providers connections.max.idle.ms default.api.timeout.ms delivery.timeout.ms
enable.auto.commit enable.idempotence enable.metrics.push exclude.internal.topics fetch.max.bytes fetch.max.wait.ms
fetch.min.bytes group.id group.instance.id group.protocol group.remote.assignor heartbeat.interval.ms
interceptor.classes isolation.level key.deserializer key.serializer linger.ms max.block.ms
max.in.flight.requests.per.connection max.partition.fetch.bytes max.poll.interval.ms max.poll.records
max.request.size metadata.max.age.ms metadata.max.idle.ms metadata.recovery.rebootstrap.trigger.ms
metadata.recovery.strategy metric.reporters metrics.num.samples metrics.recording.level metrics.sample.window.ms
partition.assignment.strategy partitioner.adaptive.partitioning.enable partitioner.availability.timeout.ms
partitioner.class partitioner.ignore.keys receive.buffer.bytes reconnect.backoff.max.ms reconnect.backoff.ms
request.timeout.ms retries retry.backoff.max.ms retry.backoff.ms sasl.client.callback.handler.class
sasl.jaas.config sasl.kerberos.kinit.cmd sasl.kerberos.min.time.before.relogin sasl.kerberos.service.name
sasl.kerberos.ticket.renew.jitter sasl.kerberos.ticket.renew.window.factor sasl.login.callback.handler.class
sasl.login.class sasl.login.connect.timeout.ms sasl.login.read.timeout.ms sasl.login.refresh.buffer.seconds
sasl.login.refresh.min.period.seconds sasl.login.refresh.window.factor sasl.login.refresh.window.jitter
sasl.login.retry.backoff.max.ms sasl.login.retry.backoff.ms sasl.mechanism sasl.oauthbearer.assertion.algorithm
sasl.oauthbearer.assertion.claim.aud sasl.oauthbearer.assertion.claim.exp.seconds
sasl.oauthbearer.assertion.claim.iss sasl.oauthbearer.assertion.claim.jti.include
sasl.oauthbearer.assertion.claim.nbf.seconds sasl.oauthbearer.assertion.claim.sub sasl.oauthbearer.assertion.file
sasl.oauthbearer.assertion.private.key.file sasl.oauthbearer.assertion.private.key.passphrase
sasl.oauthbearer.assertion.template.file sasl.oauthbearer.client.credentials.client.id
sasl.oauthbearer.client.credentials.client.secret sasl.oauthbearer.clock.skew.seconds
sasl.oauthbearer.expected.audience sasl.oauthbearer.expected.issuer sasl.oauthbearer.header.urlencode
sasl.oauthbearer.jwks.endpoint.refresh.ms sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms
sasl.oauthbearer.jwks.endpoint.retry.backoff.ms sasl.oauthbearer.jwks.endpoint.url
sasl.oauthbearer.jwt.retriever.class sasl.oauthbearer.jwt.validator.class sasl.oauthbearer.scope
sasl.oauthbearer.scope.claim.name sasl.oauthbearer.sub.claim.name sasl.oauthbearer.token.endpoint.url
security.protocol security.providers send.buffer.bytes session.timeout.ms share.acknowledgement.mode
share.acquire.mode socket.connection.setup.timeout.max.ms socket.connection.setup.timeout.ms ssl.cipher.suites
ssl.enabled.protocols ssl.endpoint.identification.algorithm ssl.engine.factory.class ssl.key.password
ssl.keymanager.algorithm ssl.keystore.certificate.chain ssl.keystore.key ssl.keystore.location
ssl.keystore.password ssl.keystore.type ssl.protocol ssl.provider ssl.secure.random.implementation
ssl.trustmanager.algorithm ssl.truststore.certificates ssl.truststore.location ssl.truststore.password
ssl.truststore.type transaction.timeout.ms transaction.two.phase.commit.enable transactional.id value.deserializer
value.serializer
"""
"""Every name of ConsumerConfig and ProducerConfig of kafka-clients 4.3.1."""

LIBRDKAFKA = """
acks allow.auto.create.topics api.version.fallback.ms api.version.request api.version.request.timeout.ms
auto.commit.enable auto.commit.interval.ms auto.offset.reset background_event_cb batch.num.messages batch.size
bootstrap.servers broker.address.family broker.address.ttl broker.version.fallback builtin.features check.crcs
client.dns.lookup client.id client.rack closesocket_cb compression.codec compression.level compression.type
connect_cb connections.max.idle.ms consume.callback.max.messages consume_cb coordinator.query.interval.ms debug
default_topic_conf delivery.report.only.error delivery.timeout.ms dr_cb dr_msg_cb enable.auto.commit
enable.auto.offset.store enable.gapless.guarantee enable.idempotence enable.metrics.push enable.partition.eof
enable.random.seed enable.sasl.oauthbearer.unsecure.jwt enable.ssl.certificate.verification enabled_events error_cb
fetch.error.backoff.ms fetch.max.bytes fetch.message.max.bytes fetch.min.bytes fetch.queue.backoff.ms
fetch.wait.max.ms group.id group.instance.id group.protocol group.protocol.type group.remote.assignor
heartbeat.interval.ms https.ca.location https.ca.pem interceptors internal.termination.signal isolation.level
linger.ms log.connection.close log.queue log.thread.name log_cb log_level max.in.flight
max.in.flight.requests.per.connection max.partition.fetch.bytes max.poll.interval.ms max.poll.records
message.copy.max.bytes message.max.bytes message.send.max.retries message.timeout.ms metadata.broker.list
metadata.max.age.ms metadata.recovery.rebootstrap.trigger.ms metadata.recovery.strategy msg_order_cmp
oauthbearer_token_refresh_cb offset.store.method offset.store.path offset.store.sync.interval.ms offset_commit_cb
opaque open_cb partition.assignment.strategy partitioner partitioner_cb plugin.library.paths produce.offset.report
queue.buffering.backpressure.threshold queue.buffering.max.kbytes queue.buffering.max.messages
queue.buffering.max.ms queued.max.messages.kbytes queued.min.messages queuing.strategy rebalance_cb
receive.message.max.bytes reconnect.backoff.jitter.ms reconnect.backoff.max.ms reconnect.backoff.ms
request.required.acks request.timeout.ms resolve_cb retries retry.backoff.max.ms retry.backoff.ms
sasl.kerberos.keytab sasl.kerberos.kinit.cmd sasl.kerberos.min.time.before.relogin sasl.kerberos.principal
sasl.kerberos.service.name sasl.mechanism sasl.mechanisms sasl.oauthbearer.assertion.algorithm
sasl.oauthbearer.assertion.claim.aud sasl.oauthbearer.assertion.claim.exp.seconds
sasl.oauthbearer.assertion.claim.iss sasl.oauthbearer.assertion.claim.jti.include
sasl.oauthbearer.assertion.claim.nbf.seconds sasl.oauthbearer.assertion.claim.sub sasl.oauthbearer.assertion.file
sasl.oauthbearer.assertion.jwt.template.file sasl.oauthbearer.assertion.private.key.file
sasl.oauthbearer.assertion.private.key.passphrase sasl.oauthbearer.assertion.private.key.pem
sasl.oauthbearer.client.credentials.client.id sasl.oauthbearer.client.credentials.client.secret
sasl.oauthbearer.client.id sasl.oauthbearer.client.secret sasl.oauthbearer.config sasl.oauthbearer.extensions
sasl.oauthbearer.grant.type sasl.oauthbearer.metadata.authentication.type sasl.oauthbearer.method
sasl.oauthbearer.scope sasl.oauthbearer.sub.claim.name sasl.oauthbearer.token.endpoint.url sasl.password
sasl.username security.protocol session.timeout.ms share.acknowledgement.mode socket.blocking.max.ms
socket.connection.setup.timeout.ms socket.keepalive.enable socket.max.fails socket.nagle.disable
socket.receive.buffer.bytes socket.send.buffer.bytes socket.timeout.ms socket_cb ssl.ca.certificate.stores
ssl.ca.location ssl.ca.pem ssl.certificate.location ssl.certificate.pem ssl.certificate.verify_cb ssl.cipher.suites
ssl.crl.location ssl.curves.list ssl.endpoint.identification.algorithm ssl.engine.id ssl.engine.location
ssl.key.location ssl.key.password ssl.key.pem ssl.keystore.location ssl.keystore.password ssl.providers
ssl.sigalgs.list ssl_ca ssl_certificate ssl_engine_callback_data ssl_key statistics.interval.ms stats_cb
sticky.partitioning.linger.ms throttle_cb topic.blacklist topic.metadata.propagation.max.ms
topic.metadata.refresh.fast.cnt topic.metadata.refresh.fast.interval.ms topic.metadata.refresh.interval.ms
topic.metadata.refresh.sparse transaction.timeout.ms transactional.id
"""
"""Every name that librdkafka 2.16 documents."""

CONFLUENT = "on_delivery on_commit oauth_cb logger default.topic.config"
"""Names that confluent-kafka accepts in addition to librdkafka's."""

THEIRS = sorted({*JAVA.split(), *LIBRDKAFKA.split(), *CONFLUENT.split()})

SECURITY = "security=Security("
CONSUMERS: dict[str, str] = {
    "bootstrap_servers": "the first argument of ConsumerGroup",
    "group_id": "an argument of ConsumerGroup",
    "topics": "an argument of group.run",
    "loop": "the running event loop",
    "key_deserializer": "records have bytes",
    "value_deserializer": "records have bytes",
    "fetch_max_wait_ms": "did you mean fetch_max_wait=0.25, in seconds?",
    "request_timeout_ms": "did you mean request_timeout=0.25, in seconds?",
    "retry_backoff_ms": "did you mean retry_backoff=0.25, in seconds?",
    "enable_auto_commit": "did you mean auto_commit?",
    "auto_commit_interval_ms": "did you mean auto_commit_interval=0.25, in seconds?",
    "metadata_max_age_ms": "did you mean metadata_refresh_interval=0.25, in seconds?",
    "partition_assignment_strategy": "did you mean assignors=('250',)?",
    "max_poll_interval_ms": "did you mean max_poll_interval=0.25, in seconds?",
    "rebalance_timeout_ms": "did you mean rebalance_timeout=0.25, in seconds?",
    "session_timeout_ms": "did you mean session_timeout=0.25, in seconds?",
    "heartbeat_interval_ms": "did you mean heartbeat_interval=0.25, in seconds?",
    "consumer_timeout_ms": "use asyncio.timeout",
    "max_poll_records": "claim.batches(max_records=…)",
    "ssl_context": SECURITY + "tls=Tls(context=…))",
    "security_protocol": SECURITY,
    "api_version": "versions are negotiated",
    "exclude_internal_topics": "a pattern never matches internal topics",
    "connections_max_idle_ms": "did you mean connections_max_idle=0.25, in seconds?",
    "sasl_mechanism": SECURITY + "sasl=",
    "sasl_plain_password": SECURITY + "sasl=Plain(username, password)",
    "sasl_plain_username": SECURITY + "sasl=Plain(username, password)",
    "sasl_kerberos_service_name": "Kerberos (GSSAPI) is not supported",
    "sasl_kerberos_domain_name": "Kerberos (GSSAPI) is not supported",
    "sasl_kerberos_name": "Kerberos (GSSAPI) is not supported",
    "sasl_oauth_token_provider": SECURITY + "sasl=OAuthBearer(token_provider=…))",
    "client_rack": "did you mean rack_id='250'?",
    "enable_incremental_fetch_sessions": "fetch sessions are always used",
    "reconnect_backoff_ms": "retry_backoff and retry_backoff_max apply to connections too",
    "reconnect_backoff_max_ms": "retry_backoff and retry_backoff_max apply to connections too",
    "max_in_flight_requests_per_connection": "did you mean max_in_flight_requests=250?",
    "default_offset_commit_callback": "session.commit() raises",
    "allow_auto_create_topics": "did you mean allow_auto_topic_creation?",
    "receive_buffer_bytes": "the operating system sizes socket buffers",
    "send_buffer_bytes": "the operating system sizes socket buffers",
    "receive_message_max_bytes": "did you mean max_response_size=250?",
    "socket_options": "connector",
    "ssl_check_hostname": SECURITY + "tls=Tls(check_hostname=…))",
    "ssl_cafile": SECURITY + "tls=Tls(ca_file=…))",
    "ssl_certfile": SECURITY + "tls=Tls(cert_file=…))",
    "ssl_keyfile": SECURITY + "tls=Tls(key_file=…))",
    "ssl_crlfile": "Tls(context=…)",
    "ssl_password": SECURITY + "tls=Tls(key_password=…))",
    "ssl_ciphers": "Tls(context=…)",
    "bootstrap_timeout_ms": "connect_timeout limits each connection",
    "metric_reporters": "hooks (hooks=…)",
    "metrics_enabled": "hooks (hooks=…)",
    "metrics_num_samples": "hooks (hooks=…)",
    "metrics_sample_window_ms": "hooks (hooks=…)",
    "metric_group_prefix": "hooks (hooks=…)",
    "selector": "the running event loop",
    "proxy_url": "connector",
    "socks5_proxy": "connector",
    "kafka_client": "pass a Cluster",
}
PRODUCERS: dict[str, str] = {
    "key_serializer": "the producer takes bytes",
    "value_serializer": "the producer takes bytes",
    "max_batch_size": "did you mean batch_size=250?",
    "linger_ms": "did you mean linger=0.25, in seconds?",
    "transaction_timeout_ms": "did you mean transaction_timeout=0.25, in seconds?",
    "delivery_timeout_ms": "did you mean delivery_timeout=0.25, in seconds?",
    "retries": "until delivery_timeout",
    "max_block_ms": "asyncio.timeout",
}
"""The expected text for each name of aiokafka and kafka-python with the value 250, unless it is a configuration key."""


def refusal(cls: type[ClientConfig], key: str, value: object = 250) -> str:
    with pytest.raises(ConfigError, match="there is no such key") as caught:
        cls(**{key: value})
    return str(caught.value).partition("there is no such key")[2]


def python_names(*constructors: Any) -> set[str]:
    found: set[str] = set()
    for each in constructors:
        found |= set(getattr(each, "DEFAULT_CONFIG", None) or inspect.signature(each).parameters)
    return found


@pytest.mark.parametrize("name", sorted(python_names(aiokafka.AIOKafkaConsumer, kafka.KafkaConsumer)))
def test_a_python_consumers_name(name: str) -> None:
    if name not in KEYS["ConsumerConfig"]:
        assert CONSUMERS[name] in refusal(ConsumerConfig, name)


@pytest.mark.parametrize("name", sorted(python_names(aiokafka.AIOKafkaProducer, kafka.KafkaProducer)))
def test_a_python_producers_name(name: str) -> None:
    if name not in KEYS["ProducerConfig"]:
        assert {**CONSUMERS, **PRODUCERS}[name] in refusal(ProducerConfig, name)


def suggested(message: str) -> list[str]:
    return re.findall(r"did you mean (\w+)", message)


def initials() -> list[str]:
    return sorted({name[0] for name in THEIRS})


@pytest.mark.parametrize("initial", initials())
def test_javas_and_librdkafkas_names(initial: str) -> None:
    for name in (each for each in THEIRS if each[0] == initial):
        expect_a_reason_or_our_key(name)


def expect_a_reason_or_our_key(name: str) -> None:
    """With dots and with underscores, in each class: the error gives a reason, or the key that the property stands for."""
    props = [names[name] for names in PROPERTIES.values() if name in names]
    for cls in CLASSES.values():
        for key in {name, name.replace(".", "_")} - KEYS[cls.__name__]:
            message = refusal(cls, key)
            assert len(message) > len("; ?"), name
            if props:
                here = {prop.key for prop in props}
                assert set(suggested(message)) == here or any(
                    f"key of {other}" in message for other in CLASSES
                ), key
            else:
                assert suggested(message) == [], key


@pytest.mark.parametrize("initial", initials())
def test_every_name_is_known_to_from_properties(initial: str) -> None:
    names = [each for each in THEIRS if each[0] == initial]
    for cls, name in itertools.product(CLASSES.values(), names):
        message = ""
        try:
            cls.from_properties({name: "x"})
        except ConfigError as error:
            message = str(error)
        assert "there is no such key" not in message, name


@pytest.mark.parametrize(
    ("cls", "key", "message"),
    [
        (ConsumerConfig, "sesion_timeout", "did you mean session_timeout?"),
        (ConsumerConfig, "sesion_timeout_ms", "did you mean session_timeout, in seconds?"),
        (ConsumerConfig, "sessionTimeoutMs", "did you mean session_timeout, in seconds?"),
        (ConsumerConfig, "sessiontimeout", "did you mean session_timeout?"),
        (ConsumerConfig, "auto_offset_rest", "did you mean auto_offset_reset?"),
        (ConsumerConfig, "max_fetch_bytes", "did you mean fetch_max_bytes?"),
        (ConsumerConfig, "close_timeout_ms", "did you mean close_timeout, in seconds?"),
        (ConsumerConfig, "session.timeout.ms", "did you mean session_timeout=0.25, in seconds?"),
        (ConsumerConfig, "max_poll_record", "if max.poll.records is meant: an argument of claim.batches"),
        (ConsumerConfig, "instance_id", "did you mean group_instance_id='250'?"),
        (ConsumerConfig, "linger", "it is a key of ProducerConfig, this is a ConsumerConfig"),
        (ConsumerConfig, "linger_ms", "linger=0.25 (seconds) is a key of ProducerConfig, this is a ConsumerConfig"),
        (ClientConfig, "buffer_bytes", "it is a key of ConsumerConfig and ProducerConfig, this is a ClientConfig"),
        (ProducerConfig, "session_timeot", "if session_timeout is meant: it is a key of ConsumerConfig"),
        (ProducerConfig, "aks", "did you mean acks?"),
        (ConsumerConfig, "hooks", "an argument of ConsumerGroup"),
        (ProducerConfig, "interceptors", "an argument of ConsumerGroup, Consumer and Producer"),
        (ProducerConfig, "memory", "an argument of Producer"),
        (ProducerConfig, "compression", "did you mean compression_type='250'?"),
        (ConsumerConfig, "Consumer.MaxProcessingTime", "did you mean ConsumerConfig.max_processing_time?"),
        (ConsumerConfig, "Net.SASL.GSSAPI", "Kerberos"),
    ],
)  # fmt: skip
def test_typing_errors_and_keys_of_other_classes(cls: type[ClientConfig], key: str, message: str) -> None:
    assert message in refusal(cls, key)


@pytest.mark.parametrize(
    "key",
    [
        *("fetch_min_wait", "retry_backoff_min", "poll_timeout", "commit_timeout", "read_timeout"),
        *("max_records_bytes", "session_interval", "heartbeat_timeout", "retry_max", "fetch_timeout", "check_hostname"),
        *("connect_interval", "min_request_size", "request_interval", "client_ip", "rack", "batch", "xyzzy"),
    ],
)  # fmt: skip
def test_a_key_with_another_meaning_is_never_suggested(key: str) -> None:
    for cls in CLASSES.values():
        assert refusal(cls, key) == ""


@given(st.text(min_size=1, max_size=30))
def test_any_other_key_is_refused(key: str) -> None:
    with pytest.raises(ConfigError):
        ConsumerConfig(**{f"x{key}": 1})


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("session_timeout_ms", "did you mean session.timeout.ms?"),
        (
            "session_timeout",
            "session_timeout is a keyword argument: from_properties(properties, session_timeout=…)",
        ),
        ("sesion.timeout.ms", "did you mean session.timeout.ms?"),
        ("ssl_cafile", "pass security=Security(tls=Tls(ca_file=…))"),
        ("consumer_timeout_ms", "use asyncio.timeout"),
        ("fetch.min.wait.ms", ""),
    ],
)
def test_names_in_properties(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match="there is no such key") as caught:
        ConsumerConfig.from_properties({name: "1"})
    assert message in str(caught.value)
    assert message or "did you mean" not in str(caught.value)


def test_a_callback_is_refused_instead_of_ignored() -> None:
    with pytest.raises(ConfigError, match=r"rebalance_cb=.*Handler\.on_assigned, on_revoked and on_lost"):
        ConsumerConfig.from_properties({"rebalance_cb": print})
