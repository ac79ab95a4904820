"""A frozen program with the embedded broker contains all its request handlers."""

from pkgutil import iter_modules

from asyncgroup.broker import handlers

hiddenimports = [module.name for module in iter_modules(handlers.__path__, f"{handlers.__name__}.")]
