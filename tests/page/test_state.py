"""The state of the page is read from a query, checked like a file, and written as the same query."""

from urllib.parse import parse_qsl

import pytest

from diffperf.api.question import Question
from diffperf.errors import ConfigError
from diffperf.page.state import State


def of(query: str) -> State:
    return State.of(parse_qsl(query, keep_blank_values=True))


def test_a_state_asks_what_the_command_line_asks():
    state = of("model=llama-2-7b&system=dgx-h100&devices=16&tp=4&zero=1&set=hbm.bandwidth=4 TB/s")
    question = Question.read(
        model="llama-2-7b",
        system="dgx-h100",
        devices="16",
        stack=None,
        calibration=None,
        settings={"hbm.bandwidth": "4 TB/s"},
        strategy={"tp": "4", "zero": "1"},
    )
    read = state.question()
    assert read.table == question.table
    assert read.gives_devices
    assert float(read.system.n_devices) == 16
    assert float(read.system.accelerator.device_memory.bandwidth) == 4e12
    assert read.system.calibration.text == question.system.calibration.text


def test_a_query_is_written_as_it_was_read():
    query = (
        "model=mixtral-8x7b&system=dgx-h100&phase=generate&devices=8&stack=vllm&calibration=none"
        "&tp=8&global_batch=32&set=hbm.bandwidth%3D4 TB/s&set=system.accelerator.power_limit%3D500 W"
    )
    state = of(query)
    assert of(state.query()) == state
    assert State.of([]) == of(State().query())


@pytest.mark.parametrize(
    ("query", "key", "words"),
    [
        ("model=gpt3-175c", "model", 'did you mean "gpt3-175b"'),
        ("system=../../etc/passwd", "system", "a name from configs/systems"),
        ("system=/etc/passwd", "system", "a name from configs/systems"),
        ("system=configs/systems/dgx-a100.toml", "system", "a name from configs/systems"),
        ("model=config.json", "model", "a name from configs/models"),
        ("stack=./my.toml", "stack", "a name from configs/stacks"),
        ("calibration=/tmp/x.toml", "calibration", "a name from configs/calibrations"),
        ("model=", "model", "a name from configs/models"),
        ("model=gpt3-175b%00", "model", "a name from configs/models"),
        ("phase=train", "phase", 'did you mean "training"'),
        ("bandwidth=3", "bandwidth", "a control of the page"),
        ("tp=8&tp=4", "tp", "one value"),
        ("set=hbm.bandwidth", "set", "path=value"),
        ("set=hbm.bandwidth=1 TB/s&set=hbm.bandwidth=2 TB/s", "hbm.bandwidth", "one value"),
        ("set=hbm.bandwidth=" + "9" * 300, "set", "shorten"),
    ],
)
def test_a_bad_query_is_refused_with_its_key(query, key, words):
    with pytest.raises(ConfigError, match=r"^page") as caught:
        of(query)
    assert caught.value.key == key
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("query", "key", "words"),
    [
        ("devices=many", "n_devices", "a number"),
        ("devices=0", "n_devices", "from 1 to"),
        ("set=hbm.bandwith=4TB/s", "hbm.bandwith", "hbm.bandwidth"),
        ("set=hbm.bandwidth=4 W", "system.accelerator.memory.hbm.bandwidth", "wrong dimension"),
        ("set=hbm.bandwidth=nan", "system.accelerator.memory.hbm.bandwidth", "a quantity"),
        ("set=system.name=x", "system.name", "names are not inputs"),
        ("calibration=h100-sxm5-80gb", "hardware", "a calibration of a100"),
    ],
)
def test_a_value_that_cannot_be_used_is_refused_with_its_path(query, key, words):
    with pytest.raises(ConfigError) as caught:
        of(query).question()
    assert caught.value.key == key
    assert words in str(caught.value)


def test_tokens_belong_to_training():
    assert of("tokens=2e12").training_tokens() == 2e12
    assert of("").training_tokens() is None
    for query in ("tokens=many", "tokens=0", "tokens=inf", "tokens=1e12&phase=decode"):
        with pytest.raises(ConfigError, match="tokens"):
            of(query).training_tokens()


def test_inputs_of_software_that_does_not_drive_the_phase_are_refused():
    setting = "set=system.stack.kernel_overhead=9 us"
    assert of(setting).question().overrides
    with pytest.raises(ConfigError, match=r"write system\.inference_stack\.kernel_overhead"):
        of(f"{setting}&phase=decode").question()
