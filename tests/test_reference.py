"""The float64 truth and the NumPy recurrences: against torch, on adversarial rows, and as properties."""

import numpy as np
import pytest
import torch
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from helpers import reference
from helpers.reference import EMPTY, NEG_INF, State, agrees, merge, online_softmax, online_state, state_of, ulp_distance

INF, NAN = float("inf"), float("nan")
U32 = 2.0**-24  # half the spacing of float32 just above 1: one rounding

settings.register_profile("course", deadline=None, derandomize=True, max_examples=200)
settings.load_profile("course")


pytestmark = pytest.mark.filterwarnings("error")  # overflow is part of the subject; the helpers must not warn about it


ROWS = {
    "one element": [3.0],
    "equal": [2.0] * 7,
    "ascending": list(range(50)),
    "descending": list(range(50, 0, -1)),
    "far below 0": [-1000.0, -1001.0, -999.5],
    "far above 0": [1000.0, 1001.0, 999.5],
    "wide": [-700.0, 700.0, 0.0, 709.0, -745.0],
    "leading mask": [-INF, -INF, 1.0, 2.0],
    "mask in the middle": [1.0, -INF, 2.0],
    "trailing mask": [1.0, 2.0, -INF],
    "mask and far below 0": [-INF, -500.0, -501.0],
    "all masked": [-INF] * 4,
    "one masked": [-INF],
    "a NaN": [1.0, NAN, 2.0],
    "a leading NaN": [NAN, 1.0],
    "a NaN after masks": [-INF, NAN],
    "+inf": [1.0, INF, 2.0],
    "leading +inf": [INF, 1.0],
    "both infinities": [-INF, INF],
    "largest and smallest float32": [3.4e38, -3.4e38],
}
rows = pytest.mark.parametrize("row", ROWS.values(), ids=ROWS.keys())

scores = st.one_of(st.floats(-1e3, 1e3, width=32), st.just(NEG_INF))
score_rows = arrays(np.float64, st.integers(1, 40), elements=scores)


def random_state(draw_max, normalizer):
    return EMPTY if draw_max == NEG_INF else State(draw_max, normalizer)


states = st.builds(random_state, scores, st.floats(1.0, 1e4))


def close(a: State, b: State, ulps: int = 8) -> bool:
    """Two float64 states with the same maximum and normalizers within `ulps` units in the last place."""
    return a.row_max == b.row_max and int(ulp_distance(np.float64(a.normalizer), np.float64(b.normalizer))) <= ulps


# ------------------------------------------------------------------------------------------ against torch


@rows
@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_truth_equals_torch_float64(name, row):
    ours = getattr(reference, name)(row)
    theirs = getattr(torch, name)(torch.tensor(row, dtype=torch.float64), dim=-1).numpy()
    np.testing.assert_allclose(ours, theirs, rtol=1e-13, atol=1e-300, equal_nan=True)


@rows
def test_lse_equals_torch_float64(row):
    theirs = torch.logsumexp(torch.tensor(row, dtype=torch.float64), dim=-1).item()
    np.testing.assert_allclose(reference.lse(row), theirs, rtol=1e-14, equal_nan=True)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_axis(axis):
    x = np.random.default_rng(0).standard_normal((5, 4, 3)) * 30
    t = torch.tensor(x)
    np.testing.assert_allclose(reference.softmax(x, axis), torch.softmax(t, axis).numpy(), rtol=1e-13)
    np.testing.assert_allclose(reference.log_softmax(x, axis), torch.log_softmax(t, axis).numpy(), rtol=1e-13)
    np.testing.assert_allclose(reference.lse(x, axis), torch.logsumexp(t, axis).numpy(), rtol=1e-13)


@given(score_rows)
def test_softmax_equals_torch_on_any_row(row):
    theirs = torch.softmax(torch.tensor(row), dim=-1).numpy()
    np.testing.assert_allclose(reference.softmax(row), theirs, rtol=1e-12, atol=1e-300, equal_nan=True)


