"""docs/api.md has every name that another page tells readers to use."""

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).parents[2]
# Its table names inner modules on purpose, as do those that say where a rule is kept.
INNER = ("api.md", "moved.md", "security.md")
PROGRAM = re.compile(r"```python\n(.*?)```", re.DOTALL)
SPAN = re.compile(r"`(lbclient(?:\.\w+)+)(?:\(\))?`")
LISTED = re.compile(r"^::: (lbclient[\w.]+)", re.MULTILINE)


def find(path: str) -> Any:
    """What has this dotted path; None if there is no such thing."""
    names = path.split(".")
    found: Any = importlib.import_module(names[0])
    for place, name in enumerate(names[1:], start=1):
        if not hasattr(found, name):
            if not isinstance(found, ModuleType):
                return None
            try:
                importlib.import_module(".".join(names[: place + 1]))
            except ImportError:
                return None
        found = getattr(found, name)
    return found


def names_in(page: str) -> Iterator[str]:
    """What the programs of a page import of lbclient, and the names in its text."""
    yield from SPAN.findall(page)
    for program in PROGRAM.findall(page):
        try:
            tree = ast.parse(program)
        except SyntaxError:  # a piece of one
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module is not None:
                for alias in node.names:
                    yield f"{node.module}.{alias.name}"
            elif isinstance(node, ast.Attribute):
                path = ast.unparse(node)
                if re.fullmatch(r"lbclient(\.\w+)+", path):
                    yield path


def listed() -> list[Any]:
    """What the page shows, with what is in its modules and classes."""
    found = []
    for path in LISTED.findall((ROOT / "docs/api.md").read_text()):
        one = find(path)
        assert one is not None, f"docs/api.md has {path}, which does not exist"
        found.append(one)
        if isinstance(one, ModuleType | type):
            found += [value for name, value in vars(one).items() if name[0] != "_"]
    return found


def test_the_page_has_what_other_pages_use() -> None:
    shown = {id(one) for one in listed()}
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    missing = set()
    for page in pages:
        if page.name in INNER:
            continue
        for path in names_in(page.read_text()):
            if not path.startswith("lbclient."):
                continue
            one = find(path)
            if one is None or isinstance(one, ModuleType) or id(one) in shown:
                continue
            missing.add(f"{path} ({page.relative_to(ROOT)})")
    assert sorted(missing) == []
