"""`WriteSettings`: the checked options of a query that writes to Kafka."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from asyncgroup.config import ProducerConfig
from asyncgroup.errors import ConfigError
from asyncgroup.secret import reduce_with_secrets
from asyncgroup.spark.source.options.kafka_options import (
    as_option_error,
    check_servers,
    check_tls,
    refuse_oauthbearer,
)
from asyncgroup.spark.source.options.values import Options, check_names

__all__ = ["WriteSettings", "write_settings"]

PREFIX: Final = "kafka."
SERVERS: Final = "bootstrap.servers"
TRANSACTIONAL_ID_PREFIX: Final = "transactional.id.prefix"
TRANSACTION_TIMEOUT: Final = "transaction.timeout.ms"

DEFAULT_TRANSACTION_TIMEOUT: Final = 900.0
"""Seconds that a batch and a restart of the driver may take together (default of the broker's `transaction.max.timeout.ms`)."""

_REFUSED_PROPERTIES: Final[Mapping[str, str]] = {
    "key.serializer": "keys are written unchanged: cast the column to string or binary",
    "value.serializer": "values are written unchanged: cast the column to string or binary",
    "transactional.id": f"each task needs one of its own; the option {TRANSACTIONAL_ID_PREFIX} makes them",
}


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
    kafka = {name.removeprefix(PREFIX): value for name, value in given.items() if name.startswith(PREFIX)}
    for name, instead in _REFUSED_PROPERTIES.items():
        if name in kafka:
            raise ConfigError(PREFIX + name, kafka[name], f"leave it out; {instead}")
    refuse_oauthbearer(kafka)
    try:
        config, rest = ProducerConfig.from_properties(kafka)
    except ConfigError as error:
        raise as_option_error(error, kafka) from None
    check_tls(config, kafka)
    servers = rest.get(SERVERS, "").strip()
    if not servers:
        raise ConfigError(
            f"option {PREFIX}{SERVERS} is missing: host:port of the brokers, several separated by commas"
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
    )


def _transactional(config: ProducerConfig, prefix: str, kafka: Mapping[str, str]) -> ProducerConfig:
    """Return the configuration for transactions; raise ConfigError if there can be none."""
    if not prefix or prefix != prefix.strip():
        raise ConfigError(
            TRANSACTIONAL_ID_PREFIX, prefix, "a text that is not empty, without spaces around it"
        )
    if not config.effective_enable_idempotence:
        raise ConfigError(
            TRANSACTIONAL_ID_PREFIX, prefix, "only with kafka.acks=all and kafka.enable.idempotence=true"
        )
    if TRANSACTION_TIMEOUT in kafka:
        return config
    return replace(config, transaction_timeout=DEFAULT_TRANSACTION_TIMEOUT)
