"""Build the wheel and the source distribution, without a network, and install a wheel beside its dependencies."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
import tarfile
import venv
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from zipfile import ZipFile

from packaging.metadata import Metadata
from packaging.requirements import Requirement

ROOT: Final = Path(__file__).parents[2]
LIMIT: Final = 100.0
"""Seconds after which a program is considered to hang."""


def build(source: Path, target: Path, *kinds: str) -> list[Path]:
    """Build distributions (`wheel`, `sdist`) of a source directory with the installed hatchling."""
    wanted = [part for kind in kinds for part in ("-t", kind)]
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(target), *wanted]
    subprocess.run(command, cwd=source, capture_output=True, text=True, timeout=LIMIT, check=True)
    return sorted(target.iterdir())


def unpacked(sdist: Path, target: Path) -> Path:
    """Unpack a source distribution, and return its directory."""
    with tarfile.open(sdist) as archive:
        if hasattr(tarfile, "data_filter"):
            archive.extractall(target, filter="data")
        else:  # before Python 3.11.4
            archive.extractall(target)
    (directory,) = target.iterdir()
    return directory


def contents(wheel: Path) -> dict[str, bytes]:
    """Return the files of a wheel."""
    with ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def metadata(files: dict[str, bytes]) -> Metadata:
    """Return the validated metadata of a wheel with these files."""
    (name,) = (name for name in files if name.endswith(".dist-info/METADATA"))
    return Metadata.from_email(files[name], validate=True)


def required(requirements: Iterable[Requirement]) -> dict[str, importlib.metadata.Distribution]:
    """Return the distributions, by name, that these requirements install without their extras, from those installed here."""
    found: dict[str, importlib.metadata.Distribution] = {}
    waiting = list(requirements)
    while waiting:
        requirement = waiting.pop()
        if requirement.name in found or (
            requirement.marker and not requirement.marker.evaluate({"extra": ""})
        ):
            continue
        found[requirement.name] = importlib.metadata.distribution(requirement.name)
        waiting += map(Requirement, found[requirement.name].requires or ())
    return found


@dataclass(frozen=True)
class Installed:
    """A virtual environment outside of the checkout, without pip."""

    directory: Path

    @classmethod
    def create(cls, directory: Path) -> Installed:
        venv.create(directory, with_pip=False, symlinks=os.name != "nt")
        return cls(directory)

    @property
    def scripts(self) -> Path:
        return self.directory / ("Scripts" if os.name == "nt" else "bin")

    @property
    def packages(self) -> Path:
        """The directory of the installed packages."""
        (found,) = self.directory.glob("[Ll]ib/**/site-packages")
        return found

    def install(self, wheel: Path) -> None:
        """Install a wheel, without what it requires."""
        options = ["--no-index", "--no-deps", "--no-compile", "--quiet"]
        command = [sys.executable, "-m", "pip", "--python", str(self.scripts / "python"), "install", *options]
        subprocess.run([*command, str(wheel)], capture_output=True, text=True, timeout=LIMIT, check=True)

    def link(self, distribution: importlib.metadata.Distribution) -> None:
        """Make a distribution available that is installed here."""
        for name in {Path(str(file)).parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}:
            if not (self.packages / name).exists():  # another one may need it as well
                (self.packages / name).symlink_to(Path(str(distribution.locate_file(name))).resolve())

    def size(self) -> int:
        """Return the bytes of the installed packages, without byte code."""
        return sum(
            (Path(place) / name).stat().st_size
            for place, _, names in os.walk(self.packages, followlinks=True)
            for name in names
            if not name.endswith(".pyc")
        )

    def run(self, program: str, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """Run a program of the environment in its directory."""
        inherited = {
            name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "ASYNCGROUP"))
        }
        return subprocess.run(
            [self.scripts / program, *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=LIMIT,
            check=False,
            cwd=self.directory,
            env={**inherited, "PYTHONPYCACHEPREFIX": str(self.directory / "compiled"), "NO_COLOR": "1"},
        )
