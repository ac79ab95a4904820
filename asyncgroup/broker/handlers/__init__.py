"""The request handlers of a broker: an API is one module, which registers itself.

Such a module has `handle` and `error_response` (see `ApiHandler`), the first and last of its `VERSIONS`, and a call
of `register`. The first line of its docstring names the API, its key and its versions. The other modules are what
several of them share.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from asyncgroup.broker.handlers.registry import HANDLERS, check_all_registered

__all__ = ["HANDLERS"]

for _module in iter_modules(__path__, f"{__name__}."):
    import_module(_module.name)

check_all_registered(HANDLERS)
