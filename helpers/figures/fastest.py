"""Plots and tables of beyond/fastest_softmax: what each trial measured, as a share of the copy in the same part of the record."""

from __future__ import annotations

import numpy as np
from IPython.display import Markdown, display

from helpers.figures import choosing
from helpers.figures.style import BLACK, BLUE, GREEN, GREY, ORANGE, SKY, VERMILLION, new_figure, show

DTYPES = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}
LOOKS = {"float32": (BLUE, "o"), "bfloat16": (VERMILLION, "s")}
REGISTERS, THREADS, BLOCKS = 65_536, 2048, 32           # of a multiprocessor of compute capability 9.0, at most
ELEMENTS = 2**27


def table(head, rows) -> None:
    """Show rows of text under `head` as a table, the first column to the left and the others to the right."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    display(Markdown("\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)))


# -------------------------------------------------------------------------------------------------- the trials


def trial(record, part: str, name: str, N: int, dtype: str) -> dict:
    """The row of a trial with 2^27 elements in rows of N; KeyError if there is not exactly one."""
    return record.find(part=part, name=name, shape=(ELEMENTS // N, N), dtype=dtype)


def share(record, row: dict) -> float:
    """The copy's time as a share of the row's: 1 is as fast as the copy of the same part and shape."""
    return trial(record, row["part"], "copy", row["shape"][1], row["dtype"])["us"] / row["us"]


def clusters(record, part: str, N: int, dtype: str, **fields) -> list[dict]:
    """The trials of rows held in registers of a cluster; `fields`: other fields they must have (ahead_mb None: no prefetch)."""
    return [r for r in record.rows if r["part"] == part and r["shape"][1] == N and r["dtype"] == dtype and r.get("kernel") == "cluster"
            and all(r.get(name) == value for name, value in fields.items())]


def resident(threads: int, registers: int) -> int:
    """Blocks of `threads` threads, of `registers` registers each, that a multiprocessor holds; registers are dealt out by eights."""
    return min(REGISTERS // (threads * -(-registers // 8) * 8), THREADS // threads, BLOCKS)


def in_flight(row: dict) -> float:
    """KB that the blocks of one multiprocessor have asked for while all of them load."""
    return resident(row["threads"], row["registers"]) * row["threads"] * row["vectors"] * 16 / 1024


def shape_of(row: dict) -> str:
    """"8 × 256 × 4": blocks of a cluster, threads of a block, pieces of 16 bytes a thread."""
    return f"{row['cluster']} × {row['threads']} × {row['vectors']}"


# ------------------------------------------------------------------------------------------------- the yardstick


def spread(record) -> None:
    """The copy of every case: median time, and how far the middle 80 % of the calls reach."""
    rows = []
    for part in ("1, cluster barrier", "1, both barriers", "2", "3"):
        for dtype in ("float32", "bfloat16"):
            copies = [r for r in record.rows if r["part"] == part and r["name"] == "copy" and r["dtype"] == dtype]
            if copies:
                widths = [(r["us_p90"] - r["us_p10"]) / r["us"] for r in copies]
                medians = [r["us"] for r in copies]
                rows.append([f"run {part}", DTYPES[dtype], len(copies), f"{min(medians):.1f} to {max(medians):.1f}",
                             f"{max(r['tbs'] for r in copies):.2f}", f"{np.median(widths):.1%}"])
    table(["the copy", "dtype", "cases", "median, µs", "best, TB/s", "p10 to p90, of the median"], rows)


# -------------------------------------------------------------------------------------------------- the exchange


def exchange(record) -> None:
    """Clusters with either barrier, each pair beside each other, for rows of 65,536 and more."""
    pairs = []
    for dtype in ("float32", "bfloat16"):
        for N in (65_536, 131_072, 262_144):
            for before in clusters(record, "1, cluster barrier", N, dtype, exchange="barrier"):
                after = [r for r in clusters(record, "1, both barriers", N, dtype, exchange="bytes") if shape_of(r) == shape_of(before)]
                pairs += [(before, r) for r in after]
    fig, axes = new_figure(9.6, 5.0, cols=2, sharex=True)
    told = []
    for ax, dtype in zip(axes, ("float32", "bfloat16"), strict=True):
        mine = [p for p in pairs if p[0]["dtype"] == dtype]
        color, labels = LOOKS[dtype][0], []
        for y, (before, after) in enumerate(mine):
            a, b = share(record, before), share(record, after)
            ax.plot([a, b], [y, y], color="#BBBBBB", linewidth=3, zorder=1)
            ax.plot(a, y, "o", color="white", markeredgecolor=BLACK, markersize=7, label="cluster barrier" if y == 0 else None)
            ax.plot(b, y, "D", color=color, markersize=7, label="byte barrier" if y == 0 else None)
            labels.append(f"{before['shape'][1] // 1024}K   {shape_of(before)}")
            told.append(f"{DTYPES[dtype]} {labels[-1]} from {a:.2f} to {b:.2f}")
        ax.axvline(1, color=BLACK, linestyle="--", linewidth=1)
        ax.set_yticks(range(len(mine)), labels, fontsize=9)
        ax.set(ylim=(len(mine) - 0.5, -0.6), xlabel="speed, as a share of the copy's", title=DTYPES[dtype])
        ax.legend(loc="lower left", fontsize=9)
    axes[0].set_ylabel("N, and blocks × threads × pieces")
    show(fig, alt=f"Speed as a share of the copy, with a cluster barrier and with a byte barrier. {'; '.join(told)}.")


# ---------------------------------------------------------------------------------------------- bytes in flight


def flight(record, part: str = "2", N: int = 65_536) -> None:
    """Speed of clusters without prefetch over the KB that an SM has in flight; hollow where an SM holds only one block."""
    fig, ax = new_figure(8.2, 4.0)
    told = []
    for dtype, (color, marker) in LOOKS.items():
        rows = [r for r in clusters(record, part, N, dtype, ahead_mb=None) if not r.get("local_bytes")]
        for r in sorted(rows, key=in_flight):
            alone = resident(r["threads"], r["registers"]) == 1
            ax.plot(in_flight(r), share(record, r), marker, color="white" if alone else color, markeredgecolor=color, markersize=8)
            told.append(f"{DTYPES[dtype]} {shape_of(r)}{', one block an SM' * alone}: {in_flight(r):.0f} KB, {share(record, r):.2f}")
        ax.plot([], [], marker, color=color, linestyle="", label=DTYPES[dtype], markersize=8)
    ax.plot([], [], "o", color="white", markeredgecolor=GREY, linestyle="", label="one block an SM", markersize=8)
    ax.axhline(1, color=BLACK, linestyle="--", linewidth=1)
    ax.set(xlim=(0, 165), ylim=(0.45, 1.05), xlabel="KB in flight for each SM, while all its blocks load",
           ylabel="share of the copy's speed", title=f"Rows of {N:,}, no prefetch, byte barrier (H200, recorded)")
    ax.legend(loc="lower right")
    show(fig, alt=f"Speed as a share of the copy over kilobytes in flight an SM. {'; '.join(told)}.")


# --------------------------------------------------------------------------------------------- prefetch distance


def distance(record, N: int = 65_536) -> None:
    """bf16: speed over the distance of the prefetch, in two runs, and what the bench of the second run saw at one distance."""
    fig, ax = new_figure(8.4, 4.0)
    told = []
    for part, threads, vectors, color, marker in (("2", 256, 4, SKY, "^"), ("3", 256, 4, BLUE, "o"), ("3", 128, 8, ORANGE, "s")):
        rows = clusters(record, part, N, "bfloat16", cluster=8, threads=threads, vectors=vectors)
        points = sorted((r.get("ahead_mb", 0), share(record, r)) for r in rows)
        ax.plot(*zip(*points, strict=True), color=color, marker=marker, label=f"8 × {threads} × {vectors}, run {part}")
        told.append(f"8 × {threads} × {vectors} in run {part}: " + ", ".join(f"{a:g} MB {s:.2f}" for a, s in points))
    for name, marker, text in (("fast", "X", "the bench, y elsewhere"), ("fast_in_place", "P", "the bench, y in place of x")):
        s = share(record, trial(record, "3, bench", name, N, "bfloat16"))
        ax.plot(8.4, s, marker, color=VERMILLION if name == "fast" else GREEN, markersize=10, label=text)
        told.append(f"{text}, 8.4 MB: {s:.2f}")
    ax.axhline(1, color=BLACK, linestyle="--", linewidth=1)
    ax.set(xlim=(-0.6, 26), ylim=(0.65, 1.05), xlabel="distance of the prefetch, MB of input", ylabel="share of the copy's speed",
           title=f"How far ahead? bf16, rows of {N:,} (H200, recorded)")
    ax.legend(loc="upper right", fontsize=9)
    show(fig, alt=f"Speed as a share of the copy over the prefetch distance, bf16. {'; '.join(told)}.")


# ------------------------------------------------------------------------------------------------------- the sum


def waterfall(record, steps: dict[str, list[tuple[str, dict]]]) -> None:
    """Bars of the share of the copy, step after step: `steps` maps a title to (label, row of the record)."""
    fig, axes = new_figure(9.4, 3.4, cols=len(steps), sharey=True)
    told = []
    for ax, (title, rows) in zip(np.atleast_1d(axes), steps.items(), strict=True):
        color, low = LOOKS[rows[0][1]["dtype"]][0], 0.6
        shares = [share(record, row) for _, row in rows]
        for i, ((label, row), s) in enumerate(zip(rows, shares, strict=True)):
            before = shares[i - 1] if i else low
            ax.bar(i, s - low, bottom=low, color="#D5D5D5", width=0.62)
            ax.bar(i, s - before, bottom=before, color=color, width=0.62)
            ax.text(i, s + 0.008, f"{s:.3f}", ha="center", fontsize=9)
            ax.text(i, low + 0.012, f"run {row['part'][0]}", ha="center", fontsize=8, color=BLACK if i else "white")
            told.append(f"{title}, {label}: {s:.3f}".replace("\n", " "))
        ax.axhline(1, color=BLACK, linestyle="--", linewidth=1)
        ax.set_xticks(range(len(rows)), [label for label, _ in rows], fontsize=8.5)
        ax.set(ylim=(low, 1.06), title=title)
        ax.grid(visible=False, axis="x")
    np.atleast_1d(axes)[0].set_ylabel("share of the copy's speed")
    show(fig, alt=f"Share of the copy's speed, step after step. {'; '.join(told)}.")


# ---------------------------------------------------------------------------------------------------- end times


def end_times(record) -> None:
    """When persistent blocks end: how many of 132 have ended, over time, with rows dealt out before and taken from a counter."""
    fig, ax = new_figure(8.2, 3.4)
    told = []
    for name, color, marker in (("dealt out before", VERMILLION, "s"), ("from a counter", BLUE, "o")):
        r = record.find(part="2, end times", name=name)
        ax.plot(r["ends_us"], r["end_ranks"], color=color, marker=marker, label=f"rows {name}")
        ax.axvline(r["ends_us"][-1], color=color, linewidth=1, linestyle=":")
        told.append(f"rows {name}: block " + ", ".join(f"{k} at {t:.0f}" for k, t in zip(r["end_ranks"], r["ends_us"], strict=True)))
    ax.set(xlim=(180, 285), ylim=(0, 138), xlabel="time since the first block began, µs", ylabel="blocks that have ended",
           title="132 blocks, 31 rows of 32,768 floats each (H200, recorded)")
    ax.legend(loc="upper left")
    show(fig, alt=f"Blocks that have ended over time in microseconds. {'; '.join(told)}.")


# ------------------------------------------------------------------------------------------------- what remains


def goal(N: int) -> float:
    """The share of a copy that the course set itself for rows of N."""
    return 0.97 if N <= 65_536 else 0.95


def remaining(record) -> list[list[str]]:
    """Where softmax(x), 2^27 elements, misses `goal` or is more than 1 % behind the best peer: dtype, N, of a copy, best peer, of it."""
    rows = []
    for dtype, label in DTYPES.items():
        for N in choosing.lengths(record, dtype):
            ours, copy = (choosing.speed(record, name, N, dtype) for name in ("fast", "copy"))
            peer, best = choosing.best_peer(record, N, dtype)
            if ours / copy < goal(N) or ours / best < 0.99:
                rows.append([f"{label}, N = {N:,}", f"{ours / copy:.3f}", f"{goal(N):.2f}", choosing.PEERS[peer], f"{ours / best:.3f}"])
    return rows
