"""Which system and which software the names in measured tables mean."""

import pytest
from measured_cases import all_reduce, write

import diffperf as dp
from diffperf.explore.measured.names import StackNames, SystemNames, read_names
from diffperf.explore.measured.platforms import Platforms, shipped_stack
from diffperf.explore.measured.predictions import predict
from diffperf.explore.measured.stacking import systems_of
from diffperf.explore.measured.table import Row, read_measurements
from diffperf.hardware.system import System
from diffperf.load import available, config_root, load
from diffperf.software.stack import Stack

MEASURED = {
    "a100-pcie-80gb", "a100-sxm4-40gb", "a100-sxm4-80gb", "a40", "b200-sxm-180gb", "b300-sxm",
    "dgx-spark-gb10", "gaudi2", "gaudi3", "gb200", "gb300", "gh200-144gb", "gh200-96gb", "h100-96gb",
    "h100-nvl", "h100-pcie-80gb", "h100-sxm5-80gb", "h20-sxm-96gb", "h200-sxm-141gb", "h800-sxm-80gb",
    "intel-max-1550", "jetson-agx-orin", "l40s", "m1-7gpu", "m1-max-32gpu", "m1-ultra-64gpu",
    "m2-ultra-76gpu", "m3-max-40gpu", "m3-ultra-80gpu", "m4-max-40gpu", "m4-pro-20gpu", "m5-max-40gpu",
    "mi210", "mi250", "mi250x", "mi300x", "mi325x", "mi355x", "mobile-soc-lpddr6-173",
    "mobile-soc-lpddr6-520", "rtx-3060-12gb", "rtx-3070", "rtx-3080-10gb", "rtx-3080ti", "rtx-3090",
    "rtx-4000-ada", "rtx-4070ti", "rtx-4080", "rtx-4090", "rtx-5000-ada", "rtx-5080", "rtx-5090",
    "rtx-6000-ada", "rtx-a6000", "sn40l", "tpu-v3", "tpu-v4", "tpu-v5e", "tpu-v5p", "tpu-v6e", "tpu-v7x",
    "trainium2", "v100-sxm2-32gb",
}  # fmt: skip


IN_PACKAGES = {"mi250": "mi250-package"}  # hardware whose rows count packages of several dies


def system_of(hardware: str, framework: str | None = None) -> System:
    """The system of a row of a table of runs."""
    platforms = Platforms()
    software = platforms.software("framework", framework, platforms[hardware].accelerator)
    return platforms.system(hardware, software)


@pytest.mark.slow
def test_every_hardware_id_of_the_tables_has_a_system_of_that_accelerator():
    platforms = Platforms()
    assert set(platforms.hardware) == MEASURED | set(available("systems"))
    for hardware in MEASURED:
        assert platforms[hardware].accelerator == IN_PACKAGES.get(hardware, hardware)
        assert (platforms[hardware].node or 0) < len(platforms[hardware].system.network)


def test_no_two_configs_claim_the_same_name():
    """A name of software means one stack on each accelerator, one of hardware one system in each table."""
    claims = []
    for folder, cls in (("systems", SystemNames), ("stacks", StackNames)):
        for config in available(folder):
            names = vars(read_names(cls, config_root() / folder / f"{config}.toml"))
            # A system may mean a name in some tables or of some sources alone, a stack on some accelerators.
            accelerators = names.get("on") or names.get("tables") or names.get("source") or ("any",)
            lists = {column: value for column, value in names.items() if isinstance(value, tuple)}
            claims += [
                (column, name, accelerator)
                for column, value in lists.items()
                if column not in ("on", "tables", "source")
                for name in value
                for accelerator in accelerators
            ]
    assert len(claims) > 90
    assert len(claims) == len(set(claims))


def test_a_name_may_mean_another_system_in_one_kind_of_table(tmp_path):
    """NCCL was measured on another host with L40S than everything else."""
    rows = [all_reduce(id="a", hardware="l40s")]
    (collective,) = read_measurements(write(tmp_path / "collectives.csv", rows)).rows
    assert collective["hardware"] == "l40s-8-virtual"
    assert Platforms().name_in("inference", "l40s") == "l40s"
    own = Platforms().with_system("l40s-8")
    assert own.name_in("collectives", "l40s") == "l40s"
    assert str(own["l40s"].system.name) == "l40s-8"


