"""Reading tables of measurements: kinds, values, and every way a row or a file can be wrong."""

from pathlib import Path

import numpy as np
import pytest

import diffperf as dp
from diffperf.explore.measured.columns import SCHEMAS, measured_columns
from diffperf.explore.measured.platforms import PLATFORMS, stack_of, stacked_systems, system_of
from diffperf.explore.measured.table import read_measurements
from diffperf.load import load
from diffperf.software.stack import Stack

DATA = Path(__file__).parents[1] / "data"
HEADER = "id,group,hardware,dtype,m,n,k,batch,latency_s"
GOOD = "a,one,h100-sxm5-80gb,bf16,4096,4096,4096,1,2.5e-4"


def table(folder, *rows: str, header: str = HEADER) -> Path:
    path = folder / "measured.csv"
    path.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    return path


def test_values(tmp_path):
    read = read_measurements(table(tmp_path, GOOD, "", "b,,tpu-v4,fp8,1,2,3,,"))
    assert read.kind == "gemm"
    assert read.faults == []
    first, second = read.rows
    assert (first.line, first["m"], first["latency_s"], first["dtype"]) == (2, 4096.0, 2.5e-4, "bf16")
    assert (second.line, second["group"], second["batch"], second["latency_s"]) == (4, "all", 1.0, None)
    assert second.cells["group"] == ""


@pytest.mark.parametrize("kind", SCHEMAS)
def test_a_kind_is_recognized_from_its_columns(tmp_path, kind):
    """From the needed columns and one measured one, in any order and with others between."""
    needed = [name for name, column in SCHEMAS[kind].items() if column.needed]
    for measured in (measured_columns(kind)[0], measured_columns(kind)[-1]):
        path = table(tmp_path, "x", header=",".join([measured, "remark", *reversed(needed)]))
        assert read_measurements(path).kind == kind


@pytest.mark.parametrize(
    ("file", "kind", "rows"),
    [("korthikanti_training", "training", 9), ("nvidia_llama2_inference", "inference", 22)],
)
def test_published_tables(file, kind, rows):
    read = read_measurements(DATA / f"{file}.csv")
    assert (read.kind, len(read.rows), read.faults) == (kind, rows, [])


@pytest.mark.parametrize(
    ("row", "reason", "words"),
    [
        (
            "b,one,h100-sxm5-80gb,bf16,4096,4096,4096,1,250 us",
            "latency_s: a unit in the cell",
            '"250 us"; expected a bare number in s',
        ),
        (
            "b,one,h100-sxm5-80gb,bf16,4096,4096,4096,1,0.25ms",
            "latency_s: a unit in the cell",
            "SI value alone",
        ),
        ("b,one,h100-sxm5-80gb,bf16,4096,4096,4096,1,NaN", "latency_s: not a finite number", "NaN"),
        ("b,one,h100-sxm5-80gb,bf16,4096,4096,4096,1,-inf", "latency_s: not a finite number", "-inf"),
        ("b,one,h100-sxm5-80gb,bf16,4096,4096,4096,1,1e999", "latency_s: out of range", "above 0"),
        ("b,one,h100-sxm5-80gb,bf16,4096,4096,4096,1,-2e-4", "latency_s: negative", '"-2e-4"'),
        ("b,one,h100-sxm5-80gb,bf16,4096,4096,4096,1,0", "latency_s: out of range", "above 0"),
        ("b,one,h100-sxm5-80gb,bf16,4096,4096,4096,1,fast", "latency_s: not a number", '"fast"'),
        ("b,one,h100-sxm5-80gb,bf16,,4096,4096,1,2e-4", "m: missing", "an empty cell"),
        ("b,one,h100-sxm5-80gb,bf16,40.5,4096,4096,1,2e-4", "m: not whole", "round it"),
        ("b,one,h100-sxm5-80gb,bf16,0,4096,4096,1,2e-4", "m: out of range", "from 1 to"),
        (
            "b,one,h100-sxm-80gb,bf16,4096,4096,4096,1,2e-4",
            "hardware: unknown hardware",
            'did you mean "h100-sxm5-80gb"?',
        ),
        ("b,one,abacus,bf16,4096,4096,4096,1,2e-4", "hardware: unknown hardware", "known: "),
        ("a,one,h100-sxm5-80gb,bf16,4096,4096,4096,1,2e-4", "id: duplicate", "line 2 has this one"),
        ("b,one,h100-sxm5-80gb,bf16,4096", "wrong number of cells", "found 5 cells; expected 9"),
        (
            "b,one,h100-sxm5-80gb,bf16,4,096,4096,4096,1,2e-4",
            "wrong number of cells",
            "quote cells that hold commas",
        ),
    ],
)
def test_a_bad_row_is_named_and_the_others_are_read(tmp_path, row, reason, words):
    path = table(tmp_path, GOOD, row, GOOD.replace("a,", "z,"))
    read = read_measurements(path)
    assert [good["id"] for good in read.rows] == ["a", "z"]
    (fault,) = read.faults
    assert (fault.line, fault.reason) == (3, reason)
    assert fault.message.startswith(f"{path} line 3 ({row[0]})")
    assert words in fault.message
    assert "\n" not in fault.message


