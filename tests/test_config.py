"""Configuration: the valid and invalid values of every key, and the error messages."""

from __future__ import annotations

import copy
import pickle
from dataclasses import FrozenInstanceError, fields, replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, strategies as st

from asyncgroup import config
from asyncgroup.checks import check_group_id, check_partitions, check_topic, parse_servers
from asyncgroup.config import ClientConfig, ConsumerConfig, ProducerConfig
from asyncgroup.config.producer import PARTITIONERS
from asyncgroup.errors import AsyncGroupError, ConfigError
from asyncgroup.group.assignors import RangeAssignor
from asyncgroup.model import TopicPartition
from asyncgroup.producer import TimedRoundRobin
from asyncgroup.secret import secrets_in_pickles
from asyncgroup.security import Plain, Security, Tls
from asyncgroup.workqueue import Backoff

NAN, INF = float("nan"), float("inf")
DURATION = ([0.001, 1, 60.0], [0, -1, NAN, "1", None, True, 1e9, 10**400])
PAUSE = ([0, 0.0, 0.5], [-0.1, NAN, "1", None, False, 1e9])
LONG = ([0.5, 86_400.0], [-1, NAN, "1", None])
COUNT = ([0, 1, 100], [-1, 1.0, "1", None, True])
SIZE = ([1, 2**31 - 1], [0, -1, 2**31, 1.0, "1", None, True])
OPTIONAL = ([None, 0.5, 60], [0, -1, NAN, "1", True])
PAUSES = (
    [None, lambda failures: 1.0, 1.0, 0, 3600, Backoff(1, 2, 10)],
    [-1, 3601, INF, True, "2", (), Backoff, object()],
)
TEXT = (["", "name", "ä"], [None, 1, b"bytes", "x" * 40_000, "\ud800"])
RECORDS = ([1, 1000, None], [0, -1, 1.0, True, "10"])
FLAG = ([True, False], [0, 1, None, "yes"])

RESETS = ["earliest", "latest", "error", timedelta(hours=1)]

