"""`WriteSettings`: the checked options of a query that writes to Kafka."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from asyncgroup.config import ProducerConfig
from asyncgroup.errors import ConfigError
from asyncgroup.properties.names import PROPERTIES
from asyncgroup.secret import reduce_with_secrets
from asyncgroup.spark.option_words import KAFKA_PREFIX, SINK_WORDS
from asyncgroup.spark.source.errors import OptionError
from asyncgroup.spark.source.options import values
from asyncgroup.spark.source.options.kafka_options import check_servers, check_tls, refuse_oauthbearer
from asyncgroup.spark.source.options.kafka_properties import (
    OptionReader,
    api_timeout,
    as_option_error,
    refuse_other_names,
    separate,
)
from asyncgroup.spark.source.options.values import Options, check_names

__all__ = ["WriteSettings", "write_settings"]

_log = logging.getLogger("asyncgroup.spark")

SERVERS: Final = "bootstrap.servers"
TRANSACTIONAL_ID_PREFIX: Final = "transactional.id.prefix"
TRANSACTION_TIMEOUT: Final = "transaction.timeout.ms"

DEFAULT_TRANSACTION_TIMEOUT: Final = 900.0
"""Seconds that a batch and a restart of the driver may take together (default of the broker's `transaction.max.timeout.ms`)."""

_REFUSED_PROPERTIES: Final[Mapping[str, str]] = {
    "key.serializer": "keys are written unchanged: cast the column to string or binary",
    "value.serializer": "values are written unchanged: cast the column to string or binary",
    "transactional.id": f"each task needs its own one; the option {TRANSACTIONAL_ID_PREFIX} makes them",
}

_CONSUMER_PROPERTIES: Final = (
    frozenset(PROPERTIES["ConsumerConfig"]) - frozenset(PROPERTIES["ClientConfig"])
) | {"group.id", "max.poll.records"}
"""Properties of the source, ignored with a warning, as by Java's producer: options are often shared by source and sink."""

_SINK: Final = OptionReader("sink", SINK_WORDS, _CONSUMER_PROPERTIES, "consumer")

_TIMEOUT_NAMES: Final = ("max.block.ms", "default.api.timeout.ms")
"""Java's producer has the first, its consumer and admin client the second; the sink does what all of them do."""

_OWN_PROPERTIES: Final[Mapping[str, tuple[str, Callable[[str], Any]]]] = {
    "chunking": ("chunking", values.boolean),
    "max.chunk.size": ("max_chunk_size", values.integer(1, values.INT32_MAX)),
}
"""Keys of `ProducerConfig` that have no property in Kafka."""


@dataclass(frozen=True)
class WriteSettings:
    """The settings that a task needs for writing; can be pickled."""

    bootstrap_servers: str
    config: ProducerConfig
    topic: str | None = None
    """The topic of all rows; None: each row has it in the column `topic`."""
    transactional_id_prefix: str | None = None
    """Rows are written in transactions with the ids `<prefix>-<slot>`; None: without transactions."""
    properties: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """The `kafka.*` options that these settings are made of; tasks with the same ones share a producer."""
    api_timeout: float | None = None
    """Seconds for which requests are repeated while no broker answers; None: the defaults of each."""
    warnings: tuple[str, ...] = field(default=(), compare=False)
    """Warnings about options without effect."""

    @property
    def timeout_option(self) -> str:
        """The option that sets `api_timeout`, or would set it."""
        given = dict(self.properties)
        return KAFKA_PREFIX + next((name for name in _TIMEOUT_NAMES if name in given), _TIMEOUT_NAMES[0])

    def warn(self) -> None:
        """Log the warnings. Called once per query, by its driver."""
        for warning in self.warnings:
            _log.warning("%s", warning)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle with passwords and keys, which tasks need for connecting."""
        return reduce_with_secrets(self)


def write_settings(options: Mapping[str, str]) -> WriteSettings:
    """Return the settings of the sink `format("asyncgroup")` from Spark's options (names in any case).

    Reads `topic` and `kafka.*`, as Spark's sink does (`KafkaSourceProvider.kafkaParamsForProducer`), and
    `transactional.id.prefix`; ignores the options of sources and of Spark, such as `checkpointLocation` and `path`. Raises
    ConfigError naming the option, also one that does not exist.
    """
    check_names(Options(options), sink=True)
    given = {name.lower(): value for name, value in options.items()}
    kafka = {
        name.removeprefix(KAFKA_PREFIX): value
        for name, value in given.items()
        if name.startswith(KAFKA_PREFIX)
    }
    for name, instead in _REFUSED_PROPERTIES.items():
        if name in kafka:
            raise OptionError(KAFKA_PREFIX + name, kafka[name], f"leave it out; {instead}")
    words = SINK_WORDS.including(kafka)
    refuse_other_names(kafka, words)
    timed = dict(kafka)
    timeout = api_timeout(timed, *_TIMEOUT_NAMES)
    wanted, warnings = separate(timed, _SINK)
    own = _own_keys(wanted)
    refuse_oauthbearer(wanted)
    try:
        config, rest = ProducerConfig.from_properties(wanted, **own)
    except ConfigError as error:
        raise as_option_error(error, wanted, words) from None
    check_tls(config, wanted)
    servers = rest.get(SERVERS, "").strip()
    if not servers:
        raise OptionError(
            f"option {KAFKA_PREFIX}{SERVERS} is missing: host:port of the brokers, several separated by commas"
        )
    topic = given.get("topic")
    prefix = given.get(TRANSACTIONAL_ID_PREFIX)
    if prefix is not None:
        config = _transactional(config, prefix, kafka)
    return WriteSettings(
        check_servers(SERVERS, servers),
        config,
        None if topic is None else topic.strip(),
        prefix,
        tuple(sorted(kafka.items())),
        timeout,
        warnings,
    )


def _own_keys(properties: dict[str, str]) -> dict[str, Any]:
    """Remove the properties that Kafka does not have; return the keys that they stand for. Raises OptionError."""
    found = {}
    for name, (key, parse) in _OWN_PROPERTIES.items():
        if (text := properties.pop(name, None)) is not None:
            try:
                found[key] = parse(text.strip())
            except ValueError as error:
                raise OptionError(KAFKA_PREFIX + name, text, str(error)) from None
    return found


def _transactional(config: ProducerConfig, prefix: str, kafka: Mapping[str, str]) -> ProducerConfig:
    """Return the configuration for transactions; raise ConfigError if there can be none."""
    if not prefix or prefix != prefix.strip():
        raise OptionError(
            TRANSACTIONAL_ID_PREFIX, prefix, "a text that is not empty, without spaces around it"
        )
    if not config.effective_enable_idempotence:
        raise OptionError(
            TRANSACTIONAL_ID_PREFIX, prefix, "only with kafka.acks=all and kafka.enable.idempotence=true"
        )
    if TRANSACTION_TIMEOUT in kafka:
        return config
    return replace(config, transaction_timeout=DEFAULT_TRANSACTION_TIMEOUT)
