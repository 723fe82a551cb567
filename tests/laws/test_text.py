"""Laws of what may be shown: one line, bounded, and no secret in any part of a URL."""

import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lbclient.admin.snapshot import text_of
from lbclient.cli.operate.inspect import url_of
from lbclient.config import ChannelConfig, ServerConfig
from lbclient.config.redis_url import redis_place
from lbclient.core.errors import ConfigError, ResolveError
from lbclient.core.text import LONGEST, brief, harmless, is_printable, printable
from lbclient.resolvers import parse_target

# --- text -------------------------------------------------------------------------

TEXTS = st.text(st.characters(), max_size=400)


@given(TEXTS, st.integers(1, 400))
@example("\x1b]0;title\x07", 20)
@example("a\u202eb\u200bc\ufeffd\u2066e\u00ade\u3164f\ufe0f", 20)
@example("one\r\ntwo\u2028three\x85four\x00", 20)
@example("\ud800", 3)
def test_what_is_shown_is_one_line_of_what_a_reader_sees(text: str, most: int) -> None:
    shown = printable(text, most)
    assert is_printable(shown)
    assert shown.splitlines() in ([shown], [])
    assert len(shown) <= most + 3
    shown.encode()
    assert printable(shown, most + 3) == shown


@given(TEXTS.filter(lambda text: is_printable(text) and len(text) <= LONGEST))
def test_what_can_be_shown_stays_as_it_is(text: str) -> None:
    assert printable(text) == text


VALUES = st.recursive(
    TEXTS | st.binary() | st.integers() | st.floats() | st.none(),
    lambda each: st.lists(each) | st.dictionaries(TEXTS, each),
)


@given(VALUES)
@example("\\" * 500)
def test_a_value_in_an_error_is_one_line_of_bounded_length(value: object) -> None:
    """`repr` of an error doubles each backslash, of which a value may be full."""
    assert is_printable(brief(value))
    assert len(brief(value)) <= 403
    for error in (ConfigError("picker", value, "x" * 10**5), ResolveError(str(value))):
        assert is_printable(str(error))
        assert is_printable(repr(error))
        assert len(str(error)) <= 1003
        assert len(repr(error)) <= 2 * len(str(error)) + len("ResolveError('')")


def test_a_number_that_python_does_not_write_is_named_by_its_size() -> None:
    said = str(ConfigError("seed", 10**100_000, "less"))
    assert said == "seed = <332,193 bits>: want less"


# --- URLs -------------------------------------------------------------------------

SCHEMES = ("redis", "rediss", "unix", "http", "https", "dns", "ipv4", "k8s", "mysql")

PARTS = (
    "{s}://{t}@host:1/0",
    "{s}://:{t}@host",
    "{s}://me:{t}@host:1/0?fleet=x",
    "{s}://me:a@{t}@host",
    "{s}://me:{t}@",
    "{s}://me:{t}",
    "{s}://:{t}",
    "{s}://:{t}/0",
    "{s}://me:{t}host:6379/0",
    "{s}://:/{t}@host/0",
    "{s}://me:1/{t}@host",
    "{s}://me:1?{t}@host",
    "{s}://me:1#{t}@host",
    "{s}://me:1?{t}=1@host",
    "{s}://host:1/0?password={t}",
    "{s}://host:1/0?fleet=x&{t}=1",
    "{s}://host:1/0?db={t}",
    "{s}://host:1/0?ssl_password={t}",
    "{s}://host:1/0#{t}",
    "{s}://me:a\n{t}@host",
    "{s}://me:{t}\r\n@host",
    "\t{s}://me:{t}@host",
    "{s}:// me:{t}@host",
    "{s}:me:{t}@host:1",
    "{s}:/me:{t}@host:1",
    "{s}:///me:{t}@host:1",
    "{s}:////me:{t}@host:1",
    "{s}:\\\\me:{t}@host",
    "{s}//me:{t}@host",
    "{s}://me%3A{t}%40host",
    "{s}://me%253A{t}%2540host",
    "{s}:///me%3A{t}%40host",
    "{s}%3A%2F%2Fme%3A{t}%40host",
    "me:{t}@host:1",
    "me:{t}host:6379",
    ":{t}",
    "{t}@",
    "[me:{t}@host]:1",
    "ipv6:[me:{t}]@host:1",
    "{s}://[::1]:1:{t}",
    "{s}://me:{t}@host:port",
    "{s}://me:{t}@host:70000",
    "{s}://me:{t}@ho st:1",
)

