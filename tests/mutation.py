"""Mutates the modules that decide, and says which mutants no test notices.

    python -m tests.mutation                      30 mutants of each module
    python -m tests.mutation core/retries/retry.py --most 200

A mutant is a module with one change in its syntax tree: another comparison, the other
branch, a number that is one more, a condition that always holds, a result that is
dropped. Its module's tests run on it, each mutant in a process of its own, until one
fails. A survivor is code that can be wrong unnoticed: it wants a test, or a reason in
`tests/mutation.toml`. Those with a reason are counted, and the others printed.
"""

import argparse
import ast
import copy
import doctest
import os
import select
import signal
import sys
import time
import tomllib
from collections import Counter
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from random import Random

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "lbclient"
REASONS = Path(__file__).with_name("mutation.toml")  # why some mutants may survive
LIMIT = 120.0  # seconds of the tests of the module as it is

# The deciding modules, and the tests that hold each, in `tests`.
TESTS = {
    "core/retries/retry.py": "unit/test_retry laws/test_retry unit/test_attempts"
    " unit/test_stock_budget loop/test_balancer",
    "core/retries/hedging.py": "unit/test_hedging loop/test_balancer",
    "core/retries/ending.py": "unit/test_ending",
    "core/throttles/throttle.py": "unit/test_throttle laws/test_throttle"
    " unit/test_throttling unit/test_customers",
    "core/throttles/sparse_throttle.py": "unit/test_sparse_throttle"
    " laws/test_sparse_throttle",
    "core/throttles/throttling.py": "unit/test_throttling",
    "core/backends/lifecycle.py": "unit/test_lifecycle laws/test_lifecycle"
    " loop/test_balancer loop/test_health_watch",
    "core/backends/connection_state.py": "unit/test_lifecycle laws/test_lifecycle"
    " loop/test_balancer loop/test_health_watch",
    "core/backends/trust.py": "unit/test_lifecycle laws/test_lifecycle"
    " loop/test_balancer loop/test_health_watch",
    "core/backends/looks.py": "unit/test_lifecycle laws/test_lifecycle"
    " loop/test_balancer loop/test_health_watch",
    "core/backends/doubt.py": "unit/test_lifecycle laws/test_lifecycle"
    " loop/test_health_watch loop/test_balancer",
    "core/backends/silence.py": "unit/test_silence unit/test_lifecycle"
    " laws/test_lifecycle loop/test_health_watch loop/test_balancer",
    "core/backends/pool.py": "unit/test_pool unit/test_worker_choice"
    " unit/test_task_workers laws/test_pool laws/test_crowding loop/test_balancer"
    " unit/test_crowd",
    "core/backends/task_workers.py": "unit/test_task_workers unit/test_worker_choice"
    " loop/test_worker_endpoints loop/test_balancer",
    "core/outliers/outliers.py": "unit/test_outliers laws/test_outliers",
    "core/outliers/standing.py": "unit/test_outliers laws/test_outliers",
    "core/overload/admission.py": "unit/test_admission laws/test_admission"
    " unit/test_gate",
    "core/overload/overload_signals.py": "unit/test_overload_signals unit/test_gate",
    "core/criticality.py": "unit/test_criticality laws/test_criticality"
    " unit/test_admission",
    "core/quotas/quota.py": "unit/test_quota laws/test_quota"
    " laws/test_invented_customers loop/test_quotas",
    "core/quotas/quota_account.py": "unit/test_quota unit/test_costs laws/test_quota"
    " loop/test_quotas",
    "client/pending.py": "loop/test_balancer unit/test_waiting",
    "server/overload/gate.py": "unit/test_gate loop/test_requests loop/test_run_queue",
    "server/overload/run_queue.py": "loop/test_run_queue",
    "subsets/ring.py": "unit/test_subsets_ring unit/test_subsets"
    " unit/test_subsets_golden",
    "subsets/numbered.py": "unit/test_numbered laws/test_numbered"
    " unit/test_worker_choice",
    "subsets/rendezvous.py": "unit/test_rendezvous unit/test_subsets_golden",
    "subsets/rocksteadier.py": "unit/test_subsets unit/test_subsets_golden",
}  # fmt: skip

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
        case ast.Return(value=ast.Constant(value=value)) if not value:
            pass  # nothing is as false
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


def left_out(node: ast.AST) -> Iterator[ast.AST | None]:
    """What no mutant is made of: what names types, what is told to people alone, and
    constants in capitals, which are tuned by simulation and which tests name."""
    yield getattr(node, "annotation", None)
    yield getattr(node, "returns", None)
    match node:
        case ast.FunctionDef(name="__repr__"):
            yield node
        case ast.Assign(targets=[ast.Name(id=name), *_]) if name.isupper():
            yield node
        case ast.Assign(targets=[ast.Tuple(elts=[ast.Name(id=name), *_]), *_]) if (
            name.isupper()
        ):
            yield node
        case ast.Call(func=ast.Name(id="dataclass")):
            yield node


