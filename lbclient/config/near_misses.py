"""Suggestions for misspelt names."""

from collections.abc import Collection

LIKE = 0.8  # of two names, from which one is meant by the other; one letter in five


def like(said: str, names: Collection[str]) -> str:
    """What an error says of an unknown name: the one that is meant, or all."""
    close = closest(said, names)
    return (
        f"perhaps {close} is meant"
        if close
        else f"want one of {', '.join(sorted(names))}"
    )


def closest(said: str, names: Collection[str]) -> str:
    """The name that is probably meant, or ""."""
    from difflib import get_close_matches  # for mistakes only

    return next(iter(get_close_matches(said, names, 1, cutoff=LIKE)), "")
