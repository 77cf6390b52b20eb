"""The launch flags of a served layout for vLLM, SGLang and TensorRT-LLM.

The names of flags are those of `vllm serve` (vllm/engine/arg_utils.py), of `python -m sglang.launch_server`
(sglang/srt/server_args.py) and of `trtllm-serve` with its file of options (tensorrt_llm/llmapi/llm_args.py)
in 2025. What has no flag there becomes a comment, a line that begins with #.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from diffperf import units
from diffperf.explore.plan.request_lengths import ACCEPTED, longest_prompt, longest_request
from diffperf.explore.plan.serving_plan import ServedLayout
from diffperf.quantity import Scalar, replace
from diffperf.workload.model import Model
from diffperf.workload.requests import Requests
from diffperf.workload.strategy import Strategy
from diffperf.workload.whole_numbers import whole

# Values of --quantization by the format of operands, where the engine can convert or load weights of it.
_QUANTIZATION = {"fp8": "fp8", "nvfp4": "modelopt_fp4"}
_UNQUANTIZED = ("fp32", "bf16", "fp16")
_TOKENS = 256  # the longest sequence of an engine is a multiple, as whole blocks of caches are
_DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


def launch_flags(model: Model, served: ServedLayout, engine: str) -> list[str]:
    """The flags of one instance for an engine (a name from `ENGINES`), one a line, with comments; of two
    pools those of a worker of either, and what stands in front of them.
    """
    if served.prefill is None:
        copies = f"# {units.plain(served.instances)} of this server, which share the requests evenly"
        return [copies, *_instance_flags(model, served, engine)]
    prefill, workers = served.prefill, served.prefill.instances
    prompts = dataclasses.replace(
        served,
        strategy=prefill.strategy,
        engines=prefill.engines,
        requests=_without_drafts(served.requests),
        report=dataclasses.replace(served.report, memory=prefill.report.prefill_memory),
    )
    roles = ROLES[engine]
    return [
        f"# {units.plain(workers)} of this server for prompts",
        *_instance_flags(model, prompts, engine),
        *roles.prefill(served),
        f"# {units.plain(served.instances)} of this server for answers",
        *_instance_flags(model, served, engine),
        *roles.decode(served),
        f"# in front of both: {roles.router}",
    ]


def _without_drafts(requests: Requests) -> Requests:
    return replace(requests, {"draft_tokens": 0.0})


def _instance_flags(model: Model, served: ServedLayout, engine: str) -> list[str]:
    """The flags of one instance, whatever its part in serving."""
    strategy, lines = served.strategy, []
    if strategy.ep > 1 and strategy.expert_tp > 1:
        both = f"ep {whole(strategy.ep)} and expert tp {whole(strategy.expert_tp)}"
        lines.append(f"# experts are split both ways, {both}: not every engine can")
    if served.requests.draft_tokens > 0:
        drafted = f"{float(served.requests.draft_tokens):g} tokens drafted a step"
        lines.append(f"# speculative decoding ({drafted}) depends on the draft: configure it by hand")
    return [*lines, *ENGINES[engine](model, served)]


def _vllm(model: Model, served: ServedLayout) -> Iterator[str]:
    strategy, requests = served.strategy, served.requests
    yield f"--tensor-parallel-size {whole(strategy.tp)}"
    yield f"--pipeline-parallel-size {whole(strategy.pp)}"
    if served.engines > 1:
        yield f"--data-parallel-size {whole(served.engines)}"
    if strategy.ep > 1:
        yield "--enable-expert-parallel"
    if strategy.cp > 1:
        yield f"--decode-context-parallel-size {whole(strategy.cp)}"
    yield from _longest(model, served, "--max-model-len")
    yield f"--max-num-seqs {_slots(served)}"
    yield f"--max-num-batched-tokens {whole(requests.chunk)}"
    memory = served.report.memory
    yield _memory_comment(served)
    yield f"--gpu-memory-utilization {_rounded_down(1 - float(memory.reserve / memory.capacity))}"
    yield "--enable-chunked-prefill" if requests.mixed_steps.on > 0 else "--no-enable-chunked-prefill"
    if requests.cached_share > 0:
        yield "--enable-prefix-caching"
    yield f"--kv-cache-dtype {'fp8' if strategy.kv_precision.likeliest() == 'fp8' else 'auto'}"
    yield from _quantization(strategy, "--quantization", "--dtype")


def _sglang(model: Model, served: ServedLayout) -> Iterator[str]:
    """Under data-parallel attention the sizes count the ranks of all engines, which share the limits."""
    strategy, requests, engines = served.strategy, served.requests, served.engines
    yield f"--tp-size {whole(float(strategy.tp) * engines)}"
    yield f"--pp-size {whole(strategy.pp)}"
    if engines > 1:
        yield f"--dp-size {whole(engines)}"
        yield "--enable-dp-attention"
    if strategy.ep > 1:
        yield f"--ep-size {whole(strategy.ep)}"
    if strategy.cp > 1:
        yield f"# context parallelism of {whole(strategy.cp)} ranks has no flag"
    yield from _longest(model, served, "--context-length")
    yield f"--max-running-requests {whole(_slots(served) * engines)}"
    yield f"--chunked-prefill-size {whole(float(requests.chunk) * engines)}"
    # Of the device memory, what weights and the KV cache take: all but the work space of a step.
    memory = served.report.memory
    work_space = float((memory.reserve + _activations(served)) / memory.capacity)
    yield _memory_comment(served)
    yield f"--mem-fraction-static {_rounded_down(1 - work_space)}"
    if requests.mixed_steps.on > 0:
        yield "--enable-mixed-chunk"
    yield f"--kv-cache-dtype {'fp8_e4m3' if strategy.kv_precision.likeliest() == 'fp8' else 'auto'}"
    yield from _quantization(strategy, "--quantization", "--dtype")


def _trtllm(model: Model, served: ServedLayout) -> Iterator[str]:
    """Options without a flag are lines of the YAML file for --extra_llm_api_options."""
    strategy, requests, engines = served.strategy, served.requests, served.engines
    yield f"--tp_size {whole(float(strategy.tp) * engines)}"
    yield f"--pp_size {whole(strategy.pp)}"
    if strategy.ep > 1:
        yield f"--ep_size {whole(strategy.ep)}"
    if strategy.cp > 1:
        yield f"# context parallelism: context_parallel_size: {whole(strategy.cp)}"
    yield from _longest(model, served, "--max_seq_len")
    yield f"--max_batch_size {_slots(served)}"
    yield f"--max_num_tokens {whole(requests.chunk)}"
    options = []
    if engines > 1:
        options.append("enable_attention_dp: true")
        if strategy.tp > 1:
            yield f"# TensorRT-LLM's attention dp has no tp {whole(strategy.tp)} inside: it runs tp 1"
    if requests.mixed_steps.on > 0:
        options.append("enable_chunked_prefill: true")
    if requests.batch_wait > 0:
        options.append(f"batch_wait_timeout_iters: {whole(requests.batch_wait)}")
        options.append("batch_wait_max_tokens_ratio: 1.0")
    # Of the memory that weights and activations leave free, what the KV cache may take.
    memory = served.report.memory
    free = float(memory.capacity - memory.weights - _activations(served))
    cache = {"free_gpu_memory_fraction": f"{_rounded_down(1 - float(memory.reserve) / free)}"}
    if strategy.kv_precision.likeliest() == "fp8":
        cache = {"dtype": "fp8"} | cache
    options.append(f"kv_cache_config: {{{', '.join(f'{key}: {value}' for key, value in cache.items())}}}")
    yield _memory_comment(served)
    yield "--extra_llm_api_options options.yaml"
    yield "# options.yaml has the lines"
    yield from (f"#   {option}" for option in options)
    if strategy.precision.likeliest() not in _UNQUANTIZED or _stored(strategy) is not None:
        formats = _stored(strategy) or strategy.precision.likeliest()
        yield f"# the quantization is that of the checkpoint: one with {formats} weights"


ENGINES: dict[str, Callable[[Model, ServedLayout], Iterator[str]]] = {
    "vllm": _vllm,
    "sglang": _sglang,
    "trtllm": _trtllm,
}


class Roles(NamedTuple):
    """Flags that an engine needs beside its other flags where prompts and answers have servers of their own.

    - `prefill`, `decode`: flags and comments of a server of either pool; `router`: what clients talk to.
    """

    prefill: Callable[[ServedLayout], Sequence[str]]
    decode: Callable[[ServedLayout], Sequence[str]]
    router: str


def _nixl(role: str) -> list[str]:
    """vLLM's connector for transfers of the cache (docs.vllm.ai, "NixlConnector Usage Guide")."""
    return [f'--kv-transfer-config \'{{"kv_connector":"NixlConnector","kv_role":"{role}"}}\'']


