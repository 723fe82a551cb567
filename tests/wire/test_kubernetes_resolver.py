"""EndpointSlices, listed and watched at a small API on loopback."""

import asyncio
import json
import ssl
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest

import lbclient
from lbclient.core.errors import ResolveError
from lbclient.core.model import Endpoints
from lbclient.resolvers import kubernetes
from lbclient.resolvers.endpoint_slices import Slices
from lbclient.resolvers.kubernetes import Api, ApiTimeouts, Kubernetes, in_cluster
from tests import needs
from tests.waiting import let_pass
from tests.wire.kubernetes_api import (
    KubernetesApi,
    endpoint,
    endpoint_slice,
    kubernetes_api,
)

PATIENT = ApiTimeouts(20.0, 20.0, 20.0, pause=0.05)


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[KubernetesApi]:
    async with kubernetes_api(tmp_path) as api:
        yield api


def resolver(
    api: KubernetesApi,
    port: str = "grpc",
    namespace: str = "prod",
    patience: ApiTimeouts = PATIENT,
) -> Kubernetes:
    return Kubernetes("search", namespace, port, Random(7), api.api, patience)


@asynccontextmanager
async def watching(
    resolver: Kubernetes,
) -> AsyncIterator[Callable[[], Awaitable[Endpoints]]]:
    async with aclosing(resolver.watch()) as watch, asyncio.timeout(60):

        async def following() -> Endpoints:
            return await anext(watch)

        yield following


def addresses(endpoints: Endpoints) -> list[str]:
    return [endpoint.address for endpoint in endpoints]


async def once(resolver: Kubernetes) -> Endpoints:
    async with watching(resolver) as following:
        return await following()


async def refused(resolver: Kubernetes) -> str:
    with pytest.raises(ResolveError) as caught:
        await once(resolver)
    return str(caught.value)


async def test_all_slices_of_the_service_are_one_list(api: KubernetesApi) -> None:
    api.put(endpoint_slice("search-a", endpoint("10.0.0.2"), endpoint("10.0.0.1")))
    api.put(endpoint_slice("search-b", endpoint("10.0.0.3"), endpoint("10.0.0.1")))
    told = await once(resolver(api))
    assert addresses(told) == ["10.0.0.1:50051", "10.0.0.2:50051", "10.0.0.3:50051"]


async def test_every_kind_of_change_is_news(api: KubernetesApi) -> None:
    api.put(endpoint_slice("search-a", endpoint("10.0.0.1")))
    async with watching(resolver(api)) as following:
        assert len(await following()) == 1
        api.put(endpoint_slice("search-b", endpoint("10.0.0.2")))
        assert addresses(await following()) == ["10.0.0.1:50051", "10.0.0.2:50051"]
        api.put(endpoint_slice("search-a", endpoint("10.0.0.3")))
        assert addresses(await following()) == ["10.0.0.2:50051", "10.0.0.3:50051"]
        api.delete("search-b")
        assert addresses(await following()) == ["10.0.0.3:50051"]
    assert api.lists == 1


async def test_changes_of_a_moment_are_one_answer(
    api: KubernetesApi,
    monkeypatch: pytest.MonkeyPatch,
    eventually: Callable[..., Awaitable[None]],
) -> None:
    monkeypatch.setattr(kubernetes, "DEBOUNCE", 1.0)
    api.put(endpoint_slice("search-a", endpoint("10.0.0.1")))
    async with watching(resolver(api)) as following:
        await following()

        async def count_answers() -> int:
            answers = 1
            while addresses(await following()) != ["10.0.1.9:50051"]:
                answers += 1
            return answers

        counting = asyncio.ensure_future(count_answers())
        await eventually(lambda: api.watching == 1)
        for n in range(10):
            api.put(endpoint_slice("search-a", endpoint(f"10.0.1.{n}")))
            await asyncio.sleep(0.02)
        assert await counting < 5