@pytest.mark.parametrize("shape", [(0,), (0, 5), (3, 0)])
def test_no_rows_or_no_columns(shape):
    x = np.empty(shape, np.float32)
    for function in (reference.softmax, reference.log_softmax, reference.safe_softmax, reference.naive_softmax):
        assert function(x).shape == shape
    assert (reference.lse(x) == NEG_INF).all()
    assert online_softmax(np.empty(0, np.float32)).shape == (0,)


def test_float32_input_is_taken_to_float64_first():
    x = np.array([0.1, 0.2], np.float32)
    np.testing.assert_array_equal(reference.softmax(x), reference.softmax(x.astype(np.float64)))
    assert reference.softmax(x).dtype == np.float64


# ---------------------------------------------------------------------------------------- the three methods


@rows
@pytest.mark.parametrize("method", [reference.safe_softmax, online_softmax])
def test_float32_methods_agree_with_the_truth(method, row):
    x = np.array(row, np.float32)
    assert agrees(method(x), reference.softmax(x))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_methods_stay_in_the_dtype_of_the_row(dtype):
    x = np.array([0.5, 1.5, -2.0], dtype)
    for method in (reference.naive_softmax, reference.safe_softmax, online_softmax):
        assert method(x).dtype == dtype
    m, d = state_of(x)
    assert m.dtype == d.dtype == dtype
    m, d = merge(EMPTY, State(m, d))
    assert m.dtype == d.dtype == dtype


@pytest.mark.parametrize("row", [[1, 2, 3], np.array([1, 2, 3])])
def test_integers_are_computed_in_float64(row):
    assert close(state_of(row), state_of(np.array(row, np.float64)), ulps=0)
    assert close(online_state(row), state_of(row), ulps=2)
    for method in (reference.safe_softmax, online_softmax):
        assert agrees(method(row), reference.softmax(row))


def test_naive_shows_what_notebook_01_needs():
    assert np.isnan(reference.naive_softmax(np.float32([1000.0, 1.0]))[0])
    assert (reference.naive_softmax(np.float16([11.0, 11.0])) == 0).all()
    assert np.isnan(reference.naive_softmax(np.full(512, -1000.0, np.float32))).all()


# ------------------------------------------------------------------------------------ the online recurrence


@rows
def test_online_equals_state_of(row):
    for dtype in (np.float32, np.float64):
        x = np.array(row, dtype)
        online, whole = online_state(x), state_of(x)
        np.testing.assert_equal(float(online.row_max), float(whole.row_max))
        np.testing.assert_allclose(online.normalizer, whole.normalizer, rtol=50 * np.finfo(dtype).eps, equal_nan=True)


@given(score_rows)
def test_online_equals_state_of_on_any_row(row):
    assert close(online_state(row), state_of(row), ulps=4 * len(row))


@given(arrays(np.float32, st.integers(1, 60), elements=st.one_of(st.floats(-200, 200, width=32), st.just(NEG_INF))))
def test_invariants_of_the_trace(row):
    m, d, factor = reference.online_trace(row)
    k = np.arange(1, len(row) + 1)
    seen = m > NEG_INF
    np.testing.assert_array_equal(m, np.maximum.accumulate(row))
    assert (d[seen] >= 1).all() and (d <= k).all() and (d[~seen] == 0).all()
    assert (factor >= 0).all() and (factor <= 1).all()


def test_factor_is_zero_where_nothing_was_accumulated():
    _, d, factor = reference.online_trace(np.float32([-INF, -INF, 5.0, 6.0]))
    assert factor[:3].tolist() == [0, 0, 0] and d[:3].tolist() == [0, 0, 1]
    assert factor[3] == np.exp(np.float32(-1))


def test_online_is_the_same_to_the_bit_when_the_first_element_is_the_largest():
    row = -np.sort(-np.random.default_rng(1).standard_normal(500).astype(np.float32))
    terms = np.exp(row - row[0])
    assert online_state(row).normalizer == np.cumsum(terms, dtype=np.float32)[-1]


def test_empty_row():
    assert online_state(np.empty(0, np.float32)) == EMPTY == state_of(np.empty(0, np.float32)) == state_of([])


