"""One look for every plot and table: colour-blind-safe colours that also differ in grey, fixed sizes, alt text on every picture."""

from __future__ import annotations

import io

import matplotlib
import PIL.Image
from IPython.display import Image, Markdown, display
from matplotlib.figure import Figure

# Okabe-Ito, ordered so that neighbours also differ in lightness.
BLUE, ORANGE, GREEN, VERMILLION, SKY, PURPLE, YELLOW, BLACK = (
    "#0072B2", "#E69F00", "#009E73", "#D55E00", "#56B4E9", "#CC79A7", "#F0E442", "#000000")
CYCLE = (BLUE, ORANGE, GREEN, VERMILLION, SKY, PURPLE, BLACK)
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
GREY = "#8A8A8A"
DPI = 110

matplotlib.rcParams.update({
    "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.color": "#E3E3E3",
    "axes.axisbelow": True, "axes.titlesize": 11, "axes.titlelocation": "left", "axes.labelsize": 10, "font.size": 10,
    "legend.frameon": False, "lines.linewidth": 1.8, "lines.markersize": 5, "figure.facecolor": "white",
    "axes.prop_cycle": matplotlib.cycler(color=CYCLE),
})


def new_figure(width: float = 7.5, height: float = 3.2, rows: int = 1, cols: int = 1, **subplots):
    """A figure (inches) outside pyplot's global state, with its axes: one, or an array when rows*cols > 1."""
    fig = Figure(figsize=(width, height), layout="constrained")
    return fig, fig.subplots(rows, cols, **subplots)


def show(fig: Figure, alt: str) -> None:
    """Display `fig` as a PNG that carries `alt` for readers who do not see it; the size is fixed by the figure."""
    if not alt.strip():
        raise ValueError("every figure of the course needs alt text: say what the reader should see in it")
    buffer = io.BytesIO()
    fig.savefig(buffer, format="png", dpi=DPI)
    display(Image(compact(buffer.getvalue()), format="png", alt=alt, width=int(fig.get_figwidth() * DPI)))


def compact(png: bytes) -> bytes:
    """The same picture in 256 colours, a third of the bytes: notebooks hold their pictures, and have to stay small."""
    buffer = io.BytesIO()
    PIL.Image.open(io.BytesIO(png)).convert("RGB").quantize(256, dither=PIL.Image.Dither.NONE).save(buffer, "png", optimize=True)
    return buffer.getvalue()


def table(head, rows) -> None:
    """Show rows of text under `head` as a table, the first column to the left and the others to the right."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    display(Markdown("\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)))
