"""Models of measured runs, from the dimensions in the rows of a table."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from diffperf.explore.measured.platforms import double_precision
from diffperf.explore.measured.stacking import numbers, switch
from diffperf.explore.measured.table import Row
from diffperf.load import available, load_model
from diffperf.workload.model import NO_WINDOW, Latent, Layers, Mixture, Model


@functools.cache
def _shipped_model(name: str | None, x64: bool) -> Model | None:
    """The shipped config of a model, in single or double precision, for what tables do not say."""
    return load_model(name) if name is not None and name in available("models") else None


def _config(row: Row) -> Model | None:
    """The shipped config of the model that a row names."""
    return _shipped_model(row["model"], double_precision())


def _latent(row: Row) -> Latent | None:
    """Ranks and dimensions of latent attention from the model's shipped config: no table has them."""
    shipped = _config(row)
    return shipped.layers[-1].latent if row["attention"] == "mla" and shipped is not None else None


def _prediction_modules(row: Row) -> float:
    """The number of multi-token prediction modules that training runs of a shipped model include."""
    shipped = _config(row)
    return float(shipped.mtp_layers) if shipped is not None else 0.0


def unknown_architecture(row: Row) -> str | None:
    """Why the row's columns do not describe its model; None where they do."""
    if row["attention"] == "mla" and _latent(row) is None:
        return "latent attention (MLA) of a model that is not shipped"
    return None


def model_structure(row: Row) -> tuple[bool, bool, bool]:
    """What tells models apart in structure: experts, dense layers beside them, latent attention."""
    return row["experts"] > 0, row["experts"] > 0 and row["dense_layers"] > 0, row["attention"] == "mla"


def stacked_models(rows: Sequence[Row], *, positions: np.ndarray, training: bool) -> Model:
    """The models of rows of one structure, from the rows' own dimensions, with a leading axis.

    Of a model's family tables say only whether its MLP is gated. Gated ones are read as Llama's: RMSNorm,
    rotary positions, no biases, no dropout. Plain ones are read as GPT's: LayerNorm and biases, as many
    learned positions as `positions` says, dropout in training.
    """
    gated, (sparse, mixed, latent) = numbers(rows, "gated_mlp"), model_structure(rows[0])
    dense: Any = numbers(rows, "dense_layers") if mixed else np.zeros(len(rows))
    common = _common_to_layers(rows, gated, latent, training)
    layers = [Layers(count=numbers(rows, "layers") - dense, ffn=numbers(rows, "ffn"), **common)]
    if sparse:
        mixture = Mixture(
            numbers(rows, "experts"),
            numbers(rows, "experts_per_token"),
            numbers(rows, "shared_experts") * numbers(rows, "expert_ffn"),
        )
        sparse_layers = dataclasses.replace(layers[0], ffn=numbers(rows, "expert_ffn"), mixture=mixture)
        layers = [*([dataclasses.replace(layers[0], count=dense)] if mixed else []), sparse_layers]
    fields: dict[str, Any] = {
        "name": "measured",
        "hidden": numbers(rows, "hidden"),
        "vocabulary": numbers(rows, "vocab"),
        "tied_embeddings": switch(numbers(rows, "tied_embeddings")),
        "layers": tuple(layers),
        "learned_positions": np.where(gated > 0, 0.0, positions),
        "mtp_layers": np.array([_prediction_modules(row) * training for row in rows]),
    }
    return Model(**fields)


def _common_to_layers(rows: Sequence[Row], gated: np.ndarray, latent: bool, training: bool) -> dict[str, Any]:
    """The fields of `Layers` that layers with and without experts share."""
    no = np.zeros(len(rows))
    return {
        "heads": numbers(rows, "heads"),
        "kv_heads": numbers(rows, "kv_heads"),
        "head_dim": numbers(rows, "head_dim"),
        "gated": switch(gated),
        "biases": switch(1 - gated),
        "dropout": switch((1 - gated) * training),
        "qkv_biases": switch(no),
        "parallel": switch(no),
        "window": np.full(len(rows), NO_WINDOW),
        "latent": jax.tree.map(lambda *leaves: np.stack(leaves), *map(_latent, rows)) if latent else None,
    }
