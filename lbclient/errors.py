"""What can go wrong before a call; `grpc_seam` has what can go wrong during one."""


class LbError(Exception):
    """Everything that lbclient raises."""


class ConfigError(LbError, ValueError):
    """The caller's mistake, found at construction: mend the named field.

    >>> str(ConfigError("subset_size", 0, "a whole number of at least 1"))
    'subset_size = 0: want a whole number of at least 1'

    `source` is the file that it is from, if any; what is from a variable goes by the
    variable's name.
    """

    def __init__(self, field: str, value: object, want: str, source: str = "") -> None:
        super().__init__(field, value, want, source)
        self.field = field
        self.value = value
        self.want = want
        self.source = source

    def __str__(self) -> str:
        place = f"{self.source}: " if self.source else ""
        return f"{place}{self.field} = {self.value!r}: want {self.want}"


class ResolveError(LbError):
    """The name service's mistake: the channel keeps its last good endpoints."""