@pytest.mark.parametrize("n, value", [(1, 1.0), (2, 1.5), (4, 25 / 12)])
def test_expected_maxima(n, value):
    assert reference.expected_maxima(n) == pytest.approx(value, rel=1e-15)


def test_expected_maxima_is_log_n_plus_gamma():
    assert abs(reference.expected_maxima(10**6) - (np.log(10**6) + 0.5772156649)) < 1e-6


# ------------------------------------------------------------------------------------------------- merge


@given(states, states)
def test_merge_is_commutative_to_the_bit(a, b):
    assert merge(a, b) == merge(b, a)


@given(states, states, states)
@example(EMPTY, EMPTY, EMPTY)
@example(EMPTY, State(-1000.0, 1.0), EMPTY)
@example(State(-1000.0, 1.0), State(1000.0, 1.0), State(-1000.0, 3.0))
def test_merge_is_associative_up_to_rounding(a, b, c):
    assert close(merge(merge(a, b), c), merge(a, merge(b, c)))


@given(states)
def test_empty_is_the_identity_to_the_bit(a):
    assert merge(a, EMPTY) == a == merge(EMPTY, a)


def test_merge_of_two_empty_states_is_empty_and_not_nan():
    assert merge(EMPTY, EMPTY) == EMPTY
    empty32 = State(np.float32(NEG_INF), np.float32(0))
    assert merge(empty32, empty32) == EMPTY


@given(score_rows, st.integers(0, 40))
def test_two_pieces_give_the_state_of_the_row(row, cut):
    assert close(merge(state_of(row[:cut]), state_of(row[cut:])), state_of(row), ulps=len(row) + 8)


@given(score_rows)
def test_one_online_step_is_a_merge_with_one_element(row):
    assume(np.isfinite(row[-1]))
    assert close(merge(online_state(row[:-1]), State(row[-1], 1.0)), online_state(row), ulps=0)


@pytest.mark.parametrize("bad", [State(NAN, NAN), State(1.0, NAN)])
@pytest.mark.parametrize("other", [EMPTY, State(0.0, 1.0), State(2.0, 3.0)])
def test_merge_keeps_nan(bad, other):
    assert np.isnan(merge(bad, other).normalizer) and np.isnan(merge(other, bad).normalizer)


def test_merge_of_values_at_both_ends_of_float32():
    big = np.float32(3e38)
    assert merge(State(big, np.float32(2)), State(-big, np.float32(5))) == State(big, np.float32(2))


# --------------------------------------------------------------------------------------------- comparing


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_ulp_distance_counts_representable_numbers(dtype):
    one = np.array([1.0], dtype)
    next_up, next_down = np.nextafter(one, dtype(2)), np.nextafter(one, dtype(0))
    assert ulp_distance(one, one) == 0
    assert ulp_distance(one, next_up) == ulp_distance(next_up, one) == ulp_distance(one, next_down) == 1
    assert ulp_distance(next_down, next_up) == 2
    assert ulp_distance(one, np.nextafter(next_up, dtype(2))) == 2


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_ulp_distance_across_zero(dtype):
    tiny = np.finfo(dtype).smallest_subnormal
    assert ulp_distance(dtype(0.0), dtype(-0.0)) == 0
    assert ulp_distance(dtype(-0.0), tiny) == ulp_distance(dtype(0.0), -tiny) == 1
    assert ulp_distance(-tiny, tiny) == 2


def test_ulp_distance_never_wraps_round():
    largest = np.finfo(np.float64).max
    assert ulp_distance(np.float64(-largest), np.float64(largest)) == np.iinfo(np.int64).max
    assert ulp_distance(np.float32(-3e38), np.float32(3e38)) > 2**31


@given(st.floats(-(2.0**100), 2.0**100, width=32), st.integers(0, 100))
def test_ulp_distance_of_n_steps_is_n(x, steps):
    start = y = np.float32(x)
    for _ in range(steps):
        y = np.nextafter(y, np.float32(INF))
    assert ulp_distance(start, y) == steps


