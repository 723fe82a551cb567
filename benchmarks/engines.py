"""Cache-aware routing on modelled inference engines, beside other pickers.

    python -m benchmarks.engines --trace conversation_trace.jsonl    about half a minute
    python -m benchmarks.engines                     with conversations that it makes up
    python -m benchmarks.engines --clients 1,4,16 --engines 16 --speed 2 --blocks 840

The trace is Mooncake's of conversations (FAST 2025): 12,031 prompts of an hour, with
the hashes of their blocks of 512 tokens. Its public repository is kvcache-ai/Mooncake,
the file FAST25-release/traces/conversation_trace.jsonl. Engines are `lbclient.sim`'s,
pickers those of production; all get the same prompts at the same times.

    hit         share of the prompts' blocks that the engine had in memory
    first token from the client's send to the first token, in ms: p50, p90, p99
    max/mean    of the seconds in which each engine computed prompts

Consistent hashing has the first block of a conversation that others do not share as its
key: it knows one key of a call. Cache-aware routing has all blocks. A prompt comes to
any client, `--by-conversation` to that of its conversation; clients hear of each
engine's queue every `--health` seconds. Exit status 1 if cache-aware routing misses a
target, with the trace and one client: hit 0.19, p90 1,600 ms.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from math import ceil
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from benchmarks.harness.measured import Measured
from benchmarks.harness.options import conclude, exit_with, parser_of
from benchmarks.keys import Unbounded, figure
from lbclient.pickers import (
    CacheAware,
    ConsistentHashing,
    LeastLoaded,
    Prequal,
    RoundRobin,
    WeightedLeastLoaded,
)
from lbclient.sim.engine import BLOCK, EngineModel, Prompt
from lbclient.sim.engine_fleet import (
    HEALTH_INTERVAL,
    EngineFleet,
    EngineResult,
    KeysOf,
    conversation_key,
    prefix_keys,
)

HIT, P90 = 0.19, 1.6  # targets
PICKERS: dict[str, tuple[Callable[..., Any], KeysOf]] = {
    "round robin": (RoundRobin, prefix_keys),
    "least loaded": (LeastLoaded, prefix_keys),
    "weighted least loaded": (WeightedLeastLoaded, prefix_keys),
    "Prequal": (Prequal, prefix_keys),
    "plain hashing": (Unbounded, conversation_key),
    "bounded hashing": (ConsistentHashing, conversation_key),
    "cache aware": (CacheAware, prefix_keys),
}

# Of made-up conversations, so that they have the trace's mean prompt and answer, and
# as large a share of blocks that were there before.
CONVERSATIONS = 4.3  # begun in a second, at twice the speed
GOES_ON = 0.37  # chance of one more prompt after each
FIRST, FIRST_SIGMA = 8.78, 1.1  # of the logarithm of a first prompt's tokens
MORE, ANSWER = 900.0, 343.0  # tokens, the mean
PAUSE = 40.0  # seconds between two prompts of one, the mean
LONGEST = 120_000  # tokens


class Found(NamedTuple):
    picker: str
    clients: int
    seed: int
    result: EngineResult


def read_trace(path: Path, speed: float) -> list[Prompt]:
    """Raises ValueError for what is no such trace."""
    prompts = []
    with path.open() as lines:
        for number, line in enumerate(lines, start=1):
            try:
                one = json.loads(line)
                at, blocks = float(one["timestamp"]), one["hash_ids"]
                sizes = int(one["input_length"]), int(one["output_length"])
                prompts.append(Prompt(at / 1000.0 / speed, tuple(blocks), *sizes))
            except (KeyError, TypeError, ValueError) as error:
                raise ValueError(f"{path}, line {number}: {error!r}") from None
    return prompts


def make_up(seconds: float, speed: float, seed: int) -> list[Prompt]:
    """Conversations, each prompt of which has all before it as its prefix."""
    rng = Random(f"{seed}/conversations")
    prompts: list[Prompt] = []
    at, block = 0.0, 1
    while True:
        at += rng.expovariate(CONVERSATIONS * speed / 2.0)
        if at >= seconds:
            break
        now, tokens = at, int(min(LONGEST, rng.lognormvariate(FIRST, FIRST_SIGMA)))
        blocks: list[int] = [0]  # what all begin with
        while now < seconds and tokens < LONGEST:
            new = max(1, ceil(tokens / BLOCK)) - len(blocks)
            blocks += range(block, block + new)
            block += max(0, new)
            answer = 1 + int(rng.expovariate(1.0 / ANSWER))
            prompts.append(Prompt(now, tuple(blocks), max(1, tokens), answer))
            if rng.random() >= GOES_ON:
                break
            del blocks[max(1, tokens // BLOCK) :]  # the last one was not full
            tokens += answer + int(rng.expovariate(1.0 / MORE))
            now += rng.expovariate(speed / 2.0 / PAUSE)
    return sorted(prompts)


def reusable(prompts: Sequence[Prompt]) -> float:
    """The share of blocks that one memory without end would have."""
    known: set[int] = set()
    hits = 0
    for prompt in prompts:
        hits += next(
            (i for i, each in enumerate(prompt.blocks) if each not in known),
            len(prompt.blocks),
        )
        known.update(prompt.blocks)
    return hits / sum(len(prompt.blocks) for prompt in prompts)


def run(
    name: str, prompts: Sequence[Prompt], clients: int, seed: int, **more: Any
) -> Found:
    factory, keys_of = PICKERS[name]
    fleet = EngineFleet(factory, prompts, keys_of, clients=clients, seed=seed, **more)
    return Found(name, clients, seed, fleet.run())


def say(one: Found) -> None:
    result = one.result
    p50, p90, p99 = (each * 1e3 for each in (result.p50, result.p90, result.p99))
    print(
        f"{one.picker:22}{one.clients:3d} clients  seed {one.seed}  hit "
        f"{result.hit:.3f}  first token {p50:5.0f} {p90:6.0f} {p99:6.0f} ms  "
        f"max/mean {result.spread:.2f}",
        flush=True,
    )


def flaws(one: Found) -> Iterator[str]:
    if one.result.hit < HIT:
        yield f"seed {one.seed}: hit {one.result.hit:.3f}"
    if one.result.p90 > P90:
        yield f"seed {one.seed}: p90 {one.result.p90 * 1e3:.0f} ms"


def numbers(text: str) -> list[int]:
    return [int(each) for each in text.split(",")]


def main() -> int:
    parser = parser_of("engines", __doc__, quick="a fifth of the prompts")
    parser.add_argument("--trace", type=Path, metavar="FILE")
    parser.add_argument("--seed", default="1", metavar="N,O")
    parser.add_argument("--clients", default="1,4", metavar="N,O")
    parser.add_argument("--engines", type=int, default=16, metavar="N")
    parser.add_argument("--speed", type=float, default=2.0, metavar="FACTOR")
    parser.add_argument("--blocks", type=int, default=840, metavar="N")
    parser.add_argument("--price", type=float, metavar="SECONDS", help="of a miss")
    parser.add_argument("--only", choices=[*PICKERS])
    parser.add_argument("--health", type=float, default=HEALTH_INTERVAL, metavar="S")
    parser.add_argument("--by-conversation", action="store_true", help="see above")
    given = parser.parse_args()
    if given.price is not None:
        factory = partial(CacheAware, miss_cost=given.price)
        PICKERS["cache aware"] = factory, prefix_keys
    found, missed = [], list[str]()
    for seed in numbers(given.seed):
        if given.trace is None:
            prompts = make_up(3537.0 / given.speed, given.speed, seed)
        else:
            prompts = read_trace(given.trace, given.speed)
        if given.quick:
            del prompts[len(prompts) // 5 :]
        tokens = sum(prompt.tokens for prompt in prompts) / len(prompts)
        print(
            f"{len(prompts):,} prompts in {prompts[-1].at:,.0f} s of {tokens:,.0f} "
            f"tokens; {reusable(prompts):.3f} of their blocks came before",
            flush=True,
        )
        model = EngineModel(blocks=given.blocks)
        for clients in numbers(given.clients):
            for name in PICKERS if given.only is None else (given.only,):
                more = {
                    "model": model,
                    "engines": given.engines,
                    "health_interval": given.health,
                    "by_conversation": given.by_conversation,
                }
                found.append(run(name, prompts, clients, seed, **more))
                say(found[-1])
                is_ours = name == "cache aware" and clients == 1
                if is_ours and given.trace is not None and not given.quick:
                    missed += flaws(found[-1])
    return conclude(given, {"runs": found}, missed, measured=told(found))


def told(found: list[Found]) -> Iterator[Measured]:
    """Its figures; a seed makes them the same in every run."""
    for one in found:
        where = f"{one.picker}, seed {one.seed}, {one.clients} clients"
        yield figure(f"hit: {where}", one.result.hit, "")
        yield figure(f"p90 to the first token: {where}", one.result.p90 * 1e3, "ms")


if __name__ == "__main__":
    exit_with(main)
