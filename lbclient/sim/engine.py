"""A modelled inference engine: steps, and a cache of the blocks of prompts.

An engine works in steps. In a step it computes a chunk of prompts, in the order in
which they came, and one token of each answer that it is writing. Blocks of a prompt
that it has in memory it does not compute: those of the longest prefix that it finds.
Blocks in use stay; of the others the least recently used make room. A prompt waits
until its blocks and those of its answer fit.
"""

from collections import OrderedDict, deque
from dataclasses import dataclass
from math import ceil
from typing import NamedTuple

BLOCK = 512  # tokens, as the Mooncake traces have them


class Prompt(NamedTuple):
    """A request: when it comes, its blocks from the first on, the number of its tokens
    and of those of its answer.

    Blocks with one number are equal, and so are all blocks before them.
    """

    at: float
    blocks: tuple[int, ...]
    tokens: int
    answer: int


@dataclass(frozen=True, slots=True)
class EngineModel:
    """What an engine can do.

    The defaults are of a model with 8,000 million parameters on a GPU with 80 GB: 55 GB
    of it are for keys and values, at 128 KiB a token. With `prefill` half of the
    prompts of Mooncake's conversation trace take 0.35 s.
    """

    blocks: int = 840
    prefill: float = 20_000.0  # tokens of prompts a second
    chunk: int = 8192  # tokens of prompts in a step at most
    step: float = 0.010  # seconds that a step takes at least
    decode: float = 0.0003  # seconds that each answer adds to it


class Running:
    """A request in an engine. `cached` are its blocks that were there."""

    __slots__ = ("cached", "left", "number", "own", "prompt", "to_compute")

    def __init__(self, number: int, prompt: Prompt) -> None:
        self.number = number
        self.prompt = prompt
        self.left = max(1, prompt.answer)  # tokens of its answer
        self.own = ceil(self.left / BLOCK)  # blocks of its answer
        self.to_compute = prompt.tokens
        self.cached = 0

    def __repr__(self) -> str:
        return f"<{self.number}: {self.to_compute} to compute, {self.left} to write>"


class BlockCache:
    """The blocks that an engine has in memory. `used` counts those in use."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.used = 0
        self._users: dict[int, int] = {}
        self._free: OrderedDict[int, None] = OrderedDict()  # the next to go is first

    def longest_prefix(self, blocks: tuple[int, ...]) -> int:
        for place, block in enumerate(blocks):
            if block not in self._users and block not in self._free:
                return place
        return len(blocks)

    def take(self, blocks: tuple[int, ...], own: int) -> bool:
        """Takes blocks into use, with so many of an answer; False: they do not fit."""
        more = own + sum(block not in self._users for block in set(blocks))
        if self.used + more > self.capacity:
            return False
        self.used += more
        for block in blocks:
            self._free.pop(block, None)
            self._users[block] = self._users.get(block, 0) + 1
        while self.used + len(self._free) > self.capacity:
            self._free.popitem(last=False)
        return True

    def release(self, blocks: tuple[int, ...], own: int) -> None:
        """The last blocks of a prompt go first, being of use to the fewest."""
        self.used -= own
        for block in reversed(blocks):
            if self._users[block] > 1:
                self._users[block] -= 1
            else:
                del self._users[block]
                self._free[block] = None
                self.used -= 1

    def __repr__(self) -> str:
        return f"<{self.used} of {self.capacity} in use, {len(self._free)} kept>"


class Engine:
    """One engine. Whoever owns it calls `submit`, and `advance` when `due`.

    `waiting` are prompts not begun; `hits` and `asked` count blocks; `busy` are seconds
    in which it computed prompts, `read` the tokens.
    """

    def __init__(self, model: EngineModel) -> None:
        self.model = model
        self.cache = BlockCache(model.blocks)
        self.waiting: deque[Running] = deque()
        self.reading: deque[Running] = deque()  # whose prompts it computes
        self.writing: list[Running] = []
        self.due: float | None = None  # when the steps under way end
        self.hits = self.asked = 0
        self.busy = 0.0
        self._plan: list[tuple[Running, int]] = []  # tokens of prompts in this step
        self._steps = 0  # under way, all alike
        self._begun_at = self._took = 0.0

    @property
    def active(self) -> int:
        return len(self.waiting) + len(self.reading) + len(self.writing)

    def submit(self, number: int, prompt: Prompt, now: float) -> None:
        self.waiting.append(Running(number, prompt))
        if self.due is None:
            self._begin(now)
        elif self._steps > 1:  # of which none computes a prompt: this one interrupts
            done = max(1, ceil((now - self._begun_at) / self._took - 1e-9))
            self._steps = min(self._steps, done)
            self.due = self._begun_at + self._steps * self._took

    def advance(self) -> tuple[list[Running], list[Running]]:
        """Ends the steps under way, and begins the next; returns whose first token, and
        whose last one, has come."""
        assert self.due is not None
        now, steps = self.due, self._steps
        over = []
        for one in self.writing:
            one.left -= steps
            if one.left <= 0:
                over.append(one)
        begun = self._read(now)
        for one in begun:
            one.left -= 1
            if one.left <= 0:
                over.append(one)
        self.writing = [one for one in (*self.writing, *begun) if one.left > 0]
        for one in over:
            self.cache.release(one.prompt.blocks, one.own)
        self._begin(now)
        return begun, over

    def _read(self, now: float) -> list[Running]:
        begun = []
        for one, tokens in self._plan:
            one.to_compute -= tokens
            if one.to_compute <= 0:
                begun.append(one)
                self.reading.remove(one)
        if self._plan:
            self.busy += self._took
        return begun

    def _begin(self, now: float) -> None:
        model = self.model
        self._admit()
        left, self._plan = model.chunk, []
        for one in self.reading:
            tokens = min(left, one.to_compute)
            self._plan.append((one, tokens))
            left -= tokens
            if left <= 0:
                break
        took = model.step + model.decode * len(self.writing)
        took += (model.chunk - left) / model.prefill
        if not self._plan and not self.writing:
            self.due = None
            return
        self._steps = 1 if self._plan else min(one.left for one in self.writing)
        self._begun_at, self._took = now, took
        self.due = now + self._steps * took

    def _admit(self) -> None:
        cache = self.cache
        while self.waiting:
            one = self.waiting[0]
            blocks = one.prompt.blocks
            known = cache.longest_prefix(blocks)
            if not cache.take(blocks, one.own):
                if not (self.reading or self.writing):
                    words = f"a prompt of {len(blocks)} blocks is larger than {cache!r}"
                    raise ValueError(words)
                return
            self.waiting.popleft()
            one.cached = known
            self.hits += known
            self.asked += len(blocks)
            one.to_compute = max(1, one.prompt.tokens - known * BLOCK)
            self.reading.append(one)

    def __repr__(self) -> str:
        read, wrote = len(self.reading), len(self.writing)
        return f"<{len(self.waiting)} waiting, {read} reading, {wrote} writing>"
