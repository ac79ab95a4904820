"""Java programs of the tests, compiled once into the user's cache: to compile one at each start takes longer than to run it."""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest

from asyncgroup.java import JavaNotFound, require_java, user_cache

__all__ = ["java_command"]

_COMPILER: Final = "jdk.compiler/com.sun.tools.javac.Main"
_COMPILE_LIMIT: Final = 60.0
_QUICK_START: Final = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-XX:-UsePerfData")


def java_command(
    source: Path, class_path: str, *, log_level: str = "error", options: Sequence[str] = ()
) -> list[str]:
    """Return the command that runs the main class of this file, without arguments; compile the file first if needed.

    `options` are Java's. May block for seconds. Skip the test without a Java, or with one that cannot compile.
    """
    try:
        java = require_java(f"run {source.name}")
    except JavaNotFound as error:
        pytest.skip(str(error))
    classes = _compiled(java.executable, source, class_path)
    quiet = f"-Dorg.slf4j.simpleLogger.defaultLogLevel={log_level}"
    # the own classes come last: Java uses an archive of classes for the first part of a class path
    return [
        *(str(java.executable), *_QUICK_START, *options, quiet),
        *("-cp", f"{class_path}{os.pathsep}{classes}", source.stem),
    ]


def _compiled(java: Path, source: Path, class_path: str) -> Path:
    key = f"{java.resolve()}\n{class_path}\n".encode() + source.read_bytes()
    target = user_cache() / "interop" / f"{source.stem}-{hashlib.sha256(key).hexdigest()[:16]}"
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".") as scratch:
        made = Path(scratch) / "classes"
        command = [java, "-m", _COMPILER, "-proc:none", "-cp", _expanded(class_path), "-d", made, source]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_COMPILE_LIMIT, check=False)
        if "jdk.compiler not found" in done.stderr + done.stdout:
            pytest.skip(f"{java} cannot compile {source.name}: it has no module jdk.compiler")
        assert done.returncode == 0, f"{source}:\n{done.stdout}{done.stderr}"
        try:
            made.rename(target)
        except OSError:  # another worker was faster
            if not target.is_dir():
                raise
    return target


def _expanded(class_path: str) -> str:
    """Return the class path without the form `directory/*`, which the compiler does not know."""
    parts = [Path(part) for part in class_path.split(os.pathsep)]
    jars = [sorted(part.parent.glob("*.jar")) if part.name == "*" else [part] for part in parts]
    return os.pathsep.join(str(jar) for several in jars for jar in several)
