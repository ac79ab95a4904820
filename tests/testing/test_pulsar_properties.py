from __future__ import annotations

import json
from pathlib import Path

import pytest

from asyncgroup.errors import ConfigError
from asyncgroup.testing.apache_pulsar import ApachePulsar
from asyncgroup.testing.apache_pulsar.properties import (
    StandaloneOptions,
    StandalonePorts,
    standalone_properties,
)

PORTS = StandalonePorts(broker=1, web=2, bookie=3, broker_tls=4)


def properties(**options: object) -> dict[str, object]:
    made = StandaloneOptions(**{"overrides": {}, **options})  # type: ignore[arg-type]
    return dict(standalone_properties(PORTS, made, Path("/place"), "the-token"))


def test_all_servers_listen_on_the_loopback_interface() -> None:
    made = properties()
    assert (made["brokerServicePort"], made["webServicePort"]) == (1, 2)
    assert (made["bindAddress"], made["advertisedAddress"]) == ("127.0.0.1", "127.0.0.1")
    assert str(made["listeningInterface"]).startswith("lo")
    assert "brokerServicePortTls" not in made
    assert "authenticationEnabled" not in made
    assert "brokerEntryMetadataInterceptors" not in made


def test_a_bookie_accepts_an_entry_with_the_largest_message() -> None:
    assert properties()["nettyMaxFrameSizeBytes"] == 5 * 1024 * 1024 + 10 * 1024


def test_token_authentication() -> None:
    made = properties(token_authentication=True)
    assert made["tokenSecretKey"] == "file:///place/secret.key"
    assert made["authenticationEnabled"] is made["authorizationEnabled"] is True
    assert json.loads(str(made["brokerClientAuthenticationParameters"])) == {"token": "the-token"}


def test_tls_has_a_port_beside_the_plain_one() -> None:
    made = properties(certificate=Path("/both.pem"))
    assert (made["brokerServicePort"], made["brokerServicePortTls"]) == (1, 4)
    assert made["tlsCertificateFilePath"] == "/place/certificate.pem"
    assert made["tlsKeyFilePath"] == "/place/private-key.pem"


def test_broker_entry_metadata() -> None:
    made = properties(broker_entry_metadata=True)
    assert made["exposingBrokerEntryMetadataToClientEnabled"] is True
    assert str(made["brokerEntryMetadataInterceptors"]).count("Append") == 2


def test_overrides_replace_the_quick_settings_but_not_the_reserved_ones() -> None:
    made = properties(overrides={"journalSyncData": True, "maxMessageSize": 9})
    assert (made["journalSyncData"], made["maxMessageSize"]) == (True, 9)
    with pytest.raises(ConfigError, match="webServicePort=8080 is not allowed: ApachePulsar sets"):
        ApachePulsar(properties={"webServicePort": 8080})
