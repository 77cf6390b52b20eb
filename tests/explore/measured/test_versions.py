"""Which claim of a stack a text with a version means."""

import pytest

from diffperf.explore.measured.versions import Claim, newest_claim, version_in


@pytest.mark.parametrize(
    ("text", "name", "version"),
    [
        ("vllm 0.19.0", "vllm", (0, 19)),
        ("vllm", "vllm", ()),
        ("vllm nightly-5b8c30d62b754b57", "vllm", ()),
        ("vllm nightly-5b8c30d62b754b57", "vllm nightly", ()),
        ("trtllm 1.0.0rc3", "trtllm", (1,)),
        ("trtllm gpt-oss-dev", "trtllm", ()),
        ("sglang 0.5.10.post1", "sglang", (0, 5, 10)),
        ("sglang lmsysorg/sglang:v0.5.8-cu130-amd64", "sglang", (0, 5, 8)),
        ("sglang rocm/7.0:rocm7.0_ubuntu_22.04_sgl-dev-v0.5.2-rocm7.0-mi30x-20250915", "sglang", (0, 5, 2)),
        ("mori-sglang lmsysorg/sglang-rocm:v0.5.12-rocm720-mi35x-20260519", "mori-sglang", (0, 5, 12)),
        ("mori-sglang rocm/sgl-dev:sglang-0.5.9-rocm720-mi35x-mori-0227-2", "mori-sglang", (0, 5, 9)),
        ("trt nvidia/tensorrt-llm/release:1.1.0rc2.post2", "trt", (1, 1)),
        ("dynamo-trt nvidia/ai-dynamo/tensorrtllm-runtime:0.8.1.post1", "dynamo-trt", (0, 8, 1)),
        ("atom rocm/atom:rocm7.1.1-ubuntu24.04-pytorch2.9-atom0.1.1-mi350x", "atom", (0, 1, 1)),
        ("atom rocm/atom:rocm7.2.3_pytorch_release_2.10.0_atom20260511", "atom", (20260511,)),
        ("tensorrt-llm 0.5.0-0.6.0", "tensorrt-llm", (0, 5)),
        ("tensorrt-llm (nemo)", "tensorrt-llm", ()),
    ],
)
def test_versions_in_texts(text, name, version):
    assert version_in(text, name) == version


CLAIMS = ("vllm >= 0.11", "vllm", "vllm >= 0.8", "vllm nightly >= 1", "trt", "trtllm >= 1.0")


@pytest.mark.parametrize(
    ("text", "claim"),
    [
        ("vllm", "vllm"),
        ("vllm 0.7.9", "vllm"),
        ("vllm 0.8.0rc1", "vllm >= 0.8"),
        ("vllm 0.10.2", "vllm >= 0.8"),  # 10 is above 8, and below 11
        ("vllm 0.11", "vllm >= 0.11"),
        ("vllm vllm/vllm-openai:v0.21.0", "vllm >= 0.11"),
        ("vllm nightly-5b8c30d6", "vllm nightly >= 1"),  # the longest name, though it says no version
        ("trtllm 0.9", "trtllm >= 1.0"),  # older than all that claim the name: the oldest of them
        ("trt 0.9", "trt"),
        ("mytrt", None),
    ],
)
def test_the_newest_generation_that_is_not_newer_counts(text, claim):
    found = newest_claim(map(Claim.parse, CLAIMS), text)
    assert found == (None if claim is None else Claim.parse(claim))


def test_zeros_at_the_end_of_a_version_say_nothing():
    assert Claim.parse("trtllm >= 1.0.0") == Claim("trtllm", (1,))
    assert Claim.parse("palm inference") == Claim("palm inference", ())
