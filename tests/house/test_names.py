"""A class has a name of its own: who reads it in one file may look for it in all.

Private names are a file's own affair.
"""

import ast
from collections import defaultdict

from tests.house.graph import modules


def test_each_class_has_a_name_of_its_own() -> None:
    where = defaultdict(list)
    for module, path in modules().items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                where[node.name].append(module)
    several = {name: found for name, found in where.items() if len(found) > 1}
    assert several == {}