TABLE: dict[type[ClientConfig], dict[str, tuple[list[Any], list[Any]]]] = {
    ClientConfig: {
        "client_id": TEXT,
        "connect_timeout": DURATION,
        "request_timeout": DURATION,
        "retry_backoff": ([0, 0.1, 2.0], PAUSE[1]),
        "retry_backoff_max": ([0.1, 60], PAUSE[1]),
        "metadata_refresh_interval": ([0, 600, 86_400.0], LONG[1]),
        "metadata_retry_max": COUNT,
        "max_response_size": SIZE,
        "connections_max_idle": (LONG[0], [0, *LONG[1]]),
        "allow_auto_topic_creation": FLAG,
        "max_in_flight_requests": ([1, 5, 1000], [0, -1, 1.0, "5", None, True]),
        "metadata_retry_backoff": PAUSES,
        "metadata_timeout": OPTIONAL,
        "metadata_full": FLAG,
        "tcp_keepalive": (OPTIONAL[0] + [7200], [*OPTIONAL[1], 32768, float("inf")]),
        "local_address": ([None, "10.0.0.1", "::1"], ["", 7, ("10.0.0.1", 0)]),
        "connector": ([None, lambda host, port: None], ["proxy", 0]),
        "client_dns_lookup": (
            ["use_all_dns_ips", "resolve_canonical_bootstrap_servers_only"],
            ["default", None],
        ),
        # invalid values are not shown in the error: see test_secrets_are_hidden
        "security": ([None, Security(), Security(tls=Tls(), sasl=Plain("u", "p"))], []),
    },
    ConsumerConfig: {
        "group_protocol": (["classic", "consumer", "auto"], ["Consumer", "eager", "", None]),
        "session_timeout": ([None, 6.0, 45, 1800.0], OPTIONAL[1]),
        "heartbeat_interval": ([None, 0.1, 3, 9.9], OPTIONAL[1]),
        "remote_assignor": ([None, "uniform", "range"], ["", 7, ("range",)]),
        "rebalance_timeout": ([3.1, 60, 3600.0], DURATION[1]),
        "assignors": (
            [None, ("range",), ("roundrobin", "range"), ("cooperative-sticky", "range"), (object(),)],
            [(), {"range"}, b"range", 7, RangeAssignor, ("cooperative",), ("range", "rang")],
        ),
        "balance_by_rack": FLAG,
        "group_instance_id": ([None, "worker-1", "a.b_c"], ["", ".", "..", "a b", "x" * 250, 7]),
        "missing_topics": (["error", "wait"], ["ignore", None, True]),
        "rejoin_backoff": PAUSE,
        "rejoin_retry_max": COUNT,
        "max_poll_interval": PAUSE,
        "heartbeat_thread": FLAG,
        "close_timeout": DURATION,
        "user_data": ([None, b"", b"x"], ["x", 7]),
        "auto_offset_reset": (RESETS, ["newest", "", None, 0, timedelta(0), timedelta(seconds=-1)]),
        "out_of_range_reset": ([None, *RESETS], ["newest", 0, timedelta(0)]),
        "offset_retention": ([None, 86_400.0], [*OPTIONAL[1], float("inf"), 1e18]),
        "on_corrupt_batch": (["error", "skip"], ["ignore", None]),
        "isolation_level": (["read_uncommitted", "read_committed"], ["serializable", None]),
        "rack_id": TEXT,
        "fetch_retry_max": ([None, 0, 7], [-1, 1.0, True]),
        "fetch_retry_backoff": PAUSES,
        "error_buffer": SIZE,
        "chunks": (["as_is", "assemble"], ["as-is", None, True]),
        "auto_ack_oldest": ([True, False], [0, 1, None, "yes"]),
        "max_pending_chunked": ([1, 10], [0, -1, 1.0, True, None]),
        "chunk_buffer_bytes": SIZE,
        "chunk_expiry": DURATION,
        "auto_commit": FLAG,
        "auto_commit_interval": DURATION,
        "commit_retry_max": COUNT,
        "fetch_min_bytes": SIZE,
        "fetch_max_wait": ([0.001, 0.5, 29], [0, 0.0004, *PAUSE[1]]),
        "fetch_max_bytes": SIZE,
        "max_partition_fetch_bytes": SIZE,
        "buffer_bytes": SIZE,
        "max_processing_time": DURATION,
        "check_crcs": FLAG,
    },
    ProducerConfig: {
        "acks": (["all", 0, 1], ["ALL", "2", -2, 2, 1.0, -1.0, True, False, None]),
        "enable_idempotence": ([True, False, None], ["true", 0, 1]),
        "linger": ([None, *PAUSE[0]], [value for value in PAUSE[1] if value is not None]),
        "batch_records": RECORDS,
        "batch_size": SIZE,
        "max_request_size": SIZE,
        "batching": ([True, False, None], ["on", 0, 1]),
        "chunking": FLAG,
        "max_chunk_size": ([None], [0, 1023, -1, 1.0, True, "1 MiB"]),
        "buffer_bytes": SIZE,
        "max_pending_records": RECORDS,
        "max_pending_records_per_partition": RECORDS,
        "max_pending_bytes_per_partition": ([None, 1, 2**20], [0, -1, 1.0, True, "10"]),
        "compression_level": ([None], ["9", 1.0, True]),
        "compression_type": (["none", "gzip", "snappy", "lz4", "zstd"], ["brotli", None, 0]),
        "delivery_timeout": ([31.0, 120], DURATION[1]),
        "close_timeout": DURATION,
        "transactional_id": ([None, "orders-1"], ["", 7, b"x", "x" * 32_768]),
        "transaction_timeout": DURATION,
        "metadata_max_idle": (LONG[0], [0, *LONG[1]]),
        "partitioner": (
            [*PARTITIONERS, lambda key, partitions: 0, TimedRoundRobin(0.1)],
            ["murmur3", 0, None, TimedRoundRobin],
        ),
        "adaptive_partitioning": FLAG,
    },
}
GOOD = [(cls, key, value) for cls, keys in TABLE.items() for key, (good, _) in keys.items() for value in good]
BAD = [(cls, key, value) for cls, keys in TABLE.items() for key, (_, bad) in keys.items() for value in bad]


def test_every_key_is_in_the_table() -> None:
    inherited = {field.name for field in fields(ClientConfig)}
    for cls, keys in TABLE.items():
        own = {field.name for field in fields(cls)} - (set() if cls is ClientConfig else inherited)
        assert own == set(keys), cls


@pytest.mark.parametrize(("cls", "key", "value"), GOOD)
def test_valid_values(cls: type[ClientConfig], key: str, value: Any) -> None:
    assert getattr(cls(**{key: value}), key) == value


