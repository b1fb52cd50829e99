"""Plots of notebook 13: who owns what in the tiled kernel, memory and speed against S, the sweep over tile sizes."""

from __future__ import annotations

import numpy as np
from matplotlib.patches import Rectangle

from helpers.figures.style import BLACK, BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, VERMILLION, YELLOW, new_figure, show

LOOKS = {  # name in the record -> label, colour, marker, line
    "attention_naive": ("naive: three kernels", VERMILLION, "s", "-"),
    "attention_tiled": ("tiled: one kernel", BLUE, "o", "-"),
    "sdpa_math": ("torch SDPA, math (stores the scores)", GREY, "^", "--"),
    "sdpa_efficient": ("torch SDPA, efficient (fused)", GREEN, "D", "--"),
}


def ownership(queries: int = 4, keys: int = 3, blocks: int = 3, tiles: int = 5) -> None:
    """The score matrix as a grid: a block owns a band of queries, a thread a row, and a tile of keys walks across."""
    rows, columns = queries * blocks, keys * tiles
    band, tile, row = 1, 2, 2  # the block, the tile and the thread of the block that are drawn in colour
    fig, ax = new_figure(8.8, 5.4)
    ax.axis("off")
    ax.set(xlim=(-5.6, columns + 6.6), ylim=(rows + 1.2, -4.7), aspect="equal")

    def box(x, y, width, height, **look):
        ax.add_patch(Rectangle((x, y), width, height, **({"edgecolor": BLACK, "linewidth": 1} | look)))

    def grid(x, y, width, height, nx, ny):
        for i in range(nx + 1):
            ax.plot([x + i * width / nx] * 2, [y, y + height], color=GREY, linewidth=0.5, zorder=1)
        for i in range(ny + 1):
            ax.plot([x, x + width], [y + i * height / ny] * 2, color=GREY, linewidth=0.5, zorder=1)

    top, left = queries * band, keys * tile
    grid(0, 0, columns, rows, columns, rows)
    box(0, top, columns, queries, facecolor=SKY, alpha=0.25, linewidth=0)
    box(0, top, left, queries, facecolor=SKY, alpha=0.35, linewidth=0)
    box(left, top, keys, queries, facecolor=ORANGE, alpha=0.75, hatch="//", edgecolor="white", linewidth=0)
    box(left, top + row, keys, 1, facecolor=YELLOW, linewidth=2)
    for i in range(1, blocks):
        ax.plot([0, columns], [queries * i] * 2, color=BLACK, linewidth=1.4)
    for i in range(1, tiles):
        ax.plot([keys * i] * 2, [-2.1, rows], color=BLACK, linewidth=0.9, linestyle=":")
    box(0, 0, columns, rows, fill=False, linewidth=1.6)

    box(0, -2.1, columns, 1.5, facecolor="white")  # K and V above, one column a key
    grid(0, -2.1, columns, 1.5, columns, 1)
    box(left, -2.1, keys, 1.5, facecolor=ORANGE, alpha=0.75, hatch="//", edgecolor="white")
    box(-2.4, 0, 1.6, rows, facecolor="white")  # q on the left
    grid(-2.4, 0, 1.6, rows, 1, rows)
    box(-2.4, top, 1.6, queries, facecolor=SKY, alpha=0.5)
    box(-2.4, top + row, 1.6, 1, facecolor=YELLOW, linewidth=2)
    box(columns + 0.8, 0, 2.2, rows, facecolor="white")  # m, d, O on the right
    grid(columns + 0.8, 0, 2.2, rows, 1, rows)
    box(columns + 0.8, top, 2.2, queries, facecolor=SKY, alpha=0.5)
    box(columns + 0.8, top + row, 2.2, 1, facecolor=YELLOW, linewidth=2)

    text = {"fontsize": 10, "va": "center", "color": BLACK}
    ax.text(-0.3, -1.35, "K, V", ha="right", **text)
    ax.text(-1.6, -0.5, "q", ha="center", **text)
    ax.text(columns + 1.9, -0.5, "m, d, O", ha="center", **text)
    ax.text(left + keys / 2, -3.4, "one tile of K and V in shared memory,\nused by all threads of the block", ha="center", **text)
    ax.annotate("", (left + keys + 4.2, -2.5), (left + keys, -2.5), arrowprops={"arrowstyle": "->", "linewidth": 1.6})
    ax.text(left + keys + 4.4, -2.5, "then the next tile", ha="left", **text)
    ax.text(-2.7, top + row + 0.5, "a thread:\none query", ha="right", **text)
    ax.text(-2.7, top - 1.5, "a block: a\ntile of queries", ha="right", **text)
    ax.text(columns + 3.2, top + row + 0.5, "its state, in\nregisters", ha="left", **text)
    ax.text(left + keys + 0.3, top + row + 0.5, "its scores of this tile", ha="left", **text)
    ax.text(columns / 2, rows + 0.7, "the score matrix Q Kᵀ is never stored: only the orange tile of it exists", ha="center", **text)
    show(fig, alt="The score matrix as a grid of queries by keys. A band of rows belongs to one block of threads, one row "
                  "of it to one thread. Left of the row stands its query q, right of it its state m, d, O, both in registers "
                  "of the thread. Above the matrix lie K and V, one column a key; one tile of them is in shared memory and "
                  "used by the whole band. The tile walks to the right; only the scores of the current tile exist.")


