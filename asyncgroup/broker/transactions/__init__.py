"""Transactions of producers (KIP-98, KIP-360, KIP-890): their coordinator, and the markers that end them."""

from __future__ import annotations