@pytest.mark.parametrize(
    ("conditions", "means"),
    [
        ({"ready": True}, "serves"),
        ({"ready": None, "serving": None, "terminating": None}, "serves"),
        ({"ready": False, "serving": False}, ""),
        ({"ready": False, "serving": True}, ""),
        ({"ready": False, "serving": True, "terminating": True}, "lame duck"),
        ({"ready": False, "serving": False, "terminating": True}, ""),
        ({"ready": False, "serving": None, "terminating": True}, ""),
        ({"ready": True, "serving": None, "terminating": True}, "lame duck"),
        # publishNotReadyAddresses: all are ready.
        ({"ready": True, "serving": True, "terminating": True}, "lame duck"),
        ({"ready": True, "serving": False, "terminating": True}, ""),
        ({"ready": True, "serving": False}, "serves"),
    ],
)
async def test_conditions_say_who_serves_and_who_is_a_lame_duck(
    api: KubernetesApi, conditions: Any, means: str
) -> None:
    api.put(endpoint_slice("search-a", endpoint("10.0.0.1", **conditions)))
    told = await once(resolver(api))
    assert [each.lame_duck for each in told] == (
        [means == "lame duck"] if means else []
    )


LEAVES: Any = {"ready": False, "serving": True, "terminating": True}


async def test_of_two_pods_with_one_address_the_one_that_stays_counts(
    api: KubernetesApi,
) -> None:
    api.put(endpoint_slice("search-a", endpoint("10.0.0.1", **LEAVES)))
    api.put(endpoint_slice("search-b", endpoint("10.0.0.1")))
    (told,) = await once(resolver(api))
    assert not told.lame_duck


async def test_pods_that_leave_do_not_take_the_numbers_of_those_that_stay(
    api: KubernetesApi,
) -> None:
    """A StatefulSet replaces another under one Service."""
    pods = [endpoint("10.0.0.1", host="blue-0", **LEAVES)]
    pods += [endpoint(f"10.0.0.{n}", host=f"green-{n}") for n in (2, 3)]
    api.put(endpoint_slice("search-a", *pods))
    told = await once(resolver(api))
    assert [each.task for each in told if not each.lame_duck] == [2, 3]


async def test_a_hint_of_a_zone_goes_before_the_zone(api: KubernetesApi) -> None:
    api.put(
        endpoint_slice(
            "search-a",
            endpoint("10.0.0.1", zone="a"),
            endpoint("10.0.0.2", zone="a", hint="b"),
            endpoint("10.0.0.3", zone=""),
        )
    )
    told = await once(resolver(api))
    assert [endpoint.zone for endpoint in told] == ["a", "b", ""]


async def test_pods_of_a_stateful_set_have_their_numbers(api: KubernetesApi) -> None:
    pods = [endpoint(f"10.0.0.{9 - n}", host=f"search-{n}") for n in range(3)]
    api.put(endpoint_slice("search-a", *pods))
    told = await once(resolver(api))
    assert [endpoint.task for endpoint in told] == [2, 1, 0]


async def test_numbers_of_several_jobs_are_none(api: KubernetesApi) -> None:
    pods = [endpoint("10.0.0.1", host="blue-0"), endpoint("10.0.0.2", host="green-0")]
    api.put(endpoint_slice("search-a", *pods))
    told = await once(resolver(api))
    assert [endpoint.task for endpoint in told] == [None, None]


async def test_of_two_families_one_is_taken(api: KubernetesApi) -> None:
    api.put(endpoint_slice("search-6", endpoint("fd00::1"), family="IPv6"))
    assert addresses(await once(resolver(api))) == ["[fd00::1]:50051"]
    api.put(endpoint_slice("search-4", endpoint("10.0.0.1"), family="IPv4"))
    assert addresses(await once(resolver(api))) == ["10.0.0.1:50051"]


PORTS = [
    {"name": "metrics", "port": 9090, "protocol": "TCP"},
    {"name": "grpc", "port": 50051, "protocol": "TCP"},
]


@pytest.mark.parametrize(
    ("port", "ports", "number"),
    [
        ("grpc", PORTS, 50051),
        ("50051", PORTS, 50051),
        ("9090", PORTS, 9090),
        ("7000", [], 7000),
        ("7000", None, 7000),
        ("7000", [{"name": "", "port": None}], 7000),
    ],
)
async def test_a_port_is_a_name_or_the_pod_s_number(
    api: KubernetesApi, port: str, ports: Any, number: int
) -> None:
    api.put(endpoint_slice("search-a", endpoint("10.0.0.1"), ports=ports))
    assert addresses(await once(resolver(api, port))) == [f"10.0.0.1:{number}"]


