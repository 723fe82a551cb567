"""Colours the output of commands on a terminal, unless `NO_COLOR` is set.

A word is coloured as it is printed, so files, pipes and JSON never have any of it. What
NO_COLOR means is said at https://no-color.org.
"""

import os
import re
import sys

GREEN, YELLOW, RED = 32, 33, 31  # as SGR has them (ECMA-48, 8.3.117)

ESCAPES = re.compile(r"\x1b\[[0-9]*m")

# What is not here, such as a state of a later version, has no colour.
COLOURS = {
    "ok": GREEN,
    "ready": GREEN,
    "serving": GREEN,
    "+": GREEN,
    "warn": YELLOW,
    "connecting": YELLOW,
    "starting": YELLOW,
    "lame duck": YELLOW,
    "~": YELLOW,
    "fail": RED,
    "refusing": RED,
    "transient failure": RED,
    "not serving": RED,
    "no answer": RED,
    "-": RED,
    "!": RED,
}


def paint(word: str, text: str | None = None) -> str:
    """A level, state or mark in its colour, or `text` in that of the word."""
    text = word if text is None else text
    colour = COLOURS.get(word)
    return f"\x1b[{colour}m{text}\x1b[0m" if colour and is_wanted() else text


def is_wanted() -> bool:
    """Whether standard output is a terminal, and NO_COLOR is not set."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return sys.stdout.isatty()


def width(text: str) -> int:
    """
    >>> width("\\x1b[31mfail\\x1b[0m")
    4
    """
    return len(ESCAPES.sub("", text))
