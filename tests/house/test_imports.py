"""What `import lbclient` loads, counted in modules: times depend on the machine."""

import ast
import sys
from importlib import import_module
from pathlib import Path

import pytest

import lbclient
from tests.house.conftest import Run

ROOT = Path(__file__).parents[2]


# Slow to import, and most programs never use them.
RARE = {
    "difflib",
    "email",
    "importlib.metadata",
    "json",
    "statistics",
    "tomllib",
    "uuid",
    "zipfile",
}

# What is imported in any case: by gRPC, and by the modules that protoc generates.
BEFORE = "import sys, grpc.aio, lbclient.v1.health_pb2; before = {*sys.modules}\n"


def loaded(run: Run, program: str, before: str = BEFORE) -> set[str]:
    """The modules that a program imports beyond those."""
    program = f"{before}{program}\nprint(*sys.modules.keys() - before)"
    return set(run(sys.executable, "-c", program).split())


def test_the_package_loads_nothing_until_a_name_is_used(run: Run) -> None:
    modules = loaded(run, "import lbclient", "import sys; before = {*sys.modules}\n")
    assert [name for name in modules if name.startswith("lbclient.")] == []
    assert "lbclient" in modules
    assert "grpc" not in modules


def test_a_client_loads_no_server_and_nothing_that_is_rarely_used(run: Run) -> None:
    program = "import lbclient; lbclient.insecure_channel('ipv4:127.0.0.1:1')"
    modules = loaded(run, program)
    assert "lbclient.client.balancer" in modules
    assert "lbclient.server" not in modules
    assert "lbclient.core.statistics.records" not in modules  # for who asks
    assert modules & RARE == set()


def test_a_server_loads_no_client_and_nothing_that_is_rarely_used(run: Run) -> None:
    modules = loaded(run, "import lbclient; lbclient.server.Server")
    assert "lbclient.server.grpc_server" in modules
    assert "lbclient.client" not in modules
    assert modules & RARE == set()


def test_each_public_name_is_found() -> None:
    assert [
        name for name in vars(lbclient)["__all__"] if not hasattr(lbclient, name)
    ] == []


def test_type_checkers_see_what_programs_get() -> None:
    source = (ROOT / "lbclient" / "__init__.py").read_text()
    block = next(node for node in ast.parse(source).body if isinstance(node, ast.If))
    seen = {
        alias.name: node.module
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert all(
        alias.asname == alias.name  # else the name is private to them
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    )
    assert seen.pop("server") == "lbclient.server"  # for programs a module to call
    assert seen == lbclient._MODULES


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'lbclient' has no attribute 'x'"):
        getattr(lbclient, "x")  # noqa: B009
    with pytest.raises(ImportError, match="cannot import name 'x'"):
        from lbclient import x  # type: ignore[attr-defined]  # noqa: F401


def test_folders_are_attributes() -> None:
    for name in lbclient._FOLDERS:
        assert getattr(lbclient, name) is import_module(f"lbclient.{name}")


def test_all_names_are_listed() -> None:
    assert {*vars(lbclient)["__all__"], "__version__", "config"} <= {*dir(lbclient)}
