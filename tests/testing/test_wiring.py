"""The conftest of this repository and its pytest settings, tested on a small suite that uses them."""

from __future__ import annotations

import gc
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.forked.server import forked, forking
from tests.profiles import cases_to_run
from tests.workers import LONGEST

pytestmark = pytest.mark.full

ROOT = Path(__file__).parents[2]

HEAD = """
import asyncio
import pytest
import pytest_asyncio
from hypothesis import given, strategies as st
from asyncgroup.testing import VirtualTimeLoop, current_network

def on_virtual_loop():
    return isinstance(asyncio.get_running_loop(), VirtualTimeLoop)
"""

LOOPS = """
@pytest.mark.asyncio
async def test_ordinary_loop():
    assert not on_virtual_loop()

@pytest.mark.asyncio
@pytest.mark.virtual
async def test_marked_virtual():
    assert on_virtual_loop()

@pytest.mark.asyncio
@pytest.mark.virtual(start=5.0)
async def test_marker_arguments_reach_the_loop():
    assert asyncio.get_running_loop().time() == 5.0

@pytest.mark.asyncio(loop_factories=["real", "virtual"])
async def test_on_both(request):
    assert on_virtual_loop() == ("virtual" in request.node.name)

@pytest_asyncio.fixture
async def server():
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    beat = asyncio.create_task(asyncio.sleep(3600))
    yield server
    server.close()
    beat.cancel()

@pytest.mark.asyncio(loop_factories=["real", "virtual"])
async def test_fixtures_share_the_loop_and_end_first(server):
    assert server.get_loop() is asyncio.get_running_loop()

@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared():
    task = asyncio.create_task(asyncio.Event().wait())
    yield task
    task.cancel()

@pytest.mark.asyncio(loop_scope="module")
async def test_a_shared_loop_keeps_the_tasks_of_its_fixtures(shared):
    assert not shared.done()

@pytest.mark.asyncio
async def test_another_loop_than_the_shared_fixture(shared):
    assert not shared.done()

@pytest.mark.asyncio(loop_factories=["real", "virtual"])
@given(st.integers())
async def test_hypothesis(request, number):
    assert on_virtual_loop() == ("virtual" in request.node.name)
    await asyncio.sleep(0)

def test_without_a_loop():
    assert True
"""

LEFTOVERS = """
async def forgotten():
    await asyncio.Event().wait()

both = pytest.mark.asyncio(loop_factories=["real", "virtual"])

@both
async def test_leaves_a_task():
    test_leaves_a_task.task = asyncio.create_task(forgotten(), name="left behind")
    await asyncio.sleep(0)

@both
async def test_cancels_without_waiting():
    asyncio.create_task(forgotten()).cancel()
    assert True

@both
async def test_fails_and_leaves_a_task():
    test_fails_and_leaves_a_task.task = asyncio.create_task(forgotten())
    assert False

@pytest.mark.asyncio
@pytest.mark.virtual
async def test_leaves_a_listener():
    await asyncio.start_server(lambda *_: None, "10.0.0.1", 9092)

@pytest.mark.asyncio
@pytest.mark.virtual
async def test_leaves_a_connection():
    current_network().blackhole("10.0.0.2", connect="accept")
    await asyncio.get_running_loop().create_connection(asyncio.Protocol, "10.0.0.2", 9092)

@pytest.mark.asyncio
async def test_the_network_fixture_needs_a_virtual_loop(network):
    assert True
"""

MISSPELT = """
@pytest.mark.virtaul
def test_it():
    assert True
"""

CHOICE = """
@pytest.mark.soak
def test_soak():
    assert True

@pytest.mark.skip(reason="no moon today")
def test_skipped():
    assert False

def test_skips_itself():
    pytest.skip("no stars either")
"""

STORIES = """
@pytest.mark.asyncio
async def test_story():
    assert on_virtual_loop()
    await asyncio.sleep(3600)

@pytest.mark.asyncio
async def test_stuck():
    await asyncio.Event().wait()
"""

