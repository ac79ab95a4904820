"""Versions of OffsetCommit and OffsetFetch at which their form changes."""

from __future__ import annotations

from typing import Final

__all__ = ["GROUPS_VERSION", "LAST_NAME_VERSION"]

LAST_NAME_VERSION: Final = 9
"""The last OffsetCommit and OffsetFetch version with topic names; later ones use topic ids (KIP-848)."""

GROUPS_VERSION: Final = 8
"""The first OffsetFetch version with several groups per request (KIP-709)."""