@pytest.mark.parametrize(
    ("column", "text", "reason"),
    [
        ("recompute", "selectiv", "recompute: unknown value"),
        ("sequence_parallel", "yes", "sequence_parallel: unknown value"),
        ("zero_stage", "4", "zero_stage: out of range"),
        ("attention", "linear", "attention: unknown value"),
        ("oom", "maybe", "oom: unknown value"),
        ("hidden", "6144 elements", "hidden: a unit in the cell"),
        ("reserved_memory_bytes", "80 GiB", "reserved_memory_bytes: a unit in the cell"),
    ],
)
def test_bad_cells_of_runs(tmp_path, column, text, reason):
    header, first, *_ = (DATA / "korthikanti_training.csv").read_text(encoding="utf-8").splitlines()
    quoted = first.split('"')
    cells = [*quoted[0].split(",")[:-1], "remarks", *quoted[2].split(",")[1:]]
    cells[header.split(",").index(column)] = text
    read = read_measurements(table(tmp_path, ",".join(cells), header=header))
    assert [fault.reason for fault in read.faults] == [reason]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "header: found 0 columns"),
        (
            "a,b,c\n1,2,3\n",
            "expected the columns of a table of training, inference, gemm, attention, collectives",
        ),
        (HEADER.replace(",m,", ",") + "\n", "no column m; expected the columns of a gemm table"),
        (HEADER.replace(",latency_s", "") + "\nx\n", "nothing measured; expected one of latency_s"),
        (HEADER + ",m\n" + GOOD + ",1\n", 'two columns "m"'),
        (HEADER + "\n", "no rows"),
        (HEADER + '\n"a,one\n', "unreadable table"),
    ],
)
def test_a_file_that_is_no_table_is_one_error(tmp_path, text, words):
    path = tmp_path / "measured.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(dp.ConfigError) as raised:
        read_measurements(path)
    assert words in str(raised.value)
    assert str(path) in str(raised.value)


def test_a_binary_file_is_one_error(tmp_path):
    (tmp_path / "measured.csv").write_bytes(b"\xff\xfe\x00\x01")
    with pytest.raises(dp.ConfigError, match="unreadable table"):
        read_measurements(tmp_path / "measured.csv")


def test_a_byte_order_mark_and_windows_lines_are_read(tmp_path):
    path = tmp_path / "measured.csv"
    path.write_bytes(("\ufeff" + HEADER + "\r\n" + GOOD + "\r\n").encode())
    assert read_measurements(path).rows[0]["m"] == 4096


MEASURED = {
    "a100-pcie-80gb", "a100-sxm4-40gb", "a100-sxm4-80gb", "a40", "b200-sxm-180gb", "b300-sxm", "dgx-spark-gb10", "gaudi2",
    "gaudi3", "gb200", "gb300", "h100-nvl", "h100-pcie-80gb", "h100-sxm5-80gb", "h200-sxm-141gb", "intel-max-1550",
    "jetson-agx-orin", "l40s", "m1-7gpu", "m1-max-32gpu", "m1-ultra-64gpu", "m2-ultra-76gpu", "m3-max-40gpu", "m3-ultra-80gpu",
    "m4-max-40gpu", "m4-pro-20gpu", "m5-max-40gpu", "mi210", "mi250", "mi250x", "mi300x", "mi325x", "mi355x", "rtx-3060-12gb",
    "rtx-3070", "rtx-3080-10gb", "rtx-3080ti", "rtx-3090", "rtx-4000-ada", "rtx-4070ti", "rtx-4080", "rtx-4090", "rtx-5000-ada",
    "rtx-5080", "rtx-5090", "rtx-6000-ada", "rtx-a6000", "sn40l", "tpu-v3", "tpu-v4", "tpu-v5e", "tpu-v5p", "tpu-v6e",
    "tpu-v7x", "trainium2", "v100-sxm2-32gb",
}  # fmt: skip


def test_every_hardware_id_of_the_tables_has_a_system_of_that_accelerator():
    assert set(PLATFORMS) == MEASURED
    for hardware in PLATFORMS:
        system = system_of(hardware)
        assert str(system.accelerator.name) == hardware
        assert (PLATFORMS[hardware].node_tier or 0) < len(system.network)


