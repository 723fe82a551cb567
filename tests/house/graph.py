"""Which file of the package imports which, read from the source.

Imports in functions and in type-checking blocks count: whoever reads a file follows
them all. That a package runs before its modules does not.
"""

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "lbclient"

Graph = Mapping[str, frozenset[str]]
"""By dotted name, what a module imports."""


def modules() -> dict[str, Path]:
    """All of the package, by dotted name."""
    return {name_of(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def name_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(source: str) -> Iterator[str]:
    """Every name that is imported, in functions and type-checking blocks too."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            package = "." * node.level + (node.module or "")
            yield from (f"{package}.{alias.name}" for alias in node.names)


def import_graph() -> Graph:
    known = modules()
    return {
        name: frozenset(
            module
            for imported in imports(path.read_text())
            if (module := module_of(imported, known)) and module != name
        )
        for name, path in known.items()
    }


def module_of(imported: str, known: Mapping[str, object]) -> str:
    """The module that a name is, or is in; '' if that is none of ours.

    >>> module_of("lbclient.core.model.State", {"lbclient.core.model": ...})
    'lbclient.core.model'
    """
    while imported and imported not in known:
        imported = imported.rpartition(".")[0]
    return imported


def circles(graph: Graph) -> list[list[str]]:
    """Modules that reach themselves, each group of them in alphabetical order.

    >>> circles({"a": frozenset("b"), "b": frozenset("c"), "c": frozenset("b")})
    [['b', 'c']]
    """
    reached = {name: _reach(graph, name) for name in graph}
    groups = {
        tuple(sorted(other for other in reached[name] if name in reached[other]))
        for name in graph
        if name in reached[name]
    }
    return sorted(map(list, groups))


def _reach(graph: Graph, start: str) -> set[str]:
    """Everything that `start` imports, and what that imports."""
    seen: set[str] = set()
    left = list(graph[start])
    while left:
        name = left.pop()
        if name not in seen:
            seen.add(name)
            left += graph[name]
    return seen
