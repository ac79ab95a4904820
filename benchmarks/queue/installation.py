"""Install other libraries into the user's cache: Python packages into separate environments, jars by Apache Ivy.

The project's own environment is not changed. What is installed once is found in the cache by later runs.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from asyncgroup.java import Java, JavaNotFound, require_java, user_cache
from asyncgroup.testing.java_server.ivy import ivy_command, ivy_jar
from benchmarks.common import ROOT, started_process

__all__ = ["Jars", "JavaLibrary", "JavaProgram", "PeerUnavailable", "PythonEnvironment"]

INSTALL_LIMIT: Final = 300.0
"""Seconds for one step of an installation, which may download; later runs find it in the cache."""
_COMPILER: Final = "jdk.compiler/com.sun.tools.javac.Main"
_IVY_FILE: Final = """\
<ivy-module version="2.0">
  <info organisation="asyncgroup" module="benchmark"/>
  <dependencies>
    <dependency org="{organisation}" name="{artifact}" rev="{version}" conf="default->compile,runtime,master"/>
  </dependencies>
</ivy-module>
"""


class PeerUnavailable(Exception):
    """A library cannot be measured on this machine; the message says why."""


def _cache() -> Path:
    path = user_cache() / "benchmarks"
    path.mkdir(parents=True, exist_ok=True)
    return path


async def _run(what: str, *command: str | Path) -> str:
    """Return the output of a command. Raises PeerUnavailable with its last line if it fails or takes too long."""
    try:
        async with started_process(*map(str, command)) as process, asyncio.timeout(INSTALL_LIMIT):
            out, err = await process.communicate()
    except TimeoutError:
        raise PeerUnavailable(f"{what} took longer than {INSTALL_LIMIT:g} s") from None
    except OSError as error:
        raise PeerUnavailable(f"{what} failed: {error}") from error
    if process.returncode:
        lines = [line.strip() for line in (out + err).decode(errors="replace").splitlines() if line.strip()]
        errors = [line for line in lines if line.lower().startswith("error")]
        raise PeerUnavailable(f"{what} failed: {(errors or lines or ['no output'])[-1][:200]}")
    return out.decode(errors="replace")


def _replace(made: Path, target: Path) -> None:
    """Move a finished directory to its place in the cache; another process may have been faster."""
    try:
        made.rename(target)
    except OSError:
        if not target.is_dir():
            raise


class PythonEnvironment(NamedTuple):
    """A virtual environment with one distribution, of a pinned version, and its dependencies."""

    distribution: str
    version: str
    extra: str = ""
    minimum: tuple[int, int] = (3, 11)
    """The oldest Python that can install it."""

    async def prepare(self) -> Path:
        """Return the Python of the environment, which is made first if needed. Raises PeerUnavailable."""
        target = _cache() / f"{self.distribution}-{self.version}"
        if not target.is_dir():
            base = await self._base()
            made = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}-"))
            try:
                await _run("making an environment", base, "-m", "venv", made)
                name = f"{self.distribution}{self.extra}=={self.version}"
                options = ("--quiet", "--only-binary=:all:", "--disable-pip-version-check")
                await _run(
                    f"pip install {name}", made / "bin" / "python", "-m", "pip", "install", *options, name
                )
                _replace(made, target)
            finally:
                shutil.rmtree(made, ignore_errors=True)
        return target / "bin" / "python"

    async def _base(self) -> Path:
        """Return a Python that is new enough: this one, or another one on the machine."""
        if sys.version_info >= self.minimum:
            return Path(sys.executable)
        program = "import sys; print(*sys.version_info[:2])"
        for candidate in _pythons(self.minimum):
            try:
                found = await _run("python", candidate, "-c", program)
            except PeerUnavailable:
                continue  # such as the command of a version manager that has not chosen this version
            if tuple(map(int, found.split())) >= self.minimum:
                return candidate
        needed = ".".join(map(str, self.minimum))
        own = ".".join(map(str, sys.version_info[:2]))
        raise PeerUnavailable(
            f"does not install: it needs Python {needed}, this is {own} and no other was found"
        )


def _pythons(minimum: tuple[int, int]) -> Iterator[Path]:
    """Yield paths of other Pythons: by their name on PATH, and those that pyenv has installed."""
    for minor in range(minimum[1], minimum[1] + 5):
        if found := shutil.which(f"python3.{minor}"):
            yield Path(found)
    root = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    yield from sorted(root.glob("versions/3.*/bin/python"))


class Jars(Protocol):
    """Jars that a Java program needs; its `str` is another one for another version."""

    @property
    def version(self) -> str:
        """The version of the library."""

    async def jars(self) -> Path:
        """Return the directory with the jars, which are downloaded first if needed. Raises PeerUnavailable."""


class JavaLibrary(NamedTuple):
    """A library of Java's public repository with its dependencies."""

    organisation: str
    artifact: str
    version: str

    async def jars(self) -> Path:
        """Return the directory with the jars, which are downloaded first if needed. Raises PeerUnavailable."""
        target = _cache() / f"{self.artifact}-{self.version}"
        if (target / f"{self.artifact}-{self.version}.jar").is_file():
            return target
        try:
            java, ivy = require_java(f"fetch {self.artifact}"), ivy_jar()
        except JavaNotFound as error:
            raise PeerUnavailable(str(error)) from error
        if ivy is None:
            raise PeerUnavailable(
                f"{self.artifact} is downloaded by the Apache Ivy in pyspark, which is not installed"
            )
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}-") as name:
            scratch = Path(name)
            command = ivy_command(java, ivy, scratch, _IVY_FILE.format_map(self._asdict()), os.environ)
            await _run(f"downloading {self.artifact}", *command)
            if not (scratch / "lib" / f"{self.artifact}-{self.version}.jar").is_file():
                raise PeerUnavailable(f"downloading {self.artifact}: Ivy did not fetch its jar")
            shutil.rmtree(target, ignore_errors=True)
            _replace(scratch / "lib", target)
        return target


class JavaProgram(NamedTuple):
    """The Java program in `benchmarks/peers/NAME`, which uses a library."""

    name: str
    library: Jars

    async def command(self, main_class: str, *options: str) -> list[str]:
        """Return the command that runs one of its classes; download and compile first if needed. Raises PeerUnavailable."""
        try:
            java = await asyncio.to_thread(require_java, f"run {self.name}")
        except JavaNotFound as error:
            raise PeerUnavailable(str(error)) from error
        jars = sorted((await self.library.jars()).glob("*.jar"))
        classes = await self._compile(java, jars)
        return [
            str(java.executable),
            *options,
            "-cp",
            os.pathsep.join(map(str, [*jars, classes])),
            main_class,
        ]

    async def _compile(self, java: Java, jars: Sequence[Path]) -> Path:
        sources = sorted((ROOT / "benchmarks" / "peers" / self.name).glob("*.java"))
        key = b"".join(source.read_bytes() for source in sources)
        key += f"{self.library} {java.version}".encode()
        target = _cache() / f"{self.name}-{hashlib.sha256(key).hexdigest()[:16]}"
        if target.is_dir():
            return target
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}-") as scratch:
            made = Path(scratch) / "classes"
            path = os.pathsep.join(map(str, jars))
            compiler = (java.executable, "-m", _COMPILER, "-proc:none", "-cp", path, "-d", made)
            await _run(f"compiling {self.name}", *compiler, *sources)
            _replace(made, target)
        return target