@pytest.mark.parametrize("port", ["80", "http"])
async def test_a_port_that_is_not_there_is_an_error_with_those_that_are(
    api: KubernetesApi, port: str
) -> None:
    api.put(endpoint_slice("search-a", endpoint("10.0.0.1"), ports=PORTS))
    words = await refused(resolver(api, port))
    assert words == f"no port {port}, but 9090 (metrics), 50051 (grpc)"


async def test_a_service_without_pods_is_an_empty_answer(api: KubernetesApi) -> None:
    assert await once(resolver(api)) == ()
    api.put(endpoint_slice("search-a", ports=None))
    assert await once(resolver(api)) == ()


async def test_without_a_namespace_it_is_the_pod_s_own(api: KubernetesApi) -> None:
    api.put(endpoint_slice("search-a", endpoint("10.0.0.1")))
    assert len(await once(resolver(api, namespace=""))) == 1
    assert await once(resolver(api, namespace="test")) == ()


async def test_a_watch_that_ends_is_opened_where_it_ended(
    api: KubernetesApi,
    eventually: Callable[..., Awaitable[None]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By the API in order, by a lost connection, and after a bookmark."""
    read: list[str] = []
    apply = Slices.apply

    def noted(slices: Slices, lines: Any, version: str) -> tuple[str, Endpoints]:
        version, endpoints = apply(slices, lines, version)
        read.append(version)
        return version, endpoints

    monkeypatch.setattr(Slices, "apply", noted)
    api.put(endpoint_slice("search-a", endpoint("10.0.0.1")))  # version 1001
    async with watching(resolver(api)) as following:
        await following()
        waiting = asyncio.ensure_future(following())
        await eventually(lambda: api.watching == 1)
        api.end_watches()
        await eventually(lambda: len(api.watches) == 2 and api.watching == 1)
        api.bookmark()  # 1002
        await eventually(lambda: "1002" in read)
        api.cut_watches()
        await eventually(lambda: len(api.watches) == 3 and api.watching == 1)
        api.put(endpoint_slice("search-a", endpoint("10.0.0.2")))  # 1003
        assert addresses(await waiting) == ["10.0.0.2:50051"]
    assert api.watches == ["1001", "1001", "1002"]
    assert api.lists == 1


@pytest.mark.parametrize("how", ["event", "status"])
async def test_what_is_too_old_is_listed_again(
    api: KubernetesApi, how: str, eventually: Callable[..., Awaitable[None]]
) -> None:
    api.put(endpoint_slice("search-a", endpoint("10.0.0.1")))
    async with watching(resolver(api)) as following:
        await following()
        waiting = asyncio.ensure_future(following())
        await eventually(lambda: api.watching == 1)
        if how == "event":
            api.forgotten = 1002
        else:
            api.refuses_watches = (410, "too old resource version")
        api.end_watches()
        await eventually(lambda: api.watching == 0)
        api.put(endpoint_slice("search-a", endpoint("10.0.0.2")))
        assert addresses(await waiting) == ["10.0.0.2:50051"]
    assert api.lists == 2


async def test_a_token_is_read_again_when_it_is_exchanged(
    api: KubernetesApi, eventually: Callable[..., Awaitable[None]]
) -> None:
    async with watching(resolver(api)) as following:
        await following()
        waiting = asyncio.ensure_future(following())
        await eventually(lambda: api.watching == 1)
        api.tokens = ["second"]
        api.use_token("second")
        api.end_watches()
        api.put(endpoint_slice("search-a", endpoint("10.0.0.1")))
        assert len(await waiting) == 1
    assert len(api.watches) == 2


async def test_a_hint_opens_a_quiet_watch_again_at_once(
    api: KubernetesApi,
    eventually: Callable[..., Awaitable[None]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for_ever = PATIENT._replace(pause=3600.0)  # but when in doubt
    watched = resolver(api, patience=for_ever)
    watched.refresh()  # before there is a watch: nothing to doubt
    async with watching(watched) as following:
        await following()
        waiting = asyncio.ensure_future(following())
        await eventually(lambda: api.watching == 1)
        for _ in range(10):
            watched.refresh()  # it has just been opened
        await let_pass(0.1)
        assert len(api.watches) == 1
        monkeypatch.setattr(kubernetes, "QUIET", 0.0)
        watched.refresh()
        await eventually(lambda: len(api.watches) == 2 and api.watching == 1)
        api.put(endpoint_slice("search-a", endpoint("10.0.0.1")))
        assert len(await waiting) == 1
    assert api.lists == 1


async def test_a_watch_that_says_nothing_is_opened_again(
    api: KubernetesApi, eventually: Callable[..., Awaitable[None]]
) -> None:
    watched = resolver(api, patience=ApiTimeouts(20.0, 20.0, silence=0.2, pause=0.05))
    async with watching(watched) as following:
        await following()
        waiting = asyncio.ensure_future(following())
        await eventually(lambda: len(api.watches) >= 2)
        api.put(endpoint_slice("search-a", endpoint("10.0.0.1")))
        assert len(await waiting) == 1


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (401, "Unauthorized"),
        (403, 'endpointslices is forbidden: User "system:anonymous" cannot list'),
        (410, "expired"),
        (429, "too many requests"),
        (500, "etcdserver: request timed out"),
    ],
)
async def test_a_refusal_is_an_error_in_the_api_s_words(
    api: KubernetesApi, code: int, message: str
) -> None:
    api.refuses = (code, message)
    assert await refused(resolver(api)) == f"{api.api.url}: {code} {message}"


def pauses(api: KubernetesApi) -> list[float]:
    return [late - early for early, late in pairwise(api.asked_at)]


async def test_an_api_in_trouble_is_asked_ever_more_seldom_whatever_is_hinted(
    api: KubernetesApi,
) -> None:
    """Each lost backend had every client ask for a list, up to once a second."""
    api.refuses = (500, "etcdserver: request timed out")
    watched = resolver(api)
    for _ in range(6):
        watched.refresh()
        await refused(watched)
    for place, pause in enumerate(pauses(api)):
        assert pause >= 0.5 * PATIENT.pause * 2**place


@pytest.mark.parametrize("how", [(500, "no watches today"), (410, "too old")])
async def test_lists_that_lead_to_no_watch_are_asked_for_ever_more_seldom(
    api: KubernetesApi,
    how: tuple[int, str],
    eventually: Callable[..., Awaitable[None]],
) -> None:
    api.refuses_watches = how
    watched = resolver(api)

    async def follow() -> None:
        while True:
            with suppress(ResolveError):
                async with watching(watched) as following:
                    while True:
                        await following()

    following = asyncio.ensure_future(follow())
    await eventually(lambda: api.lists == 6)
    following.cancel()
    await asyncio.wait([following])
    for place, pause in enumerate(pauses(api)[1:10:2]):  # between watch and list
        assert pause >= 0.5 * PATIENT.pause * 2**place


async def test_an_api_that_says_when_is_not_asked_before(api: KubernetesApi) -> None:
    api.refuses, api.retry_after = (429, "too many requests"), "1"
    watched = resolver(api)
    for _ in range(2):
        await refused(watched)
    assert pauses(api)[0] >= 1.0


async def test_a_trouble_after_a_calm_is_the_first(
    api: KubernetesApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kubernetes, "CALM", 0.0)
    monkeypatch.setattr(kubernetes, "MOST_PAUSE", 3600.0)
    api.refuses = (500, "etcdserver: request timed out")
    watched = resolver(api)
    for _ in range(20):  # the last of them would take hours
        await refused(watched)


async def test_a_pause_is_no_calm(
    api: KubernetesApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a minute that the API had asked for itself a trouble was the first."""
    monkeypatch.setattr(kubernetes, "CALM", 0.9)
    api.refuses, api.retry_after = (429, "too many requests"), "1"
    watched = resolver(api)
    for _ in range(2):
        await refused(watched)
    assert watched._troubles == 2


async def test_a_refused_watch_is_an_error_too(
    api: KubernetesApi, eventually: Callable[..., Awaitable[None]]
) -> None:
    async with watching(resolver(api)) as following:
        await following()
        waiting = asyncio.ensure_future(following())
        await eventually(lambda: api.watching == 1)
        api.refuses = (403, "no longer")
        api.end_watches()
        with pytest.raises(ResolveError, match="403 no longer"):
            await waiting


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>",
        b"[]",
        b"{}",
        b'{"metadata": {}, "items": []}',
        b'{"metadata": {"resourceVersion": 5}, "items": []}',
        b'{"metadata": {"resourceVersion": "5"}, "items": [',
        b'{"metadata": {"resourceVersion": "5"}, "items": [{}]}',
        b'{"metadata": {"resourceVersion": "5"}, "items": [5]}',
        b'{"metadata": {"resourceVersion": "5"}, "items": [{"a": 1} {"b": 2}]}',
        b'{"metadata": ' + b"[" * 100_000,
        b"\xff",
    ],
)
async def test_a_list_that_makes_no_sense_is_an_error(
    api: KubernetesApi, body: bytes
) -> None:
    api.body = body
    assert await refused(resolver(api))


