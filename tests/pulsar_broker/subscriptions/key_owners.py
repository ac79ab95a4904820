"""Owners of keys in Key_Shared subscriptions, and active consumers of Failover ones, as Apache Pulsar has them."""

from __future__ import annotations

__all__ = ["ACTIVE", "KEYS", "OWNERS"]

KEYS = [f"k{number}".encode() for number in range(40)]

OWNERS = {
    ("a", "b"): "0010000010011001100001001101011111010111",
    ("x", "x", "y"): "0122020101111020212100200110000002211202",
}
"""By the names of consumers, the owner of each key."""

ACTIVE = "bbcccacccbcacaaa"
"""Of `topic-0` and the following, the active one of the consumers a, b and c."""
