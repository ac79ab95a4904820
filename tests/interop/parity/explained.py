"""Where the embedded broker answers otherwise than Apache Kafka 4.3.1, on purpose."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from tests.interop.parity.compare import NOTHING, Explained
from tests.interop.parity.scene import CLOSED

__all__ = ["EXPLAINED"]


def _absent(why: str, *apis: str | int) -> Iterable[Explained]:
    """APIs that are not served."""
    return (Explained("api_versions/ranges *", str(api), why, ours=NOTHING) for api in apis)


EXPLAINED: Final[tuple[Explained, ...]] = (
    *_absent("there are no delegation tokens", 38, 39, 40, 41),
    *_absent("there is no quorum of controllers whose members change, nodes are not registered", 64, 80, 81),
    *_absent(
        "the consumer protocol of KIP-848 is a later step", "ConsumerGroupHeartbeat", "ConsumerGroupDescribe"
    ),
    *_absent("share groups (KIP-932) are a later step", 76, 77, 78, 79, 83, 84, 85, 86, 87, 90, 91, 92),
    *_absent("streams groups (KIP-1071) are not served", 88, 89),
    Explained(
        "api_versions/features *",
        "*",
        "the one feature that there is tells clients to use transactions of KIP-890",
        ours=NOTHING,
    ),
    *(
        Explained(
            "sizes_of_logs/*",
            f"results[[]0].{size}",
            "records are in memory, so that there is no disk whose size could be told",
            ours=-1,
        )
        for size in ("total_bytes", "usable_bytes")
    ),
    Explained(
        "described_resources/client metrics *",
        "results[[]0].configs*",
        "clients are not asked for metrics (KIP-714), so that there are no settings of them",
    ),
    *(
        Explained(
            f"improper_requests/{what} not the alphabet",
            "",
            "Kafka puts U+FFFD in place of what is no UTF-8, so that two different names become one",
            ours=CLOSED,
        )
        for what in ("a group that is", "a client id that is")
    ),
    Explained(
        "lookups/after *, -3 *",
        "topics[[]0].partitions[[]0].*",
        "when all records are deleted, Kafka still finds the latest timestamp in the segment that it keeps",
    ),
)
"""Each line with its reason; a line that explains nothing any more fails `test_no_explanation_is_out_of_date`."""