FRAMEWORKS = {
    "Megatron-LM": "megatron-lm",
    "Megatron-LM (FT guide baseline)": "megatron-lm",
    "Megatron-Core FSDP+EP": "megatron-core",
    "Megatron-Core MCore w/ Folding": "megatron-core",
    "Megatron-Bridge 25.11": "megatron-bridge-26.04",
    "Megatron-Bridge 26.04.01": "megatron-bridge-26.04",
    "Megatron-Bridge 26.06": "megatron-bridge",
    "NeMo Framework Launcher 24.x": "nemo",
    "NeMo24.03.01.framework": "nemo",
    "Megatron-DeepSpeed": "megatron-deepspeed",
    "GPT-NeoX (Megatron-DeepSpeed)": "megatron-deepspeed",
    "nanotron": "nanotron",
    "llm-foundry/Composer FSDP": "llm-foundry-fsdp",
    "MaxText": "maxtext",
    "Pathways/T5X": "maxtext",
    "PaLM inference (Pope et al.)": "maxtext",
    "TensorRT-LLM": "tensorrt-llm",
    "TensorRT-LLM (NeMo)": "tensorrt-llm",
    "TensorRT-LLM 0.5.0-0.6.0": "tensorrt-llm",
    "TensorRT-LLM 0.5.0-era": "tensorrt-llm",
    "TensorRT-LLM 0.9.0": "tensorrt-llm",
    "trtllm": "tensorrt-llm-pytorch",
    "trtllm 1.0.0rc3": "tensorrt-llm-pytorch",
    "trtllm gpt-oss-dev": "tensorrt-llm-pytorch",
    "FasterTransformer": "fastertransformer",
    "Triton/FasterTransformer": "fastertransformer",
    "vLLM": "vllm",
    "vllm 0.19.0": "vllm",
    "vllm nightly-5b8c30d62b754b57": "vllm",
    "sglang": "sglang",
    "sglang 0.5.10.post1": "sglang",
    "LMDeploy TurboMind": "lmdeploy",
    "llama.cpp": "llama.cpp",
    "Deepspeed": "deepspeed-inference",
    "Deepspeed-MII": "deepspeed-mii",
    "HuggingFace": "huggingface",
    "sambaflow": "sambaflow",
}


@pytest.mark.parametrize(("framework", "stack"), FRAMEWORKS.items())
def test_every_framework_of_the_tables_selects_its_stack(framework, stack):
    assert stack_of(framework) == stack
    driven = system_of("a100-sxm4-80gb", framework).stack
    assert str(driven.name) == stack
    assert float(driven.elementwise_kernels) == float(load(Stack, stack).elementwise_kernels)


def test_kernels_of_ampere_on_hopper_are_a_stack_of_their_own():
    ampere, hopper = (
        system_of(name, "llm-foundry/Composer FSDP").stack for name in ("a100-sxm4-80gb", "h100-sxm5-80gb")
    )
    assert (str(ampere.name), str(hopper.name)) == ("llm-foundry-fsdp", "llm-foundry-fsdp-hopper")
    assert float(hopper.attention_efficiency) < float(ampere.attention_efficiency)


def test_a_release_that_did_not_shorten_runs_on_hopper_keeps_the_older_stack_there():
    hopper, blackwell = (
        system_of(name, "Megatron-Bridge 26.06").stack for name in ("h100-sxm5-80gb", "gb200")
    )
    assert (str(hopper.name), str(blackwell.name)) == ("megatron-bridge-26.04", "megatron-bridge")


@pytest.mark.parametrize("framework", [None, "", "my own", "mymegatron-lm"])
def test_other_frameworks_keep_the_systems_own_stack(framework):
    assert stack_of(framework) is None
    assert str(system_of("tpu-v4", framework).stack.name) == "maxtext"


def sizes(hardware: str, devices: float, in_node: float) -> list[float]:
    """Devices in the system, and in a domain of each of its tiers."""
    system = stacked_systems([hardware], [None], np.array([devices]), np.array([in_node]))
    return [float(system.n_devices[0]), *(float(tier.size[0]) for tier in system.network)]


def test_a_rows_node_is_the_tier_that_is_one():
    """Its tiers inside hold no more; a torus keeps its axes; a machine of one device has no node."""
    assert sizes("gb200", 144, 72) == [144, 72, 1e6]
    assert sizes("a100-sxm4-80gb", 16, 4) == [16, 4, 1e6]
    assert sizes("a100-pcie-80gb", 8, 4) == [8, 2, 4, 1e6]
    assert sizes("a100-pcie-80gb", 2, 1) == [2, 1, 1, 1e6]
    assert sizes("tpu-v4", 64, 4) == [64, 16, 4096, 1e6]
    assert sizes("m1-max-32gpu", 1, 1) == [1, 1e6]
    # Rows of one structure stack, whichever of their tiers is the node.
    both = stacked_systems(["tpu-v5p", "h100-nvl"], [None, None], np.array([8.0, 4.0]), np.array([4.0, 4.0]))
    assert [tier.size.tolist() for tier in both.network] == [[16, 2], [8960, 4], [1e6, 1e6]]
