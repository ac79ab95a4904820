"""How tests are marked and distributed to worker processes (pytest-xdist); `tests/conftest.py` imports the hooks.

- Each test that needs a JVM has the marker `java`: by its fixtures, or because its module sets the marker.
- A JVM that many tests share starts in one worker only: these tests are one group. All other tests of a file stay
  together, so that fixtures of modules are made once.
- The longest groups come first, so that the workers end at about the same time. Files that wait much are spread among
  those that compute.
- A run of single files or tests has no workers: they would take longer to start than they save.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from xdist.scheduler import LoadScopeScheduling

__all__ = [
    "WORKERS",
    "are_files_named",
    "mark_java",
    "pytest_configure_node",
    "pytest_xdist_auto_num_workers",
    "pytest_xdist_make_scheduler",
    "share_groups",
    "shared_directory",
    "sort_for_workers",
]

WORKERS: Final = 4
"""The largest number of workers that `-n auto` starts: there are few groups that take long."""

GROUPS: Final = {
    "apache_kafka_3": "kafka_3",
    "spark": "spark",
    "spark_gateway": "spark",
    "spark_with_kafka": "spark",
    "spark_demo": "spark_demo",
    "apache_kafka": "kafka",
    "kafka_to_break": "kafka",
    "kafka_39": "kafka_39",
    "java_tools": "java_tools",
    "pulsar_to_break": "pulsar",
}
"""The group of a test by its fixtures that start a JVM; the first fixture counts.

There are several groups so that the workers are busy for about the same time. The price is a second node of Kafka: the
groups `kafka_3` (with `interop/test_parity.py`, which needs one process) and `spark` have tests with `apache_kafka`, too.
"""

IN_ORDER: Final = ("kafka", "spark", "kafka_3", "java_tools", "kafka_39", "pulsar", "spark_demo")
"""The order in which the groups start: the longest first, which mostly waits while others compute."""

NEED_JAVA: Final = GROUPS.keys() | {"apache_pulsar", "java", "kafka_at_hand", "pulsar_at_hand"}

WAITING: Final = ("interop", "cli", "demo", "real", "testing", "guide")
"""Directories whose files mostly wait, for processes and real time."""

LONGEST: Final = (
    "tests/scenario/random/test_simulation.py",
    "tests/scenario/random/test_queues.py",
    "tests/scenario/random/test_storms.py",
    "tests/scenario/queues/copies/test_transactions_ending.py",
    "tests/scenario/rebalances/test_rolling_protocols.py",
    "tests/scenario/ends/test_every_loop_iteration.py",
    "tests/scenario/rebalances/test_rolling_upgrades.py",
    "tests/wire/test_kio_oracle.py",
    "tests/wire/test_robustness.py",
)
"""Files that take a minute and more in the full profile: at the end one of them would keep a single worker busy."""

LONG: Final = ("benchmarks", "scenario", "broker", "spark", "consumer", "group")
"""Directories whose files take longest, of the others."""


_directory = pytest.StashKey[tempfile.TemporaryDirectory[str]]()


def mark_java(item: pytest.Item) -> None:
    """Add the marker `java` and the group to a test whose fixtures start a JVM."""
    asked: Sequence[str] = getattr(item, "fixturenames", ())
    if not NEED_JAVA.isdisjoint(asked):
        item.add_marker("java")
    if item.get_closest_marker("xdist_group") is None:
        group = next((group for fixture, group in GROUPS.items() if fixture in asked), None)
        if group is not None:
            item.add_marker(pytest.mark.xdist_group(group))


def sort_for_workers(items: list[pytest.Item]) -> None:
    """Sort the tests of a worker in the order in which their groups and files are to start."""
    waiting = itertools.count(0, 3)
    computing = (number for number in itertools.count() if number % 3)
    places: dict[str, int] = {}

    def rank(item: pytest.Item) -> tuple[int, int]:
        marker = item.get_closest_marker("xdist_group")
        if marker is not None and marker.args[0] in IN_ORDER:
            return 0, IN_ORDER.index(marker.args[0])
        if item.get_closest_marker("java") is not None:
            return 1, 0
        file = _file_of(item)
        if file not in places:
            places[file] = next(waiting if _directory_of(item) in WAITING else computing)
        return 2, places[file]

    def length(item: pytest.Item) -> tuple[int, int]:
        file, directory = _file_of(item), _directory_of(item)
        return (
            LONGEST.index(file) if file in LONGEST else len(LONGEST),
            LONG.index(directory) if directory in LONG else len(LONG),
        )

    items.sort(key=length)
    items.sort(key=rank)


def _file_of(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]


def _directory_of(item: pytest.Item) -> str:
    return item.nodeid.partition("/")[2].partition("/")[0]


def are_files_named(config: pytest.Config) -> bool:
    """Return whether the command line names files or tests, and no directory."""
    chosen: list[str] = config.getoption("file_or_dir")
    return bool(chosen) and all("::" in each or each.endswith(".py") for each in chosen)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Return the number of workers for `-n auto`, which is the default: 0 runs the tests in this process."""
    is_watched = config.getoption("capture") == "no" or config.getoption("trace")
    # soak tests start processes of their own, and some measure times
    if are_files_named(config) or is_watched or config.getoption("soak"):
        return 0
    cpus = os.cpu_count() or 1
    if cpus == 1:
        return 0
    # workers that wait for a process leave their processors to the others: without Java there are fewer
    return min(cpus + (1 if "not java" in config.getoption("markexpr") else 2), WORKERS)


# The nodes of a run agree on the groups by a file: xdist itself would append them to the names of tests, which pytest 9.2
# no longer allows.


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Name the directory that all workers share."""
    node.workerinput["shared"] = str(shared_directory(node.config))


def share_groups(config: pytest.Config, items: Sequence[pytest.Item]) -> None:
    """Write the groups of a worker's tests for the scheduler; all workers write the same."""
    markers = {item.nodeid: item.get_closest_marker("xdist_group") for item in items}
    groups = {name: marker.args[0] for name, marker in markers.items() if marker is not None}
    worker: dict[str, str] = config.workerinput  # type: ignore[attr-defined]
    own = shared_directory(config) / worker["workerid"]
    own.write_text(json.dumps(groups))
    own.replace(_groups_file(config))


def shared_directory(config: pytest.Config) -> Path:
    """Return the directory that the main process and its workers share; it is removed at the end of the run."""
    worker: dict[str, str] | None = getattr(config, "workerinput", None)
    if worker is not None:
        return Path(worker["shared"])
    if _directory not in config.stash:
        config.stash[_directory] = tempfile.TemporaryDirectory(prefix="pytest-shared-")
        config.add_cleanup(config.stash[_directory].cleanup)
    return Path(config.stash[_directory].name)


def _groups_file(config: pytest.Config) -> Path:
    return shared_directory(config) / "groups.json"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling | None:
    """Return a scheduler for groups and files, in the order of `sort_for_workers`, for `--dist loadscope`."""
    from xdist.scheduler import LoadScopeScheduling

    if config.getoption("dist") != "loadscope":
        return None

    class GroupsAndFiles(LoadScopeScheduling):
        """The tests of a group go to one worker, and so do all others of a file."""

        @functools.cached_property
        def _groups(self) -> dict[str, str]:
            groups: dict[str, str] = json.loads(_groups_file(config).read_text())
            return groups

        def _split_scope(self, nodeid: str) -> str:
            return self._groups.get(nodeid) or nodeid.partition("::")[0]

    config.option.loadscopereorder = False
    return GroupsAndFiles(config, log)