@pytest.mark.parametrize(("cls", "key", "value"), BAD)
def test_invalid_values(cls: type[ClientConfig], key: str, value: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        cls(**{key: value})
    assert (caught.value.key, caught.value.allowed is None) == (key, False)
    assert str(caught.value).startswith(f"{key}={value!r} is not allowed: ")


@pytest.mark.parametrize("cls", list(TABLE))
def test_a_configuration_of_another_type_is_refused(cls: type[ClientConfig]) -> None:
    assert cls.of(None) == cls()
    given = cls(client_id="x")
    assert cls.of(given) is given
    for wrong in ({}, {"client.id": "x"}, "x", cls, object()):
        with pytest.raises(ConfigError, match=f"config=.*a {cls.__name__} or None"):
            cls.of(wrong)


@pytest.mark.parametrize("value", ["cooperative", ["range", "rang"]])
def test_the_error_of_assignors_says_what_is_supported(value: Any) -> None:
    allowed = r'one or several, as \["range"\], of the names range, roundrobin, sticky, cooperative-sticky and of objects'
    with pytest.raises(ConfigError, match=allowed):
        ConsumerConfig(assignors=value)


def test_partitions_are_returned_once() -> None:
    given = (place for place in (("orders", 0), TopicPartition("bills", 1), ("orders", 0)))
    assert check_partitions(given) == [TopicPartition("orders", 0), TopicPartition("bills", 1)]


@pytest.mark.parametrize(
    ("partitions", "message"),
    [
        (
            "orders",
            r"partitions='orders' is not allowed: a partition as \(\"orders\", 0\), or several of them",
        ),
        (None, "partitions=None"),
        (("orders", "0"), r"partition=\('orders', '0'\) is not allowed: a partition"),
        (["orders"], r"partition=\['orders'\] is not allowed: a partition"),
        ([("orders", "0")], "partition="),
        ([("orders", -1)], "partition="),
        ([("a b", 0)], "topic='a b'"),
    ],
)
def test_wrong_partitions(partitions: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_partitions(partitions)


@pytest.mark.parametrize("place", [TopicPartition("orders", 1), ("orders", 1), ["orders", 1]])
def test_one_partition_needs_no_list(place: Any) -> None:
    assert check_partitions(place) == [TopicPartition("orders", 1)]
    assert check_partitions([]) == []


RANGE = RangeAssignor()


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("range", ("range",)),
        (["range"], ("range",)),
        (["cooperative-sticky", "range"], ("cooperative-sticky", "range")),
        (RANGE, (RANGE,)),
        ([RANGE, "sticky"], (RANGE, "sticky")),
    ],
)
def test_assignors_are_one_or_a_sequence_and_kept_as_a_tuple(given: Any, kept: tuple[Any, ...]) -> None:
    config = ConsumerConfig(assignors=given)
    assert (config.assignors, config.effective_assignors) == (kept, kept)
    assert config == ConsumerConfig(assignors=kept)
    assert hash(config) == hash(ConsumerConfig(assignors=kept))
    assert replace(config, client_id="x").assignors == kept


@pytest.mark.parametrize(("given", "kept"), [(-1, "all"), ("-1", "all"), ("0", 0), ("1", 1)])
def test_acks_may_be_given_in_other_words_of_kafka(given: Any, kept: object) -> None:
    config = ProducerConfig(acks=given)
    assert config.acks == kept
    assert config == ProducerConfig(acks=kept)  # type: ignore[arg-type]
    assert config.effective_enable_idempotence is (kept == "all")


@pytest.mark.parametrize(
    ("cls", "key"),
    [
        (ClientConfig, "connect_timeout"),
        (ClientConfig, "tcp_keepalive"),
        (ConsumerConfig, "session_timeout"),
        (ConsumerConfig, "offset_retention"),
        (ConsumerConfig, "fetch_max_wait"),
        (ProducerConfig, "linger"),
    ],
)
def test_the_error_of_a_timedelta_names_the_seconds(cls: type[ClientConfig], key: str) -> None:
    with pytest.raises(ConfigError, match=rf"^{key}=.*timedelta.*; durations are seconds: 10\.0\?$"):
        cls(**{key: timedelta(seconds=10)})  # type: ignore[arg-type]


def test_a_configuration_of_another_class_is_named_and_not_shown() -> None:
    with pytest.raises(
        ConfigError, match=r"^config of type ProducerConfig is not allowed: a ConsumerConfig or None$"
    ):
        ConsumerConfig.of(ProducerConfig())


