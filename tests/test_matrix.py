"""`.ci/run --matrix`: which interpreters, versions and brokers it runs, and what it says of them."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests import matrix
from tests.matrix import INTERPRETERS, Result, Row, find_interpreters, lowest_versions, rows_for
from tests.profiles import STORY_VARIABLE, VARIABLE

ROOT = Path(__file__).parents[1]

PROGRAM = '#!/bin/sh\necho "{version}"\nexit {status}\n'


def interpreter(directory: Path, name: str, version: str, status: int = 0) -> None:
    directory.mkdir(exist_ok=True)
    program = directory / f"python{name}"
    program.write_text(PROGRAM.format(version=version, status=status))
    program.chmod(0o755)


def test_the_first_interpreter_of_each_version_counts(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    interpreter(first, "3.12", "3.12")
    interpreter(second, "3.12", "3.12")
    interpreter(second, "3.13t", "3.13t")
    found = find_interpreters([first, tmp_path / "missing", second])
    assert found == {"3.12": str(first / "python3.12"), "3.13t": str(second / "python3.13t")}


def test_an_interpreter_that_does_not_start_or_is_another_one_is_left_out(tmp_path: Path) -> None:
    interpreter(
        tmp_path, "3.11", "3.11", status=1
    )  # as the shims of pyenv are for versions that are not selected
    interpreter(tmp_path, "3.12", "3.10")
    interpreter(tmp_path, "3.13t", "3.13")
    (tmp_path / "python3.14").write_text("not a program")
    assert find_interpreters([tmp_path]) == {}


def test_this_interpreter_is_found() -> None:
    threads = "t" if sysconfig.get_config_var("Py_GIL_DISABLED") else ""
    version = f"{sys.version_info.major}.{sys.version_info.minor}{threads}"
    assert version not in INTERPRETERS or version in find_interpreters([Path(sys.executable).parent])


def test_without_an_interpreter_nothing_has_passed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(matrix, "find_interpreters", dict)
    assert matrix.main(["--logs", str(tmp_path)]) == 1
    assert "interpreters not found: 3.11, 3.12, 3.13, 3.14, 3.13t, 3.14t" in capsys.readouterr().err


def test_each_dependency_has_its_lower_bound() -> None:
    text = """
[project]
dependencies = ["anyio>=4.6,<5", "cramjam>=2.8", "plain"]
[project.optional-dependencies]
spark = ["pyspark[pipelines]>=4.2,<5", "pandas<3"]
test = ["mine[spark]", "uvloop>=0.21; platform_python_implementation == 'CPython'", "anyio>=4.6"]
"""
    assert lowest_versions(text) == ["anyio==4.6", "cramjam==2.8", "pyspark==4.2", "uvloop==0.21"]


def test_no_dependency_of_the_project_lacks_a_lower_bound() -> None:
    constraints = {each.partition("==")[0] for each in lowest_versions((ROOT / "pyproject.toml").read_text())}
    assert constraints >= {
        "aiokafka",
        "anyio",
        "cramjam",
        "pyspark",
        "pyarrow",
        "pytest",
        "pytest-asyncio",
        "uvloop",
    }


def test_the_oldest_interpreter_has_the_lowest_versions_and_the_older_brokers() -> None:
    rows = rows_for({"3.13": "/b", "3.12": "/a"})
    assert [(row.name, row.python) for row in rows] == [
        ("3.12", "/a"),
        ("3.13", "/b"),
        ("lowest", "/a"),
        ("kafka-4.1.1", "/a"),
        ("kafka-3.9.1", "/a"),
    ]
    assert [row.name for row in rows if row.lowest] == ["lowest"]
    # the first and the last case of each story: these rows have no other tests
    stories = [row.name for row in rows if row.environment.get(STORY_VARIABLE) == "two"]
    assert stories == ["kafka-4.1.1", "kafka-3.9.1"]
    assert [row.name for row in rows if row.tests] == stories
    assert rows_for({}) == []


def test_a_row_has_the_cases_that_it_names_whatever_its_caller_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(VARIABLE, "full")
    monkeypatch.setenv(STORY_VARIABLE, "two")
    assert {VARIABLE, STORY_VARIABLE} & matrix._environment(tmp_path).keys() == set()


def test_a_row_that_cannot_be_installed_is_reported(tmp_path: Path) -> None:
    result = matrix.run_row(Row("broken", shutil.which("false") or "/bin/false"), tmp_path)
    assert (result.outcome, result.counts) == ("not installed", {})


def test_what_a_report_says(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    report.write_text(
        '<testsuites><testsuite><testcase classname="a" name="b"/>'
        '<testcase classname="a" name="c"><failure message="x"/></testcase>'
        '<testcase classname="a" name="d"><error message="x"/></testcase>'
        '<testcase classname="a" name="e"><skipped message="no Java"/></testcase></testsuite></testsuites>'
    )
    counts, failures, skips = matrix._read(report)
    assert counts == {"passed": 1, "failed": 2, "skipped": 1}
    assert failures == ["a::c", "a::d"]
    assert skips == ["a::e: no Java"]
    assert matrix._read(tmp_path / "none.xml")[1] == ["no report: pytest ended early"]


@pytest.fixture
def two_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let 3.11 and 3.12 be there, and the tests of the second fail."""
    monkeypatch.setattr(matrix, "find_interpreters", lambda: {"3.11": "/a", "3.12": "/b"})

    def run_row(row: Row, logs: Path) -> Result:
        passed = row.name == "3.11"
        return Result(
            row.name,
            "passed" if passed else "failed",
            12.4,
            {"anyio": "4.6.0"},
            {"passed": 3, "failed": int(not passed), "skipped": 1},
            () if passed else ("a::b",),
            ("a::c: no Java",),
        )

    monkeypatch.setattr(matrix, "run_row", run_row)


@pytest.mark.usefixtures("two_rows")
def test_a_table_and_the_exit_status(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert matrix.main(["3.11", "--logs", str(tmp_path)]) == 0
    assert matrix.main(["3.11", "3.12", "--logs", str(tmp_path)]) == 1
    printed = capsys.readouterr()
    assert "| 3.12 | failed | 3 | 1 | 1 | 12 | anyio 4.6.0 |" in printed.out
    assert "3.12: FAILED a::b" in printed.out
    assert "3.11: skipped a::c: no Java" in printed.out
    assert "interpreters not found: 3.13, 3.14, 3.13t, 3.14t" in printed.err


@pytest.mark.usefixtures("two_rows")
def test_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    matrix.main(["--json", "--logs", str(tmp_path), "3.12"])
    (row,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert row["name"] == "3.12"
    assert row["failures"] == ["a::b"]


@pytest.mark.usefixtures("two_rows")
def test_a_row_that_there_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ending:
        matrix.main(["2.7"])
    assert ending.value.code == 2
    assert (
        "no such row: 2.7; there are 3.11, 3.12, lowest, kafka-4.1.1, kafka-3.9.1" in capsys.readouterr().err
    )


def test_it_runs_before_anything_is_installed() -> None:
    """As `.ci/run --matrix` starts it: with the standard library alone."""
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", "import sys; sys.path.insert(0, '.'); import tests.matrix"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
