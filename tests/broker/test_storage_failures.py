"""A disk on which some calls fail: what was refused did not happen, what was acknowledged did, and both remain so."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from asyncgroup.broker.errors import Refused
from asyncgroup.broker.storage import metadata_log
from tests.broker.disks import FailingDisk
from tests.broker.lives import STEPS, Life, Step, live, reopen


@pytest.fixture
def patch():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(metadata_log, "SNAPSHOT_AFTER", 300)
        patch.setattr(os, "fsync", lambda _descriptor: None)
        yield patch


@pytest.mark.parametrize(("count", "fsync"), [(1, False), (4, True)])
def test_a_call_that_fails_harms_nothing(tmp_path, patch, count, fsync):
    every_failure(tmp_path, patch, count, fsync=fsync, first=count, step=17)


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("fsync", [False, True])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_every_call_may_fail(tmp_path, patch, count, fsync):
    every_failure(tmp_path, patch, count, fsync=fsync, first=1, step=1)


def every_failure(
    directory: Path, patch: pytest.MonkeyPatch, count: int, *, fsync: bool, first: int, step: int
) -> None:
    """Lives in which every `step`th call fails, with those behind it."""
    expected: list[dict[str, Any]] = []
    with patch.context() as inner:
        calls = FailingDisk(inner, 0, 0)
        live(directory / "whole", expected, fsync=fsync)
    for number in range(first, calls.calls + 1, step):
        path = directory / str(number)
        with patch.context() as inner:
            disk = FailingDisk(inner, number, count)
            live_with_failures(path, expected, disk, fsync=fsync, story=f"call {number} failed")
        assert disk.failed
        shutil.rmtree(path)


def live_with_failures(
    path: Path, expected: list[dict[str, Any]], disk: FailingDisk, *, fsync: bool, story: str
) -> None:
    """All steps, each again until it is done; after a failure another cluster looks at a copy of the directory."""
    life = begin(path, fsync=fsync)
    try:
        for number, step in enumerate(STEPS):
            possible = expected[number : number + 2]
            attempts, failed = 0, disk.failed
            while not done(life, step):
                attempts += 1
                assert attempts <= disk.failed, f"{story}, step {number} is never done"
                if step is not reopen:
                    assert life.view() in possible, f"{story}, in step {number}"
                assert seen_by_another(path, disk) in possible, f"{story}, in step {number}, on disk"
            assert life.view() == expected[number + 1], f"{story}, after step {number}"
            if disk.failed > failed or step is STEPS[-1]:
                seen = seen_by_another(path, disk)
                assert seen == expected[number + 1], f"{story}, after step {number}, on disk"
    finally:
        life.data.close()


def begin(path: Path, *, fsync: bool) -> Life:
    while True:
        try:
            return Life(path, fsync=fsync)
        except (OSError, Refused):
            continue


def done(life: Life, step: Step) -> bool:
    try:
        step(life)
    except (OSError, Refused):
        return False
    return True


def seen_by_another(path: Path, disk: FailingDisk) -> dict[str, Any]:
    copied = path.with_name(f"{path.name}-copy")
    with disk.healed():
        shutil.copytree(path, copied)
        life = Life(copied)
        try:
            return life.view()
        finally:
            life.data.close()
            shutil.rmtree(copied)