async def test_wrong_types_in_a_slice_are_an_error(api: KubernetesApi) -> None:
    good = endpoint("10.0.0.1")
    wrongs: list[dict[str, Any]] = [
        {"addresses": []},
        {"addresses": [5]},
        {"addresses": None},
        {"conditions": "ready"},
        {"hints": {"forZones": [5]}},
    ]
    for wrong in wrongs:
        api.put(endpoint_slice("search-a", good | wrong))
        assert "invalid EndpointSlice list" in await refused(resolver(api))
    api.put(endpoint_slice("search-a", good, ports=[{"name": "grpc", "port": 0}]))
    assert "port 0" in await refused(resolver(api))
    for wrong in (
        {"addresses": ["x" * 500]},
        {"addresses": ["10.0.0.1\x1b[2J"]},
        {"zone": "z" * 500},
        {"zone": "z\n"},
    ):
        api.put(endpoint_slice("search-a", good | wrong))
        assert "invalid endpoint: " in await refused(resolver(api))
    api.put(endpoint_slice("search-a", *[good] * 1001))
    assert "a slice of more than 1,000 endpoints" in await refused(resolver(api))


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"nonsense\n", "invalid watch event"),
        (b"[]\n", "invalid watch event"),
        (b'{"type": "MODIFIED", "object": {}}\n', "invalid watch event"),
        (
            b'{"type": "ERROR", "object": {"code": 500, "message": "broken"}}\n',
            "the watch ended: 500 broken",
        ),
    ],
)
async def test_an_event_that_makes_no_sense_is_an_error(
    api: KubernetesApi,
    line: bytes,
    words: str,
    eventually: Callable[..., Awaitable[None]],
) -> None:
    async with watching(resolver(api)) as following:
        await following()
        waiting = asyncio.ensure_future(following())
        await eventually(lambda: api.watching == 1)
        api.say(line)
        with pytest.raises(ResolveError, match=words):
            await waiting


