"""What a package index shows of the project: its addresses, and README.md with links.

A link to a file of the repository works in the repository alone. Where pyproject.toml
says at which address others find that, each of these links is made a whole one, and
`project.urls` are told. Where it says none, a link or a picture becomes its
text, so that an index shows no link that leads nowhere.
"""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

LINK = re.compile(r"(!?)\[([^]]*)\]\(([^)\s:#]+)((?:#[^)\s]*)?)\)")
NOTE = "\nThe pages of documentation that this one names are in the source archive.\n"


class ForIndex(MetadataHookInterface):
    def update(self, metadata: dict[str, Any]) -> None:
        repository = self.config["repository"].rstrip("/")
        text = (Path(self.root) / "README.md").read_text()
        metadata["readme"] = {
            "content-type": "text/markdown",
            "text": readme(text, repository),
        }
        metadata["urls"] = urls(repository)


def readme(text: str, repository: str) -> str:
    """README.md for who reads it elsewhere than in the repository."""

    def rewrite(match: re.Match[str]) -> str:
        is_picture, words, path, anchor = match.groups()
        if repository:
            of_what = "raw" if is_picture else "blob"
            address = f"{repository}/{of_what}/main/{path}{anchor}"
            return f"{is_picture}[{words}]({address})"
        return f"*{words}*" if is_picture else words

    return LINK.sub(rewrite, text) + ("" if repository else NOTE)


def urls(repository: str) -> dict[str, str]:
    if not repository:
        return {}
    return {
        "Source": repository,
        "Documentation": f"{repository}/tree/main/docs",
        "Changelog": f"{repository}/blob/main/CHANGELOG.md",
        "Security": f"{repository}/blob/main/SECURITY.md",
    }
