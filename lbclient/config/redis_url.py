"""Where a fleet's Redis is, as `ServerConfig.quota_store` has it in one line of text.

redis://user:password@host:port/db, rediss:// for TLS, or unix:///path: as redis-py and
others write it. `?fleet=name` tells fleets apart that share one Redis.

An error shows what was understood and can be no secret, and nothing else: of a text
that is no such URL only the scheme, as nobody knows which part of it is the password.
"""

import re
from typing import NamedTuple
from urllib.parse import SplitResult, parse_qsl, unquote, urlencode, urlsplit

from lbclient.core.errors import ConfigError
from lbclient.core.text import HIDDEN, has_user, is_printable

FORM = "redis://host:port/db?fleet=name, or rediss:// or unix:// of that kind"
ESCAPED = f"{FORM}; in a password write @ : / ? # % as %40 and so on"
SCHEMES = ("redis", "rediss", "unix")

FLEET = "lbclient"  # of whoever names none
NAME = re.compile(r"[\w.-]{1,100}")  # as long as a customer's
# A host name has at most 253 characters (RFC 1035), an IPv6 address in text 45.
HOST = re.compile(r"[\w.-]{1,253}|[0-9A-Fa-f:.]{2,45}(%\w+)?")

# Of what redis-py would take, what says where to connect; all else is ours to choose.
OPTIONS = re.compile("fleet|db|ssl_[a-z_]+")
# Those that people try, and what is almost an option; any other word may be a part of a
# password.
REFUSED = ("username", "password", "protocol", "client_name", "max_connections")


class RedisPlace(NamedTuple):
    url: str  # for redis-py
    fleet: str
    shown: str  # without what may be a secret
    secrets: tuple[str, ...]  # as redis-py tells them to Redis

    def __repr__(self) -> str:
        return f"<{self.shown}>"


def redis_place(field: str, text: str) -> RedisPlace:
    """Raises ConfigError for what is no such place.

    >>> place = redis_place("quota_store", "redis://:secret@cache/0?fleet=search")
    >>> place.fleet, place.shown, place.secrets
    ('search', 'redis://...@cache/0?fleet=search', ('secret',))
    """
    try:
        parts = urlsplit(text)
        is_sound = is_printable(text) and "://" in text and _is_place(parts)
    except ValueError:  # a port that is no number, or beyond 65535
        is_sound = False
    if not is_sound:
        raise ConfigError(field, _shown_of_unsound(text), ESCAPED)
    shown = _shown(parts)
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    for name in options:
        if not OPTIONS.fullmatch(name):
            want = f"{FORM}, and no other option{_which(name)}"
            raise ConfigError(field, shown, want)
    fleet = options.pop("fleet", FLEET)
    if not NAME.fullmatch(fleet):
        want = "the fleet's name of 1 to 100 letters, digits, '_', '.' and '-'"
        raise ConfigError(field, shown, want)
    if fleet != FLEET:
        shown = f"{shown}?fleet={fleet}"
    url = parts._replace(query=urlencode(options)).geturl()
    told = [unquote(word) for word in (parts.username, parts.password) if word]
    told += [value for name, value in options.items() if name != "db"]
    return RedisPlace(url, fleet, shown, tuple(filter(None, told)))


def _which(option: str) -> str:
    """Names one that is refused, if it can be no part of a password."""
    if option in REFUSED:
        return f" {option!r}"
    from difflib import get_close_matches  # for errors only

    meant = get_close_matches(option.lower(), ("fleet", "db"), 1, cutoff=0.8)
    return f" {option!r}; perhaps {meant[0]!r}" if meant else ""


def _is_place(parts: SplitResult) -> bool:
    """Raises ValueError for a port that is none."""
    if parts.scheme not in SCHEMES or parts.fragment or parts.port == 0:
        return False
    if parts.scheme == "unix":
        host = parts.netloc.rpartition("@")[2]
        is_path = not has_user(unquote(parts.path)) and bool(parts.path.strip("/"))
        return not host and is_path
    is_db = re.fullmatch("/?|/[0-9]{1,5}", parts.path)
    return bool(is_db and HOST.fullmatch(parts.hostname or ""))


def _shown_of_unsound(text: str) -> str:
    if re.fullmatch(r"[\w.-]{1,253}:[0-9]{1,5}", text):
        return text
    scheme = re.match(rf"({'|'.join(SCHEMES)})://", text)
    return f"{scheme[0] if scheme else ''}{HIDDEN}"


def _shown(parts: SplitResult) -> str:
    user, at, host = parts.netloc.rpartition("@")
    return f"{parts.scheme}://{HIDDEN if user else ''}{at}{host}{parts.path}"
