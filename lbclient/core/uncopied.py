"""What holds connections, tasks or a request in flight is not copied."""

from typing import Never, SupportsIndex


class Uncopied:
    """Raises TypeError where `copy` or `pickle` would take it apart.

    A copy would share its state with the original, and end it when dropped.
    """

    __slots__ = ()

    def __reduce_ex__(self, protocol: SupportsIndex) -> Never:
        kind = type(self)
        name = f"{kind.__module__}.{kind.__qualname__}"
        raise TypeError(f"{name} cannot be copied or pickled")
