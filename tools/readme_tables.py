"""Write the README's result tables from the recorded runs, between their markers.

    python tools/readme_tables.py           # rewrite
    python tools/readme_tables.py --check   # exit 1 if the README differs from the records (CI does this)
"""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path

from helpers.hopper import BEST
from helpers.ladder import STEPS
from helpers.measure import Record, record

README = Path(__file__).resolve().parent.parent / "README.md"
PEERS = {"copy": "device copy", "torch": "`torch.softmax`", "compile": "`torch.compile`", "sdpa_math": "SDPA, math",
         "sdpa_efficient": "SDPA, memory-efficient", "sdpa_flash": "SDPA, FlashAttention-2", "sdpa_cudnn": "SDPA, cuDNN",
         "fa4": "FlashAttention-4"}


def ladders() -> str:
    """Effective bandwidth of every softmax step and peer over N."""
    rows = record("ladders")
    columns = sorted({r["shape"][1] for r in rows.rows})
    lines = ["| float32, M·N = 2^27, TB/s | " + " | ".join(f"N = {n:,}" for n in columns) + " |", "|---" * (len(columns) + 1) + "|"]
    for name in _names(rows):
        if name == "torch_copy":
            continue
        cells = [next((f"{r['tbs']:.2f}" for r in rows.rows if r["name"] == name and r["shape"][1] == n and r["us"]), "–")
                 for n in columns]
        lines.append(f"| {_title(name)} | " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", f"Bandwidth counts the least bytes: each input read once, each output written once. "
                      f"{_sentence(rows)}"])


def softmax() -> str:
    """Effective bandwidth of the dispatcher and what a user would pick instead, over N."""
    rows, columns = record("softmax"), (128, 1024, 4096, 16_384, 65_536, 262_144)
    lines = ["| M·N = 2^27, TB/s | " + " | ".join(f"N = {n:,}" for n in columns) + " |", "|---" * (len(columns) + 1) + "|"]
    titles = {"copy": "device copy", "fast": "**this course, `softmax(x)`**", "quack": "QuACK", "triton": "Triton, one pass"} | PEERS
    for dtype in ("float32", "bfloat16"):
        for name in ("copy", "fast", "quack", "triton", "compile", "torch"):
            tbs = {r["shape"][1]: r["tbs"] for r in rows.rows if (r["name"], r["dtype"], r.get("offset")) == (name, dtype, 0)}
            lines.append(f"| {dtype}: {titles[name]} | " + " | ".join(f"{tbs[n]:.2f}" if n in tbs else "–" for n in columns) + " |")
    return "\n".join([*lines, "", _sentence(rows)])


def attention() -> str:
    """TFLOP/s and memory of every attention step and peer over S."""
    rows = record("attention")
    rows = replace(rows, rows=[r for r in rows.rows if r["dtype"] == "float32" and r["us"]])
    lengths = sorted({r["shape"][2] for r in rows.rows})
    lines = ["| float32, 16 heads, D = 64, TFLOP/s full / causal | " + " | ".join(f"S = {s:,}" for s in lengths) + " |",
             "|---" * (len(lengths) + 1) + "|"]
    for name in _names(rows):
        cells = []
        for s in lengths:
            full, causal = (next(r["tflops"] for r in rows.rows if r["name"] == name and r["shape"][2] == s and r["shape"][5] is c)
                            for c in (False, True))
            cells.append(f"{full:.1f} / {causal:.1f}")
        lines.append(f"| {_title(name)} | " + " | ".join(cells) + " |")
    longest = lengths[-1]
    peak = {name: next(r["peak_bytes"] for r in rows.rows if r["name"] == name and r["shape"][2] == longest and not r["shape"][5])
            for name in ("attention_naive", "attention_tiled")}
    return "\n".join([*lines, "", f"Memory of one call at S = {longest:,}: {peak['attention_naive'] / 2**20:,.0f} MiB in three kernels, "
                      f"{peak['attention_tiled'] / 2**20:,.0f} MiB tiled. {_sentence(rows)}"])


