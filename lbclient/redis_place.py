"""Where a fleet's Redis is, as `ServerConfig.quota_store` has it in one line of text.

redis://user:password@host:port/db, rediss:// for TLS, or unix:///path: as redis-py and
others write it. `?fleet=name` tells fleets apart that share one Redis. Passwords stay
out of every error.
"""

import re
from typing import NamedTuple
from urllib.parse import parse_qsl, urlencode, urlsplit

from lbclient.errors import ConfigError

FORM = "redis://host:port/db?fleet=name, or rediss:// or unix:// of that kind"
SCHEMES = ("redis", "rediss", "unix")

FLEET = "lbclient"  # of whoever names none
NAME = re.compile(r"[\w.-]{1,100}")

# Of what redis-py would take, what says where to connect; all else is ours to choose.
OPTIONS = re.compile("fleet|db|ssl_[a-z_]+")


class RedisPlace(NamedTuple):
    url: str  # for redis-py
    fleet: str
    shown: str  # without its password


def redis_place(field: str, text: str) -> RedisPlace:
    """Raises ConfigError for what is no such place.

    >>> redis_place("quota_store", "redis://:secret@cache/0?fleet=search")[1:]
    ('search', 'redis://...@cache/0?fleet=search')
    """
    shown = re.sub("//.*@", "//...@", text)
    try:
        parts = urlsplit(text)
        is_port = parts.port != 0
    except ValueError:  # not a number, or beyond 65535
        raise ConfigError(field, shown, FORM) from None
    where = parts.path.strip("/") if parts.scheme == "unix" else parts.hostname
    is_db = parts.scheme == "unix" or re.fullmatch("/?|/[0-9]+", parts.path)
    if parts.scheme not in SCHEMES or not (where and is_port and is_db):
        raise ConfigError(field, shown, FORM)
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    for name in options:
        if not OPTIONS.fullmatch(name):
            raise ConfigError(field, shown, f"{FORM}, and no option {name!r}")
    fleet = options.pop("fleet", FLEET)
    if not NAME.fullmatch(fleet):
        want = "the fleet's name of 1 to 100 letters, digits, '_', '.' and '-'"
        raise ConfigError(field, shown, want)
    url = parts._replace(query=urlencode(options)).geturl()
    return RedisPlace(url, fleet, shown)