def memory(record, far: int = 131_072) -> None:
    """Peak bytes of a call against S, from record("attention"), beside what the score matrix and the outputs need."""
    rows = [r for r in record.rows if r["dtype"] == "float32" and r.get("peak_bytes", 0) > 0 and not r["shape"][-1]]
    B, H, *_, D, _ = rows[0]["shape"]
    fig, ax = new_figure(8.2, 4.0)
    smallest = min(r["shape"][2] for r in rows)
    line = np.geomspace(smallest, far, 60)
    outputs = 4 * B * H * line * (D + 1)
    ax.plot(line, outputs + 4 * B * H * line**2, ":", color=VERMILLION, label="expected: the scores and the outputs")
    ax.plot(line, outputs, ":", color=BLUE, label="expected: the outputs O and LSE")
    for name in ("attention_naive", "attention_tiled"):
        label, color, marker, _ = LOOKS[name]
        mine = [(r["shape"][2], r["peak_bytes"]) for r in rows if r["name"] == name]
        ax.plot(*zip(*mine, strict=True), marker, color=color, markersize=7, markeredgecolor=BLACK, label=f"{label}, measured")
    ax.axhline(141e9, color=GREY, linewidth=1.2, linestyle="--")
    ax.text(smallest, 141e9 * 1.3, f"memory of an {record.run['device']}", fontsize=9, color=BLACK)
    ax.plot(far, 4 * B * H * far**2, "D", color=VERMILLION)
    ax.annotate("1 TiB", (far, 4 * B * H * far**2), (-9, 0), textcoords="offset points", ha="right", va="center")
    ax.set_xscale("log", base=2)
    ax.set_yscale("log", base=2)
    ticks = [n for n in (512, 2048, 8192, 32_768, far) if n >= smallest]
    ax.set_xticks(ticks, [f"{n:,}" for n in ticks])
    sizes = {"1 MiB": 2**20, "32 MiB": 2**25, "1 GiB": 2**30, "32 GiB": 2**35, "1 TiB": 2**40}
    ax.set_yticks(list(sizes.values()), list(sizes))
    ax.set(xlabel=f"sequence length S (Sq = Sk, {H} heads, D = {D})", ylabel="peak memory of a call",
           title=f"Results and scratch of one call, measured on an {record.run['device']}")
    ax.legend(loc="lower right", fontsize=9)
    show(fig, alt="Peak memory of a call over sequence length, both axes logarithmic. The naive kernels lie on a line that "
                  "rises with the square of S, from tens of MiB at S = 512 to 64 GiB at S = 32,768; the line goes on to 1 TiB "
                  "at S = 131,072, above the memory of the GPU. The tiled kernel lies on the line of its outputs, which "
                  "grows in proportion to S: 0.5 GiB at S = 131,072.")


