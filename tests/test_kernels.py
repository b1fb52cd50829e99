"""Every kernel of the ladder against float64: the numerical contract, adversarial rows, awkward sizes, refused input.

Runs on whichever device `cp` is.  Outputs are prefilled with NaN, and `reference.agrees` never lets a NaN pass.
"""

from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from helpers import cpu_device, ladder, reference, snippets
from helpers.attention import attention
from helpers.device import cp, on_gpu
from helpers.ladder import STEPS
from helpers.measure import count

NAN, INF = np.nan, np.inf
BIG = float(np.finfo(np.float32).max)
SOFTMAX = [key for key in STEPS if not key.startswith("attention")]
BY_THREAD = ["safe_v0", "online_v0"]                        # a thread a row: blocks of any size
BY_SHUFFLE = [key for key in SOFTMAX if key not in (*BY_THREAD, "safe_v1")]     # blocks of 32, 64, ... threads
BY_VECTOR = ["safe_v3", "safe_v4", "online_v2", "online_v3", "online_v4"]
ATTENTION = [key for key in STEPS if key.startswith("attention") and STEPS[key].dtypes == ("float32",)]
every_softmax = pytest.mark.parametrize("step", SOFTMAX)
every_attention = pytest.mark.parametrize("step", ATTENTION)


def rng(*seed):
    return np.random.default_rng(seed)