TOKENS = st.text("abcXYZ0189-_", min_size=20, max_size=60).map(lambda t: f"sQ{t}")


def from_variable(name: str) -> Callable[[str], object]:
    def read(text: str) -> object:
        environ = {name: text}
        for config in (ChannelConfig, ServerConfig):
            config.from_environment(environ)
        return repr(ServerConfig.from_environment(environ))

    return read


def as_target(text: str) -> str:
    parse_target(text, resolve_interval=1.0, rng=Random(1))
    return ""  # it is what somebody wants to reach, and shown as that


def as_store(text: str) -> str:
    config = ServerConfig(quota_store=text)
    place = redis_place("quota_store", text)
    return f"{config!r} {place!r} {place.shown}"


READERS: dict[str, Callable[[str], object]] = {
    "target": as_target,
    "quota_store": as_store,
    "page": url_of,
    "picker": lambda text: ChannelConfig(picker=text),
    "methods": lambda text: ChannelConfig(idempotent=(text,)),
    "attempts": lambda text: ChannelConfig(max_attempts={text: 1}),
    "LBCLIENT_QUOTA_STORE": from_variable("LBCLIENT_QUOTA_STORE"),
    "LBCLIENT_PICKER": from_variable("LBCLIENT_PICKER"),
    "LBCLIENT_QUOTAS": from_variable("LBCLIENT_QUOTAS"),
    "LBCLIENT_CONFIG": from_variable("LBCLIENT_CONFIG"),
    "LBCLIENT_QUOTA_STOR": from_variable("LBCLIENT_QUOTA_STOR"),
}

# "me:..." without anything of a URL is what many settings have: their own words.
BARE = (":{t}", "me:{t}host:6379")


def shown_by(read: Callable[[str], object], text: str) -> Iterator[str]:
    try:
        yield str(read(text))
    except ConfigError as error:
        yield str(error)
        yield repr(error)
        yield from traceback.format_exception(error)


@pytest.mark.parametrize("reader", READERS)
@given(st.sampled_from(PARTS), st.sampled_from(SCHEMES), TOKENS)
def test_a_secret_in_any_part_of_a_url_is_shown_by_nothing(
    reader: str, part: str, scheme: str, token: str
) -> None:
    if part in BARE and reader not in ("target", "quota_store", "page"):
        return
    text = part.replace("{s}", scheme).replace("{t}", token)
    if reader.startswith("LBCLIENT_") and "\0" in text:
        return
    for shown in shown_by(READERS[reader], text):
        assert token not in shown, shown


@given(st.sampled_from(PARTS), st.sampled_from(SCHEMES), TOKENS)
def test_what_is_left_of_a_url_has_no_secret_and_stays_the_same(
    part: str, scheme: str, token: str
) -> None:
    text = part.replace("{s}", scheme).replace("{t}", token)
    assert token not in harmless(text)
    assert harmless(harmless(text)) == harmless(text)
    if part not in BARE:
        assert token not in brief(text)
        assert token not in brief([{"a": text}, text.encode()])
        assert token not in text_of({"a": (text,)})


@given(TEXTS)
def test_anything_can_be_asked_for_what_is_harmless(text: str) -> None:
    assert harmless(harmless(text)) == harmless(text)
    with suppress(ConfigError):
        redis_place("quota_store", text)


def test_a_file_that_cannot_be_read_does_not_show_what_its_name_may_hide(
    tmp_path: Path,
) -> None:
    for place in ("redis://me:word@host", f"{tmp_path}/x?password=word"):
        with pytest.raises(ConfigError) as caught:
            ServerConfig.from_environment({"LBCLIENT_CONFIG": place})
        assert "word" not in str(caught.value)
