"""The very subsets: no release, machine or Python may reshuffle a fleet.

A client and its siblings need not run the same Python, nor the same release of this
library. A difference here means that every client of a fleet reconnects: do not make
the file again unless that is what you want.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from lbclient.subsets import ALGORITHMS, subset

GOLDEN = Path(__file__).with_name("golden_subsets.json")

CHOOSE = """
import json, sys
from lbclient.subsets import subset

for case in json.load(sys.stdin):
    print(json.dumps(subset(**case)))
"""


@pytest.mark.parametrize("seed", ["0", "4711"])
def test_subsets_are_the_same_in_every_process(seed: str) -> None:
    """The seed of Python's own hashes is another one in each process by default."""
    golden = json.loads(GOLDEN.read_text())
    cases = [line["case"] for line in golden]
    chosen = subprocess.run(
        [sys.executable, "-c", CHOOSE],
        input=json.dumps(cases),
        env={"PYTHONHASHSEED": seed, "PYTHONPATH": str(GOLDEN.parents[2])},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout.splitlines()
    for line, ours in zip(golden, chosen, strict=True):
        assert json.loads(ours) == line["subset"], line["case"]


def test_subsets_are_the_same_in_this_process() -> None:
    for line in json.loads(GOLDEN.read_text()):
        assert subset(**line["case"]) == line["subset"], line["case"]


def test_every_algorithm_has_its_golden_subsets() -> None:
    golden = json.loads(GOLDEN.read_text())
    assert {line["case"]["algorithm"] for line in golden} == {*ALGORITHMS}
