"""How many examples a law gets that is slower than most."""

from hypothesis import settings

USUAL = 50  # of the profile "default"; "quick" has 5, "long" 1,000


def examples(count: int) -> settings:
    """`count` in a usual run; in a quick or long one as many times fewer or more as
    others get, and one at least."""
    return settings(max_examples=max(1, count * settings().max_examples // USUAL))
