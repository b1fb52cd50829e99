"""Plots and tables of beyond/hopper_attention: the clock budget, the swizzle, who uses what when, and what each step measured."""

from __future__ import annotations

import numpy as np
from matplotlib.patches import Rectangle

from helpers.figures import tensor_cores
from helpers.figures.style import BLACK, BLUE, CYCLE, GREEN, GREY, MARKERS, ORANGE, SKY, VERMILLION, YELLOW, new_figure, show, table
from helpers.hopper import BEST, STEPS, Sizes, Tuning, consumer_tiles

PEERS = {name: (tensor_cores.PEERS | {"fa4": "FlashAttention-4"})[name] for name in ("sdpa_cudnn", "fa4", "sdpa_flash")}
SMS, TENSOR, POWERS = 132, 4096, 16                 # an H200: SMs; operations (bf16) and powers of 2 a clock, for each SM
BH, S = 64, 4096                                    # of all counters


# ------------------------------------------------------------------------------------------ clocks a key


def budget(D: int) -> tuple[float, float]:
    """Clocks for which one key keeps an SM busy with 64 queries: its tensor cores, and its unit for powers of 2."""
    return 2 * 2 * 64 * D / TENSOR, 64 / POWERS


def profiled(counters, name: str, D: int, causal: bool = False) -> dict:
    """What Nsight Compute read of a step."""
    return counters.find(name=name, shape=(BH, S, S, D, causal))


def clocks(row: dict, of: str = "cycles") -> float:
    """Clocks a key for 64 queries in a profiled row without mask: all of them, or those in which a unit was busy.

    `of`: "cycles", "tensor", "exp", or "issue" (instructions of warps, over the four that an SM can start in a clock).
    """
    busy = 1 if of == "cycles" else row[f"{of}_active_percent"] / 100
    return row["cycles"] * busy * SMS / (BH * S * S / 64)


def tflops(D: int, clocks_a_key: float, ghz: float) -> float:
    """The speed of a GPU whose SMs need so many clocks a key."""
    return SMS * 4 * 64 * D / clocks_a_key * ghz / 1e3


def steps(runs, counters, *names: str) -> None:
    """For D = 64 and 128, B = 4, 16 heads, S = 4096: speed of each step, clocks a key, and how busy three resources are."""
    lines = []
    for D in (64, 128):
        for name in names:
            row = profiled(counters, name, D)
            run = (runs.find(name=name, shape=(4, 16, S, S, D, causal))["tflops"] for causal in (False, True))
            busy = (f"{row[f'{unit}_active_percent']:.0f} %" for unit in ("tensor", "exp", "issue"))
            lines.append([f"D = {D}: {STEPS[name].title}", *(f"{speed:.0f}" for speed in run), f"{clocks(row):.1f}", *busy])
    table(["", "TFLOP/s", "causal", "clocks a key", "tensor cores busy", "powers of 2", "issue slots"], lines)


def against_budget(counters) -> None:
    """Clocks a key of every step, without mask, beside the budget; a diamond marks the clocks that its instructions take."""
    fig, axes = new_figure(9.6, 3.9, cols=2, sharey=True)
    y, said = np.arange(len(STEPS))[::-1], []
    for ax, D in zip(axes, (64, 128), strict=True):
        rows, (tensor, powers) = [profiled(counters, name, D) for name in STEPS], budget(D)
        ax.barh(y, [clocks(r) for r in rows], height=0.6, color=SKY, edgecolor=BLACK, linewidth=0.6)
        ax.plot([clocks(r, "issue") for r in rows], y, "D", color=VERMILLION, markersize=6, label="of these, to start its instructions")
        for at, r in zip(y, rows, strict=True):
            ax.text(0.15, at, f"{clocks(r):.1f}", va="center", fontsize=9.5, weight="bold")
        ax.axvline(max(tensor, powers), color=BLACK, linewidth=1.6, label="budget: everything overlaps")
        ax.axvline(tensor + powers, color=BLACK, linewidth=1.6, linestyle="--", label="budget: nothing overlaps")
        ax.set(title=f"D = {D}", xlabel="clocks a key, for 64 queries", yticks=y, yticklabels=[s.title for s in STEPS.values()],
               xlim=(0, 1.05 * max(clocks(r) for r in rows)))
        ax.grid(axis="y", visible=False)
        each = (f"{STEPS[n].title} {clocks(r):.1f}, instructions {clocks(r, 'issue'):.1f}" for n, r in zip(STEPS, rows, strict=True))
        said.append(f"D = {D}, budget {max(tensor, powers):.0f} to {tensor + powers:.0f}: {', '.join(each)}")
    fig.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=9)
    show(fig, alt=f"Bars of clocks a key for each step. {'; '.join(said)}.")


