"""With `LBCLIENT_DISABLE`: grpc.aio's own channel, also to targets that only we know.

Those are resolved once, while the channel is made, which waits for it. Nothing is asked
again: a list that changes, or a pod that moves, is found by the next start.
"""

import asyncio
import logging
from collections.abc import Sequence
from ipaddress import ip_address
from random import Random
from socket import SOCK_STREAM
from threading import Thread
from typing import Any

import grpc

from lbclient import originals
from lbclient.core.errors import ResolveError
from lbclient.core.model import Endpoint
from lbclient.core.protocols import Resolver
from lbclient.log import Log
from lbclient.resolvers import parse_target
from lbclient.resolvers.target import OWN_SCHEMES, dial_target

logger = Log(__name__)

Options = Sequence[tuple[str, Any]]  # of grpc.aio's channels

PATIENCE = 10.0  # seconds, for an answer
INTERVAL = 30.0  # seconds; nobody waits for a second answer

# grpc.aio's default is `pick_first`: one address would get the calls of all clients.
ROUND_ROBIN = '{"loadBalancingConfig": [{"round_robin": {}}]}'
POLICIES = ("grpc.service_config", "grpc.lb_policy_name")


def plain_channel(
    target: str,
    credentials: grpc.ChannelCredentials | None,
    options: Options | None,
    compression: grpc.Compression | None,
    interceptors: Sequence[grpc.aio.ClientInterceptor] | None,
) -> grpc.aio.Channel:
    """grpc.aio's own channel. Raises ResolveError where one of our targets has no
    answer in time, and ConfigError where it is none."""
    words = "LBCLIENT_DISABLE is set: this channel is grpc.aio's own"
    if target.partition(":")[0].lower() in OWN_SCHEMES:
        name = target
        addresses, authority = resolved(target)
        target, options = plain_target(addresses), with_defaults(options, authority)
        more = "%s; %s was resolved once: %s"
        logger.info(more, words, name, target, channel=name)
    else:
        logger.info(words, channel=target)
    arguments = options, compression, interceptors
    with originals.making():
        if credentials is None:
            return grpc.aio.insecure_channel(target, *arguments)
        return grpc.aio.secure_channel(target, credentials, *arguments)


def with_defaults(options: Options | None, authority: str) -> Options:
    """The user's options, and what they do not speak of."""
    given = dict(options or ())
    if not any(name in given for name in POLICIES):
        given["grpc.service_config"] = ROUND_ROBIN
    if authority:
        given.setdefault("grpc.default_authority", authority)
    return tuple(given.items())


def resolved(target: str) -> tuple[list[str], str]:
    """The addresses that a target has now, and what calls to them are addressed to.

    In a thread, for the loop that runs here, if one does, cannot be waited for.
    """
    resolver, authority = parse_target(target, resolve_interval=INTERVAL, rng=Random())
    outcome: list[list[str] | BaseException] = []

    def work() -> None:
        try:
            outcome.append(asyncio.run(_addresses(resolver)))
        except BaseException as error:
            outcome.append(error)

    thread = Thread(target=work, name="lbclient resolves", daemon=True)
    thread.start()
    thread.join(PATIENCE + 1.0)
    if not outcome:
        raise ResolveError(f"{target}: no answer in {PATIENCE:g} s")
    if isinstance(outcome[0], BaseException):
        raise ResolveError(f"{target}: {outcome[0]}") from outcome[0]
    first = outcome[0][0]
    # Several addresses have no name in common, unless the target is one.
    return outcome[0], authority or ("" if first.startswith("unix:") else first)


async def _addresses(resolver: Resolver) -> list[str]:
    """The endpoints' addresses; those that leave only if there are no others."""
    endpoints = await _first(resolver)
    staying = [one for one in endpoints if not one.lame_duck] or endpoints
    loop = asyncio.get_running_loop()
    found: dict[str, None] = {}
    for endpoint in staying:
        host, _, port = endpoint.address.rpartition(":")
        if len(staying) == 1 or _family(endpoint.address):
            found[endpoint.address] = None
            continue
        if endpoint.address.startswith("unix:"):  # of which gRPC takes no list
            _tell_ignored(1)
            continue
        try:
            answers = await loop.getaddrinfo(host, int(port), type=SOCK_STREAM)
        except OSError as error:
            address = endpoint.address
            logger.about(logging.WARNING, backend=address, reason=error)
            continue
        for *_, (ip, *_) in answers:
            found[f"[{ip}]:{port}" if ":" in str(ip) else f"{ip}:{port}"] = None
    if not found:
        raise ResolveError("no endpoint that gRPC could connect to")
    return list(found)


async def _first(resolver: Resolver) -> Sequence[Endpoint]:
    answers: Any = resolver.watch()
    try:
        async with asyncio.timeout(PATIENCE):
            async for endpoints in answers:
                if known := tuple(endpoints):
                    return known
    except TimeoutError:
        raise ResolveError(f"no endpoints in {PATIENCE:g} s") from None
    finally:
        await answers.aclose()
    raise ResolveError("the resolver ended")


def plain_target(addresses: Sequence[str]) -> str:
    """What gRPC is to connect to: one address, or a list of one family.

    >>> plain_target(["a:1"]), plain_target(["10.0.0.1:1", "10.0.0.2:1", "[::1]:1"])
    ('a:1', 'ipv4:10.0.0.1:1,10.0.0.2:1')
    """
    if len(addresses) == 1:
        return dial_target(addresses[0])
    by_family: dict[int, list[str]] = {4: [], 6: []}
    for address in addresses:
        if version := _family(address):
            by_family[version].append(address)
    version, most = max(by_family.items(), key=lambda family: len(family[1]))
    if left_out := len(addresses) - len(most):
        _tell_ignored(left_out)
    return f"ipv{version}:{','.join(most)}"


def _tell_ignored(count: int) -> None:
    words = "endpoints ignored, because a gRPC target has one address family: %d"
    logger.warning(words, count)


def _family(address: str) -> int:
    """4 or 6; 0 for a name or a socket."""
    try:
        return ip_address(
            address.rpartition(":")[0].strip("[]").partition("%")[0]
        ).version
    except ValueError:
        return 0
