"""What the demo accepts."""

import pytest

from examples.fleet.options import parse
from lbclient.pickers import PICKERS


def test_any_picker_can_be_compared() -> None:
    assert parse(["--policies", ",".join(PICKERS)]).policies == tuple(PICKERS)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--backends", "1"], "want a whole number from 2 to 32, not '1'"),
        (["--clients", "many"], "want a whole number from 1 to 16, not 'many'"),
        (["--rate", "nan"], "want a number from 10 to 2000, not 'nan'"),
        (["--seed", "x"], "want a whole number from 0 to 4294967295, not 'x'"),
        (["--load", "1.5"], "want a number from 0.05 to 0.95, not '1.5'"),
        (["--policies", "round_robin,best"], "'best' is none of random, round_robin"),
        (["--json", "/no/such/folder/x"], "No such file or directory"),
        (["--sooner"], "unrecognized arguments: --sooner"),
    ],
)
def test_bad_arguments_are_named_with_their_bounds(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(arguments)
    assert ended.value.code == 2
    assert complaint in capsys.readouterr().err
