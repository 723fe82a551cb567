"""What README and docs show is run, and what they list is complete."""

import ast
import asyncio
import contextlib
import inspect
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest

import lbclient
from lbclient.config import ChannelConfig, ServerConfig
from lbclient.metrics.families import FAMILIES
from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([ROOT / "README.md", *DOCS.glob("**/*.md")])

# A program to run follows its mark; one that serves ends with the SIGTERM.
PROGRAM = re.compile(r"<!-- run(: until SIGTERM)? -->\n```python\n(.*?)```", re.DOTALL)
WITH_PROGRAMS = [page for page in PAGES if PROGRAM.search(page.read_text())]

QUICK = ServerConfig(lame_duck_quiet=0.05)


def block(page: str, language: str, at: int = 0) -> str:
    text = (DOCS / page).read_text()
    found: list[str] = re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)
    return found[at]


class Page:
    """The programs of one page, which share their names as in one session."""

    def __init__(self, page: Path, names: dict[str, Any], words: dict[str, str]):
        self._page = page
        self._words = words
        self.names = names
        found = PROGRAM.findall(page.read_text())
        self.serving = [program for mark, program in found if mark]
        self.others = [program for mark, program in found if not mark]

    async def run(self, program: str) -> None:
        for word, ours in self._words.items():
            program = program.replace(word, ours)
        code = compile(
            program, self._page.name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        )
        done = eval(code, self.names)
        if inspect.iscoroutine(done):
            await done

    async def clean_up(self) -> None:
        for value in self.names.values():
            if isinstance(value, grpc.aio.Channel):
                await value.close()
        http = self.names.get("http")
        if http is not None:
            server, thread = http
            await asyncio.to_thread(server.shutdown)
            server.server_close()
            thread.join()


async def serve_and_leave(page: Page, program: str, address: str, search: Any) -> None:
    """Runs a program that serves, calls it, and ends it as an operator would."""
    serving = asyncio.ensure_future(page.run(program))
    async with grpc.aio.insecure_channel(address) as channel:
        stub = search.SearchStub(channel)
        await stub.Search(search.Query(), timeout=5, wait_for_ready=True)
        os.kill(os.getpid(), signal.SIGTERM)
        await serving


def answers(port: int) -> bool:
    with contextlib.suppress(OSError):
        socket.create_connection(("127.0.0.1", port)).close()
        return True
    return False


def paste(program: str, session: "subprocess.Popen[str]") -> None:
    assert session.stdin
    session.stdin.write(program + "\n")
    session.stdin.flush()


