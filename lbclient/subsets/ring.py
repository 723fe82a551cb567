"""The ring: consecutive numbers are far apart on it, and it never has to be sorted.

Task n of a job stands at n's bits read backwards as a binary fraction: 0, 1/2, 1/4,
3/4, 1/8, 5/8 ... of the way round (the van der Corput sequence). So the tasks of a
job of any size are nearly evenly spaced, and a task more moves nobody. Scaling
spaces them exactly evenly, in the same order: the task of rank r stands at r/tasks,
which moves everybody a little when there is one task more.

The order round the ring is that of the reversed numbers, hence the next task is the
reversed number plus one, carried from the other end; a number that is no task is
skipped, and never two in a row. CACM 2023, "Ringsteady subsetting" and figure 4.
"""

from collections.abc import Iterator


def reverse(number: int, bits: int) -> int:
    """The number whose `bits` bits are those of `number`, read backwards.

    >>> [reverse(n, 3) / 8 for n in range(8)]
    [0.0, 0.5, 0.25, 0.75, 0.125, 0.625, 0.375, 0.875]
    """
    return int(f"{number:0{bits}b}"[::-1], 2)


def rank(task: int, tasks: int) -> int:
    """How many of `tasks` tasks stand before `task`, from the top of the ring.

    >>> [rank(task, 6) for task in range(6)]
    [0, 3, 2, 5, 1, 4]
    """
    before = 0
    for bit in range(task.bit_length()):
        if task >> bit & 1:
            before += _alike(task & (1 << bit) - 1, bit + 1, tasks)
    return before


def select(rank: int, tasks: int) -> int:
    """The task of that rank: what `rank` undoes. O(log tasks).

    >>> [select(rank, 6) for rank in range(6)]
    [0, 4, 2, 1, 5, 3]
    """
    # Of the tasks that are alike in their lowest bits, those with a 0 next come first.
    task = 0
    for bit in range((tasks - 1).bit_length()):
        zeros = _alike(task, bit + 1, tasks)
        if rank >= zeros:
            rank -= zeros
            task |= 1 << bit
    return task


def first(
    client: int, tasks: int, *, scaled: bool = True, clients: int | None = None
) -> int:
    """The task where the client stands, or the next clockwise. O(log tasks).

    `scaled` spaces the tasks evenly; `clients` spaces that many clients evenly.

    >>> first(1, 6), first(1, 10, scaled=False)
    (1, 1)
    """
    if clients is None:
        bits = client.bit_length()
        at, end = reverse(client, bits), 1 << bits
    else:
        at, end = rank(client, clients), clients
    if scaled:
        return select(-(-tasks * at // end) % tasks, tasks)
    bits = (tasks - 1).bit_length()
    task = reverse((-((-at << bits) // end)) % (1 << bits), bits)
    return task if task < tasks else _after(task, 1 << bits >> 1)


def walk(task: int, tasks: int) -> Iterator[int]:
    """Walks once round the ring, clockwise from `task`. O(1) a step, amortized.

    >>> list(walk(1, 6))
    [1, 5, 3, 0, 4, 2]
    """
    top = 1 << (tasks - 1).bit_length() >> 1
    for _ in range(tasks):
        yield task
        task = _after(task, top)
        if task >= tasks:
            # Its reversed number was odd; the next is even, and all even ones are
            # tasks, because their highest bit is 0.
            task = _after(task, top)


def _after(number: int, top: int) -> int:
    """Adds one to the reversed number: what is carried goes from `top` downwards."""
    while number & top:
        number ^= top
        top >>= 1
    return number | top


def _alike(residue: int, bits: int, tasks: int) -> int:
    """How many of `tasks` tasks have `residue` in their lowest `bits` bits."""
    return (tasks - residue + (1 << bits) - 1) >> bits
