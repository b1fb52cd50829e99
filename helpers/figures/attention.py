"""Plots of notebook 12: the state (m, d, O) tile by tile, rounding of two updates, causal masks, memory against S."""

from __future__ import annotations

import matplotlib
import numpy as np

from helpers import reference
from helpers.figures.style import BLUE, GREEN, GREY, ORANGE, SKY, VERMILLION, new_figure, show

GIB = 2**30



def tile_walk(q, k, v, tile: int) -> None:
    """One query q [D] meets keys k, v [Sk, D] in tiles: its scores and maxima, the normalizer, and O/d after each tile."""
    sk, head_dim = k.shape
    scores = k @ q / np.sqrt(head_dim)
    starts = np.arange(0, sk, tile)
    ends = np.minimum(starts + tile, sk)
    states = [_state(scores[:end], v[:end]) for end in ends]
    m, d = np.array([s[0] for s in states]), np.array([s[1] for s in states])
    before = np.concatenate([[-np.inf], m[:-1]])
    factors = np.exp(before - m)

    fig, (top, middle, bottom) = new_figure(8.6, 7.0, rows=3, sharex=True, height_ratios=(1.2, 1, 1.5))
    for ax in (top, middle):
        ax.grid(axis="x", visible=False)
        for start in starts[1:]:
            ax.axvline(start, color=GREY, linewidth=1, linestyle=":")
    top.plot(np.arange(sk) + 0.5, scores, "o", color=BLUE, markersize=3.5, label="score $s_j$")
    top.step([*starts, sk], [*m, m[-1]], where="post", color=VERMILLION, label="row_max m after the tile")
    top.set(ylabel="score", ylim=(None, scores.max() + 0.35 * np.ptp(scores)), xlim=(0, sk),
            title=f"The scores of one query, {len(starts)} tiles of {tile} keys (dotted lines)")
    top.legend(loc="upper left", ncols=2)

    middle.bar((starts + ends) / 2, d, width=0.5 * tile, color=GREEN)
    for x, height, factor in zip((starts + ends) / 2, d, factors, strict=True):
        middle.annotate("start" if factor == 0 else f"× {factor:.2f}", (x, height), (0, 3), ha="center", fontsize=9,
                        color=VERMILLION if 0 < factor < 1 else GREY, textcoords="offset points")
    middle.set(ylabel="normalizer d", ylim=(0, 1.25 * d.max()),
               title="d after each tile; above it the factor by which the tile rescaled the old d and the old O")

    picture = np.stack([s[2] / s[1] for s in states], axis=1)
    image = bottom.imshow(picture, cmap="cividis", aspect="auto", extent=(0, sk, head_dim, 0), interpolation="nearest")
    bottom.grid(visible=False)
    fig.colorbar(image, ax=bottom, label="O / d", pad=0.01)
    bottom.set(ylabel="column of O", xlabel="keys seen so far", yticks=range(0, head_dim + 1, 8),
               title="O / d after each tile: the weighted average of the values seen so far")
    show(fig, alt=f"Three panels over {sk} keys in {len(starts)} tiles. Top: the scores of one query as dots and the "
                  f"running maximum as a staircase with {int((factors[1:] < 1).sum())} steps. Middle: the normalizer d "
                  "after each tile as bars, each labelled with the correction factor, which is below 1 where the "
                  f"maximum rose. Bottom: a heat map of the {head_dim} columns of O/d after each tile; it changes "
                  "strongly in the tiles that raise the maximum and ends at the output of attention.")


def _state(scores, v):
    m = scores.max()
    p = np.exp(scores - m)
    return m, p.sum(), p @ v



def rounding(errors) -> None:
    """Error against float64 over the number of tiles.

    `errors` maps the name of an input to {number of tiles: (errors deferred, errors normalised)}, one entry a repeat.
    """
    fig, axes = new_figure(8.6, 3.6, cols=len(errors), sharey=True)
    for ax, (name, by_tiles) in zip(np.atleast_1d(axes), errors.items(), strict=True):
        for which, label, color, marker in ((1, "normalised after every tile", ORANGE, "s"),
                                            (0, "deferred: divided once", BLUE, "o")):
            values = [np.median(pair[which]) for pair in by_tiles.values()]
            ax.plot(list(by_tiles), values, marker=marker, color=color, label=label)
        ax.set_xscale("log", base=2)
        ax.set_yscale("log")
        ax.set_xticks(list(by_tiles), [f"{n:,}" for n in by_tiles])
        ax.set(xlabel="tiles per row", title=name)
    np.atleast_1d(axes)[0].set(ylabel="relative error of O (fp32)")
    np.atleast_1d(axes)[0].legend(loc="upper left", fontsize=9)
    show(fig, alt="Relative error of fp32 attention against float64 over the number of tiles, one panel for each input. "
                  "Both updates stay between 2e-7 and 5e-6 and grow once tiles are small. On flat rows the normalised "
                  "update is up to 1.4 times worse; on peaked rows the two lie close together and cross.")