def test_a_name_may_mean_another_system_of_one_source():
    """BLOOM was planned on Jean Zay, whose A100 have a third of the NVLink of those of a DGX A100."""
    platforms, planned = Platforms(), "github:bigscience-workshop/bigscience@9e64edec2ad1:train/README.md"
    assert platforms.name_in("training", "a100-sxm4-80gb", planned) == "jean-zay-a100"
    assert platforms.name_in("training", "a100-sxm4-80gb", "arXiv 2205.05198") == "a100-sxm4-80gb"
    assert platforms.name_in("training", "a100-sxm4-80gb") == "a100-sxm4-80gb"
    own = platforms.with_system("dgx-a100")
    assert own.name_in("training", "a100-sxm4-80gb", planned) == "a100-sxm4-80gb"
    links = [float(system_of(name).network[0].bandwidth) for name in ("jean-zay-a100", "dgx-a100")]
    assert links == [4 * 25e9, 12 * 25e9]


def test_rows_of_one_source_may_mean_another_stack(tmp_path):
    """vTrain's runs on one node ran its own model, whatever their column `framework` says, and what a row
    assumes tells which nanotron it ran; a file of the user's own stack means itself.
    """
    text = "Megatron-DeepSpeed"
    single = "github:VIA-Research/vTrain@f8dda8473a48:data/ground_truth_single.csv"
    platforms = Platforms()
    assert platforms.software_in(text, single) == "vtrain"
    assert platforms.software_in(text, single.replace("single", "multi")) == text
    assert platforms.software_in(None, None) is None
    assumed = "flash attention on; run before nanotron PP bug fix (after_pp_fix=False)"
    assert platforms.software_in("nanotron", None, assumed) == "nanotron-stalled-pipeline"
    assert platforms.software_in("nanotron", None, "flash attention on") == "nanotron"
    path = tmp_path / "own.toml"
    path.write_text('extends = "megatron-lm"\n', encoding="utf-8")
    assert platforms.with_stack(path).software_in(str(path), single, assumed) == str(path)


def test_a_systems_own_name_means_it_too():
    assert str(system_of("a100-cloud").network[-1].name) == "cloud"
    assert str(system_of("a100-sxm4-80gb").network[-1].name) == "infiniband"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "measured = { hardwear = [] }",
            'measured.hardwear: found unknown key "hardwear".*did you mean "hardware"',
        ),
        ('measured = { hardware = "mine" }', "measured.hardware: found mine; expected an array of texts"),
        ("measured = { hardware = [7] }", "expected an array of texts"),
        ("measured = { node = 1 }", "measured.node: found 1; expected a text"),
        ("measured = 1", "measured: found no table"),
    ],
)
def test_names_that_are_wrong(tmp_path, text, words):
    (tmp_path / "mine.toml").write_text(text, encoding="utf-8")
    with pytest.raises(dp.ConfigError, match=words):
        read_names(SystemNames, tmp_path / "mine.toml")


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
    "nanotron-stalled-pipeline": "nanotron-stalled-pipeline",
    "llm-foundry/Composer FSDP": "llm-foundry-fsdp",
    "MaxText": "maxtext",
    "Pathways/T5X": "maxtext",
    "PaLM inference (Pope et al.)": "maxtext",
    "TensorRT-LLM": "tensorrt-llm",
    "TensorRT-LLM (NeMo)": "tensorrt-llm-nemo",
    "TensorRT-LLM 0.5.0-0.6.0": "tensorrt-llm-0.5",
    "TensorRT-LLM 0.5.0-era": "tensorrt-llm-0.5",
    "TensorRT-LLM 0.9.0": "tensorrt-llm-0.7",
    "TensorRT-LLM 1.2.0": "tensorrt-llm-1",
    "trt": "tensorrt-llm-pytorch",
    "trt nvidia/tensorrt-llm/release:1.1.0rc2.post2": "tensorrt-llm-1",
    "trt nvidia/tensorrt-llm/release:1.3.0rc14": "tensorrt-llm-1.3",
    "dynamo-trt nvidia/ai-dynamo/tensorrtllm-runtime:0.8.1.post1": "tensorrt-llm-pytorch",
    "trtllm": "tensorrt-llm-pytorch",
    "trtllm 1.0.0rc3": "tensorrt-llm-1",
    "trtllm gpt-oss-dev": "tensorrt-llm-pytorch",
    "FasterTransformer": "fastertransformer",
    "Triton/FasterTransformer": "fastertransformer",
    "vLLM": "vllm",
    "vllm 0.7.3": "vllm",
    "vllm 0.11.1": "vllm-0.8",
    "vllm 0.12.0": "vllm-0.12",
    "vllm 0.15.1": "vllm-0.12",
    "vllm 0.19.0": "vllm-0.16",
    "vllm vllm/vllm-openai:v0.21.0": "vllm-0.16",
    "vllm nightly-5b8c30d62b754b57": "vllm-0.16",
    "sglang": "sglang",
    "sglang 0.5.10.post1": "sglang",
    "sglang lmsysorg/sglang:v0.5.8-cu130-amd64": "sglang",
    "sglang lmsysorg/sglang:v0.5.12-cu130": "sglang-0.5.12",
    "sglang rocm/7.0:rocm7.0_ubuntu_22.04_sgl-dev-v0.5.2-rocm7.0-mi30x-20250915": "sglang",
    "dynamo-sglang lmsysorg/sglang:v0.5.8.post1-cu130": "sglang",
    "dynamo-sglang lmsysorg/sglang:v0.5.12-cu130": "sglang-0.5.12",
    "mori-sglang rocm/sgl-dev:sglang-0.5.6.post1-rocm700-mi35x-mori-0113": "sglang-0.5.12",
    "atom rocm/atom:rocm7.2.1-ubuntu24.04-pytorch2.9.1-atom0.1.2": "atom",
    "LMDeploy TurboMind": "lmdeploy",
    "llama.cpp": "llama.cpp",
    "Deepspeed": "deepspeed-inference",
    "Deepspeed-MII": "deepspeed-mii",
    "HuggingFace": "huggingface",
    "sambaflow": "sambaflow",
}


