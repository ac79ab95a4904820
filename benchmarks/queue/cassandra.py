"""A Cassandra of one node for prosody-events, which keeps retries and timers there. Its jars come from Java's repository."""

from __future__ import annotations

import asyncio
import os
import socket
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from asyncgroup.java import JavaNotFound, require_java
from benchmarks.common import started_process
from benchmarks.queue.installation import JavaLibrary, PeerUnavailable

__all__ = ["CASSANDRA", "NODES", "cassandra"]

CASSANDRA: Final = JavaLibrary("org.apache.cassandra", "cassandra-all", "5.0.5")
NODES: Final = "PROSODY_CASSANDRA_NODES"
"""The environment variable of prosody-events with the addresses of a Cassandra; if it is set, none is started."""
START_LIMIT: Final = 120.0
CHECK_SECONDS: Final = 0.2

_SETTINGS: Final = """\
cluster_name: benchmark
num_tokens: 1
partitioner: org.apache.cassandra.dht.Murmur3Partitioner
commitlog_sync: periodic
commitlog_sync_period: 10000ms
data_file_directories: [{directory}/data]
commitlog_directory: {directory}/commitlog
saved_caches_directory: {directory}/caches
hints_directory: {directory}/hints
cdc_raw_directory: {directory}/cdc
listen_address: 127.0.0.1
rpc_address: 127.0.0.1
storage_port: {storage_port}
native_transport_port: {port}
endpoint_snitch: SimpleSnitch
seed_provider:
  - class_name: org.apache.cassandra.locator.SimpleSeedProvider
    parameters:
      - seeds: "127.0.0.1:{storage_port}"
"""
_LOGBACK: Final = '<configuration><root level="OFF"/></configuration>'
_OPENED: Final = (
    "java.base/java.lang", "java.base/java.lang.module", "java.base/java.lang.reflect", "java.base/java.io",
    "java.base/java.net", "java.base/java.nio", "java.base/java.util", "java.base/java.util.concurrent",
    "java.base/java.util.concurrent.atomic", "java.base/jdk.internal.loader", "java.base/jdk.internal.math",
    "java.base/jdk.internal.misc", "java.base/jdk.internal.module", "java.base/jdk.internal.ref",
    "java.base/jdk.internal.reflect", "java.base/jdk.internal.util.jar", "java.base/sun.nio.ch",
    "java.rmi/sun.rmi.registry", "java.rmi/sun.rmi.server", "java.rmi/sun.rmi.transport.tcp", "java.sql/java.sql",
    "jdk.management/com.sun.management.internal", "jdk.unsupported/sun.misc",
    "java.management.rmi/com.sun.jmx.remote.internal.rmi",
)  # fmt: skip
"""Java's packages that Cassandra accesses by reflection, from its `jvm17-server.options`."""


@asynccontextmanager
async def cassandra(environ: Mapping[str, str] = os.environ) -> AsyncIterator[str]:
    """Yield the address of a Cassandra: of the one in `PROSODY_CASSANDRA_NODES`, else of one that is started here.

    Raises PeerUnavailable.
    """
    if given := environ.get(NODES):
        yield given
        return
    try:
        java = require_java("run Cassandra")
    except JavaNotFound as error:
        raise PeerUnavailable(f"it needs Cassandra: {error}") from error
    jars = await CASSANDRA.jars()
    with tempfile.TemporaryDirectory(prefix="benchmark-cassandra-", ignore_cleanup_errors=True) as name:
        directory, port = Path(name), _free_port()
        settings = _SETTINGS.format(directory=directory, port=port, storage_port=_free_port())
        (directory / "cassandra.yaml").write_text(settings)
        (directory / "logback.xml").write_text(_LOGBACK)
        options = [
            f"--{what}={package}=ALL-UNNAMED" for package in _OPENED for what in ("add-exports", "add-opens")
        ]
        command = [
            str(java.executable), "-Xmx1g", *options,
            f"-Dcassandra.config=file://{directory}/cassandra.yaml", f"-Dcassandra.storagedir={directory}",
            f"-Dlogback.configurationFile={directory}/logback.xml", "-Dcassandra-foreground=yes",
            "-Djdk.attach.allowAttachSelf=true", "-Dcassandra.skip_wait_for_gossip_to_settle=0",
            "-Dcassandra.ring_delay_ms=1", "-cp", f"{jars}/*", "org.apache.cassandra.service.CassandraDaemon",
        ]  # fmt: skip
        async with started_process(*command) as process:
            output = asyncio.create_task(process.communicate())  # a full pipe would stop it
            try:
                await _wait_for_port(port, process)
                yield f"127.0.0.1:{port}"
            finally:
                output.cancel()
                await asyncio.wait([output])


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


async def _wait_for_port(port: int, process: asyncio.subprocess.Process) -> None:
    try:
        async with asyncio.timeout(START_LIMIT):
            while process.returncode is None:
                try:
                    _, writer = await asyncio.open_connection("127.0.0.1", port)
                except OSError:
                    await asyncio.sleep(CHECK_SECONDS)
                    continue
                writer.close()
                return
    except TimeoutError:
        raise PeerUnavailable(f"Cassandra did not start within {START_LIMIT:g} s") from None
    raise PeerUnavailable(f"Cassandra ended with exit code {process.returncode}")
