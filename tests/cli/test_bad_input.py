"""Bad input of any command is one line on stderr that says what to change."""

import pytest


@pytest.mark.parametrize(
    ("line", "code", "words"),
    [
        ("estimate gpt3-175c dgx-a100", 1, 'did you mean "gpt3-175b"'),
        ("estimate gpt3-175b dgx-a10", 1, 'did you mean "dgx-a100"'),
        ("estimate gpt3-175b dgx-a100 --tpp 8", 2, "--tp"),
        ("estimate gpt3-175b dgx-a100 --tp eight", 1, "expected a number"),
        ("estimate gpt3-175b dgx-a100 --tp 0", 1, "from 1 to"),
        ("estimate gpt3-175b dgx-a100 --recompute selectiv", 1, 'did you mean "selective"'),
        ("estimate gpt3-175b dgx-a100 --phase train", 1, 'did you mean "training"'),
        ("estimate gpt3-175b dgx-a100 --devices -3", 1, "n_devices"),
        ("estimate gpt3-175b dgx-a100 --devices 8 --tp 8 --pp 8", 1, "product of the degrees"),
        ("estimate gpt3-175b dgx-a100 --set hbm.bandwith=4TB/s", 1, "hbm.bandwidth"),
        ("estimate gpt3-175b dgx-a100 --set bandwidth=4TB/s", 1, "system.network.nvlink.bandwidth"),
        ("estimate gpt3-175b dgx-a100 --set tp=4", 1, '"strategy.tp"'),
        ("estimate gpt3-175b dgx-a100 --set hbm.bandwidth=4Tb", 1, "Gbit or GB"),
        ("estimate gpt3-175b dgx-a100 --set hbm.bandwidth", 2, "path=value"),
        ("estimate gpt3-175b dgx-a100 --set system.name=x", 1, "names are not inputs"),
        ("estimate gpt3-175b dgx-a100 --plot x.jpg", 1, ".png"),
        ("estimate gpt3-175b dgx-a100 --smooth 0", 2, "sharpness"),
        ("estimate gpt3-175b dgx-a100 --smooth nan", 2, "sharpness"),
        ("estimate gpt3-175b dgx-a100 --band 0.1", 2, "--smooth"),
        ("estimate gpt3-175b dgx-a100 --smooth 50 --band 1", 2, "--band"),
        (
            "compare --models gpt3-22b --systems dgx-a100 --calibration h100-sxm5-80gb",
            1,
            "one of a100-sxm4-80gb",
        ),
        ("estimate gpt3-175b dgx-a100 --stack megatron", 1, "megatron-lm"),
        ("estimate llama-2-7b dgx-a100 --phase generate --zero 3", 1, "zero: found an input of training"),
        ("estimate llama-2-7b dgx-a100 --phase decode --set strategy.schedule=gpipe", 1, "strategy.schedule"),
        ("sensitivity llama-2-7b dgx-a100 --phase prefill --no-overlap-gradients", 1, "in the phase prefill"),
        ("serve llama-2-7b dgx-a100 --set strategy.recompute=full", 1, "in the phase serving"),
        ("serve llama-2-7b dgx-a100 --set strategy.global_batch=8", 1, "--concurrency"),
        ("estimate gpt3-22b dgx-a100 --tp 8 --json nowhere/x.json", 1, "nowhere/x.json"),
        ("estimate gpt3-175b", 2, "SYSTEM"),
        ("estimat gpt3-175b dgx-a100", 2, "estimate"),
        ("compare --models gpt3-22b --systems dgx-a100,dgx-h100 --global-batch 0", 1, "from 1 to"),
        (
            "estimate gpt3-22b dgx-a100 --tp 2 --set strategy.tp=4",
            1,
            "--tp: found 2 beside --set strategy.tp=4",
        ),
        ("estimate gpt3-22b dgx-a100 --devices 8 --set system.n_devices=16", 1, "--devices: found 8 beside"),
        ("estimate gpt3-22b dgx-a100 --set hbm.latency=1us --set hbm.latency=2us", 2, "given twice"),
        (
            "estimate gpt3-22b dgx-a100 --set hbm.latency=1us --set accelerator.memory.hbm.latency=1us",
            1,
            "the same input as hbm.latency",
        ),
        ("sensitivity gpt3-22b dgx-a100 --range tp=1..2 --range tp=1..4", 2, "given twice"),
        ("plan gpt3-175b dgx-a100 --devices 1024 --tp 6", 1, "use tp 8 or 4"),
        ("plan gpt3-175b dgx-a100 --by speed", 1, "one of time, cost, energy"),
        ("plan gpt3-175b dgx-a100 --by tim", 1, 'did you mean "time"'),
        ("plan gpt3-175b dgx-a100 --schedules 1f1b,zerobubble", 1, 'did you mean "zero_bubble"'),
        ("plan gpt3-175b dgx-a100 --micro-batch 1.5", 1, "a whole number"),
        ("plan gpt3-175b dgx-a100 --top 0", 2, "--top"),
        ("plan gpt3-175b", 2, "SYSTEM"),
        ("sensitivity gpt3-175b dgx-a100 --of price", 1, "strategy"),
        ("sensitivity gpt3-22b dgx-a100 --tp 8 --output tme", 1, 'did you mean "time"'),
        ("sweep nowhere.toml", 1, "existing file"),
        ("sweep nothing", 1, "configs/spaces"),
        ("cost dgx-b200", 1, "did you mean"),
        ("cost dgx-a100 --set model.hidden=3", 1, '"model"'),
        ("list model", 1, 'did you mean "models"'),
        ("validate nowhere.csv", 1, "nowhere.csv"),
        ("validate nowhere.csv --plot errors.jpg", 1, ".png"),
        ("calibrate nowhere.csv --out mine.toml", 1, "nowhere.csv"),
        ("calibrate nowhere.csv", 2, "--out"),
        ("calibrate nowhere.csv --out mine.json", 1, ".toml"),
        ("calibrate nowhere.csv --out nowhere/mine.toml", 1, "a folder that exists"),
        ("calibrate nowhere.csv --prior-spread 0 --out mine.toml", 2, "--prior-spread"),
        ("calibrate nowhere.csv --prior-spread nan --out mine.toml", 2, "--prior-spread"),
        ("calibrate --out mine.toml", 2, "FILE"),
        ("estimate gpt3-22b dgx-a100 --calibration nothing", 1, "configs/calibrations"),
        ("estimate gpt3-22b dgx-a100 --calibration nothing.toml", 1, "existing file"),
    ],
)
def test_bad_input_is_one_line(run, line, code, words):
    result = run(line)
    assert result.exit_code == code
    assert result.stderr.count("\n") == 1
    assert result.stderr.startswith("Error: ")
    assert words in result.stderr
