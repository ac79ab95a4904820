"""The optional package rich, with which commands draw tables and live displays (extra `cli`)."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final

from asyncgroup.errors import AsyncGroupError

__all__ = ["INSTALL_RICH", "RichMissing", "has_rich", "require_rich"]

INSTALL_RICH: Final = "pip install 'asyncgroup[cli]'"


class RichMissing(AsyncGroupError):
    """A command draws with the package rich, and it is not installed."""


def has_rich() -> bool:
    """Whether rich is installed."""
    return find_spec("rich") is not None


def require_rich(what: str, remedy: str = INSTALL_RICH) -> None:
    """Raise RichMissing if rich is not installed; `what` needs it, and `remedy` says what to do."""
    if not has_rich():
        raise RichMissing(f"{what} needs the package rich, which is not installed: {remedy}")
