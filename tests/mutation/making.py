"""What a mutant is: a module with one change in its syntax tree."""

import ast
from collections.abc import Iterator
from typing import NamedTuple

OTHER: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult,
}  # fmt: skip

Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


class Mutant(NamedTuple):
    """`lines`: of the outermost function that the change is in, from its decorators
    on; None: the change acts as the module is imported."""

    number: int  # of the node, as `in_order` counts
    change: str
    line: int
    what: str  # the node, as source
    text: str  # its line
    lines: range | None


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
    """What no mutant is made of: what names types, what is told to people alone, what
    only says that two have as many, and constants in capitals, which are tuned by
    simulation and which tests name."""
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
        case ast.keyword(arg="strict") | ast.If(test=ast.Name(id="TYPE_CHECKING")):
            yield node


def run_later(tree: ast.AST) -> dict[int, range]:
    """The nodes, by their ids, that run when a function is called; the lines of the
    outermost such function."""
    found: dict[int, range] = {}

    def visit(node: ast.AST) -> None:
        if not isinstance(node, Function):
            for child in ast.iter_child_nodes(node):
                visit(child)
            return
        decorators = getattr(node, "decorator_list", [])
        first = min(one.lineno for one in (node, *decorators))
        lines = range(first, (node.end_lineno or first) + 1)
        body = node.body if isinstance(node.body, list) else [node.body]
        for part in body:
            found.update((id(inner), lines) for inner in ast.walk(part))
        visit(node.args)
        for one in decorators:
            visit(one)

    visit(tree)
    return found


def mutants(source: str) -> list[Mutant]:
    found = []
    tree = ast.parse(source)
    texts = source.splitlines()
    later = run_later(tree)
    outside = {
        id(inner)
        for node in ast.walk(tree)
        for one in left_out(node)
        if one is not None
        for inner in ast.walk(one)
    }
    for number, node in enumerate(in_order(tree)):
        if id(node) in outside:
            continue
        for change in changes(node):
            line = getattr(node, "lineno", 1)
            text = texts[line - 1].strip()
            what = ast.unparse(node)
            found.append(Mutant(number, change, line, what, text, later.get(id(node))))
    return found


def mutated(source: str, number: int, change: str) -> ast.Module:
    tree = Swap(number, change).visit(ast.parse(source))
    assert isinstance(tree, ast.Module)
    return ast.fix_missing_locations(tree)
