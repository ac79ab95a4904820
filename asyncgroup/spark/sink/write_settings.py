"""`WriteSettings`: the checked options of a query that writes to Kafka."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
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

__all__ = ["WriteSettings", "write_settings"]

PREFIX: Final = "kafka."
SERVERS: Final = "bootstrap.servers"

_REFUSED_PROPERTIES: Final[Mapping[str, str]] = {
    "key.serializer": "keys are written unchanged: cast the column to string or binary",
    "value.serializer": "values are written unchanged: cast the column to string or binary",
}


@dataclass(frozen=True)
class WriteSettings:
    """The settings that a task needs for writing; can be pickled."""

    bootstrap_servers: str
    config: ProducerConfig
    topic: str | None = None
    """The topic of all rows; None: each row has it in the column `topic`."""
    properties: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """The `kafka.*` options that these settings are made of; tasks with the same ones share a producer."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle with passwords and keys, which tasks need for connecting."""
        return reduce_with_secrets(self)


def write_settings(options: Mapping[str, str]) -> WriteSettings:
    """Return the settings of the sink `format("asyncgroup")` from Spark's options (names in any case).

    Reads `topic` and `kafka.*`, as Spark's sink does (`KafkaSourceProvider.kafkaParamsForProducer`); ignores other options,
    such as `checkpointLocation` and `path`. Raises ConfigError naming the option.
    """
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
    return WriteSettings(
        check_servers(SERVERS, servers),
        config,
        None if topic is None else topic.strip(),
        tuple(sorted(kafka.items())),
    )
