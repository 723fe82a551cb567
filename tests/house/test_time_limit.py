"""A test that hangs ends itself, and not the run."""

import re
import subprocess
import sys
from pathlib import Path


def test_a_test_that_hangs_fails_with_all_stacks_and_the_next_one_runs(
    root: Path,
) -> None:
    program = [sys.executable, "-m", "pytest", "tests/house/hanging.py"]
    options = ["-o", "time_limit=0.5", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*program, *options], cwd=root, capture_output=True, text=True, timeout=120
    )
    assert "3 failed, 2 passed, 1 error" in done.stdout, done.stdout + done.stderr
    assert len(re.findall("0.5 s were not enough", done.stdout)) >= 4
    assert "in test_waits_for_what_never_happens" in done.stdout
    assert "in test_waits_for_a_thread" in done.stdout
    assert "Stack for <Task" in done.stdout
