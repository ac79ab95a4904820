"""Other clients, which tests compare with this one."""

from __future__ import annotations

import importlib
import warnings
from typing import Any

__all__ = ["import_peer"]


def import_peer(name: str) -> Any:
    """Import a module of a client that the extra `test` installs; ignore its warnings.

    A module that is missing fails the test: if it were skipped, a comparison could end without notice when a client's
    modules move.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return importlib.import_module(name)
