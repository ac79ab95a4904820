"""Build hook: the long description of the distributions is the README, without what works in the repository only.

Links to files lead to the repository at the tag of the version if `[project.urls]` of pyproject.toml names it as
`Source`. Without that address there is no place for them to lead to: the text names the pages, and says that the package
contains them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from hatchling.metadata.plugin.interface import MetadataHookInterface

__all__ = ["LongDescription", "long_description"]

_LINK: Final = re.compile(r"\[([^\]]+)\]\((?!https?:)([^)\s#]+)(#[^)\s]*)?\)")
_PAGE: Final = "asyncgroup/guide/"
_HINT: Final = (
    "The pages that are named in parentheses, such as `getting-started.md`, come with the package, in its directory "
    f"`{_PAGE.rstrip('/')}`.\n\n"
)


class LongDescription(MetadataHookInterface):
    """Fills in the field `readme`."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add the field to the metadata, which contain the version."""
        readme = Path(self.root, "README.md").read_text(encoding="utf-8")
        text = long_description(readme, metadata.get("urls", {}), metadata["version"])
        metadata["readme"] = {"content-type": "text/markdown", "text": text}


def long_description(readme: str, urls: Mapping[str, str], version: str) -> str:
    """Return the README for readers without the repository. Raises ValueError for a link that it cannot replace."""
    text = re.sub(r"^\$ pip install -e '\.\[test\]' && pytest\n", "", readme, flags=re.MULTILINE)
    text = re.sub(r"-e '\.\[(\w+)\]'", r"'asyncgroup[\1]'", text)
    if source := urls.get("Source"):
        return _LINK.sub(rf"[\1]({source.rstrip('/')}/blob/v{version}/\2\3)", text)
    for _, target, _ in _LINK.findall(text):
        if not target.startswith(_PAGE):
            raise ValueError(
                f"README.md: {target} is not a page of the guide, and there is no address for it"
            )
    introduction, heading, rest = _LINK.sub(_named, text).partition("\n## ")
    return f"{introduction}\n{_HINT}{heading.lstrip()}{rest}"


def _named(link: re.Match[str]) -> str:
    return f"{link[1]} (`{link[2].removeprefix(_PAGE)}`)"
