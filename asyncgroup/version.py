"""The version of the package, which the build, the commands and the clients read from here."""

__all__ = ["__version__"]

__version__ = "0.1.0"
