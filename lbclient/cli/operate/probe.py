"""One server, asked once how it is, as a status that container runtimes understand.

By gRPC: `lbclient.v1.BackendHealth`, else `grpc.health.v1`. By UDP: one port, a few
probes, the first answer that is believed.
"""

import argparse
import asyncio
import json
import re
import socket
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from random import SystemRandom

import grpc
from google.protobuf.message import DecodeError

from lbclient import wire
from lbclient.cli.colour import paint
from lbclient.cli.layout import short
from lbclient.cli.operate import peer
from lbclient.cli.operate.ask_workers import counted, told_at
from lbclient.cli.run import run
from lbclient.client.health.refused_services import in_words
from lbclient.config import ChannelConfig, ServerConfig
from lbclient.core.errors import ConfigError
from lbclient.core.model import LoadReport, TaskState
from lbclient.v1 import compat_pb2
from lbclient.wire import datagram
from lbclient.wire.datagram import Seal

TIMEOUT = 1.0  # seconds; as grpc_health_probe, and Kubernetes' probes themselves
UDP_TRIES = 3  # within the timeout: a datagram may be lost

SERVING, NOT_SERVING, USAGE, NO_ANSWER = range(4)  # exit statuses

ADDRESS = re.compile(r"unix:.+|([^\[\]:/\s]+|\[[0-9a-fA-F:.%\w]+\]):[0-9]{1,5}")

STATES = {state: state.name.lower().replace("_", " ") for state in TaskState}
SERVING_STATES = {
    compat_pb2.ServingReply.UNKNOWN: "unknown",
    compat_pb2.ServingReply.SERVING: "serving",
    compat_pb2.ServingReply.NOT_SERVING: "not serving",
    compat_pb2.ServingReply.SERVICE_UNKNOWN: "service unknown",
}

EPILOG = """\
ADDR is host:port, [::1]:port or unix:/path. A server of lbclient's reports its state
and its load; any other server, and any with --service, is asked by grpc.health.v1.
A task of several workers is serving at the port that they share while one of them is.

With --udp ADDR is the UDP port for health checks, usually the gRPC port. The secret, if
any, is that of channels, else that of servers: udp_secret in the file that
LBCLIENT_CONFIG names, or LBCLIENT_UDP_SECRET. A server with TLS and no such secret
answers only clients that are connected to it now and then; `doctor --tls` is one.

{insecure}

examples:
  lbclient probe localhost:50051
  lbclient probe --udp 10.0.0.3:50051
  lbclient probe --service search.Search --tls-ca ca.pem search.prod:50051
  lbclient probe -H 'authorization: Bearer TOKEN' search.prod:50051

in a Dockerfile:
  HEALTHCHECK --interval=5s CMD ["lbclient", "probe", "localhost:50051"]

Exit status: 0 it is serving; 1 it is not serving (starting, lame duck), or the output
cannot be written; 2 for bad arguments; 3 no answer in time, no health service, or it
is refused; 130 after Ctrl-C; 141 if the reader of the output has gone.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What `--json` prints. `state` "" is no answer, and `detail` says why."""

    address: str
    asked: str
    state: str = ""
    detail: str = ""
    service: str = ""
    seconds: float = 0.0
    utilization: float | None = None
    qps: float | None = None
    eps: float | None = None
    active: int | None = None
    workers: int | None = None  # of its task that serve; None: it is the only process
    workers_wanted: int | None = None
    own_utilization: float | None = None  # of the worker that answered
    task_cpu: float | None = None

    def status(self) -> int:
        if not self.state:
            return NO_ANSWER
        return SERVING if self.state == "serving" else NOT_SERVING

    def line(self) -> str:
        words = [f"{self.address} {paint(self.state or 'no answer')}"]
        if self.detail:
            words.append(self.detail)
        if self.utilization is not None:
            words.append(f"utilization {self.utilization:.2f}")
        if self.qps is not None:
            words.append(f"{short(self.qps)} requests a second")
        if self.active is not None:
            words.append(f"{self.active:,} active")
        if self.workers is not None:
            words.append(f"{self.workers} of {self.workers_wanted} workers serve")
            own, task = self.own_utilization or 0.0, self.task_cpu or 0.0
            words.append(f"own utilization {own:.2f}, CPU of all {task:.2f}")
        return f"{', '.join(words)} ({self.asked}, {1000 * self.seconds:.0f} ms)"


def main(argv: list[str]) -> int:
    try:
        given = parse(argv)
        found = run(ask(given))
    except ConfigError as error:
        print(f"lbclient probe: {error}", file=sys.stderr)
        return USAGE
    print(json.dumps(asdict(found)) if given.json else found.line())
    return found.status()


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="lbclient probe",
        description="Checks a server's health, and answers by the exit status.",
        epilog=EPILOG.format(insecure=peer.NO_INSECURE),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("address", metavar="ADDR", help="address of the server")
    add("--service", default="", metavar="S", help="check this service only")
    add("--timeout", default=f"{TIMEOUT:g}", metavar="SECONDS",
        help="total timeout (default: %(default)s)")  # fmt: skip
    add("--udp", action="store_true", help="ask by UDP, not by gRPC")
    peer.add_connection(parser, "the server's certificate is")
    add("--json", action="store_true", help="print JSON")
    return parser


def parse(argv: list[str]) -> argparse.Namespace:
    given = make_parser().parse_args(argv)
    check(given)
    return given


