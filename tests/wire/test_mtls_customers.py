"""Who pays is who the client's certificate says, whatever its metadata says."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

import lbclient
from lbclient import wire
from lbclient.core.quotas.customer import current
from tests.certificates import certify, issue
from tests.hosts import hosting, stream_stream, unary_unary

METHOD = "/test.Service/"
SPIFFE = "spiffe://prod/mail"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = certify(tmp_path_factory.mktemp("certificates"), "DNS:localhost")
    issue(folder, "mail", f"URI:{SPIFFE},DNS:mail.prod")
    issue(folder, "calendar")
    return folder


async def respond(request: bytes, context: Any) -> bytes:
    return request


async def generate(
    requests: AsyncIterator[bytes], context: Any
) -> AsyncIterator[bytes]:
    async for request in requests:
        yield request


def respond_in_thread(request: bytes, context: Any) -> bytes:
    return request


def generate_in_thread(requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
    yield from requests


METHODS: dict[str, Any] = {
    METHOD + "Respond": unary_unary(respond),
    METHOD + "Thread": unary_unary(respond_in_thread),
    METHOD + "Generate": stream_stream(generate),
    METHOD + "GenerateThread": stream_stream(generate_in_thread),
}


def read(folder: Path, *names: str) -> list[bytes]:
    return [(folder / name).read_bytes() for name in names]


@pytest.fixture
async def server(
    certificates: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[lbclient.Server, int]]:
    """What a service has that is configured by text alone."""
    path = certificates / "lb.toml"
    path.write_text(f"[server]\nquotas = {{ '{SPIFFE}' = 0.0, calendar = 1000.0 }}\n")
    monkeypatch.setenv("LBCLIENT_CONFIG", str(path))
    monkeypatch.setenv("LBCLIENT_CUSTOMER", "mtls")
    key, chain, authority = read(certificates, "server.key", "server.pem", "ca.pem")
    credentials = grpc.ssl_server_credentials(
        [(key, chain)], authority, require_client_auth=True
    )
    async with hosting(METHODS, credentials=credentials) as hosted:
        yield hosted.server, hosted.port


async def test_what_a_handler_calls_is_paid_by_the_certificate(
    certificates: Path,
) -> None:
    """By its channels to other servers, also where this one has no quotas."""

    async def name(request: bytes, context: Any) -> bytes:
        return str(current()).encode()

    key, chain, authority = read(certificates, "server.key", "server.pem", "ca.pem")
    credentials = grpc.ssl_server_credentials(
        [(key, chain)], authority, require_client_auth=True
    )
    methods = {METHOD + "Name": unary_unary(name)}
    hosted = hosting(methods, credentials=credentials, customer="mtls")
    async with hosted as (_, address, _):
        port = int(address.rpartition(":")[2])
        said = await ask(port, certificates, "mail", METHOD + "Name")
        assert said.decode() == SPIFFE


async def ask(port: int, certificates: Path, who: str, method: str) -> Any:
    key, chain, authority = read(certificates, f"{who}.key", f"{who}.pem", "ca.pem")
    credentials = grpc.ssl_channel_credentials(authority, key, chain)
    pretended = ((wire.CUSTOMER_KEY, "calendar"),)
    async with grpc.aio.secure_channel(f"localhost:{port}", credentials) as channel:
        if "Generate" in method:
            stream: Any = channel.stream_stream(method)
            return [one async for one in stream(iter([b"x"]), metadata=pretended)]
        unary: Any = channel.unary_unary(method)
        return await unary(b"x", metadata=pretended)


@pytest.mark.parametrize("method", METHODS)
async def test_the_certificate_says_who_pays(
    server: tuple[lbclient.Server, int], certificates: Path, method: str
) -> None:
    its, port = server
    assert await ask(port, certificates, "calendar", method)
    with pytest.raises(grpc.aio.AioRpcError, match="used what it may") as caught:
        await ask(port, certificates, "mail", method)
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert await ask(port, certificates, "client", method), "it has no limit"
    seen = its.statistics()
    assert seen.refused["quota"]["CRITICAL"] == 1
    assert set(seen.usage) == {SPIFFE, "calendar", "localhost", ""}


async def test_who_shows_no_certificate_is_one_of_the_others() -> None:
    hosted = hosting(METHODS, default_quota=1000.0, customer="mtls")
    async with hosted as (server, _, channel):
        method: Any = channel.unary_unary(METHOD + "Respond")
        await method(b"x", metadata=((wire.CUSTOMER_KEY, "mail"),))
        assert set(server.statistics().usage) == {""}
        assert server.statistics().signal_failures == 0
