"""Values of a user's files: they go before the fitted ones of a calibration that they inherit."""

import pytest

import diffperf as dp
from diffperf.load import load_calibrated, load_calibration
from diffperf.quantity import locate

BF16 = "accelerator.matrix.bf16.efficiency"
FP16 = "accelerator.matrix.fp16.efficiency"
HBM = "accelerator.memory.hbm.efficiency"
NVLINK = "network.nvlink.efficiency"
FITTED = load_calibration("h100-sxm5-80gb").values[BF16]  # by the shipped calibration
ACCELERATOR = 'extends = "h100-sxm5-80gb"\nmatrix.bf16.efficiency = 0.3\nmemory.hbm.efficiency = 0.5'
INLINE = 'extends = "dgx-h100"\naccelerator.matrix.bf16.efficiency = 0.3'
NETWORK = """extends = "dgx-h100"
[[network]]
name = "nvlink"
efficiency = 0.3
[[network]]
name = "infiniband"
"""
CALIBRATION = """
hardware = "HARDWARE"
system = "SYSTEM"
[parts]
[values]
"accelerator.matrix.bf16.efficiency" = 0.6
[uncertainty]
parameters = ["accelerator.matrix.bf16.efficiency"]
covariance = [[1e-4]]
[spread]
gemm = 0.05
"""


def read(folder, system, **files):
    """The system of a file, and its calibration; the others lie beside it."""
    for name, text in (files | {"system": system}).items():
        (folder / f"{name}.toml").write_text(text, encoding="utf-8")
    return load_calibrated(str(folder / "system.toml"))


def at(system, path):
    return pytest.approx(float(locate(system, path)[0]))


@pytest.mark.parametrize(
    ("system", "files", "own"),
    [
        ('extends = "dgx-h100"\naccelerator = "mine.toml"', {"mine": ACCELERATOR}, {BF16: 0.3, HBM: 0.5}),
        (
            'extends = "dgx-h100"\naccelerator = "next.toml"',
            {"mine": ACCELERATOR, "next": 'extends = "mine.toml"\nmemory.hbm.efficiency = 0.6'},
            {BF16: 0.3, HBM: 0.6},
        ),
        ('extends = "other.toml"', {"other": INLINE}, {BF16: 0.3}),
        (INLINE, {}, {BF16: 0.3}),
        ('extends = "dgx-h100"\nnetwork.nvlink.efficiency = 0.3', {}, {NVLINK: 0.3}),
        (NETWORK, {}, {NVLINK: 0.3}),
        (f"{INLINE}\naccelerator.attention.efficiency = 0.5", {}, {BF16: 0.3}),
        ('extends = "dgx-h100"\naccelerator.matrix.bf16.rate = "900 TFLOP/s"', {}, {}),
    ],
)
def test_values_of_own_files_go_before_fitted_ones(tmp_path, system, files, own):
    shipped, _ = load_calibrated("dgx-h100")
    mine, calibration = read(tmp_path, system, **files)
    for path in (BF16, HBM, NVLINK):
        assert at(mine, path) == own.get(path, float(locate(shipped, path)[0]))
    assert calibration is not None
    assert own.keys() <= set(calibration.kept)
    assert not own.keys() ^ {path for path in calibration.kept if ".attention." not in path}


def test_formats_of_the_same_kernels_follow_the_own_value(tmp_path):
    mine, _ = read(tmp_path, INLINE)
    assert at(mine, FP16) == 0.3
    mine, _ = read(tmp_path, INLINE.replace("bf16", "fp16"))
    assert (at(mine, FP16), at(mine, BF16)) == (0.3, FITTED)


def test_a_table_gives_values_of_its_own():
    accelerator = {"extends": "h100-sxm5-80gb", "memory": {"hbm": {"efficiency": 0.5}}}
    system = dp.load_system({"extends": "dgx-h100", "accelerator": accelerator})
    assert (at(system, HBM), at(system, BF16)) == (0.5, FITTED)


@pytest.mark.parametrize(
    ("hardware", "name", "expected"),
    [("mine", "elsewhere", 0.6), ("h100-sxm5-80gb", "system", 0.6), ("h100-sxm5-80gb", "dgx-h100", 0.3)],
)
def test_a_calibration_of_the_own_files_goes_before_them(tmp_path, hardware, name, expected):
    fitted = CALIBRATION.replace("HARDWARE", hardware).replace("SYSTEM", name)
    text = 'extends = "dgx-h100"\naccelerator = "mine.toml"\ncalibration = "fit.toml"'
    system, _ = read(tmp_path, text, mine=ACCELERATOR, fit=fitted)
    assert at(system, BF16) == expected


def test_an_estimate_names_the_values_of_own_files(tmp_path):
    read(tmp_path, 'extends = "dgx-h100"\nnetwork.nvlink.efficiency = 0.3')
    given = {"devices": 8, "tp": 8, "global_batch": 32}
    answer = dp.estimate("llama-3-8b", str(tmp_path / "system.toml"), **given)
    shipped = dp.estimate("llama-3-8b", "dgx-h100", **given)
    assert float(answer.report.time) > 1.05 * float(shipped.report.time)
    line = next(str(line) for line in answer.lines() if "own values" in str(line))
    assert "network.nvlink.efficiency = 0.3 (fitted: 0.8926)" in line
    assert not any("own values" in str(line) for line in shipped.lines())


OTHER = 'extends = "dgx-h100"\naccelerator = "mi300x"'


@pytest.mark.parametrize(
    ("system", "files"), [(OTHER, {}), ('extends = "other.toml"', {"other": OTHER})], ids=["own", "extended"]
)
def test_an_inherited_calibration_of_another_accelerator_is_left_out(tmp_path, system, files):
    system, calibration = read(tmp_path, system, **files)
    assert calibration is None
    assert str(system.calibration) == "none"
    assert float(locate(system, BF16)[0]) == at(dp.load_system("mi300x-8", calibration="none"), BF16)
    assert float(locate(system, NVLINK)[0]) == at(dp.load_system("dgx-h100", calibration="none"), NVLINK)


@pytest.mark.parametrize("named", ["system", "other"])
def test_a_calibration_of_another_accelerator_that_a_file_names_is_refused(tmp_path, named):
    texts = {"system": 'extends = "other.toml"', "other": OTHER}
    texts[named] += '\ncalibration = "h100-sxm5-80gb"'
    with pytest.raises(dp.ConfigError, match=r'system.toml: calibration: .* fitted to h100.*"none"'):
        read(tmp_path, texts["system"], other=texts["other"])
