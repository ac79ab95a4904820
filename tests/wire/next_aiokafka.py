"""Run the tests of the record code with the newest aiokafka, if the version pin does not allow it yet.

    python -m tests.wire.next_aiokafka

pip installs it into a temporary directory, candidates of a release included, and the environment stays as it is. The exit
code is that of pytest; 0 if the newest one is allowed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from importlib.metadata import distributions
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

__all__ = ["allowed_versions", "main"]

ROOT: Final = Path(__file__).parents[2]
TESTS: Final = (
    "tests/wire/test_aiokafka_contract.py",
    "tests/wire/test_batch_builder_zstd.py",
    "tests/wire/test_compression.py",
    "tests/wire/test_decompression.py",
    "tests/wire/test_golden_bytes.py",
    "tests/wire/test_legacy.py",
    "tests/wire/test_records.py",
    "tests/wire/test_robustness.py",
    "tests/consumer/test_batch_runs.py",
    "tests/consumer/test_columnar.py",
    "tests/consumer/test_corrupt_batches.py",
    "tests/consumer/test_decoding.py",
    "tests/producer/sending/test_batch_compressor.py",
    "tests/producer/test_every_record.py",
)
"""The files that are run: the contract, and tests of what reads and builds batches."""


def allowed_versions() -> SpecifierSet:
    """Return the versions of aiokafka that pyproject.toml allows; no candidates of the first one that is excluded."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (pin,) = (Requirement(each) for each in project["dependencies"] if each.startswith("aiokafka"))
    return pin.specifier


def main(arguments: Sequence[str] = ()) -> int:
    """Install it and run the tests, with further arguments for pytest; return the exit code."""
    with tempfile.TemporaryDirectory() as directory:
        install = [
            "install",
            "--quiet",
            "--no-deps",
            "--no-compile",
            "--pre",
            "--target",
            directory,
            "aiokafka",
        ]
        subprocess.run([sys.executable, "-m", "pip", *install], check=True)
        (newest,) = (each.version for each in distributions(name="aiokafka", path=[directory]))
        if newest in allowed_versions():
            print(f"the newest aiokafka, {newest}, is allowed: nothing to try")
            return 0
        print(f"aiokafka {newest}, of which {allowed_versions()} are allowed:", flush=True)
        path = os.pathsep.join(filter(None, [directory, os.environ.get("PYTHONPATH")]))
        environment = {**os.environ, "PYTHONPATH": path, "ASYNCGROUP_NEXT_AIOKAFKA": newest}
        tests = [sys.executable, "-m", "pytest", "--full", *TESTS, *arguments]
        return subprocess.run(tests, cwd=ROOT, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
