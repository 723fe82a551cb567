"""The order of backends for a key: weighted rendezvous hashing, the same everywhere.

Whoever computes it gets the same order, in any language, without talking to anybody:

    H(text)   = first 8 bytes of SHA-256 of the UTF-8 text, as a big-endian number
    key       = H(the key)
    backend   = H("task 7") for task number 7, else H(the address as text)
    draw      = mix(key XOR backend), where mix is the finalizer of SplitMix64
    score     = weight / -ln(min((draw + 0.5) / 2^64, 1 - 2^-53)), in double precision

The weight of one worker of several is that of their task, which they hash alike; where
they have no task number each is a backend with its part.

The highest score is first. With equal weights that is the highest draw. Backends with
one task number, such as the workers of a task, draw alike: of equals the first has the
highest mix(key XOR H(the address)). A backend that comes or goes moves its own keys
only, and one with twice the weight has twice as many first choices. docs/keys.md has
test vectors.

Thaler and Ravishankar, "Using name-based mappings to increase hit rates" (1998); the
weighted score: Schindelhauer and Schomaker, "Weighted distributed hash tables" (2005);
SplitMix64: Steele, Lea and Flood, "Fast splittable pseudorandom number generators"
(2014).
"""

from collections.abc import Sequence
from hashlib import sha256
from math import log

from lbclient.core.model import Endpoint

WORD = 2**64  # values of a hash, which has 64 bits
_MASK = WORD - 1
_HIGHEST = 1.0 - 2.0**-53  # below 1; the highest draws would round to it


def hash64(text: str) -> int:
    """64 bits of a text.

    >>> f"{hash64('session-42'):016x}"
    '92e76c732d82ec49'
    """
    return int.from_bytes(sha256(text.encode("utf-8", "surrogatepass")).digest()[:8])


def backend_hash(endpoint: Endpoint) -> int:
    """Hashes the task number where there is one, else the address: a restarted task may
    have another address, and gets its keys back."""
    task = endpoint.task
    return hash64(endpoint.address if task is None else f"task {task}")


def backend_weight(endpoint: Endpoint) -> float:
    """What goes with the hash: of a worker with a task number, the whole task's.

    >>> backend_weight(Endpoint("h:1", 0.25, task=7, task_weight=1.0))
    1.0
    >>> backend_weight(Endpoint("h:1", 0.25, task_weight=1.0))
    0.25
    """
    whole = endpoint.task_weight
    return endpoint.weight if endpoint.task is None or whole is None else whole


def draw(key: int, backend: int) -> int:
    """What a key and a backend draw together, 0 to 2^64 - 1.

    >>> f"{draw(1, 2):016x}"
    '1e535eede31428f0'
    """
    x = key ^ backend
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    x = (x ^ x >> 27) * 0x94D049BB133111EB & _MASK
    return x ^ x >> 31


def score(drawn: int, weight: float) -> float:
    """What a backend of this weight has by its draw; the highest is first.

    >>> score(2**63, 2.0), score(2**64 - 1, 1.0) == 2.0**53
    (2.8853900817779268, True)
    """
    return weight / -log(min((drawn + 0.5) / WORD, _HIGHEST))


def order(key: int, backends: Sequence[int], weights: Sequence[float]) -> list[int]:
    """The indexes of backends, given by their hashes, in the order of this key.

    Equals stay in their order. O(k log k) for k backends.
    """
    drawn = [draw(key, backend) for backend in backends]
    if min(weights) == max(weights):
        return sorted(range(len(drawn)), key=drawn.__getitem__, reverse=True)
    scores = list(map(score, drawn, weights))
    return sorted(range(len(scores)), key=scores.__getitem__, reverse=True)


def first(key: int, backends: Sequence[int], weights: Sequence[float]) -> int:
    """The first of `order`, in O(k).

    >>> first(7, [1, 2, 3], [1.0, 1.0, 9.0]) == order(7, [1, 2, 3], [1.0, 1.0, 9.0])[0]
    True
    """
    drawn = [draw(key, backend) for backend in backends]
    if min(weights) == max(weights):
        return drawn.index(max(drawn))
    scores = list(map(score, drawn, weights))
    return scores.index(max(scores))
