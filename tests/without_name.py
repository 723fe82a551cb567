"""Runs tests where grpcio lacks one of the private names that lbclient uses.

    WITHOUT_NAME=_cython_call python -m pytest -p tests.without_name tests/conformance

`lbclient.grpc_seam` is compiled to ask for a name that does not exist, which is what it
would meet if grpcio had renamed it. All behaviour is as ever, but for `LIMITED`. What
`COUNTED` says of costs, of the log and of requests that wait inside of gRPC is not.

    python -m tests.without_name

prints all such names; `make names` runs tests without each of them.
"""

import os
import re
import sys
from importlib.machinery import PathFinder, SourceFileLoader
from pathlib import Path
from typing import Any

import pytest

from tests.private_names import names_in, without

SEAM = Path(__file__).parents[1] / "lbclient" / "grpc_seam"
COUNTED = ("test_intake.py", "test_overhead_counts.py", "test_private_names.py")

# Tests of what only a private name can do, or of how lbclient uses it, by a word of
# what `lbclient.grpc_seam.private.COSTS` says of the name.
UNSEEN = "requests wait inside of gRPC, unseen"
NOT_FIRST = "its interceptors are asked about health checks"
LIMITED = {
    "test_what_is_sent_again_is_the_whole_stream": "calls that stream requests are not",
    "test_who_is_given_up_as_the_answer_arrives": "unary calls are wrapped",
    "test_of_a_queue_in_the_core_the_most_critical_are_served": UNSEEN,
    "test_next_to_nothing_comes_to_a_loop_that_is_closed": UNSEEN,
    "test_health_passes_by_what_instruments_grpc_aio_server": NOT_FIRST,
    "test_refusals_pass_by_what_instruments_grpc_aio_server": NOT_FIRST,
    "test_health_passes_by_what_instruments_grpc_server": "refuses health streams",
}


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
    return True if collection_path.name in COUNTED else None


def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    from lbclient.grpc_seam.private import COSTS

    missing = f"{os.environ['WITHOUT_NAME']}_gone"  # as `COSTS` has it, too
    costs = " ".join(
        cost for path, cost in COSTS.items() if missing in re.split("[.:]", path)
    )
    limited = tuple(test for test, cost in LIMITED.items() if cost in costs)
    left_out = [item for item in items if limited and item.name.startswith(limited)]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]


if __name__ == "__main__":
    sys.stdout.write(" ".join(all_names()) + "\n")
elif "WITHOUT_NAME" in os.environ and "pytest" in sys.modules:
    take_away(os.environ["WITHOUT_NAME"])
