"""What the notebooks import: one array module on two devices, the kernels, the truth, the plots, the exercises."""

from . import figures, reference
from .attention import attention
from .device import cp, device_sentence, on_gpu
from .exercises import check, hint, progress, solution
from .ladder import STEPS, softmax
from .measure import access_map, count, record, tbs, time_us
from .snippets import load, show_diff, show_snippet

__all__ = [
    "STEPS", "access_map", "attention", "check", "count", "cp", "device_sentence", "figures", "hint", "load", "on_gpu",
    "progress", "record", "reference", "show_diff", "show_snippet", "softmax", "solution", "tbs", "time_us",
]
