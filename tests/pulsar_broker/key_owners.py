"""Owners of keys in a Key_Shared subscription, as Apache Pulsar has them."""

from __future__ import annotations

__all__ = ["KEYS", "OWNERS"]

KEYS = [f"k{number}".encode() for number in range(40)]

OWNERS = {
    ("a", "b"): "0010000010011001100001001101011111010111",
    ("x", "x", "y"): "0122020101111020212100200110000002211202",
}
"""By the names of consumers, the owner of each key."""