SHARED = """
import os
from pathlib import Path

def note(name):
    worker = os.environ.get("PYTEST_XDIST_WORKER", "none")
    with (Path(__file__).parents[2] / "workers.txt").open("a") as file:
        file.write(f"{worker} {name}\\n")

@pytest.fixture(scope="session")
def spark():
    note("spark")

@pytest.fixture
def noted():
    note("test")
"""

WITH_SPARK = """
def test_with_spark(spark, noted):
    assert True

def test_without_spark(noted):
    assert True
"""

FAKE_PULSAR = """
import os
from pathlib import Path
from asyncgroup.testing.apache_pulsar import PulsarJarsUnavailable, PulsarStartError
from tests import apache_pulsar as launcher, conftest
from tests.conftest import *

globals().update((name, value) for name, value in vars(conftest).items() if name.startswith("pytest_"))
CASE = os.environ.get("PULSAR", "")

def note(name):
    worker = os.environ.get("PYTEST_XDIST_WORKER", "none")
    with (Path(__file__).parents[1] / "workers.txt").open("a") as file:
        file.write(f"{worker} {name}\\n")

class FakePulsar:
    service_url, admin_url = "pulsar://fake:6650", "http://fake:8080"

    def __init__(self, **options):
        pass

    def _start(self, abandoned):
        note("start")
        if CASE == "fails":
            raise PulsarStartError("the disk is full")
        if CASE == "stops":
            assert abandoned.wait(60)
            raise PulsarStartError("the start was abandoned")

    def close(self):
        note("close")

def pulsar_jars():
    if CASE == "missing":
        raise PulsarJarsUnavailable("no network")

launcher.ApachePulsar = FakePulsar
launcher.pulsar_jars = pulsar_jars
launcher.require_java = lambda purpose: None
"""

WITH_PULSAR = """
import os

def test_without_pulsar():
    assert os.environ.get("PULSAR") != "stops"

def test_with_pulsar(apache_pulsar):
    assert apache_pulsar.service_url == "pulsar://fake:6650"
"""

PROFILES = """
from hypothesis import settings
from tests.profiles import examples, long_family, thinned

@pytest.mark.parametrize(("moment", "protocol"), long_family([(1, "a"), (1, "b"), (2, "a"), (2, "b")], every=3))
def test_family(moment, protocol):
    assert True

@pytest.mark.parametrize("case", range(8))
def test_case(case):
    pass


@pytest.mark.parametrize("seed", thinned(range(16)))
def test_seed(seed):
    assert True

@pytest.mark.full
def test_long():
    assert True

def test_examples():
    given = settings(), settings(max_examples=examples(300)), settings(max_examples=examples(2))
    print("examples:", *(each.max_examples for each in given), given[0].deadline)
"""

NOTHING = """
@pytest.mark.parametrize("case", [])
def test_of_nothing(case):
    assert True
"""

MISSING = """
pytest.importorskip("a_module_that_nobody_has", reason="nobody has this module")
"""

CRASHES = """
import os, time

@pytest.mark.parametrize("case", range(6))
def test_crash(case):
    time.sleep(0.05)
    if case == 2:
        os._exit(1)
"""

MANY = """
import time

@pytest.mark.parametrize("case", range(6))
def test_fine(case):
    time.sleep(0.05)
"""

SUITE = {
    "tests/test_loops.py": LOOPS,
    "tests/test_leftovers.py": LEFTOVERS,
    "tests/test_choice.py": CHOICE,
    "tests/test_missing.py": MISSING,
    "tests/scenario/test_stories.py": STORIES,
    "tests/shared/conftest.py": SHARED,
    "tests/shared/test_one.py": WITH_SPARK,
    "tests/shared/test_other.py": WITH_SPARK,
    "pulsar/conftest.py": FAKE_PULSAR,
    "pulsar/test_one.py": WITH_PULSAR,
    "pulsar/test_other.py": WITH_PULSAR,
    "misspelt/test_it.py": MISSPELT,
    "tests/drawn/test_it.py": PROFILES,
    "nothing/test_it.py": NOTHING,
    "crashing/test_it.py": CRASHES,
    **{f"crashing/test_{number}.py": MANY for number in range(4)},
}