@pytest.mark.parametrize("a, b", [
    (np.float32(1), np.float64(1)), (np.arange(3), np.arange(3)), ([1.0], np.float32([1])),
])
def test_ulp_distance_refuses_mixed_and_integer_types(a, b):
    with pytest.raises(TypeError, match="one floating dtype"):
        ulp_distance(a, b)


TRUTH = np.array([0.25, 0.5, 0.25, 0.0])


@pytest.mark.parametrize("got", [
    [NAN, 0.5, 0.25, 0.0],
    [NAN] * 4,
    [0.25, 0.5, 0.25, NAN],
    [0.25, 0.5, INF, 0.0],
    [0.25, 0.5, 0.25, 2e-6],
    [0.25, 0.500002, 0.25, 0.0],
    [0.25, 0.5, 0.25],
    [[0.25, 0.5, 0.25, 0.0]],
    [0.25, 0.5, 0.0, 0.0],
    0.25,
], ids=["one NaN", "all NaN", "NaN for 0", "inf", "not masked", "2e-6 off", "short", "another shape", "not written",
        "a scalar"])
def test_agrees_rejects(got):
    assert not agrees(np.array(got), TRUTH)


def test_agrees_accepts_rounding_only():
    assert agrees(TRUTH, TRUTH) and agrees(TRUTH.astype(np.float32) * np.float32(1 + 4 * U32), TRUTH)


def test_agrees_measures_small_probabilities_relatively():
    truth = np.array([1.0, 1e-20, 1e-35])
    assert not agrees([1.0, 2e-20, 1e-35], truth)
    assert not agrees([1.0, 0.0, 1e-35], truth)
    assert agrees([1.0, 1e-20, 0.0], truth)  # below 1e-30 float32 may lose it


def test_agrees_wants_nan_and_inf_where_the_truth_has_them():
    assert agrees([NAN, NAN], [NAN, NAN]) and not agrees([0.5, 0.5], [NAN, NAN]) and not agrees([NAN, 0.5], [NAN, NAN])
    assert agrees([-INF], [-INF]) and not agrees([INF], [-INF]) and not agrees([-1e30], [-INF])


def test_agrees_on_nothing():
    assert agrees(np.empty((0, 3)), np.empty((0, 3))) and not agrees(np.empty(0), np.empty((0, 3)))


# --------------------------------------------------------------------------------------------- attention


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("sq, sk", [(5, 5), (3, 7), (7, 3), (1, 9)])
@pytest.mark.parametrize("deferred", [True, False])
@pytest.mark.parametrize("tile", [1, 2, 4, 16])
def test_attention_by_tiles_equals_dense_attention(sq, sk, causal, deferred, tile):
    rng = np.random.default_rng(7)
    q, k, v = (rng.standard_normal((n, 4)) * 3 for n in (sq, sk, sk))
    dense, dense_lse = reference.attention(q, k, v, causal)
    tiled, tiled_lse = reference.attention_by_tiles(q, k, v, tile, causal, deferred)
    np.testing.assert_allclose(tiled, dense, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(tiled_lse, dense_lse, rtol=1e-12)


def test_attention_equals_torch():
    rng = np.random.default_rng(8)
    q, k, v = (rng.standard_normal((2, 6, 4)) for _ in range(3))
    out, _ = reference.attention(q, k, v)
    theirs = torch.nn.functional.scaled_dot_product_attention(*(torch.tensor(t) for t in (q, k, v)))
    np.testing.assert_allclose(out, theirs.numpy(), rtol=1e-12, atol=1e-14)


def test_a_query_that_sees_no_key():
    q, k, v = np.ones((3, 2)), np.ones((2, 2)), np.ones((2, 2))
    out, row_lse = reference.attention(q, k, v, causal=True)
    assert (out[0] == 0).all() and row_lse[0] == NEG_INF
    no_keys, no_lse = reference.attention(q, k[:0], v[:0])
    assert (no_keys == 0).all() and (no_lse == NEG_INF).all()


def test_causal_mask_is_aligned_at_the_bottom_right():
    assert reference.visible(2, 4).tolist() == [[True, True, True, False], [True, True, True, True]]
    assert reference.visible(3, 2).tolist() == [[False, False], [True, False], [True, True]]
