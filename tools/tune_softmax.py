"""Find the best kernel of cuda_snippets/fast/ for each length of a row, on this GPU.

    python tools/tune_softmax.py --out FOLDER [--only rows,few,host,call] [--dtype float32] [--n 4096,8192] [--peers]
    python tools/tune_softmax.py --registers        # needs no GPU: registers and spills of every variant, for sm_90a

rows: 2^27 elements, every variant against a device copy, torch, Triton.  few: 1 to 128 rows in a CUDA graph.  host: what a call
costs before the GPU works.  call: helpers.fast.softmax as it is, odd sizes, unaligned rows, logarithm and in place.
Every variant is compared with float64, special rows included, in memory prefilled with NaN, before it is timed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
import numpy as np  # noqa: E402

ELEMENTS = 2**27
LENGTHS = (128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072, 262144)
ODD = (1000, 4095, 4097, 8191, 32001, 50257, 128256, 151936)
FEW = [(M, N) for N in (4096, 16384, 32768, 65536, 131072, 262144) for M in (1, 4, 32, 128)]
T0 = time.time()


# ------------------------------------------------------------------------------------------------ variants


def variants(N: int, dtype: str, least: int = 2, few: bool = False) -> list:
    """All ways to try for rows of N elements."""
    from helpers.fast import MAX_SHARED, Way

    width = 4 if dtype == "float32" else 8
    pieces, floats = -(-N // width), 48 if width == 4 else 32
    most = floats // width                                               # pieces a thread can hold with 64 registers
    found = []

    def add(kernel, options=(), **numbers):
        found.append(Way(N, kernel, options=tuple(options), **numbers))
        if numbers.get("cluster", 1) > 1:
            found.append(Way(N, kernel, options=(*options, "-DASYNC"), **numbers))

    if pieces <= 32 * 64 // width and not few:
        for lanes in (2, 4, 8, 16, 32):
            vectors = -(-pieces // lanes)
            if lanes >= least and vectors <= 64 // width and lanes <= 2 * pieces:
                for threads in (128, 256, 512):
                    add("warp", vectors=vectors, threads=threads)
    for vectors in (1, 2, 3, 4, 5, 6, 8, 10, 12):
        threads = 32 * -(-pieces // (32 * vectors))
        if vectors <= most and 64 <= threads <= 1024:
            add("block", vectors=vectors)
            if width == 8 and vectors == 2 and not few:             # 16-bit pieces take registers: make room for more blocks
                add("block", ["-DBLOCKS=%d" % (2048 // threads)], vectors=vectors)
    for cluster in (2, 4, 8, 16):
        part = -(-pieces // cluster)
        for vectors in (1, 2, 3, 4, 6, 8, 12) if few else (2, 4, 6, 8, 12):
            threads = 32 * -(-part // (32 * vectors))
            if vectors <= most and 128 <= threads <= 1024 and (few or N >= 8192):
                add("cluster", vectors=vectors, cluster=cluster)
    for cluster in (1, 2, 4, 8, 16):
        part = 16 * -(-pieces // cluster)
        if few and cluster == 1 or N < 4096 or not 8192 <= part <= MAX_SHARED - 8192:
            continue
        for threads in (128, 256, 512, 1024):
            if part / 16 / threads <= 32:
                add("shared", cluster=cluster, threads=threads)
    if few or N >= 131072:
        for threads in (256, 512, 1024):
            for vectors in (1, 2, 4):
                if threads * vectors * width < N:
                    add("split", threads=threads, vectors=vectors)
    return found


def ahead(way, N: int, dtype: str) -> list[int]:
    """Distances of prefetching into the L2 cache worth trying: one and two times the rows that are under way, up to 24 MB."""
    if way.kernel not in ("block", "cluster", "shared"):
        return []
    size = N * (4 if dtype == "float32" else 2)
    rows = [d for d in (66, 132, 264, 528, 1056) if 4e6 <= d * size / way.cluster <= 24e6]
    return [d // way.cluster for d in rows if d >= way.cluster][:2]


def different(pairs: list) -> list:
    """Pairs (way, plan) without those that come to the same launch."""
    return list({(p.kernel, p.macros, p.options, p.grid, p.threads, p.parts): (w, p) for w, p in pairs}.values())


def label(way, plan) -> str:
    """A short name, such as block 256x4 or cluster8 1024x8 ftz."""
    words = [f"{way.kernel}{way.cluster if way.cluster > 1 else ''}"]
    macros = dict(m[2:].split("=") for m in plan.macros if "=" in m)
    lanes = f"/{macros['LANES']}" if "LANES" in macros else ""
    words.append(f"{plan.threads}{lanes}x{macros.get('VECTORS', '')}")
    return " ".join(words + [o.removeprefix("-D") for o in way.options])


# ----------------------------------------------------------------------------------- compiling on all cores


def compile_one(job) -> str:
    """In a process of its own: compile, so that CuPy's cache on disk has it."""
    code, entry, options = job
    try:
        import cupy

        cupy.RawKernel(code, entry, options=options).compile()
        return ""
    except Exception as error:
        return str(error)[:300]


