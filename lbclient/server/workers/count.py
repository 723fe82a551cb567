"""How many workers a task has."""

from math import ceil
from typing import Literal

from lbclient.core.errors import ConfigError
from lbclient.server.meters.cpu import available_cpus

MOST = 64  # workers of a task; health reports name each one's port

Workers = int | Literal["auto"]

WANT = f'a whole number, 1 to {MOST}, or "auto": one for each CPU'


def worker_count(workers: object) -> int:
    """The number of workers. "auto": one for each CPU that the control group may use, a
    part of one included, as part of a CPU keeps a worker busy, too.

    >>> worker_count(2)
    2
    """
    if workers == "auto":
        return max(1, min(MOST, ceil(available_cpus())))
    if type(workers) is not int or not 1 <= workers <= MOST:
        raise ConfigError("workers", workers, WANT)
    return workers
