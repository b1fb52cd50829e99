"""Plots and tables of beyond/fastest_softmax: what each trial measured, as a share of the copy in the same part of the record."""

from __future__ import annotations

import numpy as np

from helpers.figures import choosing
from helpers.figures.style import BLACK, BLUE, GREEN, GREY, ORANGE, SKY, VERMILLION, new_figure, show, table

DTYPES = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}
LOOKS = {"float32": (BLUE, "o"), "bfloat16": (VERMILLION, "s")}
REGISTERS, THREADS, BLOCKS = 65_536, 2048, 32           # of a multiprocessor of compute capability 9.0, at most
ELEMENTS = 2**27
NAMED = {("bfloat16", "8 × 1024 × 1"): -8, ("bfloat16", "8 × 512 × 2"): -8, ("bfloat16", "8 × 256 × 4"): -8,  # points that are named
         ("bfloat16", "16 × 192 × 3"): 8, ("float32", "16 × 512 × 2"): 8, ("float32", "8 × 512 × 4"): 8, ("float32", "16 × 128 × 8"): 8}


# -------------------------------------------------------------------------------------------------- the trials


def trial(record, part: str, name: str, N: int, dtype: str) -> dict:
    """The trial of that name with 2^27 elements in rows of N; KeyError if there is not exactly one."""
    return record.find(part=part, name=name, shape=(ELEMENTS // N, N), dtype=dtype)


def trials(record, part: str, N: int, dtype: str, **fields) -> list[dict]:
    """All trials of a case whose other fields have these values, the fastest first; None means that a row has no such field."""
    rows = [r for r in record.rows if r["part"] == part and r["shape"] == [ELEMENTS // N, N] and r["dtype"] == dtype]
    return sorted((r for r in rows if all(r.get(name) == value for name, value in fields.items())), key=time)


def cluster(record, part: str, N: int, dtype: str, shape: tuple[int, int, int], **fields) -> dict:
    """The trial of a row in registers of a cluster, by (blocks, threads, pieces); `fields` other than byte barrier, no prefetch, ..."""
    wanted = {"exchange": "bytes", "ahead_mb": None, "blocks": None, "hint": None, "register_limit": None, **fields}
    found = trials(record, part, N, dtype, kernel="cluster", **dict(zip(("cluster", "threads", "vectors"), shape, strict=True)), **wanted)
    if len(found) != 1:
        raise KeyError(f"{len(found)} trials of {shape} in part {part}, N = {N}, {dtype}, with {wanted}")
    return found[0]


def time(row: dict) -> float:
    """The median of a row, microseconds; run 4 kept nothing else."""
    return row.get("us") or row["median_us"]


def share(record, row: dict) -> float:
    """The copy's time as a share of the row's: 1 is as fast as the copy of the same part and shape."""
    return time(trial(record, row["part"], "copy", row["shape"][1], row["dtype"])) / time(row)


def resident(row: dict) -> int:
    """Blocks of a trial that a multiprocessor holds, by its threads and their registers, which they get by eights."""
    registers = -(-row.get("registers", row.get("register_limit")) // 8) * 8
    return min(REGISTERS // (row["threads"] * registers), THREADS // row["threads"], BLOCKS)


def at_once(row: dict) -> int:
    """Rows of a trial that 132 multiprocessors hold, each row in blocks of a cluster, or in `blocks_a_row` without one."""
    return 132 * resident(row) // row.get("blocks_a_row", row.get("cluster"))


def in_flight(row: dict) -> float:
    """KB that the blocks of one multiprocessor have asked for while all of them load."""
    return resident(row) * row["threads"] * row["vectors"] * 16 / 1024


def shape_of(row: dict) -> str:
    """"8 × 256 × 4": blocks of a cluster, threads of a block, pieces of 16 bytes a thread."""
    return f"{row['cluster']} × {row['threads']} × {row['vectors']}"


def sizes(record, rows: list[dict]) -> None:
    """Of each trial: registers of a thread, blocks an SM, KB in flight, share of the copy."""
    table(["blocks × threads × pieces", "registers", "blocks an SM", "KB in flight", "share of the copy"],
          [[f"{DTYPES[r['dtype']]}, N = {r['shape'][1]:,}: {shape_of(r)}", r["registers"], resident(r), f"{in_flight(r):.0f}",
            f"{share(record, r):.3f}"] for r in rows])


# ------------------------------------------------------------------------------------------------- the yardstick


def spread(record) -> None:
    """The copy of every case: median time, and how far the middle 80 % of the calls reach."""
    rows = []
    for part in ("1a", "1b", "2", "3"):
        for dtype in LOOKS:
            copies = [r for r in record.rows if r["part"] == part and r["name"] == "copy" and r["dtype"] == dtype]
            if copies:
                widths = [(r["us_p90"] - r["us_p10"]) / r["us"] for r in copies]
                medians = [r["us"] for r in copies]
                rows.append([f"run {part}, {DTYPES[dtype]}", len(copies), f"{min(medians):.1f} to {max(medians):.1f}",
                             f"{max(medians) / min(medians) - 1:.1%}", f"{np.median(widths):.1%}"])
    table(["the copy", "cases", "medians, µs", "apart", "p10 to p90 of one case"], rows)


# -------------------------------------------------------------------------------------------------- the exchange


def exchange(record) -> None:
    """Clusters with either barrier, each pair beside each other, for rows of 65,536 and more."""
    fig, axes = new_figure(9.6, 5.2, cols=2, sharex=True)
    told = []
    for ax, (dtype, (color, _)) in zip(axes, LOOKS.items(), strict=True):
        befores = [r for N in (65_536, 131_072, 262_144) for r in trials(record, "1a", N, dtype, kernel="cluster")]
        befores.sort(key=lambda r: (r["shape"][1], r["cluster"], r["threads"]))
        for y, before in enumerate(befores):
            after = cluster(record, "1b", before["shape"][1], dtype, (before["cluster"], before["threads"], before["vectors"]))
            a, b = share(record, before), share(record, after)
            ax.plot([a, b], [y, y], color="#BBBBBB", linewidth=3, zorder=1)
            ax.plot(a, y, "o", color="white", markeredgecolor=BLACK, markersize=7, label="barrier that counts threads")
            ax.plot(b, y, "D", color=color, markersize=7, label="barrier that counts bytes")
            told.append(f"{DTYPES[dtype]}, N = {before['shape'][1]:,}, {shape_of(before)}: {a:.2f} to {b:.2f}")
        ax.axvline(1, color=BLACK, linestyle="--", linewidth=1)
        ax.set_yticks(range(len(befores)), [f"{r['shape'][1] // 1024}K:  {shape_of(r)}" for r in befores], fontsize=9)
        ax.set(ylim=(len(befores) - 0.5, -0.6), xlabel="share of the copy's speed", title=DTYPES[dtype])
        handles, labels = ax.get_legend_handles_labels()
        ax.legend(handles[:2], labels[:2], loc="upper center", bbox_to_anchor=(0.4, -0.13), fontsize=9)
    axes[0].set_ylabel("N:  blocks × threads × pieces")
    show(fig, alt=f"Share of the copy's speed of clusters, with the barrier that counts threads and with the one that counts bytes. "
                  f"{'; '.join(told)}.")


# ---------------------------------------------------------------------------------------------- bytes in flight


def flight(record, part: str = "2", N: int = 65_536) -> None:
    """Speed of clusters without prefetch over the KB that an SM has in flight; hollow where an SM holds only one block."""
    fig, ax = new_figure(8.6, 4.2)
    told = []
    for dtype, (color, marker) in LOOKS.items():
        for r in sorted(trials(record, part, N, dtype, kernel="cluster", ahead_mb=None, blocks=None, local_bytes=None), key=in_flight):
            kb, s, alone = in_flight(r), share(record, r), resident(r) == 1
            ax.plot(kb, s, marker, color="white" if alone else color, markeredgecolor=color, markersize=8)
            told.append(f"{DTYPES[dtype]} {shape_of(r)}{', one block an SM' * alone}: {kb:.0f} KB, {s:.2f}")
            if dx := NAMED.get((dtype, shape_of(r))):
                ax.annotate(shape_of(r), (kb, s), xytext=(dx, -10 if s > 0.97 else -3), textcoords="offset points",
                            ha="left" if dx > 0 else "right", fontsize=8.5)
        ax.plot([], [], marker, color=color, linestyle="", label=DTYPES[dtype], markersize=8)
    ax.plot([], [], "o", color="white", markeredgecolor=GREY, linestyle="", label="one block an SM", markersize=8)
    ax.plot([0, 62], [0, 1], color=GREY, linewidth=1, label="in proportion")
    ax.axhline(1, color=BLACK, linestyle="--", linewidth=1)
    ax.set(xlim=(0, 165), ylim=(0.3, 1.05), xlabel="KB in flight for each SM, while all its blocks load",
           ylabel="share of the copy's speed", title=f"Rows of {N:,}, no prefetch (H200, recorded)")
    ax.legend(loc="lower right")
    show(fig, alt=f"Share of the copy's speed over kilobytes in flight an SM. {'; '.join(told)}.")


# --------------------------------------------------------------------------------------------- prefetch distance


def distance(record, N: int = 65_536) -> None:
    """bf16: speed over the distance of the prefetch, in two runs, and what the bench of the second run saw at one distance."""
    fig, ax = new_figure(8.4, 4.2)
    told = []
    for part, threads, vectors, color, marker in (("2", 256, 4, SKY, "^"), ("3", 256, 4, BLUE, "o"), ("3", 128, 8, ORANGE, "s")):
        rows = trials(record, part, N, "bfloat16", kernel="cluster", cluster=8, threads=threads, vectors=vectors, hint=None, blocks=None)
        points = sorted((r.get("ahead_mb", 0), share(record, r)) for r in rows)
        ax.plot(*zip(*points, strict=True), color=color, marker=marker, label=f"8 × {threads} × {vectors}, run {part}")
        told.append(f"8 × {threads} × {vectors} in run {part}: " + ", ".join(f"{a:g} MB {s:.2f}" for a, s in points))
    for name, marker, color, text in (("fast", "X", VERMILLION, "8 × 256 × 4 in the bench, y elsewhere"),
                                      ("fast_in_place", "P", GREEN, "8 × 256 × 4 in the bench, y in place of x")):
        s = share(record, trial(record, "3 bench", name, N, "bfloat16"))
        ax.plot(8.4, s, marker, color=color, markersize=10, linestyle="", label=text)
        told.append(f"{text}, 8.4 MB: {s:.2f}")
    ax.axhline(1, color=BLACK, linestyle="--", linewidth=1)
    ax.set(xlim=(-0.6, 26), ylim=(0.62, 1.03), xlabel="distance of the prefetch, MB of input", ylabel="share of the copy's speed",
           title=f"How far ahead? bf16, rows of {N:,} (H200, recorded)")
    ax.legend(loc="lower left", fontsize=9)
    show(fig, alt=f"Share of the copy's speed over the prefetch distance, bf16. {'; '.join(told)}.")


def started(record, N: int, dtype: str, mb: float) -> list[dict]:
    """Two trials of run 5, `mb` MB ahead: every row is asked for, and only those that do not start with the launch."""
    rows = trials(record, "5 started", N, dtype, ahead_mb=mb)
    return [next(r for r in rows if ("started" in r) == only) for only in (False, True)]


def starts(record, lengths=(131_072, 262_144)) -> None:
    """Speed over the distance of the prefetch: asking for every row, and only for those that do not start with the launch."""
    fig, axes = new_figure(9.6, 3.9, cols=2, sharey=True)
    told = []
    for ax, (dtype, (color, marker)) in zip(axes, LOOKS.items(), strict=True):
        for N, line in zip(lengths, ("-", "--"), strict=True):
            rows = trials(record, "5 started", N, dtype, kernel="cluster")
            for filled, text in ((False, "every row asked for"), (True, "started rows not asked for")):
                points = sorted((r.get("ahead_mb", 0), share(record, r)) for r in rows if "ahead_mb" not in r or ("started" in r) == filled)
                ax.plot(*zip(*points, strict=True), color=color, marker=marker, linestyle=line,
                        markerfacecolor=color if filled else "white", label=f"{N:,}, {text}")
                told.append(f"{DTYPES[dtype]}, N = {N:,}, {text}: " + ", ".join(f"{mb:g} MB {s:.3f}" for mb, s in points))
        ax.axhline(1, color=BLACK, linestyle=":", linewidth=1)
        ax.set(xlabel="distance of the prefetch, MB of input", title=f"{DTYPES[dtype]} (H200, recorded)")
        ax.legend(loc="lower left", fontsize=8.5)
    axes[0].set_ylabel("share of the copy's speed")
    axes[0].set_ylim(0.88, 1.03)
    show(fig, alt=f"Share of the copy's speed over the prefetch distance. {'; '.join(told)}.")


# ------------------------------------------------------------------------------------------------------- the sum


def waterfall(record, steps: dict[str, list[tuple[str, dict]]]) -> None:
    """Bars of the share of the copy, step after step: `steps` maps a title to (label, row of the record)."""
    fig, axes = new_figure(9.4, 3.6, cols=len(steps), sharey=True)
    told, low = [], 0.6
    for ax, (title, rows) in zip(np.atleast_1d(axes), steps.items(), strict=True):
        color = LOOKS[rows[0][1]["dtype"]][0]
        ax.axhline(1, color=BLACK, linestyle="--", linewidth=1)
        before = low
        for i, (label, row) in enumerate(rows):
            s = share(record, row)
            ax.bar(i, before - low, bottom=low, color="#D5D5D5", width=0.62)
            ax.bar(i, s - before, bottom=before, color=color, width=0.62)
            ax.text(i, s + 0.012, f"{s:.3f}", ha="center", fontsize=9, bbox={"facecolor": "white", "edgecolor": "none", "pad": 1})
            ax.text(i, low + 0.012, f"run {row['part'][0]}", ha="center", fontsize=8, color=BLACK if i else "white")
            told.append(f"{title}, {label}: {s:.3f}".replace("\n", " "))
            before = s
        ax.set_xticks(range(len(rows)), [label for label, _ in rows], fontsize=8.5)
        ax.set(ylim=(low, 1.06), title=title)
        ax.grid(visible=False, axis="x")
    np.atleast_1d(axes)[0].set_ylabel("share of the copy's speed")
    show(fig, alt=f"Share of the copy's speed, step after step. {'; '.join(told)}.")


# ---------------------------------------------------------------------------------------------------- end times


def end_times(record) -> None:
    """When persistent blocks end: how many of 132 have ended, over time, with rows dealt out before and taken from a counter."""
    fig, ax = new_figure(8.4, 3.6)
    told = []
    for name, color, marker in (("dealt out before", VERMILLION, "s"), ("from a counter", BLUE, "o")):
        r = record.find(part="2 ends", name=name)
        ax.plot(r["ends_us"], r["end_ranks"], color=color, marker=marker, label=f"rows {name}")
        if name == "dealt out before":
            ax.fill_betweenx([0, *r["end_ranks"]], [r["ends_us"][0], *r["ends_us"]], r["ends_us"][-1], color=color, alpha=0.12, linewidth=0)
            ax.text(r["ends_us"][-1] - 3, 22, "done, and idle", ha="right", fontsize=9.5)
        told.append(f"rows {name}: block " + ", ".join(f"{k} at {t:.0f}" for k, t in zip(r["end_ranks"], r["ends_us"], strict=True)))
    ax.set(xlim=(180, 285), ylim=(0, 138), xlabel="time since the first block began, µs", ylabel="blocks that have ended",
           title="132 blocks that stay, 4,096 rows of 32,768 floats (H200, recorded)")
    ax.legend(loc="upper left")
    show(fig, alt=f"Blocks that have ended over time in microseconds. {'; '.join(told)}.")


# ----------------------------------------------------------------------------------------------- the neighbours

FAR_AHEAD = "cluster of 8, 256 threads of 4 pieces, asks 8.4 MB ahead"


def neighbour(record, what: str, N: int, before: str = "nothing", writes: int = 1) -> dict:
    """The time of `what` in bf16 after `before` ran and 256 MB were written so many times."""
    return record.find(part="5 neighbours", what=what, shape=(ELEMENTS // N, N), before=before, writes=writes)


def slower(record, what: str, N: int, before: str, writes: int = 1) -> float:
    """How many times as long `what` takes after `before`, as after nothing."""
    return neighbour(record, what, N, before, writes)["us"] / neighbour(record, what, N)["us"]


def neighbours(record) -> None:
    """How much slower a kernel is after torch.compile's softmax, over the times that 256 MB were written in between."""
    fig, ax = new_figure(8.4, 3.8)
    told = []
    cases = (("softmax", "softmax(x)", 8192, BLUE, "o"), ("softmax", "softmax(x)", 262_144, SKY, "s"),
             (FAR_AHEAD, "8.4 MB ahead", 65_536, VERMILLION, "^"), ("copy", "a copy", 65_536, BLACK, "x"))
    for what, label, N, color, marker in cases:
        points = [(n, 100 * (slower(record, what, N, "torch.compile", n) - 1)) for n in (1, 2, 4, 8, 16)]
        ax.plot(*zip(*points, strict=True), color=color, marker=marker, label=f"{label}, N = {N:,}")
        told.append(f"{label}, N = {N:,}: " + ", ".join(f"{p:+.1f} % after {n}" for n, p in points))
    ax.axhline(0, color=GREY, linewidth=1)
    ax.set_xscale("log", base=2)
    ax.set_xticks([1, 2, 4, 8, 16], ["1", "2", "4", "8", "16"])
    ax.set(xlabel="times that 256 MB were written after torch.compile's softmax", ylabel="slower than after nothing, %",
           title="Who was here before? bf16, $2^{27}$ elements (H200, recorded)")
    ax.legend()
    show(fig, alt=f"How much slower a kernel is after torch.compile's softmax. {'; '.join(told)}.")


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