class Outcome:
    """The output of a run of the small suite."""

    def __init__(self, text: str, notes: str) -> None:
        self.text = text
        self.notes = [tuple(line.split()) for line in notes.splitlines()]
        """The worker and what it ran, for each note of `SHARED`."""
        self._lines = re.findall(r"^(PASSED|FAILED|ERROR) \S+?::(\S+)", text, re.MULTILINE)

    def of(self, test: str) -> list[str]:
        """Return the outcomes of one test: a test that passes and whose teardown fails has two."""
        return sorted(outcome for outcome, name in self._lines if name == test)

    def named(self, outcome: str) -> set[str]:
        return {name for result, name in self._lines if result == outcome}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory):
    home = tmp_path_factory.mktemp("suite")
    for name in SUITE:
        (home / name).parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(ROOT / "pyproject.toml", home)
    for name in (
        "conftest.py",
        "apache_kafka.py",
        "apache_pulsar.py",
        "asyncio_errors.py",
        "java_programs.py",
        "loops/factories.py",
        "profiles.py",
        "seeded_clients.py",
        "shared_spark.py",
        "spark_archive.py",
        "spark_python.py",
        "workers.py",
        "interop/java_tools.py",
        "real/support.py",
    ):
        (home / "tests" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / "tests" / name, home / "tests" / name)
    for name, text in SUITE.items():
        (home / name).write_text(HEAD + text)
    notes = home / "workers.txt"

    def run(*arguments: str, **environment: str) -> Outcome:
        command = forked("pytest", "-rpfE", "-p", "no:cacheprovider", *arguments)
        notes.write_text("")
        result = subprocess.run(
            command,
            cwd=home,
            env=forking({"PYTHONPATH": str(ROOT), **environment}, "pytest"),
            capture_output=True,
            text=True,
            check=False,
        )
        return Outcome(result.stdout + result.stderr, notes.read_text())

    return run


@pytest.fixture(scope="module")
def outcome(run) -> Outcome:
    return run("-n", "0")


def test_garbage_is_collected_while_tests_run() -> None:
    """In a worker, too, which has its own `pytest_runtestloop`: asyncio and sockets tell in destructors what was left."""
    assert gc.isenabled()
    assert gc.get_threshold()[0] >= 10_000


def test_each_test_runs_on_its_loop(outcome):
    assert {
        "test_ordinary_loop",
        "test_marked_virtual",
        "test_marker_arguments_reach_the_loop",
        "test_on_both[real]",
        "test_on_both[virtual]",
        "test_fixtures_share_the_loop_and_end_first[real]",
        "test_fixtures_share_the_loop_and_end_first[virtual]",
        "test_a_shared_loop_keeps_the_tasks_of_its_fixtures",
        "test_another_loop_than_the_shared_fixture",
        "test_hypothesis[real]",
        "test_hypothesis[virtual]",
        "test_without_a_loop",
        "test_story",
    } <= outcome.named("PASSED"), outcome.text
    assert "test_loops" not in " ".join(outcome.named("FAILED") | outcome.named("ERROR"))


@pytest.mark.parametrize("loop", ["real", "virtual"])
def test_a_task_left_behind_is_an_error(outcome, loop):
    assert outcome.of(f"test_leaves_a_task[{loop}]") == ["ERROR", "PASSED"]
    assert "the test left 1 task(s) running" in outcome.text
    assert "left behind (forgotten) waits at tests/test_leftovers.py" in outcome.text


@pytest.mark.parametrize("loop", ["real", "virtual"])
def test_a_cancelled_task_may_finish(outcome, loop):
    assert outcome.of(f"test_cancels_without_waiting[{loop}]") == ["PASSED"]


@pytest.mark.parametrize("loop", ["real", "virtual"])
def test_a_failed_test_has_no_error_for_its_leftover_tasks(outcome, loop):
    assert outcome.of(f"test_fails_and_leaves_a_task[{loop}]") == ["FAILED"]


def test_leftovers_in_the_network_are_an_error(outcome):
    assert outcome.of("test_leaves_a_listener") == ["ERROR", "PASSED"]
    assert "- listener 10.0.0.1:9092" in outcome.text
    assert outcome.of("test_leaves_a_connection") == ["ERROR", "PASSED"]
    assert "-> 10.0.0.2:9092, open at: client>" in outcome.text