def mutants(source: str) -> list[tuple[int, str, int]]:
    """Number of the node, change, and line."""
    found = []
    tree = ast.parse(source)
    outside = {
        id(inner)
        for node in ast.walk(tree)
        for one in left_out(node)
        if one is not None
        for inner in ast.walk(one)
    }
    for number, node in enumerate(in_order(tree)):
        if id(node) not in outside:
            line = getattr(node, "lineno", 0)
            found += [(number, change, line) for change in changes(node)]
    return found


def mutated(source: str, number: int, change: str) -> ast.Module:
    tree = Swap(number, change).visit(copy.deepcopy(ast.parse(source)))
    assert isinstance(tree, ast.Module)
    return ast.fix_missing_locations(tree)


def run_tests(module: str, number: int, change: str) -> int:
    """In the mutant's process; no number: the module as it is."""
    import pytest

    from tests.worlds.planting import plant_tree

    if number >= 0:
        path = PACKAGE / module
        plant_tree(path, mutated(path.read_text(), number, change))
    quiet = ["-q", "-x", "--no-header", "-p", "no:cacheprovider"]
    quiet += ["-W", "ignore:Module already imported"]  # by `preload`
    laws = ["--hypothesis-profile=quick", "--hypothesis-seed=0"]
    files = [f"tests/{name}.py" for name in TESTS[module].split()]
    if code := pytest.main([*quiet, *laws, *files]):
        return int(code)
    # Not by pytest, which reads files that it is given by itself.
    name = "lbclient." + module.removesuffix(".py").replace("/", ".")
    return doctest.testmod(import_module(name)).failed


def is_noticed(module: str, number: int, change: str, limit: float) -> bool:
    """Whether a test fails, or has not ended within `limit` seconds, in a fork of this
    process: that spares the import of pytest and grpc."""
    pid = os.fork()
    if pid == 0:
        os.setsid()
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
        code = 1
        try:
            code = run_tests(module, number, change)
        finally:
            os._exit(code != 0)
    ended = os.pidfd_open(pid)
    try:
        if not select.select([ended], [], [], limit)[0]:
            os.killpg(pid, signal.SIGKILL)
        return os.waitpid(pid, 0)[1] != 0
    finally:
        os.close(ended)


def preload() -> None:
    """What all mutants share. Nothing of lbclient: that is imported after planting."""
    for name in ("grpc.aio", "hypothesis.stateful", "google.protobuf.message"):
        import_module(name)
    import_module("_pytest.assertion.rewrite")
    assert not any(name.split(".")[0] == "lbclient" for name in sys.modules)


def known(module: str) -> Counter[tuple[str, str, str]]:
    """The survivors that have a reason: change, what is changed, and its line."""
    listed = Counter[tuple[str, str, str]]()
    for each in tomllib.loads(REASONS.read_text()).get(module, []):
        for change in each["changes"]:
            listed[change, each["what"], each["line"]] += each.get("times", 1)
    return listed


def try_module(module: str, skipped: int, most: int, seed: int) -> int:
    """How many mutants survive without a reason, of `most` after those `skipped`."""
    source = (PACKAGE / module).read_text()
    lines = source.splitlines()
    nodes = list(in_order(ast.parse(source)))
    began_at = time.monotonic()
    if is_noticed(module, -1, "", LIMIT):
        print(f"{module}: its tests fail without any change")
        return 1
    limit = 10.0 + 5 * (time.monotonic() - began_at)
    every = mutants(source)
    Random(f"{seed} {module}").shuffle(every)
    some = every[skipped : skipped + most]
    survivors = [one for one in some if not is_noticed(module, *one[:2], limit)]
    listed = known(module)
    new = []
    for number, change, line in sorted(survivors, key=lambda one: one[2]):
        key = (change, ast.unparse(nodes[number]), lines[line - 1].strip())
        if listed[key] > 0:
            listed[key] -= 1
        else:
            new.append((line, *key))
    print(
        f"{module}: {len(some) - len(survivors)} of {len(some)} noticed"
        f" ({len(every)} in all), {len(survivors) - len(new)} survive with a reason,"
        f" {len(new)} without; {time.monotonic() - began_at:.0f} s"
    )
    for line, change, what, text in new:
        print(f"    line {line}, {change} of {what.splitlines()[0]!r}: {text}")
    sys.stdout.flush()
    return len(new)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("modules", nargs="*", help="in lbclient/; all that decide")
    parser.add_argument("--most", type=int, default=30, help="mutants of a module")
    parser.add_argument("--skip", type=int, default=0, help="so many mutants first")
    parser.add_argument("--seed", type=int, default=0, help="of the mutants' order")
    asked = parser.parse_args()
    os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = "/tmp/lbclient-mutation"
    os.chdir(ROOT)
    preload()
    left = [
        try_module(one, asked.skip, asked.most, asked.seed)
        for one in asked.modules or TESTS
    ]
    return 1 if sum(left) else 0


if __name__ == "__main__":
    sys.exit(main())
