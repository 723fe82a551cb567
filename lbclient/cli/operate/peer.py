"""How a command reaches one server: options for TLS, PEM files, a channel, calls."""

import argparse
import asyncio
import re
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from lbclient.cli.operate.headers import Headers, add_headers, parse_headers
from lbclient.client.health.statuses import (
    NOT_OFFERED_CODES,
    UNANSWERED,
    status_of,
    unanswered,
)
from lbclient.core.errors import ConfigError
from lbclient.resolvers.target import dial_target

CERTIFICATE, KEY = "CERTIFICATE", "PRIVATE KEY"

LONGEST = 3600.0  # seconds
LATE = 0.05  # seconds before a deadline at which it may have passed already
LONGEST_PATH = 120  # characters, to be shown; the shortest of keys in PEM has 160


# As a host is in a URL, with or without a port.
AUTHORITY = re.compile(r"[0-9A-Za-z._~:%\[\]-]{1,300}")

NO_INSECURE = """\
There is no --insecure: gRPC for Python cannot leave a certificate unchecked. To trust
one that no CA has signed, give it as --cacert."""


def add_connection(parser: argparse.ArgumentParser, whose: str) -> None:
    """Options for TLS and metadata; the names after the first are grpcurl's."""
    add = parser.add_argument
    add("--tls", action="store_true", help="use TLS, with this system's CAs")
    add("--tls-ca", "--cacert", metavar="FILE", help="use TLS, with these CAs, in PEM")
    add("--tls-cert", "--cert", metavar="FILE", help="client certificate, for mTLS")
    add("--tls-key", "--key", metavar="FILE", help="key of --tls-cert")
    add("--tls-name", "--servername", metavar="NAME", help=f"name that {whose} for")
    add("--authority", metavar="NAME",
        help="authority of the calls; with TLS the same as --tls-name")  # fmt: skip
    add_headers(parser)


def check(given: argparse.Namespace) -> None:
    """Raises ConfigError for a `timeout`, or options above, that make no sense."""
    with suppress(ValueError):
        given.timeout = float(given.timeout)
    if not isinstance(given.timeout, float) or not 0.0 < given.timeout <= LONGEST:
        want = f"seconds, above 0, up to {LONGEST:g}"
        raise ConfigError("timeout", given.timeout, want)
    if (given.tls_cert is None) is not (given.tls_key is None):
        raise ConfigError("tls-cert", given.tls_cert, "both it and --tls-key")
    names = ("tls_ca", "tls_cert", "tls_name")
    given.tls = given.tls or any(getattr(given, name) is not None for name in names)
    for field in ("tls_name", "authority"):
        name = getattr(given, field)
        if name is not None and not AUTHORITY.fullmatch(name):
            raise ConfigError(
                field.replace("_", "-"), name, "a host name, optionally with a port"
            )
    if given.tls_name and given.authority not in (None, given.tls_name):
        want = "the same as --tls-name, or one of the two"
        raise ConfigError("authority", given.authority, want)
    given.headers = parse_headers(given.header)


def channel_to(address: str, given: argparse.Namespace) -> grpc.aio.Channel:
    """Raises ConfigError for files that are no PEM files."""
    target = dial_target(address)
    options: list[tuple[str, str | int]] = [("grpc.enable_http_proxy", 0)]
    if name := given.tls_name or given.authority:
        options.append(("grpc.default_authority", name))
    if not given.tls:
        return grpc.aio.insecure_channel(target, options)
    key, certificate = pair("tls-key", given.tls_key, "tls-cert", given.tls_cert)
    credentials = grpc.ssl_channel_credentials(
        pem("tls-ca", given.tls_ca, CERTIFICATE), key, certificate
    )
    return grpc.aio.secure_channel(target, credentials, options)


Reply = bytes | grpc.aio.AioRpcError


@dataclass(frozen=True, slots=True)
class AskedServer:
    """A server and how it is asked; `until` by the loop's time."""

    channel: grpc.aio.Channel
    headers: Headers
    until: float

    async def call(self, method: str, request: bytes = b"") -> Reply:
        send: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]
        send = self.channel.unary_unary(method)
        try:
            call = send(request, timeout=self._left(), metadata=self.headers)
            answer: bytes = await _answer_of(call, call)
            return answer
        except grpc.aio.AioRpcError as error:
            return error

    async def read_first(self, method: str) -> Reply | None:
        """The first message of a stream; None: it ended, or nothing came in time."""
        watch: grpc.aio.UnaryStreamMultiCallable[bytes, bytes]
        watch = self.channel.unary_stream(method)
        call = watch(b"", timeout=self._left(), metadata=self.headers)
        try:
            message = await _answer_of(call, call.read())
            return message if isinstance(message, bytes) else None
        except grpc.aio.AioRpcError as error:
            return None if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED else error
        finally:
            call.cancel()

    def _left(self) -> float:
        return max(0.0, self.until - asyncio.get_running_loop().time())

    def why_unanswered(self, reply: Reply) -> str:
        """Why that is no answer of the server's; "": it is one, be it a status."""
        if isinstance(reply, bytes) or reply.code() not in UNANSWERED:
            return ""
        why, status, _ = unanswered(self.channel, reply, self._left() < LATE)
        return f"refused: {status}" if status else why


@asynccontextmanager
async def reach(
    address: str, given: argparse.Namespace, until: float
) -> AsyncIterator[AskedServer]:
    """Raises ConfigError for files that are no PEM files."""
    async with channel_to(address, given) as channel:
        yield AskedServer(channel, given.headers, until)


def refusal(reply: Reply) -> str:
    """The status of a server that may have the method; "": it answers, or has none."""
    if isinstance(reply, bytes) or reply.code() in NOT_OFFERED_CODES:
        return ""
    return status_of(reply)


def pair(
    key_field: str, key_file: str | None, field: str, file: str | None
) -> tuple[bytes | None, bytes | None]:
    """A key and its certificate, or neither: gRPC would only say that it cannot bind.

    Raises ConfigError.
    """
    key, certificate = pem(key_field, key_file, KEY), pem(field, file, CERTIFICATE)
    if key_file is not None and file is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:  # a key with a password is of no use to gRPC
            context.load_cert_chain(file, key_file, password=lambda: "")
        except (OSError, ValueError) as error:
            want = f"the key, without a password, of {file} ({error})"
            raise ConfigError(key_field, key_file, want) from None
    return key, certificate


def _shown(file: str) -> str:
    """A path; what is given in its place may be a key."""
    is_path = len(file) <= LONGEST_PATH and "-----" not in file
    return file if is_path else f"<{len(file):,} characters>"


def pem(field: str, file: str | None, kind: str) -> bytes | None:
    """Raises ConfigError if there is no `CERTIFICATE`, or `KEY`, in the file."""
    if file is None:
        return None
    try:
        content = Path(file).read_bytes()
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "it is no path"
        want = f"a file that can be read: {why}"
        raise ConfigError(field, _shown(file), want) from None
    if not re.search(rf"-----BEGIN [A-Z0-9 ]*{kind}-----".encode(), content):
        want = f"a PEM file, which has a line -----BEGIN {kind}-----"
        raise ConfigError(field, file, want)
    return content


async def _answer_of(call: Any, answer: Any) -> Any:
    # Imported late: under the kill switch nothing of it is loaded.
    from lbclient.grpc_seam import answer_of

    return await answer_of(call, answer)
