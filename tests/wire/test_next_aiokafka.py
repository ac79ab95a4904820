"""How `python -m tests.wire.next_aiokafka` decides whether there is a release to try."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.wire import next_aiokafka


class Programs:
    """Stands in for pip, which installs this version, and for pytest, which fails."""

    def __init__(self, version: str) -> None:
        self.version = version
        self.started: list[str] = []
        self.environment: dict[str, str] = {}

    def run(self, command: list[str], **options: Any) -> subprocess.CompletedProcess[bytes]:
        self.started.append(command[2])
        if command[2] == "pip":
            info = Path(command[command.index("--target") + 1]) / f"aiokafka-{self.version}.dist-info"
            info.mkdir()
            (info / "METADATA").write_text(f"Name: aiokafka\nVersion: {self.version}\n", encoding="utf-8")
        else:
            self.environment = options["env"]
        return subprocess.CompletedProcess(command, 3)


@pytest.mark.parametrize("version", ["0.15.0rc1", "0.15.0", "99"])
def test_a_release_above_the_pin_is_tried(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    programs = Programs(version)
    monkeypatch.setattr(subprocess, "run", programs.run)
    assert next_aiokafka.main() == 3
    assert programs.started == ["pip", "pytest"]
    assert programs.environment["ASYNCGROUP_NEXT_AIOKAFKA"] == version


def test_an_allowed_release_is_not_tried(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    programs = Programs("0.14.9")
    monkeypatch.setattr(subprocess, "run", programs.run)
    assert next_aiokafka.main() == 0
    assert programs.started == ["pip"]
    assert capsys.readouterr().out == "the newest aiokafka, 0.14.9, is allowed: nothing to try\n"


def test_every_file_that_it_runs_exists() -> None:
    assert [name for name in next_aiokafka.TESTS if not (next_aiokafka.ROOT / name).is_file()] == []
