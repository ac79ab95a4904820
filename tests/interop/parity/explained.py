"""Where the embedded broker answers otherwise than Apache Kafka 4.3.1, on purpose."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from tests.interop.parity.compare import NOTHING, Explained

__all__ = ["EXPLAINED"]


def _absent(why: str, *apis: str | int) -> Iterable[Explained]:
    """APIs that are not served."""
    return (Explained("api_versions/ranges *", str(api), why, ours=NOTHING) for api in apis)


EXPLAINED: Final[tuple[Explained, ...]] = (
    *_absent(
        "there are no users: refusals come by fault injection",
        29,
        30,
        31,
        "SaslHandshake",
        "SaslAuthenticate",
    ),
    *_absent(
        "there are no users, so no delegation tokens and no passwords of theirs", 38, 39, 40, 41, 50, 51
    ),
    *_absent("there are no quotas: throttling comes by fault injection", 48, 49),
    *_absent("logs lie in one directory only", 34),
    *_absent(
        "there is no quorum of controllers, nodes are not registered, features not changed",
        55,
        57,
        64,
        80,
        81,
    ),
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
    Explained(
        "more_partitions/too many *",
        "results[[]0].*",
        "Kafka throws its own PolicyViolationException away and says UNKNOWN_SERVER_ERROR; the limit is the same",
    ),
    *(
        Explained(
            f"topics_made_anew/the session {when} *",
            "responses[[]0].partitions[[]0].*",
            "sessions here know topics by id only; Kafka's remember the name as well, and tell by it what has become of the id",
        )
        for when in ("hears of it", "afterwards")
    ),
    Explained(
        "lookups/after *, -3 *",
        "topics[[]0].partitions[[]0].*",
        "when all records are deleted, Kafka still finds the latest timestamp in the segment that it keeps",
    ),
)
"""Each line with its reason; a line that explains nothing any more fails `test_no_explanation_is_out_of_date`."""