def check(given: argparse.Namespace) -> None:
    if not ADDRESS.fullmatch(given.address):
        raise ConfigError("ADDR", given.address, "host:port, [::1]:port or unix:/path")
    port = given.address.rpartition(":")[2]
    if not given.address.startswith("unix:") and not 0 < int(port) < 2**16:
        raise ConfigError("ADDR", given.address, "a port of 1 to 65535")
    peer.check(given)
    if given.udp:
        if given.service or given.tls or given.authority or given.headers:
            want = "neither --service nor TLS, authority or metadata beside it"
            raise ConfigError("udp", True, want)
        if given.address.startswith("unix:"):
            raise ConfigError("ADDR", given.address, "host:port for --udp")


async def ask(given: argparse.Namespace) -> Found:
    """The answer, and what it took."""
    loop = asyncio.get_running_loop()
    begun_at = loop.time()
    until = begun_at + given.timeout
    if given.udp:
        seal = Seal(secret_of(ChannelConfig.from_environment()))
        found = await by_udp(given.address, given.timeout, until, seal)
    else:
        found = await by_grpc(given, until)
    return replace(found, seconds=round(loop.time() - begun_at, 4))


def told(found: Found, state: TaskState, report: LoadReport | None) -> Found:
    """An answer of a server of ours; 0 is unknown, as in every report."""
    load = LoadReport() if report is None else report
    return replace(
        found,
        state=STATES[state],
        utilization=load.utilization or None,
        qps=None if report is None else load.qps,
        eps=None if report is None else load.eps,
        active=load.active,
    )


def with_workers(found: Found, health: wire.Health) -> Found:
    """At a shared port any worker answers, for its task: it serves while one does."""
    own = told_at(found.address, health.workers)
    is_shared = found.address.rpartition(":")[2] not in map(str, own)
    task_serves = health.workers is not None and health.workers.serving > 0
    if is_shared and task_serves and found.state != "serving":
        why = f"the worker that answered is {found.state}"
        found = replace(found, state="serving", detail=why)
    seen = counted(own)
    if not seen.places:
        return found
    return replace(
        found,
        workers=seen.serving,
        workers_wanted=seen.places,
        own_utilization=health.own_utilization or 0.0,
        task_cpu=health.task_cpu or 0.0,
    )


# --- by gRPC ------------------------------------------------------------------


async def by_grpc(given: argparse.Namespace, until: float) -> Found:
    own = Found(address=given.address, asked="lbclient.v1.BackendHealth")
    other = replace(own, asked="grpc.health.v1.Health", service=given.service)
    request = compat_pb2.ServingRequest(service=given.service).SerializeToString()
    refused: dict[str, str] = {}
    async with peer.reach(given.address, given, until) as server:
        if not given.service:
            reply = await server.call(wire.CHECK_METHOD)
            if why := server.why_unanswered(reply):
                return replace(own, detail=why)
            health = wire.parse_health(reply) if isinstance(reply, bytes) else None
            if health is not None:
                found = told(own, health.state, health.report)
                return with_workers(found, health)
            if status := peer.refusal(reply):
                refused[wire.CHECK_METHOD] = status
        reply = await server.call(wire.SERVING_CHECK_METHOD, request)
        if why := server.why_unanswered(reply):
            return replace(other, detail=why)
    if isinstance(reply, bytes):
        return replace(other, state=serving_state(reply))
    if reply.code() is grpc.StatusCode.NOT_FOUND:
        return replace(other, state="service unknown")
    if status := peer.refusal(reply):
        refused[wire.SERVING_CHECK_METHOD] = status
    return replace(other, detail=in_words(refused) or "it has no health service")


def serving_state(reply: bytes) -> str:
    try:
        status = compat_pb2.ServingReply.FromString(reply).status
    except DecodeError:
        return "unknown"
    return SERVING_STATES.get(status, "unknown")


# --- by UDP -------------------------------------------------------------------


async def by_udp(address: str, timeout: float, until: float, seal: Seal) -> Found:
    """Asks every address of a name in turn, as a name may have one of each version."""
    found = Found(address=address, asked="udp")
    loop = asyncio.get_running_loop()
    host, _, port = address.rpartition(":")
    places = None
    try:
        async with asyncio.timeout_at(until):
            places = await loop.getaddrinfo(
                host.strip("[]"), int(port), type=socket.SOCK_DGRAM
            )
            for family, _, _, _, place in places:
                with socket.socket(family, socket.SOCK_DGRAM) as sock:
                    sock.setblocking(False)
                    try:
                        sock.connect(place)
                        answer = await answered(sock, timeout / UDP_TRIES, seal)
                    except OSError as error:
                        found = replace(found, detail=error.strerror or str(error))
                        continue
                return told(replace(found, detail=""), answer.state, answer.report)
    except TimeoutError:
        want = "is UDP blocked, is the secret the same, is it this port?"
        late = f"nothing in {timeout:g} s: {want}"
        if places is None:
            late = f"to look up {host} takes more than {timeout:g} s"
        return replace(found, detail=late)
    except OSError as error:
        return replace(found, detail=error.strerror or str(error))
    return found


def secret_of(config: ChannelConfig) -> bytes:
    """The channel's, else that of servers here."""
    return (config.udp_secret or ServerConfig.from_environment().udp_secret).encode()


async def answered(sock: socket.socket, patience: float, seal: Seal) -> datagram.Answer:
    """Asks until there is an answer. Raises OSError where nobody listens."""
    loop = asyncio.get_running_loop()
    while True:
        nonce = SystemRandom().getrandbits(64)
        await loop.sock_sendall(sock, datagram.probe(nonce, *seal))
        with suppress(TimeoutError):
            async with asyncio.timeout(patience):
                while True:
                    data = await loop.sock_recv(sock, datagram.ANSWER_SIZE + 1)
                    answer = datagram.parse_answer(data)
                    if (
                        answer is not None
                        and answer.nonce == nonce
                        and datagram.is_sealed(data, seal.secret)
                    ):
                        return answer
