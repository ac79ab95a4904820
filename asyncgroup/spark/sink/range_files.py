"""The file system under a directory of ranges: a small seam, and Hadoop's FileSystem behind it.

Assumed of the file system: that a directory is renamed in one step, so that it is there whole or not at all (HDFS, local
disks, NFS, ABFS with hierarchical names). Object stores copy file by file.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, Protocol

from asyncgroup.errors import AsyncGroupError, ConfigError
from asyncgroup.spark.sink.range_layout import StoredRange

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["STAGING", "HadoopFiles", "RangeFiles", "StorageError"]

STAGING: Final = "_staging"
"""Where a delivery is written before it counts; no reader looks into names that begin with an underscore."""

COPYING_SCHEMES: Final = frozenset({"s3", "s3a", "s3n", "gs", "oss", "cosn", "swift", "wasb", "wasbs"})
"""Schemes of stores that rename by copying."""

_GLOB_CHARACTERS: Final = frozenset("*?[]{}\\")


class StorageError(AsyncGroupError):
    """The file system refused what a sink asked of it; the message says what."""


class RangeFiles(Protocol):
    """What a sink of ranges needs of a file system. Names are relative to the sink's directory."""

    has_atomic_rename: bool
    """Whether a directory is renamed in one step."""

    def ranges(self, topic: str | None = None, partition: int | None = None) -> list[StoredRange]:
        """The stored ranges, of one partition or of all."""

    def locate(self, name: str) -> str:
        """The path that Spark reads and writes."""

    def children(self, name: str) -> list[str]:
        """The names inside a directory; none if it does not exist."""

    def rename(self, name: str, target: str) -> None:
        """Give a directory another name, making what is above it; raises StorageError."""

    def mkdir(self, name: str) -> None:
        """Make an empty directory; raises StorageError."""

    def remove(self, name: str) -> None:
        """Remove a directory with all in it, if it is there."""

    def size(self, name: str) -> int:
        """The bytes of the files inside a directory."""

    def age(self, name: str) -> float:
        """Seconds since a directory was changed, by the file system's own clock."""


class HadoopFiles:
    """A directory in any file system that Hadoop knows, through the JVM of a classic session.

    `path` is taken as Spark takes it: without a scheme it is on the default file system. Each method is a call or a few
    into the JVM; a listing is one, whatever its length.
    """

    def __init__(self, spark: SparkSession, path: str | os.PathLike[str]) -> None:
        text = os.fspath(path)
        if not text or _GLOB_CHARACTERS.intersection(text):
            raise ConfigError(
                "path", text, "a path without any of *?[]{}\\, by which Hadoop and Spark mean patterns"
            )
        context: Any = spark.sparkContext
        self._jvm, self._gateway = context._jvm, context._gateway
        self._new_path = self._jvm.org.apache.hadoop.fs.Path
        with _storage_errors(f"{text!r} cannot be used"):
            root = self._new_path(text)
            self._files = root.getFileSystem(context._jsc.hadoopConfiguration())
            root = self._files.makeQualified(root)
        if ":" in root.toUri().getPath():
            raise ConfigError("path", text, "a path without a colon, which Hadoop cannot list")
        self._root: str = root.toString().rstrip("/") + "/"
        self.has_atomic_rename = root.toUri().getScheme() not in COPYING_SCHEMES

    def __repr__(self) -> str:
        return f"<HadoopFiles {self._root}>"

    def ranges(self, topic: str | None = None, partition: int | None = None) -> list[StoredRange]:
        """The stored ranges."""
        topics, partitions = "*" if topic is None else topic, "*" if partition is None else partition
        names = self._glob(f"topic={topics}/partition={partitions}/offsets=*")
        return sorted(stored for name in names if (stored := StoredRange.parse(name)) is not None)

    def locate(self, name: str) -> str:
        """The path with its scheme."""
        return self._root + name

    def children(self, name: str) -> list[str]:
        """The names inside a directory."""
        return [found.removeprefix(f"{name}/") for found in self._glob(f"{name}/*")]

    def rename(self, name: str, target: str) -> None:
        """Give a directory another name."""
        with _storage_errors(f"{self.locate(name)} could not be renamed to {self.locate(target)}"):
            self._files.mkdirs(self._path(target.rpartition("/")[0]))
            if not self._files.rename(self._path(name), self._path(target)):
                raise StorageError("the file system said no")

    def mkdir(self, name: str) -> None:
        """Make an empty directory."""
        with _storage_errors(f"{self.locate(name)} could not be made"):
            if not self._files.mkdirs(self._path(name)):
                raise StorageError("the file system said no")

    def remove(self, name: str) -> None:
        """Remove a directory with all in it."""
        with _storage_errors(f"{self.locate(name)} could not be removed"):
            self._files.delete(self._path(name), True)

    def size(self, name: str) -> int:
        """The bytes of the files inside a directory."""
        with _storage_errors(f"{self.locate(name)} could not be measured"):
            found: int = self._files.getContentSummary(self._path(name)).getLength()
        return found

    def age(self, name: str) -> float:
        """Seconds since a directory was changed: a new one beside it tells the time."""
        probe = self._path(f"{STAGING}/_clock")
        with _storage_errors(f"the age of {self.locate(name)} is unknown"):
            self._files.mkdirs(probe)
            now: int = self._files.getFileStatus(probe).getModificationTime()
            self._files.delete(probe, True)
            changed: int = self._files.getFileStatus(self._path(name)).getModificationTime()
        return max(0.0, (now - changed) / 1000)

    def _path(self, name: str) -> Any:
        return self._new_path(self._root + name)

    def _glob(self, pattern: str) -> Iterator[str]:
        """Names that match: in one text, since each Java object that crosses over to Python costs a call."""
        with _storage_errors(f"{self.locate(pattern)} could not be listed"):
            found = self._files.globStatus(self._path(pattern))
        if found is None:
            return
        # py4j finds no method that takes a Path[], but this one, if it is inside an Object[]
        holder = self._gateway.new_array(self._jvm.java.lang.Object, 1)
        holder[0] = self._jvm.org.apache.hadoop.fs.FileUtil.stat2Paths(found)
        text: str = self._jvm.java.util.Arrays.deepToString(holder)
        for name in text.removesuffix("]]").split(self._root)[1:]:
            yield name.removesuffix(", ")


@contextlib.contextmanager
def _storage_errors(what: str) -> Iterator[None]:
    """Errors of Java, and refusals, as StorageError."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors.exceptions.captured import CapturedException

    try:
        yield
    except StorageError as error:
        raise StorageError(f"{what}: {error}") from None
    except Py4JJavaError as error:
        raise StorageError(f"{what}: {error.java_exception.toString()}") from error
    except CapturedException as error:  # what pyspark makes of some of them
        raise StorageError(f"{what}: {error}") from error