class Compiler:
    """Compiles many plans at once; remembers what failed."""

    def __init__(self, processes: int):
        import multiprocessing

        self.pool = multiprocessing.get_context("spawn").Pool(processes) if processes > 1 else None
        self.done: dict[tuple, str] = {}

    def __call__(self, plans) -> None:
        from helpers.snippets import load

        jobs = {(f"fast/{p.kernel}.cu", entry, ("-std=c++17", *p.macros, *p.options)) for p in plans for entry in p.entries()}
        jobs = sorted(jobs - self.done.keys())
        work = [(load(file), entry, options) for file, entry, options in jobs]
        results = self.pool.map(compile_one, work, chunksize=1) if self.pool else map(compile_one, work)
        self.done.update(zip(jobs, results))

    def error(self, p) -> str:
        keys = [(f"fast/{p.kernel}.cu", entry, ("-std=c++17", *p.macros, *p.options)) for entry in p.entries()]
        return "".join(self.done.get(key, "") for key in keys)


# ------------------------------------------------------------------------------------------------- measuring


class Bench:
    """One GPU: arrays, reference rows, checks and times."""

    def __init__(self, folder: Path):
        import cupy

        self.cp, self.folder = cupy, folder
        self.scratch = cupy.empty(256 << 20, dtype=cupy.uint8)
        self.rows, self.done, self.bad, self.run = [], [], [], {}
        if (folder / "state.json").exists():
            self.done, self.bad, self.rows = json.loads((folder / "state.json").read_text())

    def save(self) -> None:
        body = ",\n".join("  " + json.dumps(r) for r in self.rows)
        (self.folder / "tune_softmax.json").write_text(f'{{"run": {json.dumps(self.run)},\n "rows": [\n{body}\n]}}\n')
        (self.folder / "state.json").write_text(json.dumps([self.done, self.bad, self.rows]))

    def try_variant(self, way, p, x, y, picks, dtype):
        """(function that launches, what is wrong with it): each variant's first launch, survived even if it breaks the GPU."""
        size = 16 if way.cluster == 16 else min(way.cluster, 2)
        family = " ".join([way.kernel, f"cluster {size}", *(o for o in way.options if o == "-DASYNC")])
        if family in self.bad:
            return None, "this family broke the GPU before"
        self.note(family)
        try:
            run = self.launcher(p, x, y)
            self.fill_nan(y, dtype)
            run()
            return run, self.wrong(y, picks, dtype)
        except Exception as error:
            why = f"{type(error).__name__}: {str(error)[:120]}"
            try:
                self.cp.cuda.Device().synchronize()
                self.cp.zeros(1).sum().get()
            except Exception:
                self.bad.append(family)
                print(f"BROKEN by {label(way, p)}: {why}", flush=True)
                self.save()
                os._exit(3)
            return None, why
        finally:
            self.note("")

    def note(self, family: str) -> None:
        """For the process that watches: what is launched now."""
        (self.folder / "now.json").write_text(json.dumps([family, time.time()]))

    # --- data: 16-bit numbers are kept as int16, so that nothing depends on bfloat16 in CuPy
    def encode(self, v, dtype):
        cp = self.cp
        v = v.astype(cp.float32)
        if dtype == "float32":
            return v
        if dtype == "float16":
            return v.astype(cp.float16).view(cp.int16)
        bits = v.view(cp.uint32)
        rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
        return cp.where(cp.isnan(v), cp.uint32(0x7FFF), rounded).astype(cp.uint16).view(cp.int16)

    def decode(self, a, dtype):
        cp = self.cp
        if dtype == "float16":
            a = a.view(cp.float16)
        elif dtype == "bfloat16":
            a = (a.view(cp.uint16).astype(cp.uint32) << 16).view(cp.float32)
        return a.astype(cp.float64)

    def data(self, M, N, dtype, offset=0):
        """(x, y, the rows to compare): x random, with special rows among them; rows begin `offset` elements off."""
        cp = self.cp
        rng = cp.random.default_rng(N)
        flat = self.encode(rng.standard_normal(M * N + offset, dtype=cp.float32) * 3, dtype)
        x = flat[offset:].reshape(M, N)
        y = cp.empty_like(flat)[offset:].reshape(M, N)
        picks = sorted({int(r) for r in np.r_[0:min(M, 3), max(0, M - 3):M, np.random.default_rng(1).integers(0, M, 20)]})
        big = {"float32": 1e30, "float16": 6e4, "bfloat16": 1e30}[dtype]
        special = [lambda r: r * 0 - np.inf, lambda r: self.put(r, [N // 2], np.nan), lambda r: self.put(r, [N - 1], np.inf),
                   lambda r: self.put(r, slice(0, N, 3), -np.inf), lambda r: r * 0 + 7.25, lambda r: cp.sort(r),
                   lambda r: self.put(r * 0 - np.inf, [N // 3], 1.5), lambda r: r * big, lambda r: r * 20,
                   lambda r: self.put(r * 0 - np.inf, [N - 1], np.nan)]
        self.nan_rows = 0
        if M >= 40:
            for r, make in zip(picks[1::2], special):
                x[r] = self.encode(make(self.decode(x[r], dtype)), dtype)
        picks = np.array(picks)
        self.expected = self.reference(self.decode(x[picks], dtype))
        self.nan_rows = int(cp.isnan(self.expected[:, 0]).sum())
        return x, y, picks

    def put(self, row, where, value):
        row = row.copy()
        row[where] = value
        return row

    def reference(self, v, log=False):
        cp = self.cp
        shifted = v - v.max(axis=-1, keepdims=True)
        d = cp.exp(shifted).sum(axis=-1, keepdims=True)
        return shifted - cp.log(d) if log else cp.exp(shifted) / d

    def fill_nan(self, y, dtype):
        y.fill(np.float32(np.nan) if dtype == "float32" else 0x7FFF)

    def wrong(self, y, picks, dtype, log=False, expected=None) -> str:
        """Empty if y is right, else what is wrong."""
        cp = self.cp
        expected = self.expected if expected is None else expected
        if dtype == "float16":
            expected = cp.where(expected < -65519, -np.inf, expected)
        got = self.decode(y[picks], dtype)
        if bool((cp.isnan(got) != cp.isnan(expected)).any()):
            return "NaN in the wrong places"
        error, size = cp.abs(got - expected), cp.abs(expected)
        if dtype == "float32":
            bad = (error > 1e-6 * (1 + log * size)) | ((size > 1e-30) & (error > 1e-5 * size + 1e-6 * log))
        else:
            digits, smallest = (10, 2.0**-24) if dtype == "float16" else (7, 2.0**-126)
            ulp = cp.maximum(2.0 ** (cp.floor(cp.log2(cp.maximum(size, 1e-300))) - digits), smallest)
            bad = error > 0.51 * ulp + 1e-6 * (size + log)
            # CuPy compiles every RawKernel with -ftz=true: a result that is subnormal in float32, as bf16 can hold it, becomes 0.
            bad &= (got != 0) | (size >= 1.2e-38)
        bad &= ~cp.isnan(expected) & (got != expected)
        if bool(bad.any()):
            r, c = (int(v[0]) for v in cp.nonzero(bad))
            return f"row {int(picks[r])}, column {c}: {float(got[r, c])!r} instead of {float(expected[r, c])!r}"
        nan = cp.isnan(y) if dtype == "float32" else ((y.view(cp.uint16) & 0x7FFF) > (0x7C00 if dtype == "float16" else 0x7F80))
        left = int(nan.sum()) - self.nan_rows * y.shape[1]
        return f"{left} elements unwritten" if left else ""

    # --- launching and timing
    def launcher(self, p, x, y):
        """A function without arguments that launches plan `p`."""
        cp = self.cp
        M, N = np.int32(x.shape[0]), np.int32(x.shape[1])
        kernels = p.compiled()
        grid, block = (p.grid,), (p.threads,)
        if p.kernel != "split":
            return lambda: kernels[0](grid, block, (x, y, M, N), shared_mem=p.shared_mem)
        states, parts = cp.empty(2 * p.grid, dtype=cp.float32), np.int32(p.parts)

        def both():
            kernels[0](grid, block, (x, states, parts, N))
            kernels[1](grid, block, (x, y, states, parts, N))
        return both

    def times(self, functions: list, repeats: int) -> list[np.ndarray]:
        """Microseconds of each call, the functions in turn, the L2 cache overwritten before each."""
        cp = self.cp
        events = [[(cp.cuda.Event(), cp.cuda.Event()) for _ in range(repeats)] for _ in functions]
        for i in range(repeats):
            for f, pairs in zip(functions, events):
                self.scratch.fill(1)
                pairs[i][0].record()
                f()
                pairs[i][1].record()
        cp.cuda.Device().synchronize()
        return [np.array([cp.cuda.get_elapsed_time(a, b) * 1e3 for a, b in pairs]) for pairs in events]

    def add(self, topic, name, peer, shape, dtype, us, nbytes, **more) -> dict:
        us = np.asarray(us)
        r = {"topic": topic, "name": name, "peer": peer, "shape": list(shape), "dtype": dtype, "us": round(float(np.median(us)), 3),
             "us_p10": round(float(np.percentile(us, 10)), 3), "us_p90": round(float(np.percentile(us, 90)), 3), "repeats": us.size,
             "tbs": round(nbytes / float(np.median(us)) / 1e6, 4), **more}
        self.rows.append(r)
        return r


def peers(x, dtype: str, everything: bool) -> dict:
    """What a user would pick instead, as functions without arguments."""
    from helpers.bench_softmax import peers as of_tensor

    found = of_tensor(torch_view(x, dtype), everything)
    return found if everything else {"torch": found["torch"]}


def torch_view(x, dtype):
    import torch

    t = torch.from_dlpack(x)
    return t if dtype == "float32" else t.view({"float16": torch.float16, "bfloat16": torch.bfloat16}[dtype])


# ---------------------------------------------------------------------------------------------------- parts


def rows_part(bench, compiler, args):
    """Many rows: every variant, then the best again beside the peers."""
    from helpers import fast

    def make(way, M, N, dtype, aligned):
        return way, fast.plan(way, M, N, dtype, aligned)

    def is_aligned(N, dtype):
        return N * (4 if dtype == "float32" else 2) % 16 == 0

    cases = [(N, d) for d in args.dtype for N in LENGTHS + (ODD if d != "float16" else ())]
    cases = [c for c in cases if (not args.n or c[0] in args.n) and ["rows", *c] not in bench.done]
    first, best_ways = {}, {}
    for N, dtype in cases:
        least = 1 if is_aligned(N, dtype) else (6 if dtype == "float32" else 14)
        if dtype != "float16" or "bfloat16" not in args.dtype:
            first[N, dtype] = different([make(w, ELEMENTS // N, N, dtype, is_aligned(N, dtype)) for w in variants(N, dtype, least)])
    compiler([p for plans in first.values() for _, p in plans])
    print(f"{len(compiler.done)} kernels compiled [{time.time() - T0:.0f}s]", flush=True)
    for N, dtype in cases:
        M, aligned = ELEMENTS // N, is_aligned(N, dtype)
        if (N, dtype) not in first:                                     # float16 gets what was best for bfloat16
            first[N, dtype] = [make(w, M, N, dtype, aligned) for w in best_ways.get(N) or variants(N, dtype)[:20]]
            compiler([p for _, p in first[N, dtype]])
        x, y, picks = bench.data(M, N, dtype)
        nbytes, found = 2 * x.nbytes, []

        def screen(pairs):
            for way, p in pairs:
                name, why = label(way, p), compiler.error(p)
                if not why:
                    run, why = bench.try_variant(way, p, x, y, picks, dtype)
                if why:
                    print(f"   {dtype} {N} {name}: {why}", flush=True)
                    bench.rows.append({"topic": "tune", "name": name, "peer": False, "shape": [M, N], "dtype": dtype, "us": None,
                                       "why": why})
                    continue
                r = bench.add("tune", name, False, (M, N), dtype, bench.times([run], 9)[0][2:], nbytes, registers=run_registers(p))
                found.append((r["us"], name, way, run))
            found.sort(key=lambda f: f[0])

        screen(first[N, dtype])
        second, seen = [], set()
        for us, name, way, _ in found[:12] if dtype != "float16" else ():
            if way.kernel in seen or len(seen) == 3:
                continue
            seen.add(way.kernel)
            for rows in ahead(way, N, dtype):
                options = (*way.options, f"-DAHEAD={rows}")
                second.append(make(fast.Way(**(vars(way) | {"options": options})), M, N, dtype, aligned))
        compiler([p for _, p in second])
        screen(second)
        best = found[:6]
        best_ways[N] = [way for _, _, way, _ in best]
        functions = {"copy": lambda: bench.cp.copyto(y, x)} | peers(x, dtype, args.peers and dtype != "float16" and N in LENGTHS)
        functions |= {name: run for _, name, _, run in best}
        for name in list(functions):
            try:
                functions[name]()
            except Exception as error:
                print(f"   {dtype} {N} {name}: {type(error).__name__} {str(error)[:80]}")
                del functions[name]
        final = bench.times(list(functions.values()), 30)
        final = {name: bench.add("final", name, name in ("copy", "torch", "triton", "compile", "quack"), (M, N), dtype, us[2:], nbytes)
                 for name, us in zip(functions, final)}
        copy = final["copy"]["tbs"]
        mine = sorted((r["us"], n) for n, r in final.items() if not r["peer"])
        theirs = {n: r["tbs"] for n, r in final.items() if r["peer"]}
        print(f"{dtype:8s} N={N:6d}{'' if aligned else '*'} " + " ".join(f"{n} {t:.3f}" for n, t in theirs.items()) + " | "
              + " | ".join(f"{n} {final[n]['tbs']:.3f} ({final[n]['tbs'] / copy:.3f})" for _, n in mine[:4])
              + f"  [{time.time() - T0:.0f}s]", flush=True)
        bench.done.append(["rows", N, dtype])
        bench.save()


def run_registers(p) -> int | None:
    try:
        return max(int(k.num_regs) for k in p.compiled())
    except Exception:
        return None


def few_part(bench, compiler, args):
    """Few rows: a CUDA graph of 20 calls, warm L2 cache."""
    from helpers import fast
    from helpers.bench_softmax import graph_times, torch_graph_times
    from helpers.bench_softmax import peers as of_tensor

    cases = [(M, N, d) for d in args.dtype if d != "float16" for M, N in FEW if not args.n or N in args.n]
    cases = [c for c in cases if ["few", *c] not in bench.done]
    plans = {c: different([(w, fast.plan(w, c[0], c[1], c[2], True)) for w in variants(c[1], c[2], few=True)]) for c in cases}
    compiler([p for pairs in plans.values() for _, p in pairs])
    print(f"few rows: {len(compiler.done)} kernels compiled [{time.time() - T0:.0f}s]", flush=True)
    for M, N, dtype in cases:
        x, y, picks = bench.data(M, N, dtype)
        nbytes, found = 2 * x.nbytes, []
        for way, p in plans[M, N, dtype]:
            name, why = label(way, p), compiler.error(p)
            if not why:
                run, why = bench.try_variant(way, p, x, y, picks, dtype)
            try:
                if not why:
                    r = bench.add("few", name, False, (M, N), dtype, graph_times(run), nbytes)
                    found.append((r["us"], name))
            except Exception as error:
                why = f"{type(error).__name__}: {str(error)[:120]}"
            if why:
                print(f"   {dtype} {M}x{N} {name}: {why}", flush=True)
        found.sort()
        theirs = []
        for name, f in of_tensor(torch_view(x, dtype), False).items():
            try:
                r = bench.add("few", name, True, (M, N), dtype, torch_graph_times(f), nbytes)
                theirs.append(f"{name} {r['us']:.2f}")
            except Exception as error:
                theirs.append(f"{name} {type(error).__name__}")
        print(f"{dtype:8s} {M:4d} x {N:6d} graph us: " + " ".join(theirs) + " | " + " | ".join(f"{n} {u:.2f}" for u, n in found[:5])
              + f"  [{time.time() - T0:.0f}s]", flush=True)
        bench.done.append(["few", M, N, dtype])
        bench.save()


def host_part(bench, compiler, args):
    """What a call costs the host: many calls on one small row, by the clock on the wall."""
    import torch

    from helpers import fast
    from helpers.bench_softmax import quack_softmax

    cp = bench.cp
    x = cp.random.default_rng(0).standard_normal((1, 4096), dtype=cp.float32)
    y, t = cp.empty_like(x), torch.from_dlpack(x)
    p = fast.plan(fast.way(1, 4096, "float32"), 1, 4096, "float32", True)
    raw, function, args_ = p.compiled()[0], p.compiled()[0].kernel, (x, y, np.int32(1), np.int32(4096))
    grid, block = (p.grid,), (p.threads,)
    candidates = {
        "softmax(x)": lambda: fast.softmax(x), "softmax(x, out=y)": lambda: fast.softmax(x, out=y),
        "softmax(x, out=x)": lambda: fast.softmax(x, out=x), "RawKernel": lambda: raw(grid, block, args_, shared_mem=0),
        "Function": lambda: function(grid, block, args_), "cp.empty": lambda: cp.empty(x.shape, dtype=x.dtype),
        "cp.ndarray": lambda: cp.ndarray(x.shape, x.dtype), "torch.softmax": lambda: torch.softmax(t, -1),
        "torch.softmax out": lambda: torch.softmax(t, -1, out=t),
    }
    if quack_softmax():
        candidates["quack"] = lambda: quack_softmax()(t)
    for name, f in candidates.items():
        best = []
        for _ in range(7):
            f()
            cp.cuda.Device().synchronize()
            start = time.perf_counter()
            for _ in range(500):
                f()
            best.append((time.perf_counter() - start) / 500 * 1e6)
            cp.cuda.Device().synchronize()
        r = bench.add("host", name, "torch" in name or name == "quack", (1, 4096), "float32", best, 0)
        print(f"host us a call: {name:20s} {r['us']:.2f} ({r['us_p10']:.2f} to {r['us_p90']:.2f})", flush=True)


def call_part(bench, compiler, args):
    """helpers.fast.softmax: every length, unaligned, log and in place, against float64 and against the copy."""
    from helpers import fast

    cp = bench.cp
    cases = [(d, N, offset) for d in args.dtype
             for N, offset in [*((N, 0) for N in LENGTHS + ODD), *((N, 1) for N in (256, 4096, 32768, 262144))]
             if (not args.n or N in args.n) and ["call", d, N, offset] not in bench.done]
    plans = []
    for d, N, offset in cases:
        M, aligned = ELEMENTS // N, offset == 0 and N * (4 if d == "float32" else 2) % 16 == 0
        plans += [fast.plan(fast.way(M, N, d), M, N, d, aligned, log) for log in (False, True)]
    compiler(plans)
    for dtype, N, offset in cases:
        M = ELEMENTS // N
        x, y, picks = bench.data(M, N, dtype, offset)
        view = (lambda a: a) if dtype == "float32" else (lambda a: a.view(cp.float16 if dtype == "float16" else bfloat16()))
        back = (lambda a: a) if dtype == "float32" else (lambda a: a.view(cp.int16))
        nbytes, out = 2 * x.nbytes, []
        try:
            X, Y = view(x), view(y)
            wrong = {"softmax": bench.wrong(back(fast.softmax(X)), picks, dtype)}
            log_expected = bench.reference(bench.decode(x[picks], dtype), log=True)
            wrong["log"] = bench.wrong(back(fast.softmax(X, log=True)), picks, dtype, log=True, expected=log_expected)
            cp.copyto(y, x)
            wrong["in place"] = bench.wrong(back(fast.softmax(Y, out=Y)), picks, dtype)
            out += [f"WRONG {name}: {why}" for name, why in wrong.items() if why]
            functions = {"copy": lambda: cp.copyto(y, x), "softmax": lambda: fast.softmax(X), "log": lambda: fast.softmax(X, log=True),
                         "in place": lambda: fast.softmax(Y, out=Y)}
            us = dict(zip(functions, bench.times(list(functions.values()), 20)))
            for name in us:
                r = bench.add("call", name, name == "copy", (M, N), dtype, us[name][2:], nbytes, offset=offset)
                out.append(f"{name} {r['tbs']:.3f}")
        except Exception as error:
            out.append(f"{type(error).__name__}: {str(error)[:200]}")
        kernel = fast.way(M, N, dtype).kernel
        print(f"call {dtype:8s} N={N:6d}+{offset} {kernel:8s} " + " ".join(out) + f"  [{time.time() - T0:.0f}s]", flush=True)
        bench.done.append(["call", dtype, N, offset])
        bench.save()


def bfloat16():
    import ml_dtypes
    return np.dtype(ml_dtypes.bfloat16)


# ------------------------------------------------------------------------------------------------ registers


def registers_part(args):
    """Registers and spills of all variants, compiled for sm_90a with NVRTC; needs no GPU."""
    import re

    import nvidia
    from cuda.bindings import nvrtc

    from helpers import fast
    from helpers.snippets import load

    include = [f"-I{path}" for root in nvidia.__path__ for path in Path(root).glob("*/include")]

    def compile_for(source, arch, options):
        _, program = nvrtc.nvrtcCreateProgram(source.encode(), b"snippet.cu", 0, [], [])
        flags = ["-std=c++17", f"-arch={arch}", "--ptxas-options=-v", *options, *include]
        (result,) = nvrtc.nvrtcCompileProgram(program, len(flags), [flag.encode() for flag in flags])
        log = bytearray(nvrtc.nvrtcGetProgramLogSize(program)[1])
        nvrtc.nvrtcGetProgramLog(program, log)
        nvrtc.nvrtcDestroyProgram(program)
        assert result == nvrtc.nvrtcResult.NVRTC_SUCCESS, (options, log.decode())
        return log.decode()

    seen, spilled, out = {}, 0, []
    jobs = [(N, d, N in LENGTHS) for d in ("float32", "bfloat16") for N in LENGTHS + ODD]
    for N, dtype, aligned in jobs:
        width = 4 if dtype == "float32" else 8
        for w in variants(N, dtype, 1 if aligned else 2 * width - 2) + variants(N, dtype, few=True):
            p = fast.plan(w, 1024, N, dtype, aligned)
            key = p.kernel, p.macros, p.options
            if key in seen:
                continue
            log = compile_for(load(f"fast/{p.kernel}.cu"), args.arch, [*p.macros, *p.options])
            used = max(map(int, re.findall(r"Used (\d+) registers", log)))
            stack = max(int(a) + int(b) for a, b in re.findall(r"(\d+) bytes stack frame, (\d+) bytes spill stores", log))
            seen[key] = used, stack
            spilled += stack > 0
            too_many = used * p.threads > 65536
            out.append({"kernel": p.kernel, "macros": p.macros, "options": p.options, "registers": used, "spilled": stack})
            if stack or too_many:
                print(f"{dtype:8s} {N:6d} {label(w, p)}{' unaligned' * (not aligned)}: {used} registers, {stack} bytes spilled", flush=True)
    print(f"{len(seen)} kernels, {spilled} with spills [{time.time() - T0:.0f}s]")
    if args.out:
        Path(args.out).mkdir(parents=True, exist_ok=True)
        (Path(args.out) / "registers.json").write_text(json.dumps(out))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default=os.environ.get("OUT", "."))
    parser.add_argument("--only", default="host,rows,few,call")
    parser.add_argument("--dtype", default="float32,bfloat16,float16")
    parser.add_argument("--n", default="")
    parser.add_argument("--peers", action="store_true", help="also torch.compile, Triton and QuACK (where it is installed)")
    parser.add_argument("--processes", type=int, default=min(16, os.cpu_count() or 1))
    parser.add_argument("--registers", action="store_true")
    parser.add_argument("--arch", default="sm_90a")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.dtype = args.dtype.split(",")
    args.n = tuple(map(int, args.n.split(","))) if args.n else ()
    if args.registers:
        return registers_part(args)
    if not args.child:
        sys.exit(watch(Path(args.out)))
    from helpers.bench import provenance
    from helpers.device import on_gpu

    if not on_gpu:
        sys.exit("this needs a GPU; without one: --registers")
    bench, compiler = Bench(Path(args.out)), Compiler(args.processes)
    bench.run = provenance() | {"command": " ".join(sys.argv)}
    parts = {"rows": rows_part, "few": few_part, "host": host_part, "call": call_part}
    for part in args.only.split(","):
        if [part] in bench.done:
            continue
        try:
            parts[part](bench, compiler, args)
        except Exception:
            import traceback

            traceback.print_exc()
        bench.done.append([part])
        bench.save()
    print(f"{len(bench.rows)} rows in {args.out}/tune_softmax.json [{time.time() - T0:.0f}s]")
    sys.stdout.flush()
    os._exit(0)                                                          # the compiling processes need no farewell


def watch(folder: Path) -> int:
    """Run this script in a process of its own; if a variant breaks the GPU or hangs, go on without its family."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("state.json", "now.json"):
        (folder / name).unlink(missing_ok=True)
    for _ in range(8):
        child = subprocess.Popen([sys.executable, *sys.argv, "--child"])
        while child.poll() is None:
            time.sleep(0.3)
            try:
                family, since = json.loads((folder / "now.json").read_text())
            except (OSError, ValueError):
                continue
            if family and time.time() - since > 12:
                child.kill()
                child.wait()
                print(f"HANGS: {family}", flush=True)
                done, bad, rows = json.loads((folder / "state.json").read_text()) if (folder / "state.json").exists() else ([], [], [])
                (folder / "state.json").write_text(json.dumps([done, [*bad, family], rows]))
                (folder / "now.json").unlink()
        if child.returncode not in (3, -9):
            break
    for name in ("state.json", "now.json"):
        (folder / name).unlink(missing_ok=True)
    return child.returncode


if __name__ == "__main__":
    main()
