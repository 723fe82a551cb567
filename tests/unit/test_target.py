"""What each target string means, good and bad."""

import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from lbclient.core.errors import ConfigError
from lbclient.resolvers import Dns, File, Srv, Static, Target, parse_target
from lbclient.resolvers.kubernetes import Kubernetes

ROOT = Path(__file__).parents[2]


def parse(target: str) -> Target:
    return parse_target(target, resolve_interval=10.0, rng=Random(7))


FIXED = {
    "ipv4:1.2.3.4:1": ["1.2.3.4:1"],
    "ipv4:1.2.3.4:1,5.6.7.8:65535": ["1.2.3.4:1", "5.6.7.8:65535"],
    "ipv4:///1.2.3.4:1": ["1.2.3.4:1"],
    "IPv4:1.2.3.4:1": ["1.2.3.4:1"],
    "ipv4:9.9.9.9:1,1.2.3.4:1,9.9.9.9:1": ["1.2.3.4:1", "9.9.9.9:1"],
    "ipv6:[::1]:1": ["[::1]:1"],
    "ipv6:[::1]:1,[::0002]:2": ["[::1]:1", "[::2]:2"],
    "ipv6:[::1]:1,[0:0::1]:1": ["[::1]:1"],
    "ipv6:%5B::1%5D:1": ["[::1]:1"],
    "ipv6:[fe80::1%25eth0]:1": ["[fe80::1%25eth0]:1"],
    "unix:/run/a.sock": ["unix:/run/a.sock"],
    "unix:///run/a.sock": ["unix:/run/a.sock"],
    "unix:a.sock": ["unix:a.sock"],
    "unix-abstract:a": ["unix-abstract:a"],
    "1.2.3.4:50051": ["1.2.3.4:50051"],
    "1.2.3.4": ["1.2.3.4:443"],
    "[::1]:50051": ["[::1]:50051"],
    "[::1]": ["[::1]:443"],
    "::1": ["[::1]:443"],
    "2001:db8::1:12": ["[2001:db8::1:12]:443"],
    "1:2:3:4:5:6:7:8000": ["[1:2:3:4:5:6:7:8000]:443"],
    "dns:///1.2.3.4:50051": ["1.2.3.4:50051"],
    "dns:[::1]:50051": ["[::1]:50051"],
}


@pytest.mark.parametrize("target", FIXED)
def test_an_address_is_never_looked_up(target: str) -> None:
    resolver = parse(target).resolver
    assert isinstance(resolver, Static)
    assert [endpoint.address for endpoint in resolver.endpoints] == FIXED[target]


NAMES = {
    "dns:///search.prod:50051": ("search.prod", 50051),
    "dns:search.prod:50051": ("search.prod", 50051),
    "dns:/search.prod:50051": ("search.prod", 50051),
    "DNS:///search.prod": ("search.prod", 443),
    "search.prod:50051": ("search.prod", 50051),
    "search.prod": ("search.prod", 443),
    "search.prod.:50051": ("search.prod.", 50051),
    "localhost:50051": ("localhost", 50051),
    "my_job:1": ("my_job", 1),
    "012345678912:1": ("012345678912", 1),  # a container's name may be all digits
    "bücher.example:1": ("bücher.example", 1),
}


@pytest.mark.parametrize("target", NAMES)
def test_a_name_is_looked_up(target: str) -> None:
    resolver = parse(target).resolver
    assert isinstance(resolver, Dns)
    assert (resolver.host, resolver.port) == NAMES[target]
    assert resolver.interval == 10.0


FILES = {
    "file:///etc/backends.json": "/etc/backends.json",
    "file:backends.yaml": "backends.yaml",
    "FILE:/a%20b.yml": "/a b.yml",
}


@pytest.mark.parametrize("target", FILES)
def test_a_file_is_watched(target: str) -> None:
    resolver = parse(target).resolver
    assert isinstance(resolver, File)
    assert str(resolver.path) == FILES[target]


@pytest.mark.parametrize("target", ["srv:///_grpc._tcp.a.b", "SRV:_grpc._tcp.a.b"])
def test_a_service_is_looked_up(target: str) -> None:
    resolver = parse(target).resolver
    assert isinstance(resolver, Srv)
    assert (resolver.name, resolver.interval) == ("_grpc._tcp.a.b", 10.0)