def test_the_network_fixture_names_its_requirement(outcome):
    assert outcome.of("test_the_network_fixture_needs_a_virtual_loop") == ["ERROR"]
    assert "the running loop must be a VirtualTimeLoop" in outcome.text


def test_a_stuck_story_fails_instead_of_hanging(outcome):
    assert outcome.of("test_stuck") == ["FAILED"]
    assert "waits at scenario/test_stories.py" in outcome.text


def test_every_skip_is_listed_with_its_reason(outcome):
    assert "= 3 skipped =" in outcome.text
    assert "tests/test_choice.py::test_skipped: no moon today" in outcome.text
    assert "tests/test_choice.py::test_skips_itself: no stars either" in outcome.text
    assert "tests/test_missing.py: nobody has this module" in outcome.text


def test_soak_tests_need_the_option(run, outcome):
    assert outcome.of("test_soak") == []
    assert "1 deselected" in run("tests/test_choice.py").text
    asked = run("--soak", "-m", "soak", "tests/test_choice.py")
    assert asked.named("PASSED") == {"test_soak"}


def test_an_unknown_marker_is_an_error(run):
    assert "'virtaul' not found in `markers`" in run("-n", "0", "misspelt").text


# -- workers and profiles ------------------------------------------------------------------------------------------------


def test_workers_start_what_tests_share_once(run):
    shared = run("-n", "2", "tests")
    assert "2 workers [" in shared.text
    assert {worker for worker, _ in shared.notes} <= {"gw0", "gw1"}
    assert sorted(name for _, name in shared.notes) == ["spark", "test", "test", "test", "test"]
    assert "profile: quick" in shared.text
    assert "= 3 skipped =" in shared.text, "the process that shows the results lists what workers skip"


@pytest.mark.parametrize("workers", ["0", "2"])
def test_the_main_process_starts_the_pulsar_that_all_tests_share(run, workers):
    shared = run("-n", workers, "pulsar")
    assert len(shared.of("test_with_pulsar")) == 2
    assert shared.named("FAILED") | shared.named("ERROR") == set(), shared.text
    assert shared.notes == [("none", "start"), ("none", "close")]


def test_no_pulsar_is_started_if_no_selected_test_uses_it(run):
    rest = run("-n", "2", "pulsar", "-m", "not java")
    assert rest.of("test_without_pulsar") == ["PASSED"] * 2
    assert rest.notes == []


def test_a_run_that_ends_early_does_not_wait_for_pulsar(run):
    early = run("-n", "0", "pulsar", "-x", PULSAR="stops")
    assert early.of("test_without_pulsar") == ["FAILED"]
    assert early.notes == [("none", "start"), ("none", "close")]


@pytest.mark.parametrize("workers", ["0", "2"])
def test_a_pulsar_that_does_not_start_is_an_error(run, workers):
    failed = run("-n", workers, "pulsar", PULSAR="fails")
    assert failed.of("test_with_pulsar") == ["ERROR"] * 2
    assert failed.of("test_without_pulsar") == ["PASSED"] * 2
    assert "PulsarStartError: the disk is full" in failed.text


def test_a_missing_pulsar_is_skipped_or_with_the_variable_an_error(run):
    missing = run("-n", "2", "pulsar", PULSAR="missing")
    assert "test_with_pulsar: no Apache Pulsar: no network" in missing.text
    assert missing.notes == []
    missing = run("-n", "2", "pulsar", PULSAR="missing", ASYNCGROUP_REQUIRE_KAFKA="1")
    assert missing.of("test_with_pulsar") == ["ERROR"] * 2
    assert "ASYNCGROUP_REQUIRE_KAFKA=1, but: no network" in missing.text


def test_workers_compile_modules_once_where_they_must_not_be_beside_the_sources(run, tmp_path):
    outcome = run("-n", "2", "tests/drawn", PYTHONDONTWRITEBYTECODE="1", ASYNCGROUP_CACHE=str(tmp_path))
    assert outcome.named("FAILED") == set()
    assert "2 workers [" in outcome.text
    assert list(tmp_path.glob("compiled/**/profiles*.pyc"))


