"""What is private to grpcio is used in `lbclient/grpc_seam`, and nowhere else."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from lbclient.grpc_seam.private import COSTS
from tests.private_names import names_in, without

PACKAGE = Path(__file__).parents[2] / "lbclient"
SEAM = PACKAGE / "grpc_seam"
INSIDE = sorted(SEAM.rglob("*.py"))
OUTSIDE = sorted(
    path
    for path in PACKAGE.rglob("*.py")
    if SEAM not in path.parents and "v1" not in path.parts
)


def own_names(tree: ast.AST) -> Iterator[str]:
    """What a module of ours calls something of its own."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name
        elif isinstance(node, ast.AnnAssign | ast.Assign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in (part for whole in targets for part in ast.walk(whole)):
                if isinstance(target, ast.Attribute):
                    if isinstance(target.value, ast.Name) and target.value.id == "self":
                        yield target.attr
                elif isinstance(target, ast.Name):
                    yield target.id


PRIVATE = {name for path in INSIDE for name in names_in(path.read_text())}
OURS = {name for path in OUTSIDE for name in own_names(ast.parse(path.read_text()))}


def private_imports(tree: ast.AST) -> list[str]:
    names = [
        alias.name
        for n in ast.walk(tree)
        if isinstance(n, ast.Import)
        for alias in n.names
    ]
    names += [
        f"{node.module}.{alias.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    ]
    return [name for name in names if re.match(r"grpc\.(\w+\.)*_", name)]


def test_what_is_looked_for_is_found() -> None:
    assert {
        "_cython_call",
        "cygrpc",
        "UnaryUnaryCall",
        "_active_calls",
    } <= PRIVATE - OURS


@pytest.mark.parametrize(
    "path", OUTSIDE, ids=lambda path: str(path.relative_to(PACKAGE))
)
def test_no_private_name_of_grpcio_is_used_elsewhere(path: Path) -> None:
    tree = ast.parse(path.read_text())
    assert private_imports(tree) == []
    used = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    used = {name for name in used if name.startswith("_")}  # of `self`, too
    used |= names_in(path.read_text())
    assert used & (PRIVATE - OURS) == set()


def test_each_name_has_a_price() -> None:
    assert {name for path in COSTS for name in re.split("[.:]", path)} - {
        "grpc",
        "aio",
    } == PRIVATE


def test_a_use_is_found_in_each_form() -> None:
    source = """
from grpc.aio._call import UnaryUnaryCall
from grpc._cython import cygrpc
attrgetter("_cython_call._status")
call._preparation, self._queue, call._lbclient, call._channel.check(1)
"""
    assert names_in(source) == {
        *("_call", "UnaryUnaryCall", "_cython", "cygrpc", "_cython_call", "_status"),
        *("_preparation", "_channel", "check"),
    }
    assert "call._channel.check_gone(1)" in ast.unparse(without(source, "check"))
