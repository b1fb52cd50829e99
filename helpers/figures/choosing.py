"""Plots and tables of notebook 08: where a row waits, who works, which kernel a row gets, and what was measured."""

from __future__ import annotations

from itertools import pairwise, product

import numpy as np
from matplotlib.patches import Patch, Rectangle

from helpers import fast
from helpers.figures.style import BLACK, BLUE, CYCLE, GREEN, GREY, ORANGE, PURPLE, SKY, VERMILLION, YELLOW, new_figure, show, table

FAMILIES = {"warp": (BLUE, "o"), "block": (ORANGE, "s"), "shared": (GREEN, "^"), "cluster": (VERMILLION, "D"), "split": (PURPLE, "v")}
PEERS = {"copy": "a copy", "quack": "QuACK", "triton": "Triton, one pass", "compile": "torch.compile", "torch": "torch.softmax"}
DTYPES = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}


# ------------------------------------------------------------------------------------------------- the record


def lengths(record, dtype: str = "float32") -> list[int]:
    """The lengths N, all powers of two, at which the record has 2^27 elements in aligned rows."""
    found = {r["shape"][1] for r in record.rows if r["name"] == "copy" and r["dtype"] == dtype and not r.get("offset")}
    return sorted(N for N in found if N & (N - 1) == 0)


def odd_lengths(record) -> list[int]:
    """The other lengths at which the record has 2^27 elements."""
    return sorted({r["shape"][1] for r in record.rows if r["name"] == "copy"} - set(lengths(record)))


def speed(record, name: str, N: int, dtype: str = "float32", offset: int = 0) -> float | None:
    """Effective TB/s of `name` on 2^27 elements in rows of N that begin `offset` elements off; None if it was not measured."""
    found = [r["tbs"] for r in record.rows if r["name"] == name and r["shape"][1] == N and r["dtype"] == dtype
             and r.get("tbs") and r.get("offset", 0) == offset]
    if len(found) > 1:
        raise ValueError(f"{len(found)} rows of {name} at N = {N}, {dtype}")
    return found[0] if found else None


def time(record, name: str, how: str, M: int, N: int, dtype: str = "float32") -> float | None:
    """Microseconds a call on few rows; `how` is "graph" or "plain"; None if it was not measured."""
    found = [r["us"] for r in record.rows if r["name"] == f"{name}_{how}" and r["shape"] == [M, N] and r["dtype"] == dtype]
    return found[0] if found else None


def best_peer(record, N: int, dtype: str = "float32") -> tuple[str, float]:
    """(name, TB/s) of the fastest softmax that others made, for 2^27 elements in rows of N."""
    speeds = {name: speed(record, name, N, dtype) for name in PEERS if name != "copy"}
    return max(((name, tbs) for name, tbs in speeds.items() if tbs), key=lambda pair: pair[1])


def _said(record) -> str:
    return f"recorded on one {record.run['device']}, {record.run['date']}"


# ------------------------------------------------------------------------------------------- where a row waits


def places() -> None:
    """How many bytes fit where a row can wait between its read and its write, and how many fp32 elements that is."""
    shared, registers = fast.MAX_SHARED, 65_536 * 4
    rows = [("registers of a thread", 255 * 4, BLUE), ("registers of a warp", 32 * 255 * 4, BLUE),
            ("shared memory of a block", shared, GREEN), ("registers of an SM", registers, ORANGE),
            ("shared memory of 16 SMs", 16 * shared, VERMILLION), ("registers of 16 SMs", 16 * registers, VERMILLION),
            ("L2 cache", 60 << 20, PURPLE)]
    fig, ax = new_figure(8.8, 3.3)
    for i, (name, size, color) in enumerate(rows):
        ax.barh(i, size, color=color, height=0.62)
        unit = f"{size:,} bytes" if size < 2**14 else f"{size / 2**10:,.0f} KB" if size < 2**20 else f"{size / 2**20:,.1f} MB"
        ax.text(size * 1.25, i, f"{unit}: {size // 4:,} fp32", va="center", fontsize=9)
    ax.set_xscale("log", base=2)
    ax.set_yticks(range(len(rows)), [name for name, _, _ in rows])
    ax.set_xticks([2.0**k for k in range(8, 31, 4)], ["256 B", "4 KB", "64 KB", "1 MB", "16 MB", "256 MB"])
    ax.grid(axis="y", visible=False)
    ax.set(xlim=(2**8, 2**32), ylim=(len(rows) - 0.4, -0.6), title="Where a row can wait (an H200)", xlabel="bytes, logarithmic")
    told = "; ".join(f"{name} {size:,} bytes, {size // 4:,} elements of fp32" for name, size, _ in rows)
    show(fig, alt=f"Bars on a logarithmic axis. {told}.")


