"""The shipped attention scores: shape, range, and that they are what q and k say."""

import numpy as np

from helpers.data import attention_qkv, attention_scores


def test_shapes_and_dtypes():
    for array in attention_qkv():
        assert array.shape == (4, 128, 32) and array.dtype == np.float16 and np.isfinite(array).all()
    for scaled in (False, True):
        scores = attention_scores(scaled)
        assert scores.shape == (4, 128, 128) and scores.dtype == np.float16 and np.isfinite(scores).all()


def test_scores_are_q_dot_k():
    q, k, _ = (t.astype(np.float64) for t in attention_qkv())
    scores = np.einsum("hid,hjd->hij", q, k)
    assert np.array_equal(attention_scores(), scores.astype(np.float16))
    assert np.array_equal(attention_scores(scaled=True), (scores / np.sqrt(32)).astype(np.float16))


def test_the_range_stated_in_the_readme():
    scores = attention_scores().astype(np.float64)
    assert round(scores.min()) == -219 and round(scores.max()) == 234


def test_scaling_does_not_make_exp_safe_in_half_precision():
    assert attention_scores(scaled=True).max() > np.log(65504.0)


def test_callers_cannot_change_the_stored_arrays():
    attention_qkv()[0][:] = 0
    assert attention_qkv()[0].any()
