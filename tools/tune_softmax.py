"""Find the best line of helpers.fast.WAYS for rows of a length, on this GPU.

    python tools/tune_softmax.py --dtype bfloat16 --n 4096,8192             2^27 elements, beside a device copy
    python tools/tune_softmax.py --dtype bfloat16 --n 65536 --rows 1,32     few rows, in a CUDA graph

Every candidate is compared with float64 before it is timed, then the candidates are timed in turn.  Prints the best, and where the
line that the table has now stands among them; --out FILE keeps all of it as JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from helpers import fast  # noqa: E402
from helpers.bench.softmax import ELEMENTS, Case, check, data, graph_times, processes, times_in_turn  # noqa: E402
from helpers.device import cp, on_gpu  # noqa: E402
from helpers.fast import MAX_SHARED, Way  # noqa: E402


def candidates(N: int, dtype: str) -> Iterator[Way]:
    """Every way worth trying for rows of N elements."""
    width = 4 if dtype == "float32" else 8
    pieces = -(-N // width)
    if pieces <= 256:
        yield from (Way(N, "warp", vectors=v, threads=threads) for v in (1, 2, 4, 8) if v * width <= 32 for threads in (128, 256))
    for cluster in (1, 2, 4, 8, 16):
        share = -(-pieces // cluster)
        for vectors in (1, 2, 3, 4, 5, 6, 8, 12):
            threads = 32 * -(-share // (32 * vectors))
            if not 64 <= threads <= 1024 or vectors * width > 64 or threads * (vectors * width + 24) > 65_536:
                continue
            way = Way(N, "block" if cluster == 1 else "cluster", vectors=vectors, cluster=cluster)
            yield way
            if width == 8 and vectors in (2, 8):                        # a block more: 32 and 80 registers a thread
                yield replace(way, registers=8 * vectors + 16)
        if 512 <= share and 16 * share <= MAX_SHARED - 8192:
            yield from (Way(N, "shared", cluster=cluster, threads=threads) for threads in (128, 256, 512, 1024) if share <= 32 * threads)


def with_prefetch(way: Way) -> list[Way]:
    """The same, and asking the L2 cache for a row to come."""
    far = (16, 32, 48) if way.kernel in ("block", "cluster", "shared") else ()
    return [way, *(replace(way, ahead=kilobytes) for kilobytes in far)]


def compile_plan(p: fast.Plan) -> str:
    """Compile in a process of its own, so that CuPy's cache on disk has it; returns what went wrong."""
    try:
        for k in p.compiled():
            k.compile()
        return ""
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:200]}"


def tune(case: Case, pool, shown: int = 6) -> list[dict]:
    """Try everything on one case; print the best and return all."""
    import torch

    M, N, dtype = case.M, case.N, case.dtype
    now = fast.way(M, N, dtype)
    ways = [w for c in candidates(N, dtype) for w in ([c] if case.few else with_prefetch(c))]
    plans = {fast.plan(w, M, N, dtype, True): w for w in [*ways, now]}                       # without those that come to the same launch
    failed = dict(zip(plans, pool.map(compile_plan, plans)))
    x, t = data(case)
    y = cp.empty_like(x)
    functions = {}
    for p in plans:
        try:
            if failed[p]:
                raise RuntimeError(failed[p])
            launch = fast.launcher(p, M, N, x.itemsize)
            result = torch.from_dlpack(y).fill_(np.nan)
            launch(x, y)
            check(t, result)
            functions[p] = lambda launch=launch: launch(x, y)
        except Exception as error:
            print(f"   {plans[p]}: {type(error).__name__}: {str(error)[:160]}")
    if case.few:
        times, copy = {p: graph_times(f) for p, f in functions.items()}, np.nan
    else:
        u = torch.empty_like(t)
        times = times_in_turn({None: lambda: u.copy_(t), **functions}, {}, repeats=15)
        copy = float(np.median(times.pop(None)))
    best = sorted(times, key=lambda p: np.median(times[p]))
    mine = fast.plan(now, M, N, dtype, True)
    print(f"{M} x {N} {dtype}: the table's line is number {best.index(mine) + 1} of {len(best)}")
    for p in dict.fromkeys([*best[:shown], mine]):
        us, p10, p90 = np.percentile(times[p], [50, 10, 90])
        print(f"   {us:8.2f} us ({p10:.2f} to {p90:.2f}), {copy / us:.3f} of a copy: {text(plans[p])}  {p.threads} threads", flush=True)
    return [{"shape": [M, N], "dtype": dtype, "way": text(plans[p]), "us": round(float(np.median(times[p])), 3),
             "of_copy": round(copy / float(np.median(times[p])), 4)} for p in best]


def text(way: Way) -> str:
    """The line as it stands in the table, without what is left at its default."""
    default = Way(way.max_n, way.kernel)
    more = [f"{k}={v!r}" for k, v in vars(way).items() if v != getattr(default, k)]
    return f"Way({', '.join([f'{way.max_n:_}', repr(way.kernel), *more])})"


def main() -> None:
    numbers = lambda words: [int(w) for w in words.split(",")]  # noqa: E731
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", default="float32,bfloat16")
    parser.add_argument("--n", type=numbers, required=True)
    parser.add_argument("--rows", type=numbers, default=[])
    parser.add_argument("--out")
    args = parser.parse_args()
    if not on_gpu:
        sys.exit("this needs a GPU")
    found = []
    with processes() as pool:
        for dtype in args.dtype.split(","):
            for N in args.n:
                for M in args.rows or [ELEMENTS // N]:
                    found += tune(Case(M, N, dtype), pool)
    if args.out:
        Path(args.out).write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