def counters(launches, M: int, N: int) -> None:
    """What a row costs, launch beside launch: `launches` maps labels to the counters of a launch with M rows of N elements."""
    numbers = {
        "global memory: reads an element": lambda c: c.loads.bytes / (4 * M * N),
        "global memory: writes an element": lambda c: c.stores.bytes / (4 * M * N),
        "load requests of a warp, a row": lambda c: c.loads.requests / M,
        "shuffles of a warp, a row": lambda c: c.shuffles / M, "barriers of a block, a row": lambda c: c.barriers / M,
        "shared memory: writes an element": lambda c: c.shared_stores.bytes / (4 * M * N),
        "shared memory: reads an element": lambda c: c.shared_loads.bytes / (4 * M * N),
        "exponentials an element": lambda c: c.exps / (M * N),
    }
    table(["", *launches], [[what, *(_short(number(c)) for c in launches.values())] for what, number in numbers.items()])


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def lanes(N: int, warps: dict[str, int]) -> None:
    """Which lanes of a warp hold elements of a row of N fp32 elements: `warps` maps a label to the lanes that share a row."""
    fig, ax = new_figure(8.8, 0.75 + 0.62 * len(warps))
    ax.axis("off")
    ax.set(xlim=(-7.5, 32.2), ylim=(len(warps) + 0.05, -0.65))
    pieces, told = -(-N // 4), []
    for lane in range(0, 32, 4):
        ax.text(lane + 0.5, -0.25, lane, ha="center", fontsize=8.5)
    ax.text(-0.4, -0.25, "lane", ha="right", fontsize=8.5)
    for i, (label, share) in enumerate(warps.items()):
        ax.text(-0.4, i + 0.45, label, ha="right", va="center", fontsize=9.5)
        for lane in range(32):
            row, busy = lane // share, lane % share < pieces
            look = dict(facecolor=CYCLE[row % 5], hatch="") if busy else dict(facecolor="#E8E8E8", hatch="////")
            ax.add_patch(Rectangle((lane, i + 0.12), 1, 0.66, edgecolor="white", linewidth=1.5, **look))
            if busy:
                ax.text(lane + 0.5, i + 0.45, row, ha="center", va="center", fontsize=8.5, color="white")
        told.append(f"{label}: {32 // share} rows, {min(share, pieces) * (32 // share)} of 32 lanes hold elements")
    show(fig, alt=f"The 32 lanes of a warp, each marked with the row it serves, for rows of {N} elements. {'; '.join(told)}.")


# ------------------------------------------------------------------------------------------- who works, and when


STEPS = {  # what an SM does with a row: units of time in the drawing, look, words
    "load": (3, SKY, "", "the row arrives"), "reduce": (2, "#E8E8E8", "////", "reduction: asks memory for nothing"),
    "store": (3, BLUE, "", "results leave"), "load from L2": (1, SKY, "", ""), "wait": (3, "white", "", ""),
}


def phases() -> None:
    """A drawing, not a measurement: what one SM asks of memory over time, with one block, with two, and with one block and prefetch."""
    row = ["load", "reduce", "store"]
    groups = {
        "one block": [3 * row],
        "two blocks": [3 * row, ["wait", *3 * row]],
        "one block,\nthe next row asked for": [[*row, "load from L2", *row[1:], "load from L2", *row[1:]]],
    }
    fig, ax = new_figure(9.2, 2.8)
    ax.axis("off")
    ax.set_title("What one SM asks of memory (a drawing, not a measurement)")
    y = 0.0
    for label, blocks in groups.items():
        ax.text(-0.4, y + 0.3 * len(blocks) - 0.03, label, ha="right", va="center", fontsize=9.5)
        for steps in blocks:
            x = 0
            for step in steps:
                width, color, hatch, _ = STEPS[step]
                ax.add_patch(Rectangle((x, y), width, 0.5, facecolor=color, hatch=hatch, edgecolor="white"))
                if step == "reduce" and "next" in label:
                    ax.add_patch(Rectangle((x, y + 0.34), 5, 0.16, facecolor=YELLOW, edgecolor=BLACK, linewidth=0.7, zorder=3))
                x += width
            y += 0.56
        y += 0.28
    ax.annotate("", (28, -0.18), (0, -0.18), arrowprops={"arrowstyle": "->", "color": GREY})
    ax.text(28.2, -0.18, "time", va="center", fontsize=9)
    ax.set(xlim=(-6.5, 29.5), ylim=(y - 0.2, -0.45))
    handles = [Patch(facecolor=color, hatch=hatch, edgecolor="white", label=words) for _, color, hatch, words in STEPS.values() if words]
    fig.legend(handles=[*handles, Patch(facecolor=YELLOW, edgecolor=BLACK, label="the next row goes to L2")],
               loc="outside lower center", ncols=4, fontsize=9)
    show(fig, alt="A drawing of time lines. One block: a row arrives, is reduced while memory is asked for nothing, results leave, and "
                  "so on. Two blocks: one loads while the other reduces. One block that asks for the next row: that row goes to the L2 "
                  "cache while this one is reduced and stored, so its own load is short, and three rows take less time.")


def busy(M: int, N: int, ways: dict[str, fast.Way], sms: int = 132) -> None:
    """How many of the SMs get a block of the launch that each way makes for M rows of N fp32 elements."""
    fig, axes = new_figure(9.2, 2.1, cols=len(ways))
    told = []
    for ax, (label, way) in zip(axes, ways.items(), strict=True):
        at_work = min(sms, fast.plan(way, M, N, "float32", True).grid)
        color = FAMILIES[way.kernel][0]
        for i in range(sms):
            on = i < at_work
            ax.add_patch(Rectangle((i % 12, i // 12), 0.86, 0.86, facecolor=color if on else "#E8E8E8", edgecolor="none"))
        ax.set(xlim=(-0.3, 12), ylim=(11.2, -0.3), aspect="equal")
        ax.axis("off")
        ax.set_title(f"{label}\n{at_work} of {sms} SMs", fontsize=10)
        told.append(f"{label} {at_work}")
    show(fig, alt=f"{sms} squares for the SMs; those with a block are coloured, for {M} rows of {N:,}: {'; '.join(told)}.")


# ------------------------------------------------------------------------------------------------ the decision


def ways(dtype: str = "float32") -> None:
    """The decision table of `softmax` for one dtype: the first line that fits is taken."""
    rows = []
    for w in fast.WAYS[dtype]:
        held = "–" if w.kernel == "shared" else w.vectors
        threads = f"{w.threads:,}" if w.threads else "as the row needs"
        rows.append([w.kernel, f"{w.max_n:,}", f"{w.min_rows:,}" if w.min_rows else "any", w.cluster if w.cluster > 1 else "–", held,
                     threads, f"{w.ahead} KB" if w.ahead else "–"])
    table(["kernel", "N up to", "rows, at least", "cluster", "16-byte pieces a thread", "threads", "prefetch, for each SM"], rows)


def decision(dtype: str = "float32", min_n: int = 32, max_n: int = 2**21, max_rows: int = 2**17) -> None:
    """Which kernel M rows of N elements get: M over N, for a GPU with clusters of 16 blocks and for one without."""
    fig, axes = new_figure(9.8, 4.1, cols=2, sharey=True)
    told = []
    for ax, clusters in zip(axes, (16, 1), strict=True):
        for n0, n1, m0, m1, w in regions(dtype, clusters, min_n, max_n, max_rows):
            ax.add_patch(Rectangle((n0, m0), n1 - n0, m1 - m0, facecolor=FAMILIES[w.kernel][0], edgecolor="white", linewidth=0.8))
            if w.cluster > 1 and n1 > 1.3 * n0 and m1 > 2 * m0:
                ax.text(np.sqrt(n0 * n1), np.sqrt(m0 * m1), w.cluster, ha="center", va="center", fontsize=9, color="white")
            told.append(f"{'with' if clusters > 1 else 'without'} clusters, N from {n0:,} and M from {m0:,}: {_kernel(w)}")
        ax.set_xscale("log", base=2)
        ax.set_yscale("log", base=2)
        ax.set(xlim=(min_n, max_n), ylim=(1, max_rows), xlabel="columns N",
               title="GPU with clusters of 16 blocks" if clusters > 1 else "GPU without clusters")
        ax.set_xticks([2.0**k for k in range(5, 22, 2)], ["32", "128", "512", "2K", "8K", "32K", "128K", "512K", "2M"], fontsize=9)
        ax.set_yticks([1, 4, 16, 64, 256, 1024, 2**14, 2**17], ["1", "4", "16", "64", "256", "1K", "16K", "128K"])
        ax.grid(visible=False)
    axes[0].set_ylabel("rows M")
    used = {w.kernel for w in fast.WAYS[dtype]}
    fig.legend(handles=[Patch(color=color, label=name) for name, (color, _) in FAMILIES.items() if name in used],
               loc="outside lower center", ncols=5, fontsize=9)
    show(fig, alt=f"Two maps of rows M over columns N, coloured by the kernel that {DTYPES[dtype]} rows get; numbers are blocks of a "
                  f"cluster. {'; '.join(told)}.")


def regions(dtype: str, clusters: int, min_n: int, max_n: int, max_rows: int) -> list[tuple]:
    """Rectangles (N from, N to, M from, M to, way) in which rows get one kernel with one cluster size; they tile the map."""
    lines = [w for w in fast.WAYS[dtype] if w.cluster <= clusters]
    at_n = sorted({min_n, max_n, *(w.max_n + 1 for w in lines if min_n <= w.max_n < max_n)})
    at_m = sorted({1, max_rows, *(w.min_rows for w in lines if 1 < w.min_rows < max_rows)})
    columns = []                                            # neighbours along N with the same kernels for every M are one column
    for n0, n1 in pairwise(at_n):
        chosen = [fast.way(m, n0, dtype, clusters) for m in at_m[:-1]]
        if columns and [_kernel(w) for w in columns[-1][2]] == [_kernel(w) for w in chosen]:
            columns[-1] = (columns[-1][0], n1, columns[-1][2])
        else:
            columns.append((n0, n1, chosen))
    found = []
    for n0, n1, chosen in columns:
        for (m0, m1), w in zip(pairwise(at_m), chosen, strict=True):
            if found and found[-1][0] == n0 and _kernel(found[-1][4]) == _kernel(w):
                found[-1] = (n0, n1, found[-1][2], m1, w)
            else:
                found.append((n0, n1, m0, m1, w))
    return found


def _kernel(w: fast.Way) -> str:
    """"block", or "cluster ×8"."""
    return f"{w.kernel} ×{w.cluster}" if w.cluster > 1 else w.kernel


# ------------------------------------------------------------------------------------------------ each kernel alone


def alone_at(record, name: str, dtype: str) -> dict[int, float]:
    """{N: TB/s} of one kernel by itself on 2^27 elements, for the lengths at which it was measured."""
    return {N: tbs for N in lengths(record, dtype) if (tbs := speed(record, f"family_{name}", N, dtype))}


def choices(record, dtype: str) -> dict[int, str]:
    """{N: the kernel that the dispatcher took} for 2^27 elements in aligned rows."""
    return {r["shape"][1]: r["kernel"] for r in record.rows if r["name"] == "fast" and r["dtype"] == dtype and not r.get("offset")}


def room(kernel: str, dtype: str) -> int:
    """The longest row for which the table has a line of this kernel; in one block, but for clusters."""
    return max(w.max_n for w in fast.WAYS[dtype] if w.kernel == kernel and (w.cluster > 1) == (kernel == "cluster"))


def alone(record, dtypes=("float32", "bfloat16")) -> None:
    """Effective bandwidth of each kernel by itself against N; below, what the table takes; dotted, the longest row it gives to a kernel."""
    fig, axes = new_figure(9.8, 4.4, cols=len(dtypes), sharey=True, squeeze=False)
    told = []
    for ax, dtype in zip(axes[0], dtypes, strict=True):
        at, took = lengths(record, dtype), choices(record, dtype)
        _curve(ax, record, "copy", dtype, at, color=BLACK, linestyle="--", linewidth=1.2, label="a copy")
        for name, (color, marker) in FAMILIES.items():
            if points := alone_at(record, name, dtype):
                ax.plot(list(points), list(points.values()), color=color, marker=marker, label=name)
                told.append(f"{DTYPES[dtype]}, {name}: " + ", ".join(f"{tbs:.2f} at {N:,}" for N, tbs in points.items()))
            if name in ("block", "shared", "cluster"):
                ax.axvline(room(name, dtype), color=color, linestyle=":", linewidth=1.6)
                told.append(f"{name} gets rows of at most {room(name, dtype):,}")
        for N in at:
            color, marker = FAMILIES[took[N]]
            ax.plot(N, 0.25, marker, color=color, markersize=9)
        ax.text(at[0], 0.5, "what the table takes:", fontsize=9)
        _over_lengths(ax, at, DTYPES[dtype])
        ax.set_xlim(at[0] / 1.5, 2**19.6)
    axes[0, 0].set_ylabel("effective bandwidth, TB/s")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    fig.legend(handles, labels, loc="outside lower center", ncols=6, fontsize=9)
    fig.suptitle(f"Each kernel alone; dotted: the longest row it gets ({_said(record)})", fontsize=11, x=0.01, ha="left")
    show(fig, alt=f"Effective bandwidth in TB/s of each kernel alone over the number of columns. {'; '.join(told)}.")


def winners(record, dtype: str = "float32", level: float = 0.99) -> None:
    """TB/s of each kernel by itself at every N: bold if level with the fastest, to within 1 %; a dot marks the table's choice."""
    at, took = lengths(record, dtype), choices(record, dtype)
    speeds = {name: alone_at(record, name, dtype) for name in FAMILIES}
    best = {N: max(of.get(N, 0) for of in speeds.values()) for N in at}
    rows = []
    for name, of in speeds.items():
        cells = ["–" if N not in of else f"**{of[N]:.2f}**" if of[N] >= level * best[N] else f"{of[N]:.2f}" for N in at]
        rows.append([name, *(f"• {cell}" if took[N] == name else cell for N, cell in zip(at, cells, strict=True))])
    rows.append(["a copy", *(f"{speed(record, 'copy', N, dtype):.2f}" for N in at)])
    table([f"{DTYPES[dtype]}, TB/s", *(f"{N:,}" if N < 1024 else f"{N // 1024}K" for N in at)], rows)


def borders(record, dtypes=("float32", "bfloat16")) -> None:
    """Where the table changes its kernel for 2^27 elements: both kernels at the last length before and at the first one after."""
    rows = []
    for dtype in dtypes:
        took = choices(record, dtype)
        for n0, n1 in pairwise(lengths(record, dtype)):
            before, after = took[n0], took[n1]
            if before != after:
                old, new = (alone_at(record, name, dtype) for name in (before, after))
                gain = f"{new[n1] / old[n1]:.2f}×" if n1 in old else "no room before"
                cells = [cell for N in (n0, n1) for cell in (f"{N:,}", _beside(old, new, N))]
                rows.append([f"{DTYPES[dtype]}: {before} to {after}", *cells, gain])
    table(["", "last N before", "TB/s, old and new", "first N after", "TB/s, old and new", "the change brings"], rows)


def _beside(old: dict[int, float], new: dict[int, float], N: int) -> str:
    return ", ".join(f"{of[N]:.2f}" if N in of else "–" for of in (old, new))


def alone_few(record, M: int = 4, dtype: str = "float32") -> None:
    """Microseconds in a CUDA graph for M rows: each kernel by itself, the dispatcher's choice timed once more, and torch."""
    rows = {name: {r["shape"][1]: r for r in record.rows
                   if r["name"] == f"family_{name}_graph" and r["shape"][0] == M and r["dtype"] == dtype} for name in FAMILIES}
    at = sorted(rows["cluster"])
    lines = []
    for name, of in rows.items():
        if of:
            cells = ["–" if N not in of else f"{of[N]['us']:.2f}" + (f" ({of[N]['cluster']})" if name == "cluster" else "") for N in at]
            lines.append([f"`{name}`" + " (blocks a row)" * (name == "cluster"), *cells])
    ratios = [rows["block"][N]["us"] / rows["cluster"][N]["us"] if N in rows["block"] else 0 for N in at]
    lines.append(["**block / cluster**", *(f"**{ratio:.1f}×**" if ratio else "–" for ratio in ratios)])
    for name, label in (("fast", "`softmax(x)`, which takes …"), ("torch", "`torch.softmax`")):
        times = (time(record, name, "graph", M, N, dtype) for N in at)
        lines.append([label, *(f"{us:.2f}" if us else "–" for us in times)])
        if name == "fast":
            lines.append(["…", *(fast.way(M, N, dtype, 16).kernel for N in at)])
    table([f"{M} rows, {DTYPES[dtype]}, µs", *(f"N = {N:,}" for N in at)], lines)


def calls(record, names=("fast", "torch")) -> list[list[str]]:
    """Calls launched one by one, where the GPU's own time is below three quarters of the host's: dtype, cases, µs of either, their ratio.

    There the time of a call is the host's.  Cells: dtype, number of cases, median µs of the first and the second, ratio: least to most.
    """
    rows = []
    for dtype, label in DTYPES.items():
        cases = [r["shape"] for r in record.rows if r["name"] == f"{names[0]}_plain" and r["dtype"] == dtype]
        found = []
        for M, N in cases:
            graph, plain = ([time(record, name, how, M, N, dtype) for name in names] for how in ("graph", "plain"))
            if all(graph) and all(plain) and all(g < 0.75 * p for g, p in zip(graph, plain, strict=True)):
                found.append(plain)
        if found:
            ours, theirs = np.array(found).T
            rows.append([label, str(len(found)), f"{np.median(ours):.1f}", f"{np.median(theirs):.1f}",
                         f"{(ours / theirs).min():.2f} to {(ours / theirs).max():.2f}"])
    return rows


# ---------------------------------------------------------------------------------------------- what was measured


def _curve(ax, record, name, dtype, at, **look) -> str:
    points = [(N, tbs) for N in at if (tbs := speed(record, name, N, dtype))]
    if not points:
        return ""
    ax.plot(*zip(*points, strict=True), **look)
    return f"{look['label']} from {points[0][1]:.2f} at {points[0][0]:,} to {points[-1][1]:.2f} at {points[-1][0]:,}"


def _over_lengths(ax, at, title) -> None:
    ax.set_xscale("log", base=2)
    ax.set_xticks(at[::2], [f"{N:,}" if N < 1024 else f"{N // 1024}K" for N in at[::2]])
    ax.set(ylim=(0, 4.9), xlabel="columns N, with M · N = 2²⁷", title=title)


def taken(record, dtype: str = "float32") -> None:
    """Effective bandwidth of the dispatcher against N, each length marked with the kernel that the table took."""
    at = lengths(record, dtype)
    took = choices(record, dtype)
    fig, ax = new_figure(8.8, 3.6)
    told = [_curve(ax, record, "copy", dtype, at, color=BLACK, linestyle="--", linewidth=1.2, label="a copy"),
            _curve(ax, record, "fast", dtype, at, color="#BBBBBB", linewidth=6, label="softmax(x), which takes …")]
    for name, (color, marker) in FAMILIES.items():
        if mine := [N for N in at if took[N] == name]:
            ax.plot(mine, [speed(record, "fast", N, dtype) for N in mine], marker, color=color, markersize=9, label=f"… {name}")
            told.append(f"{name} is taken at N = {', '.join(f'{N:,}' for N in mine)}")
    _over_lengths(ax, at, f"One call, several kernels, {DTYPES[dtype]} ({_said(record)})")
    ax.set_ylabel("effective bandwidth, TB/s")
    ax.legend(fontsize=9, ncols=5, loc="lower center")
    show(fig, alt=f"Effective bandwidth in TB/s over the number of columns, {DTYPES[dtype]}. {'; '.join(told)}.")


def peers(record) -> None:
    """Effective bandwidth of the dispatcher against N beside what a user would pick instead: fp32 and bf16."""
    fig, axes = new_figure(9.8, 4.1, cols=2, sharey=True)
    told = []
    for ax, dtype in zip(axes, ("float32", "bfloat16"), strict=True):
        at = lengths(record, dtype)
        looks = {"quack": (VERMILLION, "D"), "triton": (GREEN, "^"), "compile": (ORANGE, "s"), "torch": (SKY, "v")}
        found = [_curve(ax, record, "copy", dtype, at, color=BLACK, linestyle="--", linewidth=1.2, label=PEERS["copy"]),
                 _curve(ax, record, "fast", dtype, at, color=BLUE, marker="o", linewidth=2.6, label="softmax(x) of this course")]
        found += [_curve(ax, record, name, dtype, at, color=color, marker=marker, label=PEERS[name], linewidth=1.3)
                  for name, (color, marker) in looks.items()]
        _over_lengths(ax, at, DTYPES[dtype])
        told.append(f"{DTYPES[dtype]}: {'; '.join(t for t in found if t)}")
    axes[0].set_ylabel("effective bandwidth, TB/s")
    handles, labels = axes[0].get_legend_handles_labels()
    fig.legend(handles, labels, loc="outside lower center", ncols=6, fontsize=8.5)
    fig.suptitle(f"Softmax of 2²⁷ elements ({_said(record)})", fontsize=11, x=0.01, ha="left")
    show(fig, alt=f"Effective bandwidth in TB/s over the number of columns. {'. '.join(told)}.")


def tried(record, part: str, lengths=(65_536, 131_072, 262_144), dtypes=("float32", "bfloat16")) -> None:
    """Long rows: TB/s of the best trial for each number of blocks and place of the row, in one part of the trials; the fastest in bold."""
    columns = list(product(dtypes, lengths))
    best = {}
    for r in record.rows:
        column = r["dtype"], r["shape"][1]
        if r["part"] == part and r.get("kernel") in ("cluster", "shared") and column in columns:
            row = r["kernel"], r["cluster"]
            best.setdefault(row, {})[column] = max(r["tbs"], best.get(row, {}).get(column, 0))
    top = {column: max(of.get(column, 0) for of in best.values()) for column in columns}
    where = {"cluster": "in registers", "shared": "in shared memory"}
    rows = []
    for (kernel, blocks), of in sorted(best.items()):
        cells = ["–" if c not in of else f"**{of[c]:.2f}**" if of[c] == top[c] else f"{of[c]:.2f}" for c in columns]
        rows.append([f"{blocks} blocks, {where[kernel]}", *cells])
    copies = {(r["dtype"], r["shape"][1]): r["tbs"] for r in record.rows if r["part"] == part and r["name"] == "copy"}
    rows.append(["a copy", *(f"{copies[c]:.2f}" for c in columns)])
    table(["TB/s", *(f"{DTYPES[dtype]}, N = {N:,}" for dtype, N in columns)], rows)


def compare(record, before: str, after: str, labels: tuple[str, str], up_to: int = fast.MAX_N, dtype: str = "float32") -> None:
    """TB/s of two kernels of the record wherever both were measured, for rows of at most `up_to`."""
    at = [N for N in lengths(record, dtype) if N <= up_to and speed(record, before, N, dtype) and speed(record, after, N, dtype)]
    speeds = [[speed(record, name, N, dtype) for N in at] for name in (before, after)]
    rows = [[label, *(f"{tbs:.2f}" for tbs in line)] for label, line in zip(labels, speeds, strict=True)]
    rows.append(["**faster by**", *(f"**{b / a:.2f}×**" for a, b in zip(*speeds, strict=True))])
    table([f"{DTYPES[dtype]}, TB/s; columns N", *(f"{N:,}" for N in at)], rows)


def shares(record) -> None:
    """The dispatcher's speed as a share of the copy's and of the best peer's, for every dtype and N."""
    at = lengths(record)
    rows = []
    for dtype, label in DTYPES.items():
        ours = [speed(record, "fast", N, dtype) for N in at]
        peer, peer_speed = zip(*(best_peer(record, N, dtype) for N in at), strict=True)
        rows.append([f"{label}, of a copy", *(f"{a / speed(record, 'copy', N, dtype):.2f}" for a, N in zip(ours, at, strict=True))])
        rows.append([f"{label}, of the best peer", *(f"{a / b:.2f}" for a, b in zip(ours, peer_speed, strict=True))])
        rows.append(["which is", *peer])
    table(["columns N", *(f"{N:,}" if N < 1024 else f"{N // 1024}K" for N in at)], rows)


def behind(record, least: float = 0.99) -> None:
    """Print for which 2^27 elements the dispatcher reaches less than `least` of the speed of the best peer."""
    found = []
    for dtype, N in product(DTYPES, lengths(record)):
        name, tbs = best_peer(record, N, dtype)
        share = speed(record, "fast", N, dtype) / tbs
        if share < least:
            found.append(f"{DTYPES[dtype]}, N = {N:7,}: {share:.3f} of the speed of {PEERS[name]}")
    print("\n".join(found) or f"nowhere slower than {least:.2f} of the best peer")


def few_rows(record, dtype: str = "float32", names=("torch", "quack")) -> None:
    """Microseconds a call on few rows against N: above in a CUDA graph, below launched one by one."""
    found = [r["shape"] for r in record.rows if r["name"] == "fast_graph" and r["dtype"] == dtype]
    rows, at = sorted({s[0] for s in found}), sorted({s[1] for s in found})
    fig, axes = new_figure(9.8, 5.2, rows=2, cols=len(rows), sharex=True, sharey=True)
    looks = {"fast": (BLUE, "o", "softmax(x) of this course"), "torch": (SKY, "v", PEERS["torch"]),
             "quack": (VERMILLION, "D", PEERS["quack"])}
    told = []
    for i, how in enumerate(("graph", "plain")):
        for ax, M in zip(axes[i], rows, strict=True):
            for name in ("fast", *names):
                color, marker, label = looks[name]
                points = [(N, us) for N in at if (us := time(record, name, how, M, N, dtype))]
                if points:
                    ax.plot(*zip(*points, strict=True), color=color, marker=marker, label=label)
                    told.append(f"{how}, M = {M}, {label}: {', '.join(f'{us:.1f}' for _, us in points)}")
            ax.set_xscale("log", base=2)
            ax.set_yscale("log", base=2)
            ax.set_xticks(at[::2], [f"{N // 1024}K" for N in at[::2]])
            ax.set_yticks([2, 4, 8, 16, 32, 64, 128], ["2", "4", "8", "16", "32", "64", "128"])
            if i == 0:
                ax.set_title(f"M = {M}")
            else:
                ax.set_xlabel("columns N")
    axes[0][0].set_ylabel("in a graph, µs a call")
    axes[1][0].set_ylabel("one by one, µs a call")
    handles, labels = axes[0][0].get_legend_handles_labels()
    fig.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=9)
    fig.suptitle(f"Few rows, {DTYPES[dtype]} ({_said(record)})", fontsize=11, x=0.01, ha="left")
    show(fig, alt=f"Microseconds a call on few rows, for N = {', '.join(f'{N:,}' for N in at)}. {'; '.join(told)}.")


def slowest_against(record, names=("torch", "quack")) -> None:
    """For few rows: the dispatcher's time as a share of the faster peer's, the worst case of all N, for each M and dtype.

    A star marks a case in which a tenth of the calls took more than twice the median: the host was disturbed.
    """
    times = {(r["name"], *r["shape"], r["dtype"]): r for r in record.rows if r["name"].endswith(("_graph", "_plain"))}
    counts, at = (sorted({key[i] for key in times}) for i in (1, 2))
    rows = []
    for (how, label), (dtype, short) in product((("graph", "in a CUDA graph"), ("plain", "one by one")), DTYPES.items()):
        cells = []
        for M in counts:
            case = {N: [times[f"{name}_{how}", M, N, dtype] for name in ("fast", *names)] for N in at}
            ratio = {N: ours["us"] / min(p["us"] for p in others) for N, (ours, *others) in case.items()}
            worst = max(ratio, key=ratio.get)
            disturbed = any(r["us_p90"] > 2 * r["us"] for r in case[worst])
            cells.append(f"{ratio[worst]:.2f}{'*' * disturbed} (N = {worst:,})")
        rows.append([f"{label}, {short}", *cells])
    table(["time, of the faster peer's: the worst N", *(f"M = {M}" for M in counts)], rows)


def odd(record) -> None:
    """Speed at lengths that are no power of two, and of rows that begin off 16 bytes, as a share of the nearest aligned length's."""
    aligned = lengths(record)
    odd_ones = odd_lengths(record)
    skewed = sorted({r["shape"][1] for r in record.rows if r["name"] == "fast" and r.get("offset")})
    head = ["N", *(f"{N:,}" for N in odd_ones), *(f"{N:,}, one off" for N in skewed)]
    rows = []
    for dtype, label in DTYPES.items():
        near = [min(aligned, key=lambda a, N=N: abs(a - N)) for N in odd_ones]
        cells = [speed(record, "fast", N, dtype) / speed(record, "fast", a, dtype) for N, a in zip(odd_ones, near, strict=True)]
        cells += [speed(record, "fast", N, dtype, 1) / speed(record, "fast", N, dtype) for N in skewed]
        rows.append([label, *(f"{c:.2f}" for c in cells)])
    table(head, rows)


def forms(record) -> None:
    """Speed of the logarithm and of softmax in place, as a share of the plain form's: the least and the most over all N."""
    rows = []
    for name, label in (("fast_log", "`softmax(x, log=True)`"), ("fast_in_place", "`softmax(x, out=x)`")):
        cells = []
        for dtype in DTYPES:
            ratio = {N: speed(record, name, N, dtype) / speed(record, "fast", N, dtype) for N in lengths(record, dtype)}
            least = min(ratio, key=ratio.get)
            cells.append(f"{ratio[least]:.2f} (N = {least:,}) to {max(ratio.values()):.2f}")
        rows.append([label, *cells])
    table(["speed, of `softmax(x)`", *DTYPES.values()], rows)
