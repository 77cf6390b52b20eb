"""Values of rows of measurements that the config of their model or their other cells imply."""

from collections.abc import Mapping
from typing import Any

from diffperf.errors import ConfigError, did_you_mean
from diffperf.explore.measured.cells import BadCell
from diffperf.explore.measured.named_model import architecture_of, named_model
from diffperf.explore.measured.schemas import ARCHITECTURE, SCHEMAS
from diffperf.load import available, find

# Share of the tokens drafted by a module of multi-token prediction that a model accepts where it has accepted
# those before: fitted to the tokens of a step that InferenceX (SemiAnalysis) publishes for 104 runs of
# DeepSeek-R1 with one to three drafts, which it gives to 5 % in the median and 12 % in nine of ten.
DRAFT_ACCEPTANCE = 0.7

# The columns of the architecture whose empty cells mean that the value is unknown.
_WITHOUT_DEFAULT = [
    name for name, column in ARCHITECTURE.items() if column.default is None and name != "model"
]


def implied_values(kind: str, cells: Mapping[str, str], values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of the empty cells of a row that its other values imply, by column; `cells` are the cells
    as written, of the columns that the table has.

    The architecture is that of the model's config, the devices are the product of the degrees, and
    data parallelism is what the other degrees leave of the devices. Stages are not interleaved in a table
    without a column of virtual stages. A step of multi-token prediction adds the tokens that
    `DRAFT_ACCEPTANCE` gives.

    **Raises:** `BadCell` where an empty cell is needed and nothing implies its value.
    """
    result: dict[str, Any] = {}
    if "layers" in SCHEMAS[kind]:
        result |= _architecture(values)
    if kind == "training":
        result |= _devices(values)
        if "virtual_stages" not in cells:  # an empty cell of a table that has the column is unknown
            result["virtual_stages"] = 1.0
    elif kind in ("inference", "energy") and values["n_devices"] is None:
        result["n_devices"] = values["tp"] * values["pp"] * (values.get("dp") or 1.0)
    elif accepts_as_usual(kind, values):
        result["tokens_per_step"] = _tokens_per_step(values["spec_tokens"])
    return result


def accepts_as_usual(kind: str, values: Mapping[str, Any]) -> bool:
    """Whether a row says how many tokens a module of multi-token prediction drafts, but not how many of them
    its model accepts.
    """
    drafts = kind == "serving" and values["spec_method"] == "mtp" and values["spec_tokens"] > 0
    return drafts and values["tokens_per_step"] is None


def _tokens_per_step(drafted: float) -> float:
    """Tokens that a decode step adds to a sequence: the drafts up to the first that the model does not
    accept, and one of its own (Leviathan et al., arXiv 2211.17192, equation 1).
    """
    return (1 - DRAFT_ACCEPTANCE ** (drafted + 1)) / (1 - DRAFT_ACCEPTANCE)


def _architecture(values: Mapping[str, Any]) -> dict[str, Any]:
    """The cells of the architecture that a row leaves empty, from the config of its model."""
    empty = [name for name in _WITHOUT_DEFAULT if values[name] is None]
    if not empty:
        return {}
    model = named_model(values["model"])
    if model is None:
        name, column = values["model"], empty[0]
        if name and len(empty) == len(_WITHOUT_DEFAULT):
            raise _unknown_model(name)
        expected = f"{ARCHITECTURE[column].expected}, or a `model` with a config"
        hint = did_you_mean(name, available("models"), "diffperf list models") if name else "name the model"
        raise BadCell(column=column, found="an empty cell", reason="missing", expected=expected, remedy=hint)
    of_config = architecture_of(model)
    # Columns of experts have defaults, and are never empty: they follow the config where no cell describes
    # the layers.
    return {name: of_config[name] for name in (of_config if len(empty) == len(_WITHOUT_DEFAULT) else empty)}


def _unknown_model(name: str) -> BadCell:
    """The fault of a row that names a model without a config, and says nothing else of it."""
    try:
        find(name, "models")
    except ConfigError as unknown:
        expected, remedy = f"{unknown.expected}, or columns that describe the model", unknown.remedy
    else:
        expected, remedy = "a model with a config, or columns that describe it", "see diffperf list models"
    return BadCell(column="model", found=f'"{name}"', reason="no config", expected=expected, remedy=remedy)


def _devices(values: Mapping[str, Any]) -> dict[str, Any]:
    """The devices and the data parallelism of a training run."""
    devices, dp = values["n_devices"], values["dp"]
    others = values["tp"] * values["pp"] * values["cp"]
    if dp is None:
        dp = 1.0 if devices is None else devices / others
        if dp < 1 or dp != int(dp):
            found = f"{devices:g} devices and {others:g} of them for a replica"
            raise BadCell(
                column="dp",
                found=found,
                reason="missing",
                expected="a whole number of replicas",
                remedy="give dp, or correct the degrees",
            )
    return {"dp": dp, "n_devices": devices if devices is not None else others * dp}
