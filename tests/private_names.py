"""Which private names of grpcio a module uses, found in its syntax tree.

Private is what begins with an underscore, in a module's path, as an attribute of
anything but `self`, or in a text such as `"grpc.aio._call:UnaryUnaryCall"`; and what
is asked of something private. Ours on grpcio's objects begin with `_lbclient`.
"""

import ast
import re
from collections.abc import Iterator

_PATH = re.compile(r"[A-Za-z_]\w*(?:[.:][A-Za-z_]\w*)*")
Node = ast.Attribute | ast.Constant | ast.ImportFrom


def is_private(name: str) -> bool:
    ours = name.startswith(("__", "_lbclient"))
    return len(name) > 1 and name.startswith("_") and not ours


def of_path(path: str) -> list[str]:
    """The first private name in a path, and all behind it.

    >>> of_path("grpc.aio._call:UnaryUnaryCall"), of_path("grpc.aio"), of_path("_")
    (['_call', 'UnaryUnaryCall'], [], [])
    """
    names = re.split("[.:]", path) if _PATH.fullmatch(path) else []
    found = [is_private(name) for name in names]
    return names[found.index(True) :] if any(found) else []


def of_attribute(node: ast.expr) -> list[str]:
    """As `of_path`, of `call._cython_call.cancel`; `self._queue` is one's own."""
    if not isinstance(node, ast.Attribute):
        return []
    before = of_attribute(node.value)
    is_own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
    return (
        [*before, node.attr] if before or (is_private(node.attr) and not is_own) else []
    )


def uses(tree: ast.AST) -> Iterator[tuple[Node, list[str]]]:
    """Each node that speaks of private names, and which."""
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Attribute):
            names = of_attribute(node)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names = of_path(node.value)
        elif isinstance(node, ast.ImportFrom) and of_path(f"{node.module}"):
            names = [*of_path(f"{node.module}"), *(name.name for name in node.names)]
        elif isinstance(node, ast.ImportFrom) and node.module in ("grpc", "grpc.aio"):
            names = [name.name for name in node.names if is_private(name.name)]
        if names:
            assert isinstance(node, Node)
            yield node, names


def names_in(source: str) -> set[str]:
    return {name for _, names in uses(ast.parse(source)) for name in names}


def without(source: str, missing: str) -> ast.Module:
    """The module, in which a private name is one that grpcio does not have."""
    tree = ast.parse(source)
    gone = f"{missing}_gone"
    # First found, then changed: what is private is told by the name.
    for node, names in list(uses(tree)):
        if missing not in names:
            continue
        if isinstance(node, ast.Attribute):
            node.attr = gone if node.attr == missing else node.attr
        elif isinstance(node, ast.Constant):
            node.value = re.sub(rf"\b{missing}\b", gone, str(node.value))
        else:
            node.module = re.sub(rf"\b{missing}\b", gone, str(node.module))
            for alias in node.names:
                if alias.name == missing:
                    alias.name, alias.asname = gone, missing
    return tree