@pytest.mark.parametrize("cls", list(TABLE))
def test_the_documentation_names_every_key(cls: type[ClientConfig]) -> None:
    for key in TABLE[cls]:
        assert f"`{key}`" in (cls.__doc__ or ""), key


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (
            lambda: ConsumerConfig(session_timeout=10000),
            "session_timeout=10000 .* durations are seconds: 10.0?",
        ),
        (
            lambda: ClientConfig(request_timeout=30000),
            "request_timeout=30000 .* durations are seconds: 30.0?",
        ),
        (lambda: ConsumerConfig(heartbeat_interval=3000), "heartbeat_interval=3000 .* are seconds: 3.0?"),
        (lambda: ConsumerConfig(fetch_max_wait=500), "fetch_max_wait=500 .* durations are seconds: 0.5?"),
        (lambda: ClientConfig(retry_backoff=100), "retry_backoff=100 .* durations are seconds: 0.1?"),
    ],
)
def test_the_error_asks_if_a_long_duration_is_in_milliseconds(made: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message.replace("?", r"\?")):
        made()


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (
            lambda: ConsumerConfig(rebalance_timeout=3.0, heartbeat_interval=3.0),
            "rebalance_timeout=3.0 is not allowed: it must be above heartbeat_interval=3.0$",
        ),
        (
            lambda: ConsumerConfig(session_timeout=3.0, heartbeat_interval=3.0),
            "heartbeat_interval=3.0 is not allowed: it must be below session_timeout=3.0$",
        ),
        (
            lambda: ConsumerConfig(session_timeout=2.0),
            "session_timeout=2.0 is not allowed: it must be above heartbeat_interval=3.0, its default$",
        ),
        (
            lambda: ConsumerConfig(heartbeat_interval=15.0),
            "heartbeat_interval=15.0 is not allowed: it must be below session_timeout=10.0, its default$",
        ),
        (
            lambda: ConsumerConfig(rebalance_timeout=2.0),
            "rebalance_timeout=2.0 is not allowed: it must be above heartbeat_interval=3.0, its default$",
        ),
        (
            lambda: ConsumerConfig(request_timeout=1.0, fetch_max_wait=1.0),
            "fetch_max_wait=1.0 is not allowed: below request_timeout=1.0",
        ),
        (
            lambda: ClientConfig(retry_backoff=5.0, retry_backoff_max=1.0),
            "retry_backoff=5.0 is not allowed: at most retry_backoff_max=1.0",
        ),
        (
            lambda: ClientConfig(local_address="10.0.0.1", connector=lambda host, port: None),  # type: ignore[arg-type, return-value]
            "local_address='10.0.0.1' is not allowed: None: connector opens the sockets",
        ),
        (
            lambda: ProducerConfig(delivery_timeout=20.0, request_timeout=30.0, linger=1.0),
            "delivery_timeout=20.0 is not allowed: at least linger=1.0 [+] request_timeout=30.0",
        ),
    ],
)
def test_keys_that_contradict_each_other(made: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        made()


@pytest.mark.parametrize(
    ("key", "value", "instead"),
    [
        ("session_timeout", 10.0, "consumer.session.timeout.ms"),
        ("heartbeat_interval", 3.0, "consumer.heartbeat.interval.ms"),
        ("assignors", ("range",), "remote_assignor"),
    ],
)
def test_keys_of_the_classic_protocol(key: str, value: Any, instead: str) -> None:
    """With the consumer protocol they belong to the brokers; with `auto` they wait for the choice."""
    with pytest.raises(
        ConfigError, match=rf"^{key}=.* must be None with group_protocol='consumer': .*{instead}"
    ):
        ConsumerConfig(group_protocol="consumer", **{key: value})
    assert getattr(ConsumerConfig(group_protocol="auto", **{key: value}), f"effective_{key}") == value


@pytest.mark.parametrize("value", [7200, 300_000, INF])
def test_the_error_of_a_long_max_poll_interval_names_renew(value: float) -> None:
    """It may be meant: without a hint at milliseconds."""
    with pytest.raises(
        ConfigError, match=r"at most 3600 seconds; .* claim\.renew\(seconds\); .*=0 turns it off$"
    ):
        ConsumerConfig(max_poll_interval=value)


def test_infinity_is_not_meant_as_milliseconds() -> None:
    with pytest.raises(ConfigError, match=r"close_timeout=inf is not allowed: at most 3600$"):
        ConsumerConfig(close_timeout=INF)


def test_effective_values() -> None:
    def effective(config: ConsumerConfig) -> tuple[float, float, tuple[Any, ...]]:
        return (
            config.effective_session_timeout,
            config.effective_heartbeat_interval,
            config.effective_assignors,
        )

    assert effective(ConsumerConfig()) == (10.0, 3.0, ("range",))
    assert effective(ConsumerConfig(session_timeout=7.0, heartbeat_interval=1.0)) == (7.0, 1.0, ("range",))
    assert effective(ConsumerConfig(group_protocol="auto")) == (10.0, 3.0, ("range",))
    assert effective(ConsumerConfig(group_protocol="consumer"))[:2] == (45.0, 5.0)
    ConsumerConfig(group_protocol="consumer", rebalance_timeout=3.0)


def test_the_rules_of_the_base_hold_in_every_subclass() -> None:
    for cls in TABLE:
        with pytest.raises(ConfigError, match="retry_backoff"):
            cls(retry_backoff=3.0, retry_backoff_max=2.0)


def test_values_are_frozen_and_by_keyword_only() -> None:
    made = ConsumerConfig()
    with pytest.raises(FrozenInstanceError):
        made.session_timeout = 20.0  # type: ignore[misc]
    with pytest.raises(TypeError):
        ConsumerConfig("name")  # type: ignore[misc]
    with pytest.raises(ConfigError):
        replace(made, session_timeout=1.0)
    assert ConsumerConfig() == made
    assert hash(ConsumerConfig()) == hash(made)


@pytest.mark.parametrize(
    ("cls", "key", "message"),
    [
        (ConsumerConfig, "sesion_timeout", "did you mean session_timeout"),
        (ConsumerConfig, "auto_offset_rest", "did you mean auto_offset_reset"),
        (ClientConfig, "bootstrap_servers", "there is no such key"),
        (ProducerConfig, "linger_ms", "did you mean linger"),
        (ClientConfig, "sasl_mechanism", "there is no such key"),
        (ClientConfig, "ssl_cafile", "there is no such key"),
    ],
)
def test_an_unknown_key_with_suggestions(cls: type[ClientConfig], key: str, message: str) -> None:
    with pytest.raises(ConfigError, match=f"{key}=10.0 is not allowed: .*{message}"):
        cls(**{key: 10.0})


def test_copies_and_pickles_are_equal() -> None:
    made = ConsumerConfig(client_id="me", security=Security(sasl=Plain("u", "p")))
    assert copy.deepcopy(made) == copy.copy(made) == made
    with secrets_in_pickles():
        assert pickle.loads(pickle.dumps(made)) == made


def test_secrets_are_hidden() -> None:
    made = ConsumerConfig(
        security=Security(sasl=Plain("alice", "s3cret"), tls=Tls(cert_file="c", key_password="s3cret"))
    )
    assert "alice" in repr(made)
    assert "s3cret" not in repr(made)
    for wrong in ({"password": "s3cret"}, "s3cret", Plain("alice", "s3cret")):
        with pytest.raises(ConfigError, match="security of type") as caught:
            ClientConfig(security=wrong)  # type: ignore[arg-type]
        assert "s3cret" not in str(caught.value)
    with pytest.raises(ConfigError, match="there is no such key") as caught:
        ClientConfig(sasl_password="s3cret")  # type: ignore[call-arg]
    assert "s3cret" not in str(caught.value)


def test_a_client_configuration_can_be_passed_on() -> None:
    made = ConsumerConfig(client_id="me", request_timeout=7.0)
    assert ClientConfig(**made.client()) == ClientConfig(client_id="me", request_timeout=7.0)


def test_a_config_error_is_a_value_error_and_an_asyncgroup_error() -> None:
    with pytest.raises(ValueError, match="request_timeout"):
        ClientConfig(request_timeout=0)
    assert issubclass(ConfigError, AsyncGroupError)


# --- servers --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("servers", "found"),
    [
        ("kafka:9092", (("kafka", 9092),)),
        (" a:1 , b.c:65535,", (("a", 1), ("b.c", 65535))),
        ("[::1]:9092,[fe80::1%eth0]:9093", (("::1", 9092), ("fe80::1%eth0", 9093))),
        (["a:1", "b:2"], (("a", 1), ("b", 2))),
        (("a:1",), (("a", 1),)),
        ((f"kafka{n}:9092" for n in (1, 2)), (("kafka1", 9092), ("kafka2", 9092))),
    ],
)
def test_servers(servers: Any, found: Any) -> None:
    assert parse_servers(servers) == found