async def test_an_unknown_kind_of_event_is_left_alone(
    api: KubernetesApi, eventually: Callable[..., Awaitable[None]]
) -> None:
    async with watching(resolver(api)) as following:
        await following()
        waiting = asyncio.ensure_future(following())
        await eventually(lambda: api.watching == 1)
        news = {"type": "NEW", "object": {"metadata": {"resourceVersion": "1"}}}
        api.say(json.dumps(news).encode() + b"\n")
        api.put(endpoint_slice("search-a", endpoint("10.0.0.1")))
        assert len(await waiting) == 1


async def test_an_api_that_hangs_is_an_error(api: KubernetesApi) -> None:
    api.hangs = True
    words = await refused(resolver(api, patience=ApiTimeouts(0.2, 0.2, 0.2)))
    assert words == f"{api.api.url}: no answer in time"


async def test_an_api_that_is_not_there_is_an_error(
    tmp_path: Path, free_port: Callable[[], int]
) -> None:
    (tmp_path / "token").write_text("first")
    api = Api(f"http://127.0.0.1:{free_port()}", tmp_path)
    watched = Kubernetes("search", "prod", "grpc", Random(7), api, PATIENT)
    assert "Cannot connect" in await refused(watched)


async def test_a_missing_token_is_an_error(tmp_path: Path) -> None:
    api = Api("http://127.0.0.1:1", tmp_path)
    watched = Kubernetes("search", "prod", "grpc", Random(7), api, PATIENT)
    assert f"cannot read {tmp_path}/token" in await refused(watched)


