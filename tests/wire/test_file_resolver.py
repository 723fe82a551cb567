"""Real files, written as people and programs write them."""

import asyncio
import json
import os
import resource
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, asynccontextmanager
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

import lbclient
from lbclient.core.errors import ResolveError
from lbclient.resolvers import File
from tests.waiting import let_pass, wait_until
from tests.wire.disk import Disk

LOOK = 0.02


def write(path: Path, *targets: str) -> None:
    """At once, as programs should: nobody sees half of it."""
    text = json.dumps([{"targets": list(targets)}])
    fresh = path.with_name("fresh")
    fresh.write_text(text)
    fresh.rename(path)


def spoil(path: Path, text: str = '[{"targets": ["127.') -> None:
    path.write_text(text)


@asynccontextmanager
async def watching(resolver: File) -> AsyncIterator[Callable[[], Awaitable[list[str]]]]:
    async with aclosing(resolver.watch()) as watch, asyncio.timeout(20):

        async def following() -> list[str]:
            return [endpoint.address for endpoint in await anext(watch)]

        yield following


async def refused(resolver: File) -> str:
    async with watching(resolver) as following:
        with pytest.raises(ResolveError) as caught:
            await following()
        return str(caught.value)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "backends.json"


async def test_a_change_is_news_and_a_touch_is_none(path: Path) -> None:
    write(path, "b:1", "a:1", "b:1")
    async with watching(File(str(path), LOOK)) as following:
        assert await following() == ["a:1", "b:1"]
        write(path, "b:1", "a:1")
        await let_pass(5 * LOOK)
        write(path, "a:1", "c:1")
        assert await following() == ["a:1", "c:1"]


@pytest.mark.parametrize("suffix", ["json", "yaml"])
async def test_whoever_stays_in_the_file_is_the_same_object(
    tmp_path: Path, suffix: str
) -> None:
    path = tmp_path / f"backends.{suffix}"
    write(path, "a:1", "b:1")
    async with aclosing(File(str(path), LOOK).watch()) as watch:
        stays, _ = await anext(watch)
        write(path, "a:1", "c:1")
        assert (await anext(watch))[0] is stays


async def test_yaml_is_read_too(tmp_path: Path) -> None:
    path = tmp_path / "backends.yml"
    path.write_text("- targets: [a:1]\n  labels: {task: 3, zone: b}\n")
    async with aclosing(File(str(path), LOOK).watch()) as watch:
        assert await anext(watch) == (lbclient.Endpoint("a:1", zone="b", task=3),)


