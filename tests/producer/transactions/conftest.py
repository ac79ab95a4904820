"""Fixtures of the tests of transactions."""

from tests.asyncio_errors import no_asyncio_errors

__all__ = ["no_asyncio_errors"]
