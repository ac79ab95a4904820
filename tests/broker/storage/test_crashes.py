"""Crashes at any write: everything acknowledged is there when the directory is opened again.

The same scenario, a controller with its logs, is run many times. Each run is killed at another system call that
changes a file: before, in the middle of, or after the call. With fsync the same is done with a loss of power.
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.broker.disk_faults import KillAtCall, Killed, PowerCut
from tests.broker.stored_cluster import STEPS, check_stored, run_steps

HOW = ["before", "in the middle", "after"]


def run_whole_scenario(
    patch: pytest.MonkeyPatch, path: Path, *, fsync: bool = False
) -> tuple[int, list[dict[str, Any]]]:
    """Run the scenario to its end; return the number of system calls and the view after each step."""
    views: list[dict[str, Any]] = []
    with patch.context() as inner:
        killer = KillAtCall(inner, -1, "before")
        run_steps(path, views, fsync=fsync)
    assert len(views) == len(STEPS) + 1
    assert killer.calls > 60
    return killer.calls, views


@pytest.mark.parametrize("how", HOW)
def test_acknowledged_changes_survive_a_kill_at_a_write(tmp_path, patch, how):
    kill_at_calls(tmp_path, patch, how, first=1 + HOW.index(how), step=9)


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("how", HOW)
def test_acknowledged_changes_survive_a_kill_at_every_write(tmp_path, patch, how):
    kill_at_calls(tmp_path, patch, how, first=1, step=1)


def kill_at_calls(directory: Path, patch: pytest.MonkeyPatch, how: str, *, first: int, step: int) -> None:
    """Run the scenario once for every `step`th call from the `first` on, and kill it there."""
    calls, expected = run_whole_scenario(patch, directory / "whole")
    for last in range(first, calls + 1, step):
        path = directory / str(last)
        views: list[dict[str, Any]] = []
        with patch.context() as inner, pytest.raises(Killed):
            KillAtCall(inner, last, how)
            run_steps(path, views)
        check_stored(path, expected, len(views), f"killed {how} call {last}")
        shutil.rmtree(path)


def test_acknowledged_changes_survive_a_power_loss(tmp_path, patch):
    cut_power_at_calls(tmp_path, patch, first=3, step=31)


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_acknowledged_changes_survive_a_power_loss_at_every_write(tmp_path, patch):
    cut_power_at_calls(tmp_path, patch, first=1, step=1)


def cut_power_at_calls(directory: Path, patch: pytest.MonkeyPatch, *, first: int, step: int) -> None:
    """Run the scenario with fsync once for every `step`th call, and cut the power there.

    Of the data that was not synced nothing is left, or a random part.
    """
    calls, expected = run_whole_scenario(patch, directory / "whole", fsync=True)
    for last in range(first, calls + 1, step):
        path = directory / str(last)
        path.mkdir()
        views: list[dict[str, Any]] = []
        with PowerCut(path) as power:
            with patch.context() as inner, pytest.raises(Killed):
                power.watch(inner, last)
                run_steps(path, views, fsync=True)
            for number in range(3):
                left = directory / f"{last}-{number}"
                power.leave(left, None if number == 0 else random.Random(last + number))
                check_stored(left, expected, len(views), f"power lost at call {last}, {number}")
                shutil.rmtree(left)
        shutil.rmtree(path)
