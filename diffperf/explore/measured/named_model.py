"""The configs of models that rows of measurements name, and what columns of the architecture say of them."""

import functools
from typing import Any

from diffperf.explore.measured.platforms import double_precision
from diffperf.load import available, load_model
from diffperf.workload.model import Layers, Model

# What a cell may name in place of a shipped model: its own TOML file, or a config.json of Hugging Face.
MODEL_FILES = (".toml", ".json")
# The attention of models that alternate attention with Mamba-2 layers, which no column describes.
HYBRID = "hybrid-mamba2"


def named_model(name: str | None) -> Model | None:
    """The model of a shipped config, or of the file that a path names; None for any other name.

    A shipped config has the model's name, or the name without what publishers and fine-tuned versions add to
    it: gemma-3-12b-it is a gemma-3-12b, nvidia-nemotron-nano-9b-v2 a nemotron-nano-9b-v2.
    """
    return _named_model(name, double_precision())


@functools.cache
def _named_model(name: str | None, x64: bool) -> Model | None:
    """The model that `named_model` returns. `x64` only keys the cache: each precision has its own copy."""
    if name is not None and name.endswith(MODEL_FILES):
        return load_model(name)
    known = [config for config in available("models") if f"-{config}-" in f"-{name}-"]
    return load_model(max(known, key=len)) if known else None


def architecture_of(model: Model) -> dict[str, Any]:
    """The values of the architecture's columns for a model: the last kind of its layers, the MLP of its dense
    layers, and the experts of its others.
    """
    kinds = [kind for kind in model.layers if kind.attends] or list(model.layers)
    last, dense = kinds[-1], [kind for kind in model.layers if kind.mixture is None]
    sparse = [kind for kind in model.layers if kind.mixture is not None]
    columns = {
        "layers": float(model.depth),
        "hidden": float(model.hidden),
        "vocab": float(model.vocabulary),
        "tied_embeddings": bool(model.tied_embeddings.on > 0.5),
        **{name: float(getattr(last, name)) for name in ("heads", "kv_heads", "head_dim")},
        "ffn": float((dense or sparse)[-1].ffn),
        "gated_mlp": bool(last.gated.on > 0.5),
        "attention": _attention(model, last),
    }
    if not sparse:
        return columns
    mixture, ffn = sparse[-1].mixture, float(sparse[-1].ffn)
    assert mixture is not None  # of a kind with experts
    return columns | {
        "experts": float(mixture.experts),
        "experts_per_token": float(mixture.experts_per_token),
        "expert_ffn": ffn,
        "shared_experts": float(mixture.shared_ffn) / ffn,
        "dense_layers": sum(float(kind.count) for kind in dense),
    }


def _attention(model: Model, layers: Layers) -> str:
    """The name of a model's attention in tables."""
    if any(kind.state_space is not None for kind in model.layers):
        return HYBRID
    if layers.latent is not None:
        return "mla"
    if float(layers.kv_heads) == float(layers.heads):
        return "mha"
    return "mqa" if float(layers.kv_heads) == 1 else "gqa"
