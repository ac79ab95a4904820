"""Errors of queries name options as users write them: with `kafka.`, in milliseconds, without what only programs can do."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import Any

import pytest

from asyncgroup.config import ConsumerConfig, ProducerConfig
from asyncgroup.errors import (
    ConfigError,
    DeliveryFailedError,
    ProducerFencedError,
    RecordTooLargeError,
    RequestTimedOut,
)
from asyncgroup.model import TopicPartition
from asyncgroup.properties.ignored import IGNORED, IGNORED_PREFIXES
from asyncgroup.properties.names import PROPERTIES, SECURITY, UNSUPPORTED
from asyncgroup.spark.option_words import SINK_WORDS, SOURCE_WORDS, OptionWords
from asyncgroup.spark.sink.write_settings import write_settings
from asyncgroup.spark.source.errors import OptionError
from asyncgroup.spark.source.options.parser import read_settings
from tests.profiles import thinned

SERVERS = {"kafka.bootstrap.servers": "one:9092"}


def read_sink(options: dict[str, str]) -> tuple[str, ...]:
    return write_settings(SERVERS | {"topic": "t"} | options).warnings


def read_source(options: dict[str, str]) -> tuple[str, ...]:
    return read_settings(SERVERS | {"subscribe": "t"} | options, stream=True).warnings


READERS = {"sink": read_sink, "source": read_source}
each_reader = pytest.mark.parametrize("read", READERS.values(), ids=READERS)


def refusal(read: Callable[[dict[str, str]], object], options: dict[str, str]) -> str:
    with pytest.raises(OptionError) as caught:
        read(options)
    return str(caught.value)


# --- texts ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "text", "expected"),
    [
        (
            SINK_WORDS,
            "a record of 9 bytes is too large: max_request_size=1000 (chunking=True splits values)",
            "a record of 9 bytes is too large: kafka.max.request.size=1000 (kafka.chunking=true splits values)",
        ),
        (
            SINK_WORDS,
            "2 records for t-0: not acknowledged within delivery_timeout=120 s, 3 attempts",
            "2 records for t-0: not acknowledged within kafka.delivery.timeout.ms=120000, 3 attempts",
        ),
        (SINK_WORDS, "at least linger=0.0005 + acks='all'", "at least kafka.linger.ms=0.5 + kafka.acks=all"),
        (SINK_WORDS, "longer than transaction_timeout=2e3 s", "longer than kafka.transaction.timeout.ms=2000000"),
        (SINK_WORDS, "set max_chunk_size below max.message.bytes of the topic", "set kafka.max.chunk.size below max.message.bytes of the topic"),
        (SINK_WORDS, "buffer_bytes", "kafka.buffer.memory"),
        (SOURCE_WORDS, "buffer_bytes=2048", "kafka.queued.max.messages.kbytes=2"),
        (SOURCE_WORDS, "no result within connect_timeout=10 s", "no result within kafka.socket.connection.setup.timeout.ms=10000"),
        (
            SOURCE_WORDS,
            "does it expect TLS? Then set security.protocol=SSL or SASL_SSL, in code security=Security(tls=Tls(…))",
            "does it expect TLS? Then set kafka.security.protocol=SSL or SASL_SSL",
        ),
        (SINK_WORDS, "it was aborted. Close this producer", "it was aborted"),
        (SINK_WORDS, "with the same transactional_id was", "with the same transactional id was"),
        # what only looks like a key or a property
        (SINK_WORDS, "the records linger, acks are missing", "the records linger, acks are missing"),
        (SINK_WORDS, "topic 'request_timeout': request_timeout-0", "topic 'request_timeout': request_timeout-0"),
        (SINK_WORDS, "message.max.bytes of the broker", "message.max.bytes of the broker"),
        (SINK_WORDS, "kafka.linger.ms=5, my.group.id, group.id.x", "kafka.linger.ms=5, my.group.id, group.id.x"),
        (SINK_WORDS, "linger=inf", "kafka.linger.ms=inf"),
    ],
)  # fmt: skip
def test_texts(words: OptionWords, text: str, expected: str) -> None:
    assert words.text(text) == expected
    assert words.text(expected) == expected


def test_errors_of_the_client() -> None:
    tp = TopicPartition("t", 0)
    lost = DeliveryFailedError({tp: (1, RequestTimedOut("not acknowledged within delivery_timeout=120 s"))})
    translated = SINK_WORDS.error(lost)
    assert type(translated) is DeliveryFailedError
    assert translated.failed == lost.failed
    assert "kafka.delivery.timeout.ms=120000" in str(translated)
    assert "delivery_timeout=120 s" in str(lost), "the error itself is not changed"
    fenced = SINK_WORDS.error(ProducerFencedError("copy-0", 1, 0, transaction_timeout=900.0))
    assert "longer than kafka.transaction.timeout.ms=900000" in str(fenced)
    large = SOURCE_WORDS.error(RecordTooLargeError(tp, 5, 100, 10))
    assert "raise kafka.max.partition.fetch.bytes, kafka.fetch.max.bytes" in str(large)
    noted = ConfigError("too large")
    noted.add_note("set max_chunk_size")
    assert SINK_WORDS.error(noted).__notes__ == ["set kafka.max.chunk.size"]
    assert noted.__notes__ == ["set max_chunk_size"]
    plain = ConfigError("a row's topic is null")
    assert SINK_WORDS.error(plain) is plain


# --- options that are refused -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"kafka.linger.ms": "-5"}, "kafka.linger.ms='-5' is not allowed: a number of milliseconds, 0 or more"),
        ({"kafka.max.request.size": "0"}, "kafka.max.request.size='0' is not allowed: a whole number of bytes, 1 to 2147483647"),
        ({"kafka.message.max.bytes": "0"}, "kafka.message.max.bytes='0' is not allowed: a whole number of bytes, 1 to 2147483647"),
        ({"kafka.chunking": "yes"}, "kafka.chunking='yes' is not allowed: true or false"),
        ({"kafka.max.chunk.size": "2000"}, "kafka.max.chunk.size='2000' is not allowed: only with kafka.chunking=true"),
        ({"kafka.linger.ms": "60000", "kafka.delivery.timeout.ms": "20000"}, "kafka.delivery.timeout.ms='20000' is not allowed: at least kafka.linger.ms=60000 + kafka.request.timeout.ms=30000"),
        ({"kafka.request.timeout.ms": "130000"}, "kafka.delivery.timeout.ms='120000' is not allowed: at least kafka.linger.ms=5 + kafka.request.timeout.ms=130000"),
        ({"kafka.request.timeout.ms": "36000000"}, "kafka.request.timeout.ms='36000000' is not allowed: at most 3600000"),
        ({"kafka.acks": "0", "kafka.enable.idempotence": "true"}, "kafka.enable.idempotence='true' is not allowed: false with kafka.acks=0: it needs kafka.acks=all"),
        ({"kafka.max.block.ms": "3s"}, "kafka.max.block.ms='3s' is not allowed: a whole number, 10 to 2147483647 (milliseconds)"),
        ({"kafka.linger": "5"}, "kafka.linger='5' is not allowed: there is no such property of Kafka's client; did you mean kafka.linger.ms?"),
        ({"kafka.acsk": "5"}, "kafka.acsk='5' is not allowed: there is no such property of Kafka's client; did you mean kafka.acks?"),
        ({"kafka.batching": "true"}, "kafka.batching='true' is not allowed: there is no such property of Kafka's client"),
        ({"kafka.transactional.id": "x"}, "kafka.transactional.id='x' is not allowed: leave it out; each task needs its own one; the option transactional.id.prefix makes them"),
        ({"kafka.interceptor.classes": "x.Y"}, "kafka.interceptor.classes='x.Y' is not allowed: leave it out"),
        ({"kafka.retry.backoff.ms": "5000", "kafka.retry.backoff.max.ms": "100"}, "kafka.retry.backoff.ms='5000' is not allowed: at most kafka.retry.backoff.max.ms=100"),
        ({"kafka.sasl.passwrd": "hunter2"}, "kafka.sasl.passwrd='[hidden]' is not allowed: there is no such property of Kafka's client; did you mean kafka.sasl.password?"),
    ],
)  # fmt: skip
def test_refusals_of_the_sink(options: dict[str, str], expected: str) -> None:
    assert refusal(read_sink, options) == expected


def test_advice_for_programs_is_left_out() -> None:
    text = refusal(read_sink, {"kafka.partitioner.class": "x.Y"})
    assert text.startswith(
        "kafka.partitioner.class='x.Y' is not allowed: nothing or one of org.apache.kafka."
    )
    assert ";" not in text


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"kafka.fetch.min.bytes": "-1"}, "kafka.fetch.min.bytes='-1' is not allowed: a whole number of bytes, 1 to 2147483647"),
        ({"kafka.default.api.timeout.ms": "1"}, "kafka.default.api.timeout.ms='1' is not allowed: a whole number, 10 to 2147483647 (milliseconds)"),
        ({"kafka.fetch.max.wait.ms": "40000"}, "kafka.fetch.max.wait.ms='40000' is not allowed: below kafka.request.timeout.ms=30000"),
        ({"kafka.linger": "5"}, "kafka.linger='5' is not allowed: there is no such property of Kafka's client; did you mean kafka.linger.ms?"),
    ],
)  # fmt: skip
def test_refusals_of_the_source(options: dict[str, str], expected: str) -> None:
    assert refusal(read_source, options) == expected


@each_reader
@pytest.mark.parametrize(
    "option", ["transactional.id.prefix", "topic", "startingOffsets", "subscribe", "tasks"]
)
def test_an_option_with_the_prefix_of_properties(read: Any, option: str) -> None:
    text = refusal(read, {f"kafka.{option}": "x"})
    assert text == f"kafka.{option.lower()}='x' is not allowed: leave out kafka.: the option is {option}"


# --- properties of other clients --------------------------------------------------------------------------------------


def test_options_may_be_shared_by_source_and_sink() -> None:
    shared = {"kafka.group.id": "g", "kafka.isolation.level": "read_committed", "kafka.linger.ms": "5"}
    assert read_sink(shared) == (
        "kafka.group.id is a consumer property, ignored by the sink",
        "kafka.isolation.level is a consumer property, ignored by the sink",
    )
    assert read_source(shared) == ("kafka.linger.ms is a producer property, ignored by the source",)


def test_reasons_name_options() -> None:
    assert read_sink({"kafka.retries": "5", "kafka.metric.reporters": "x"}) == (
        "kafka.metric.reporters has no effect on the sink",
        "kafka.retries has no effect on the sink: a record is retried until kafka.delivery.timeout.ms",
    )


KEYS = {field.name for config in (ConsumerConfig, ProducerConfig) for field in dataclasses.fields(config)}
PYTHON = re.compile(
    rf"\b(?:{'|'.join(key for key in KEYS if '_' in key)}|None|True|False|Config|keyword|such key|key of|asyncio|hooks?|handlers?|claim"
    r"|number of seconds|Security|Tls|from_properties)\b|\w\("
)
BAD_VALUES = ("x", "-7", "0", "999999999999", "5")
ALL_NAMES = sorted(
    {
        *(name for table in PROPERTIES.values() for name in table),
        *(
            *SECURITY,
            *UNSUPPORTED,
            *IGNORED,
            *(f"{prefix}x" for prefix in IGNORED_PREFIXES),
            *KEYS,
            "subscribed",
        ),
    }
)


@each_reader
def test_no_error_and_no_warning_is_in_the_words_of_programs(read: Any) -> None:
    refused = warned = 0
    for name in thinned(ALL_NAMES):
        for value in BAD_VALUES:
            option = f"kafka.{name}"
            try:
                texts = read({option: value})
                warned += bool(texts)
            except ConfigError as error:
                refused += 1
                texts = (str(error),)
            for text in texts:
                assert text.startswith("kafka."), text
                said = text.replace(option, "").replace("use_all_dns_ips", "")
                assert not PYTHON.search(said), text
    assert refused > 10
    assert warned > 10
