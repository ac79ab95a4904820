"""Fixture of the cluster tests."""

from tests.complaints import quiet

__all__ = ["quiet"]
