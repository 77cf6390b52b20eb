"""Good files load; missing, damaged and other files give an error of one line, and no other exception."""

import json
from pathlib import Path

import pytest
from config_tables import (
    ACCELERATOR,
    DELETE,
    LAYERS,
    MIXED,
    MIXTURE,
    MODEL,
    SYSTEM,
    TABLES,
    VALUES,
    edited,
    load_error,
    toml,
    write,
)
from helpers import check_error
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import diffperf as dp
from diffperf.errors import ConfigError, did_you_mean
from diffperf.hardware.accelerator import Accelerator
from diffperf.hardware.system import System
from diffperf.load import FOLDERS, available, config_root, load, read_toml
from diffperf.workload.model import Model

# Files that are right


@pytest.mark.parametrize("cls", TABLES)
def test_a_good_file_loads(tmp_path, cls):
    module = load(cls, write(tmp_path, TABLES[cls]))
    assert isinstance(module, cls)
    assert str(module.name) == "input"  # by default what the file is called


def test_units_and_defaults_are_applied(tmp_path):
    system = load(System, write(tmp_path, SYSTEM))
    assert float(system.network[1].bandwidth) == 25e9
    assert float(system.accelerator.device_memory.capacity) == 80 * 2**30
    assert float(system.accelerator.package.packaging.interposer.bonding_yield) == pytest.approx(0.95)
    assert float(system.prices.lifetime) == 4 * 365.25 * 86400
    assert float(system.accelerator.memory[0].efficiency) == 0.85
    assert [str(level.name) for level in system.accelerator.memory] == ["smem", "hbm"]
    # Absent formats run at the rate of the one their operands are converted to.
    assert float(system.accelerator.matrix.fp8.rate) == 312e12
    assert float(system.accelerator.matrix.tf32.rate) == 19.5e12


def test_a_file_may_stitch_a_die_beyond_the_reticle():
    def with_large_die(exposure: str) -> Accelerator:
        die = {"area": "1600 mm^2", "exposure": exposure}
        return load(Accelerator, {"extends": "h100-sxm5-80gb", "package": {"dies": {"compute": die}}})

    assert float(with_large_die("stitched").package.dies[0].exposure.stitched) == 1
    with pytest.raises(ConfigError, match="at most 858 mm"):
        with_large_die("reticle")


@pytest.mark.parametrize("cls", FOLDERS, ids=lambda cls: FOLDERS[cls])
def test_shipped_configs_load(cls):
    for name in available(FOLDERS[cls]):
        assert str(load(cls, name).name)


def test_references_are_relative_to_the_file_that_makes_them(tmp_path):
    (tmp_path / "chips").mkdir()
    (tmp_path / "chips" / "mine.toml").write_text(toml(ACCELERATOR))
    system = load(System, write(tmp_path, SYSTEM | {"accelerator": "chips/mine.toml"}))
    assert str(system.accelerator.name) == "mine"


def test_optional_parts_are_there_where_a_file_gives_them(tmp_path):
    model = load(Model, write(tmp_path, MIXED))
    dense, mixed = model.layers
    assert dense.mixture is None
    assert dense.latent is None
    assert float(mixed.mixture.experts) == 8
    assert float(mixed.mixture.shared_ffn) == 0  # by default
    assert float(mixed.latent.kv_rank) == 512
    assert float(mixed.window) > 1e9


def test_optional_parts_as_tables_of_their_own(tmp_path):
    layers = toml(LAYERS)
    model = "hidden = 4096\nvocabulary = 32000\ntied_embeddings = false\n"
    text = f"{model}[[layers]]\n{layers}[layers.mixture]\n{toml(MIXTURE)}"
    model = load(Model, write(tmp_path, text))
    assert float(model.layers[0].mixture.experts_per_token) == 2


def test_read_toml_gives_the_table(tmp_path):
    assert read_toml(write(tmp_path, MODEL)) == MODEL


def test_whole_quantities_are_whole_in_files(tmp_path):
    """Real degrees and counts are the estimator's business; a file describes what exists."""
    text = (config_root() / "models/llama-2-7b.toml").read_text().replace("heads = 32", "heads = 32.5", 1)
    (tmp_path / "half.toml").write_text(text)
    with pytest.raises(ConfigError, match=r"heads.*whole number"):
        dp.load_model(tmp_path / "half.toml")


# Files that are wrong as a whole