# -------------------------------------------------------------------------------------------- timelines


def in_step(D: int, overlap: bool, keys: int = 128, consumers: int = 2, rounds: int = 3) -> list[tuple[str, int, float, float]]:
    """(unit, consumer, begin, end), if consumers in the same phase share each unit equally.  Computed from the budget."""
    tensor, powers = (consumers * keys * clocks for clocks in budget(D))
    spans, now = [], 0.0
    for _ in range(rounds):
        softmax = now + tensor / 2 if overlap else now                          # after Q K of this tile; without overlap it came before
        output = (now, now + tensor) if overlap else (now + powers, now + powers + tensor)
        for c in range(consumers):
            spans += [("powers", c, softmax, softmax + powers), ("tensor", c, *output)]
        now = max(softmax + powers, output[1])
    return spans


def in_turn(D: int, keys: int = 128, consumers: int = 2, rounds: int = 3) -> list[tuple[str, int, float, float]]:
    """As `in_step` with overlap, but each consumer has the tensor cores for itself, one after the other."""
    tensor, powers = (keys * clocks for clocks in budget(D))
    spans, tensor_free, powers_free, ready = [], 0.0, 0.0, [0.0] * consumers
    for _ in range(rounds):
        for c in range(consumers):
            begin = max(tensor_free, ready[c])
            tensor_free = begin + tensor
            softmax = max(powers_free, begin + tensor / 2)
            powers_free = ready[c] = softmax + powers
            spans += [("tensor", c, begin, tensor_free), ("powers", c, softmax, powers_free)]
    return spans


WAYS = {"in step, no overlap": lambda D: in_step(D, False), "in step, overlap inside": lambda D: in_step(D, True),
        "overlap inside, and turns": in_turn}


def busy(D: int, way: str) -> float:
    """Share of the time for which the tensor cores are busy in the long run, by the budget alone."""
    tensor, powers = budget(D)
    clocks_a_key = {"in step, no overlap": tensor + powers, "in step, overlap inside": tensor / 2 + max(tensor / 2, powers),
                    "overlap inside, and turns": max(tensor, powers, (tensor / 2 + powers) / 2)}
    return tensor / clocks_a_key[way]


def timeline() -> None:
    """Two warpgroups at one pair of units, three ways, for D = 64 and 128; computed from the budget, not measured."""
    fig, axes = new_figure(9.8, 4.6, rows=len(WAYS), cols=2, sharex="col")
    lanes, said = {"tensor": 1, "powers": 0}, []
    for column, D in enumerate((64, 128)):
        for ax, (way, make) in zip(axes[:, column], WAYS.items(), strict=True):
            spans = make(D)
            for unit, c, begin, end in spans:
                shared = way.startswith("in step")
                height = 0.4 if shared else 0.8
                ax.add_patch(Rectangle((begin, lanes[unit] - 0.4 + (height * c if shared else 0)), end - begin, height, linewidth=0.7,
                                       facecolor=(SKY, ORANGE)[c], hatch=("", "//")[c], edgecolor=BLACK))
            ax.set(ylim=(-0.55, 1.55), xlim=(0, 2560 if D == 64 else 4096), yticks=(1, 0),
                   yticklabels=("tensor cores", "powers of 2") if column == 0 else ("", ""))
            ax.grid(axis="y", visible=False)
            ax.set_title(f"D = {D}, {way}: tensor cores busy {busy(D, way):.0%}", fontsize=8.5)
            said.append(f"D = {D}, {way}: tensor cores busy {busy(D, way):.0%}")
        axes[-1, column].set_xlabel("clocks, tiles of 128 keys; computed, not measured")
    show(fig, alt="Timelines of two warpgroups, blue and hatched orange, on the tensor cores and the unit for powers of 2, computed from "
                  f"the budget; in step they use a unit together, and then leave it idle together. {'; '.join(said)}.")


