"""Models of measured runs: from the shipped configs that rows name, or from the dimensions in the rows."""

import dataclasses
import functools
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from diffperf.explore.measured.named_model import HYBRID, named_model
from diffperf.explore.measured.platforms import double_precision
from diffperf.explore.measured.schemas import ARCHITECTURE
from diffperf.explore.measured.table import Row
from diffperf.quantity import Label, real
from diffperf.workload.model import Latent, Layers, Mixture, Model

Cells = Mapping[str, Any]  # the values of a row in the columns of the architecture


def _config(row: Row | Cells) -> Model | None:
    """The config of the model that a row names, where the row's columns do not contradict it."""
    shipped = named_model(row["model"])
    return shipped if shipped is not None and _agree(row, shipped) else None


def _agree(row: Row | Cells, model: Model) -> bool:
    """Whether the columns of a row describe a model, as far as columns can."""
    if (row["hidden"], row["vocab"]) != (float(model.hidden), float(model.vocabulary)):
        return False
    # The columns of a hybrid count blocks and describe the attention blocks alone.
    if row["attention"] == HYBRID:
        return True
    dense = sum(float(layers.count) for layers in model.layers if layers.mixture is None)
    whole = row["layers"] == float(model.depth) and dense == _dense_layers(row)
    return whole and all(_agree_in_kind(row, layers) for layers in model.layers)


def _agree_in_kind(row: Row | Cells, layers: Layers) -> bool:
    """Whether the columns of a row describe a kind of layers of a model."""
    names = ["heads", "kv_heads", *([] if row["attention"] == "mla" else ["head_dim"])]
    columns = [row[name] for name in names] + [row["gated_mlp"]]
    fields = [float(getattr(layers, name)) for name in names] + [float(layers.gated.on)]
    mixture = layers.mixture
    if mixture is None:
        columns, fields = [*columns, row["ffn"]], [*fields, float(layers.ffn)]
    else:
        columns += [row["experts"], row["experts_per_token"], row["expert_ffn"], _shared_ffn(row)]
        experts = (mixture.experts, mixture.experts_per_token, layers.ffn, mixture.shared_ffn)
        fields += [float(number) for number in experts]
    # Configs of latent attention count one KV head for each head or one latent: tables say either.
    if row["attention"] == "mla":
        del columns[1], fields[1]
    return columns == fields


def _dense_layers(row: Row | Cells) -> float:
    """Layers without experts."""
    return row["dense_layers"] if row["experts"] > 0 else row["layers"]


def _shared_ffn(row: Row | Cells) -> float:
    """The inner dimension of all shared experts together."""
    return row["shared_experts"] * row["expert_ffn"]


def unknown_architecture(row: Row) -> str | None:
    """Why the row's columns do not describe its model; None where they do."""
    unnamed = {"mla": "latent attention (MLA)", HYBRID: "Mamba-2 layers between attention"}
    if row["attention"] in unnamed and _shipped_latent(row) is None and _config(row) is None:
        return f"{unnamed[row['attention']]} of a model that is not shipped"
    return None


def _shipped_latent(row: Row | Cells) -> Latent | None:
    """Ranks and dimensions of latent attention of the shipped model that a row names, of whatever size."""
    shipped = named_model(row["model"])
    return shipped.layers[-1].latent if row["attention"] == "mla" and shipped is not None else None


def _shipped_groups(row: Row | Cells) -> tuple[Any, Any]:
    """Groups of experts, and how many of them a token visits, of the shipped model that a row names."""
    shipped = named_model(row["model"])
    mixture = None if shipped is None else shipped.layers[-1].mixture
    return (1.0, 1.0) if mixture is None else (mixture.groups, mixture.groups_visited)


def model_structure(row: Row) -> Hashable:
    """The structure of a row's model: kinds of layers, their experts and their latent attention."""
    return jax.tree.structure(_model(_cells(row), double_precision()))


def stacked_models(
    rows: Sequence[Row],
    *,
    positions: Float[np.ndarray, " rows"],
    training: bool,
    modules: Float[np.ndarray, " rows"] | float = 0.0,
) -> Model:
    """The models of rows of one structure, with a leading axis.

    The model is the shipped one where the row names it and its columns agree: with its windows, biases,
    latents and parallel blocks, of which tables say nothing. Of any other model's family tables say only
    whether its MLP is gated. Gated ones are read as Llama's: RMSNorm, rotary positions, no biases. Plain ones
    are read as GPT's: LayerNorm and biases, as many learned positions as `positions` says. Plain models have
    dropout in training. `modules` is 1 where the shipped modules of multi-token prediction run, else 0.
    """
    keys = [_cells(row) for row in rows]
    distinct = {key: index for index, key in enumerate(dict.fromkeys(keys))}
    which = np.array([distinct[key] for key in keys])
    models = [_model(key, double_precision()) for key in distinct]
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves)[which], *models)
    unlearned = np.array([row["gated_mlp"] or _config(row) is not None for row in rows])
    dropout = np.array([training and not row["gated_mlp"] for row in rows], dtype=int)
    one_hot = real(np.eye(2)[dropout])
    return dataclasses.replace(
        stacked,
        layers=tuple(dataclasses.replace(layers, dropout=one_hot) for layers in stacked.layers),
        learned_positions=np.where(unlearned, stacked.learned_positions, positions),
        mtp_layers=stacked.mtp_layers * modules,
    )


def _cells(row: Row) -> tuple[Any, ...]:
    """The values of a row in the columns of the architecture, as a key."""
    return tuple(row[column] for column in ARCHITECTURE)


@functools.lru_cache(maxsize=1024)
def _model(cells: tuple[Any, ...], x64: bool) -> Model:
    """The model of rows with some values in the columns of the architecture: NumPy arrays.

    `x64` only keys the cache: each precision has its own copy.
    """
    row = dict(zip(ARCHITECTURE, cells, strict=True))
    model = _config(row)
    return jax.tree.map(np.asarray, _model_of_columns(row) if model is None else model)


def _model_of_columns(row: Cells) -> Model:
    """The model that the columns of a row describe."""
    common: dict[str, Any] = {name: row[name] for name in ("heads", "kv_heads", "head_dim")}
    common |= {"gated": row["gated_mlp"], "biases": not row["gated_mlp"], "latent": _shipped_latent(row)}
    dense = Layers(count=row["layers"], ffn=row["ffn"], **common)
    layers = [dense]
    if row["experts"] > 0:
        groups, groups_visited = _shipped_groups(row)
        mixture = Mixture(
            experts=row["experts"],
            experts_per_token=row["experts_per_token"],
            shared_ffn=real(_shared_ffn(row)),
            groups=groups,
            groups_visited=groups_visited,
        )
        count = row["layers"] - row["dense_layers"]
        sparse = dataclasses.replace(dense, count=count, ffn=row["expert_ffn"], mixture=mixture)
        # Few dense layers lead (DeepSeek, Kimi, GLM); as many as those with experts alternate (Llama 4).
        leading = dense.leading if row["dense_layers"] >= count else real([0.0, 1.0])
        first = dataclasses.replace(dense, count=row["dense_layers"], leading=leading)
        layers = [first, sparse] if row["dense_layers"] > 0 else [sparse]
    shipped = named_model(row["model"])
    return Model(
        name=Label("measured"),
        hidden=row["hidden"],
        vocabulary=row["vocab"],
        tied_embeddings=row["tied_embeddings"],
        layers=tuple(layers),
        mtp_layers=real(0.0) if shipped is None else shipped.mtp_layers,
        context_window=real(0.0) if shipped is None else shipped.context_window,
    )
