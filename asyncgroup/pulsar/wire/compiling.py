"""Compile the functions that encode and decode a message from its fields.

A compiled function has one branch per field with the field's tag as a constant; varints of one and two bytes, which are
most of them, are read and written in place. Unknown fields are skipped, fields may come in any order, and repeated
numbers may be packed, as protobuf's rules for readers say.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from asyncgroup.errors import DecodeError
from asyncgroup.pulsar.wire.fields import (
    BOOL,
    BYTES,
    INT32,
    INT64,
    MESSAGE,
    PROPERTIES,
    STRING,
    UINT32,
    UINT64,
    FieldOfMessage,
    fields_of,
)
from asyncgroup.pulsar.wire.varint import (
    decode_pair,
    decode_text,
    encode_text,
    put_int32,
    put_int64,
    put_uint32,
    put_varint,
    read_more,
    skip_field,
)

__all__ = ["CompiledMessage", "compile_message", "compile_writer"]

_DELIMITED: Final = {STRING, BYTES, MESSAGE, PROPERTIES}
_SIGN: Final = 1 << 63
_LONG: Final = {INT32: "put_int32", INT64: "put_int64", UINT32: "put_uint32", UINT64: "put_varint"}
"""What writes numbers of more than two bytes, and refuses those that do not fit."""

_HELPERS: Final = {
    "DecodeError": DecodeError,
    "decode_text": decode_text,
    "encode_text": encode_text,
    "new": object.__new__,
    "pair": decode_pair,
    "put_int32": put_int32,
    "put_int64": put_int64,
    "put_uint32": put_uint32,
    "put_varint": put_varint,
    "read_more": read_more,
    "skip": skip_field,
}


class CompiledMessage(NamedTuple):
    """The functions of a class of messages."""

    encode: Callable[[Any, bytearray], None]
    """Appends the fields of a message."""
    decode: Callable[..., Any]
    """Returns the message in `data` from `at` to `end`. Raises DecodeError, and IndexError where the data ends too early."""


def compile_message(cls: type[Any]) -> CompiledMessage:
    """Return the functions of a class."""
    fields = fields_of(cls)
    names: dict[str, Any] = {"cls": cls, **_HELPERS}
    for field in fields:
        if field.message not in (None, cls):
            inner = compile_message(field.message)
            names[f"encode_{field.name}"], names[f"decode_{field.name}"] = inner
    source = [*_encoder(fields), *_decoder(cls, fields)]
    source += [
        f"encode_{field.name}, decode_{field.name} = encode, decode"
        for field in fields
        if field.message is cls
    ]
    exec(compile("\n".join(source), f"<{cls.__name__}>", "exec"), names)  # noqa: S102  # our own text
    return CompiledMessage(names["encode"], names["decode"])


def compile_writer(cls: type[Any]) -> Callable[..., None]:
    """Return a function that appends the fields given to it by keyword, as `encode` does for those of a message.

    It saves making the message. The class has no fields that are messages.
    """
    fields = fields_of(cls)
    arguments = [field.name for field in fields if field.required]
    arguments += [f"{field.name}={_initial(field)}" for field in fields if not field.required]
    lines = [f"def write(out, *, {', '.join(arguments)}):", "    append = out.append"]
    for field in fields:
        lines += _indented(_put_field(field, field.name), 1)
    names: dict[str, Any] = dict(_HELPERS)
    exec(compile("\n".join(lines), f"<writer of {cls.__name__}>", "exec"), names)  # noqa: S102  # our own text
    write: Callable[..., None] = names["write"]
    return write


# --- encoding -----------------------------------------------------------------------------------------------------------


def _encoder(fields: list[FieldOfMessage]) -> list[str]:
    lines = ["def encode(message, out):", "    append = out.append"]
    for field in fields:
        lines.append(f"    _value = message.{field.name}")
        lines += _indented(_put_field(field, "_value"), 1)
    return lines


def _put_field(field: FieldOfMessage, name: str) -> list[str]:
    if field.kind == PROPERTIES:
        return [f"for _key, _text in {name}.items():", *_indented(_put_pair(field), 1)]
    if field.repeated:
        return [f"for _item in {name}:", *_indented(_put(field, "_item"), 1)]
    if field.required:
        return _put(field, name)
    condition = "is not None" if field.default is None else f"!= {field.default!r}"
    return [f"if {name} {condition}:", *_indented(_put(field, name), 1)]


def _put(field: FieldOfMessage, name: str) -> list[str]:
    tag = _tag(field)
    if field.kind == BOOL:
        return [_append(tag), f"append(1 if {name} else 0)"]
    if field.kind not in _DELIMITED:
        return [_append(tag), *_put_number(name, _LONG[field.kind])]
    if field.kind == STRING:
        lines = _to_bytes(name, "_data")
    elif field.kind == BYTES:
        lines = [f"_data = {name}"]
    else:
        lines = ["_data = bytearray()", f"encode_{field.name}({name}, _data)"]
    return [*lines, "_size = len(_data)", _append(tag), *_put_number("_size", "put_uint32"), "out += _data"]


def _put_pair(field: FieldOfMessage) -> list[str]:
    return [
        *_to_bytes("_key", "_key"),
        *_to_bytes("_text", "_text"),
        "_size = len(_key)",
        "_more = len(_text)",
        _append(_tag(field)),
        "if _size + _more < 124:",  # all sizes have one byte
        "    append(_size + _more + 4)",
        "    append(0x0A)",
        "    append(_size)",
        "    out += _key",
        "    append(0x12)",
        "    append(_more)",
        "    out += _text",
        "else:",
        "    _data = bytearray(b'\\n')",
        "    put_uint32(_data, _size)",
        "    _data += _key",
        "    _data.append(0x12)",
        "    put_uint32(_data, _more)",
        "    _data += _text",
        "    put_uint32(out, len(_data))",
        "    out += _data",
    ]


def _to_bytes(name: str, target: str) -> list[str]:
    return [
        "try:",
        f"    {target} = {name}.encode()",  # half the time of encode_text
        "except UnicodeEncodeError:",
        f"    {target} = encode_text({name})",
    ]


def _put_number(name: str, long: str) -> list[str]:
    return [
        f"if 0 <= {name} < 128:",
        f"    append({name})",
        f"elif 128 <= {name} < 16384:",
        f"    append({name} & 127 | 128)",
        f"    append({name} >> 7)",
        "else:",
        f"    {long}(out, {name})",
    ]


def _append(tag: bytes) -> str:
    return f"append({tag[0]})" if len(tag) == 1 else f"out += {tag!r}"


def _tag(field: FieldOfMessage) -> bytes:
    out = bytearray()
    put_varint(out, _tag_number(field))
    return bytes(out)


def _tag_number(field: FieldOfMessage) -> int:
    return field.number << 3 | (2 if field.kind in _DELIMITED else 0)


# --- decoding -----------------------------------------------------------------------------------------------------------


def _decoder(cls: type[Any], fields: list[FieldOfMessage]) -> list[str]:
    lines = ["def decode(data, at, end):"]
    lines += [f"    f_{field.name} = {_initial(field)}" for field in fields]
    lines += [
        "    while at < end:",
        "        tag = data[at]",
        "        at += 1",
        "        if tag > 127:",
        "            tag, at = read_more(data, at, tag)",
        *_indented(_choose(_branches(cls, fields)), 2),
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


def _branches(cls: type[Any], fields: list[FieldOfMessage]) -> list[tuple[int, list[str]]]:
    """Return what is done for each tag, in the order of the tags."""
    found = []
    for field in fields:
        tag = _tag_number(field)
        if field.kind in _DELIMITED:
            found.append((tag, _read(cls, field)))
        else:
            found.append((tag, _read_number(field)))
            if field.repeated:
                found.append((tag + 2, _read_packed(cls, field)))
    return found


def _choose(branches: list[tuple[int, list[str]]]) -> list[str]:
    """Return a binary search for the tag: messages have up to 30 fields."""
    if len(branches) <= 3:
        lines = []
        for number, (tag, branch) in enumerate(branches):
            lines += [f"{'elif' if number else 'if'} tag == {tag}:", *_indented(branch, 1)]
        unknown = "at = skip(data, at, end, tag)"
        return [*lines, "else:", f"    {unknown}"] if lines else [unknown]
    half = len(branches) // 2
    return [
        f"if tag < {branches[half][0]}:",
        *_indented(_choose(branches[:half]), 1),
        "else:",
        *_indented(_choose(branches[half:]), 1),
    ]


def _initial(field: FieldOfMessage) -> str:
    if field.kind == PROPERTIES:
        return "{}"
    return "()" if field.repeated else repr(field.default)


def _store(field: FieldOfMessage, value: str) -> str:
    name = f"f_{field.name}"
    return f"{name} = {name} or []; {name}.append({value})" if field.repeated else f"{name} = {value}"


def _varint(name: str, after: list[str]) -> list[str]:
    """Return what reads a varint; `after` follows where it may have more than two bytes."""
    return [
        f"{name} = data[at]",
        "at += 1",
        f"if {name} > 127:",
        "    more = data[at]",
        "    if more < 128:",
        "        at += 1",
        f"        {name} += (more - 1) << 7",  # less the bit that announces the second byte
        "    else:",
        f"        {name}, at = read_more(data, at, {name})",
        *_indented(after, 2),
    ]


def _read_number(field: FieldOfMessage) -> list[str]:
    lines = _varint("value", _fit(field))
    return [*lines, _store(field, "value != 0" if field.kind == BOOL else "value")]


def _fit(field: FieldOfMessage) -> list[str]:
    if field.kind == INT64:
        return [f"if value >= {_SIGN}:", f"    value -= {_SIGN << 1}"]
    if field.kind == INT32:  # the low half counts
        return ["if value > 0x7FFFFFFF:", "    value = ((value & 0xFFFFFFFF) ^ 0x80000000) - 0x80000000"]
    if field.kind == UINT32:
        return ["value &= 0xFFFFFFFF"]
    return []


def _bounds(cls: type[Any], field: FieldOfMessage) -> list[str]:
    return [
        *_varint("stop", []),
        "stop += at",
        "if stop > end:",
        f"    raise DecodeError({f'{cls.__name__}: field {field.name} ends after its message'!r})",
    ]


def _read(cls: type[Any], field: FieldOfMessage) -> list[str]:
    lines = _bounds(cls, field)
    if field.kind == PROPERTIES:
        return [*lines, "key, value = pair(data, at, stop)", f"f_{field.name}[key] = value", "at = stop"]
    if field.kind == STRING:
        lines += ["try:", "    value = data[at:stop].decode()"]  # half the time of decode_text
        lines += ["except UnicodeDecodeError:", "    value = decode_text(data[at:stop])"]
    elif field.kind == BYTES:
        lines.append("value = bytes(data[at:stop])")
    else:
        lines.append(f"value = decode_{field.name}(data, at, stop)")
    return [*lines, _store(field, "value"), "at = stop"]


def _read_packed(cls: type[Any], field: FieldOfMessage) -> list[str]:
    return [
        *_bounds(cls, field),
        "while at < stop:",
        *_indented(_read_number(field), 1),
        "if at != stop:",
        f"    raise DecodeError({f'{cls.__name__}: field {field.name} ends within a number'!r})",
    ]


def _indented(lines: list[str], levels: int) -> list[str]:
    return ["    " * levels + line for line in lines]