SERVICES = {
    "k8s:///search.prod:50051": ("search", "prod", "50051"),
    "K8S:search.prod:grpc": ("search", "prod", "grpc"),
    "k8s:///search.prod.svc:1": ("search", "prod", "1"),
    "k8s:///search.prod.svc.cluster.local:1": ("search", "prod", "1"),
    "k8s:///search:01": ("search", "", "1"),
}


@pytest.mark.parametrize("target", SERVICES)
def test_a_service_of_kubernetes_is_watched(target: str) -> None:
    resolver = parse(target).resolver
    assert isinstance(resolver, Kubernetes)
    told = (resolver.service, resolver.namespace, resolver.port)
    assert told == SERVICES[target]


AUTHORITIES = {
    "dns:///search.prod:50051": "search.prod:50051",
    "search.prod": "search.prod",
    "dns:search.prod:50051": "search.prod:50051",
    "1.2.3.4:50051": "1.2.3.4:50051",
    "::1": "::1",
    "ipv4:1.2.3.4:1,5.6.7.8:2": "",
    "unix:/run/a.sock": "",
    "unix-abstract:a": "",
    "file:///etc/backends.json": "",
    "srv:///_grpc._tcp.search.prod": "search.prod",
    "k8s:///search.prod:50051": "search.prod:50051",
    "k8s:///search.prod.svc:grpc": "search.prod.svc",
    "srv:///search.service.consul": "search.service.consul",
}


@pytest.mark.parametrize("target", AUTHORITIES)
def test_the_authority_is_the_name_as_written(target: str) -> None:
    assert parse(target).authority == AUTHORITIES[target]


# Each with the words that its error must hold.
WRONG = {
    "": "dns:///name:50051",
    "xds:///search": "not xds",
    "foo:///bar": "dns, file, ipv4, ipv6, k8s, srv, unix",
    "http://search.prod:80": "not http",
    "foo:bar": "'bar'",
    "dns://8.8.8.8/search.prod:50051": "authority (8.8.8.8) is not supported",
    "dns://search.prod:50051": "dns:///",
    "dns:///": "a name or an IP address",
    "dns:": "a name or an IP address",
    ":50051": "a name or an IP address",
    "10.0.0.1:50051,10.0.0.2:50051": "a list such as ipv4:10.0.0.1:50051,10.0.0.2",
    "search.prod:": "''",
    "search.prod:0": "'0'",
    "search.prod:70000": "'70000'",
    "search.prod:http": "'http'",
    "search.prod:+5": "'+5'",
    "search.prod:1/Search": "'1/Search'",
    "search prod:1": "'search prod'",
    " search.prod:1": "' search.prod'",
    "a,b:1": "'a,b'",
    "1.2.3.4:1,5.6.7.8:2": "'1.2.3.4:1,5.6.7.8:2'",
    "a..b:1": "'a..b'",
    "search\0:1": "search",
    f"{'x' * 64}.prod:1": "x.prod'",
    "1.2.3:50051": "'1.2.3'",
    "300.1.2.3:50051": "'300.1.2.3'",
    "[::1:50051": "'[::1:50051'",
    "[::1]50051": "'[::1]50051'",
    "[::1]:": "''",
    "[localhost]:50051": "'[localhost]:50051'",
    "fe80:::1": "'fe80:::1'",
    "ipv4:": "not ''",
    "ipv4:1.2.3.4": "'1.2.3.4'",
    "ipv4:localhost:1": "'localhost:1'",
    "ipv4:1.2.3.4:1,search.prod:2": "'search.prod:2'",
    "ipv4:1.2.3.4:1,,5.6.7.8:2": "not ''",
    "ipv4:1.2.3.4:1,": "not ''",
    "ipv4:1.2.3.4:0": "'0'",
    "ipv4:1.2.3.4:70000": "'70000'",
    "ipv4:1.2.3.4:http": "'http'",
    "ipv4:1.2.3.04:1": "'1.2.3.04:1'",
    "ipv4:[::1]:1": "'[::1]:1'",
    "ipv4://1.2.3.4:1": "ipv4:///",
    "ipv6:1.2.3.4:1": "'1.2.3.4:1'",
    "ipv6:::1": "'::1'",
    "ipv6:[::1]": "'[::1]'",
    "ipv6:[::1:50051": "'[::1:50051'",
    "file:": ".json",
    "file:///etc/backends": "ends in .json, .yaml, .yml",
    "file://etc/backends.json": "authority (etc)",
    "file:///etc/%00.json": ".json",
    "srv:///_grpc._tcp.search:50051": "'_grpc._tcp.search:50051'",
    "srv://8.8.8.8/_grpc._tcp.search": "authority (8.8.8.8)",
    "k8s:": "k8s:///service.namespace:port, not ''",
    "k8s:///search.prod": "not 'search.prod'",
    "k8s:///search.prod:": "not 'search.prod:'",
    "k8s:///search.prod:0": "'0'",
    "k8s:///search.prod:70000": "'70000'",
    "k8s:///Search.prod:1": "'Search.prod:1'",
    "k8s:///search.prod.pod:1": "'search.prod.pod:1'",
    "k8s:///search.prod/x:1": "'search.prod/x:1'",
    "k8s:///search.prod:a/b": "'search.prod:a/b'",
    "k8s://search.prod:50051": "authority (search.prod:50051)",
    "srv:": "a name or an IP address",
    "unix:": "path",
    "unix:///": "path",
    "unix://run/a.sock": "authority (run)",
    f"unix:/{'x' * 107}": "107",
}


