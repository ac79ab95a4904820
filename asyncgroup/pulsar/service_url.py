"""Service URLs: `pulsar://host:6650,other:6650` and `pulsar+ssl://host:6651`."""

from __future__ import annotations

from typing import Final, NamedTuple, Self

from asyncgroup.errors import ConfigError
from asyncgroup.net.addresses import host_and_port
from asyncgroup.net.tls_errors import Hints
from asyncgroup.secret import HIDDEN

__all__ = ["HINTS", "BrokerAddress", "ServiceUrl"]

HINTS: Final = Hints(
    plaintext_listener="is it the TLS port? The plain port of a broker needs pulsar://, by default 6650",
    tls_listener="use pulsar+ssl://, by default with port 6651",
    tls_versions="update the broker's tlsProtocols",
    trusted="PulsarConfig(tls=Tls(ca_file=…))",
    broker="a Pulsar broker",
)
"""What to do when a port or a certificate is not the one that the URL needs."""

_PORTS: Final = {"pulsar": 6650, "pulsar+ssl": 6651}
_ALLOWED: Final = (
    "pulsar://host[:port][,host…] or pulsar+ssl://host[:port][,host…]; the ports are 6650 and 6651 by default"
)
_MAX_PORT: Final = 65535
_DIGITS: Final = len(str(_MAX_PORT))


class BrokerAddress(NamedTuple):
    """The host and port of a broker or proxy."""

    host: str
    port: int

    def __str__(self) -> str:
        return host_and_port(self.host, self.port)

    @classmethod
    def of_url(cls, url: str) -> Self:
        """Return the address in the URL of one broker. Raises ConfigError."""
        (address,) = ServiceUrl.parse(url).addresses[:1]
        return cls(*address)


class ServiceUrl(NamedTuple):
    """Where a client connects first."""

    is_tls: bool
    addresses: tuple[BrokerAddress, ...]

    def __str__(self) -> str:
        return f"{'pulsar+ssl' if self.is_tls else 'pulsar'}://{','.join(map(str, self.addresses))}"

    @classmethod
    def parse(cls, url: str) -> Self:
        """Return the parts of a URL. Raises ConfigError."""
        scheme, separator, rest = url.partition("://") if isinstance(url, str) else ("", "", "")
        hosts = rest.removesuffix("/").split(",")
        if not separator or scheme not in _PORTS or not all(hosts) or "/" in rest.removesuffix("/"):
            raise ConfigError("service_url", _shown(url), _ALLOWED)
        return cls(
            scheme == "pulsar+ssl", tuple(_address(url, host.strip(), _PORTS[scheme]) for host in hosts)
        )


def _address(url: str, text: str, port: int) -> BrokerAddress:
    host, number = text, str(port)
    if text.startswith("["):  # IPv6
        host, bracket, after = text[1:].partition("]")
        if not bracket or (after and not after.startswith(":")):
            raise ConfigError("service_url", _shown(url), _ALLOWED)
        number = after[1:] if after else number
    elif ":" in text:
        host, _, number = text.rpartition(":")
        if ":" in host:
            raise ConfigError("service_url", _shown(url), _ALLOWED)
    if (
        not host
        or "@" in host
        or not (number.isascii() and number.isdigit() and len(number) <= _DIGITS)
        or not 0 < int(number) <= _MAX_PORT
    ):
        raise ConfigError("service_url", _shown(url), _ALLOWED)
    return BrokerAddress(host, int(number))


def _shown(url: object) -> object:
    return HIDDEN if "@" in str(url) else url  # it may have a password
