"""A real browser, driven as W3C's WebDriver says, by Debian's chromedriver."""

import base64
import json
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests import needs

TAB = "\ue004"

# It has no screen and no network, may be root, and is to ask nobody anything.
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)


class Browser:
    """One window of it."""

    def __init__(self, driver: str, session: str) -> None:
        self._url = f"{driver}/session/{session}"

    def go(self, url: str) -> None:
        ask(f"{self._url}/url", {"url": url})

    def run(self, script: str, *arguments: Any) -> Any:
        """Runs the body of a function in the page, and returns what that returns."""
        return ask(
            f"{self._url}/execute/sync", {"script": script, "args": list(arguments)}
        )

    def wait(self, script: str, *arguments: Any, seconds: float = 15.0) -> Any:
        """Until that is true; fails with the text of the page if it never is."""
        for _ in range(round(seconds / 0.05)):
            if found := self.run(script, *arguments):
                return found
            time.sleep(0.05)
        page = self.run("return document.body.innerText")
        pytest.fail(f"never true: {script}\n{page}")

    def press(self, keys: str) -> None:
        strokes = [
            {"type": kind, "value": key}
            for key in keys
            for kind in ("keyDown", "keyUp")
        ]
        source = {"type": "key", "id": "keyboard", "actions": strokes}
        ask(f"{self._url}/actions", {"actions": [source]})

    def resize(self, width: int, height: int) -> None:
        ask(f"{self._url}/window/rect", {"width": width, "height": height})

    def command(self, name: str, **parameters: Any) -> Any:
        """One of Chrome's own: what its DevTools protocol has."""
        return ask(f"{self._url}/goog/cdp/execute", {"cmd": name, "params": parameters})

    def complaints(self) -> list[str]:
        """What the console has got of warnings and errors since it was last asked."""
        entries = ask(f"{self._url}/se/log", {"type": "browser"})
        return [entry["message"] for entry in entries if entry["level"] != "INFO"]

    def picture(self, file: Path) -> None:
        file.write_bytes(base64.b64decode(ask(f"{self._url}/screenshot")))


def ask(url: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(urllib.request.Request(url, data), timeout=60) as answer:
        return json.load(answer)["value"]


@contextmanager
def browsing(folder: Path) -> Iterator[Browser]:
    """A browser with a profile of its own in `folder`; skips where there is none."""
    driver, chromium = needs.program("chromedriver"), needs.program("chromium")
    options = {
        "binary": chromium,
        "args": [*FLAGS, f"--user-data-dir={folder}"],
    }
    wanted = {
        "browserName": "chrome",
        "goog:chromeOptions": options,
        "goog:loggingPrefs": {"browser": "ALL"},
    }
    with subprocess.Popen(
        [driver, "--port=0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            url = f"http://127.0.0.1:{port_of(process)}"
            made = ask(f"{url}/session", {"capabilities": {"alwaysMatch": wanted}})
            try:
                yield Browser(url, made["sessionId"])
            finally:
                request = urllib.request.Request(
                    f"{url}/session/{made['sessionId']}", method="DELETE"
                )
                opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
                opener.open(request, timeout=60).close()
        finally:
            process.terminate()


def port_of(driver: "subprocess.Popen[str]") -> int:
    assert driver.stdout is not None
    for line in driver.stdout:
        if "started successfully on port" in line:
            return int(line.rstrip().rstrip(".").rpartition(" ")[2])
    pytest.fail("chromedriver did not start")
