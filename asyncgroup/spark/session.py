"""Create and configure Spark sessions for the bridge and the source, and register the source with a session."""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from asyncgroup.errors import ConfigError
from asyncgroup.spark.requirements import (
    SOCKET_SETTINGS,
    SparkUnavailable,
    check_context,
    check_session,
    require_packages,
    require_spark,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["configure", "local_session", "register"]

LOCAL_SETTINGS: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}

TAIL_LINES: Final = 15

_ALREADY_EXISTS: Final = "DATA_SOURCE_ALREADY_EXISTS"
"""Spark's error condition for registering a source that it has already discovered by itself."""


def configure(builder: SparkSession.Builder) -> SparkSession.Builder:
    """Apply the settings that every session should have: Unix domain sockets, JAVA_HOME, this Python for local workers.

        spark = configure(SparkSession.builder.appName("reports")).getOrCreate()

    Calls `require_spark`, and raises what it raises. If Spark is already running, settings that can no longer be changed
    are logged as warnings. Nothing is set on a `builder.remote("sc://…")`, as the server has its own settings; with
    `builder.remote("local[2]")` pyspark starts the server in this process, and it gets the same settings.
    """
    options: Mapping[str, str] = getattr(builder, "_options", {})
    remote = options.get("spark.remote") or os.environ.get("SPARK_REMOTE", "")
    if remote.startswith("sc://"):
        require_packages()
        return builder
    require_spark(remote or options.get("spark.master", "local"))
    from pyspark import SparkContext

    if (running := SparkContext._active_spark_context) is not None:
        check_context(running)
        return builder
    for key, value in SOCKET_SETTINGS.items():
        builder = builder.config(key, value)
        if remote:
            # the server accepts the setting; pyspark then also tries to set it on the client session, and warns
            warnings.filterwarnings("ignore", f"Failed to set {re.escape(key)}", UserWarning)
    return builder


def local_session(
    app_name: str = "asyncgroup", *, cores: int = 2, config: Mapping[str, str] | None = None
) -> SparkSession:
    """Start a local Spark session: on 127.0.0.1 only, without UI, logging errors only, with files in a temporary directory.

    `config` holds further Spark settings. A session that is already running is returned unchanged. The JVM's output goes
    to a file, whose last lines are shown if Spark does not start. The present SIGINT handler is kept: Spark's own would
    take Ctrl-C away from asyncio. Blocks for seconds: call it by `asyncio.to_thread` from a coroutine. `stop()` ends the
    session; the directory is removed when the process exits. Raises SparkUnavailable, JavaNotFound, ConfigError.
    """
    if cores < 1:
        raise ConfigError("cores", cores, "1 or more")
    require_spark()
    from pyspark import SparkConf, SparkContext
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    running = SparkSession.getActiveSession()
    if running is not None or SparkContext._active_spark_context is not None:
        session = running or SparkSession.builder.getOrCreate()
        check_session(session)
        return session
    scratch = Path(tempfile.mkdtemp(prefix="asyncgroup-spark-"))
    atexit.register(shutil.rmtree, scratch, ignore_errors=True)
    conf = SparkConf().setMaster(f"local[{cores}]").setAppName(app_name)
    for key, value in {
        **SOCKET_SETTINGS,
        **LOCAL_SETTINGS,
        **_directories(scratch, cores),
        **(config or {}),
    }.items():
        conf.set(key, value)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    try:
        with _keep_sigint_handler():
            return _start(conf, scratch / "spark.log")
    except (PySparkRuntimeError, OSError) as error:
        raise SparkUnavailable(
            f"Spark did not start: {error}\n{_tail(scratch / 'spark.log')}".rstrip()
        ) from error


def _start(conf: Any, log: Path) -> SparkSession:
    from pyspark import SparkContext
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    gateway = SparkContext._gateway
    if gateway is None:
        with log.open("wb") as output, warnings.catch_warnings():
            # Python 3.12 warns about pyspark's preexec_fn in a process with threads; asyncio programs often have some
            warnings.simplefilter("ignore", DeprecationWarning)
            gateway = launch_gateway(conf, {"stdout": output, "stderr": output})  # type: ignore[no-untyped-call]  # pyspark's own
        atexit.register(_stop_java, gateway)
    SparkContext(conf=conf, gateway=gateway)
    return SparkSession.builder.getOrCreate()


def _stop_java(gateway: Any) -> None:
    """Stop the JVM by closing its stdin, and wait for it, so that its temporary files can be removed afterwards."""
    from pyspark import SparkContext

    with contextlib.suppress(Exception):
        # if the program did not stop Spark, this server would see the JVM end, and print a traceback
        if (running := SparkContext._active_spark_context) is not None:
            running._accumulatorServer.shutdown()
    with contextlib.suppress(Exception):
        # otherwise py4j would send the JVM a message for every object that the exiting interpreter frees
        gateway.shutdown()
    with contextlib.suppress(OSError, ValueError):
        gateway.proc.stdin.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        gateway.proc.wait(timeout=10)


def _directories(scratch: Path, cores: int) -> dict[str, str]:
    return {
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.local.dir": str(scratch / "local"),
        "spark.driver.extraJavaOptions": f"-Dderby.system.home={scratch / 'derby'}",
        "spark.sql.shuffle.partitions": str(cores),
    }


@contextlib.contextmanager
def _keep_sigint_handler() -> Iterator[None]:
    """Restore the SIGINT handler that Spark replaces; only the main thread can set it, and only there Spark does."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)


def _tail(log: Path) -> str:
    try:
        return "\n".join(log.read_text(errors="replace").splitlines()[-TAIL_LINES:])
    except OSError:
        return ""


# --- the data source --------------------------------------------------------------------------------------------------


def register(spark: SparkSession) -> None:
    """Register `format("asyncgroup")` with a session, classic or Spark Connect; safe to call twice.

    If asyncgroup was installed by pip, Spark discovers the source by itself through the module `pyspark_asyncgroup`, and
    this does nothing: otherwise Spark would log at each query start that one source replaces the other. With Connect,
    which offers no way to check, it registers the source in any case, and Spark logs that line. Executors (and a Connect
    server) also need asyncgroup installed.

    A query that writes to `asyncgroup` must be started on a thread that has an active session: Spark looks sinks up in
    that session, and raises DATA_SOURCE_NOT_FOUND on a thread without one. On another thread (`asyncio.to_thread`)
    creating any DataFrame, such as `spark.createDataFrame(…)`, makes the session active.

    Raises SparkUnavailable if pyspark or pyarrow is missing or too old.
    """
    check_session(spark)
    if _is_registered(spark):
        return
    from pyspark.errors import PySparkException

    from asyncgroup.spark.data_source import AsyncGroupDataSource

    try:
        spark.dataSource.register(AsyncGroupDataSource)
    except PySparkException as error:
        if error.getCondition() != _ALREADY_EXISTS:
            raise


def _is_registered(spark: SparkSession) -> bool:
    """Return whether the session knows the source (`DataSourceManager.dataSourceExists`); False if it cannot be asked."""
    try:
        manager = spark._jsparkSession.sessionState().dataSourceManager()
        return bool(manager.dataSourceExists("asyncgroup"))
    except Exception:  # noqa: BLE001  Connect has no JVM in this process; a later Spark may drop the method
        return False
