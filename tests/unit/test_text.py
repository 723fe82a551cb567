"""Where text of others is kept: names and addresses are short, and can be printed."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from random import Random
from time import thread_time

import pytest

from lbclient.admin.http import neighbourhood
from lbclient.cli.operate.peer import CERTIFICATE, KEY, pair, pem
from lbclient.config.redis_url import redis_place
from lbclient.core.counting.call_counts import LONGEST, OTHERS, CallCounts
from lbclient.core.criticality import Criticality
from lbclient.core.errors import ConfigError, ResolveError
from lbclient.core.model import LONGEST_ADDRESS, LONGEST_ZONE, Endpoint
from lbclient.core.protocols import FleetUsage
from lbclient.core.quotas.quota import Quota, room
from lbclient.core.text import MOST_READ, MOST_SHOWN, brief, harmless
from lbclient.resolvers import parse_target
from lbclient.resolvers.endpoint_slices import Slices
from lbclient.resolvers.file import ADDRESS
from lbclient.resolvers.listing import ordinal
from lbclient.resolvers.target import SCHEMES
from lbclient.server.quotas.quota_enforcer import _sound
from lbclient.server.quotas.redis_store import without
from lbclient.sim.scenario import parse
from lbclient.subsets.numbered import NAMED

UNPRINTABLE = ["a\n:1", "a\x1b[2J:1", "a\u202e:1", "a\u200b:1", "a\ufeff:1", "\x85:1"]


@pytest.mark.parametrize("text", [*UNPRINTABLE, "x" * 401])
def test_an_address_or_zone_is_short_and_can_be_printed(text: str) -> None:
    said = "characters, all of them printable"
    with pytest.raises(ConfigError, match=said):
        Endpoint(text)
    with pytest.raises(ConfigError, match=said):
        Endpoint("a:1", zone=text)


def test_the_longest_names_of_the_world_are_welcome() -> None:
    host = ".".join(["x" * 61] * 4)  # 247; DNS has 253
    assert Endpoint(f"{host}:50051").address.endswith(":50051")
    assert Endpoint(f"unix:/{'x' * 106}").address.startswith("unix:")
    assert Endpoint("x" * LONGEST_ADDRESS, zone="z" * LONGEST_ZONE).weight == 1.0
    assert Endpoint("bücher.example:1", zone="Zürich").zone == "Zürich"


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_target_is_shown_whole_with_every_scheme(scheme: str) -> None:
    """Of a URL that is no target the path is hidden, as it may have a password."""
    assert harmless(f"{scheme}://orders:50051/x") == f"{scheme}://orders:50051/x"
    assert harmless("ftp://orders:50051/x") == "ftp://orders:50051/..."


def test_a_zone_is_text() -> None:
    with pytest.raises(ConfigError, match="zone = 7"):
        Endpoint("a:1", zone=7)  # type: ignore[arg-type]


@pytest.mark.parametrize("path", ["/a.B/\x1b[2J", "/a.B/\n", f"/a.B/{'x' * LONGEST}"])
def test_a_method_that_cannot_be_shown_is_one_of_the_others(path: str) -> None:
    handled = CallCounts(("OK",))
    handled.of("unary_unary", path)["OK"] += 1
    assert handled.read() == {OTHERS: {"OK": 1}}


def test_a_listed_customer_goes_by_whatever_name_the_config_has() -> None:
    quota = Quota({"a\u200db": room(1.0)}, room(1.0))
    for name in ("a\u200db", "c\u200dd", "mail"):
        quota.enter(name, Criticality.CRITICAL, 0.0)
    assert quota.pooled == 1
    assert set(quota.usage(0.0)) == {"", "a\u200db", "mail"}


def test_a_store_tells_of_no_name_that_cannot_be_shown() -> None:
    told = {"mail": 1.0, "a\x1b": 1.0, "x" * 101: 1.0, "b\u200d": 1.0}
    sound = _sound(FleetUsage(2, told, told), {"b\u200d"})
    assert set(sound.own) == set(sound.total) == {"mail", "b\u200d"}
    assert sound.malformed == 4


# --- secrets ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ("with 'opensesame'", "with '...'"),
        ("with 'opense'", "with '...'"),  # cut
        ("open the door", "... the door"),  # better too much than too little
        ("opensesame opensesame", "... ..."),
        ("nothing of it", "nothing of it"),
    ],
)
def test_what_redis_repeats_of_a_password_is_left_out(words: str, shown: str) -> None:
    assert without(words, "opensesame") == shown


def test_a_short_secret_is_left_out_where_it_is_a_word() -> None:
    assert without("a bad 'pw' of a powwow", "pw") == "a bad '...' of a powwow"
    assert without("no such db", "a.b") == "no such db"


def test_secrets_are_known_as_redis_is_told_them() -> None:
    place = redis_place("quota_store", "rediss://me:a%40b@h/0?ssl_password=c&db=1")
    assert place.secrets == ("me", "a@b", "c")
    assert repr(place) == "<rediss://...@h/0>"


@pytest.mark.parametrize("field", ["tls-key", "tls-cert"])
def test_a_key_in_place_of_its_path_is_not_shown(field: str) -> None:
    key = "-----BEGIN PRIVATE KEY-----\nMIGHAgEAMBMGByqGSM49\n-----END PRIVATE KEY-----"
    bare = "MIGHAgEAMBMGByqGSM49" * 10
    for wrong in (key, bare, key.replace("\n", " "), f"{bare}\0"):
        for read in (lambda w: pem(field, w, KEY), lambda w: pair(field, w, field, w)):
            with pytest.raises(ConfigError) as caught:
                read(wrong)
            assert "MIGHA" not in f"{caught.value} {caught.value!r}"
            assert "characters>" in str(caught.value)


def test_a_path_that_leads_nowhere_is_shown() -> None:
    with pytest.raises(ConfigError, match="tls-ca = '/nowhere': want a file"):
        pem("tls-ca", "/nowhere", CERTIFICATE)


# --- depth, and more than there can be --------------------------------------------


@pytest.mark.parametrize("deep", ["[" * 100_000, "{a=" * 50_000])
def test_a_scenario_that_is_nested_deeply_is_no_toml(deep: str) -> None:
    with pytest.raises(ConfigError, match="want TOML"):
        parse(f"speeds = {deep}")


def test_slices_without_end_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lbclient.resolvers.endpoint_slices.MAX_ENDPOINTS", 10)
    slices = Slices("grpc")

    def events() -> Iterator[bytes]:
        for number in range(1000):
            yield (
                b'{"type": "ADDED", "object": {"addressType": "IPv4", "metadata":'
                b' {"resourceVersion": "7", "name": "s%d"}}}' % number
            )

    with pytest.raises(ResolveError, match="more than 10 slices"):
        slices.apply(events(), "1")


# --- who is one neighbour -----------------------------------------------------------


@pytest.mark.parametrize(
    ("peer", "whose"),
    [
        (("10.0.0.3", 5), "10.0.0.3"),
        (("::ffff:10.0.0.3", 5, 0, 0), "10.0.0.3"),
        (("2001:db8:1:2:3::4", 5, 0, 0), "2001:db8:1:2::"),
        (("fe80::1%eth0", 5, 0, 2), "fe80::"),
        (None, ""),
    ],
)
def test_connections_of_one_neighbour_count_together(peer: object, whose: str) -> None:
    assert neighbourhood(peer) == whose


# --- megabytes ----------------------------------------------------------------------

UNITS = (":", "/", "//", "@", ":@", "1", "1-", "-1", "a", "a.", "_a.", "[", "%61", "a,")
READERS: dict[str, Callable[[str], object]] = {
    "harmless": harmless,
    "a path that is harmless": lambda text: harmless(f"/{text}"),
    "a file that is harmless": lambda text: harmless(f"file:///{text}"),
    "a URL that is harmless": lambda text: harmless(f"redis://{text}"),
    "brief": brief,
    "bytes in brief": lambda text: brief(text.encode()),
    "an object in brief": lambda text: brief(Said(text)),
    "quota_store": lambda text: redis_place("quota_store", f"unix:///{text}"),
    "target": lambda text: parse_target(text, resolve_interval=1.0, rng=Random(1)),
    "ordinal": ordinal,
    "numbered": NAMED.fullmatch,
    "file": ADDRESS.fullmatch,
}


class Said:
    """Says of itself what it is told to say."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


