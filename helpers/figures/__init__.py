"""Every plot of the course, one module a topic; each public function draws, shows and returns nothing."""

from importlib import import_module

from . import style

__all__ = ["style", "overflow", "online", "merging", "attention", "kernels", "ladders",
           "choosing", "fastest", "tiled", "tensor_cores", "topk", "backward", "low_precision", "decode", "many_gpus", "hopper"]


def __getattr__(name: str):
    if name in __all__:
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"helpers.figures has no topic {name!r}; there are {', '.join(__all__)}")
