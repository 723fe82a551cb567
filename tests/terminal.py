"""Runs a Python program as on a terminal, for what it shows there."""

import os
import pty
import subprocess
import sys
from pathlib import Path


def on_a_terminal(
    *words: str, no_color: str = "1", term: str = "xterm-256color"
) -> str:
    """What is shown, by a Python that may use colour but for NO_COLOR."""
    terminal, there = pty.openpty()
    env = {**os.environ, "NO_COLOR": no_color, "TERM": term}
    command = [sys.executable, *words]
    process = subprocess.Popen(
        command, stdout=there, stderr=there, env=env, cwd=Path(__file__).parents[1]
    )
    os.close(there)
    shown = b""
    try:
        while data := os.read(terminal, 4096):
            shown += data
    except OSError:  # the process has closed its end
        pass
    finally:
        os.close(terminal)
        process.wait(timeout=60)
    return shown.decode()
