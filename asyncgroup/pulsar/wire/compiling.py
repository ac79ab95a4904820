"""Compile the functions that encode and decode a message from its fields.

A compiled function has one branch per field with the field's tag as a constant; short varints, which are most of them,
are read and written in place. Unknown fields are skipped, fields may come in any order, and repeated numbers may be
packed, as protobuf's rules for readers say.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from asyncgroup.errors import DecodeError
from asyncgroup.pulsar.wire.fields import (
    BOOL,
    BYTES,
    INT32,
    INT64,
    MESSAGE,
    PROPERTIES,
    STRING,
    FieldOfMessage,
    fields_of,
)
from asyncgroup.pulsar.wire.varint import decode_pair, put_varint, read_more, skip_field

__all__ = ["compile_message"]

_DELIMITED: Final = {STRING, BYTES, MESSAGE, PROPERTIES}
_SIGN: Final = 1 << 63


def compile_message(cls: type[Any]) -> tuple[Callable[[Any, bytearray], None], Callable[..., Any]]:
    """Return the functions `encode(message, out)` and `decode(data, start, end)` of a class."""
    fields = fields_of(cls)
    names: dict[str, Any] = {
        "DecodeError": DecodeError,
        "cls": cls,
        "new": object.__new__,
        "more": read_more,
        "pair": decode_pair,
        "put": put_varint,
        "skip": skip_field,
    }
    for field in fields:
        if field.message not in (None, cls):
            names[f"encode_{field.name}"], names[f"decode_{field.name}"] = compile_message(field.message)
    source = "\n".join([*_encoder(fields), *_decoder(cls, fields)])
    for field in fields:
        if field.message is cls:
            source += f"\nencode_{field.name}, decode_{field.name} = encode, decode\n"
    exec(compile(source, f"<{cls.__name__}>", "exec"), names)  # noqa: S102  # our own text
    return names["encode"], names["decode"]


# --- encoding -----------------------------------------------------------------------------------------------------------


def _encoder(fields: list[FieldOfMessage]) -> list[str]:
    lines = ["def encode(message, out):"]
    for field in fields:
        lines.append(f"    value = message.{field.name}")
        if field.kind == PROPERTIES:
            lines.append("    for key, text in value.items():")
            lines += _indented(_put_pair(field), 2)
        elif field.repeated:
            lines.append("    for value in value:")
            lines += _indented(_put(field), 2)
        elif field.required:
            lines += _indented(_put(field), 1)
        else:
            lines.append(
                f"    if value != {field.default!r}:"
                if field.default is not None
                else "    if value is not None:"
            )
            lines += _indented(_put(field), 2)
    return [*lines, "    return None"]


def _put(field: FieldOfMessage) -> list[str]:
    tag = _tag(field)
    if field.kind == BOOL:
        return [_append(tag), "out.append(1 if value else 0)"]
    if field.kind not in _DELIMITED:
        return [_append(tag), *_put_varint("value")]
    if field.kind == STRING:
        lines = ["data = value.encode('utf-8', 'surrogateescape')"]
    elif field.kind == BYTES:
        lines = ["data = value"]
    else:
        lines = ["data = bytearray()", f"encode_{field.name}(value, data)"]
    return [*lines, "size = len(data)", _append(tag), *_put_varint("size"), "out += data"]


def _put_pair(field: FieldOfMessage) -> list[str]:
    return [
        "key = key.encode('utf-8', 'surrogateescape')",
        "text = text.encode('utf-8', 'surrogateescape')",
        "data = bytearray(b'\\n')",
        "size = len(key)",
        *(line.replace("out", "data") for line in _put_varint("size")),
        "data += key",
        "data.append(0x12)",
        "size = len(text)",
        *(line.replace("out", "data") for line in _put_varint("size")),
        "data += text",
        "size = len(data)",
        _append(_tag(field)),
        *_put_varint("size"),
        "out += data",
    ]


def _put_varint(name: str) -> list[str]:
    return [f"if 0 <= {name} < 128:", f"    out.append({name})", "else:", f"    put(out, {name})"]


def _append(tag: bytes) -> str:
    return f"out.append({tag[0]})" if len(tag) == 1 else f"out += {tag!r}"


def _tag(field: FieldOfMessage, *, packed: bool = False) -> bytes:
    out = bytearray()
    put_varint(out, field.number << 3 | (2 if packed or field.kind in _DELIMITED else 0))
    return bytes(out)


# --- decoding -----------------------------------------------------------------------------------------------------------


def _decoder(cls: type[Any], fields: list[FieldOfMessage]) -> list[str]:
    lines = ["def decode(data, at, end):"]
    lines += [f"    f_{field.name} = {_initial(field)}" for field in fields]
    lines += [
        "    while at < end:",
        "        tag = data[at]",
        "        at += 1",
        "        if tag > 127:",
        "            tag, at = more(data, at, tag)",
    ]
    word = "if"
    for field in fields:
        delimited = field.kind in _DELIMITED
        lines.append(f"        {word} tag == {field.number << 3 | (2 if delimited else 0)}:")
        lines += _indented(_read(cls, field) if delimited else _read_number(field), 3)
        word = "elif"
        if field.repeated and not delimited:
            lines.append(f"        elif tag == {field.number << 3 | 2}:")
            lines += _indented(_read_packed(cls, field), 3)
    unknown = "            at = skip(data, at, end, tag)"
    lines += ["        else:", unknown] if fields else [unknown[4:]]
    lines += [
        "    if at != end:",
        f"        raise DecodeError({f'{cls.__name__}: a field ends after its message'!r})",
    ]
    for field in fields:
        if field.required:
            lines.append(f"    if f_{field.name} is None:")
            lines.append(
                f"        raise DecodeError({f'{cls.__name__}: required field {field.name} is missing'!r})"
            )
    lines.append("    message = new(cls)")
    lines += [f"    message.{field.name} = f_{field.name}" for field in fields]
    return [*lines, "    return message"]


def _initial(field: FieldOfMessage) -> str:
    if field.kind == PROPERTIES:
        return "{}"
    return "()" if field.repeated else repr(field.default)


def _store(field: FieldOfMessage, value: str) -> str:
    name = f"f_{field.name}"
    return f"{name} = {name} or []; {name}.append({value})" if field.repeated else f"{name} = {value}"


def _read_number(field: FieldOfMessage) -> list[str]:
    lines = ["value = data[at]", "at += 1", "if value > 127:", "    value, at = more(data, at, value)"]
    return [*lines, *_signed(field), _store(field, "value != 0" if field.kind == BOOL else "value")]


def _signed(field: FieldOfMessage) -> list[str]:
    if field.kind == INT64:
        return [f"if value >= {_SIGN}:", f"    value -= {_SIGN << 1}"]
    if field.kind == INT32:  # the low half counts
        return ["if value > 0x7FFFFFFF:", "    value = ((value & 0xFFFFFFFF) ^ 0x80000000) - 0x80000000"]
    return []


def _bounds(cls: type[Any], field: FieldOfMessage) -> list[str]:
    return [
        "size = data[at]",
        "at += 1",
        "if size > 127:",
        "    size, at = more(data, at, size)",
        "stop = at + size",
        "if stop > end:",
        f"    raise DecodeError({f'{cls.__name__}: field {field.name} ends after its message'!r})",
    ]


def _read(cls: type[Any], field: FieldOfMessage) -> list[str]:
    lines = _bounds(cls, field)
    if field.kind == PROPERTIES:
        return [*lines, "key, value = pair(data, at, stop)", f"f_{field.name}[key] = value", "at = stop"]
    value = {
        STRING: "str(data[at:stop], 'utf-8', 'surrogateescape')",
        BYTES: "bytes(data[at:stop])",
        MESSAGE: f"decode_{field.name}(data, at, stop)",
    }[field.kind]
    return [*lines, _store(field, value), "at = stop"]


def _read_packed(cls: type[Any], field: FieldOfMessage) -> list[str]:
    loop = ["while at < stop:", *_indented(_read_number(field), 1)]
    return [
        *_bounds(cls, field),
        *loop,
        "if at != stop:",
        f"    raise DecodeError({f'{cls.__name__}: field {field.name} ends within a number'!r})",
    ]


def _indented(lines: list[str], levels: int) -> list[str]:
    return ["    " * levels + line for line in lines]