def seconds(read: Callable[[str], object], text: str) -> float:
    """Of this thread, the shortest of three."""
    took = list[float]()
    for _ in range(3):
        began_at = thread_time()
        with suppress(ConfigError):
            read(text)
        took.append(thread_time() - began_at)
    return min(took)


@pytest.mark.slow
@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("reader", READERS)
def test_the_time_to_read_a_text_grows_as_its_length(reader: str, unit: str) -> None:
    """Eight times the length may take 24 times as long, as machines are noisy, and not
    64 times."""
    read, length = READERS[reader], 20_000 // len(unit)
    for tail in ("", "?", "!"):
        short = seconds(read, unit * length + tail)
        long = seconds(read, unit * 8 * length + tail)
        assert long < 24 * max(short, 0.0005), tail


@pytest.mark.parametrize("unit", ["/:", ":@", "1", "x", "%40"])
def test_of_megabytes_in_an_error_only_the_beginning_is_looked_at(
    unit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at = list[int]()

    def counting(text: str) -> str:
        looked_at.append(len(text))
        return harmless(text)

    monkeypatch.setattr("lbclient.core.text.harmless", counting)
    text = unit * (5_000_000 // len(unit))
    for value in (text, [text], {"a": text}, text.encode(), Said(text)):
        assert len(brief(value)) <= 2 * MOST_SHOWN + 3
    brief(text[:MOST_READ])
    assert sum(looked_at) <= MOST_READ


def test_a_secret_in_a_long_text_is_not_cut_into_a_harmless_one() -> None:
    secret = "1234" * 3
    for url in (f"redis://me:{secret}", f"me:{secret}", f"host/?password={secret}"):
        for text in (f"{url}{'5' * 2000}@host", f"{url}&{'x' * 2000}#{'x' * 2000}@h"):
            for value in (
                text,
                [text],
                text.encode(),
                Said(f"<at //{text} {'y' * 500}>"),
            ):
                assert secret not in brief(value)
