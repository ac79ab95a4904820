"""Read Kafka's `Errors` from its class file, without Java: a subset of the format (JVM specification, chapter 4)."""

from __future__ import annotations

import struct
from typing import Any, NamedTuple
from zipfile import ZipFile

ERRORS = "org/apache/kafka/common/protocol/Errors"
RETRIABLE = "org/apache/kafka/common/errors/RetriableException"

# formats of the constants that consist of numbers, by tag
_CONSTANTS = {3: ">i", 4: ">f", 5: ">q", 6: ">d", 7: ">H", 8: ">H", 9: ">HH", 10: ">HH", 11: ">HH", 12: ">HH"}
_CONSTANTS |= {15: ">BH", 16: ">H", 17: ">HH", 18: ">HH", 19: ">H", 20: ">H"}
_INVOKE_CONSTRUCTOR = 8


class Error(NamedTuple):
    """One constant of `Errors`; `exception` is its class name, None for `NONE`."""

    code: int
    name: str
    exception: str | None


class ClassFile:
    """A parsed class: constants, superclass, code of the methods, and the methods called by its lambdas."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 8
        self._constants: list[Any] = [None]
        self._read_constants()
        self._take(">HH")
        (parent,) = self._take(">H")
        self.parent = self._class_name(parent) if parent else None
        (interfaces,) = self._take(">H")
        self._position += 2 * interfaces
        self.code: dict[str, bytes] = {}
        self.lambdas: list[tuple[int, ...]] = []
        for _ in range(2):  # fields, methods
            for _ in range(self._take(">H")[0]):
                _, name, _ = self._take(">HHH")
                self._read_attributes(self._constants[name])
        self._read_attributes("")

    def _take(self, form: str) -> tuple[Any, ...]:
        values = struct.unpack_from(form, self._data, self._position)
        self._position += struct.calcsize(form)
        return values

    def _read_constants(self) -> None:
        (count,) = self._take(">H")
        while len(self._constants) < count:
            (tag,) = self._take(">B")
            if tag == 1:
                (length,) = self._take(">H")
                text = self._data[self._position : self._position + length]
                self._constants.append(text.decode("utf-8", "replace"))
                self._position += length
                continue
            self._constants.append(self._take(_CONSTANTS[tag]))
            if tag in (5, 6):  # long and double take two entries
                self._constants.append(None)

    def _read_attributes(self, owner: str) -> None:
        for _ in range(self._take(">H")[0]):
            name, length = self._take(">HI")
            end = self._position + length
            if self._constants[name] == "Code":
                _, _, size = self._take(">HHI")
                self.code[owner] = self._data[self._position : self._position + size]
            elif self._constants[name] == "BootstrapMethods":
                for _ in range(self._take(">H")[0]):
                    _, arguments = self._take(">HH")
                    self.lambdas.append(self._take(f">{arguments}H"))
            self._position = end

    def _class_name(self, index: int) -> str:
        return self._constants[self._constants[index][0]]

    def text(self, index: int) -> str:
        """Return the string constant at `index`."""
        return self._constants[self._constants[index][0]]

    def constructed_by(self, call_site: int) -> str | None:
        """Return the class whose constructor an `invokedynamic` constant refers to, or None."""
        bootstrap, _ = self._constants[call_site]
        kind, method = self._constants[self.lambdas[bootstrap][1]]
        return self._class_name(self._constants[method][0]) if kind == _INVOKE_CONSTRUCTOR else None


def read_errors(jar: ZipFile) -> list[Error]:
    """Return the constants of Kafka's `Errors`, from the instructions of its static initializer."""
    file = ClassFile(jar.read(f"{ERRORS}.class"))
    code, position = file.code["<clinit>"], 0
    errors: list[Error] = []
    texts: list[str] = []
    numbers: list[int] = []
    exception = None
    while code[position] != _INVOKESTATIC:  # the call that ends the list of constants
        instruction, argument = code[position], code[position + 1 : position + 3]
        if instruction in (0x12, 0x13):  # ldc, ldc_w
            texts.append(file.text(argument[0] if instruction == 0x12 else int.from_bytes(argument)))
        elif 0x02 <= instruction <= 0x08:  # iconst_m1 … iconst_5
            numbers.append(instruction - 3)
        elif instruction == 0x10:  # bipush
            numbers.append(int.from_bytes(argument[:1], signed=True))
        elif instruction == 0x11:  # sipush
            numbers.append(int.from_bytes(argument, signed=True))
        elif instruction == 0xBA:  # invokedynamic
            exception = file.constructed_by(int.from_bytes(argument))
        elif instruction == 0xB3:  # putstatic: stores the constant made from ordinal, code and name
            errors.append(Error(numbers[1], texts[0], exception))
            texts, numbers = [], []
        position += _LENGTHS[instruction]
    return errors


_INVOKESTATIC = 0xB8
_LENGTHS = dict.fromkeys(range(0x01, 0x09), 1) | {0x10: 2, 0x11: 3, 0x12: 2, 0x13: 3, 0x59: 1}
_LENGTHS |= {0xB3: 3, 0xB7: 3, 0xBA: 5, 0xBB: 3}


def is_retriable(jar: ZipFile, exception: str | None) -> bool:
    """Whether an exception class of Kafka derives from `RetriableException`."""
    while exception is not None and exception != RETRIABLE:
        if not exception.startswith("org/apache/kafka/"):
            return False
        exception = ClassFile(jar.read(f"{exception}.class")).parent
    return exception is not None
