"""Plots of tensor cores in notebook 13: what they say about lanes and banks is what the kernels do; each draws and has alt text."""

import ml_dtypes
import numpy as np
import pytest

from helpers.device import cp
from helpers.figures import tensor_cores
from helpers.measure import record
from helpers.snippets import load

BF16 = np.dtype(ml_dtypes.bfloat16)
PRODUCT = """
extern "C" __global__ void product(const unsigned* a, const unsigned* b, float* c) {
    unsigned A[4];
    float C[4] = {};
    for (int i = 0; i < 4; ++i) A[i] = a[4 * threadIdx.x + i];
    mma(C, A, b[2 * threadIdx.x], b[2 * threadIdx.x + 1]);
    for (int i = 0; i < 4; ++i) c[4 * threadIdx.x + i] = C[i];
}"""
PLACES = """
extern "C" __global__ void places(uint4* memory, int* place) {
    Tile* const tile = (Tile*)memory;
    for (int n = threadIdx.x; n < 16 * PIECES; n += blockDim.x)
        place[n] = (int)(tile->at(n / PIECES, n % PIECES) - tile->piece[n / PIECES]);
}"""


def test_an_mma_of_fragments_spread_as_drawn_is_the_product():
    rng = np.random.default_rng(0)
    A, B = (rng.standard_normal(shape).astype(BF16) for shape in ((16, 16), (16, 8)))
    a, b = np.zeros((32, 4, 2), BF16), np.zeros((32, 2, 2), BF16)
    for (row, column), value in np.ndenumerate(A):
        lane, register = tensor_cores.holder_of_a(row, column)
        a[lane, register, column % 2] = value
    for (row, column), value in np.ndenumerate(B):
        lane, register = tensor_cores.holder_of_b(row, column)
        b[lane, register, row % 2] = value
    c = cp.full((32, 4), np.float32(np.nan))
    kernel = cp.RawKernel(load("attention/mma.h") + PRODUCT, "product", ("-std=c++17",))
    kernel((1,), (32,), (cp.asarray(a.view(np.uint32)), cp.asarray(b.view(np.uint32)), c))
    rows, columns = np.indices((16, 8))
    got = c.get()[tensor_cores.holder_of_c(rows, columns)]
    np.testing.assert_allclose(got, A.astype(np.float64) @ B.astype(np.float64), rtol=0, atol=1e-5)


@pytest.mark.parametrize("holder, shape, registers", [(tensor_cores.holder_of_a, (16, 16), 8), (tensor_cores.holder_of_b, (16, 8), 4),
                                                      (tensor_cores.holder_of_c, (16, 8), 4)])
def test_every_lane_holds_its_share(holder, shape, registers):
    lanes, _ = holder(*np.indices(shape))
    assert (np.bincount(lanes.ravel(), minlength=32) == registers).all()


@pytest.mark.parametrize("D", [32, 64, 128])
def test_pieces_lie_where_the_kernels_put_them(D):
    pieces = D // 8
    place = cp.full((16, pieces), np.int32(-1))
    memory = cp.zeros((64 * max(pieces, 4), 4), np.uint32)
    cp.RawKernel(load("attention/tile.h") + PLACES, "places", ("-std=c++17", f"-DD={D}"))((1,), (32,), (memory, place))
    drawn = [[tensor_cores.piece_at(row, piece, D) for piece in range(pieces)] for row in range(16)]
    assert np.array_equal(place.get(), drawn)


@pytest.mark.parametrize("D", [64, 128])
def test_a_swizzled_matrix_meets_every_bank_once(D):
    line = 2 * D // 16
    for piece in range(D // 8):
        banks = {(row * line + tensor_cores.piece_at(row, piece, D)) % 8 for row in range(8)}
        assert banks == set(range(8))


def test_waits_of_a_profiled_row():
    reasons = [reason for names, _ in tensor_cores.WAITS.values() for reason in names]
    row = {"instructions": 600, "tensor_instructions": 100} | {f"stalled_{reason}_ratio": 0.5 for reason in reasons}
    waited = tensor_cores.waits(row)
    assert waited["shared memory"] == pytest.approx(6.0) and waited["a barrier"] == pytest.approx(3.0)
    with pytest.raises(KeyError):
        tensor_cores.waits({"instructions": 1, "tensor_instructions": 1})


def test_every_figure_draws_and_has_alt_text(monkeypatch):
    shown = []
    monkeypatch.setattr(tensor_cores, "show", lambda fig, alt: shown.append(alt))
    tensor_cores.fragments()
    tensor_cores.banks()
    tensor_cores.timeline()
    tensor_cores.stalls(record("attention-ncu"))
    tensor_cores.speed(record("attention"))
    assert len(shown) == 5 and all(len(alt) > 150 for alt in shown)


# ------------------------------------------------------------------------------------------ what notebook 13 says of the record


def recorded(name, D, causal, S=4096, B=4):
    found = [r["us"] for r in record("attention").rows if r["name"] == name and r["shape"] == [B, 16, S, S, D, causal] and r["us"]]
    assert len(found) == 1
    return found[0]


@pytest.mark.parametrize("D", [64, 128])
@pytest.mark.parametrize("causal", [False, True])
def test_sentences_about_speed(D, causal):
    times = [recorded(name, D, causal) for name in (*tensor_cores.LADDER, "sdpa_flash", "sdpa_cudnn", "sdpa_math")]
    steps, (flash, cudnn, stored) = times[:5], times[5:]
    gains = [a / b for a, b in zip(steps, steps[1:], strict=False)]
    assert min(gains) > 1.1 and max(gains) == gains[0]                   # each step gains, the swizzle most
    assert flash / steps[-1] > 0.97 and cudnn < 0.8 * steps[-1]          # ahead of FlashAttention-2 or level; behind cuDNN
    assert stored > 10 * steps[-1]                                       # "many times over"


def test_cudnn_is_above_what_mma_sync_can_reach():
    ceilings = []
    for step in tensor_cores.LADDER:
        row = record("attention-ncu").find(name=step, shape=(64, 4096, 4096, 128, False))
        tflops = 4 * 64 * 4096**2 * 128 / row["time_ns"] / 1e3
        ceilings.append(tflops / row["tensor_active_percent"] * 100)
        assert ceilings[-1] / (132 * 4096 * row["cycles"] / row["time_ns"] / 1e3) == pytest.approx(2 / 3, abs=0.02)
    assert max(ceilings) / min(ceilings) < 1.02
    assert record("attention").find(name="sdpa_cudnn", shape=(4, 16, 4096, 4096, 128, False))["tflops"] > max(ceilings)


def test_the_profile_counts_the_mma_that_the_notebook_expects():
    for D in (64, 128):
        for step in tensor_cores.LADDER:
            row = record("attention-ncu").find(name=step, shape=(64, 4096, 4096, D, False))
            assert row["tensor_instructions"] == 4 * 64 * 4096**2 * D // 4096
