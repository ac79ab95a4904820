"""PyInstaller's hook for this package, which makes frozen programs contain modules that are imported by name.

PyInstaller finds the directory by the entry point `pyinstaller40`. The public names of packages need no hook: the imports
for type checkers name their modules, and PyInstaller follows these.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["hook_directories"]


def hook_directories() -> list[str]:
    """Return the directory with the hooks."""
    return [str(Path(__file__).parent)]
