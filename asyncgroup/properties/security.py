"""Create the `security` value from Kafka's properties: `security.protocol`, `sasl.*`, `ssl.*` of Java and librdkafka."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from asyncgroup.errors import ConfigError
from asyncgroup.security import HIDDEN, Plain, Sasl, Scram, Security, Tls

__all__ = ["read_security"]

_PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_SCRAM: Final = ("SCRAM-SHA-256", "SCRAM-SHA-512")
_MODULES: Final[Mapping[str, tuple[str, ...]]] = {
    "org.apache.kafka.common.security.plain.PlainLoginModule": ("PLAIN",),
    "org.apache.kafka.common.security.scram.ScramLoginModule": _SCRAM,
}
_JAAS_RULE: Final = (
    "one login module, PlainLoginModule or ScramLoginModule of org.apache.kafka.common.security, then "
    'required username="…" password="…";'
)
_OPTION: Final = re.compile(r"""\s*([\w.]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|([^\s;"']+))""")

Given = Mapping[str, str]


def read_security(given: Given) -> Security | None:
    """Return the Security for these properties, or None for PLAINTEXT.

    `given` contains names of `names.SECURITY` only. Raises ConfigError, which never contains a password.
    """
    protocol = given.get("security.protocol", "PLAINTEXT").upper()
    if protocol not in _PROTOCOLS:
        raise ConfigError("security.protocol", given["security.protocol"], "one of " + ", ".join(_PROTOCOLS))
    if not protocol.startswith("SASL"):
        _refuse_all(given, "sasl.", protocol, "SASL_PLAINTEXT or SASL_SSL")
    if not protocol.endswith("SSL"):
        _refuse_all(given, "ssl.", protocol, "SSL or SASL_SSL")
    if protocol == "PLAINTEXT":
        return None
    return Security(
        tls=_tls(given) if protocol.endswith("SSL") else None,
        sasl=_sasl(given) if protocol.startswith("SASL") else None,
    )


def _refuse_all(given: Given, prefix: str, protocol: str, needed: str) -> None:
    for name in given:
        if name.startswith(prefix) and given[name]:
            raise ConfigError(name, HIDDEN, f"only with security.protocol={needed}, and that is {protocol}")


def _either(given: Given, *names: str) -> tuple[str, str | None]:
    """Return the name that is given, of several, and its value; raise ConfigError if two are given."""
    found = [name for name in names if given.get(name)]
    if len(found) > 1:
        raise ConfigError(found[1], HIDDEN, f"left out, as {found[0]} is given")
    return (found[0], given[found[0]]) if found else (names[0], None)


# --- SASL -------------------------------------------------------------------------------------------------------------


def _sasl(given: Given) -> Sasl:
    name, said = _either(given, "sasl.mechanism", "sasl.mechanisms")
    mechanism = (said or "").upper()
    if mechanism == "OAUTHBEARER":
        raise ConfigError(
            name, said, "given as security=Security(sasl=OAuthBearer(token_provider)) beside the properties"
        )
    if mechanism not in ("PLAIN", *_SCRAM):
        raise ConfigError(name, said, "one of PLAIN, SCRAM-SHA-256, SCRAM-SHA-512")
    where, jaas = _either(given, "sasl.jaas.config", "sasl.username")
    if where == "sasl.jaas.config" and jaas is not None:
        _either(given, "sasl.jaas.config", "sasl.password")
        username, password = _read_jaas(jaas, name, mechanism)
    else:
        username, password = given.get("sasl.username", ""), given.get("sasl.password", "")
    for part, value in (("username", username), ("password", password)):
        if not value:
            raise ConfigError(f"sasl.{part}", "", f"given, or in sasl.jaas.config, for {name}={mechanism}")
    if mechanism == "PLAIN":
        return Plain(username, password)
    return Scram(username, password, "SCRAM-SHA-256" if mechanism == "SCRAM-SHA-256" else "SCRAM-SHA-512")


def _read_jaas(text: str, name: str, mechanism: str) -> tuple[str, str]:
    """Return user and password of a JAAS configuration (`JaasConfig.java`)."""
    head = re.match(r"\s*([\w.$]+)\s+(required|requisite|sufficient|optional)\b", text, re.IGNORECASE)
    if head is None or head[1] not in _MODULES:
        raise ConfigError("sasl.jaas.config", HIDDEN, _JAAS_RULE)
    if mechanism not in _MODULES[head[1]]:
        module = head[1].rpartition(".")[2]
        raise ConfigError("sasl.jaas.config", module, f"the module of {name}={mechanism}")
    options: dict[str, str] = {}
    at = head.end()
    while found := _OPTION.match(text, at):
        quoted = found[2] if found[2] is not None else found[3]
        options[found[1]] = found[4] if quoted is None else re.sub(r"\\(.)", r"\1", quoted)
        at = found.end()
    if text[at:].strip() != ";":
        raise ConfigError("sasl.jaas.config", HIDDEN, _JAAS_RULE)
    if options.get("tokenauth", "").strip().lower() == "true":
        raise ConfigError(
            "sasl.jaas.config",
            "tokenauth=true",
            "a user's password; delegation tokens (KIP-48) are not supported",
        )
    return options.get("username", ""), options.get("password", "")


# --- TLS --------------------------------------------------------------------------------------------------------------


def _tls(given: Given) -> Tls:
    for store in ("truststore", "keystore"):
        kind = given.get(f"ssl.{store}.type", "PEM" if f"ssl.{store}.location" not in given else "JKS")
        if kind.upper() != "PEM":
            default = "" if f"ssl.{store}.type" in given else ", Java's default type"
            raise ConfigError(f"ssl.{store}.type", kind, f"PEM; Python cannot read Java key stores{default}")
    _, ca_file = trust = _either(given, "ssl.truststore.location", "ssl.ca.location")
    where, ca_data = _either(given, "ssl.truststore.certificates", "ssl.ca.pem")
    if ca_file is not None and ca_data is not None:
        raise ConfigError(where, HIDDEN, f"left out, as {trust[0]} is given")
    _, cert_file = _either(given, "ssl.keystore.location", "ssl.certificate.location")
    _, cert_data = _either(given, "ssl.keystore.certificate.chain", "ssl.certificate.pem")
    _, key_data = _either(given, "ssl.keystore.key", "ssl.key.pem")
    checking = given.get("ssl.endpoint.identification.algorithm", "https").lower()
    if checking not in ("https", "", "none"):
        raise ConfigError("ssl.endpoint.identification.algorithm", checking, "https, none or nothing")
    return Tls(
        ca_file=_existing("ssl.truststore.location or ssl.ca.location", ca_file),
        ca_data=ca_data,
        cert_file=_existing("ssl.keystore.location or ssl.certificate.location", cert_file),
        key_file=_existing("ssl.key.location", given.get("ssl.key.location") or None),
        cert_data=cert_data,
        key_data=key_data,
        key_password=given.get("ssl.key.password") or None,
        check_hostname=checking == "https",
    )


def _existing(names: str, file: str | None) -> str | None:
    if file is not None and not Path(file).is_file():
        raise ConfigError(names, file, "a file that exists")
    return file
