"""Plots of notebook 13, tensor cores: fragments over lanes, banks of a swizzled tile, copies under way, what warps wait for, speed."""

from __future__ import annotations

import numpy as np
from matplotlib.patches import Rectangle

from helpers.figures.style import BLACK, BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, VERMILLION, YELLOW, new_figure, show
from helpers.ladder import STEPS

LADDER = tuple(key for key, step in STEPS.items() if key.startswith("attention") and "bfloat16" in step.dtypes)
PEERS = {"sdpa_flash": "SDPA, FlashAttention-2", "sdpa_cudnn": "SDPA, cuDNN", "sdpa_efficient": "SDPA, memory-efficient",
         "sdpa_math": "SDPA, math: stores the scores"}
REGISTERS = (SKY, ORANGE, YELLOW, "#BFBFBF")
WAITS = {  # what a warp waits for -> the stall reasons of Nsight Compute, colour
    "shared memory": (("short_scoreboard", "mio_throttle"), VERMILLION),
    "device memory, L2": (("long_scoreboard",), BLUE),
    "a barrier": (("barrier",), PURPLE),
    "the tensor cores": (("math_pipe_throttle",), GREEN),
    "its last result": (("wait",), SKY),
    "its turn": (("not_selected", "dispatch_stall"), YELLOW),
}


# ------------------------------------------------------------------------------------------ who holds what


def holder_of_a(row, column):
    """(lane, register 0 … 3) that holds row, column of the operand A [16, 16]; two neighbouring columns share a register."""
    return row % 8 * 4 + column % 8 // 2, row // 8 + 2 * (column // 8)


def holder_of_b(row, column):
    """(lane, register 0 or 1) that holds row, column of the operand B [16, 8]; two neighbouring rows share a register."""
    return column * 4 + row % 8 // 2, row // 8


def holder_of_c(row, column):
    """(lane, number 0 … 3) that holds row, column of the result C [16, 8]."""
    return row % 8 * 4 + column // 2, row // 8 * 2 + column % 2


