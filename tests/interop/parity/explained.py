"""Intended differences between the embedded broker and Apache Kafka 4.3.1."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from tests.interop.parity.compare import NOTHING, Explained
from tests.interop.parity.scene import CLOSED

__all__ = ["EXPLAINED"]


def _absent(why: str, *apis: str | int) -> Iterable[Explained]:
    """Explain APIs that the embedded broker does not serve."""
    return (Explained("api_versions/ranges *", str(api), why, ours=NOTHING) for api in apis)


EXPLAINED: Final[tuple[Explained, ...]] = (
    *_absent("there are no delegation tokens", 38, 39, 40, 41),
    *_absent("the quorum of controllers is fixed, and nodes are not registered", 64, 80, 81),
    *_absent("share groups (KIP-932) are a later step", 76, 77, 78, 79, 83, 84, 85, 86, 87, 90, 91, 92),
    *_absent("streams groups (KIP-1071) are not served", 88, 89),
    *(
        Explained(
            f"{story} *", f"{kind}{name}", "share groups and streams groups are not served", ours=NOTHING
        )
        for story in ("api_versions/features", "features/levels")
        for kind in ("", "supports ")
        for name in ("share.version", "streams.version")
    ),
    *(
        Explained(
            "sizes_of_logs/*",
            f"results[[]0].{size}",
            "records are in memory: there is no disk size to report",
            ours=-1,
        )
        for size in ("total_bytes", "usable_bytes")
    ),
    Explained(
        "described_resources/client metrics *",
        "results[[]0].configs*",
        "client metrics (KIP-714) are not supported, so they have no settings",
    ),
    *(
        Explained(
            f"malformed_requests/{what} not the alphabet",
            "",
            "Kafka replaces invalid UTF-8 by U+FFFD, so that two different names become one",
            ours=CLOSED,
        )
        for what in ("a group that is", "a client id that is")
    ),
    Explained(
        "lookups/after *, -3 *",
        "topics[[]0].partitions[[]0].*",
        "when all records are deleted, Kafka still finds the largest timestamp in the remaining segment",
    ),
)
"""Intended differences with their reasons; an unused line fails `test_no_explanation_is_out_of_date`."""
