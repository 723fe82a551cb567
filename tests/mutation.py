"""Mutates the modules that decide, and says which mutants no test notices.

    python -m tests.mutation                      30 mutants of each module
    python -m tests.mutation core/retries/retry.py --most 200

A mutant is a module with one change in its syntax tree: another comparison, the other
branch, a number that is one more, a condition that always holds, a result that is
dropped. Its module's tests run on it, each mutant in a process of its own, until one
fails. A survivor is code that can be wrong unnoticed: it wants a test, or a reason.
"""

import argparse
import ast
import copy
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "lbclient"
LIMIT = 120.0  # seconds of a mutant's tests; one that hangs is noticed

# The deciding modules, and the tests that hold each.
MODULES = {
    "core/retries/retry.py": "tests/unit/test_retry.py tests/laws/test_retry.py",
    "core/throttles/throttle.py": "tests/unit/test_throttle.py"
    " tests/laws/test_throttle.py",
    "core/backends/lifecycle.py": "tests/unit/test_lifecycle.py"
    " tests/laws/test_lifecycle.py",
    "core/backends/silence.py": "tests/unit/test_lifecycle.py"
    " tests/laws/test_lifecycle.py"
    " tests/loop/test_health_watch.py tests/loop/test_balancer.py",
    "core/backends/pool.py": "tests/unit/test_pool.py tests/laws/test_pool.py",
    "core/overload/admission.py": "tests/unit/test_admission.py"
    " tests/laws/test_admission.py",
    "core/quotas/quota.py": "tests/unit/test_quota.py tests/laws/test_quota.py",
    "core/retries/hedging.py": "tests/unit/test_hedging.py",
    "core/retries/ending.py": "tests/unit/test_ending.py",
    "client/pending.py": "tests/loop/test_balancer.py",
}

OTHER: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult,
}  # fmt: skip


def changes(node: ast.AST) -> Iterator[str]:
    """What can be changed about a node."""
    match node:
        case ast.Compare() if type(node.ops[0]) in OTHER:
            yield "comparison"
        case ast.BoolOp() | ast.BinOp() | ast.AugAssign() if type(node.op) in OTHER:
            yield "operator"
        case ast.UnaryOp(op=ast.Not()):
            yield "not"
        case ast.Constant(value=bool()):
            yield "flip"
        case ast.Constant(value=int() | float()):
            yield "number"
        case ast.If():
            yield "always"
            yield "never"
        case ast.Return(value=ast.expr()):
            yield "nothing"


def apply(node: ast.AST, change: str) -> ast.AST:
    """The changed node, in its place; the tree is a copy."""
    if isinstance(node, ast.Compare):
        node.ops = [OTHER[type(node.ops[0])](), *node.ops[1:]]  # type: ignore[list-item]
    elif isinstance(node, ast.BoolOp | ast.BinOp | ast.AugAssign):
        node.op = OTHER[type(node.op)]()  # type: ignore[assignment]
    elif isinstance(node, ast.UnaryOp):
        return node.operand
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        node.value = not node.value
    elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        node.value += 1
    elif isinstance(node, ast.If):
        node.test = ast.copy_location(ast.Constant(change == "always"), node.test)
    elif isinstance(node, ast.Return):
        node.value = None
    return node


class Swap(ast.NodeTransformer):
    """Changes the node of that number."""

    def __init__(self, number: int, change: str) -> None:
        self._left = number
        self._change = change

    def visit(self, node: ast.AST) -> ast.AST:
        self._left -= 1
        if self._left == -1:
            return apply(node, self._change)
        self.generic_visit(node)
        return node


def in_order(tree: ast.AST) -> Iterator[ast.AST]:
    """As `Swap` visits them: a node before those in it."""
    yield tree
    for child in ast.iter_child_nodes(tree):
        yield from in_order(child)


def mutants(source: str) -> list[tuple[int, str, int]]:
    """Number of the node, change, and line; not of what only names types."""
    found = []
    tree = ast.parse(source)
    hints = {
        id(inner)
        for node in ast.walk(tree)
        for hint in (getattr(node, "annotation", None), getattr(node, "returns", None))
        if hint is not None
        for inner in ast.walk(hint)
    }
    for number, node in enumerate(in_order(tree)):
        if id(node) not in hints:
            line = getattr(node, "lineno", 0)
            found += [(number, change, line) for change in changes(node)]
    return found


def mutated(source: str, number: int, change: str) -> ast.Module:
    tree = Swap(number, change).visit(copy.deepcopy(ast.parse(source)))
    assert isinstance(tree, ast.Module)
    return ast.fix_missing_locations(tree)


def is_noticed(module: str, number: int, change: str) -> bool:
    command = [sys.executable, "-m", "tests.mutation", module]
    command += ["--run", str(number), change]
    environ = {**os.environ, "HYPOTHESIS_STORAGE_DIRECTORY": "/tmp/lbclient-mutation"}
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=environ, capture_output=True, timeout=LIMIT
        )
    except subprocess.TimeoutExpired:
        return True
    return done.returncode != 0


def run_tests(module: str, number: int, change: str) -> int:
    """In the mutant's process."""
    import pytest

    from tests.worlds.planting import plant_tree

    path = PACKAGE / module
    plant_tree(path, mutated(path.read_text(), number, change))
    quiet = ["-q", "-x", "--no-header", "-p", "no:cacheprovider"]
    profile = "--hypothesis-profile=quick"
    return int(pytest.main([*quiet, profile, *MODULES[module].split()]))


def try_module(module: str, most: int, seed: int) -> None:
    source = (PACKAGE / module).read_text()
    lines = source.splitlines()
    every = mutants(source)
    some = Random(f"{seed} {module}").sample(every, min(most, len(every)))
    survivors = [one for one in some if not is_noticed(module, *one[:2])]
    noticed = len(some) - len(survivors)
    print(f"{module}: {noticed} of {len(some)} noticed ({len(every)} in all)")
    for _, change, line in sorted(survivors, key=lambda one: one[2]):
        print(f"    line {line}, {change}: {lines[line - 1].strip()}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("modules", nargs="*", help="in lbclient/; all that decide")
    parser.add_argument("--most", type=int, default=30, help="mutants of a module")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--run", nargs=2, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.run is not None:
        return run_tests(asked.modules[0], int(asked.run[0]), asked.run[1])
    for module in asked.modules or MODULES:
        try_module(module, asked.most, asked.seed)
    return 0


if __name__ == "__main__":
    sys.exit(main())