def run(step: str, x: np.ndarray, block: int | None = None, grid: int | None = None, starts: tuple[int, int] = (0, 0)) -> np.ndarray:
    """Launch a softmax step on rows `x`, with x and y that start `starts` floats behind a multiple of 256 bytes.

    The output is prefilled with NaN; nothing around it may be written, and what lies around the input is NaN too.
    """
    x = np.ascontiguousarray(x, dtype=np.float32)
    M, N = x.shape
    around_x, y = (cp.asarray(np.full(start + M * N + 64, NAN, np.float32)) for start in starts)
    around_x[starts[0]:starts[0] + M * N] = cp.asarray(x.ravel())
    launch = STEPS[step].launch(M, N)
    blocks, threads = launch.grid, (block,) if block else launch.block
    if block and step in BY_THREAD:
        blocks = (-(-M // block),)
    kernel = ladder.kernel(STEPS[step].file, STEPS[step].entry, STEPS[step].options(N))
    kernel((grid,) if grid else blocks, threads, (around_x[starts[0]:], y[starts[1]:], np.int32(M), np.int32(N)),
           shared_mem=launch.shared_mem)
    y = cp.asnumpy(y)
    inside = slice(starts[1], starts[1] + M * N)
    assert np.isnan(np.delete(y, inside)).all(), "wrote around y"
    return y[inside].reshape(M, N)


def tolerance(step: str, x: np.ndarray) -> float:
    """1e-5, or more where the step states it: a longer chain of roundings than 2^24 * 1e-5 = 168."""
    return max(1e-5, STEPS[step].chain(x.shape[1]) / 2**24)


def assert_right(step: str, x: np.ndarray, rtol: float = 1e-5, **how) -> None:
    got, expected = run(step, x, **how), reference.softmax(np.asarray(x, np.float32))
    assert reference.agrees(got, expected, rtol=rtol), f"{step} at shape {x.shape}, {how}"


# ---------------------------------------------------------------------------------------------- softmax


@every_softmax
def test_every_n_from_1_to_130(step):
    for N in range(1, 131):
        assert_right(step, 3 * rng(1, N).normal(size=(3, N)))


@every_softmax
@pytest.mark.parametrize("N", [255, 256, 257, 511, 513, 1023, 1024, 1025, 2049, 8192, 8193])
def test_n_around_block_sizes(step, N):
    assert_right(step, 5 * rng(2, N).normal(size=(2, N)))


@every_softmax
@pytest.mark.parametrize("M", [1, 2, 3, 255, 256, 257, 600])
def test_m_around_block_sizes(step, M):
    assert_right(step, rng(3, M).normal(size=(M, 5)))


@pytest.mark.parametrize("block", [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024])
def test_v1_at_every_block_size(block):
    assert_right("safe_v1", 4 * rng(4, block).normal(size=(2, 300)), block=block)


@pytest.mark.parametrize("step", BY_THREAD)
@pytest.mark.parametrize("block", [1, 33, 1024])
def test_v0_at_any_block_size(step, block):
    assert_right(step, rng(5, block).normal(size=(70, 4)), block=block)


@pytest.mark.parametrize("step", BY_SHUFFLE)
@pytest.mark.parametrize("block", [32, 64, 96, 256, 992, 1024])
def test_shuffles_at_every_block_size(step, block):
    assert_right(step, 4 * rng(23, block).normal(size=(3, 301)), block=block)


@pytest.mark.parametrize("grid", [1, 2, 3, 6, 7, 8, 30])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_grid_stride_at_any_grid(grid, seed):
    with cpu_device.settings(seed=seed):        # adverse orders of warps: rows share memory between barriers
        assert_right("online_v4", rng(24, grid).normal(size=(7, 1001)), grid=grid)


@every_softmax
def test_more_rows_than_grid_y_could_hold(step):
    block = 32 if step in BY_SHUFFLE else 2
    with cpu_device.settings(checked=False):
        assert_right(step, rng(6).normal(size=(66_000, 2)), block=block)
        assert_right(step, rng(6).normal(size=(65_536, 1)), block=block)


@pytest.mark.parametrize("step", BY_VECTOR)
@pytest.mark.parametrize("x_start", range(4))
@pytest.mark.parametrize("y_start", range(4))
def test_any_start_of_a_row(step, x_start, y_start):
    for N in (1, 2, 3, 4, 5, 8, 31, 64, 130, 515):
        assert_right(step, 2 * rng(25, N).normal(size=(5, N)), starts=(x_start, y_start))


@pytest.mark.parametrize("step", BY_VECTOR)
@pytest.mark.parametrize("around", [512, 1024, 4096, 16384, 32768])     # where threads or elements a thread change
def test_n_around_vectors_and_registers(step, around):
    for N in range(around - 1, around + 2) if around < 4096 else (around - 3, around, around + 1):
        if N <= STEPS[step].max_n:
            assert_right(step, 5 * rng(26, N).normal(size=(2, N)), starts=(N % 4, N % 4))
            assert_right(step, 5 * rng(27, N).normal(size=(1, N)), starts=(3, 0))


def test_registers_hold_every_row_up_to_the_limit():
    step = STEPS["online_v3"]
    for N in range(1, step.max_n + 1):
        (threads,), (option,) = step.launch(1, N).block, step.options(N)
        assert threads <= 1024 and threads * int(option.removeprefix("-DPER_THREAD=")) >= N


@pytest.mark.gpu
@pytest.mark.skipif(not on_gpu, reason="needs 18 GB of GPU memory")
@every_softmax
def test_more_elements_than_an_int_can_count(step):
    N = 1025
    M = 2**31 // N + 300
    if cp.cuda.Device().mem_info[0] < 18e9:
        pytest.skip("needs 18 GB of GPU memory")
    x = cp.zeros((M, N), dtype=np.float32)
    last = rng(22).normal(size=(1, N)).astype(np.float32)
    x[-1] = cp.asarray(last[0])
    y = ladder.softmax(x, step)
    assert reference.agrees(cp.asnumpy(y[-1:]), reference.softmax(last))
    assert reference.agrees(cp.asnumpy(y[:1]), np.full((1, N), 1 / N))


@every_softmax
def test_n_1_is_exactly_1(step):
    x = np.array([[0.0], [-1e30], [BIG], [-BIG], [1e-40]])
    assert np.array_equal(run(step, x), np.ones_like(x))


SPECIAL = {
    "some -inf": [-INF, 1, -INF, 2, -INF],
    "leading -inf": [-INF] * 300 + [1, 2],
    "trailing -inf": [1, 2] + [-INF] * 300,
    "one finite among -inf": [-INF] * 70 + [-5] + [-INF] * 70,
    "all -inf": [-INF] * 5,
    "all -inf, long": [-INF] * 700,
    "NaN first": [NAN, 1, 2, 3],
    "NaN last": [1, 2, 3, NAN],
    "NaN in the middle of a long row": [0.5] * 400 + [NAN] + [0.5] * 400,
    "NaN and -inf": [NAN, -INF, -INF],
    "-inf, then NaN": [-INF] * 300 + [NAN],
    "only NaN": [NAN],
    "+inf": [1, INF, 2],
    "+inf first": [INF, 1, 2],
    "two +inf": [INF, 1, INF],
    "+inf and -inf": [-INF, INF, -INF],
    "+inf and NaN": [INF, NAN, 0],
    "largest floats": [BIG, -BIG, 0, BIG],
    "far below 0": [-1000.0] * 512,
    "very far below 0": [-1e30, -1e30, -2e30],
    "far above 0": [1000.0, 999.0, 1001.0] * 50,
    "subnormal differences": [1e-40, -1e-40, 0],
    "equal": [7.25] * 333,
    "ascending": np.linspace(-30, 30, 150),
    "descending": np.linspace(30, -30, 500),
    "maximum last": [0.0] * 777 + [50.0],
    "maximum first": [50.0] + [0.0] * 777,
    "half a float sum's ulp": [0.0] + [-0.28] * 8000,
    "the six numbers of the articles": [-0.3, 0.2, 0.5, 0.7, 0.1, 0.8],
}


@every_softmax
@pytest.mark.parametrize("name", SPECIAL)
def test_special_row(step, name):
    x = np.asarray(SPECIAL[name], np.float32)[None]
    assert_right(step, x)


@every_softmax
def test_masked_entries_are_exactly_0(step):
    x = rng(7).normal(size=(4, 200)).astype(np.float32)
    x[:, ::3] = -INF
    assert (run(step, x)[:, ::3] == 0).all()


@every_softmax
def test_a_bad_row_leaves_its_neighbours_alone(step):
    x = rng(8).normal(size=(7, 90)).astype(np.float32)
    x[1], x[3, 5], x[5, 0] = -INF, NAN, INF
    assert_right(step, x)


@every_softmax
@pytest.mark.parametrize("value", [NAN, INF])
def test_one_bad_element_anywhere_spoils_its_row(step, value):
    for N in (7, 69, 530):                      # head, vectors and tail; one thread, several, several warps
        x = rng(29, N).normal(size=(min(N, 70), N)).astype(np.float32)
        at = np.linspace(0, N - 1, len(x)).astype(int)
        x[np.arange(len(x)), at] = value
        assert np.isnan(run(step, x)).all()
        x[:] = -INF
        assert np.isnan(run(step, x)).all()
        x[np.arange(len(x)), at] = -80.0        # alone in its row
        assert np.array_equal(run(step, x), (x == -80).astype(np.float32))


@every_softmax
def test_ascending_long_row_within_the_stated_error(step):
    for top in (0.1, 1, 80):
        x = np.linspace(0, top, 4096, dtype=np.float32)[None]
        assert_right(step, x, rtol=tolerance(step, x))


@every_softmax
def test_real_attention_scores(step):
    from helpers.data import attention_scores
    assert_right(step, attention_scores().reshape(-1, 128)[::7])


VALUES = st.one_of(st.floats(width=32), st.sampled_from([-INF, INF, NAN, 0.0, -104.0, 88.0, BIG, -BIG]),
                   st.floats(-20, 20, width=32))


@every_softmax
@settings(max_examples=60, deadline=None, derandomize=True)
@given(data=st.data())
def test_any_row(step, data):
    N = data.draw(st.integers(1, 70))
    assert_right(step, data.draw(arrays(np.float32, (2, N), elements=VALUES)))


# ------------------------------------------------------------------------------- the checking softmax()


@every_softmax
def test_softmax_call(step):
    x = rng(9).normal(size=(3, 50)).astype(np.float32)
    y = ladder.softmax(cp.asarray(x), step)
    assert isinstance(y, cp.ndarray) and reference.agrees(cp.asnumpy(y), reference.softmax(x))


@every_softmax
@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (0, 0)])
def test_empty_result_without_a_launch(step, shape, monkeypatch):
    monkeypatch.setattr(ladder, "kernel", lambda *_: pytest.fail("launched"))
    y = ladder.softmax(cp.asarray(np.empty(shape, np.float32)), step)
    assert y.shape == shape and y.dtype == np.float32


