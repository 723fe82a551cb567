"""What one fault did to the callers of two clients."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Result:
    """`recovered_after` is the time, in seconds, from the fault or its end, whichever
    the promise is about, to the first call that was answered as it should be; None:
    there was no such call, or nothing to recover from. `said` is what
    `statistics()` said while it lasted.
    """

    calls: int
    failed: int
    recovered_after: float | None = None
    said: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """`theirs` is plain grpc.aio, `round_robin`, in the same run; None: it has no such
    thing. `holds` is whether `promise` was kept. `variant` tells rows of the same fault
    and promise apart: by picker, for instance."""

    fault: str
    promise: str
    ours: Result
    theirs: Result | None
    holds: bool
    variant: str = ""
