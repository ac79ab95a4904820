"""Failing system calls: rejected changes have no effect, acknowledged changes are kept, in memory and on disk."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from asyncgroup.broker.errors import Refused
from tests.broker.disk_faults import FailingDisk
from tests.broker.stored_cluster import STEPS, Step, StoredCluster, reopen, run_steps


@pytest.mark.parametrize(("count", "fsync"), [(1, False), (4, True)])
def test_some_failing_calls(tmp_path, patch, count, fsync):
    fail_at_calls(tmp_path, patch, count, fsync=fsync, first=count, step=17)


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("fsync", [False, True])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_every_failing_call(tmp_path, patch, count, fsync):
    fail_at_calls(tmp_path, patch, count, fsync=fsync, first=1, step=1)


def fail_at_calls(
    directory: Path, patch: pytest.MonkeyPatch, count: int, *, fsync: bool, first: int, step: int
) -> None:
    """Run the scenario once for every `step`th call from the `first` on; `count` calls fail from there."""
    expected: list[dict[str, Any]] = []
    with patch.context() as inner:
        calls = FailingDisk(inner, 0, 0)
        run_steps(directory / "whole", expected, fsync=fsync)
    for number in range(first, calls.calls + 1, step):
        path = directory / str(number)
        with patch.context() as inner:
            disk = FailingDisk(inner, number, count)
            live_with_failures(path, expected, disk, fsync=fsync, context=f"call {number} failed")
        assert disk.failed
        shutil.rmtree(path)


def live_with_failures(
    path: Path, expected: list[dict[str, Any]], disk: FailingDisk, *, fsync: bool, context: str
) -> None:
    """Run all steps, each repeated until it succeeds. After a failure another cluster opens a copy of the directory."""
    life = begin(path, fsync=fsync)
    try:
        for number, step in enumerate(STEPS):
            possible = expected[number : number + 2]
            attempts, failed = 0, disk.failed
            while not succeeds(life, step):
                attempts += 1
                assert attempts <= disk.failed, f"{context}, step {number} never succeeds"
                if step is not reopen:
                    assert life.view() in possible, f"{context}, in step {number}"
                assert view_of_copy(path, disk) in possible, f"{context}, in step {number}, on disk"
            assert life.view() == expected[number + 1], f"{context}, after step {number}"
            if disk.failed > failed or step is STEPS[-1]:
                seen = view_of_copy(path, disk)
                assert seen == expected[number + 1], f"{context}, after step {number}, on disk"
    finally:
        life.data.close()


def begin(path: Path, *, fsync: bool) -> StoredCluster:
    while True:
        try:
            return StoredCluster(path, fsync=fsync)
        except (OSError, Refused):
            continue


def succeeds(life: StoredCluster, step: Step) -> bool:
    try:
        step(life)
    except (OSError, Refused):
        return False
    return True


def view_of_copy(path: Path, disk: FailingDisk) -> dict[str, Any]:
    copied = path.with_name(f"{path.name}-copy")
    with disk.suspended():
        shutil.copytree(path, copied)
        life = StoredCluster(copied)
        try:
            return life.view()
        finally:
            life.data.close()
            shutil.rmtree(copied)