# ----------------------------------------------------------------------------------------- shared memory


def swizzled(offset):
    """Where the byte at `offset` of a tile with rows of 128 bytes is put: bits 4 to 6 are changed by bits 7 to 9."""
    return offset ^ (offset >> 7 & 7) << 4


def swizzle() -> None:
    """Eight rows of a tile in memory, in pieces of 16 bytes labelled with their columns; marked is what one step of Q K reads."""
    fig, axes = new_figure(9.4, 3.3, cols=2)
    places = {"as it lies in the array": lambda offset: offset, "as TMA puts it into shared memory": swizzled}
    for ax, (title, place) in zip(axes, places.items(), strict=True):
        for row in range(8):
            for piece in range(8):
                at = int(place(row * 128 + piece * 16))
                x, y = at % 128 // 16, at // 128
                first = piece < 2
                ax.add_patch(Rectangle((x, y), 1, 1, facecolor=(ORANGE, YELLOW)[piece] if first else "#F2F2F2", edgecolor=GREY,
                                       linewidth=0.7))
                ax.text(x + 0.5, y + 0.5, f"{8 * piece}", ha="center", va="center", fontsize=9, color=BLACK,
                        weight="bold" if first else "normal")
        ax.grid(visible=False)
        ax.set(xlim=(0, 8), ylim=(8, 0), xticks=range(9), xticklabels=range(0, 129, 16), yticks=np.arange(8) + 0.5, yticklabels=range(8),
               xlabel="byte of a line of 128", title=title)
    axes[0].set_ylabel("row")
    show(fig, alt="Two grids of 8 lines of 128 bytes, cut into pieces of 16 bytes, each labelled with its first column. Left, as in the "
                  "array: columns 0 and 8 of all rows stand at bytes 0 and 16. Right, swizzled: in row r the piece c stands at place c xor "
                  "r, so the two coloured pieces of the eight rows are spread over all places.")


# ----------------------------------------------------------------------------------------- work of blocks


def countings(Sq: int = 1024, keys: int = 64, consumers: int = 3) -> None:
    """Tiles that consumers compute, and tiles for which they stand idle, in both countings."""
    fig, axes = new_figure(9.4, 3.2, cols=2, sharey=True)
    said = []
    for ax, from_the_end in zip(axes, (False, True), strict=True):
        own = consumer_tiles(Sizes(1, 1, 1, Sq, Sq, 128), Tuning(keys, consumers), True, from_the_end)
        for b, tiles in enumerate(own):
            for c, mine in enumerate(tiles):
                at, most = b * (consumers + 1) + c, tiles.max()
                ax.bar(at, mine, width=0.85, color=SKY, edgecolor=BLACK, linewidth=0.6)
                ax.bar(at, most - mine, bottom=mine, width=0.85, color="white", hatch="////", edgecolor=VERMILLION, linewidth=0.6)
        idle = 1 - own.sum() / (own.max(axis=1).sum() * consumers)
        title = f"counted from the {'last' if from_the_end else 'first'} query: {idle:.0%} idle"
        ax.grid(axis="x", visible=False)
        ax.set(title=title, xlabel="block", xticks=np.arange(len(own)) * (consumers + 1) + (consumers - 1) / 2, xticklabels=range(len(own)))
        said.append(f"{title}: " + ", ".join("/".join(map(str, tiles)) for tiles in own))
    axes[0].set_ylabel(f"tiles of {keys} keys")
    show(fig, alt=f"Tiles of the {consumers} consumers of each block of a causal head with {Sq} queries; hatched: the block still works "
                  f"for others. {'; '.join(said)}.")


# ------------------------------------------------------------------------------------------ what was measured


