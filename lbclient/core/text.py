"""Makes text from others safe to show in logs, errors and pages: one line, bounded.

For the doors where such text enters: status details, errors of resolvers and stores,
names in requests, settings. Neither function goes by a list of what is bad: shown is
what is known to be harmless.

Such text may have megabytes, and Python's interpreter stands still while a regular
expression is matched: none here has two parts of any length that match the same text.
"""

import re
from reprlib import Repr
from typing import Any
from urllib.parse import unquote

LONGEST = 300  # characters of one text of a peer's
MOST_SHOWN = 200  # characters of a value in an error
MOST_READ = 1000  # characters of a value in an error that are searched for a secret

# Unicode's Default_Ignorable_Code_Point, those of it that are letters or marks, which
# `str.isprintable` takes for printable.
_INVISIBLE = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\ufe00-\ufe0f\uffa0"
    "\U000e0100-\U000e01ef]"
)


def is_printable(text: str) -> bool:
    """Whether a text is all visible, and cannot control a terminal or a log."""
    return text.isprintable() and (text.isascii() or not _INVISIBLE.search(text))


def printable(text: str, most: int = LONGEST) -> str:
    """Shortens a text to so many characters and "...", with "?" for each that is not
    `is_printable`.

    >>> printable("\\x1b[2Jb\\n\\u202e"), printable("search", 3)
    ('?[2Jb??', 'sea...')
    """
    shown = text[:most]
    if not is_printable(shown):
        shown = _INVISIBLE.sub("?", shown)
        shown = "".join(one if one.isprintable() else "?" for one in shown)
    return shown if len(text) <= most else f"{shown}..."


# --- URLs and targets -------------------------------------------------------------

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]{0,19})://")
_TARGET = re.compile(r"(dns|file|ipv4|ipv6|k8s|srv|unix|unix-abstract):", re.IGNORECASE)

_HOST = r"(?:[\w. -]*|\[[0-9A-Za-z:.]{0,45}(?:%\w{0,15})?\])"
# Of a target's list, typos and all. A port may be a name, as those of pods are; what
# is longer, or has another colon in it, may be a password whose "@" was forgotten.
_PORT = r"(?::(?:[a-z][a-z0-9-]{0,14}|[^:@?#]{0,8}))?"
_NAME = re.compile(
    rf"[^:@?#\[\]]*{_PORT}|\[[0-9A-Za-z:.]{{0,45}}(?:%\w{{0,15}})?\]?{_PORT}[0-9]{{0,5}}"
)
# Options behind a host, or what was left of them; a host without a port needs a scheme.
_OPTIONS = re.compile(
    r"([\w.-]{1,253}(:[0-9]{1,5})?)\?(?:[\w.-]{1,100}=.*|\.\.\.)", re.DOTALL
)
_PLACE = re.compile(rf"{_HOST}(?::[0-9]{{1,5}})?")
_IPV6 = re.compile("[0-9A-Fa-f:.]{2,45}(?:%[0-9a-z]{1,15})?")

# Without any of these a text is no URL, and no part of one that may hold a secret.
_SUSPICIOUS = re.compile("://|[@?#]|%[0-9A-Fa-f]{2}")

HIDDEN = "..."


def harmless(text: str) -> str:
    """What of a URL or a target cannot be a secret: its scheme, hosts and ports.

    >>> harmless("dns:///search.prod:50051"), harmless("ipv4:1.2.3.4:1,5.6.7.8:1")
    ('dns:///search.prod:50051', 'ipv4:1.2.3.4:1,5.6.7.8:1')
    >>> harmless("redis://me:word@cache:6379/0?password=word")
    'redis://...@cache:6379/...'
    """
    text = unquote(text)
    if found := _SCHEME.match(text):
        scheme, rest = found[0], text[found.end() :]
        is_target = _TARGET.match(scheme) is not None
        authority, slash, path = rest.partition("/")
        if not authority:
            is_web = found[1].lower() in ("http", "https", "redis", "rediss")
            return f"{scheme}{slash}{_hidden(path) if is_web else _path(scheme, path)}"
        if "@" in path:
            return f"{scheme}{HIDDEN}"  # nobody knows where the host begins
        shown = _place(authority)
        if is_target and shown == authority:
            return f"{scheme}{shown}{slash}{_path(scheme, path)}"
        return f"{scheme}{shown}{slash}{_hidden(path)}"
    if found := _TARGET.match(text):
        return f"{found[0]}{_path(found[0], text[found.end() :])}"
    return _path("file" if text.startswith(("/", "./", "../")) else "", text)


