"""File system access for stored ranges: the protocol `RangeFiles`, implemented with Hadoop's FileSystem.

The file system must rename directories atomically: HDFS, local disks, NFS, ABFS with hierarchical namespace. Object stores
rename by copying file by file.
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
"""The directory where batches are written before they are renamed; readers ignore names that begin with an underscore."""

COPYING_SCHEMES: Final = frozenset({"s3", "s3a", "s3n", "gs", "oss", "cosn", "swift", "wasb", "wasbs"})
"""URI schemes of stores that rename by copying."""

_GLOB_CHARACTERS: Final = frozenset("*?[]{}\\")


class StorageError(AsyncGroupError):
    """A file system operation of a sink has failed; the message names it."""


class RangeFiles(Protocol):
    """The file system operations of a sink that stores ranges. Names are relative to the sink's directory."""

    has_atomic_rename: bool
    """Whether directories are renamed atomically."""

    def ranges(self, topic: str | None = None, partition: int | None = None) -> list[StoredRange]:
        """Return the stored ranges of one partition or of all."""

    def locate(self, name: str) -> str:
        """Return the path that Spark reads and writes."""

    def children(self, name: str) -> list[str]:
        """Return the names in a directory; empty if it does not exist."""

    def rename(self, name: str, target: str) -> None:
        """Rename a directory, creating the parents of the target; raise StorageError."""

    def mkdir(self, name: str) -> None:
        """Create an empty directory; raise StorageError."""

    def remove(self, name: str) -> None:
        """Remove a directory with its content, if it exists."""

    def size(self, name: str) -> int:
        """Return the total size in bytes of the files in a directory."""

    def age(self, name: str) -> float:
        """Return the seconds since a directory was modified, by the file system's clock."""


class HadoopFiles:
    """A directory in any file system supported by Hadoop, accessed through the JVM of a classic Spark session.

    `path` is interpreted as by Spark: without a scheme it is on the default file system. Each method makes one or a few
    JVM calls; a listing of any length makes the same number.
    """

    def __init__(self, spark: SparkSession, path: str | os.PathLike[str]) -> None:
        text = os.fspath(path)
        if not text or _GLOB_CHARACTERS.intersection(text):
            raise ConfigError(
                "path", text, "a path without *?[]{}\\, which are pattern characters of Hadoop and Spark"
            )
        context: Any = spark.sparkContext
        self._jvm = context._jvm
        self._gateway = context._gateway
        self._new_path = self._jvm.org.apache.hadoop.fs.Path
        with _storage_errors(f"{text!r} cannot be used"):
            root = self._new_path(text)
            self._files = root.getFileSystem(context._jsc.hadoopConfiguration())
            root = self._files.makeQualified(root)
        if ":" in root.toUri().getPath():
            raise ConfigError("path", text, "a path without a colon: Hadoop cannot list names with one")
        self._root: str = root.toString().rstrip("/") + "/"
        self.has_atomic_rename = root.toUri().getScheme() not in COPYING_SCHEMES

    def __repr__(self) -> str:
        return f"<HadoopFiles {self._root}>"

    def ranges(self, topic: str | None = None, partition: int | None = None) -> list[StoredRange]:
        """Return the stored ranges of one partition or of all."""
        topics, partitions = "*" if topic is None else topic, "*" if partition is None else partition
        names = self._glob(f"topic={topics}/partition={partitions}/offsets=*")
        return sorted(stored for name in names if (stored := StoredRange.parse(name)) is not None)

    def locate(self, name: str) -> str:
        """Return the path with its scheme."""
        return self._root + name

    def children(self, name: str) -> list[str]:
        """Return the names in a directory; empty if it does not exist."""
        return [found.removeprefix(f"{name}/") for found in self._glob(f"{name}/*")]

    def rename(self, name: str, target: str) -> None:
        """Rename a directory, creating the parents of the target."""
        with _storage_errors(f"{self.locate(name)} could not be renamed to {self.locate(target)}"):
            self._files.mkdirs(self._path(target.rpartition("/")[0]))
            if not self._files.rename(self._path(name), self._path(target)):
                raise StorageError("the file system refused the operation")

    def mkdir(self, name: str) -> None:
        """Create an empty directory."""
        with _storage_errors(f"{self.locate(name)} could not be created"):
            if not self._files.mkdirs(self._path(name)):
                raise StorageError("the file system refused the operation")

    def remove(self, name: str) -> None:
        """Remove a directory with its content, if it exists."""
        with _storage_errors(f"{self.locate(name)} could not be removed"):
            self._files.delete(self._path(name), True)

    def size(self, name: str) -> int:
        """Return the total size in bytes of the files in a directory."""
        with _storage_errors(f"the size of {self.locate(name)} could not be determined"):
            found: int = self._files.getContentSummary(self._path(name)).getLength()
        return found

    def age(self, name: str) -> float:
        """Return the seconds since a directory was modified; a new directory gives the file system's present time."""
        probe = self._path(f"{STAGING}/_clock")
        with _storage_errors(f"the age of {self.locate(name)} could not be determined"):
            self._files.mkdirs(probe)
            now: int = self._files.getFileStatus(probe).getModificationTime()
            self._files.delete(probe, True)
            changed: int = self._files.getFileStatus(self._path(name)).getModificationTime()
        return max(0.0, (now - changed) / 1000)

    def _path(self, name: str) -> Any:
        return self._new_path(self._root + name)

    def _glob(self, pattern: str) -> Iterator[str]:
        """Yield the names that match a pattern. They are fetched as one string, since each Java object costs a JVM call."""
        with _storage_errors(f"{self.locate(pattern)} could not be listed"):
            found = self._files.globStatus(self._path(pattern))
        if found is None:
            return
        # py4j cannot pass a Path[] to a Java method, but it can pass an Object[] that holds it
        holder = self._gateway.new_array(self._jvm.java.lang.Object, 1)
        holder[0] = self._jvm.org.apache.hadoop.fs.FileUtil.stat2Paths(found)
        text: str = self._jvm.java.util.Arrays.deepToString(holder)
        for name in text.removesuffix("]]").split(self._root)[1:]:
            yield name.removesuffix(", ")


@contextlib.contextmanager
def _storage_errors(what: str) -> Iterator[None]:
    """Raise Java's errors, and refused operations, as StorageError beginning with `what`."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors.exceptions.captured import CapturedException

    try:
        yield
    except StorageError as error:
        raise StorageError(f"{what}: {error}") from None
    except Py4JJavaError as error:
        raise StorageError(f"{what}: {error.java_exception.toString()}") from error
    except CapturedException as error:  # pyspark converts some Java exceptions
        raise StorageError(f"{what}: {error}") from error
