"""How many examples a law gets that is slower than most."""

from hypothesis import settings

USUAL = 50  # of the profile "default"; "long" has 1,000


def examples(count: int) -> settings:
    """`count` in a usual run, and in the long form as many times more as others get."""
    return settings(max_examples=count * settings().max_examples // USUAL)
