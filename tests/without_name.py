"""Runs tests where grpcio lacks one of the private names that lbclient uses.

    WITHOUT_NAME=_cython_call python -m pytest -p tests.without_name tests/conformance

`lbclient.grpc_seam` is compiled to ask for a name that does not exist, which is what it
would meet if grpcio had renamed it. All behaviour is as ever; what a test says of costs
and of the log is not, and `COSTS` are left out.
"""

import os
import sys
from importlib.machinery import PathFinder, SourceFileLoader
from pathlib import Path
from typing import Any

from tests.private_names import names_in, without

SEAM = Path(__file__).parents[1] / "lbclient" / "grpc_seam"
COSTS = ("test_overhead_counts.py", "test_private_names.py")


class Renaming:
    """Finds the modules of `lbclient.grpc_seam`, and has them ask in vain."""

    def __init__(self, missing: str) -> None:
        self._missing = missing

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if not name.startswith("lbclient.grpc_seam"):
            return None
        spec = PathFinder.find_spec(name, path, target)
        assert spec is not None
        assert spec.origin is not None
        spec.loader = Loader(name, spec.origin)
        spec.loader.missing = self._missing
        return spec


class Loader(SourceFileLoader):
    missing = ""

    def get_code(self, fullname: str) -> Any:
        tree = without(Path(self.path).read_text(), self.missing)
        return compile(tree, self.path, "exec", dont_inherit=True)


def all_names() -> list[str]:
    files = sorted(SEAM.rglob("*.py"))
    return sorted({name for file in files for name in names_in(file.read_text())})


def take_away(name: str) -> None:
    """From here on `lbclient.grpc_seam`, which must not be loaded yet, lacks it."""
    assert not any(module.startswith("lbclient.grpc_seam") for module in sys.modules)
    sys.meta_path.insert(0, Renaming(name))


def pytest_report_header() -> str:
    return f"grpcio has no {os.environ['WITHOUT_NAME']}"


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    return True if collection_path.name in COSTS else None


if "WITHOUT_NAME" in os.environ and "pytest" in sys.modules:
    take_away(os.environ["WITHOUT_NAME"])