@pytest.mark.parametrize(
    "servers",
    [
        *[
            "",
            " ",
            ",",
            "kafka",
            "kafka:",
            ":9092",
            "kafka:0",
            "kafka:65536",
            "kafka:-1",
            "kafka:x",
            "kafka:9 2",
        ],
        *["::1:9092", "[]:9092", "a b:9092", "PLAINTEXT://kafka:9092", "kafka:９０９２", "a:1;b:2"],
        *[[], [""], [None], None, 9092, b"kafka:9092", {"kafka:9092": 1}],
    ],
)
def test_invalid_servers(servers: Any) -> None:
    with pytest.raises(ConfigError, match=r"bootstrap_servers=.*host:port"):
        parse_servers(servers)


@pytest.mark.parametrize("servers", ["kafka://u:s3cret@kafka:9092", ["a:1", "u:s3cret@kafka:9092"]])
def test_a_password_in_an_address_is_hidden(servers: Any) -> None:
    with pytest.raises(ConfigError, match=r"bootstrap_servers='\[hidden\]'.*belong to security") as caught:
        parse_servers(servers)
    assert "s3cret" not in str(caught.value)


@given(
    st.lists(
        st.tuples(
            st.from_regex(r"[a-z0-9]([a-z0-9.-]{0,20}[a-z0-9])?", fullmatch=True), st.integers(1, 65535)
        ),
        min_size=1,
    )
)
def test_servers_are_read_as_they_are_written(pairs: list[tuple[str, int]]) -> None:
    assert parse_servers(",".join(f"{host}:{port}" for host, port in pairs)) == tuple(pairs)