NOT_TOML = {
    "binary": b"\x89PNG\r\n\x1a\n\x00\xff\xfe",
    "latin 1": "hidden = 4096 # größe".encode("latin-1"),
    "utf 16": toml(MODEL).encode("utf-16"),
    "empty": b"",
    "blank": b"  \n\n",
    "comment": b"# nothing\n",
    "nul": b"\x00" * 100,
    "duplicate key": toml(MODEL).encode() + b"hidden = 1\n",
    "duplicate table": b"[layers]\n[layers]\n",
    "table over value": b"hidden = 1\n[hidden]\n",
    "unquoted text": b"hidden = wide\n",
    "unquoted unit": b"hidden = 5 us\n",
    "unclosed string": b'name = "gpt\n',
    "unclosed array": b"layers = [\n",
    "json": json.dumps(MODEL).encode(),
    "yaml": b"hidden: 4096\n",
    "python": b"hidden = 4096; vocabulary = 3\n",
    "a thousand arrays": b"hidden = " + b"[" * 100_000,
    "a thousand tables": b"hidden = " + b"{a=" * 100_000,
    "endless number": b"hidden = " + b"9" * 5000,
    "date": b"hidden = 2024-01-01\n",
    "time": b"hidden = 07:32:00\n",
}


@pytest.mark.parametrize("content", NOT_TOML.values(), ids=NOT_TOML.keys())
def test_what_is_not_a_config(tmp_path, content):
    path = tmp_path / "input.toml"
    path.write_bytes(content)
    assert "input.toml" in str(load_error(Model, path))


def test_paths_that_are_no_files(tmp_path):
    directory = tmp_path / "directory.toml"
    directory.mkdir()
    for path in (directory, tmp_path, tmp_path / "missing.toml", tmp_path / "missing.json", "missing/"):
        assert str(path) in str(load_error(Model, path))


def test_an_unreadable_file(tmp_path, monkeypatch):
    path = write(tmp_path, MODEL)

    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_text", refuse)
    assert "Permission denied" in str(load_error(Model, path))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gpt3-175", "gpt3-1"),
        ("GPT3-175B", 'did you mean "gpt3-175b"?'),
        ("lama-2-7b", "llama-2-7b"),
        ("", "see diffperf list models"),
        (".", "a folder without a config.json"),
        (".x", "see diffperf list models"),
        ("dgx-h100", 'found "dgx-h100" of configs/systems; '),
        ("*", 'found "*"; expected a name from configs/models'),
    ],
)
def test_unknown_names_get_a_near_match(name, expected):
    error = load_error(Model, name)
    assert error.file == "arguments"
    assert expected in str(error)


def test_no_near_match_lists_all():
    assert did_you_mean("zzz", ["alpha", "beta"]) == "known: alpha, beta"
    assert did_you_mean("Alhpa", ["alpha", "beta"]) == 'did you mean "alpha"?'


@pytest.mark.parametrize(
    ("cls", "folder"), [(Accelerator, "accelerators"), (System, "systems"), (Model, "models")]
)
def test_truncated_files_load_or_say_why_not(tmp_path, cls, folder):
    """A cut may leave a whole file (a system without its last tier), but mostly it does not."""
    name = {"accelerators": "a100-sxm4-80gb", "systems": "dgx-a100", "models": "gpt3-175b"}[folder]
    content = (config_root() / folder / f"{name}.toml").read_bytes()
    errors, cuts = 0, range(0, len(content), max(1, len(content) // 150))
    for cut in cuts:
        path = tmp_path / "input.toml"
        path.write_bytes(content[:cut])
        try:
            load(cls, path)
        except ConfigError as error:
            check_error(error)
            errors += 1
    assert errors > 0.6 * len(cuts)


# Random corruption: hypothesis spoils a good table


def _paths(node, prefix=()):
    children = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, child in children:
        yield (*prefix, key)
        yield from _paths(child, (*prefix, key))


PATHS = {cls: list(_paths(table)) for cls, table in TABLES.items()}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200)
@given(st.data())
def test_random_corruption_loads_or_says_why_not(tmp_path, data):
    cls = data.draw(st.sampled_from([Model, System, Accelerator]))
    path = list(data.draw(st.sampled_from(PATHS[cls])))
    if isinstance(path[-1], str) and data.draw(st.booleans()):
        path[-1] = data.draw(st.text(alphabet=st.characters(exclude_categories=["Cs", "Cc"]), max_size=10))
        value = data.draw(VALUES.filter(lambda value: value is not DELETE))
    else:
        value = data.draw(VALUES)
    try:
        load(cls, write(tmp_path, edited(TABLES[cls], path, value)))
    except ConfigError as error:
        check_error(error)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200)
@given(st.data())
def test_random_bytes_load_or_say_why_not(tmp_path, data):
    content = bytearray(toml(MODEL).encode())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path / "input.toml"
    path.write_bytes(bytes(content))
    try:
        load(Model, path)
    except ConfigError as error:
        check_error(error)