def masks(shapes, big: tuple[int, int, int]) -> None:
    """Causal masks of `shapes` [(Sq, Sk), ...], and which tiles the kernel visits for `big` = (Sq, Sk, tile)."""
    fig, axes = new_figure(8.8, 2.9, cols=len(shapes) + 1)
    colors = matplotlib.colors.ListedColormap(["white", SKY, BLUE])
    for ax, (sq, sk) in zip(axes, shapes, strict=False):
        _grid(ax, 2 * reference.visible(sq, sk), colors)
        ax.set(title=f"Sq = {sq}, Sk = {sk}", xlabel="key j", ylabel="query i")
    sq, sk, tile = big
    blocks = reference.visible(sq, sk).reshape(sq // tile, tile, sk // tile, tile).mean(axis=(1, 3))
    _grid(axes[-1], np.where(blocks == 1, 2, np.where(blocks > 0, 1, 0)), colors)
    for row, col in np.argwhere((blocks > 0) & (blocks < 1)):
        axes[-1].plot(col, row, "x", color="black", markersize=5)
    axes[-1].set(title=f"{sq} × {sk} in tiles of {tile}", xlabel="tile of keys", ylabel="tile of queries")
    show(fig, alt="Small grids of queries by keys, visible cells filled. Square: a lower triangle. Two queries and six "
                  "keys: the last query sees all keys, the one before all but the last. Six queries and three keys: "
                  "the first three queries see nothing, the last three form a triangle. Last grid: tiles of a large "
                  "square mask; those above the diagonal are empty and skipped, those on it are partly visible and "
                  "marked with a cross, those below are fully visible.")


def _grid(ax, cells, colors) -> None:
    rows, cols = cells.shape
    ax.imshow(cells, cmap=colors, vmin=0, vmax=2)
    ax.set_xticks(range(cols))
    ax.set_yticks(range(rows))
    ax.set_xticks(np.arange(-0.5, cols), minor=True)
    ax.set_yticks(np.arange(-0.5, rows), minor=True)
    ax.grid(visible=False, which="major")
    ax.grid(which="minor", color=GREY, linewidth=0.8)
    ax.tick_params(which="both", length=0, labelsize=8)
    for spine in ax.spines.values():
        spine.set_visible(True)



def memory(lengths, whole, tiled, far: int = 131_072) -> None:
    """Peak bytes of attention over S: `whole` keeps the score matrix, `tiled` does not; dashed: S*S*4 bytes up to `far`."""
    fig, ax = new_figure(8.2, 3.8)
    line = np.geomspace(lengths[0], far, 50)
    ax.plot(line, 4 * line**2, "--", color=GREY, label="one score matrix in fp32: 4 S² bytes")
    ax.plot(lengths, whole, "s-", color=VERMILLION, label="whole matrix, measured")
    ax.plot(lengths, tiled, "o-", color=BLUE, label="tiles of 64 keys, measured")
    ax.plot(far, 4 * far**2, "D", color=GREY)
    ax.annotate("64 GiB", (far, 4 * far**2), (-8, 0), textcoords="offset points", ha="right", va="center")
    ax.set_xscale("log", base=2)
    ax.set_yscale("log", base=2)
    ticks = [n for n in (256, 1024, 4096, 16_384, 65_536, far) if n >= lengths[0]]
    ax.set_xticks(ticks, [f"{n:,}" for n in ticks])
    sizes = {"1 MiB": 2**20, "16 MiB": 2**24, "256 MiB": 2**28, "4 GiB": 2**32, "64 GiB": 2**36}
    ax.set_yticks(list(sizes.values()), list(sizes))
    ax.set(xlabel="sequence length S (Sq = Sk, one head, D = 64)", ylabel="peak memory",
           title="Bytes that NumPy allocated on the CPU (solid), and where the matrix leads (dashed)")
    ax.legend(loc="upper left", fontsize=9)
    show(fig, alt="Peak memory over sequence length, both axes logarithmic. The curve with the whole score matrix rises "
                  "with the square of S, above the dashed line of one matrix, which reaches 64 GiB at S = 131,072. The "
                  "curve of the tiled version rises in proportion to S and is far below.")