def speed(record) -> None:
    """TFLOP/s against S from record("attention"), without and with the causal mask."""
    rows = [r for r in record.rows if r["dtype"] == "float32" and r["us"]]
    fig, axes = new_figure(9.2, 3.9, cols=2, sharey=True)
    for ax, causal in zip(axes, (False, True), strict=True):
        for name, (label, color, marker, line) in LOOKS.items():
            mine = [(r["shape"][2], r["tflops"]) for r in rows if r["name"] == name and r["shape"][-1] == causal]
            ax.plot(*zip(*mine, strict=True), line, marker=marker, color=color, label=label)
        ticks = sorted({r["shape"][2] for r in rows})
        ax.set_xscale("log", base=2)
        ax.set_xticks(ticks, [f"{n:,}" for n in ticks])
        ax.set(xlabel="sequence length S", title="causal (half the operations count)" if causal else "every query sees every key")
    axes[0].set(ylabel="TFLOP/s", ylim=(0, None))
    axes[1].legend(loc="upper left", fontsize=9)
    fig.suptitle(f"fp32 attention, 16 heads, D = 64: recorded on an {record.run['device']}, {record.run['date']}", fontsize=10)
    ends = {name: [r["tflops"] for r in rows if r["name"] == name and not r["shape"][-1]] for name in LOOKS}
    show(fig, alt=f"TFLOP/s of fp32 attention over sequence length from {ticks[0]} to {ticks[-1]}, two panels. Without a mask: "
                  + "; ".join(f"{LOOKS[name][0]} from {values[0]:.1f} to {values[-1]:.1f}" for name, values in ends.items())
                  + ". Torch's math backend is ahead of the tiled kernel for short sequences and behind it for long ones, and far "
                  "behind with the causal mask. Torch's memory-efficient backend is the fastest everywhere.")


def tiles(record) -> None:
    """Heat map of the tile-size sweep: TFLOP/s, occupancy, registers and shared memory of each size."""
    sizes = [tuple(int(part[1:]) for part in r["name"].split("_")) for r in record.rows]
    queries, keys = (sorted({size[i] for size in sizes}) for i in (0, 1))
    speeds = np.full((len(queries), len(keys)), np.nan)
    fig, ax = new_figure(8.2, 3.9)
    for r, (n_queries, n_keys) in zip(record.rows, sizes, strict=True):
        y, x = queries.index(n_queries), keys.index(n_keys)
        shared = f"{r['shared_bytes'] / 1024:g} KB"
        if r["us"] is None:
            ax.text(x, y, f"does not compile\n{shared} shared", ha="center", va="center", fontsize=8.5, color=BLACK)
            continue
        speeds[y, x] = r["tflops"]
    low, high = np.nanmin(speeds), np.nanmax(speeds)
    for r, (n_queries, n_keys) in zip(record.rows, sizes, strict=True):
        if r["us"] is not None:
            y, x = queries.index(n_queries), keys.index(n_keys)
            dark = (r["tflops"] - low) / (high - low) < 0.55
            ax.text(x, y, f"{r['tflops']:.1f}", ha="center", va="bottom", fontsize=12, weight="bold", color="white" if dark else BLACK)
            ax.text(x, y + 0.04, f"{r['occupancy']:.1%} occupied\n{r['registers']} reg, {r['shared_bytes'] / 1024:g} KB", ha="center",
                    va="top", fontsize=8, color="white" if dark else BLACK, linespacing=1.15)
    image = ax.imshow(np.ma.masked_invalid(speeds), cmap="cividis", aspect="auto")
    fig.colorbar(image, ax=ax, label="TFLOP/s", pad=0.015)
    best = np.unravel_index(np.nanargmax(speeds), speeds.shape)
    ax.add_patch(Rectangle((best[1] - 0.48, best[0] - 0.48), 0.96, 0.96, fill=False, edgecolor=PURPLE, linewidth=3))
    ax.set_xticks(range(len(keys)), keys)
    ax.set_yticks(range(len(queries)), queries)
    ax.grid(visible=False)
    ax.tick_params(length=0)
    ax.set(xlabel="KEYS in a tile", ylabel="QUERIES in a block (= threads)",
           title=f"Tiled attention at S = 4096, D = 64, recorded on an {record.run['device']} (frame: the fastest)")
    show(fig, alt=f"Heat map of TFLOP/s over queries in a block and keys in a tile, from {low:.0f} to {high:.0f}. Small blocks of 32 "
                  "queries are slow. More keys in a tile help up to a point. The best cell is "
                  f"{queries[best[0]]} queries and {keys[best[1]]} keys. Tiles whose arrays need more than 48 KB do not compile.")
