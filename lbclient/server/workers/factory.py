"""Finds the function that makes a worker's server, and calls it."""

import inspect
import pickle
from contextlib import AsyncExitStack
from importlib import import_module
from typing import Any

import grpc
import grpc.aio

from lbclient.core.errors import ConfigError
from lbclient.server.workers.messages import MakeServer

WANT = "module:function, such as shop.server:make_server"
RETURNS = (
    "a function that returns a server of lbclient or grpc, or a coroutine or an"
    " asynchronous context manager for one"
)


def check_make_server(make_server: Any) -> MakeServer | str:
    """Returns it. Raises ConfigError for what no other process can import and call."""
    if isinstance(make_server, str):
        module, colon, name = make_server.partition(":")
        if not (colon and module and all(map(str.isidentifier, name.split(".")))):
            raise ConfigError("make_server", make_server, WANT)
        return make_server
    if isinstance(make_server, grpc.aio.Server | grpc.Server) or not callable(
        make_server
    ):
        raise ConfigError("make_server", make_server, RETURNS)
    try:
        pickle.dumps(make_server)
    except Exception as error:
        want = f"a function at the top of a module, as each worker imports it ({error})"
        raise ConfigError("make_server", make_server, want) from None
    return make_server  # type: ignore[no-any-return]


def find(make_server: MakeServer | str) -> MakeServer:
    """Raises ConfigError for a module or a function that is not there. What the module
    raises itself passes."""
    if not isinstance(make_server, str):
        return make_server
    module, _, name = make_server.partition(":")
    try:
        found: Any = import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # of an import within it
        want = f"{WANT}: there is no module {error.name!r}"
        raise ConfigError("make_server", make_server, want) from None
    for attribute in name.split("."):
        try:
            found = getattr(found, attribute)
        except AttributeError:
            want = f"{WANT}: {module} has no {name!r}"
            raise ConfigError("make_server", make_server, want) from None
    if not callable(found):
        raise ConfigError("make_server", make_server, f"{RETURNS}; this is {found!r}")
    return found  # type: ignore[no-any-return]


async def make(
    make_server: MakeServer, stack: AsyncExitStack
) -> grpc.aio.Server | grpc.Server:
    """Calls the function. Whatever it opens is closed by the stack."""
    made = make_server()
    if inspect.isawaitable(made):
        made = await made
    if hasattr(made, "__aenter__"):
        made = await stack.enter_async_context(made)
    if not isinstance(made, grpc.aio.Server | grpc.Server):
        raise ConfigError("make_server", made, RETURNS)
    return made
