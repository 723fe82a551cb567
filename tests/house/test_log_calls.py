"""Every log call of the package goes through `lbclient.log`, which adds the fields."""

import ast
from collections.abc import Iterator
from pathlib import Path

from lbclient.log import FIELDS
from tests.house.graph import modules

METHODS = {"critical", "debug", "error", "exception", "info", "log", "warning"}


def log_calls(path: Path) -> Iterator[ast.Call]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            of = node.func.value
            if isinstance(of, ast.Name) and of.id == "logger":
                yield node


def test_every_logger_adds_the_fields() -> None:
    """None of `logging`'s own is used, which would leave them out."""
    for name, path in modules().items():
        text = path.read_text()
        is_log = name == "lbclient.log"
        assert is_log or "getLogger" not in text, name
        assert ("logger = Log(" in text) == any(log_calls(path)), name
        assert not any(f" logging.{method}(" in text for method in METHODS), name


def test_every_log_call_names_only_fields_that_there_are() -> None:
    """Others raise TypeError, and only when the line is logged."""
    calls = [call for path in modules().values() for call in log_calls(path)]
    named = {word.arg for call in calls for word in call.keywords}
    assert named <= {*FIELDS, "exc_info"}
    assert len(calls) > 70