def _cache_transceiver(served: ServedLayout, *options: str) -> list[str]:
    """TensorRT-LLM's transfers, in the file of options (examples/disaggregated/README.md)."""
    tokens = _rounded_up(longest_prompt(served.requests))
    transceiver = f"{{backend: DEFAULT, max_tokens_in_buffer: {tokens}}}"
    lines = [*options, f"cache_transceiver_config: {transceiver}"]
    return ["# --extra_llm_api_options: its file has also the lines", *(f"#   {line}" for line in lines)]


ROLES = {
    "vllm": Roles(
        prefill=lambda served: _nixl("kv_producer"),
        decode=lambda served: _nixl("kv_consumer"),
        router="a proxy that sends each request to a prefiller, then to a decoder (vLLM's nixl_integration)",
    ),
    "sglang": Roles(
        prefill=lambda served: ["--disaggregation-mode prefill"],
        decode=lambda served: ["--disaggregation-mode decode"],
        router="python -m sglang_router.launch_router --pd-disaggregation --prefill URL --decode URL",
    ),
    "trtllm": Roles(
        prefill=lambda served: _cache_transceiver(served, "disable_overlap_scheduler: true"),
        decode=_cache_transceiver,
        router="trtllm-serve disaggregated -c FILE, whose context_servers and generation_servers are these",
    ),
}


