"""Modelled inference engines, and pickers on them."""

import json
from collections import Counter
from pathlib import Path
from random import Random

import pytest

from benchmarks.engines import make_up, read_trace, reusable
from lbclient.pickers import CacheAware, LeastLoaded, Prequal, RoundRobin
from lbclient.sim.engine import BLOCK, BlockCache, Engine, EngineModel, Prompt
from lbclient.sim.engine_fleet import EngineFleet, conversation_key, prefix_keys

MODEL = EngineModel(blocks=20, prefill=10_000.0, chunk=5000, step=0.01, decode=0.001)


def play(engine: Engine, *prompts: Prompt) -> dict[int, tuple[float, float]]:
    """By number, when the first token and the last one came."""
    firsts: dict[int, float] = {}
    lasts: dict[int, float] = {}
    left = list(enumerate(prompts))
    while left or engine.due is not None:
        if left and (engine.due is None or left[0][1].at < engine.due):
            number, prompt = left.pop(0)
            engine.submit(number, prompt, prompt.at)
            continue
        assert engine.due is not None
        now = engine.due
        begun, over = engine.advance()
        firsts.update((one.number, now) for one in begun)
        lasts.update((one.number, now) for one in over)
    return {number: (firsts[number], lasts[number]) for number in firsts}


def test_a_prompt_takes_its_steps_and_each_token_of_the_answer_one() -> None:
    engine = Engine(MODEL)
    times = play(engine, Prompt(1.0, (1, 2), 1000, 11))
    first, last = times[0]
    assert first == pytest.approx(1.0 + 0.01 + 0.1)
    assert last - first == pytest.approx(10 * 0.011)
    assert engine.due is None
    assert engine.active == engine.cache.used == 0


def test_what_was_there_is_not_computed_again() -> None:
    engine = Engine(MODEL)
    prompts = Prompt(0.0, (1, 2), 2 * BLOCK, 1), Prompt(9.0, (1, 2, 3), 3 * BLOCK, 1)
    times = play(engine, *prompts)
    assert times[1][0] - 9.0 == pytest.approx(0.01 + BLOCK / 10_000.0)
    assert (engine.hits, engine.asked) == (2, 5)


def test_prompts_are_computed_in_their_order_and_answers_go_on() -> None:
    engine = Engine(MODEL)
    prompts = [Prompt(0.0, (1,), 100, 200), Prompt(0.5, (2,), 5000, 1)]
    prompts.append(Prompt(0.5, (3,), 100, 1))
    times = play(engine, *prompts)
    assert times[0][0] < times[1][0] < times[2][0] < times[0][1]


def test_a_prompt_waits_for_room() -> None:
    engine = Engine(MODEL)
    blocks = tuple(range(15))
    other = tuple(range(100, 110))
    times = play(engine, Prompt(0.0, blocks, 15 * BLOCK, 50), Prompt(0.1, other, 9, 1))
    assert times[1][0] > times[0][1]
    with pytest.raises(ValueError, match="larger than"):
        play(engine, Prompt(99.0, tuple(range(30)), 9, 1))


def test_the_least_recently_used_blocks_make_room() -> None:
    cache = BlockCache(4)
    for blocks in ((1, 2), (3, 4), (1, 2)):
        assert cache.take(blocks, 0)
        cache.release(blocks, 0)
    assert cache.take((5,), 1)
    assert cache.longest_prefix((1, 2)) == 2
    assert cache.longest_prefix((3, 4)) == 0
    assert not cache.take((6, 7, 8), 0)
    cache.release((5,), 1)
    assert cache.used == 0
    assert repr(cache) == "<0 of 4 in use, 3 kept>"


@pytest.fixture(scope="module")
def conversations() -> list[Prompt]:
    return make_up(200.0, 2.0, seed=1)


def test_made_up_conversations_are_like_the_trace() -> None:
    prompts = make_up(1768.0, 2.0, seed=1)
    assert 11_000 < len(prompts) < 13_000  # 12,031
    assert 11_000 < sum(p.tokens for p in prompts) / len(prompts) < 13_000  # 12,035
    assert reusable(prompts) == pytest.approx(0.366, abs=0.02)
    assert prompts == sorted(prompts)


@pytest.mark.parametrize("clients", [1, 4])
def test_cache_aware_has_more_hits_and_a_sooner_first_token(
    conversations: list[Prompt], clients: int
) -> None:
    results = {}
    for factory in (RoundRobin, LeastLoaded, Prequal, CacheAware):
        fleet = EngineFleet(factory, conversations, clients=clients)
        results[factory.__name__] = fleet.run()
    ours = results.pop("CacheAware")
    for other in results.values():
        assert ours.hit > 2.5 * other.hit
        assert ours.p90 < 0.95 * other.p90
    assert ours.spread < 2.5  # not all to one


def test_the_price_is_learned_from_first_tokens(conversations: list[Prompt]) -> None:
    fleet = EngineFleet(CacheAware, conversations)
    fleet.run()
    (picker,) = fleet.pickers
    assert isinstance(picker, CacheAware)
    assert picker.cost.price == pytest.approx(BLOCK / 20_000.0, rel=0.15)
    assert picker.memory.kept[6] > 0.8  # of 840 blocks
    assert all(not home.pending for home in picker._homes.values())


def test_the_same_seed_gives_the_same_result(conversations: list[Prompt]) -> None:
    one, other = (EngineFleet(CacheAware, conversations, clients=4) for _ in "ab")
    assert one.run() == other.run()


def test_all_prompts_end_and_nobody_has_any_in_flight() -> None:
    prompts = make_up(30.0, 2.0, seed=2)
    fleet = EngineFleet(CacheAware, prompts, engines=3, clients=2)
    result = fleet.run()
    assert result.prompts == len(prompts)
    assert all(first > 0.0 for first in fleet.firsts)
    assert {one.engine.active for one in fleet.engines} == {0}


def test_keys_are_the_blocks_of_the_whole_prompt_first() -> None:
    prompt = Prompt(0.0, (0, 7, 9), 1500, 1)
    assert prefix_keys(prompt) == ("9", "7", "0")
    assert conversation_key(prompt) == ("7",)
    assert conversation_key(prompt._replace(blocks=(4,))) == ("4",)


def test_a_trace_is_read_and_what_is_none_is_told(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    line = {"timestamp": 3000, "input_length": 600, "output_length": 5}
    path.write_text(json.dumps({**line, "hash_ids": [0, 14]}) + "\n")
    assert read_trace(path, 2.0) == [Prompt(1.5, (0, 14), 600, 5)]
    path.write_text(json.dumps(line) + "\n")
    with pytest.raises(ValueError, match=r"trace.jsonl, line 1: KeyError\('hash_ids'"):
        read_trace(path, 2.0)


def test_an_engine_conserves_its_blocks() -> None:
    rng = Random(5)
    engine = Engine(MODEL)
    prompts = []
    for number in range(300):
        start = rng.randrange(5) * 100
        blocks = tuple(range(start, start + rng.randrange(1, 12)))
        prompts.append(Prompt(number * 0.05, blocks, 200, 1 + rng.randrange(40)))
    times = play(engine, *prompts)
    assert len(times) == 300
    assert engine.cache.used == 0
    assert not engine.cache._users
    assert Counter(first <= last for first, last in times.values()) == {True: 300}
