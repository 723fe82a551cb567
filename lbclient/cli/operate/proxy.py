"""Runs the batch proxy: a server, and a channel with a large subset.

Between them is a `lbclient.proxy.Forwarder`.
"""

import argparse
import asyncio
import json
import os
import re
import socket
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import grpc
from prometheus_client import REGISTRY
from prometheus_client.exposition import choose_encoder

from lbclient import metrics
from lbclient.admin.http import HttpRequest, HttpResponse, Site
from lbclient.cli.numbers import whole
from lbclient.cli.operate.peer import CERTIFICATE, pair, pem
from lbclient.cli.operate.task_site import port_of, served
from lbclient.client.factory import insecure_channel, secure_channel
from lbclient.client.kinds import is_channel
from lbclient.config import ChannelConfig, ServerConfig, find_setting
from lbclient.core.criticality import Criticality
from lbclient.core.errors import ConfigError
from lbclient.proxy import Forwarder
from lbclient.server import serve, server
from lbclient.server.kinds import is_async_server

if TYPE_CHECKING:  # the kill switch loads neither
    from lbclient.client.channel import Channel
    from lbclient.server import Server

# SRE book, ch. 20: subsets of 20 to 100; ch. 21: "proxy tasks can use bigger subsets".
SUBSET_SIZE = 100

# SRE book, ch. 21: SHEDDABLE_PLUS is "the default for batch jobs".
BATCH = Criticality.SHEDDABLE_PLUS

# Bytes of a message. Ours: 16 times what gRPC's receivers take unless told otherwise;
# what they take is for them to say.
MESSAGE_SIZE = 2**26

EPILOG = """\
Configure the channel and the server as usual: by LBCLIENT_* variables, and by --config
or LBCLIENT_CONFIG, a TOML file with the tables [channel] and [server], and perhaps
[channel."TARGET"]. `python -m lbclient.config` lists all settings.

Prints its address when it listens; for port 0 this shows the chosen port. At SIGTERM or
Ctrl-C it becomes a lame duck, finishes the calls in flight, and ends; a later signal
ends it immediately.

examples:
  lbclient proxy --listen 0.0.0.0:50051 --target dns:///search.prod:50051
  lbclient proxy --listen 127.0.0.1:0 --target file:///etc/backends.json \\
    --idempotent '/search.Search/*' --metrics 9464

Exit status: 0; 1 if it cannot listen or write its output; 2 for bad
arguments.
"""


def main(argv: list[str]) -> int:
    given = parse(argv)
    try:
        asyncio.run(run(given))
    except ConfigError as error:
        return complain(error, 2)
    except RuntimeError as error:  # grpcio's, of a port
        return complain(error, 1)
    return 0


def complain(error: Exception, status: int) -> int:
    print(f"lbclient proxy: {error}", file=sys.stderr)
    return status


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="lbclient proxy",
        description="Forwards calls of any method to the backends of a target.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--listen", metavar="HOST:PORT", required=True, help="port 0: any free port")
    add("--target", required=True, help="target, as for a channel")
    add("--config", metavar="FILE", help="the same as LBCLIENT_CONFIG=FILE")
    add("--subset-size", type=whole, metavar="K",
        help=f"{find_setting(ChannelConfig, 'subset_size').summary} (default: the "
        f"configured value, else {SUBSET_SIZE})")  # fmt: skip
    add("--criticality", metavar="LEVEL",
        help="criticality of calls whose client names none: one of "
        f"{', '.join(Criticality.__members__)} (default: the configured value, else "
        f"{BATCH.name})")  # fmt: skip
    add("--idempotent", action="append", default=[], metavar="/PACKAGE.SERVICE/METHOD",
        help=f"{find_setting(ChannelConfig, 'idempotent').summary}; may be "
        "repeated")  # fmt: skip
    add("--max-active", type=whole, metavar="N", help="limit of concurrent calls; "
        "further ones are refused (default: no limit)")  # fmt: skip
    add("--max-message", type=whole, default=MESSAGE_SIZE, metavar="BYTES",
        help=f"size of the largest message (default: {MESSAGE_SIZE:,})")  # fmt: skip
    add(
        "--metrics",
        type=whole,
        metavar="PORT",
        help="serve Prometheus metrics on this port",
    )
    add("--cert", metavar="FILE", help="listen with TLS, with this PEM file")
    add("--key", metavar="FILE", help="key of --cert, in PEM")
    add("--ca", metavar="FILE", help="CA of the clients' certificates (mTLS)")
    add("--target-ca", metavar="FILE", help="TLS to backends, with this CA")
    add("--target-cert", metavar="FILE", help="certificate for backends (mTLS)")
    add("--target-key", metavar="FILE", help="key of --target-cert")
    add("--json", action="store_true", help="print the address, and at the end the "
        "totals, as one line of JSON each")  # fmt: skip
    return parser


def parse(argv: list[str]) -> argparse.Namespace:
    return make_parser().parse_args(argv)


async def run(given: argparse.Namespace) -> None:
    environ = {**os.environ}
    if given.config is not None:
        environ["LBCLIENT_CONFIG"] = given.config
    channel, proxy = channel_of(given, environ), server_of(given, environ)
    proxy.add_generic_rpc_handlers([Forwarder(channel)])
    host = listen_at(given.listen)[0]
    port = open_port(proxy, given)
    metrics.export(channel)
    metrics.export(proxy)

    async def begin() -> None:
        channel.get_state(try_to_connect=True)  # before a burst comes
        said = {"listening": f"{host}:{port}", "target": given.target}
        say(given, said)

    async with channel, metrics_at(given.metrics, host):
        await serve(proxy, warmup=begin)
        say(given, ending(channel, proxy))


