"""Generated code is committed, and is what the compiler makes of the protos today."""

import sys
from collections.abc import Callable
from pathlib import Path

from tests import needs

# Python 3.13 came after grpcio-tools 1.62.3, which so has no wheel for it.
NO_COMPILER = sys.version_info >= (3, 13)


def test_the_generated_code_is_fresh(
    root: Path, run: Callable[..., str], tmp_path: Path
) -> None:
    if NO_COMPILER:
        needs.skip("no grpcio-tools 1.62.3 for this Python")
    needs.program("make")
    bin_directory = Path(sys.executable).parent
    ready = bin_directory.parent / ".ready"
    # The environment is the one we run in, which make need not set up.
    run("make", "-o", ready, "proto", f"OUT={tmp_path}", f"BIN={bin_directory}")
    fresh = {path.relative_to(tmp_path) for path in tmp_path.rglob("*.py*")}
    committed = {
        path.relative_to(root)
        for folder in ("lbclient", "examples")
        for path in (root / folder).rglob("*_pb2*.py*")
        if "__pycache__" not in path.parts
    }
    assert committed == fresh
    for path in sorted(fresh):
        assert (root / path).read_bytes() == (tmp_path / path).read_bytes(), path
