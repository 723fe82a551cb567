"""Parses numbers of a command line; text that is no number is for the config to refuse.

argparse's own `invalid int value` does not say what would be right.
"""


def whole(text: str) -> int | str:
    try:
        return int(text)
    except ValueError:
        return text


def real(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text
