"""The parts of a server, without the server: no port, and no grpcio."""

from collections.abc import Callable
from random import Random

from lbclient.config import ServerConfig
from lbclient.server.parts import Parts


def parts(
    config: ServerConfig | None = None,
    clock: Callable[[], float] = lambda: 0.0,
    read_cpu: Callable[[float], float] | None = None,
) -> Parts:
    config = ServerConfig() if config is None else config
    return Parts(config, clock, Random(1), read_cpu=read_cpu)