def test_single_files_run_in_one_process(run):
    alone = run("tests/shared/test_one.py")
    assert alone.notes == [("none", "spark"), ("none", "test"), ("none", "test")]


def test_tests_that_need_java_can_be_left_out(run):
    rest = run("-m", "not java", "-n", "0", "tests/shared")
    assert rest.notes == [("none", "test")] * 2
    assert rest.named("PASSED") == {"test_without_spark"}


@pytest.mark.parametrize(
    ("arguments", "environment", "seeds", "drawn"),
    [
        ([], {}, {0, 12}, "6 18 2"),
        (["--full"], {}, set(range(16)), "100 300 2"),
        (["--soak"], {}, set(range(16)), "100 300 2"),
        ([], {"ASYNCGROUP_TESTS": "full"}, set(range(16)), "100 300 2"),
    ],
)
def test_profiles(run, arguments, environment, seeds, drawn):
    outcome = run("-n", "0", "-s", *arguments, "tests/drawn", **environment)
    is_full = len(seeds) == 16
    cases = {f"test_case[{case}]" for case in (range(8) if is_full else (0, 7))}
    family = ["1-a", "2-b", "1-b", "2-a"][: 4 if "--soak" in arguments else 2 if is_full else 1]
    cases |= {f"test_family[{case}]" for case in family}
    expected = {"test_examples", *(f"test_seed[{seed}]" for seed in seeds)} | cases
    assert outcome.named("PASSED") == expected | ({"test_long"} if is_full else set())
    assert f"examples: {drawn} None" in outcome.text


@pytest.mark.parametrize("named", ["tests/drawn/test_it.py", "tests/drawn/test_it.py::test_case"])
def test_all_cases_run_of_a_test_that_is_named(run, named):
    assert run("-n", "0", named).named("PASSED") >= {f"test_case[{case}]" for case in range(8)}


@pytest.mark.timeout(60)
def test_a_run_ends_after_a_worker_crashed(run):
    outcome = run("-n", "2", "crashing")
    assert outcome.of("test_crash[2]") == ["FAILED"]
    assert "crashed while running 'crashing/test_it.py::test_crash[2]'" in outcome.text


def test_the_longest_files_are_there():
    assert [each for each in LONGEST if not (ROOT / each).is_file()] == []


def test_the_cases_of_the_quick_profile(monkeypatch):
    cases = list(range(9))
    a = "tests/a/test_b.py::test_c"
    assert cases_to_run(a, cases) == [0, 8]
    assert cases_to_run(a, [0, 1]) == [0, 1]
    assert cases_to_run(a, [0]) == [0]
    assert cases_to_run(a, []) == []
    whole = ["tests/guide/test_b.py::test_c", "tests/test_b.py::test_c"]
    assert [cases_to_run(test, cases) for test in whole] == [cases, cases]
    monkeypatch.delenv("ASYNCGROUP_STORY_CASES", raising=False)
    stories = [f"tests/scenario/test_b.py::test_{test}" for test in range(20)]
    some = [cases_to_run(story, cases) for story in stories]
    assert {tuple(each) for each in some} == {(0,), (8,)}
    assert [cases_to_run(story, cases) for story in stories] == some, "the same in each run"
    monkeypatch.setenv("ASYNCGROUP_STORY_CASES", "two")
    assert all(cases_to_run(story, cases) == [0, 8] for story in stories)
    assert [cases_to_run(test, cases) for test in [a, *whole]] == [[0, 8], cases, cases], (
        "others run as before"
    )


def test_unknown_profiles_are_refused(run):
    assert "ASYNCGROUP_TESTS=slow is not a profile: quick or full" in run(ASYNCGROUP_TESTS="slow").text
    text = run(ASYNCGROUP_STORY_CASES="all").text
    assert "ASYNCGROUP_STORY_CASES=all is not a number of cases: one or two" in text


def test_a_test_without_cases_is_an_error(run):
    assert "Empty parameter set in 'test_of_nothing'" in run("-n", "0", "nothing").text
