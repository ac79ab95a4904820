"""Java's archive of the classes that Spark loads: with it a session starts in half the CPU time.

The first run of tests with the fixture `spark` creates it when its JVM ends, during other tests; all Sparks that tests
start use it from then on. It belongs to one Java and one installation of pyspark.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asyncgroup.java import Java
from asyncgroup.testing.java_server.class_archive import ClassArchive

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["spark_archive", "stopping_spark", "use_archive"]

LIMIT = 90.0
"""Seconds that Java may take to write the archive."""


def spark_archive(java: Java) -> ClassArchive:
    """Return the archive for this Java and the installed pyspark."""
    import pyspark

    archive = ClassArchive(java, Path(pyspark.__file__).with_name("jars"))
    # in a directory of its own, so that it does not displace an archive of Kafka's classes
    archive.path = archive.path.parents[1] / "spark-class-archives" / archive.path.name
    return archive


def use_archive(java: Java) -> None:
    """Let each Spark that this process and its children start use the archive, if there is one."""
    if options := spark_archive(java).options:
        os.environ["SPARK_SUBMIT_OPTS"] = " ".join(options)


class RunningSpark:
    """A session that can be stopped before the end of the tests, with its JVM."""

    def __init__(self) -> None:
        self.session: SparkSession | None = None
        self._java: subprocess.Popen[bytes] | None = None

    def stop(self) -> None:
        """Stop Spark, without waiting for its JVM: at its end that may write an archive."""
        if self.session is None:
            return
        from pyspark import SparkContext

        gateway: Any = self.session.sparkContext._gateway
        self.session.stop()
        self.session = None
        gateway.shutdown()
        gateway.proc.stdin.close()
        self._java = gateway.proc
        # a session that starts later needs a JVM of its own
        SparkContext._gateway = SparkContext._jvm = None

    def has_ended(self) -> bool:
        """Wait for the JVM; return whether it ended in time."""
        if self._java is None:
            return False
        with suppress(subprocess.TimeoutExpired):
            self._java.wait(LIMIT)
            return True
        return False


@contextmanager
def stopping_spark(java: Java, options: list[str]) -> Iterator[RunningSpark]:
    """Yield a place for the session; stop it at the end, and keep the archive that its Java then writes.

    `options` of Java are extended to write one, if there is none and later runs would use it.
    """
    archive = spark_archive(java)
    running = RunningSpark()
    is_kept = not Path(sys.prefix).is_relative_to(tempfile.gettempdir())
    with tempfile.TemporaryDirectory(prefix="asyncgroup-tests-") as directory:
        made = Path(directory) / "spark.jsa"
        if is_made := is_kept and archive.can_be_created:
            options += archive.dump_options(made)
        yield running
        running.stop()
        if running.has_ended() and is_made:
            archive.install(made)
