"""Every benchmark tells what it shows, and takes no argument that it does not know."""

import sys
from importlib import import_module
from pathlib import Path

import pytest

from benchmarks.harness.options import exit_with

ROOT = Path(__file__).parents[2]
LISTED = {"__main__", "listed"}  # which run the others
NAMES = sorted({path.stem for path in (ROOT / "benchmarks").glob("*.py")} - LISTED)
PACKAGES = {  # by the name that they are run by
    "overload": "overload.__main__",
    "refusals": "refusals.__main__",
    "faults": "faults.__main__",
}


@pytest.mark.parametrize("name", [*NAMES, *PACKAGES])
def test_a_benchmark_helps_and_takes_no_nonsense(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program = import_module(f"benchmarks.{PACKAGES.get(name, name)}")
    for word, status in {"--help": 0, "--nonsense": 2}.items():
        monkeypatch.setattr(sys, "argv", ["benchmark", word])
        with pytest.raises(SystemExit) as ended:
            program.main()
        assert ended.value.code == status
        said = capsys.readouterr()
        if word == "--help":
            assert (program.__doc__ or "").splitlines()[0] in said.out
            assert f"    python -m benchmarks.{name}" in said.out
        else:
            assert said.err


@pytest.mark.parametrize(
    "words", ["--only nonsense", "--plot x.gif", "--plot /no/x.png", "--json /no/x"]
)
def test_a_wrong_argument_ends_a_benchmark_before_it_runs(
    words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program = import_module("benchmarks.retries")
    monkeypatch.setattr(sys, "argv", ["benchmark", *words.split()])
    with pytest.raises(SystemExit) as ended:
        program.main()
    assert ended.value.code == 2
    assert words.split()[0] in capsys.readouterr().err


def test_ctrl_c_ends_a_benchmark_without_a_traceback() -> None:
    def interrupted() -> int:
        raise KeyboardInterrupt

    with pytest.raises(SystemExit) as ended:
        exit_with(interrupted)
    assert ended.value.code == 130