def channel_of(given: argparse.Namespace, environ: Mapping[str, str]) -> "Channel":
    config = ChannelConfig.from_environment(
        environ,
        target=given.target,
        subset_size=SUBSET_SIZE,
        criticality=BATCH.name,
    )
    if given.criticality is not None:
        config = replace(config, criticality=given.criticality)
    if given.subset_size is not None:
        config = replace(config, subset_size=given.subset_size)
    config = replace(config, idempotent=(*config.idempotent, *given.idempotent))
    options = sizes(given.max_message)
    authority = pem("target_ca", given.target_ca, CERTIFICATE)
    key, certificate = pair_of(given, "target_key", "target_cert")
    if authority is None:
        if certificate is not None:
            raise ConfigError("target_ca", None, "a PEM file beside --target-cert")
        return insecure_channel(given.target, options, config=config)
    credentials = grpc.ssl_channel_credentials(authority, key, certificate)
    return secure_channel(given.target, credentials, options, config=config)


def server_of(given: argparse.Namespace, environ: Mapping[str, str]) -> "Server":
    config = ServerConfig.from_environment(environ)
    # Two proxies on one port would share it unseen.
    options = [*sizes(given.max_message), ("grpc.so_reuseport", 0)]
    most = given.max_active
    if most is not None and (type(most) is not int or most < 1):
        raise ConfigError("max_active", most, "calls at a time, 1 or more")
    return server(options=options, config=config, maximum_concurrent_rpcs=most)


def sizes(limit: int | str) -> list[tuple[str, int]]:
    if not isinstance(limit, int) or not 1 <= limit < 2**31:
        raise ConfigError("max_message", limit, "bytes, 1 to 2147483647")
    return [
        ("grpc.max_receive_message_length", limit),
        ("grpc.max_send_message_length", limit),
    ]


def listen_at(address: str) -> tuple[str, int]:
    """
    >>> listen_at("[::]:50051")
    ('[::]', 50051)
    """
    found = re.fullmatch(r"([^\s/]+):([0-9]+)", address, re.ASCII)
    if found is None:
        want = "HOST:PORT, such as 0.0.0.0:50051 or [::]:0"
        raise ConfigError("listen", address, want)
    if len(found[2]) > 5 or int(found[2]) > 65535:
        raise ConfigError("listen", address, "a port of 0 to 65535")
    return found[1], int(found[2])


def open_port(proxy: "Server", given: argparse.Namespace) -> int:
    """Raises RuntimeError where that cannot be."""
    try:
        return bound(proxy, given)
    except RuntimeError:
        if reason := why_not(*listen_at(given.listen)):
            said = f"listen = {given.listen!r}: want an address that is free: {reason}"
            raise RuntimeError(said) from None
        raise


def why_not(host: str, port: int) -> str:
    """Why a socket cannot be there, which gRPC keeps to its log; empty: it can."""
    try:
        for family, kind, protocol, _, address in socket.getaddrinfo(
            host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        ):
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(address)
                probe.listen()
    except OSError as error:
        return error.strerror or str(error)
    return ""


def bound(proxy: "Server", given: argparse.Namespace) -> int:
    authority = pem("ca", given.ca, CERTIFICATE)
    key, certificate = pair_of(given, "key", "cert")
    if key is None or certificate is None:
        if authority is not None:
            raise ConfigError("cert", None, "a PEM file beside --ca")
        return proxy.add_insecure_port(given.listen)
    credentials = grpc.ssl_server_credentials(
        [(key, certificate)], authority, require_client_auth=authority is not None
    )
    return proxy.add_secure_port(given.listen, credentials)


def pair_of(
    given: argparse.Namespace, key: str, cert: str
) -> tuple[bytes | None, bytes | None]:
    """Both, or neither."""
    files = {field: getattr(given, field) for field in (key, cert)}
    for field, file in files.items():
        if file is None and any(files.values()):
            raise ConfigError(field, None, "a PEM file, as the certificate needs a key")
    return pair(key, files[key], cert, files[cert])


@asynccontextmanager
async def metrics_at(port: int | str | None, host: str) -> AsyncIterator[None]:
    """For Prometheus, by whatever name; prometheus_client's own server gives each
    connection a thread, and all the time that it likes."""
    if port is None:
        yield
        return
    site = Site({"/metrics": exposition, "/": exposition}, names=None)
    async with served("metrics", site, host, port_of("metrics", port)):
        yield


def exposition(request: HttpRequest) -> HttpResponse:
    encode, kind = choose_encoder(",".join(request.headers.get("accept", ())))
    return HttpResponse(kind, encode(REGISTRY))


def ending(channel: "Channel", proxy: "Server") -> dict[str, Any]:
    """What was done, in numbers; of the kill switch's channels there are none."""
    if not is_async_server(proxy) or not is_channel(channel):
        return {}
    here, there = proxy.statistics(), channel.statistics()
    return {
        "requests": {code: count for code, count in here.requests.items() if count},
        "refused": {
            reason: sum(counts.values()) for reason, counts in here.refused.items()
        },
        "attempts": there.attempts,
        "resends": there.resends,
        "retries": there.retries,
    }


def say(given: argparse.Namespace, facts: dict[str, Any]) -> None:
    if given.json:
        print(json.dumps(facts), flush=True)
    elif "listening" in facts:
        print(f"listening on {facts['listening']} for {given.target}", flush=True)
    elif facts:
        codes = ", ".join(f"{n:,} {code}" for code, n in facts["requests"].items())
        print(f"forwarded: {codes or 'nothing'}", flush=True)