BROKEN = {
    ".json": [
        b'[{"targets": ["a:1"', b"", b"\xff\xfe", b"[" * 100_000,
        b"{}", b"null", b'"a:1"',
    ],
    ".yaml": [
        b"- targets: [a:1", b"- targets: [a:1]\n- targets: [", b"", b"\xff\xfe\xfd",
        b"[" * 5000, b"&a [*a, *b]", b"targets: [a:1]", b"a:1", b"[]\n---\n[]",
        b"- targets: [a:1]\n? x",
        # What PyYAML's constructors run into, which are no errors of its own.
        b"[!!int '']", b"[!!bool x]", b"[!!timestamp x]", b"[!!float x]",
        b"- &a {targets: [a:1]}\n- {<<: [" + b", ".join([b"*a"] * 101) + b"]}",
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("suffix", "data"), [(s, data) for s in BROKEN for data in BROKEN[s]]
)
async def test_what_makes_no_sense_is_an_error_of_one_line(
    tmp_path: Path, suffix: str, data: bytes
) -> None:
    path = tmp_path / f"backends{suffix}"
    path.write_bytes(data)
    words = await refused(File(str(path), LOOK))
    assert words.startswith(f"cannot use {path}: ")
    assert "\n" not in words


async def test_aliases_do_not_make_a_short_file_long(tmp_path: Path) -> None:
    path = tmp_path / "backends.yaml"
    targets = ", ".join(f"a{n}:1" for n in range(2000))
    aliases = ", ".join(["*g"] * 2000)
    path.write_text(f"[&g {{targets: [{targets}]}}, {aliases}]")
    async with watching(File(str(path), LOOK)) as following:
        assert len(await following()) == 2000


async def test_merges_in_yaml_do_not_make_a_short_file_long(tmp_path: Path) -> None:
    """Nine levels of ten are a billion names; here are 100,000.

    PyYAML merges each name once from 6.0.4 on, and before that we refuse so many.
    """
    path = tmp_path / "backends.yaml"
    labels = ["m0: &m0 {a: 1, b: 2, c: 3, d: 4, e: 5, f: 6, g: 7, h: 8, i: 9, j: 10}"]
    for level in range(1, 5):
        merged = ", ".join([f"*m{level - 1}"] * 10)
        labels.append(f"m{level}: &m{level} {{<<: [{merged}]}}")
    path.write_text(f"- {{targets: [a:1], labels: {{{', '.join(labels)}}}}}")
    async with watching(File(str(path), LOOK)) as following:
        try:
            answer = str(await following())
        except ResolveError as error:
            answer = str(error)
    assert answer == "['a:1']" or "names, with those merged" in answer


async def test_more_names_than_a_thousand_are_refused_if_merged(tmp_path: Path) -> None:
    path = tmp_path / "backends.yaml"
    names = [", ".join(f"n{k}-{n}: 1" for n in range(100)) for k in range(11)]
    labels = [f"m{k}: &m{k} {{{its}}}" for k, its in enumerate(names)]
    labels.append(f"all: {{<<: [{', '.join(f'*m{k}' for k in range(11))}]}}")
    path.write_text(f"- {{targets: [a:1], labels: {{{', '.join(labels)}}}}}")
    assert "names, with those merged" in await refused(File(str(path), LOOK))


@pytest.mark.parametrize("suffix", [".json", ".yaml"])
@pytest.mark.parametrize("place", ["targets", "zone"])
async def test_a_name_of_5_mb_is_an_error_that_does_not_show_it_whole(
    tmp_path: Path, suffix: str, place: str
) -> None:
    long = "x" * 5_000_000
    group = {"targets": [f"{long}:1"]}
    if place == "zone":
        group = {"targets": ["a:1"], "labels": {"zone": long}}  # type: ignore[dict-item]
    path = tmp_path / f"backends{suffix}"
    path.write_text(json.dumps([{"targets": ["a:1"]}, group]))
    words = await refused(File(str(path), LOOK))
    assert f"cannot use {path}: group 1: targets: " in words
    assert f"'{'x' * 90}" in words
    assert len(words) < 600


async def test_a_group_in_yaml_may_take_from_another(tmp_path: Path) -> None:
    path = tmp_path / "backends.yaml"
    path.write_text(
        "- &a {targets: [a:1], labels: &l {zone: x}}\n"
        "- {<<: *a, targets: [b:1]}\n"
        "- {targets: [c:1], labels: *l}\n"
    )
    async with aclosing(File(str(path), LOOK).watch()) as watch:
        told = await anext(watch)
    assert [(each.address, each.zone) for each in told] == [
        ("a:1", "x"),
        ("b:1", "x"),
        ("c:1", "x"),
    ]


async def test_a_file_that_is_not_there_is_an_error_until_it_is(path: Path) -> None:
    resolver = File(str(path), LOOK)
    assert "No such file" in await refused(resolver)
    async with watching(resolver) as following:
        asyncio.get_running_loop().call_later(5 * LOOK, write, path, "a:1")
        assert await following() == ["a:1"]


async def test_a_pipe_is_an_error(path: Path) -> None:
    """Nobody writes to this pipe: to open it would hang, and so would the program."""
    os.mkfifo(path)
    assert "not a regular file" in await refused(File(str(path), LOOK))


async def test_a_broken_file_is_an_error_once_and_mending_it_is_noticed(
    path: Path,
) -> None:
    spoil(path)
    resolver = File(str(path), LOOK)
    assert "cannot use" in await refused(resolver)
    async with watching(resolver) as following:
        waiting = asyncio.ensure_future(following())
        await let_pass(5 * LOOK)
        assert not waiting.done()
        write(path, "a:1")
        assert await waiting == ["a:1"]


@pytest.fixture
def no_files_left() -> Iterator[Callable[[], None]]:
    """Whoever opens a file gets EMFILE from then on, until it is called again."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limits = cycle([0, soft])

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (next(limits), hard))

    yield limit
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_what_could_not_be_opened_is_read_though_nobody_touches_it(
    path: Path, no_files_left: Callable[[], None]
) -> None:
    """This process had too many files: that version was refused for ever."""
    write(path, "a:1")
    resolver = File(str(path), LOOK)
    no_files_left()
    try:
        assert "Too many open files" in await refused(resolver)
    finally:
        no_files_left()
    async with watching(resolver) as following:
        assert await following() == ["a:1"]


def test_another_owner_or_mode_makes_another_version(path: Path) -> None:
    """One that nobody could read, of mode 0600, was never looked at again."""
    write(path, "a:1")
    resolver = File(str(path), LOOK)
    before = resolver._look()

    def change_and_back() -> bool:
        for mode in (0o600, 0o644):
            path.chmod(mode)
        return resolver._look() != before

    wait_until(change_and_back)  # until the kernel's clock for files has ticked


async def test_a_disk_that_hangs_is_an_error_once_and_is_heard_when_it_is_back(
    path: Path,
) -> None:
    """As of a network that is gone; nothing told of it, for as long as it was."""
    write(path, "a:1")
    resolver = File(str(path), LOOK, patience=0.2)
    resolver.path = disk = Disk(path)
    async with watching(resolver) as following:
        assert await following() == ["a:1"]
        disk.hang()
        try:
            with pytest.raises(ResolveError, match="no answer in 0"):
                await following()
            async with watching(resolver) as following_again:
                waiting = asyncio.ensure_future(following_again())
                await let_pass(20 * LOOK)
                assert (waiting.done(), disk.looks) == (False, 1)
                disk.go_on()
                assert await waiting == ["a:1"]
        finally:
            disk.go_on()


async def test_a_file_that_is_being_written_is_left_alone(path: Path) -> None:
    """A list in YAML that is cut off is a shorter list, and looks sound."""
    path = path.with_suffix(".yaml")
    whole = [f"- targets: [a{n}:1]\n" for n in range(60)]
    path.write_text("".join(whole[:1]))
    async with watching(File(str(path), 25 * LOOK)) as following:
        assert await following() == ["a0:1"]
        reading = asyncio.ensure_future(following())
        with path.open("a") as file:
            for line in whole[1:]:
                file.write(line)
                file.flush()
                await asyncio.sleep(LOOK)
        assert len(await reading) == len(whole)


async def test_a_mount_that_swaps_a_link_is_noticed(tmp_path: Path) -> None:
    """As Kubernetes updates the files of a ConfigMap."""
    for name, target in (("old", "a:1"), ("new", "b:1")):
        (tmp_path / name).mkdir()
        write(tmp_path / name / "backends.json", target)
    link = tmp_path / "data"
    link.symlink_to("old")
    async with watching(File(str(link / "backends.json"), LOOK)) as following:
        assert await following() == ["a:1"]
        (tmp_path / "next").symlink_to("new")
        (tmp_path / "next").rename(link)
        assert await following() == ["b:1"]


async def test_a_channel_follows_a_file_through_good_and_bad(
    path: Path,
    start: Callable[..., Awaitable[Any]],
    search: Any,
    eventually: Callable[..., Awaitable[None]],
    served_by_all: Callable[..., Awaitable[None]],
) -> None:
    """From 3 to 6 within two seconds; what is broken takes none away."""
    tasks = [await start(lbclient.server) for _ in range(6)]
    addresses = [task.address for task in tasks]
    write(path, *addresses[:3])
    async with lbclient.insecure_channel(f"file://{path}") as channel:
        stub = search.SearchStub(channel)
        await served_by_all(stub, tasks[:3], within=20)
        assert channel.statistics().resolver.endpoints == 3
        write(path, *addresses)
        await served_by_all(stub, tasks, within=2)
        spoil(path)
        await eventually(lambda: channel.statistics().resolver.error)
        assert "cannot use" in channel.statistics().resolver.error
        assert (await stub.Search(search.Query(), timeout=5)).text
        write(path, *addresses[:2])
        await eventually(lambda: len(channel.statistics().backends) == 2)
        assert channel.statistics().resolver.error == ""


async def test_mistakes_do_not_make_a_channel_slow_to_notice_a_good_version(
    path: Path, eventually: Callable[..., Awaitable[None]]
) -> None:
    """After four of them it took 6 s: the pauses after errors double."""
    loop = asyncio.get_running_loop()
    write(path, "127.0.0.1:1")
    async with lbclient.insecure_channel(f"file://{path}") as channel:

        def told() -> Any:
            return channel.statistics().resolver

        channel.get_state(try_to_connect=True)
        await eventually(lambda: told().endpoints == 1)
        spoil(path, "{}")
        await eventually(lambda: "not {}" in told().error)
        spoil(path, "null")
        await eventually(lambda: "not None" in told().error)
        write(path, "127.0.0.1:1", "127.0.0.1:2")
        begun_at = loop.time()
        await eventually(lambda: told().endpoints == 2)
        assert loop.time() - begun_at < 1.0
        assert told().error == ""
