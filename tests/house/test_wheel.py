"""What is built is whole: a wheel, made from the source archive, works by itself.

The tests run beside the package, which would hide a file that is missing from it.
"""

import re
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

# The lower bounds of pyproject.toml.
OLDEST = ("grpcio==1.66.0", "protobuf==4.25.1", "prometheus-client==0.20.*")

CALLS = """
import asyncio
import grpc
import lbclient
import lbclient.metrics
from grpc import aio


async def read(request):
    if isinstance(request, bytes):
        return request
    return b"".join([part async for part in request])

async def respond(request, context):
    return (await read(request))[::-1]

async def generate(request, context):
    yield (await read(request))[::-1]

async def wait(request, context):
    yield b"first"
    await asyncio.sleep(60)

ARITIES = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")

def handler(arity):
    make = getattr(grpc, arity + "_rpc_method_handler")
    return make(respond if arity.endswith("unary") else generate)

class Passing:
    async def passed(self, continuation, details, request):
        seen.append(type(self).__name__)
        return await continuation(details, request)

class UnaryUnary(Passing, aio.UnaryUnaryClientInterceptor):
    intercept_unary_unary = Passing.passed

class UnaryStream(Passing, aio.UnaryStreamClientInterceptor):
    intercept_unary_stream = Passing.passed

class StreamUnary(Passing, aio.StreamUnaryClientInterceptor):
    intercept_stream_unary = Passing.passed

class StreamStream(Passing, aio.StreamStreamClientInterceptor):
    intercept_stream_stream = Passing.passed

seen = []
methods = {arity: handler(arity) for arity in ARITIES}
methods["wait"] = grpc.unary_stream_rpc_method_handler(wait)
service = grpc.method_handlers_generic_handler("test.Text", methods)

async def call_all(channel):
    for arity in ARITIES:
        request = b"drawer" if arity.startswith("unary") else iter([b"draw", b"er"])
        call = getattr(channel, arity)("/test.Text/" + arity)(request, timeout=10)
        if arity.endswith("unary"):
            answer = await call
        else:
            (answer,) = [response async for response in call]
        assert answer == b"reward", (arity, answer)

async def close_while_reading(channel):
    waiting = channel.unary_stream("/test.Text/wait")(b"")
    assert await waiting.read() == b"first"
    reading = asyncio.create_task(waiting.read())
    await asyncio.sleep(0)
    await channel.close()
    (error,) = await asyncio.wait_for(
        asyncio.gather(reading, return_exceptions=True), 10
    )
    assert isinstance(error, asyncio.CancelledError), repr(error)

async def main():
    server = lbclient.server()
    server.add_generic_rpc_handlers((service,))
    target = f"ipv4:127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    async with lbclient.insecure_channel(target) as channel:
        await call_all(channel)
    interceptors = [UnaryUnary(), UnaryStream(), StreamUnary(), StreamStream()]
    async with lbclient.insecure_channel(target, interceptors=interceptors) as channel:
        await call_all(channel)
    assert len(seen) == 4, seen
    await close_while_reading(lbclient.insecure_channel(target))
    await server.stop(None)
    print("all is well with grpcio", grpc.__version__)

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
    return _install(run, tmp_path_factory.mktemp("installed"), built)


@pytest.fixture(scope="module")
def oldest(built: Path, run: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with the oldest dependencies that are allowed."""
    return _install(run, tmp_path_factory.mktemp("oldest"), built, *OLDEST)


def _install(run: Run, directory: Path, built: Path, *requirements: str) -> Path:
    venv.create(directory, symlinks=True)
    (wheel,) = built.glob("*.whl")
    pip = (sys.executable, "-m", "pip", "--python", directory / "bin" / "python")
    run(*pip, "install", "-q", wheel, *requirements)
    return directory / "bin"


def test_the_source_archive_is_complete(built: Path) -> None:
    (archive,) = built.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        names = {name.partition("/")[2] for name in tar.getnames()}
    for name in (
        ".ci/run",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "LICENSE",
        "Makefile",
        "README.md",
        "SECURITY.md",
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
        "lbclient/admin/static/lbz.html",
        "lbclient/admin/static/uplot.js",
        "lbclient/admin/static/uplot.LICENSE",
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


def test_the_description_has_no_link_that_an_index_cannot_follow(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as file:
        (name,) = (name for name in file.namelist() if name.endswith("/METADATA"))
        text = file.read(name).decode()
    assert "\n# lbclient\n" in text
    assert not re.search(r"\]\((?!https?:)", text)


def test_the_wheel_alone_makes_a_call(
    installed: Path, run: Run, tmp_path: Path
) -> None:
    output = run(installed / "python", "-I", "-c", CALL, cwd=tmp_path)
    assert output.splitlines()[-1] == "reward"


def test_the_wheel_works_with_the_oldest_dependencies(
    oldest: Path, run: Run, tmp_path: Path
) -> None:
    output = run(oldest / "python", "-I", "-c", CALLS, cwd=tmp_path)
    assert "all is well with grpcio 1.66.0" in output


def test_the_command_is_installed(installed: Path, run: Run, tmp_path: Path) -> None:
    output = run(installed / "lbclient", "--version", cwd=tmp_path)
    assert output.startswith("lbclient 0.")
    assert "--quick" in run(installed / "lbclient", "demo", "--help", cwd=tmp_path)
