"""The Dockerfile and the manifests of the page "In production"."""

from __future__ import annotations

import json
import re
from typing import Any, Final

import yaml

from tests.guide.pages import blocks

__all__ = ["dockerfile", "entry_point", "manifests"]

PAGE: Final = "in-production"


def dockerfile() -> str:
    """Return the Dockerfile, with continued lines as one."""
    (text,) = blocks(PAGE, "dockerfile")
    return text.replace("\\\n", "")


def entry_point() -> list[str]:
    """Return the words of its entry point, which has the form with brackets: no shell is in front."""
    (words,) = re.findall(r"^ENTRYPOINT (.*)$", dockerfile(), re.MULTILINE)
    return [str(word) for word in json.loads(words)]


def manifests() -> list[Any]:
    """Return the YAML blocks, read."""
    return [yaml.safe_load(text) for text in blocks(PAGE, "yaml")]
