"""Columns of tables under other names than those that are read: what was likely meant."""

import difflib
from collections.abc import Sequence

from diffperf.explore.measured.schemas import SCHEMAS

# Names that serving software, benchmarks and spreadsheets use, and the columns that they mean; the first that
# a kind of table has.
_OTHER_NAMES = {
    "prompt_length": ("input_len",),
    "prompt_len": ("input_len",),
    "prompt_tokens": ("input_len",),
    "input_length": ("input_len",),
    "input_tokens": ("input_len",),
    "isl": ("input_len",),
    "output_length": ("output_len",),
    "output_tokens": ("output_len",),
    "completion_tokens": ("output_len",),
    "osl": ("output_len",),
    "sequence_length": ("seq_len",),
    "batch_size": ("batch", "global_batch"),
    "global_batch_size": ("global_batch",),
    "micro_batch_size": ("micro_batch",),
    "time_per_output_token_s": ("tpot_s",),
    "inter_token_latency_s": ("tpot_s",),
    "itl_s": ("tpot_s",),
    "time_to_first_token_s": ("ttft_s",),
    "e2e_latency_s": ("latency_s",),
    "precision": ("weight_dtype", "dtype"),
    "kv_cache_dtype": ("kv_dtype",),
    "gpu": ("hardware",),
    "accelerator": ("hardware",),
    "system": ("hardware",),
    "gpus": ("n_devices",),
    "n_gpus": ("n_devices",),
    "num_gpus": ("n_devices",),
    "devices": ("n_devices",),
    "tensor_parallel_size": ("tp",),
    "pipeline_parallel_size": ("pp",),
    "clients": ("concurrency",),
    "engine": ("framework",),
}
_LIKENESS = 0.8  # least share of letters that a misspelled name has in common with the column's


def meant_columns(kind: str, header: Sequence[str]) -> dict[str, str]:
    """The columns of a header that no table of a kind has, and to each the column that was likely meant and
    that the header lacks; those without one are left out.
    """
    missing = [name for name in SCHEMAS[kind] if name not in header]
    meant: dict[str, str] = {}
    for name in header:
        if name in SCHEMAS[kind]:
            continue
        known = [column for column in _OTHER_NAMES.get(name.lower(), ()) if column in missing]
        near = known or difflib.get_close_matches(name.lower(), missing, n=1, cutoff=_LIKENESS)
        if near:
            meant[name] = near[0]
            missing.remove(near[0])
    return meant