@pytest.mark.parametrize(("framework", "stack"), FRAMEWORKS.items())
def test_every_framework_of_the_tables_selects_its_stack(framework, stack):
    assert shipped_stack("framework", framework.lower(), "a100-sxm4-80gb") == stack
    driven = system_of("a100-sxm4-80gb", framework).stack
    assert str(driven.name) == stack
    assert float(driven.elementwise_kernels) == float(load(Stack, stack).elementwise_kernels)


def test_kernels_of_ampere_on_hopper_are_a_stack_of_their_own():
    ampere, hopper = (
        system_of(name, "llm-foundry/Composer FSDP").stack for name in ("a100-sxm4-80gb", "h100-sxm5-80gb")
    )
    assert (str(ampere.name), str(hopper.name)) == ("llm-foundry-fsdp", "llm-foundry-fsdp-hopper")
    assert float(hopper.attention_efficiency) < float(ampere.attention_efficiency)


def test_kernels_for_experts_in_four_bits_differ_on_blackwell():
    """gpt-oss of The ML.ENERGY Benchmark multiplies MXFP4 by MXFP8 on B200, and by bf16 on H100."""
    hopper, blackwell = (
        Platforms().software("framework", "vllm 0.11.1", name, model="gpt-oss-120b").stack
        for name in ("h100-sxm5-80gb", "b200-sxm-180gb")
    )
    assert (str(hopper.name), str(blackwell.name)) == ("vllm-0.8", "vllm-0.8-blackwell")
    assert (float(hopper.narrows_expert_operands.on), float(blackwell.narrows_expert_operands.on)) == (0, 1)


def test_a_release_that_did_not_shorten_runs_on_hopper_keeps_the_older_stack_there():
    hopper, blackwell = (
        system_of(name, "Megatron-Bridge 26.06").stack for name in ("h100-sxm5-80gb", "gb200")
    )
    assert (str(hopper.name), str(blackwell.name)) == ("megatron-bridge-26.04", "megatron-bridge")


def test_recipes_of_one_model_may_have_a_stack_of_their_own():
    """Megatron-Bridge's recipes of gpt-oss dispatched tokens by an all-to-all up to release 26.04."""

    def stack(accelerator, framework, model):
        return Platforms().software("framework", framework, accelerator, model=model, trained=True).stack

    names = [
        str(stack(accelerator, f"Megatron-Bridge {release}", model).name)
        for accelerator in ("h100-sxm5-80gb", "gb200")
        for release in ("26.04", "26.06")
        for model in ("gpt-oss-120b", "qwen3-30b-a3b", "")
    ]
    hopper = ["megatron-bridge-26.04-alltoall", "megatron-bridge-26.04", "megatron-bridge-26.04"]
    blackwell = [
        "megatron-bridge-26.04-alltoall-blackwell",
        "megatron-bridge-26.04-blackwell",
        "megatron-bridge-26.04-blackwell",
    ]
    assert names == [*hopper, *hopper, *blackwell, *["megatron-bridge"] * 3]


