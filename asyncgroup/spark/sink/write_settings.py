"""What a query that writes to Kafka has asked for: its options, checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from asyncgroup.config import ProducerConfig
from asyncgroup.errors import ConfigError
from asyncgroup.secret import reduce_with_secrets
from asyncgroup.spark.source.kafka_options import (
    as_option_error,
    check_servers,
    check_tls,
    refuse_oauthbearer,
)

__all__ = ["WriteSettings", "write_settings"]

PREFIX: Final = "kafka."
SERVERS: Final = "bootstrap.servers"

_REFUSED_PROPERTIES: Final[Mapping[str, str]] = {
    "key.serializer": "a key is written as it is: cast the column to string or binary",
    "value.serializer": "a value is written as it is: cast the column to string or binary",
}


@dataclass(frozen=True)
class WriteSettings:
    """What a task needs for writing; can be pickled. `topic` is where all rows go, None: the column says it."""

    bootstrap_servers: str
    config: ProducerConfig
    topic: str | None = None
    properties: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """The `kafka.*` options that this was made from; tasks that have the same ones share a producer."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles for tasks hold the passwords and keys that they connect with."""
        return reduce_with_secrets(self)


def write_settings(options: Mapping[str, str]) -> WriteSettings:
    """The settings of `format("asyncgroup")` as a sink, out of Spark's options (names in any case).

    `topic` and `kafka.*` count, as in Spark's sink (`KafkaSourceProvider.kafkaParamsForProducer`); anything else is
    for others (`checkpointLocation`, `path`). Raises ConfigError naming the option.
    """
    given = {name.lower(): value for name, value in options.items()}
    kafka = {name.removeprefix(PREFIX): value for name, value in given.items() if name.startswith(PREFIX)}
    for name, instead in _REFUSED_PROPERTIES.items():
        if name in kafka:
            raise ConfigError(PREFIX + name, kafka[name], f"no value at all; {instead}")
    refuse_oauthbearer(kafka)
    try:
        config, rest = ProducerConfig.from_properties(kafka)
    except ConfigError as error:
        raise as_option_error(error, kafka) from None
    check_tls(config, kafka)
    servers = rest.get(SERVERS, "").strip()
    if not servers:
        raise ConfigError(f"option {PREFIX}{SERVERS} is missing: it says where the brokers are, host:port,…")
    topic = given.get("topic")
    return WriteSettings(
        check_servers(SERVERS, servers),
        config,
        None if topic is None else topic.strip(),
        tuple(sorted(kafka.items())),
    )
