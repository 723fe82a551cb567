"""What can go wrong before a call; `grpc_seam` has what can go wrong during one."""


class LbError(Exception):
    """Everything that lbclient raises."""


class ConfigError(LbError, ValueError):
    """The caller's mistake, found at construction: mend the named field.

    >>> str(ConfigError("subset_size", 0, "a whole number of at least 1"))
    'subset_size = 0: want a whole number of at least 1'
    """

    def __init__(self, field: str, value: object, want: str) -> None:
        super().__init__(field, value, want)
        self.field = field
        self.value = value
        self.want = want

    def __str__(self) -> str:
        return f"{self.field} = {self.value!r}: want {self.want}"


class ResolveError(LbError):
    """The name service's mistake: the channel keeps its last good endpoints."""
