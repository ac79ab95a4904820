"""Fixture of the producer tests."""

from tests.complaints import quiet

__all__ = ["quiet"]
