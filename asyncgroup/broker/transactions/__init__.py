"""The transaction coordinator and the transaction markers (KIP-98, KIP-360, KIP-890)."""

from __future__ import annotations
