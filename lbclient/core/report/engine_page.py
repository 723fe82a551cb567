"""Reads what an inference engine tells of its load from its Prometheus page.

Known are vLLM, SGLang, and Triton with and without TensorRT-LLM, by the names of their
metrics. A page may have several series of one metric. Those of several models, or of
several engines in one process, add up. Those of GPUs that compute together say the
same, and count once. Of shares of memories the largest counts.
"""

import re
from collections.abc import Iterator
from math import inf
from typing import NamedTuple

# Metrics, and a label that a series must have, by what they tell; of several the first
# that the page has.
QUEUED = (
    ("vllm:num_requests_waiting", ""),
    ("sglang:num_queue_reqs", ""),
    ("nv_trt_llm_request_metrics", 'request_type="waiting"'),
    ("nv_inference_pending_request_count", ""),
)
RUNNING = (
    ("vllm:num_requests_running", ""),
    ("sglang:num_running_reqs", ""),
    ("nv_trt_llm_request_metrics", 'request_type="scheduled"'),
)
MEMORY = (
    ("vllm:kv_cache_usage_perc", ""),
    ("vllm:gpu_cache_usage_perc", ""),  # its name in older versions
    ("sglang:token_usage", ""),
    ("nv_trt_llm_kv_cache_block_metrics", 'kv_cache_block_type="fraction"'),
)
RANK = re.compile(r'\b(?:tp|pp|moe_ep)_rank="[^"]*",?')  # of one of several GPUs
PREFIXES = ("vllm:", "sglang:", "nv_")
# A name, labels up to the first "}" outside of quotes, and a value. A timestamp may be
# behind it, or an exemplar, which has braces of its own. No two parts match the same
# text, so the time is linear in the line.
SERIES = re.compile(
    r"([a-zA-Z0-9_:]+)"
    r'(?:\{([^"}]*(?:"[^"\\]*(?:\\.[^"\\]*)*"[^"}]*)*)\})?'
    r"[ \t]+(\S+)"
)
LONGEST = 2**14  # characters of a line; engines have some 200, so others are not theirs
MOST = 1000  # series of one metric; a page of more is none of an engine

Series = list[tuple[str, float]]
"""Labels as the page has them, and a value."""


class EngineReading(NamedTuple):
    """What an engine tells; None: it does not. `kv_cache` is a share, 0 to 1."""

    queue_length: float | None = None
    running: float | None = None
    kv_cache: float | None = None


def read_page(text: str) -> EngineReading:
    """Reads a page line by line, so other threads run meanwhile: the interpreter stands
    still while one expression is matched.

    >>> read_page('vllm:num_requests_waiting{engine="0",model_name="m"} 3.0')
    EngineReading(queue_length=3.0, running=None, kv_cache=None)
    """
    wanted = {name for names in (QUEUED, RUNNING, MEMORY) for name, _ in names}
    found: dict[str, Series] = {}
    for begin, end in _lines(text):
        match = SERIES.match(text, begin, end)
        if not match:
            continue
        name, labels, value = match.groups("")
        if name in wanted and len(series := found.setdefault(name, [])) < MOST:
            try:
                number = float(value)
            except ValueError:
                continue
            if 0.0 <= number < inf:
                series.append((labels, number))
    return EngineReading(
        _total(_first(QUEUED, found)),
        _total(_first(RUNNING, found)),
        _largest(_first(MEMORY, found)),
    )


def _lines(text: str) -> Iterator[tuple[int, int]]:
    """Where lines begin and end that may have a metric of an engine."""
    begin = 0
    while begin < len(text):
        end = text.find("\n", begin)
        end = len(text) if end < 0 else end
        if end - begin <= LONGEST and text.startswith(PREFIXES, begin):
            yield begin, end
        begin = end + 1


def _first(names: tuple[tuple[str, str], ...], found: dict[str, Series]) -> Series:
    for name, label in names:
        series = [one for one in found.get(name, []) if label in one[0]]
        if series:
            return series
    return []


def _total(series: Series) -> float | None:
    if not series:
        return None
    by_engine: dict[str, float] = {}
    for labels, value in series:
        engine = RANK.sub("", labels)
        by_engine[engine] = max(value, by_engine.get(engine, 0.0))
    return sum(by_engine.values())


def _largest(series: Series) -> float | None:
    return max((value for _, value in series), default=None)
