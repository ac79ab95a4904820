"""Run small test suites in a pytest process of their own, which finds the plugin by its entry point, as for users."""

from __future__ import annotations

import os
import subprocess
import tomllib
from pathlib import Path

from tests.forked.server import forked, forking

__all__ = ["ROOT", "run_suite"]

ROOT = Path(__file__).parents[2]


def run_suite(
    directory: Path,
    tests: str,
    *arguments: str,
    ini: str = "",
    conftest: str = "",
    warnings: str = "error",
    fork: bool = True,
) -> subprocess.CompletedProcess[str]:
    """Run a suite of one file in `directory`, with its own pytest.ini and without this repository's conftest files.

    Warnings are errors unless `warnings` sets another filter. `-p no:…` among the arguments disables plugins. The process
    is forked with pytest and parts of this package imported, but not the plugin, if `fork`.
    """
    suite = directory / "suite"
    suite.mkdir(exist_ok=True)
    (suite / "test_it.py").write_text(tests)
    (suite / "conftest.py").write_text(conftest)
    settings = "asyncio_default_fixture_loop_scope = function\n" if "no:asyncio" not in arguments else ""
    (suite / "pytest.ini").write_text(f"[pytest]\nfilterwarnings = {warnings}\n{ini or settings}")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(_installed(directory)), str(ROOT)])}
    return subprocess.run(
        forked("pytest", "--strict-markers", "-p", "no:cacheprovider", "-rA", *arguments, "."),
        cwd=suite,
        env=forking(environment, "pytest") if fork else environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def _installed(directory: Path) -> Path:
    """Return a directory for PYTHONPATH with the entry points of pyproject.toml, as pip would install them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    entries = project["entry-points"]["pytest11"]
    info = directory / "installed" / "asyncgroup_plugin-0.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: asyncgroup-plugin\nVersion: 0\n")
    lines = [f"{name} = {module}" for name, module in entries.items()]
    (info / "entry_points.txt").write_text("\n".join(["[pytest11]", *lines]) + "\n")
    return info.parent
