"""What engines tell on their Prometheus pages: the metrics' names and labels are those
of vLLM 0.10, SGLang 0.5, and Triton 24.x with and without TensorRT-LLM."""

import pytest

from lbclient.core.report.engine_page import LONGEST, MOST, EngineReading, read_page

VLLM = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="Qwen/Qwen3-0.6B"} 7.0
# HELP vllm:num_requests_waiting Number of requests waiting to be processed.
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="Qwen/Qwen3-0.6B"} 3.0
# HELP vllm:kv_cache_usage_perc KV-cache usage. 1 means 100 percent usage.
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="Qwen/Qwen3-0.6B"} 0.4375
# TYPE vllm:time_to_first_token_seconds histogram
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.001",model_name="Q"} 0.0
vllm:time_to_first_token_seconds_sum{engine="0",model_name="Q"} 81.5
vllm:cache_config_info{block_size="16",num_gpu_blocks="27000"} 1.0
"""
SGLANG = """\
# HELP sglang:num_running_reqs The number of running requests.
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{model_name="m",pp_rank="0",tp_rank="0"} 5.0
sglang:num_queue_reqs{model_name="m",pp_rank="0",tp_rank="0"} 2.0
sglang:token_usage{model_name="m",pp_rank="0",tp_rank="0"} 0.28
sglang:cache_hit_rate{model_name="m",pp_rank="0",tp_rank="0"} 0.1
"""
TRITON = """\
# HELP nv_inference_pending_request_count Instantaneous number of pending requests
# TYPE nv_inference_pending_request_count gauge
nv_inference_pending_request_count{model="resnet",version="1"} 4
nv_inference_pending_request_count{model="bert",version="2"} 1
nv_gpu_utilization{gpu_uuid="GPU-1"} 0.9
"""
TENSORRT = """\
# HELP nv_trt_llm_request_metrics TRT LLM request metrics
# TYPE nv_trt_llm_request_metrics gauge
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="waiting",version="1"} 6
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="context",version="1"} 1
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="scheduled",version="1"} 8
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="max",version="1"} 512
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="active",version="1"} 14
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="used",model="t",version="1"} 70
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="fraction",model="t"} 0.4875
nv_inference_pending_request_count{model="tensorrt_llm",version="1"} 9
"""


@pytest.mark.parametrize(
    ("page", "reading"),
    [
        (VLLM, (3.0, 7.0, 0.4375)),
        (VLLM.replace("kv_cache_usage", "gpu_cache_usage"), (3.0, 7.0, 0.4375)),
        (SGLANG, (2.0, 5.0, 0.28)),
        (TENSORRT, (6.0, 8.0, 0.4875)),
        (TRITON, (5.0, None, None)),
        ("", (None, None, None)),
        ("process_cpu_seconds_total 3.5\n<html>vllm: 7</html>", (None, None, None)),
    ],
)
def test_each_engine_is_read_by_its_names(
    page: str, reading: tuple[float | None, ...]
) -> None:
    assert read_page(page) == EngineReading(*reading)
    assert read_page(page.replace("\n", "\r\n")) == EngineReading(*reading)


def test_engines_of_one_process_add_up_and_gpus_of_one_engine_do_not() -> None:
    page = "".join(
        f'sglang:num_queue_reqs{{dp_rank="{dp}",model_name="m",tp_rank="{tp}"}} {n}\n'
        f'sglang:token_usage{{dp_rank="{dp}",model_name="m",tp_rank="{tp}"}} 0.{n}\n'
        for dp, n in ((0, 4), (1, 6))
        for tp in range(4)
    )
    assert read_page(page) == EngineReading(10.0, None, 0.6)


@pytest.mark.parametrize("value", ["NaN", "-1", "+Inf", "1e999", "seven", "0x7"])
def test_what_is_no_number_of_requests_is_unknown_not_zero(value: str) -> None:
    page = f'vllm:num_requests_waiting{{engine="0"}} {value}\n'
    assert read_page(page) == EngineReading()
    page += 'vllm:num_requests_waiting{engine="1"} 4.0 1760000000000\n'
    assert read_page(page).queue_length == 4.0


def test_a_page_of_many_series_is_bounded() -> None:
    page = "".join(
        f'vllm:num_requests_waiting{{engine="{number}"}} 1\n'
        for number in range(2 * MOST)
    )
    assert read_page(page).queue_length == MOST


@pytest.mark.parametrize(
    "series",
    [
        'vllm:num_requests_waiting{m="a"} 3 # {trace_id="x"} 0.5',
        'vllm:num_requests_waiting 3 # {trace_id="x"} 0.5',
        'vllm:num_requests_waiting{m="a}b",n="c\\"} 7",} 3 1760000000000',
        "vllm:num_requests_waiting{}\t3",
    ],
)
def test_labels_end_at_the_first_brace_outside_of_quotes(series: str) -> None:
    assert read_page(series).queue_length == 3.0


@pytest.mark.parametrize(
    "series",
    [
        'vllm:num_requests_waiting{m="a} 3',
        'vllm:num_requests_waiting{m="a" 3',
        'vllm:num_requests_waiting{m="a}" 3',
        "vllm:num_requests_waiting",
    ],
)
def test_labels_without_an_end_have_no_value(series: str) -> None:
    assert read_page(series) == EngineReading()


@pytest.mark.slow
@pytest.mark.parametrize(
    "repeated", ["a", " ", '"', "}", '{"', '"}', '{a="}" ', "{\\", "} ", '="a",']
)
def test_a_line_takes_time_in_proportion_to_its_length(repeated: str) -> None:
    """A square of it would be minutes."""
    for begin in ("nv_", "nv_a{", 'nv_a{b="', "nv_a ", "nv_a{} "):
        line = (begin + repeated * LONGEST)[:LONGEST]
        assert read_page(f"{line}\n" * 32) == EngineReading()


@pytest.mark.parametrize(("longer", "count"), [(0, 3.0), (1, None)])
def test_a_line_that_is_too_long_is_none_of_an_engine(
    longer: int, count: float | None
) -> None:
    begin, end = 'vllm:num_requests_waiting{m="', '"} 3'
    model = "a" * (LONGEST - len(begin) - len(end) + longer)
    assert read_page(f"{begin}{model}{end}\n").queue_length == count
