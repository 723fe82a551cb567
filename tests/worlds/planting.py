"""Another text in one module: a fault that a test is to notice.

In a process of its own, before the module is imported.
"""

import ast
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType
from typing import NamedTuple

ROOT = Path(__file__).parents[2]


class Mutant(NamedTuple):
    name: str
    file: str  # in lbclient/
    old: str
    new: str


def plant(mutant: Mutant) -> None:
    """From now on the module is imported with the other text."""
    path = ROOT / "lbclient" / mutant.file
    source = path.read_text().replace(mutant.old, mutant.new)
    plant_tree(path, ast.parse(source))


def plant_tree(path: Path, tree: ast.Module) -> None:
    """From now on what is at this path is imported as that."""
    original = SourceFileLoader.get_code

    def get_code(self: SourceFileLoader, fullname: str) -> CodeType | None:
        if self.path != str(path):
            return original(self, fullname)
        return compile(tree, str(path), "exec")

    SourceFileLoader.get_code = get_code  # type: ignore[assignment, method-assign]