def _hidden(path: str) -> str:
    """But for a number, as Redis has for a database."""
    return path if re.fullmatch("[0-9]{0,5}", path) else HIDDEN


def _place(text: str) -> str:
    """Host and port behind the last "@", if there is one."""
    user, at, place = text.rpartition("@")
    shown = place if _PLACE.fullmatch(place) else HIDDEN
    return f"{HIDDEN if user else ''}{at}{shown}"


def _path(scheme: str, text: str) -> str:
    """What a target has behind its scheme: a path, or a list of names and addresses."""
    if scheme.lower().startswith(("file", "unix")):
        is_safe = not ("?" in text or "#" in text or "//" in text or has_user(text))
        return text if is_safe else HIDDEN
    if "@" in text:
        return _place(text)
    slash = "/" if text.startswith("/") else ""
    names = text.removeprefix("/").split(",")
    found = _OPTIONS.fullmatch(text.removeprefix("/"))
    if found and (scheme or found[2]):
        return f"{slash}{found[1]}?{HIDDEN}"
    is_safe = all(_NAME.fullmatch(name) or _IPV6.fullmatch(name) for name in names)
    return text if is_safe else f"{slash}{HIDDEN}"


def has_user(text: str) -> bool:
    """Whether it may have a user and a password: an "@" behind a ":"."""
    return 0 <= text.find(":") < text.rfind("@")


# --- values in errors -------------------------------------------------------------


class _Brief(Repr):
    """`repr`, bounded at every level, whatever the object says of itself."""

    def repr_str(self, x: str, level: int) -> str:
        if len(x) > MOST_READ:
            # To cut a URL may make a secret look like a host: all of it, or nothing.
            if any(mark in x for mark in ("://", "@", "?", "#", "%")):
                return f"<{len(x):,} characters>"
        elif _SUSPICIOUS.search(x):
            x = harmless(x)
        return super().repr_str(x, level)

    def repr_bytes(self, x: bytes, level: int) -> str:
        if len(x) > MOST_READ or _SUSPICIOUS.search(x.decode("latin-1")):
            return f"<{len(x):,} bytes>"
        return self.repr_instance(x, level)

    def repr_int(self, x: int, level: int) -> str:
        # Python writes no number of more than some 4,300 digits.
        return f"<{x.bit_length():,} bits>" if x.bit_length() > 999 else repr(x)

    def repr_instance(self, x: Any, level: int) -> str:
        try:
            said = repr(x)
        except Exception:
            return super().repr_instance(x, level)  # which says so
        begin, end = said.find("//"), said.rfind("@")
        if 0 <= begin < end:
            said = f"{said[:begin]}//{HIDDEN}{said[end:]}"
        if len(said) > self.maxother:
            half = (self.maxother - len(HIDDEN)) // 2
            said = f"{said[:half]}{HIDDEN}{said[-half:]}"
        return said


_brief = _Brief()
_brief.maxstring = _brief.maxother = MOST_SHOWN


def brief(value: object) -> str:
    """`repr` as an error may show it: bounded, and of URLs what is `harmless`.

    >>> brief("redis://:word@cache"), brief(["a" * 1000])[-4:], brief(0.5)
    ("'redis://...@cache'", "aa']", '0.5')
    """
    return printable(_brief.repr(value), 2 * MOST_SHOWN)