def tensor_cores() -> str:
    """TFLOP/s of every attention step on tensor cores and every backend of SDPA, at the shapes where all of them were measured."""
    rows = record("attention")
    shapes = [(4, 16, 4096, 4096, D, causal) for D in (64, 128) for causal in (False, True)]
    rows = replace(rows, rows=[r for r in rows.rows if r["dtype"] == "bfloat16" and tuple(r["shape"]) in shapes])
    lines = ["| bfloat16, B = 4, 16 heads, S = 4,096, TFLOP/s | D = 64 | D = 64, causal | D = 128 | D = 128, causal |", "|---" * 5 + "|"]
    for name in _names(rows):
        cells = [f"{rows.find(name=name, shape=shape)['tflops']:.0f}" for shape in shapes]
        lines.append(f"| {_title(name)} | " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", _sentence(rows)])


def hopper() -> str:
    """TFLOP/s of the last step on a Hopper GPU beside its peers, in all cases."""
    rows = record("hopper")
    cases = list(dict.fromkeys(tuple(r["shape"]) for r in rows.rows))
    lines = ["| bfloat16, B·S = 16,384, 16 heads, TFLOP/s full / causal | "
             + " | ".join(f"D = {D}, S = {S:,}" for _, _, S, _, D, causal in cases if not causal) + " |"]
    lines.append("|---" * (len(cases) // 2 + 1) + "|")
    titles = {BEST: "**this course**"} | PEERS
    for name in (BEST, "fa4", "sdpa_cudnn", "sdpa_flash"):
        tflops = {tuple(r["shape"]): r["tflops"] for r in rows.rows if r["name"] == name and r["us"]}
        both = [[f"{tflops[*case[:5], causal]:.0f}" for causal in (False, True)] for case in cases if not case[5]]
        lines.append(f"| {titles[name]} | " + " | ".join(" / ".join(pair) for pair in both) + " |")
    return "\n".join([*lines, "", _sentence(rows)])


def topk() -> str:
    """Time of the fused top-k beside torch's two calls and a kernel that only reads the logits."""
    rows = record("topk")
    shapes = [(4000, 25_000, 5), (4000, 25_000, 32), (512, 128_256, 8), (8192, 4096, 8), (65_536, 256, 8), (1, 128_256, 8)]
    lines = ["| µs | " + " | ".join(f"{M:,} × {N:,}, k = {k}" for M, N, k in shapes) + " |", "|---" * (len(shapes) + 1) + "|"]
    for dtype in ("float32", "bfloat16"):
        for name, title in (("read", "reading the logits once"), ("softmax_topk", "**softmax and top-k in one pass**"),
                            ("quack", "QuACK, normalised over the k only"), ("softmax;topk", "`torch.topk(torch.softmax(x))`")):
            us = {tuple(r["shape"]): r["us"] for r in rows.rows if (r["name"], r["dtype"], r["part"]) == (name, dtype, "cases")}
            cells = [f"{us[shape]:,.1f}" if shape in us else "–" for shape in shapes]
            lines.append(f"| {dtype}: {title} | " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", _sentence(rows)])


def _sentence(rows: Record) -> str:
    where = rows.where()
    return where[0].upper() + where[1:] + "."


def _names(rows: Record) -> list[str]:
    return list(dict.fromkeys(r["name"] for r in rows.rows))


def _title(name: str) -> str:
    return STEPS[name].title if name in STEPS else PEERS[name]


def updated(text: str) -> str:
    """The README with every marked table made anew."""
    for table in (softmax, tensor_cores, hopper, topk, ladders, attention):
        name = table.__name__
        text = re.sub(rf"(<!-- {name} -->\n).*?(\n<!-- /{name} -->)", lambda m, t=table: m[1] + t() + m[2], text, flags=re.S)
    return text


if __name__ == "__main__":
    before = README.read_text(encoding="utf-8")
    after = updated(before)
    if "--check" in sys.argv:
        sys.exit("README.md differs from the records: run tools/readme_tables.py" if after != before else 0)
    README.write_text(after, encoding="utf-8")
