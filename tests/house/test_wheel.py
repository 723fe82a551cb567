"""What is built is whole: a wheel, made from the source archive, works by itself.

The tests run beside the package, which would hide a file that is missing from it.
"""

import sys
import tarfile
import venv
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., str]

CALL = """
import asyncio
import grpc
import lbclient

assert "site-packages" in lbclient.__file__, lbclient.__file__

async def reverse(request, context):
    return request[::-1]

handler = grpc.unary_unary_rpc_method_handler(reverse)
service = grpc.method_handlers_generic_handler("test.Text", {"Reverse": handler})

async def main():
    server = lbclient.server()
    server.add_generic_rpc_handlers((service,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with lbclient.insecure_channel(f"ipv4:127.0.0.1:{port}") as channel:
        call = channel.unary_unary("/test.Text/Reverse")
        print((await call(b"drawer", timeout=10)).decode())
    await server.stop(None)

asyncio.run(main())
"""


@pytest.fixture(scope="module")
def built(module: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the source archive and the wheel that was made from it."""
    directory = tmp_path_factory.mktemp("dist")
    module("build", "--no-isolation", "--outdir", directory)
    return directory


@pytest.fixture(scope="module")
def installed(built: Path, run: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment that has the wheel, and nothing else."""
    directory = tmp_path_factory.mktemp("installed")
    venv.create(directory, symlinks=True)
    (wheel,) = built.glob("*.whl")
    python = directory / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "-q", wheel)
    return directory / "bin"


def test_the_source_archive_is_complete(built: Path) -> None:
    (archive,) = built.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        names = {name.partition("/")[2] for name in tar.getnames()}
    for name in (
        ".ci/run",
        "CHANGELOG.md",
        "LICENSE",
        "Makefile",
        "README.md",
        "examples/search.proto",
        "examples/fleet/demo.py",
        "proto/lbclient/v1/load.proto",
        "tests/conftest.py",
    ):
        assert name in names


def test_the_wheel_holds_types_and_the_demo(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as file:
        names = set(file.namelist())
    for name in (
        "lbclient/py.typed",
        "lbclient/v1/load_pb2.pyi",
        "lbclient/v1/health_pb2.pyi",
        "lbclient/_fleet/demo.py",
        "lbclient/_fleet/fleet_pb2.py",
    ):
        assert name in names
    assert {name.partition("/")[0] for name in names} == {
        "lbclient",
        next(name for name in names if name.endswith("METADATA")).partition("/")[0],
    }


def test_the_wheel_alone_makes_a_call(
    installed: Path, run: Run, tmp_path: Path
) -> None:
    output = run(installed / "python", "-I", "-c", CALL, cwd=tmp_path)
    assert output.splitlines()[-1] == "reward"


def test_the_command_is_installed(installed: Path, run: Run, tmp_path: Path) -> None:
    output = run(installed / "lbclient", "--version", cwd=tmp_path)
    assert output.startswith("lbclient 0.")
    assert "--quick" in run(installed / "lbclient", "demo", "--help", cwd=tmp_path)