@pytest.mark.parametrize("target", WRONG)
def test_an_error_names_what_is_wrong(target: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(target)
    assert (caught.value.field, caught.value.value) == ("target", target)
    assert WRONG[target] in caught.value.want


@pytest.mark.parametrize(
    ("target", "shown"),
    [
        ("search.prod:50051?a=b", "search.prod:50051?..."),
        ("search.prod?a=b", "..."),
        ("dns:///search.prod:50051?password=word", "dns:///search.prod:50051?..."),
        ("dns:search.prod?password=word&a=b", "dns:search.prod?..."),
        ("k8s:///search.prod:grpc?word", "k8s:///..."),
        ("me:word@search.prod:50051", "...@search.prod:50051"),
        ("redis://me:word@cache:6379/0", "redis://...@cache:6379/0"),
        ("dns:///me:word@search.prod", "dns:///...@search.prod"),
        ("ipv4:me%3Aword%40search.prod", "ipv4:...@search.prod"),
    ],
)
def test_of_what_may_hold_a_secret_only_the_host_is_named(
    target: str, shown: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(target)
    assert caught.value.value == shown
    assert caught.value.want.endswith("without user, password or options")


def test_ten_thousand_addresses_are_a_target() -> None:
    addresses = [f"10.0.{n // 250}.{n % 250}:50051" for n in range(10_000)]
    resolver = parse(f"ipv4:{','.join(addresses)}").resolver
    assert isinstance(resolver, Static)
    assert repr(resolver) == "<10000 fixed endpoints>"
    assert repr(parse("ipv4:10.0.0.1:1").resolver) == "<1 fixed endpoint>"


def test_what_is_not_text_is_refused() -> None:
    with pytest.raises(ConfigError):
        parse(b"localhost:1")  # type: ignore[arg-type]


WITHOUT_EXTRAS = """
import sys

for extra in ("dns", "aiohttp", "yaml"):
    sys.modules[extra] = None  # as if it were not installed

from random import Random

from lbclient.core.errors import ConfigError
from lbclient.resolvers import Dns, parse_target
from lbclient.resolvers.lookups import system_lookup

for target in ("srv:///_grpc._tcp.a", "k8s:///a.b:1", "file:///a.yaml"):
    try:
        parse_target(target, resolve_interval=1.0, rng=Random(7))
    except ConfigError as error:
        print(error.want)
parse_target("file:///a.json", resolve_interval=1.0, rng=Random(7))
print(parse_target("a:1", resolve_interval=1.0, rng=Random(7)).resolver._lookup)
print(system_lookup)
"""


def test_a_target_without_its_extra_says_how_to_install_it() -> None:
    command = [sys.executable, "-c", WITHOUT_EXTRAS]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=True, cwd=ROOT
    )
    *wants, used, system = done.stdout.splitlines()
    assert wants == [
        "dnspython to be installed: pip install 'lbclient[dns]'",
        "aiohttp to be installed: pip install 'lbclient[k8s]'",
        "PyYAML to be installed: pip install 'lbclient[yaml]'",
    ]
    assert used == system
