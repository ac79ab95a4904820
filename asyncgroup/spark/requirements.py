"""Check that Spark can run in this process: package versions, SPARK_HOME, Java, the Python for its workers."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import logging
import os
import re
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from asyncgroup.errors import AsyncGroupError
from asyncgroup.java import require_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "SOCKET_SETTINGS",
    "SparkUnavailable",
    "check_session",
    "is_connect",
    "require_packages",
    "require_spark",
]

_log = logging.getLogger("asyncgroup.spark")

MIN_VERSIONS: Final = {"pyspark": (4, 2), "pyarrow": (18,)}
"""The oldest supported releases; Python data sources have read limits (`ReadLimit`) since pyspark 4.2."""

MIN_PANDAS: Final = (2, 2)
"""The oldest supported pandas, if it is installed: that of pyspark."""

FIRST_FOR_PANDAS_3: Final = (4, 3)
"""The first pyspark that works with pandas 3, of which it warns by itself."""

SOCKET_SETTINGS: Final[Mapping[str, str]] = {"spark.python.unix.domain.socket.enabled": "true"}
"""Without it every Python task waits for a TCP socket: 16 tasks took 464 ms instead of 185 ms on two cores."""

INSTALL_COMMAND: Final = "pip install 'asyncgroup[spark]'"

_warned: Final[set[str]] = set()
"""Warnings that were logged already."""


class SparkUnavailable(AsyncGroupError):
    """Spark cannot run; the message says what is missing and how to install it."""


def require_spark(master: str = "local") -> None:
    """Check the requirements of Spark and set PYSPARK_PYTHON (unless it is set) and JAVA_HOME in this process's environment.

    Under spark-submit both stay unchanged; JAVA_HOME also if a JVM was started in this process already. PYSPARK_PYTHON
    also stays unchanged if `master` is a cluster's, as its machines may have Python at another path.

    Raises SparkUnavailable or JavaNotFound; the message says what to do.
    """
    require_packages()
    if master.startswith("local") and not os.environ.get("PYSPARK_GATEWAY_PORT"):
        if getattr(sys, "frozen", False) and "PYSPARK_PYTHON" not in os.environ:
            raise SparkUnavailable(
                "this program is frozen, so that Spark's workers cannot run with it: set PYSPARK_PYTHON to a Python with "
                "asyncgroup[spark]"
            )
        # by default Spark runs `python3` from PATH, which may lack pyarrow: its workers then never connect back
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if _is_java_running():
        return
    os.environ["JAVA_HOME"] = str(require_java("run Spark").home)
    if sys.platform != "win32" and shutil.which("bash") is None:
        raise SparkUnavailable(
            "bash is not on PATH, and Spark's start scripts are bash scripts: install bash"
        )


def require_packages() -> None:
    """Raise SparkUnavailable for a package that is missing or too old; names the versions and what to install."""
    for name, minimum in MIN_VERSIONS.items():
        if importlib.util.find_spec(name) is None:
            raise SparkUnavailable(f"{name} is not installed; asyncgroup.spark needs it: {INSTALL_COMMAND}")
        if (found := _version(name)) and _version_numbers(found) < minimum:
            wanted = ".".join(map(str, minimum))
            raise SparkUnavailable(
                f"{name} {found} is too old, asyncgroup.spark needs {wanted} or later: {INSTALL_COMMAND}"
            )
    _check_pandas()
    _check_spark_home()


def _check_pandas() -> None:
    """Raise SparkUnavailable if pandas is too old; log a warning if it is newer than pyspark knows."""
    pandas, pyspark = _version("pandas"), _version("pyspark")
    if pandas and _version_numbers(pandas) < MIN_PANDAS:
        raise SparkUnavailable(
            f"pandas {pandas} is too old for pyspark: pip install 'pandas>=2.2', or uninstall pandas"
        )
    if (
        pandas
        and pyspark
        and _version_numbers(pandas) >= (3,)
        and _version_numbers(pyspark) < FIRST_FOR_PANDAS_3
    ):
        _warn_once(
            f"pyspark {pyspark} was made before pandas 3, and its functions with pandas may fail with pandas {pandas}: "
            "pip install 'pyspark>=4.3', or 'pandas<3'"
        )


def _check_spark_home() -> None:
    """Raise SparkUnavailable if SPARK_HOME holds another Spark version than pyspark.

    SPARK_HOME takes precedence over pyspark's own jars, and another version there fails with unrelated errors.
    """
    home, pyspark = os.environ.get("SPARK_HOME"), _version("pyspark")
    jars = sorted(Path(home, "jars").glob("spark-core_*.jar")) if home else []
    if not jars or not pyspark:
        return
    found = jars[0].stem.rpartition("-")[2] if "SNAPSHOT" not in jars[0].stem else ""
    if _version_numbers(found) and _version_numbers(found)[:2] != _version_numbers(pyspark)[:2]:
        raise SparkUnavailable(
            f"SPARK_HOME={home} holds Spark {found}, but pyspark is {pyspark}: unset SPARK_HOME, or install "
            f"pyspark=={found}"
        )


def _is_java_running() -> bool:
    """Return whether this process has a JVM already, started by spark-submit or by pyspark."""
    if os.environ.get("PYSPARK_GATEWAY_PORT"):
        return True
    core: Any = sys.modules.get("pyspark.core.context")
    return core is not None and core.SparkContext._gateway is not None


# --- sessions that the user has created -------------------------------------------------------------------------------


def check_session(spark: SparkSession) -> None:
    """Check a session that was created elsewhere: by spark-submit, in a notebook, on a Connect server.

    Settings that cost time and can no longer be changed are logged as a warning, once each. Raises SparkUnavailable if
    packages or the running Spark are too old.
    """
    require_packages()
    version, minimum = spark.version, MIN_VERSIONS["pyspark"]
    if _version_numbers(version) and _version_numbers(version)[:2] < minimum:
        wanted = ".".join(map(str, minimum))
        raise SparkUnavailable(
            f"the session runs Spark {version}, asyncgroup.spark needs {wanted} or later; pyspark is "
            f"{_version('pyspark') or 'of an unknown version'}: unset SPARK_HOME, or upgrade the cluster"
        )
    if not is_connect(spark):
        check_context(spark.sparkContext)


def is_connect(spark: SparkSession) -> bool:
    """Return whether this is a session of Spark Connect: a client of a server, without a SparkContext."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def check_context(context: Any) -> None:
    """Log warnings about settings of a running SparkContext."""
    conf = context.getConf()
    for key, value in SOCKET_SETTINGS.items():
        if str(conf.get(key, "false")).lower() != value:
            _warn_once(
                f"{key} is not {value}: every Python task waits about 50 ms for its socket. It cannot be changed while "
                f"Spark runs: start Spark with --conf {key}={value}, or create the session with asyncgroup.spark.configure()"
            )
    default = "python3"
    if str(conf.get("spark.master", "")).startswith("local") and context.pythonExec == default:
        found = shutil.which(default)
        if found is None or Path(found).parent != Path(sys.executable).parent:
            _warn_once(
                f"Spark's workers run {found or 'python3, which is not on PATH'}, this program runs {sys.executable}: the "
                "workers may lack packages and fail to connect back. Start the program with "
                f"PYSPARK_PYTHON={sys.executable}"
            )


def _warn_once(text: str) -> None:
    if text not in _warned:
        _warned.add(text)
        _log.warning("%s", text)


# --- versions ---------------------------------------------------------------------------------------------------------


def _version(name: str) -> str | None:
    """Return the installed version; None if the package isn't installed or has no metadata (a Spark on PYTHONPATH)."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _version_numbers(version: str) -> tuple[int, ...]:
    """Return the leading numbers of a version, for comparison: `4.3.0.dev1` is (4, 3, 0)."""
    match = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, match[0].split("."))) if match else ()
