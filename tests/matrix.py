"""The matrix: the quick profile on every interpreter, with the lowest versions of what is needed, and on older brokers.

`.ci/run --matrix` runs all rows, `.ci/run --matrix 3.12 lowest` these ones, `.ci/run --matrix --list` shows them. Each row
has a virtual environment of its own; a row that fails does not stop the others, and the exit status is 1 in the end.

Needs the standard library only, as it runs before anything is installed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

__all__ = ["INTERPRETERS", "Result", "Row", "find_interpreters", "lowest_versions", "main", "rows_for"]

ROOT: Final = Path(__file__).parents[1]

INTERPRETERS: Final = ("3.11", "3.12", "3.13", "3.14", "3.13t", "3.14t")
"""Versions of CPython; those with `t` have no global interpreter lock."""

BROKERS: Final = ("4.1.1", "3.9.1")
"""Releases of Apache Kafka besides the newest, on which the tests with a real broker run."""

SHOWN: Final = ("aiokafka", "anyio", "cramjam", "pyspark", "pandas", "pytest")
"""Packages whose versions are in the table."""

CHECK: Final = "import sys, sysconfig, venv; print('%d.%d' % sys.version_info[:2] + 't' * bool(sysconfig.get_config_var('Py_GIL_DISABLED')))"


@dataclass(frozen=True, slots=True)
class Row:
    """A run of the tests."""

    name: str
    python: str
    lowest: bool = False
    """With the lowest versions that pyproject.toml allows, instead of the newest."""
    environment: Mapping[str, str] = field(default_factory=dict)
    tests: tuple[str, ...] = ()
    """Arguments of pytest; all tests without. Which cases run is said by the quick profile and `environment`."""


@dataclass(frozen=True, slots=True)
class Result:
    """What a row has shown."""

    name: str
    outcome: str
    """`passed`, `failed`, or `not installed`."""
    seconds: float
    versions: Mapping[str, str]
    counts: Mapping[str, int] = field(default_factory=dict)
    failures: Sequence[str] = ()
    skips: Sequence[str] = ()


def find_interpreters(directories: Sequence[Path] | None = None) -> dict[str, str]:
    """Return the interpreters by version: those on PATH, of pyenv and of uv; the first of each version counts."""
    home = Path.home()
    places = [Path(each) for each in os.environ.get("PATH", "").split(os.pathsep)]
    places += sorted(Path(os.environ.get("PYENV_ROOT", home / ".pyenv")).glob("versions/*/bin"), reverse=True)
    places += sorted(home.glob(".local/share/uv/python/cpython-*/bin"), reverse=True)
    found: dict[str, str] = {}
    for place in places if directories is None else directories:
        for version in INTERPRETERS:
            program = place / f"python{version}"
            if version not in found and _version_of(program) == version:
                found[version] = str(program)
    return found


def _version_of(program: Path) -> str | None:
    """Return the version of an interpreter that starts and can make virtual environments, or None."""
    if not os.access(program, os.X_OK):
        return None
    try:
        done = subprocess.run(
            [program, "-c", CHECK], capture_output=True, text=True, check=False, timeout=30.0
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def lowest_versions(pyproject: str) -> list[str]:
    """Return a constraint for each dependency with a lower bound, of the package and of all its extras."""
    project = tomllib.loads(pyproject)["project"]
    extras = project.get("optional-dependencies", {}).values()
    needed = [*project["dependencies"], *(each for extra in extras for each in extra)]
    bounds = (re.match(r"([A-Za-z0-9._-]+)(?:\[[^\]]*\])?\s*>=\s*([0-9][^,;\s]*)", each) for each in needed)
    return sorted({f"{bound[1]}=={bound[2]}" for bound in bounds if bound is not None})


def rows_for(interpreters: Mapping[str, str]) -> list[Row]:
    """Return the rows for these interpreters: the oldest one also has the lowest versions and the older brokers."""
    rows = [Row(version, interpreters[version]) for version in INTERPRETERS if version in interpreters]
    if rows:
        oldest = rows[0].python
        rows.append(Row("lowest", oldest, lowest=True))
        for version in BROKERS:
            variables = {
                "ASYNCGROUP_KAFKA_VERSION": version,
                "ASYNCGROUP_REQUIRE_KAFKA": "1",
                # the stories are all that this broker is tried with
                "ASYNCGROUP_STORY_CASES": "two",
            }
            rows.append(
                Row(f"kafka-{version}", oldest, environment=variables, tests=("-m", "java", "tests/real"))
            )
    return rows


def run_row(row: Row, logs: Path) -> Result:
    """Make the environment of a row, run its tests there, and return what they have shown; the output goes to a file."""
    began = time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix=f"matrix-{row.name}-") as name,
        (logs / f"{row.name}.txt").open("w") as log,
    ):
        work = Path(name)

        def run(*command: str | Path, **variables: str) -> bool:
            environment = _environment(work) | variables
            done = subprocess.run(command, cwd=ROOT, env=environment, stdout=log, stderr=log, check=False)
            return done.returncode == 0

        constraints = work / "constraints.txt"
        bounds = lowest_versions((ROOT / "pyproject.toml").read_text()) if row.lowest else []
        constraints.write_text("\n".join(bounds))
        # not quietly: the log shows which bounds exclude each other
        pip = ("pip", "install", "--progress-bar=off", "--no-compile", "--disable-pip-version-check")
        if not run(row.python, "-m", "venv", work / "venv") or not run(
            *pip, "-c", constraints, "-e", ".[test]"
        ):
            return Result(row.name, "not installed", time.monotonic() - began, {})
        report = work / "report.xml"
        passed = run("pytest", "-q", f"--junit-xml={report}", *row.tests, **row.environment)
        counts, failures, skips = _read(report)
        versions = _versions(work / "venv")
        outcome = "passed" if passed else "failed"
        return Result(row.name, outcome, time.monotonic() - began, versions, counts, failures, skips)


def _environment(work: Path) -> dict[str, str]:
    left_out = {"PYTHONPATH", "PYTHONHOME", "PYTHONDONTWRITEBYTECODE"}
    left_out |= {"ASYNCGROUP_TESTS", "ASYNCGROUP_STORY_CASES"}
    path = f"{work / 'venv' / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}"
    own = {"VIRTUAL_ENV": str(work / "venv"), "PATH": path, "PYTHONPYCACHEPREFIX": str(work / "pycache")}
    return {name: value for name, value in os.environ.items() if name not in left_out} | own


def _read(report: Path) -> tuple[dict[str, int], list[str], list[str]]:
    """Return how many tests passed, failed and were skipped, the names of those that failed, and the reasons of skips."""
    counts, failures, skips = {"passed": 0, "failed": 0, "skipped": 0}, [], []
    if not report.is_file():
        return counts, ["no report: pytest ended early"], []
    for case in ElementTree.parse(report).iter("testcase"):
        name = f"{case.get('classname')}::{case.get('name')}"
        if case.find("failure") is not None or case.find("error") is not None:
            counts["failed"] += 1
            failures.append(name)
        elif (skipped := case.find("skipped")) is not None:
            counts["skipped"] += 1
            skips.append(f"{name}: {skipped.get('message')}")
        else:
            counts["passed"] += 1
    return counts, failures, skips


def _versions(venv: Path) -> dict[str, str]:
    found = (venv / "lib").glob("python*/site-packages/*.dist-info")
    names = dict(each.name.removesuffix(".dist-info").rsplit("-", 1) for each in found)
    return {name: names[name] for name in SHOWN if name in names}


def _table(results: Sequence[Result]) -> Iterator[str]:
    yield "| row | result | passed | failed | skipped | seconds | versions |"
    yield "|---|---|---|---|---|---|---|"
    for each in results:
        numbers = " | ".join(str(each.counts.get(name, "")) for name in ("passed", "failed", "skipped"))
        versions = ", ".join(f"{name} {version}" for name, version in each.versions.items())
        yield f"| {each.name} | {each.outcome} | {numbers} | {each.seconds:.0f} | {versions} |"
    for each in results:
        yield from (f"{each.name}: FAILED {name}" for name in each.failures)
    for each in results:
        yield from (f"{each.name}: skipped {reason}" for reason in each.skips)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the rows; return the exit status."""
    parser = argparse.ArgumentParser(prog=".ci/run --matrix", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("rows", nargs="*", help="names of rows; all without")
    parser.add_argument("--list", action="store_true", help="show the rows, and run none")
    parser.add_argument(
        "--json", action="store_true", help="print a JSON object for each row instead of the table"
    )
    parser.add_argument(
        "--logs", type=Path, help="directory for the output of each row; default: a temporary one"
    )
    options = parser.parse_args(arguments)
    interpreters = find_interpreters()
    rows = rows_for(interpreters)
    if unknown := set(options.rows) - {row.name for row in rows}:
        parser.error(
            f"no such row: {', '.join(sorted(unknown))}; there are {', '.join(row.name for row in rows)}"
        )
    rows = [row for row in rows if not options.rows or row.name in options.rows]
    missing = [version for version in INTERPRETERS if version not in interpreters]
    if options.list:
        print("\n".join(f"{row.name}: {row.python}" for row in rows))
    print(f"interpreters not found: {', '.join(missing) or 'none'}", file=sys.stderr)
    if options.list:
        return 0
    logs = options.logs or Path(tempfile.mkdtemp(prefix="asyncgroup-matrix-"))
    logs.mkdir(parents=True, exist_ok=True)
    results = []
    for number, row in enumerate(rows, 1):
        print(
            f"{number} of {len(rows)}: {row.name}, output in {logs / row.name}.txt",
            file=sys.stderr,
            flush=True,
        )
        results.append(result := run_row(row, logs))
        print(f"    {result.outcome} after {result.seconds:.0f} s", file=sys.stderr, flush=True)
    print("\n".join(map(json.dumps, map(asdict, results)) if options.json else _table(results)))
    return int(not results or any(result.outcome != "passed" for result in results))


if __name__ == "__main__":
    sys.exit(main())