async def test_a_missing_certificate_is_an_error(tmp_path: Path) -> None:
    api = Api("https://127.0.0.1:1", tmp_path)
    watched = Kubernetes("search", "prod", "grpc", Random(7), api, PATIENT)
    assert f"cannot use {tmp_path}/ca.crt" in await refused(watched)


RECORDED = Path(__file__).with_name("recorded")  # its README says of whom

STATUSES = json.loads((RECORDED / "statuses.json").read_text())


@pytest.mark.parametrize(
    ("file", "told"),
    [
        ("list.json", [("10.0.0.1:50051", ""), ("10.0.0.2:50051", "")]),
        ("empty.json", []),
        (
            "hints.json",
            [("10.0.2.4:50051", "eu-west-1c"), ("10.0.2.5:50051", "eu-west-1b")],
        ),
    ],
)
async def test_a_recorded_list_is_understood(
    api: KubernetesApi, file: str, told: list[tuple[str, str]]
) -> None:
    api.body = (RECORDED / file).read_bytes()
    assert [(one.address, one.zone) for one in await once(resolver(api))] == told


async def test_a_recorded_watch_is_followed_to_its_end(
    api: KubernetesApi, eventually: Callable[..., Awaitable[None]]
) -> None:
    lines = (RECORDED / "watch.jsonl").read_bytes().splitlines(keepends=True)
    added, modified, bookmark, deleted, error = lines
    api.body = (RECORDED / "list.json").read_bytes()
    async with watching(resolver(api)) as following:
        assert len(await following()) == 2

        async def after(line: bytes) -> list[tuple[str, str, bool]]:
            waiting = asyncio.ensure_future(following())
            await eventually(lambda: api.watching == 1)
            api.say(line)
            return [(one.address, one.zone, one.lame_duck) for one in await waiting]

        known = [("10.0.0.1:50051", "", False), ("10.0.0.2:50051", "", False)]
        stays = ("10.0.1.2:50051", "eu-west-1b", False)
        came = [("10.0.1.1:50051", "eu-west-1a", False), stays]
        assert await after(added) == [*known, *came]
        leaves = ("10.0.1.1:50051", "eu-west-1a", True)
        assert await after(modified) == [*known, leaves, stays]
        assert await after(bookmark + deleted) == known
        api.body = (RECORDED / "empty.json").read_bytes()
        assert await after(error) == []
    assert (api.lists, api.watches[0]) == (2, "1177")


async def test_a_recorded_bookmark_says_where_to_go_on(
    api: KubernetesApi, eventually: Callable[..., Awaitable[None]]
) -> None:
    lines = (RECORDED / "watch.jsonl").read_bytes().splitlines(keepends=True)
    added, _, bookmark, *_ = lines
    api.body = (RECORDED / "list.json").read_bytes()
    async with watching(resolver(api)) as following:
        await following()
        waiting = asyncio.ensure_future(following())
        await eventually(lambda: api.watching == 1)
        api.say(bookmark)
        api.end_watches()
        await eventually(lambda: len(api.watches) == 2 and api.watching == 1)
        api.say(added)
        assert len(await waiting) == 4
    assert (api.lists, api.watches) == (1, ["1177", "5493506251"])


@pytest.mark.parametrize("status", STATUSES, ids=lambda one: str(one["code"]))
async def test_a_recorded_refusal_is_an_error_in_its_words(
    api: KubernetesApi, status: dict[str, Any]
) -> None:
    api.refuses = status
    words = await refused(resolver(api))
    assert words == f"{api.api.url}: {status['code']} {status['message']}"


def certify(account: Path) -> Path:
    """A new authority, which the API and its clients are to trust; and its key."""
    key = account / "key.pem"
    command = (
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes"
        f" -days 2 -subj /CN=api -addext subjectAltName=IP:127.0.0.1 -keyout {key}"
        f" -out {account / 'ca.crt'}"
    )
    subprocess.run(command.split(), check=True, capture_output=True)
    return key


async def test_the_api_must_have_the_certificate_of_the_cluster(tmp_path: Path) -> None:
    needs.program("openssl")
    key = await asyncio.to_thread(certify, tmp_path)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(tmp_path / "ca.crt", key)
    async with kubernetes_api(tmp_path, tls) as api:
        api.put(endpoint_slice("search-a", endpoint("10.0.0.1")))
        assert len(await once(resolver(api))) == 1
        await asyncio.to_thread(certify, tmp_path)
        assert "certificate verify failed" in await refused(resolver(api))