def flips(record, D: int, field: str, before, after, **fixed) -> np.ndarray:
    """Speed with `field` = after over speed with `field` = before, for all pairs of recorded tunings that differ in nothing else."""
    def others(row):
        return str([row["shape"], [(name, value) for name, value in row["tuning"].items() if name != field]])

    rows = [r for r in record.rows if r["shape"][4] == D and all(r["tuning"][name] == value for name, value in fixed.items())]
    old, new = ({others(r): r["tflops"] for r in rows if r["tuning"][field] == value} for value in (before, after))
    return np.array([new[key] / old[key] for key in old if key in new])


def best_tuning(record, shape) -> tuple[float, dict]:
    """(TFLOP/s, tuning) of the fastest tuning of a case [B, H, Sq, Sk, D, causal]."""
    fastest = max((r for r in record.rows if r["shape"] == list(shape)), key=lambda r: r["tflops"])
    return fastest["tflops"], fastest["tuning"]


def against_peers(runs) -> list[tuple[list, float]]:
    """(shape, speed of the last step over that of the best peer) of the 12 cases."""
    shapes = list(dict.fromkeys(tuple(r["shape"]) for r in runs.rows))
    best = [max(runs.find(name=peer, shape=shape)["tflops"] or 0 for peer in PEERS) for shape in shapes]
    return [(shape, runs.find(name=BEST, shape=shape)["tflops"] / b) for shape, b in zip(shapes, best, strict=True)]


def peers(runs) -> None:
    """TFLOP/s of the last step and of each peer in all 12 cases."""
    cases = against_peers(runs)
    fig, ax = new_figure(9.4, 4.6)
    y, said = np.arange(len(cases))[::-1], []
    labels, looks = {BEST: "this course, last step", **PEERS}, zip((BLUE, GREEN, VERMILLION, GREY), "oD^s", strict=True)
    for (name, label), (colour, marker) in zip(labels.items(), looks, strict=True):
        values = [runs.find(name=name, shape=shape)["tflops"] or np.nan for shape, _ in cases]
        ax.plot(values, y, marker, color=colour, markersize=8 if name == BEST else 6.5, label=label)
    for at, (shape, ratio) in zip(y, cases, strict=True):
        ax.text(830, at, f"{ratio:.3f}", va="center", fontsize=9.5, weight="bold" if ratio >= 1 else "normal")
        said.append(f"{_case(shape)} {ratio:.3f}")
    ax.text(830, len(cases) - 0.3, "of the best\nother", fontsize=8.5, va="bottom")
    ax.set(yticks=y, yticklabels=[_case(shape) for shape, _ in cases], xlim=(150, 900),
           xlabel="TFLOP/s (causal: half the operations count)")
    fig.legend(*ax.get_legend_handles_labels(), loc="outside upper center", ncols=4, fontsize=9)
    show(fig, alt=f"TFLOP/s of 12 cases as points, and the last step over the best of the others: {'; '.join(said)}.")


def _case(shape) -> str:
    return f"S = {shape[2]:,}, D = {shape[4]}{', causal' if shape[5] else ''}"


def clock(counters) -> None:
    """The clock that a kernel ran at over how busy it kept the tensor cores."""
    fig, ax = new_figure(6.6, 3.2)
    for (D, causal), colour, marker in zip(((64, False), (64, True), (128, False), (128, True)), CYCLE, MARKERS, strict=False):
        rows = [profiled(counters, name, D, causal) for name in STEPS]
        ax.plot([r["tensor_active_percent"] for r in rows], [r["cycles"] / r["time_ns"] for r in rows], marker, color=colour, markersize=7,
                label=f"D = {D}{', causal' if causal else ''}")
    ax.set(xlabel="tensor cores busy, % of the clocks", ylabel="clock, GHz", xlim=(30, 90))
    ax.legend(fontsize=9)
    points = [(r["tensor_active_percent"], r["cycles"] / r["time_ns"]) for r in counters.rows]
    low, high = min(points), max(points)
    show(fig, alt="Points, one a step and case: mostly, the busier the tensor cores, the lower the clock, "
                  f"from {low[1]:.2f} GHz at {low[0]:.0f} % to {high[1]:.2f} GHz at {high[0]:.0f} %.")


