"""Metadata from the command line, as grpcurl has it: `-H 'authorization: Bearer x'`."""

import argparse
import base64
import binascii
import re

from lbclient.core.errors import ConfigError

# gRPC over HTTP/2: Header-Name and ASCII-Value.
KEY = re.compile(r"[0-9a-z_.-]{1,200}")
VALUE = re.compile(r"[ -~]*")
LONGEST = 8192  # bytes of all of it, as what servers take of a request by default

Headers = tuple[tuple[str, str | bytes], ...]


def add_headers(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-H",
        "--header",
        action="append",
        default=[],
        metavar="KEY:VALUE",
        help="metadata of each call; may be repeated; base64 for a key in -bin",
    )


def parse_headers(texts: list[str]) -> Headers:
    """Raises ConfigError, which does not show a value: that may be a secret."""
    if sum(map(len, texts)) > LONGEST:
        raise ConfigError("header", "...", f"{LONGEST:,} characters at most in all")
    return tuple(map(_parse, texts))


def _parse(text: str) -> tuple[str, str | bytes]:
    """
    >>> _parse("Authorization: Bearer x"), _parse("trace-bin: AAE=")
    (('authorization', 'Bearer x'), ('trace-bin', b'\\x00\\x01'))
    """
    key, colon, value = text.partition(":")
    key, value = key.strip().lower(), value.strip()
    if not colon:
        raise ConfigError("header", f"<{len(text):,} characters>", "KEY:VALUE")
    want = "a key of letters, digits, '-', '_' and '.', and not in gRPC's own grpc-"
    if not KEY.fullmatch(key):  # perhaps a value, whose key was forgotten
        raise ConfigError("header", f"<{len(key):,} characters>: ...", want)
    if key.startswith("grpc-"):
        raise ConfigError("header", f"{key}: ...", want)
    if not key.endswith("-bin"):
        if not VALUE.fullmatch(value):
            raise ConfigError("header", f"{key}: ...", "a value in printable ASCII")
        return key, value
    try:
        # Padding may be left out (gRPC over HTTP/2, Binary-Header).
        padded = value + "=" * (-len(value) % 4)
        return key, base64.b64decode(padded, validate=True)
    except (binascii.Error, ValueError):
        raise ConfigError("header", f"{key}: ...", "a value in base64") from None
