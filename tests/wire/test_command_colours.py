"""What commands show on a terminal, and to a pipe."""

import os
import subprocess
import sys

import pytest

from tests.terminal import on_a_terminal

ESCAPE = "\x1b"


@pytest.mark.parametrize(
    "words",
    [
        "--help",
        "probe --timeout 0.2 127.0.0.1:1",
        "resolve ipv4:127.0.0.1:1",
        "doctor --timeout 0.5 ipv4:127.0.0.1:1",
        "inspect 127.0.0.1:1",
        "sim --list",
        "subset --size 5",
        "subset --no-such-option",
    ],
)
def test_without_colour_nothing_is_coloured(words: str) -> None:
    """As Python's own argparse does from 3.14 on, but for NO_COLOR."""
    shown = on_a_terminal("-m", "lbclient", *words.split())
    assert shown.strip()
    assert ESCAPE not in shown


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("probe --timeout 0.2 127.0.0.1:1", "127.0.0.1:1 \x1b[31mno answer\x1b[0m, c"),
        ("doctor --timeout 0.5 ipv4:127.0.0.1:1", "\x1b[31mfail\x1b[0m  answer"),
        ("doctor --timeout 0.5 ipv4:127.0.0.1:1", "\x1b[33mwarn\x1b[0m  target"),
        ("doctor --timeout 0.5 ipv4:127.0.0.1:1", "\x1b[32mok  \x1b[0m  proxy"),
    ],
)
def test_a_terminal_gets_colours(words: str, said: str) -> None:
    shown = on_a_terminal("-m", "lbclient", *words.split(), no_color="")
    assert said in shown
    shown = on_a_terminal("-m", "lbclient", *words.split(), no_color="", term="dumb")
    assert shown.strip()
    assert ESCAPE not in shown


@pytest.mark.parametrize("command", ["probe 127.0.0.1:1", "doctor ipv4:127.0.0.1:1"])
@pytest.mark.parametrize("json", ["", "--json"])
def test_what_is_piped_or_json_has_none(command: str, json: str) -> None:
    words = [*command.split(), "--timeout", "0.2", *json.split()]
    env = {name: os.environ[name] for name in os.environ if name != "NO_COLOR"}
    done = subprocess.run(
        [sys.executable, "-m", "lbclient", *words],
        capture_output=True, text=True, timeout=60, env=env,
    )  # fmt: skip
    assert done.stdout.strip()
    assert ESCAPE not in done.stdout
    if json:
        shown = on_a_terminal("-m", "lbclient", *words, no_color="")
        assert shown.strip()
        assert ESCAPE not in shown


# What the demo, the one command that draws, shows its scenes by.
DRAWING = """
from examples.fleet.view import Row, Scene, choose_view
with choose_view() as view:
    view.say("starting")
    view.show(Scene("calm", 1.0, (Row("a", 1.0, 0.5, "ready", 9.0, 1.0, 1, ""),)))
"""


def test_the_demo_draws_in_colour_but_for_no_color() -> None:
    assert ESCAPE in on_a_terminal("-c", DRAWING, no_color="")
    shown = on_a_terminal("-c", DRAWING)
    assert "starting" in shown
    assert ESCAPE not in shown