def _quantization(strategy: Strategy, flag: str, dtype: str) -> Iterator[str]:
    """The format of operands, where weights are not quantized further; else what checkpoint it takes."""
    precision, stored = strategy.precision.likeliest(), _stored(strategy)
    if precision in _UNQUANTIZED:
        yield f"{dtype} {_DTYPES[precision]}"
    elif precision in _QUANTIZATION and stored is None:
        yield f"{flag} {_QUANTIZATION[precision]}"
    if stored is not None or precision not in (*_UNQUANTIZED, *_QUANTIZATION):
        yield f"# a checkpoint with {stored or precision} weights brings its own value of {flag}"


def _stored(strategy: Strategy) -> str | None:
    """The format of stored weights where it is not that of the operands."""
    stored = strategy.weight_precision.likeliest()
    return None if stored == "operands" else stored


def _longest(model: Model, served: ServedLayout, flag: str) -> Iterator[str]:
    """The flag of the longest sequence that the engine takes, and which share of the requests that covers: a
    request that may grow beyond it is rejected.
    """
    tokens, window = _rounded_up(longest_request(served.requests)), float(model.longest_sequence)
    if tokens > window:
        yield f"# {flag}: the context window of {model.name}, beyond which the longest requests are"
    else:
        yield f"# {flag}: {ACCEPTED:.1%} of the requests are no longer, prompt and answer"
    yield f"{flag} {whole(min(tokens, window))}"


def _rounded_up(tokens: float) -> int:
    """Tokens as a whole number of `_TOKENS`."""
    return math.ceil(tokens / _TOKENS - 1e-9) * _TOKENS


def _activations(served: ServedLayout) -> Scalar:
    """Bytes of a device in which a step of the engine works, beside weights and KV cache."""
    memory = served.report.memory
    return memory.activations + memory.logits + memory.gathered + memory.buffers


def _rounded_down(share: float) -> float:
    return math.floor(max(share, 0.0) * 100) / 100


def _memory_comment(served: ServedLayout) -> str:
    reserve = units.show(served.report.memory.reserve, "byte")
    return f"# memory: the answer counts on all of the device's but {reserve} for runtime and libraries"


def _slots(served: ServedLayout) -> int:
    return whole(served.requests.batch_cap)
