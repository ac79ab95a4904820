"""Import what traffic needs before it begins: message classes and the compiled record code.

They are imported on first use otherwise. That would block the event loop in the middle of traffic: aiokafka alone takes
about a tenth of a second. Importing this file loads little besides asyncio, for the same reason.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from asyncgroup.off_loop import load_off_loop

__all__ = ["CLIENT_MODULES", "load_client", "load_compiled"]

CLIENT_MODULES: Final = (
    "add_offsets_to_txn",
    "add_partitions_to_txn",
    "api_versions",
    "consumer_group_describe",
    "consumer_group_heartbeat",
    "consumer_protocol",
    "describe_configs",
    "describe_groups",
    "describe_transactions",
    "end_txn",
    "fetch",
    "find_coordinator",
    "heartbeat",
    "init_producer_id",
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
    "txn_offset_commit",
)
"""The modules in `messages` that clients use."""


_loaded: set[Callable[[], None]] = set()


async def load_client() -> None:
    """Import the message classes and the compiled code that a client uses; without effect the second time."""
    await _load_once(_import_client)


async def load_compiled() -> None:
    """Import the compiled code of record batches, and with it aiokafka; without effect the second time."""
    await _load_once(_import_compiled)


async def _load_once(load: Callable[[], None]) -> None:
    if load not in _loaded:
        await load_off_loop(load)
        _loaded.add(load)


def _import_client() -> None:
    from asyncgroup.wire import messages

    messages.load(CLIENT_MODULES)
    _import_compiled()
    with suppress(ImportError):  # anyio itself imports it at the first cancel scope; the name is not public
        importlib.import_module("anyio._backends._asyncio")


def _import_compiled() -> None:
    importlib.import_module("asyncgroup.wire.compiled")
