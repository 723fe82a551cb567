"""A hook of mkdocs: makes pages of what the documentation links to outside of docs/.

README.md is the home page. A source file that a page links to becomes a page that shows
it, a folder a page that lists its files, so that no link leaves the site.
"""

import ast
import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
# Pages of the root, by their names in the site.
HOME = {"index.md": "README.md"}
OTHERS = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
PAGES = HOME | dict(zip(OTHERS, OTHERS, strict=True))
LINK = re.compile(r"(\]\()([^)\s:#]+)((?:#[^)\s]*)?\))")
LANGUAGES = {".py": "python", ".yml": "yaml", ".yaml": "yaml", ".js": "javascript"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for uri, name in PAGES.items():
        text = (ROOT / name).read_text()
        files.append(File.generated(config, uri, content=text))
    for target in sorted(_linked_outside(files)):
        content = _show(target)
        files.append(File.generated(config, _source_page(target), content=content))
    return files


def on_page_markdown(
    markdown: str, page: Page, config: MkDocsConfig, files: Files
) -> str:
    uri = page.file.src_uri
    folder = posixpath.dirname(uri)

    def rewrite(match: re.Match[str]) -> str:
        link = _uri(_target(uri, match[2]))
        return match[1] + posixpath.relpath(link, folder or ".") + match[3]

    return LINK.sub(rewrite, markdown)


def _linked_outside(files: Files) -> set[str]:
    found = set()
    for page in files.documentation_pages():
        for _, link, _ in LINK.findall(page.content_string):
            target = _target(page.src_uri, link)
            if target not in PAGES.values() and not target.startswith("docs/"):
                found.add(target)
    return found


def _target(uri: str, link: str) -> str:
    """The path in the repository that `link` means on the page `uri`."""
    page = PAGES.get(uri, f"docs/{uri}")
    return posixpath.normpath(posixpath.join(posixpath.dirname(page), link))


def _uri(target: str) -> str:
    """The path in the site of a path in the repository."""
    for uri, name in PAGES.items():
        if target == name:
            return uri
    if target.startswith("docs/"):
        return target.removeprefix("docs/")
    return _source_page(target)


def _source_page(target: str) -> str:
    return f"source/{target}.md"


def _show(target: str) -> str:
    path = ROOT / target
    head = f"---\nsearch: {{exclude: true}}\n---\n\n# {target}\n\n"
    if path.is_dir():
        return head + "".join(
            f"- `{file.relative_to(ROOT)}`{_first_line(file)}\n"
            for file in sorted(path.rglob("*"))
            if file.is_file() and "__pycache__" not in file.parts
        )
    language = LANGUAGES.get(path.suffix, "text")
    return f"{head}````{language}\n{path.read_text()}\n````\n"


def _first_line(file: Path) -> str:
    if file.suffix != ".py":
        return ""
    said = ast.get_docstring(ast.parse(file.read_text()))
    return f": {said.splitlines()[0]}" if said else ""
