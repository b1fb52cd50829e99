// One pass over a part of a row: maximum, normalizer and candidates together.
#pragma once
#include "topk/state.h"

// The part is every stride-th step, from step `first` on; the loads of a step are under way while the one before is worked on.
// Almost every step ends after two comparisons: no logit above the bar, so no new candidate, and no new maximum either.
__device__ inline State scan(const T* __restrict__ row, int N, int first, int stride, float scale, Candidates& best) {
    const int lane = threadIdx.x % 32;
    float m = NEG_INF, base = origin(m), d = 0, lost = 0;
    int j = first_column(row) + first * STEP;
    Vectors next;
    if (j < N) {
        next.load<32>(row, j, lane, N);
        best.raise_bar(Logits(next).largest());
    }
    for (; j < N; j += stride * STEP) {
        const Logits x(next);
        if (j + stride * STEP < N) next.load<32>(row, j + stride * STEP, lane, N);

        const float top = x.largest();
        const bool news = __any_sync(ALL, !(top <= best.bar));
        if (news) {
            const float m_new = warp_max(fmaxf(m, top));
            if (m_new > m) {
                const float factor = exp2f((m - m_new) * scale);
                d *= factor, lost *= factor;
                m = base = m_new;
            }
        }
        const float part = x.weigh(base, scale), sum = d + part;
        lost += part - (sum - d);                   // what the addition rounds away
        d = sum;
        if (news || __any_sync(ALL, part != part)) best.consider(x, j, N);
    }
    return {m, warp_sum(d + lost)};
}
