"""What Spark needs here, and clear words where it is not there: packages of the right versions, Java, this Python."""

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
"""The oldest releases that will do; Python data sources got limits and arguments for them in pyspark 4.2."""

PANDAS_VERSIONS: Final = ((2, 2), (3,))
"""pyspark 4 wants pandas 2.2 or later, if it is there; it does not support pandas 3 and fails in odd places with it."""

SOCKET_SETTINGS: Final[Mapping[str, str]] = {"spark.python.unix.domain.socket.enabled": "true"}
"""Without it every Python task waits for a socket: 16 of them took 464 ms instead of 185 on two cores."""

INSTALL_COMMAND: Final = "pip install 'asyncgroup[spark]'"

_warned: Final[set[str]] = set()
"""Warnings that were given."""


class SparkUnavailable(AsyncGroupError):
    """Spark cannot run here; the message says what is missing and how to get it."""


def require_spark(master: str = "local") -> None:
    """See that Spark can run here, and tell it how: raises SparkUnavailable or JavaNotFound with the cure.

    Sets PYSPARK_PYTHON (unless it is set) and JAVA_HOME in this process's environment, where Spark looks for them. In a
    program under spark-submit both stay as they are; in one that has run Spark before Java does. If `master` is a
    cluster's, so does PYSPARK_PYTHON: its machines need not have a Python where this one has.
    """
    require_packages()
    if master.startswith("local") and not os.environ.get("PYSPARK_GATEWAY_PORT"):
        # Spark would run `python3` from PATH, which may lack pyarrow: its workers then never connect back
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if _is_java_running():
        return
    os.environ["JAVA_HOME"] = str(require_java("run Spark").home)
    if sys.platform != "win32" and shutil.which("bash") is None:
        raise SparkUnavailable(
            "bash is not on PATH, and Spark's programs for starting Java are written in it: install it"
        )


def require_packages() -> None:
    """Raise SparkUnavailable for a package that is missing, too old or too new, with the versions and the cure."""
    for name, minimum in MIN_VERSIONS.items():
        if importlib.util.find_spec(name) is None:
            raise SparkUnavailable(f"{name} is not installed; asyncgroup.spark needs it: {INSTALL_COMMAND}")
        if (found := _version(name)) and _version_numbers(found) < minimum:
            wanted = ".".join(map(str, minimum))
            raise SparkUnavailable(
                f"{name} {found} is too old, asyncgroup.spark needs {wanted} or later: {INSTALL_COMMAND}"
            )
    lowest, below = PANDAS_VERSIONS
    if (pandas := _version("pandas")) and not lowest <= _version_numbers(pandas) < below:
        trouble = (
            "too old for pyspark" if _version_numbers(pandas) < lowest else "not supported by pyspark yet"
        )
        raise SparkUnavailable(
            f"pandas {pandas} is {trouble}: pip install 'pandas>=2.2,<3', or uninstall pandas"
        )
    _check_spark_home()


def _check_spark_home() -> None:
    """SPARK_HOME wins over pyspark's own jars; another Spark there fails in ways that say nothing of it."""
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
    """Whether a JVM was started for this process: by spark-submit, or by pyspark."""
    if os.environ.get("PYSPARK_GATEWAY_PORT"):
        return True
    core: Any = sys.modules.get("pyspark.core.context")
    return core is not None and core.SparkContext._gateway is not None


# --- sessions made elsewhere ------------------------------------------------------------------------------------------


def check_session(spark: SparkSession) -> None:
    """Look at a session that others have made: by spark-submit, in a notebook, on a Connect server.

    What can no longer be set there, and costs time, is said once, as a warning in the log. Raises SparkUnavailable if
    packages or the Spark that runs are too old.
    """
    require_packages()
    version, minimum = spark.version, MIN_VERSIONS["pyspark"]
    if _version_numbers(version) and _version_numbers(version)[:2] < minimum:
        wanted = ".".join(map(str, minimum))
        raise SparkUnavailable(
            f"the session runs Spark {version}, asyncgroup.spark needs {wanted} or later; pyspark is "
            f"{_version('pyspark') or 'of an unknown version'}: unset SPARK_HOME, or renew the cluster"
        )
    if not is_connect(spark):
        check_context(spark.sparkContext)


def is_connect(spark: SparkSession) -> bool:
    """Return whether this is a session of Spark Connect: a client of a server, without a SparkContext."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def check_context(context: Any) -> None:
    """The settings of a SparkContext that runs; only warnings."""
    conf = context.getConf()
    for key, value in SOCKET_SETTINGS.items():
        if str(conf.get(key, "false")).lower() != value:
            _warn_once(
                f"{key} is not {value}, so every Python task waits some 50 ms for its socket, and it cannot be set any "
                f"more: start Spark with --conf {key}={value}, or make the session with asyncgroup.spark.configure()"
            )
    default = "python3"
    if str(conf.get("spark.master", "")).startswith("local") and context.pythonExec == default:
        found = shutil.which(default)
        if found is None or Path(found).parent != Path(sys.executable).parent:
            _warn_once(
                f"Spark's workers run {found or 'python3, which is not on PATH'}, and this program {sys.executable}: they "
                f"may lack its packages, and never connect back. Start it with PYSPARK_PYTHON={sys.executable}"
            )


def _warn_once(text: str) -> None:
    if text not in _warned:
        _warned.add(text)
        _log.warning("%s", text)


# --- versions ---------------------------------------------------------------------------------------------------------


def _version(name: str) -> str | None:
    """The installed version; None if it isn't installed, or came without metadata (a Spark on PYTHONPATH)."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _version_numbers(version: str) -> tuple[int, ...]:
    """`4.3.0.dev1` as (4, 3, 0): the leading numbers, which is all that is compared."""
    match = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, match[0].split("."))) if match else ()
