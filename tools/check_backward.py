"""Check the backward kernels on a GPU against torch in float64, then time them: under a minute, no record is written.

    python tools/check_backward.py                  # check, then a table: bandwidth as a share of a plain add, read or copy
    python tools/check_backward.py --tune           # every way to keep rows on the chip, for the table helpers.gradients.WAYS
    python tools/check_backward.py --peers          # with torch and QuACK beside
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import torch  # noqa: E402

from helpers import gradients as g  # noqa: E402
from helpers.bench.backward import COLUMNS, ELEMENTS, contenders  # noqa: E402
from helpers.device import cp, device_sentence, on_gpu  # noqa: E402
from helpers.measure import time_us  # noqa: E402

T0 = time.time()
SIZES = {"float32": (1, 7, 128, 1000, 4096, 8191, 16_384, 32_001, 65_536, 128_256, 131_072, 262_144, 300_001),
         "bfloat16": (3, 256, 1000, 8192, 16_385, 65_536, 128_256, 131_072, 262_144, 300_001), "float16": (1000, 8192, 131_072)}
AGAINST = {"softmax_backward": "add", "softmax_backward_from_x": "add", "log_softmax_backward": "add", "cross_entropy": "read",
           "cross_entropy_backward": "copy"}


# ------------------------------------------------------------------------------------------------------- right?


def check() -> int:
    """Every kernel at sizes that reach every way of keeping rows; the number of failures."""
    failures = 0
    for dtype, sizes in SIZES.items():
        for N in sizes:
            bad = [name for name, error in errors(dtype, N, M=37).items() if not error <= 1]
            failures += len(bad)
            print(f"{dtype:9} N = {N:7,}: {'FAILED: ' + ', '.join(bad) if bad else 'right'}   [{time.time() - T0:.0f} s]", flush=True)
    return failures


def errors(dtype: str, N: int, M: int, device: str = "cuda") -> dict[str, float]:
    """The largest error of each kernel, in units of what is allowed; NaN where a NaN is missing or should not be there."""
    kind = getattr(torch, dtype)
    torch.manual_seed(N)
    x, dy = (torch.randn(M, N, device=device) * 3).to(kind), torch.randn(M, N, device=device).to(kind)
    if N > 2:
        x[1, ::2], x[2], x[3, N // 2], x[4, 1], x[5, -1] = -torch.inf, -torch.inf, torch.nan, torch.inf, 60
    t = torch.randint(N, (M,), device=device)
    t[6], t[7], t[8] = -100, N - 1, 0
    X, DY, scale = x.double(), dy.double(), torch.randn(M, device=device)
    y, log_y = torch.softmax(X, -1), torch.log_softmax(X, -1)
    dead = torch.isneginf(X).all(-1, keepdim=True)
    onehot = torch.zeros_like(X).scatter_(-1, t.clamp(min=0)[:, None], 1)
    kept, taken = (t != -100)[:, None], -log_y.gather(-1, t.clamp(min=0)[:, None])
    largest = X.abs().nan_to_num(0, 0, 0).amax(-1, keepdim=True)

    ax, ady, at, ascale = (g._array(v) for v in (x, dy, t, scale))
    ay, states = g.softmax_forward(ax)
    al, _ = g.softmax_forward(ax, log=True)
    loss, states2 = g.cross_entropy_forward(ax, at)
    ty, tl = g._tensor(ay, x).double(), g._tensor(al, x).double()
    p, s = torch.where(dead, 0, y), scale.double()[:, None]
    truth = {
        "softmax_forward": (ay, y, y),
        "log_softmax_forward": (al, log_y, log_y.abs()),
        "softmax_backward": (g.softmax_backward(ay, ady), *rule(ty, DY)),
        "softmax_backward_from_x": (g.softmax_backward_from_x(ax, states, ady), *rule(p, DY)),
        "log_softmax_backward": (g.log_softmax_backward(al, ady), *rule(tl.exp(), DY, log=True)),
        "log_softmax_backward_from_x": (g.log_softmax_backward_from_x(ax, states2, ady),
                                        *(torch.where(dead, 0, v) for v in rule(p, DY, log=True))),
        "cross_entropy": (loss, torch.where(kept, taken, 0)[:, 0], taken.abs()[:, 0] + largest[:, 0]),
        "cross_entropy_backward": (g.cross_entropy_backward(ax, states2, at, ascale), torch.where(kept & ~dead, (p - onehot) * s, 0),
                                   torch.where(kept, (p + onehot) * s.abs(), 0)),
    }
    return {name: worst(g._tensor(got, x), want, size) for name, (got, want, size) in truth.items()}


def rule(p, dy, log: bool = False):
    """(dx, the size of the terms that it is a difference of) in float64."""
    if log:
        return dy - p * dy.sum(-1, keepdim=True), dy.abs() + p * dy.abs().sum(-1, keepdim=True)
    return p * (dy - (p * dy).sum(-1, keepdim=True)), p * (dy.abs() + (p * dy).abs().sum(-1, keepdim=True))


def worst(got, want, size) -> float:
    """The largest error in units of 1e-5 of the terms, plus one rounding of a 16-bit result."""
    rounding = {torch.float16: 2**-11, torch.bfloat16: 2**-8}.get(got.dtype, 0)
    tiny = {torch.float16: 2**-25}.get(got.dtype, 1e-36)
    got = got.double()
    special = ~torch.isfinite(want)
    if not torch.equal(got[special].nan_to_num(7, 8, 9), want[special].nan_to_num(7, 8, 9)) or not torch.isfinite(got[~special]).all():
        return float("nan")
    ratio = (got - want).abs()[~special] / (1e-5 * size + rounding * want.abs() + tiny)[~special]
    return ratio.max().item() if ratio.numel() else 0.0


# -------------------------------------------------------------------------------------------------------- fast?


def timings(columns, peers: bool) -> None:
    """Bandwidth of each kernel as a share of what a plain add, read or copy reaches; the plain ones in TB/s."""
    for dtype in ELEMENTS:
        names: list[str] = []
        for N in columns:
            us = {}
            for name, _, nbytes, function in contenders(ELEMENTS[dtype] // N, N, dtype, peers):
                us[name] = time_us(function, repeats=12, warmup=2).us / nbytes
            if list(us) != names:
                names = list(us)
                print(dtype, "TB/s or share:", *(f"{i}={name}" for i, name in enumerate(names)))
            plain = {base: us[base] for base in ("add", "copy", "read")}
            shares = [plain.get(AGAINST.get(name.removeprefix("torch_").removeprefix("quack_"))) for name in names]
            cells = [f"{1e-6 / v:5.2f}" if base is None else f"{base / v:5.2f}" for v, base in zip(us.values(), shares)]
            print(f"N={N:7}", *cells, f"[{time.time() - T0:.0f} s]", flush=True)


def tune(columns, entries) -> None:
    """Every way for softmax backward, and threads and loads for cross-entropy: share of add, read or copy, best first."""
    for dtype in ELEMENTS:
        for N in columns:
            M = ELEMENTS[dtype] // N
            calls = {name: (nbytes, function) for name, _, nbytes, function in contenders(M, N, dtype, peers=False)}
            plain = {name: time_us(calls[name][1], repeats=12, warmup=2).us / calls[name][0] for name in ("add", "read", "copy")}
            for entry in entries:
                nbytes, chosen = calls[entry]
                arrays = [a for a in chosen.args if isinstance(a, cp.ndarray)]
                found = []
                for label, plan in variants(entry, M, N, dtype):
                    try:
                        launch = g.prepare(entry, *arrays, plan=plan)
                        us = time_us(launch, repeats=9, warmup=2).us
                        found.append((plain[AGAINST[entry]] * nbytes / us, label, launch.kernel.num_regs, launch.kernel.local_size_bytes))
                    except Exception as error:  # noqa: BLE001  one way that cannot run must not stop the others
                        found.append((0.0, f"{label}: {type(error).__name__} {str(error)[:60]}", 0, 0))
                best = "  ".join(f"{share:.3f} {label} r{regs}" + f" spill {local}" * (local > 0)
                                 for share, label, regs, local in sorted(found, reverse=True)[:5])
                print(f"{dtype} N={N} {entry}: {best}  [{time.time() - T0:.0f} s]", flush=True)


def variants(entry: str, M: int, N: int, dtype: str):
    if entry.startswith("cross_entropy"):
        for threads in (128, 256, 512, 1024):
            for loads in (2, 4):
                yield f"{threads}x{loads}", g.plan_cross_entropy(M, N, dtype, entry.endswith("backward"), threads, loads)
        return
    pieces = N * (4 if dtype == "float32" else 2) // 16
    for parked, vectors in ((False, 2), (False, 4), (True, 4), (True, 8)):
        for cluster in (1, 2, 4, 8):
            threads = -(-pieces // (vectors * cluster))
            if threads <= 1024 and (cluster == 1 or threads >= 256):
                plan = g.plan_backward(M, N, dtype, clusters=True, way=g.Way(N, vectors, cluster, parked))
                yield f"v{vectors} c{cluster}{' parked' * parked} t{plan.threads}", plan


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tune", action="store_true")
    parser.add_argument("--peers", action="store_true")
    parser.add_argument("--no-check", action="store_true")
    parser.add_argument("--n", type=lambda text: [int(n) for n in text.split(",")], default=list(COLUMNS))
    parser.add_argument("--entries", type=lambda text: text.split(","),
                        default=["softmax_backward", "cross_entropy", "cross_entropy_backward"])
    options = parser.parse_args()
    if not on_gpu:
        sys.exit(f"This checks a GPU. {device_sentence}")
    print(device_sentence)
    failures = 0 if options.no_check else check()
    if options.tune:
        tune(options.n, options.entries)
    else:
        timings(options.n, options.peers)
    print("all right" if not failures else f"{failures} FAILURES", f"[{time.time() - T0:.0f} s]")
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
