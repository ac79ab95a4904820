"""Load the handler of `asyncgroup work` from a module by name."""

from __future__ import annotations

import argparse
import importlib
import inspect
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from asyncgroup.checks import is_async
from asyncgroup.errors import AsyncGroupError
from asyncgroup.lifecycle import describe_error

if TYPE_CHECKING:
    from asyncgroup.workqueue.workers import DeliveryHandler

__all__ = ["HandlerName", "HandlerNotFound", "handler_name", "load_handler"]

_NAME: Final = re.compile(r"\w+(?:\.\w+)*:\w+(?:\.\w+)*")


class HandlerNotFound(AsyncGroupError):
    """The handler cannot be imported, or is not a function of the required kind."""

    _has_foreign_text = True


class HandlerName(NamedTuple):
    """The name of a function and of its module: `module:function`."""

    module: str
    function: str
    """With dots for an attribute of an object in the module."""

    def __str__(self) -> str:
        return f"{self.module}:{self.function}"


def handler_name(text: str) -> HandlerName:
    """Argument type: `module:function`."""
    if _NAME.fullmatch(text) is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not MODULE:FUNCTION, such as billing.orders:handle")
    return HandlerName(*text.split(":"))


def load_handler(name: HandlerName, *, plain: bool) -> DeliveryHandler:
    """Import the handler, with the working directory first on the module search path.

    With `plain` it is a plain function, and the result calls it in a thread. Raises HandlerNotFound.
    """
    from asyncgroup.workqueue import in_thread
    from asyncgroup.workqueue.workers import signature_error

    found = _attribute(_module(name), name)
    if inspect.isclass(found) or not callable(found):
        kind = "a class" if inspect.isclass(found) else f"of type {type(found).__name__}"
        raise HandlerNotFound(f"{name} is {kind}, not a function (delivery)")
    if (error := signature_error(found)) is not None:
        raise HandlerNotFound(f"{name} cannot be called with one argument, the delivery: {error}")
    if plain:
        if is_async(found):
            raise HandlerNotFound(f"{name} is a coroutine function: use it without --in-thread")
        return in_thread(found)
    if not is_async(found):
        raise HandlerNotFound(
            f"{name} is not a coroutine function: write `async def`, or use --in-thread to call it in threads"
        )
    handler: DeliveryHandler = found
    return handler


def _module(name: HandlerName) -> ModuleType:
    directory = str(Path.cwd())
    if directory not in sys.path:
        sys.path.insert(0, directory)
    try:
        return importlib.import_module(name.module)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name.module}.".startswith(f"{error.name}."):
            raise HandlerNotFound(
                f"there is no module {error.name!r} in {directory} or on the module search path"
            ) from error
        raise HandlerNotFound(f"the module {name.module!r} cannot be imported: {error}") from error
    except (Exception, SystemExit) as error:
        what = describe_error(error)
        raise HandlerNotFound(
            f"the module {name.module!r} cannot be imported: {what} (-v shows the traceback)"
        ) from error


def _attribute(module: ModuleType, name: HandlerName) -> Any:
    found: Any = module
    for part in name.function.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise HandlerNotFound(
                f"the module {name.module!r} ({module.__file__}) has no {name.function!r}"
            ) from None
    return found
