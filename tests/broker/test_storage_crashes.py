"""A process that dies at any one of its writes: whatever it had acknowledged is there when the directory is opened again.

The life of a controller with its logs is run again and again; each time another system call that changes a file is the
last one, before, in the middle of, or after its work. The same with a machine that loses its power, for directories that
wait for the disk.
"""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from asyncgroup.broker.storage import metadata_log
from tests.broker.disks import Killed, Killer, PowerCut
from tests.broker.lives import STEPS, check, live

HOW = ["before", "in the middle", "after"]


@pytest.fixture
def patch():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(metadata_log, "SNAPSHOT_AFTER", 300)
        patch.setattr(os, "fsync", lambda _descriptor: None)
        yield patch


def a_whole_life(
    patch: pytest.MonkeyPatch, path: Path, *, fsync: bool = False
) -> tuple[int, list[dict[str, Any]]]:
    """How many calls there are, and all views."""
    views: list[dict[str, Any]] = []
    with patch.context() as inner:
        killer = Killer(inner, -1, "before")
        live(path, views, fsync=fsync)
    assert len(views) == len(STEPS) + 1
    assert killer.calls > 60
    return killer.calls, views


@pytest.mark.parametrize("how", HOW)
def test_whatever_write_is_the_last_all_that_was_acknowledged_is_there(tmp_path, patch, how):
    every_life(tmp_path, patch, how, first=1 + HOW.index(how), step=9)


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("how", HOW)
def test_every_write_may_be_the_last(tmp_path, patch, how):
    every_life(tmp_path, patch, how, first=1, step=1)


def every_life(directory: Path, patch: pytest.MonkeyPatch, how: str, *, first: int, step: int) -> None:
    """Lives that end with every `step`th call from the `first` on."""
    calls, expected = a_whole_life(patch, directory / "whole")
    for last in range(first, calls + 1, step):
        path = directory / str(last)
        views: list[dict[str, Any]] = []
        with patch.context() as inner, pytest.raises(Killed):
            Killer(inner, last, how)
            live(path, views)
        check(path, expected, len(views), f"killed {how} call {last}")
        shutil.rmtree(path)


def test_a_machine_that_loses_its_power_keeps_what_was_acknowledged(tmp_path, patch):
    every_power_cut(tmp_path, patch, first=3, step=31)


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_power_may_be_lost_at_any_write(tmp_path, patch):
    every_power_cut(tmp_path, patch, first=1, step=1)


def every_power_cut(directory: Path, patch: pytest.MonkeyPatch, *, first: int, step: int) -> None:
    """Lives with fsync that end with every `step`th call; of what was not synced some is there, or nothing."""
    calls, expected = a_whole_life(patch, directory / "whole", fsync=True)
    for last in range(first, calls + 1, step):
        path = directory / str(last)
        path.mkdir()
        views: list[dict[str, Any]] = []
        with PowerCut(path) as power:
            with patch.context() as inner, pytest.raises(Killed):
                power.watch(inner, last)
                live(path, views, fsync=True)
            for number in range(3):
                left = directory / f"{last}-{number}"
                power.leave(left, None if number == 0 else random.Random(last + number))
                check(left, expected, len(views), f"power lost at call {last}, {number}")
                shutil.rmtree(left)
        shutil.rmtree(path)
