"""What the two servers have in common: ports, services, statistics.

`grpc_server` has the one on an event loop, `sync.sync_server` the one in threads.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import grpc

from lbclient.config import ServerConfig
from lbclient.core.model import TaskState
from lbclient.core.protocols import Clock
from lbclient.core.statistics.call_times import CallTimes, Trace
from lbclient.core.statistics.recent import Recent
from lbclient.core.uncopied import Uncopied
from lbclient.server.lame_duck import Drain
from lbclient.server.parts import Parts
from lbclient.server.report.udp import host_of
from lbclient.server.requests.handler import Handler
from lbclient.server.statistics import ServerStatistics
from lbclient.server.workers.membership import membership
from lbclient.server.workers.shared_port import SharedPort

# grpcio says the same of a port that is taken and of credentials that are none.
PAIRS = (
    "Credentials are pairs of private key and certificate chain, in this order, in"
    " PEM, which belong together."
)


class ReportingServer(Uncopied):
    """Wraps a server of grpcio: notes ports and services, and tells statistics."""

    _inner: Any  # grpcio's

    def __init__(self, config: ServerConfig, parts: Parts, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        self._parts = parts
        self._reporter = parts.reporter
        self._streams = parts.streams
        self._udp = parts.udp
        self._ports, self._services = parts.ports, parts.services
        self._member = membership()
        self._brought: list[grpc.GenericRpcHandler] = []  # by the user

    # --- services ----------------------------------------------------------------

    def add_generic_rpc_handlers(
        self, generic_rpc_handlers: Iterable[grpc.GenericRpcHandler]
    ) -> None:
        for handler in generic_rpc_handlers:
            self._brought.append(handler)
            self._add(handler)

    def _add(self, handler: grpc.GenericRpcHandler) -> None:
        if isinstance(handler, grpc.ServiceRpcHandler):
            self._services[handler.service_name()] = None
        self._enlist(self._wrapped(handler))

    def _enlist(self, handler: grpc.GenericRpcHandler) -> None:
        self._inner.add_generic_rpc_handlers((handler,))

    def _wrapped(self, handler: grpc.GenericRpcHandler) -> grpc.GenericRpcHandler:
        """What grpcio is given in place of a handler."""
        return handler

    def _generic(
        self, service_name: str, method_handlers: Mapping[str, Handler]
    ) -> grpc.GenericRpcHandler:
        """Registered handlers as a generic one; their service is noted."""
        self._services[service_name] = None
        return grpc.method_handlers_generic_handler(service_name, dict(method_handlers))

    def _find_passing(self, details: grpc.HandlerCallDetails) -> Handler | None:
        """What answers a health check that the user's interceptors are not asked about.

        An interceptor that refuses or breaks our health services would hide from
        clients that this server drains or is frozen. One that the user brings goes
        first, and is the interceptors' business.
        """
        ours = self._health_handler(details)
        if ours is None or self._config.intercept_health:
            return None
        if any(brought.service(details) for brought in self._brought):
            return None
        return ours

    def _health_handler(self, details: grpc.HandlerCallDetails) -> Handler | None:
        """Our own handler of a health check; None before the server has started."""
        raise NotImplementedError

    # --- ports -------------------------------------------------------------------

    def add_insecure_port(self, address: str) -> int:
        port: int = self._inner.add_insecure_port(address)
        own = self._listen_alone(address, port, self._inner.add_insecure_port)
        self._parts.listen(address, port, is_secure=False, own=own)
        return port

    def add_secure_port(
        self, address: str, server_credentials: grpc.ServerCredentials
    ) -> int:
        try:
            port: int = self._inner.add_secure_port(address, server_credentials)
        except RuntimeError as error:
            raise RuntimeError(f"{error} {PAIRS}") from None
        own = self._listen_alone(
            address,
            port,
            lambda own: self._inner.add_secure_port(own, server_credentials),
        )
        self._parts.listen(address, port, is_secure=True, own=own)
        return port

    def _listen_alone(
        self, address: str, port: int, add: Callable[[str], int]
    ) -> int | None:
        """A worker has a port of its own beside each port that it shares."""
        if (member := self._member) is None:
            return None
        own = member.own_address(address, port, self._config.worker_ports)
        if own is None:
            return None
        if (number := own.rpartition(":")[2]) != "0":
            # Another program that shares its port would have some connections.
            SharedPort(host_of(own) or "::", int(number)).close()
        member.own[port] = add(own)
        return member.own[port]

    # --- what it tells -----------------------------------------------------------

    @property
    def state(self) -> TaskState:
        return self._reporter.state

    def lame_duck(self) -> None:
        """Asks all clients to send new requests elsewhere; serves what arrives."""
        raise NotImplementedError

    def _begin_drain(self, count_unseen: Callable[[], int | None]) -> Drain:
        """Returns what says when GOAWAY is due; all who drain this server share it."""
        config, member = self._config, self._member
        return self._reporter.begin_drain(
            config.lame_duck_quiet,
            config.lame_duck_period,
            count_unseen,
            (lambda: True) if member is None else member.agrees_to_goaway,
        )

    def statistics(self) -> ServerStatistics:
        """Returns what the server knows and has done, as an immutable snapshot."""
        return self._parts.statistics()

    def _keep_times(
        self, find_trace: Callable[[], Trace | None], measures: bool
    ) -> CallTimes:
        """How long its requests take, from now on; for metrics. `measures`: also how
        large messages are."""
        return self._parts.tally.keep_times(find_trace, measures)

    def _keep_recent(self) -> Recent:
        """Returns recent latencies, and keeps them for a minute from now on."""
        return self._parts.tally.keep_recent()

    def __repr__(self) -> str:
        return repr(self._reporter)