def test_a_pod_finds_the_api_in_its_environment(tmp_path: Path) -> None:
    environ = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "6443"}
    assert in_cluster(environ, tmp_path) == Api("https://[fd00::1]:6443", tmp_path)
    with pytest.raises(ResolveError, match="not in a pod"):
        in_cluster({}, tmp_path)
    for host in ("me:word@api", "api/x?password=word", "a\nb", "x" * 300):
        with pytest.raises(ResolveError, match=r"SERVICE_HOST is not a valid host$"):
            in_cluster({"KUBERNETES_SERVICE_HOST": host}, tmp_path)


async def test_a_channel_follows_a_service_through_good_and_bad(
    api: KubernetesApi,
    start: Callable[..., Awaitable[Any]],
    search: Any,
    eventually: Callable[..., Awaitable[None]],
    served_by_all: Callable[..., Awaitable[None]],
) -> None:
    """From 3 to 6 within two seconds; what is refused takes none away."""
    tasks = [await start(lbclient.server) for _ in range(6)]

    def fleet(count: int) -> None:
        """On this machine backends differ in their ports only, which slices have."""
        for place, task in enumerate(tasks[:count]):
            port = int(task.address.rpartition(":")[2])
            ports = [{"name": "grpc", "port": port, "protocol": "TCP"}]
            pod = endpoint("127.0.0.1")
            api.put(endpoint_slice(f"search-{place}", pod, ports=ports))

    fleet(3)
    async with lbclient.insecure_channel(resolver(api)) as channel:
        stub = search.SearchStub(channel)
        await served_by_all(stub, tasks[:3], within=20)
        assert channel.statistics().resolver.endpoints == 3
        await eventually(lambda: api.watching == 1)
        fleet(6)
        await served_by_all(stub, tasks, within=2)
        api.refuses = (403, "endpointslices is forbidden")
        api.end_watches()
        await eventually(lambda: channel.statistics().resolver.error)
        assert "403 endpointslices is forbidden" in channel.statistics().resolver.error
        assert (await stub.Search(search.Query(), timeout=5)).text
        api.delete("search-5")
        api.refuses = None
        await eventually(lambda: len(channel.statistics().backends) == 5)
        assert channel.statistics().resolver.error == ""


async def test_a_pod_that_terminates_is_a_lame_duck_though_it_says_that_it_serves(
    api: KubernetesApi,
    start: Callable[..., Awaitable[Any]],
    search: Any,
    eventually: Callable[..., Awaitable[None]],
) -> None:
    old, new = [await start(lbclient.server) for _ in range(2)]

    def tell(task: Any, **conditions: Any) -> None:
        port = int(task.address.rpartition(":")[2])
        ports = [{"name": "grpc", "port": port, "protocol": "TCP"}]
        pod = endpoint("127.0.0.1", **conditions)
        api.put(endpoint_slice(f"search-{port}", pod, ports=ports))

    config = lbclient.ChannelConfig(health_interval=0.5)
    async with lbclient.insecure_channel(resolver(api), config=config) as channel:
        stub = search.SearchStub(channel)

        def states() -> dict[str, str]:
            return {one.address: one.state for one in channel.statistics().backends}

        async def served_by() -> str:
            answer: str = (await stub.Search(search.Query(), timeout=5)).text
            return answer

        tell(old)
        assert await served_by() == old.servicer.name
        running = stub.Search(search.Query(text="sleep 1"), timeout=5)
        await running.wait_for_connection()
        tell(old, **LEAVES)
        tell(new)
        leaving = {old.address: "lame duck", new.address: "ready"}
        await eventually(lambda: states() == leaving)
        assert {await served_by() for _ in range(20)} == {new.servicer.name}
        assert (await running).text == old.servicer.name
        assert states() == leaving, "it has said since that it serves"
        await new.server.stop(0)
        await eventually(lambda: states()[new.address] != "ready")
        assert await served_by() == old.servicer.name, "better than nobody"
        api.delete(f"search-{old.address.rpartition(':')[2]}")
        await eventually(lambda: list(states()) == [new.address])
