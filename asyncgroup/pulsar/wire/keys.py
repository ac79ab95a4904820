"""Keys of messages: text, or bytes as base64 with a flag (`partition_key`, `partition_key_b64_encoded`).

The partition of a key is computed from the text as it is sent, also of base64; Key_Shared subscriptions use the bytes.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from binascii import Error as Base64Error

from asyncgroup.pulsar.wire.varint import encode_text

__all__ = ["decode_key", "encode_key"]


def encode_key(key: str | bytes, *, base64_keys: bool = False) -> tuple[str, bool]:
    """Return the text of a key, and whether it is base64: it is for bytes that are not UTF-8.

    `base64_keys`: for all bytes, as with `keyBytes` of Java's client.
    """
    if isinstance(key, str):
        return key, False
    if not base64_keys:
        try:
            return key.decode(), False
        except UnicodeDecodeError:
            pass
    return b64encode(key).decode("ascii"), True


def decode_key(text: str, *, is_base64: bool) -> bytes:
    """Return the bytes of a key; text that is no base64 although it should be is taken as it is."""
    data = encode_text(text)
    if is_base64:
        try:
            return b64decode(data, validate=True)
        except Base64Error:
            return data
    return data
