"""Serves HTTP beside a server that a command runs: its metrics, or its page."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from lbclient.admin.http import Site
from lbclient.core.errors import ConfigError


def port_of(what: str, port: object) -> int:
    """Raises ConfigError for what is no port; `what` is the option's name."""
    if type(port) is not int or not 0 < port < 65536:
        raise ConfigError(what, port, "a port, 1 to 65535")
    return port


@asynccontextmanager
async def served(what: str, site: Site, host: str, port: int) -> AsyncIterator[None]:
    """Serves the site meanwhile. Raises RuntimeError where the port is taken."""
    try:
        await site.open(host.strip("[]"), port)
    except OSError as error:
        raise RuntimeError(f"no {what} on {host}:{port}: {error}") from error
    try:
        yield
    finally:
        await site.close()
