"""`lbclient.server` is a module that can be called: both ways to use it go on."""

import asyncio
import gc
import inspect
import pydoc
import subprocess
import sys

import pytest

import lbclient
import lbclient.server as s
import lbclient.server.stores as stores
from lbclient.server.factory import server


def test_the_module_has_what_it_exports() -> None:
    assert inspect.ismodule(s)
    assert all(hasattr(s, name) for name in s.__all__)
    assert s.Server is lbclient.Server
    assert s.server is server


def test_its_own_modules_are_in_it() -> None:
    assert stores.MemoryStore is lbclient.server.stores.MemoryStore  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "first",
    ["import lbclient", "import lbclient.server", "from lbclient import server"],
)
def test_it_can_be_called_whatever_is_imported_first(first: str) -> None:
    program = f"{first}\nimport lbclient\nassert callable(lbclient.server)"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


async def test_calling_it_makes_a_server() -> None:
    config = lbclient.ServerConfig(max_load=3.0)
    made = lbclient.server(None, config=config)
    assert isinstance(made, lbclient.Server)
    with pytest.raises(TypeError, match="unknown"):
        lbclient.server(unknown=1)  # type: ignore[call-arg]
    await made.stop(None)


def test_it_tells_how_it_is_called() -> None:
    assert inspect.signature(lbclient.server) == inspect.signature(server)
    text = pydoc.plain(pydoc.render_doc(lbclient.server))
    assert "with the arguments of `grpc.aio.server` and a config" in text
    assert "class Server(" in text


async def test_a_server_that_cannot_be_made_says_why_and_no_more() -> None:
    """Its end had a traceback of its own, which pytest makes an error."""
    with pytest.raises(RuntimeError, match="no current event loop"):
        await asyncio.to_thread(lbclient.server)
    gc.collect()
