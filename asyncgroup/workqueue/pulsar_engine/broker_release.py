"""Which releases of Pulsar keep the order of keys for a work queue."""

from __future__ import annotations

import re
from typing import Final

from asyncgroup.errors import ConfigError
from asyncgroup.workqueue.modes import Mode
from asyncgroup.workqueue.settings import QueueSettings

__all__ = ["check_release"]

KEEPS_KEYS_SINCE: Final = 4
"""The major release from which on a broker sends a key to one consumer while messages of it are unacknowledged (PIP-379)."""

_RELEASE: Final = re.compile(r"(\d+)\.\d+")


def check_release(server_version: str, settings: QueueSettings) -> None:
    """Raise ConfigError if a broker cannot keep what a queue promises; `server_version` is from its CONNECTED command.

    A queue in Mode.KEY_SHARED leaves a failed message unacknowledged, so that nothing after it with its key is delivered. A
    broker before Pulsar 4.0 sends these to another consumer when one joins. A version that names no release is accepted.
    """
    if settings.mode is not Mode.KEY_SHARED or settings.allow_out_of_order:
        return
    found = _RELEASE.search(server_version)
    if found is not None and int(found[1]) < KEEPS_KEYS_SINCE:
        raise ConfigError(
            "mode",
            settings.mode,
            f"{server_version!r} does not keep the order of a key after a nack, as brokers do since Pulsar {KEEPS_KEYS_SINCE}.0 "
            f"(PIP-379); use another mode, or allow_out_of_order=True",
        )