REFUSED = {
    "a NumPy array": (lambda: np.ones((2, 3), np.float32), TypeError, "cp.asarray"),
    "float64": (lambda: cp.asarray(np.ones((2, 3))), TypeError, "astype"),
    "float16": (lambda: cp.asarray(np.ones((2, 3), np.float16)), TypeError, "astype"),
    "one dimension": (lambda: cp.asarray(np.ones(3, np.float32)), ValueError, r"\[M, N\]"),
    "three dimensions": (lambda: cp.asarray(np.ones((2, 3, 4), np.float32)), ValueError, r"\[M, N\]"),
    "a transposed view": (lambda: cp.asarray(np.ones((2, 3), np.float32)).T, ValueError, "ascontiguousarray"),
    "every second column": (lambda: cp.asarray(np.ones((2, 8), np.float32))[:, ::2], ValueError, "ascontiguousarray"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_softmax_refuses(name):
    make, error, words = REFUSED[name]
    with pytest.raises(error, match=words):
        ladder.softmax(make())


@every_softmax
def test_softmax_call_on_part_of_a_buffer(step):
    buffer = rng(28).normal(size=1000).astype(np.float32)
    for start in (1, 2, 3, 4):
        part = cp.asarray(buffer)[start:start + 630].reshape(7, 90)
        assert reference.agrees(cp.asnumpy(ladder.softmax(part, step)), reference.softmax(cp.asnumpy(part)))


def test_unknown_step_lists_the_known_ones():
    with pytest.raises(ValueError, match="safe_v0, safe_v1, safe_v2, safe_v3, safe_v4, online_v0"):
        ladder.softmax(cp.asarray(np.ones((1, 1), np.float32)), "attention_tiled")


def test_a_row_too_long_is_refused(monkeypatch):
    monkeypatch.setattr(ladder, "MAX_N", 7)
    with pytest.raises(ValueError, match="split the row"):
        ladder.softmax(cp.asarray(np.ones((1, 8), np.float32)))


def test_a_row_too_long_for_the_registers_is_refused():
    row = cp.asarray(np.ones((1, 32_769), np.float32))
    with pytest.raises(ValueError, match=r"32,769 is above 32,768, the limit of online_v3: .*online_v2"):
        ladder.softmax(row, "online_v3")
    assert reference.agrees(cp.asnumpy(ladder.softmax(row, "online_v2")), np.full((1, 32_769), 1 / 32_769))


# -------------------------------------------------------------------------------------------- attention


def unfused_float32(q, k, v, causal):
    """The unfused computation in float32: what the error of a kernel is compared with."""
    scores = np.float32(q.shape[-1] ** -0.5) * (q @ k.swapaxes(-1, -2))
    if causal:
        scores = np.where(reference.visible(q.shape[-2], k.shape[-2]), scores, np.float32(-INF))
    m = scores.max(-1, keepdims=True, initial=-INF)
    p = np.exp(scores - np.where(np.isfinite(m), m, 0))
    d = p.sum(-1, keepdims=True)
    return (p / np.where(d == 0, 1, d)) @ v


@contextmanager
def memory_that_held_nan():
    """`cp.empty` gives arrays full of NaN: what a kernel leaves out, or reads too early, shows."""
    empty = cp.empty

    def nan_filled(shape, dtype):
        array = empty(shape, dtype=dtype)
        array.fill(NAN)
        return array

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cp, "empty", nan_filled)
        yield


def attend(step, q, k, v, causal=False):
    """One launch through `attention`, with memory that held NaN; (o, lse) as NumPy arrays."""
    with memory_that_held_nan():
        arrays = (cp.asarray(np.ascontiguousarray(t, dtype=np.float32)) for t in (q, k, v))
        o, lse = attention(*arrays, step, causal)
    return cp.asnumpy(o), cp.asnumpy(lse)


def assert_attention(step, q, k, v, causal=False):
    q, k, v = (np.asarray(t, np.float32) for t in (q, k, v))
    o, lse = attend(step, q, k, v, causal)
    with np.errstate(invalid="ignore"):
        expected, expected_lse = reference.attention(q, k, v, causal)
        allowed = 1e-6 + 2 * np.nanmax(np.abs(unfused_float32(q, k, v, causal) - expected), initial=0)
    assert reference.agrees(o, expected, atol=allowed, rtol=INF), f"{step}: o at {q.shape}, {k.shape}, causal={causal}"
    expected_lse = np.where(expected_lse == INF, NAN, expected_lse)     # a kernel's m + log d is NaN as soon as d is
    largest = np.max(np.abs(expected_lse), where=np.isfinite(expected_lse), initial=1)
    assert reference.agrees(lse, expected_lse, atol=2e-6 * largest, rtol=INF), f"{step}: lse"


def qkv(seed, Sq, Sk, D, BH=2):
    r = rng(seed, Sq, Sk, D)
    return r.normal(size=(BH, Sq, D)) * 2, r.normal(size=(BH, Sk, D)), r.normal(size=(BH, Sk, D))


@every_attention
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("Sq, Sk", [(1, 1), (1, 70), (70, 1), (31, 33), (5, 200), (200, 5), (129, 129), (64, 128),
                                    (127, 32)])
def test_any_lengths(step, Sq, Sk, causal):
    assert_attention(step, *qkv(10, Sq, Sk, 32), causal)


@every_attention
@pytest.mark.parametrize("D", [4, 16, 64, 80, 96, 128, 256])
def test_head_dimensions(step, D):
    for causal in (False, True):
        assert_attention(step, *qkv(11, 40, 75, D), causal)


@every_attention
def test_queries_that_see_nothing(step):
    o, lse = attend(step, *qkv(12, 90, 20, 16), causal=True)
    assert (o[:, :70] == 0).all() and (lse[:, :70] == -INF).all()
    assert np.isfinite(o).all() and np.isfinite(lse[:, 70:]).all()


@every_attention
def test_leading_tiles_of_minus_infinity(step):
    q, k, v = qkv(13, 10, 100, 16)
    q[..., 0], k[:, :70, 0] = 1, -INF
    assert_attention(step, q, k, v)
    k[..., 0] = -INF                                     # no query has a finite score: output 0, LSE -inf
    o, lse = attend(step, q, k, v)
    assert (o == 0).all() and (lse == -INF).all()


@every_attention
@pytest.mark.parametrize("value", [NAN, INF])
@pytest.mark.parametrize("where", ["first key", "last key"])
def test_a_nan_or_inf_score_spoils_its_queries_only(step, value, where):
    q, k, v = qkv(14, 50, 50, 16)
    q[..., 0] = np.abs(q[..., 0]) + 0.1
    k[0, 0 if where == "first key" else -1, 0] = value
    for causal in (False, True):
        assert_attention(step, q, k, v, causal)
    o, _ = attend(step, q, k, v, causal=True)
    spoiled = np.arange(50) >= (0 if where == "first key" else 49)
    assert np.isnan(o[0][spoiled]).all() and np.isfinite(o[0][~spoiled]).all() and np.isfinite(o[1]).all()


@every_attention
def test_a_nan_query_spoils_itself_only(step):
    q, k, v = qkv(15, 40, 70, 16)
    q[1, 3, 2] = NAN
    assert_attention(step, q, k, v)


@every_attention
@pytest.mark.parametrize("size", [1e-20, 30, 1e15])
def test_scores_of_any_magnitude(step, size):
    q, k, v = qkv(16, 20, 70, 16)
    assert np.isfinite(attend(step, q * size, k, v)[0]).all()
    if size < 1e15:                                       # above, one rounding of a score decides who wins
        assert_attention(step, q * size, k, v)


@every_attention
@pytest.mark.parametrize("order", [1, -1])
def test_scores_that_rise_or_fall_all_along(step, order):
    q, k, v = qkv(17, 9, 300, 16)
    q[:] = 0
    q[..., 0] = 4
    k[..., 0] = order * np.linspace(-60, 60, 300)
    assert_attention(step, q, k, v)


@every_attention
def test_real_attention(step):
    from helpers.data import attention_qkv
    assert_attention(step, *attention_qkv())
    assert_attention(step, *attention_qkv(), causal=True)


@every_attention
@settings(max_examples=25, deadline=None, derandomize=True)
@given(Sq=st.integers(1, 80), Sk=st.integers(1, 80), causal=st.booleans(), seed=st.integers(0, 2**20))
def test_any_attention(step, Sq, Sk, causal, seed):
    assert_attention(step, *qkv(seed, Sq, Sk, 8, BH=1), causal)


@every_attention
def test_no_keys_no_queries_no_heads(step, monkeypatch):
    monkeypatch.setattr(ladder, "kernel", lambda *_: pytest.fail("launched"))
    o, lse = attend(step, np.ones((2, 3, 16)), np.ones((2, 0, 16)), np.ones((2, 0, 16)))
    assert (o == 0).all() and o.shape == (2, 3, 16) and (lse == -INF).all() and lse.shape == (2, 3)
    assert attend(step, np.ones((2, 0, 16)), np.ones((2, 3, 16)), np.ones((2, 3, 16)))[0].shape == (2, 0, 16)
    assert attend(step, np.ones((0, 4, 16)), np.ones((0, 3, 16)), np.ones((0, 3, 16)))[1].shape == (0, 4)


def test_four_dimensions_and_a_scale():
    q, k, v = (t.astype(np.float32).reshape(1, 2, -1, 16) for t in qkv(18, 12, 40, 16))
    o, lse = attention(*map(cp.asarray, (q, k, v)), scale=0.5)
    expected, expected_lse = reference.attention(q, k, v, scale=0.5)
    assert reference.agrees(cp.asnumpy(o), expected, atol=1e-5, rtol=INF)
    assert reference.agrees(cp.asnumpy(lse), expected_lse, atol=1e-5, rtol=INF)


def zeros(*shape, dtype=np.float32):
    return cp.asarray(np.zeros(shape, dtype))


REFUSED_ATTENTION = {
    "a NumPy array": (lambda: [np.zeros((1, 2, 16), np.float32)] * 3, "attention_tiled", TypeError, "cp.asarray"),
    "float16": (lambda: [zeros(1, 2, 16, dtype=np.float16)] * 3, "attention_tiled", TypeError, "astype"),
    "two dimensions": (lambda: [zeros(2, 16)] * 3, "attention_tiled", ValueError, "reshape"),
    "not contiguous": (lambda: [zeros(1, 2, 32)[..., ::2]] * 3, "attention_tiled", ValueError, "ascontiguousarray"),
    "v unlike k": (lambda: [zeros(1, 2, 16), zeros(1, 3, 16), zeros(1, 4, 16)], "attention_tiled", ValueError, "fit"),
    "other D": (lambda: [zeros(1, 2, 16), zeros(1, 3, 32), zeros(1, 3, 32)], "attention_tiled", ValueError, "fit"),
    "other batch": (lambda: [zeros(2, 2, 16), zeros(1, 3, 16), zeros(1, 3, 16)], "attention_tiled", ValueError, "fit"),
    "D too large": (lambda: [zeros(1, 2, 260)] * 3, "attention_tiled", ValueError, "attention_naive"),
    "D odd": (lambda: [zeros(1, 2, 17)] * 3, "attention_tiled_normalized", ValueError, "pad q, k and v"),
    "D above a block": (lambda: [zeros(1, 2, 1028)] * 3, "attention_naive", ValueError, "1,024"),
    "too many heads": (lambda: [zeros(65_536, 1, 4)] * 3, "attention_tiled", ValueError, "65,535"),
    "a softmax step": (lambda: [zeros(1, 2, 16)] * 3, "safe_v1", ValueError, "attention_naive, attention_tiled"),
}


@pytest.mark.parametrize("name", REFUSED_ATTENTION)
def test_attention_refuses(name):
    make, step, error, words = REFUSED_ATTENTION[name]
    with pytest.raises(error, match=words):
        attention(*make(), step)


# -------------------------------------------------------------------------------------------- catalogue


@pytest.mark.parametrize("key", STEPS)
def test_catalogue_entry(key):
    step = STEPS[key]
    source = ladder.load(step.file)
    assert step.key == key and step.title and step.new and step.limits
    assert f" {step.entry}(" in source.replace("\n", " ")
    launch = step.launch(3, 300) if step.reads else step.launch(3, 300, 300, 64)
    threads = int(np.prod(launch.block))
    assert 32 <= threads <= 1024 and threads % 32 == 0
    if step.reads:
        assert f"{step.reads} read{'s' * (step.reads > 1)} and {step.writes} write per element" in source
        assert len((snippets.ROOT / step.file).read_text().splitlines()) <= 60


# ----------------------------------------------------------------- on the CPU device: counters and sanitizer


@every_softmax
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("M, N", [(40, 333), (3, 4096), (2, 17_001)])
def test_counted_traffic_is_what_the_step_promises(step, seed, M, N):
    rows = rng(19).normal(size=(M, N)).astype(np.float32)
    x, y = cp.asarray(rows), cp.asarray(np.full((M, N), NAN, np.float32))
    launch = STEPS[step].launch(M, N)
    kernel = ladder.kernel(STEPS[step].file, STEPS[step].entry, STEPS[step].options(N))
    counters = count(kernel, launch.grid, launch.block, (x, y, np.int32(M), np.int32(N)), shared_mem=launch.shared_mem,
                     outputs=(y,), seed=seed)
    assert counters.loads.bytes == STEPS[step].reads * rows.nbytes
    assert counters.stores.bytes == STEPS[step].writes * rows.nbytes
    assert counters.local.instructions == 0
    if step in BY_VECTOR and N % 4 == 0:
        assert counters.loads.instructions == STEPS[step].reads * M * N / 4
        assert counters.stores.instructions == M * N / 4
    if not on_gpu:                              # else `count` ran on a copy
        assert reference.agrees(cp.asnumpy(y), reference.softmax(rows), rtol=tolerance(step, rows))


@pytest.mark.parametrize("D", [64, 128])
@pytest.mark.parametrize("step", ["attention_tiled", "attention_tiled_normalized"])
def test_the_sanitizer_finds_nothing_in_tiled_attention(step, D):
    BH, Sq, Sk = 2, 70, 41
    q, k, v = (cp.asarray(t.astype(np.float32)) for t in qkv(20, Sq, Sk, D))
    o, lse = cp.empty((BH, Sq, D), dtype=np.float32), cp.empty((BH, Sq), dtype=np.float32)
    launch = STEPS[step].launch(BH, Sq, Sk, D)
    kernel = ladder.kernel(STEPS[step].file, STEPS[step].entry, (f"-DD={D}",))
    args = q, k, v, o, lse, np.int32(Sq), np.int32(Sk), np.int32(1), np.float32(D ** -0.5)
    for seed in (0, 1):
        count(kernel, launch.grid, launch.block, args, outputs=(o, lse), seed=seed)


def test_the_sanitizer_finds_nothing_in_naive_attention():
    BH, Sq, Sk, D = 2, 20, 41, 16
    q, k, v = (cp.asarray(t.astype(np.float32)) for t in qkv(21, Sq, Sk, D))
    s, o = cp.empty((BH, Sq, Sk), dtype=np.float32), cp.empty((BH, Sq, D), dtype=np.float32)
    lse, sizes = cp.empty((BH, Sq), dtype=np.float32), (np.int32(Sq), np.int32(Sk))
    launch = STEPS["attention_naive"].launch(BH, Sq, Sk, D)
    for seed in (0, 1):
        for entry, grid, block, args, outputs in (
                ("attention_scores", launch.grid, launch.block, (q, k, s, *sizes, np.int32(1), np.float32(0.25)), (s,)),
                ("attention_softmax", (BH * Sq,), (64,), (s, lse, np.int32(Sk)), (lse,)),
                ("attention_output", (Sq, BH), (D,), (s, v, o, *sizes), (o,))):
            kernel = ladder.kernel("attention/naive.cu", entry, (f"-DD={D}",))
            count(kernel, grid, block, args, outputs=outputs, seed=seed)
