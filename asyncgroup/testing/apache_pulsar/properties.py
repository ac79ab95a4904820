"""The `standalone.conf` of a Pulsar for tests: settings of the broker and of its bookie in one file."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from asyncgroup.errors import ConfigError
from asyncgroup.testing.apache_pulsar.credentials import CERTIFICATE, PRIVATE_KEY, SECRET_KEY
from asyncgroup.testing.java_server.ports import HOST
from asyncgroup.testing.java_server.properties_file import Value

__all__ = ["StandaloneOptions", "StandalonePorts", "check_properties", "standalone_properties"]

_QUICK: Final[Mapping[str, Value]] = {
    # without a load manager and with one replica there is less to start
    "loadManagerClassName": "org.apache.pulsar.broker.loadbalance.NoopLoadManager",
    "managedLedgerDefaultEnsembleSize": 1,
    "managedLedgerDefaultWriteQuorum": 1,
    "managedLedgerDefaultAckQuorum": 1,
    # a bookie's own limit is 5 MiB: a broker would write an entry with the largest message, and its headers, again and
    # again without a pause; this is the limit in Pulsar's distribution
    "nettyMaxFrameSizeBytes": 5 * 1024 * 1024 + 10 * 1024,
    "functionsWorkerEnabled": False,
    "transactionCoordinatorEnabled": True,
    # a topic without subscriptions would be deleted after a minute, with its messages
    "brokerDeleteInactiveTopicsEnabled": False,
    # the disk of a developer is often fuller than a bookie likes
    "diskUsageThreshold": 0.99,
    "diskUsageLwmThreshold": 0.98,
    # what is written survives a killed process without it; only a crash of the machine would lose it
    "journalSyncData": False,
}
"""Settings for quick tests. All of them can be overridden."""

_RESERVED: Final = frozenset(
    {
        "advertisedAddress",
        "allowEphemeralPorts",
        "allowLoopback",
        "bindAddress",
        "brokerServicePort",
        "brokerServicePortTls",
        "clusterName",
        "listeningInterface",
        "webServicePort",
    }
)
"""Properties that ApachePulsar sets, and that cannot be overridden."""

_TOKENS: Final = "org.apache.pulsar.broker.authentication.AuthenticationProviderToken"
_CLIENT_TOKENS: Final = "org.apache.pulsar.client.impl.auth.AuthenticationToken"
_ENTRY_METADATA: Final = ",".join(
    f"org.apache.pulsar.common.intercept.{name}"
    for name in ("AppendBrokerTimestampMetadataInterceptor", "AppendIndexMetadataInterceptor")
)


class StandalonePorts(NamedTuple):
    """The ports of a standalone."""

    broker: int
    web: int
    bookie: int
    broker_tls: int


@dataclass(frozen=True, kw_only=True, slots=True)
class StandaloneOptions:
    """What a standalone can do beyond the default: `overrides` are properties, the others switch on groups of them."""

    overrides: Mapping[str, Value]
    token_authentication: bool = False
    certificate: Path | None = None
    broker_entry_metadata: bool = False


def check_properties(properties: Mapping[str, Value]) -> None:
    """Raise ConfigError if `properties` contains one that ApachePulsar sets itself."""
    for key in sorted(_RESERVED & properties.keys()):
        raise ConfigError(key, properties[key], "ApachePulsar sets this property itself")


def standalone_properties(
    ports: StandalonePorts, options: StandaloneOptions, directory: Path, admin_token: str
) -> dict[str, Value]:
    """Return the properties. `directory` has the files named below, `admin_token` is the broker's own token."""
    made: dict[str, Value] = dict(_QUICK)
    if options.broker_entry_metadata:
        made["brokerEntryMetadataInterceptors"] = _ENTRY_METADATA
        made["exposingBrokerEntryMetadataToClientEnabled"] = True
    if options.token_authentication:
        made |= {
            "authenticationEnabled": True,
            "authorizationEnabled": True,
            "authenticationProviders": _TOKENS,
            "tokenSecretKey": (directory / SECRET_KEY).as_uri(),
            "superUserRoles": "admin",
            "brokerClientAuthenticationPlugin": _CLIENT_TOKENS,
            "brokerClientAuthenticationParameters": json.dumps({"token": admin_token}),
        }
    if options.certificate is not None:
        made["tlsCertificateFilePath"] = str(directory / CERTIFICATE)
        made["tlsKeyFilePath"] = str(directory / PRIVATE_KEY)
    made |= options.overrides
    if options.certificate is not None:
        made["brokerServicePortTls"] = ports.broker_tls
    return made | {
        "clusterName": "standalone",
        "advertisedAddress": HOST,
        "bindAddress": HOST,
        "brokerServicePort": ports.broker,
        "webServicePort": ports.web,
        # of the bookie, which would listen on all interfaces, at a port of its choice
        "allowEphemeralPorts": True,
        "allowLoopback": True,
        "listeningInterface": _loopback_interface(),
    }


def _loopback_interface() -> str:
    """Return the name of the loopback interface: `lo` on Linux, `lo0` on BSD and macOS."""
    names = [name for _, name in socket.if_nameindex()]
    return next((name for name in names if name.startswith("lo")), "lo")
