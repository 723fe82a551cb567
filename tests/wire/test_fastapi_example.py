"""examples/fastapi: its own tests pass, its README runs as pasted."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

from tests import needs
from tests.ports import free_ports

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "fastapi"
USUAL = ("50051", "50052", "50053", "8000", "9464")  # ports


def finish(*command: str, cwd: Path, env: dict[str, str] | None = None) -> str:
    """Runs it to its end, with all that it has started; fails where it does."""
    process = subprocess.Popen(
        command,
        cwd=cwd,
        env={**os.environ, **(env or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=100)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, output
    return output


def test_its_tests_pass() -> None:
    needs.module("fastapi")
    finish(sys.executable, "-m", "pytest", "-p", "no:cacheprovider", cwd=EXAMPLE)


def test_what_its_guide_shows_is_in_it() -> None:
    page = (ROOT / "docs" / "guides" / "fastapi.md").read_text()
    files = [*EXAMPLE.glob("*.py"), *(EXAMPLE / "shop").glob("*.py")]
    shown = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    lines = "".join(file.read_text() for file in files)
    methods = lines.replace("\n    ", "\n")
    assert [it for it in shown if it not in lines and it not in methods] == []
    assert len(shown) >= 5


def test_its_readme_runs_as_pasted() -> None:
    """On free ports, and without its lines that install: that is done."""
    needs.module("fastapi")
    needs.program("curl")
    text = (EXAMPLE / "README.md").read_text()
    program = "".join(re.findall(r"```sh\n(.*?)```", text, re.DOTALL))
    (expected,) = re.findall(r"It prints `(.*?)`", text)
    (stop,) = re.findall(r"Stop all with `(.*?)`", text)
    ports = dict(zip(USUAL, map(str, free_ports(len(USUAL))), strict=True))
    program = re.sub("|".join(USUAL), lambda it: ports[it[0]], program)
    *backends, port, operations_port = ports.values()
    env = {
        "CATALOG_TARGET": "ipv4:" + ",".join(f"127.0.0.1:{it}" for it in backends),
        "SHOP_PORT": port,
        "SHOP_OPERATIONS_PORT": operations_port,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    output = finish("bash", "-ec", f"{program}\n{stop}\nwait", cwd=ROOT, env=env)
    assert expected in output
