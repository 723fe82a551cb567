"""How a command reaches one server: options for TLS, PEM files, a channel, a call."""

import argparse
import asyncio
import re
import ssl
from contextlib import suppress
from pathlib import Path

import grpc

from lbclient.core.errors import ConfigError
from lbclient.grpc_seam import dial_target

CERTIFICATE, KEY = "CERTIFICATE", "PRIVATE KEY"

LONGEST = 3600.0  # seconds
LONGEST_PATH = 120  # characters, to be shown; the shortest of keys in PEM has 160


def add_tls(parser: argparse.ArgumentParser, whose: str) -> None:
    add = parser.add_argument
    add("--tls", action="store_true", help="use TLS, with this system's CAs")
    add("--tls-ca", metavar="FILE", help="use TLS, with these CAs, in PEM")
    add("--tls-cert", metavar="FILE", help="client certificate, for mTLS")
    add("--tls-key", metavar="FILE", help="key of --tls-cert")
    add("--tls-name", metavar="NAME", help=f"name that {whose} for")


def check(given: argparse.Namespace) -> None:
    """Raises ConfigError for a `timeout`, or TLS options, that make no sense."""
    with suppress(ValueError):
        given.timeout = float(given.timeout)
    if not isinstance(given.timeout, float) or not 0.0 < given.timeout <= LONGEST:
        want = f"seconds, above 0, up to {LONGEST:g}"
        raise ConfigError("timeout", given.timeout, want)
    if (given.tls_cert is None) is not (given.tls_key is None):
        raise ConfigError("tls-cert", given.tls_cert, "both it and --tls-key")
    names = ("tls_ca", "tls_cert", "tls_name")
    given.tls = given.tls or any(getattr(given, name) is not None for name in names)


def channel_to(address: str, given: argparse.Namespace) -> grpc.aio.Channel:
    """Raises ConfigError for files that are no PEM files."""
    target = dial_target(address)
    options: list[tuple[str, str | int]] = [("grpc.enable_http_proxy", 0)]
    if not given.tls:
        return grpc.aio.insecure_channel(target, options)
    if given.tls_name:
        options.append(("grpc.default_authority", given.tls_name))
    key, certificate = pair("tls-key", given.tls_key, "tls-cert", given.tls_cert)
    credentials = grpc.ssl_channel_credentials(
        pem("tls-ca", given.tls_ca, CERTIFICATE), key, certificate
    )
    return grpc.aio.secure_channel(target, credentials, options)


async def call(
    channel: grpc.aio.Channel, method: str, request: bytes, until: float
) -> bytes | grpc.aio.AioRpcError:
    left = until - asyncio.get_running_loop().time()
    send: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(method)
    try:
        return await send(request, timeout=max(0.0, left))
    except grpc.aio.AioRpcError as error:
        return error


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