@pytest.mark.parametrize("framework", [None, "", "my own", "mymegatron-lm"])
def test_other_frameworks_keep_the_systems_own_stack(framework):
    assert Platforms().software("framework", framework, "tpu-v4") is None
    assert str(system_of("tpu-v4", framework).stack.name) == "maxtext"
    assert str(system_of("h100-nvl", framework).inference_stack.name) == "tensorrt-llm"


def test_a_framework_drives_training_and_inference():
    driven = system_of("h100-nvl", "vLLM 0.6")
    assert (str(driven.stack.name), str(driven.inference_stack.name)) == ("vllm", "vllm")


@pytest.mark.parametrize(
    ("column", "text", "accelerator", "stack"),
    [
        ("kernel", "flashattention-2", "a100-sxm4-80gb", "flash-attention-2"),
        ("kernel", "flashattention-2", "h100-sxm5-80gb", "flash-attention-2-hopper"),
        ("kernel", "tensorrt-llm", "h100-sxm5-80gb", "tensorrt-llm-kernels"),
        ("kernel", "pytorch", "a100-sxm4-80gb", "unfused-attention"),
        ("library", "nccl 2.27.3", "h100-nvl", "nccl-tests"),
        ("library", "nccl (torch.distributed)", "h100-nvl", "torch-distributed"),
        ("library", "trt-llm custom ar", "h100-nvl", "tensorrt-llm-all-reduce"),
        ("table", "gemm", "h100-nvl", "kernels"),
        ("kernel", "megatron-lm", "h100-nvl", None),
    ],
)
def test_every_library_of_the_tables_selects_its_stack(column, text, accelerator, stack):
    assert shipped_stack(column, text, accelerator) == stack


def test_servers_and_single_batches_of_one_text_have_stacks_of_their_own():
    """vLLM without a release: servers on Hopper ran it in 2025, single batches in 2024."""
    assert shipped_stack("framework", "vllm", "h100-sxm5-80gb", served=True) == "vllm-2025"
    assert shipped_stack("framework", "vllm", "h100-sxm5-80gb") == "vllm"
    # Elsewhere they are the same.
    for accelerator, stack in (("b200-sxm-180gb", "vllm-2025-blackwell"), ("a100-sxm4-80gb", "vllm")):
        for served in (False, True):
            assert shipped_stack("framework", "vllm", accelerator, served=served) == stack


@pytest.mark.parametrize(
    ("framework", "trains", "infers"),
    [
        ("deepspeed 0.14", "deepspeed-zero", "deepspeed-inference"),
        ("deepspeed zero-3", "deepspeed-zero", "deepspeed-zero"),
        ("huggingface", "pytorch-fsdp", "huggingface"),
        ("pytorch fsdp2", "torchtitan", "torchtitan"),
        ("pytorch", "pytorch-fsdp", None),
        ("megatron-deepspeed", "megatron-deepspeed", "megatron-deepspeed"),
    ],
)
def test_a_library_of_training_and_inference_has_a_stack_of_each(framework, trains, infers):
    assert shipped_stack("framework", framework, "h100-sxm5-80gb", trained=True) == trains
    assert shipped_stack("framework", framework, "h100-sxm5-80gb") == infers


def run(hardware: str, devices: float, in_node: float) -> Row:
    """A row of some devices."""
    values = {"hardware": hardware, "n_devices": devices, "devices_per_node": in_node}
    return Row("training", 2, {}, values)


def sizes(hardware: str, devices: float, in_node: float) -> list[float]:
    """Devices in the system, and in a domain of each of its tiers."""
    system = systems_of([run(hardware, devices, in_node)], Platforms())
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
    both = systems_of([run("tpu-v5p", 8, 4), run("h100-nvl", 4, 4)], Platforms())
    assert [tier.size.tolist() for tier in both.network] == [[16, 2], [8960, 4], [1e6, 1e6]]


def test_interconnects_of_which_no_more_is_known_are_those_of_a_cloud(tmp_path):
    """Rows between nodes of an unnamed network have that of the system that claims the name."""
    row = all_reduce(library="NCCL")
    rows = [row | {"id": f"row {text}", "interconnect": text} for text in ("inter-node", "infiniband", "")]
    stated, own, unnamed = (
        prediction.values["latency_s"]
        for prediction in predict("collectives", read_measurements(write(tmp_path / "rows.csv", rows)).rows)
    )
    assert stated > 1.5 * own
    assert unnamed == own
