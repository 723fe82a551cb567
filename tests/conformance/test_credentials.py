"""TLS and mTLS on addresses that were found by name, and credentials of calls."""

from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest

from tests.certificates import certify
from tests.conformance.both import (
    Side,
    answered,
    attempted,
    each_kind,
    on_both,
    once,
    outcome,
)
from tests.conformance.script import Script
from tests.hosts import add_methods, hosting


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Files by name: an authority, a server that is `localhost` alone, a client."""
    folder = certify(tmp_path_factory.mktemp("certificates"), "DNS:localhost")
    return {file.name: file.read_bytes() for file in folder.iterdir()}


Ports = dict[str, int]


@pytest.fixture
async def ports(script: Script, certificates: dict[str, bytes]) -> AsyncIterator[Ports]:
    """Of one server: with TLS, and where clients must have a certificate, too."""
    pairs = [(certificates["server.key"], certificates["server.pem"])]
    server = grpc.aio.server()
    add_methods(server, script.methods())
    tls = grpc.ssl_server_credentials(pairs)
    mtls = grpc.ssl_server_credentials(pairs, certificates["ca.pem"], True)
    yield_ports = {
        "tls": server.add_secure_port("127.0.0.1:0", tls),
        "mtls": server.add_secure_port("127.0.0.1:0", mtls),
    }
    await server.start()
    yield yield_ports
    await server.stop(None)


class Told(grpc.AuthMetadataPlugin):
    """Gives the header that it was made with, or fails with it."""

    def __init__(self, given: Any) -> None:
        self.given = given

    def __call__(self, context: Any, callback: Any) -> None:
        if isinstance(self.given, Exception):
            callback((), self.given)
        else:
            callback((("authorization", self.given),), None)


def of_call(given: Any) -> grpc.CallCredentials:
    return grpc.metadata_call_credentials(Told(given))


def credentials(
    certificates: dict[str, bytes], who: str = "nobody"
) -> grpc.ChannelCredentials:
    if who == "nobody":
        return grpc.ssl_channel_credentials(certificates["ca.pem"])
    if who == "a stranger":
        return grpc.ssl_channel_credentials()
    return grpc.ssl_channel_credentials(
        certificates["ca.pem"], certificates["client.key"], certificates["client.pem"]
    )


async def _seen(side: Side, kind: str, channel: Any, **options: Any) -> Any:
    call = await side.begin(
        kind, sending="write", on=channel, timeout=5, do="credentials", **options
    )
    if hasattr(call, "done_writing"):
        await outcome(call.done_writing())
    last = (await answered(call, kind))[-1:]
    if last and isinstance(last[0], BaseException):
        # Of a connection: the words name addresses and certificates.
        code = await call.code()
        return type(last[0]).__name__, code, code.name in (await call.details())
    return last, await call.code(), await call.trailing_metadata()


@on_both
@once
@each_kind
@pytest.mark.parametrize("target", ["dns:///localhost", "localhost"])
@pytest.mark.parametrize(
    ("port", "who"), [("tls", "nobody"), ("tls", "client"), ("mtls", "client")]
)
async def test_a_server_found_by_name_is_who_it_says(
    side: Side,
    kind: str,
    target: str,
    port: str,
    who: str,
    certificates: dict[str, bytes],
    ports: Ports,
) -> Any:
    channel = side.secure(f"{target}:{ports[port]}", credentials(certificates, who))
    return await _seen(side, kind, channel, wait_for_ready=True)


@on_both
@once
@each_kind
@pytest.mark.parametrize(
    ("target", "port", "who"),
    [
        ("ipv4:127.0.0.1", "tls", "nobody"),
        ("dns:///localhost", "tls", "a stranger"),
        ("dns:///localhost", "mtls", "nobody"),
    ],
    ids=["another name", "another authority", "no certificate"],
)
async def test_who_is_not_known_is_not_spoken_to(
    side: Side,
    kind: str,
    target: str,
    port: str,
    who: str,
    certificates: dict[str, bytes],
    ports: Ports,
) -> Any:
    channel = side.secure(f"{target}:{ports[port]}", credentials(certificates, who))
    call = await side.begin(kind, sending="write", on=channel, timeout=5)
    (error,) = await answered(call, kind)
    return isinstance(error, grpc.aio.AioRpcError), error.code(), await call.code()


@on_both
@once
@each_kind
async def test_the_name_to_expect_may_be_given(
    side: Side, kind: str, certificates: dict[str, bytes], ports: Ports
) -> Any:
    channel = side.secure(
        f"ipv4:127.0.0.1:{ports['tls']}",
        credentials(certificates),
        options=(("grpc.ssl_target_name_override", "localhost"),),
    )
    return await _seen(side, kind, channel)


@on_both
@once
@each_kind
async def test_plain_text_is_not_spoken_with_a_secure_server(
    side: Side, kind: str, ports: Ports
) -> Any:
    channel = side.insecure(f"127.0.0.1:{ports['tls']}")
    call = await side.begin(kind, sending="write", on=channel, timeout=5)
    (error,) = await answered(call, kind)
    return isinstance(error, grpc.aio.AioRpcError), error.code()


@on_both
@once
@each_kind
@pytest.mark.parametrize(
    ("level", "given"),
    [
        ("call", "token"),
        ("channel", "token"),
        ("call", ""),
        ("channel", ""),
        ("call", LookupError("no token")),
    ],
    ids=str,
)
async def test_credentials_of_a_call_are_sent(
    side: Side,
    kind: str,
    given: Any,
    level: str,
    certificates: dict[str, bytes],
    ports: Ports,
) -> Any:
    of_channel = credentials(certificates)
    if level == "channel":
        of_channel = grpc.composite_channel_credentials(of_channel, of_call(given))
    channel = side.secure(f"dns:///localhost:{ports['tls']}", of_channel)
    options = {"credentials": of_call(given)} if level == "call" else {}
    return await _seen(side, kind, channel, wait_for_ready=True, **options)


@on_both
@once
async def test_credentials_of_a_channel_cannot_be_had(
    side: Side, certificates: dict[str, bytes], ports: Ports
) -> Any:
    of_channel = grpc.composite_channel_credentials(
        credentials(certificates), of_call(LookupError("no token"))
    )
    channel = side.secure(f"dns:///localhost:{ports['tls']}", of_channel)
    call = await side.begin("unary_unary", on=channel, timeout=1)
    error = await outcome(call)
    return isinstance(error, grpc.aio.AioRpcError), error.code()


@on_both
@once
@each_kind
async def test_credentials_of_a_call_add_to_those_of_the_channel(
    side: Side, kind: str, certificates: dict[str, bytes], ports: Ports
) -> Any:
    both = grpc.composite_call_credentials(of_call("one"), of_call("two"))
    channel = side.secure(f"dns:///localhost:{ports['tls']}", credentials(certificates))
    return await _seen(side, kind, channel, wait_for_ready=True, credentials=both)


@on_both
@each_kind
async def test_credentials_are_not_sent_in_the_clear(side: Side, kind: str) -> Any:
    seen = await outcome(
        side.begin(kind, sending="write", credentials=of_call("secret"))
    )
    return seen if isinstance(seen, Exception) else await answered(seen, kind)


@on_both
@once
@each_kind
async def test_local_credentials_allow_credentials_of_calls(
    side: Side, kind: str, script: Script
) -> Any:
    server, local = grpc.aio.server(), grpc.local_server_credentials()
    async with hosting(script.methods(), server, credentials=local) as (_, address, _):
        channel = side.secure(address, grpc.local_channel_credentials())
        seen = await _seen(side, kind, channel, credentials=of_call("token"))
        await channel.close()
    return seen


@on_both
@once
@pytest.mark.parametrize("given", [None, "text", object()], ids=["None", "text", "it"])
async def test_what_are_no_credentials_is_refused(side: Side, given: Any) -> Any:
    return isinstance(attempted(side.library.secure_channel, "a:1", given), Exception)