def piece_at(row: int, piece: int, D: int = 64) -> int:
    """Where piece `piece` (16 bytes) of a row of D 16-bit numbers lies in its line of a swizzled tile (tile.h)."""
    return piece ^ (row // 2 % 4 if D <= 32 else row % 8)


def _pairs(ax, left: int, lanes, registers, lane: int, down: bool = False) -> None:
    """A matrix in pairs of neighbours that share a register, labelled with their lane; those of `lane` in a thick frame."""
    width, height = (1, 2) if down else (2, 1)
    for row in range(0, len(lanes), height):
        for column in range(0, len(lanes[0]), width):
            x, y, mine = left + column, row, lanes[row, column] == lane
            ax.add_patch(Rectangle((x, y), width, height, facecolor=REGISTERS[registers[row, column]], edgecolor="white", linewidth=0.8))
            ax.text(x + width / 2, y + height / 2, lanes[row, column], ha="center", va="center", fontsize=7.5, color=BLACK,
                    weight="bold" if mine else "normal")
            if mine:
                ax.add_patch(Rectangle((x, y), width, height, fill=False, edgecolor=BLACK, linewidth=2, zorder=3))


def fragments(lane: int = 9) -> None:
    """Operands and result of S = Q K^T for 16 queries and 16 keys, each pair of numbers labelled with the lane that holds it."""
    row, column = np.indices((16, 16))
    c_lane, c_number = holder_of_c(row, column % 8)
    b_lane, b_register = holder_of_b(*np.indices((16, 8)))
    fig, ax = new_figure(9.2, 4.4)
    ax.axis("off")
    ax.set(xlim=(-1, 49.5), ylim=(20.8, -3.6), aspect="equal")
    _pairs(ax, 0, *holder_of_a(row, column), lane)
    _pairs(ax, 19, b_lane, 2 * b_register, lane, down=True)
    _pairs(ax, 31, c_lane, c_number // 2 + 2 * (column // 8), lane)
    ax.plot([39, 39], [-0.3, 16.3], color=BLACK, linewidth=1.2)
    text = {"ha": "center", "va": "center", "color": BLACK}
    for x, name, shape in ((8, "A: 16 queries", "16 of their D columns"), (23, "B: 8 keys", "the same 16 of D"),
                           (39, "two results C: scores", "8 keys and the next 8")):
        ax.text(x, -2.2, name, fontsize=11, weight="bold", **text)
        ax.text(x, -0.9, shape, fontsize=9, **text)
    ax.text(17.5, 8, "×", fontsize=15, **text)
    ax.text(29, 8, "→", fontsize=15, **text)
    for x, words in ((0.5, "a[0]"), (5.5, "a[1]"), (10.5, "a[2]"), (15.5, "a[3]")):
        ax.add_patch(Rectangle((x, 17.3), 1, 1, facecolor=REGISTERS[int(words[2])]))
        ax.text(x + 1.3, 17.85, words, fontsize=9, va="center", color=BLACK)
    ax.text(0.5, 19.8, "a cell is two neighbours and shows the lane that holds them, a colour their register; "
            f"framed: all that lane {lane} holds", fontsize=9.5, va="center")
    ax.text(31, 17.85, "c[0], c[1] blue · c[2], c[3] orange · next C: yellow, grey", fontsize=8.5, va="center")
    show(fig, alt="Three matrices, each pair of neighbours labelled with the lane that holds it. A, 16 queries by 16 columns: rows g and "
                  "g + 8 belong to lanes 4g to 4g + 3, each lane with two neighbouring columns of the left and of the right half, in "
                  "four registers. B, 16 columns by 8 keys: lane 4g + t holds pairs down column g. The scores, two results C of 16 "
                  f"queries by 8 keys side by side, show the same lanes and colours as A: what lane {lane} holds of the scores of 16 "
                  "keys lies where it would hold an operand A.")


def banks(D: int = 64, piece: int = 2) -> None:
    """8 rows of a tile over the 32 banks, row by row and swizzled; one matrix of ldmatrix, the same piece of all 8 rows, is marked."""
    fig, axes = new_figure(9.2, 3.5, cols=2)
    for ax, swizzled in zip(axes, (False, True), strict=True):
        for row in range(8):
            for c in range(8):
                place = piece_at(row, c, D) if swizzled else c
                marked = c == piece
                ax.add_patch(Rectangle((4 * place, row), 4, 1, facecolor=ORANGE if marked else "#F2F2F2", edgecolor=GREY, linewidth=0.7))
                ax.text(4 * place + 2, row + 0.52, c, ha="center", va="center", fontsize=9, weight="bold" if marked else "normal",
                        color=BLACK)
        ax.grid(visible=False)
        ax.set(xlim=(0, 32), ylim=(8, 0), xticks=range(0, 33, 4), yticks=np.arange(8) + 0.5, yticklabels=range(8), xlabel="bank")
        ax.set_title("swizzled: 8 places, one pass" if swizzled else "row by row: one place, 8 passes")
    axes[0].set_ylabel("row of the tile")
    show(fig, alt="Two grids of 8 rows over 32 banks, each row cut into 8 pieces of 16 bytes, numbered 0 to 7. Left, row by row: piece "
                  f"{piece} of all rows lies in the same four banks. Right, swizzled: piece c of row r lies at place c xor r, so piece "
                  f"{piece} of the 8 rows lies in 8 different places, and together they fill all 32 banks.")


def timeline(tiles: int = 4) -> None:
    """A block's time, schematic: copy, wait, compute against copies that run while the block computes."""
    fig, axes = new_figure(8.6, 3.4, rows=2, sharex=True)
    copy, work = 1.0, 2.2

    def bar(ax, row, start, length, label, colour, hatch=None):
        ax.barh(row, length, left=start, height=0.62, color=colour, edgecolor=BLACK, linewidth=0.8, hatch=hatch)
        ax.text(start + length / 2, row, label, ha="center", va="center", fontsize=9, color=BLACK,
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.8} if hatch else None)

    for tile in range(tiles):
        start = tile * (copy + work)
        bar(axes[0], 1, start, copy, f"tile {tile}", ORANGE, "//")
        bar(axes[0], 0, start + copy, work, f"use tile {tile}", SKY)
        for x in (start + copy, start + copy + work):
            axes[0].axvline(x, color=VERMILLION, linewidth=1.5)
        begin = copy + (tile - 1) * work if tile else 0
        bar(axes[1], 1, begin, copy, f"tile {tile}", ORANGE, "//")
        bar(axes[1], 0, copy + tile * work, work, f"use tile {tile}", SKY)
        axes[1].axvline(copy + tile * work, color=VERMILLION, linewidth=1.5)
    for ax, title in zip(axes, ("one pair of tiles: nobody computes while a tile is copied",
                                "two pairs: the next tile is copied while this one is used"), strict=True):
        ax.grid(visible=False)
        ax.set(yticks=(0, 1), yticklabels=("compute", "copy"), xticks=(), title=title, xlim=(0, tiles * (copy + work) + 0.1))
    axes[1].set_xlabel("time of one block (schematic, not to scale); red: a barrier")
    show(fig, alt="Two timelines of a block. Above, copies and computations alternate, with a barrier after each. Below, the copy of the "
                  "next tile runs under the computation with the current one, there is one barrier a tile, and the four tiles are done "
                  "earlier.")


# ------------------------------------------------------------------------------------------ what was measured


def waits(row: dict) -> dict[str, float]:
    """Of a profiled step: for each reason, the cycles that warps waited, for one mma instruction."""
    scale = row["instructions"] / row["tensor_instructions"]
    return {name: scale * sum(row[f"stalled_{reason}_ratio"] for reason in reasons) for name, (reasons, _) in WAITS.items()}


def stalls(record, D: int = 64) -> None:
    """What warps wait for in each step, cycles for one mma, and how busy the tensor cores are; from record("attention-ncu")."""
    rows = [record.find(name=name, shape=(64, 4096, 4096, D, False)) for name in LADDER]
    found, busy = [waits(row) for row in rows], [row["tensor_active_percent"] for row in rows]
    fig, (left, right) = new_figure(9.6, 3.7, cols=2, sharey=True, width_ratios=(2.4, 1))
    y, base = np.arange(len(rows))[::-1], np.zeros(len(rows))
    for (name, (_, colour)), hatch in zip(WAITS.items(), ("//", "", "..", "", "\\\\", ""), strict=True):
        part = np.array([w[name] for w in found])
        left.barh(y, part, left=base, color=colour, edgecolor="white", hatch=hatch, label=name, height=0.66)
        base += part
    left.set(yticks=y, yticklabels=[STEPS[name].title for name in LADDER], xlabel="cycles that warps wait, for one mma",
             title=f"waiting for … (D = {D})", xlim=(0, base.max() * 1.02))
    left.legend(fontsize=8.5, loc="lower right")
    right.barh(y, busy, color=GREEN, edgecolor=BLACK, height=0.5)
    for at, value in zip(y, busy, strict=True):
        right.text(value + 1.5, at, f"{value:.0f} %", va="center", fontsize=9.5)
    right.set(xlim=(0, 100), xlabel="of all cycles, %", title="tensor cores busy")
    for ax in (left, right):
        ax.grid(axis="y", visible=False)
    said = [f"{STEPS[name].title}: {sum(w.values()):.0f} cycles, most for {max(w, key=w.get)}, tensor cores busy {share:.0f} percent"
            for name, w, share in zip(LADDER, found, busy, strict=True)]
    show(fig, alt=f"Stacked bars, one a step, for D = {D}: the cycles warps wait for one mma instruction, by reason. {'; '.join(said)}.")


def speed(record) -> None:
    """TFLOP/s of every step and of SDPA's backends at B = 4, 16 heads, S = 4096, from record("attention")."""
    names = (*LADDER, *PEERS)
    labels = [STEPS[name].title if name in STEPS else PEERS[name] for name in names]
    fig, axes = new_figure(9.8, 4.6, cols=2, sharey=True, sharex=True)
    y, said = np.arange(len(names))[::-1].astype(float), []
    y[:len(LADDER)] += 0.4
    for ax, D in zip(axes, (64, 128), strict=True):
        for causal, shift, shade in ((False, 0.19, 1.0), (True, -0.19, 0.4)):
            values = [record.find(name=name, shape=(4, 16, 4096, 4096, D, causal))["tflops"] for name in names]
            colours = [BLUE if name in STEPS else GREY for name in names]
            ax.barh(y + shift, values, height=0.36, color=colours, alpha=shade)
            for at, value in zip(y + shift, values, strict=True):
                ax.text(value + 6, at, f"{value:.0f}", va="center", fontsize=8)
            said.append(f"D = {D}{', causal' if causal else ''}: " + ", ".join(f"{n} {v:.0f}" for n, v in zip(labels, values, strict=True)))
        flash = record.find(name="sdpa_flash", shape=(4, 16, 4096, 4096, D, False))["tflops"]
        ax.axvline(flash, color=VERMILLION, linewidth=1.2, linestyle="--", zorder=0)
        ax.grid(axis="y", visible=False)
        ax.set(title=f"D = {D}", xlabel="TFLOP/s (causal: half the operations count)", yticks=y, yticklabels=labels, xlim=(0, 760))
    axes[0].legend([Rectangle((0, 0), 1, 1, facecolor=BLUE, alpha=shade) for shade in (1.0, 0.4)],
                   ["every query sees every key", "causal"], fontsize=8.5, loc="upper right")
    fig.suptitle(f"bf16, B = 4, 16 heads, S = 4096, recorded on an {record.run['device']}, {record.run['date']}; grey: torch; "
                 "dashed: FlashAttention-2", fontsize=10)
    show(fig, alt="Bars of TFLOP/s for five steps and three of torch's backends. " + ". ".join(said) + ".")