# --- names ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("group_id", ["g", "a group", "ü", "x" * 32767])
def test_group_ids(group_id: str) -> None:
    assert check_group_id(group_id) == group_id


@pytest.mark.parametrize("group_id", ["", "  ", None, 7, b"g", "x" * 32768, "\ud800"])
def test_invalid_group_ids(group_id: Any) -> None:
    with pytest.raises(ConfigError, match="group_id="):
        check_group_id(group_id)


@pytest.mark.parametrize("topic", ["t", "a.b-c_D9", "x" * 249, "__consumer_offsets"])
def test_topics(topic: str) -> None:
    assert check_topic(topic) == topic


@pytest.mark.parametrize("topic", ["", ".", "..", "a b", "ü", "a/b", "x" * 250, "t\n", None, b"t"])
def test_invalid_topics(topic: Any) -> None:
    with pytest.raises(ConfigError, match="topic="):
        check_topic(topic)


def test_exports() -> None:
    assert config.__all__ == sorted(config.__all__)
    assert all(hasattr(config, name) for name in config.__all__)


@pytest.mark.parametrize(
    ("codec", "level", "allowed"),
    [
        ("gzip", 0, "1 to 9"),
        ("lz4", 18, "1 to 17"),
        ("zstd", 23, "-131072 to 22"),
        ("snappy", 1, "None"),
        ("none", 1, "None"),
    ],
)
def test_a_compression_level_that_the_codec_does_not_have(codec: Any, level: int, allowed: str) -> None:
    with pytest.raises(
        ConfigError, match=rf"compression_level={level} .*{allowed}.*compression_type='{codec}'"
    ):
        ProducerConfig(compression_type=codec, compression_level=level)


def test_batching_and_chunking_exclude_each_other() -> None:
    with pytest.raises(ConfigError, match=r"batching=True is not allowed: None or False with chunking=True"):
        ProducerConfig(chunking=True, batching=True)
    with pytest.raises(ConfigError, match=r"batch_records=10 .* chunking=True, which excludes batching"):
        ProducerConfig(chunking=True, batch_records=10)
    with pytest.raises(ConfigError, match=r"batch_records=10 .* batching=False"):
        ProducerConfig(batching=False, batch_records=10)
    with pytest.raises(ConfigError, match=r"max_chunk_size=2048 .* None without chunking=True"):
        ProducerConfig(max_chunk_size=2048)
    with pytest.raises(ConfigError, match=r"max_chunk_size=2097152 .* at most max_request_size=1048576"):
        ProducerConfig(chunking=True, max_chunk_size=2 << 20)
    assert ProducerConfig(chunking=True, batching=False, max_chunk_size=1 << 20).effective_linger == 0.0


def test_an_incomplete_value_is_kept_for_longer_than_a_chunk_may_take() -> None:
    """As in Pulsar, whose `sendTimeout` is 30 s and `expireTimeOfIncompleteChunkedMessage` 60 s."""
    assert ConsumerConfig().chunk_expiry >= 2 * ProducerConfig().delivery_timeout
