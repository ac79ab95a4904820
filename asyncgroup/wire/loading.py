"""Import what traffic needs before it begins: message classes and the compiled record code.

They are imported on first use otherwise. That would block the event loop in the middle of traffic: aiokafka alone takes
about a tenth of a second.
"""

from __future__ import annotations

import importlib
from typing import Final

from asyncgroup.wire import messages

__all__ = ["CLIENT_MODULES", "load_client", "load_compiled"]

CLIENT_MODULES: Final = (
    "api_versions",
    "consumer_protocol",
    "describe_groups",
    "fetch",
    "find_coordinator",
    "heartbeat",
    "join_group",
    "leave_group",
    "list_offsets",
    "metadata",
    "offset_commit",
    "offset_fetch",
    "offset_for_leader_epoch",
    "produce",
    "sasl_authenticate",
    "sasl_handshake",
    "sync_group",
)
"""The modules in `messages` that clients use."""


def load_client() -> None:
    """Import the message classes and the compiled code that a client uses; without effect the second time."""
    messages.load(CLIENT_MODULES)
    load_compiled()


def load_compiled() -> None:
    """Import the compiled code of record batches, and with it aiokafka."""
    importlib.import_module("asyncgroup.wire.compiled")
