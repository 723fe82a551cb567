"""The server's side: it reports its load, answers health checks, leaves in order."""

from lbclient.server.grpc_server import Server, server
from lbclient.server.overload.gate import degraded
from lbclient.server.signals import serve
from lbclient.server.statistics import ServerStatistics

__all__ = ["Server", "ServerStatistics", "degraded", "serve", "server"]
