"""Java's `String.hashCode`, which determines the internal-topic partition of a group or transactional id."""

from __future__ import annotations

from functools import lru_cache

__all__ = ["java_hash"]


@lru_cache(maxsize=4096)  # computed for every heartbeat
def java_hash(text: str) -> int:
    """Return Java's `String.hashCode`, made non-negative as Kafka's `Utils.abs` does."""
    value = 0
    encoded = text.encode("utf-16-be", "surrogatepass")
    for high, low in zip(encoded[::2], encoded[1::2], strict=True):
        value = (31 * value + (high << 8 | low)) & 0xFFFFFFFF
    if value & 0x80000000:
        value = 0 if value == 0x80000000 else 0x100000000 - value
    return value