def test_the_programs_in_the_readme_run_as_pasted(free_port: Callable[[], int]) -> None:
    """Into `python -m asyncio` in `examples`; with other ports, as others use these."""
    port = free_port()
    page = (ROOT / "README.md").read_text().replace("50051", str(port))
    page = page.replace("start_http_server(9464)", "start_http_server(0)")
    found = PROGRAM.findall(page)
    (serving,) = [program for mark, program in found if mark]
    calling = [program for mark, program in found if not mark]
    session = partial(
        subprocess.Popen,
        [sys.executable, "-m", "asyncio"],
        cwd=ROOT / "examples",
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    with session() as server, session() as client:
        try:
            paste(serving, server)
            wait_until(lambda: answers(port))
            told, _ = client.communicate("\n".join([*calling, ""]), timeout=30)
        finally:
            client.kill()
            server.send_signal(signal.SIGTERM)
            try:
                server.communicate(timeout=30)
            finally:
                server.kill()
    assert re.search(rf"found larch from \S+:{port}\n", told), told
    assert "Traceback" not in told


@pytest.mark.parametrize("path", WITH_PROGRAMS, ids=lambda path: path.name)
async def test_the_programs_on_a_page_run(
    path: Path,
    start: Callable[..., Awaitable[Any]],
    search: Any,
    free_port: Callable[[], int],
    tmp_path: Path,
) -> None:
    tasks = [await start(lbclient.server) for _ in range(2)]
    addresses = [task.address for task in tasks]
    target = "ipv4:" + ",".join(addresses)
    address = f"127.0.0.1:{free_port()}"
    page = Page(
        path,
        names={
            "asyncio": asyncio,
            "lbclient": lbclient,
            "Query": search.Query,
            "SearchStub": search.SearchStub,
            "Search": lambda: tasks[0].servicer,
            "channel": lbclient.insecure_channel(target),
            "server": tasks[0].server,
            "QUICK": QUICK,
        },
        words={
            "dns:///search.prod:50051": target,
            "dns:///localhost:50051": target,
            # Whatever ends in localhost is this machine (RFC 6761).
            "search.prod.svc:50051": addresses[0].replace("127.0.0.1", "a.localhost"),
            "[::]:50051": address,
            "lbclient.server()": "lbclient.server(config=QUICK)",
            "start_http_server(9464)": 'http = start_http_server(0, "127.0.0.1")',
            "admin.page(port=9465)": "admin.page(port=0)",
        },
    )
    (tmp_path / "backends.txt").write_text("\n".join(addresses))
    try:
        async with asyncio.timeout(20):
            with contextlib.chdir(tmp_path):
                for program in page.serving:
                    await serve_and_leave(page, program, address, search)
                for program in page.others:
                    await page.run(program)
    finally:
        await page.clean_up()


async def test_the_service_config_for_stock_clients_heeds_a_lame_duck(
    start: Callable[..., Awaitable[Any]],
    search: Any,
    eventually: Callable[..., Awaitable[None]],
) -> None:
    stays, leaves = await start(lbclient.server), await start(lbclient.server)
    leaves.server.lame_duck()
    option = ("grpc.service_config", block("recipes.md", "json"))
    target = f"ipv4:{stays.address},{leaves.address}"
    async with grpc.aio.insecure_channel(target, options=[option]) as channel:
        stub = search.SearchStub(channel)
        for _ in range(10):
            await stub.Search(search.Query(), timeout=5, wait_for_ready=True)
    assert stays.servicer.served == 10
    assert leaves.servicer.served == 0


def test_the_file_in_the_configuration_is_read(tmp_path: Path) -> None:
    path = tmp_path / "lb.toml"
    path.write_text(block("configuration.md", "toml"))
    assert ChannelConfig.from_toml(str(path)).subset_size == 40
    assert ServerConfig.from_toml(str(path)).lame_duck_period == 60.0


def test_the_tables_of_single_targets_in_the_configuration_are_read(
    tmp_path: Path,
) -> None:
    path = tmp_path / "lb.toml"
    path.write_text(block("configuration.md", "toml", 1))
    sizes = {"dns:///search.prod:50051": 60, "dns:///mail.prod:50051": 30}
    for target, size in sizes.items():
        config = ChannelConfig.from_toml(str(path), target=target)
        assert (config.subset_size, config.when_full) == (size, "fail")


def test_the_table_of_a_name_in_the_configuration_is_read(tmp_path: Path) -> None:
    path = tmp_path / "lb.toml"
    path.write_text(block("configuration.md", "toml", 2))
    config = ChannelConfig.from_toml(
        str(path), target="dns:///search.prod:50051", name="search-batch"
    )
    assert (config.subset_size, config.active_limit) == (10, 50)
    assert config.criticality == "SHEDDABLE_PLUS"


def test_the_metrics_are_all_listed_with_their_types_and_labels() -> None:
    text = (DOCS / "metrics.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| (.*?) ?\|", text, re.MULTILINE)
    listed = [
        (name, kind, tuple(re.findall(r"\w+", labels))) for name, kind, labels in rows
    ]
    suffix = {"counter": "_total"}
    assert listed == [
        (family.name + suffix.get(family.kind, ""), family.kind, family.labels)
        for family in FAMILIES
    ]
    samples = {name + "_bucket" for name, kind, _ in listed if "histogram" in kind}
    mentioned = set(re.findall(r"(?<!:)lbclient_\w+", text))  # but in a rule's name
    assert mentioned <= {name for name, *_ in listed} | samples


def messages(source: str) -> Iterator[str]:
    """The texts that are logged as warnings or worse, and those of failed calls."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call) or not node.args:
            continue
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        if name in ("warning", "error", "exception", "because"):
            yield from literal_parts(node.args[0])


def literal_parts(node: ast.expr) -> Iterator[str]:
    parts = node.values if isinstance(node, ast.JoinedStr) else [node]
    for part in parts:
        if isinstance(part, ast.Constant) and isinstance(part.value, str):
            yield from re.split(r"%\w", part.value)


def plain(text: str) -> str:
    return re.sub(r"[^\w ]", "", " ".join(text.split())).strip()


def test_every_message_has_its_cause_and_cure() -> None:
    page = plain((DOCS / "troubleshooting.md").read_text())
    missing = [
        (path.name, part)
        for path in sorted((ROOT / "lbclient").rglob("*.py"))
        if "_pb2" not in path.name
        for part in messages(path.read_text())
        if len(plain(part)) > 3 and plain(part) not in page
    ]
    assert missing == []
