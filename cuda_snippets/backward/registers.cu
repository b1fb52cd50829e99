// Softmax backward with both rows on the chip: one pass over memory.
//
// New:     against two_passes.cu: a thread loads up to VECTORS pieces of 16 bytes of both rows, every load under way before the
//          first is used, and keeps them until the row's sum is known: in registers, as online V3 does, or dy in shared memory
//          (-DPARKED).  Longer rows are spread over a cluster of CLUSTER blocks; of short ones, several share a block.
// Traffic: 2 reads and 1 write per element.
// Launch:  one row a block, a multiple of 32 threads: grid M.  With -DCLUSTER=2, 4 or 8, one row a cluster: grid M * CLUSTER.
//          With -DLANES=8, 16 or 32, one row for LANES threads: grid ceil(M * LANES / threads).  With -DPARKED, threads *
//          VECTORS * 16 bytes of dynamic shared memory.
// Limits:  the threads of a row, times VECTORS * WIDTH, reach N; and threads >= 2 * WIDTH, unless rows begin and end at
//          multiples of 16 bytes.  64 registers a thread: VECTORS up to 4, with -DPARKED up to 8.  a, dy and dx are aligned
//          alike; dx may be dy or a.
#include "backward/rules.h"
#include "backward/kept.h"

template <class MakeRule>
__device__ inline void backward_row(Team team, const T* a, const T* dy, T* dx, int N, MakeRule make_rule) {
    const Split row(a, N);
    const uint4 *a16 = (const uint4*)(a + row.head), *dy16 = (const uint4*)(dy + row.head);
    uint4* dx16 = (uint4*)(dx + row.head);
    const bool has_end = team.t < row.ends;
    const int end = row.end(team.t);
    start();

    // Load both rows: a few pieces a thread, and one element of the ends.
    uint4 saved[VECTORS];
    Kept upstream;
    for (int i = 0; i < VECTORS; ++i) {
        const int k = team.t + i * team.threads;
        if (k < row.vectors) saved[i] = a16[k], upstream.load(i, dy16 + k);
    }
    const auto rule = make_rule();
    const F end_s = has_end ? (F)a[end] : 0, end_g = has_end ? (F)dy[end] : 0;
    upstream.wait();

    // The sum over this thread's elements, then over the row.
    F sum = has_end ? rule.term(rule.probability(end_s), end_g) : 0;
    for (int i = 0; i < VECTORS; ++i) {
        if (team.t + i * team.threads >= row.vectors) continue;
        const Piece s(saved[i]), g(upstream.piece(i));
        for (int j = 0; j < WIDTH; ++j) sum += rule.term(rule.probability(s.v[j]), g.v[j]);
        forget_results(saved[i]), upstream.forget(i);
    }
    started();
    sum = team_merge(sum, (F)0, partial);

    // The gradient.
    if (has_end) dx[end] = (T)rule.gradient(rule.probability(end_s), end_g, sum);
    for (int i = 0; i < VECTORS; ++i) {
        const int k = team.t + i * team.threads;
        if (k >= row.vectors) return;
        const Piece s(saved[i]), g(upstream.piece(i));
        Piece d;
        for (int j = 0; j < WIDTH; ++j) d.v[j] = rule.gradient(rule.probability(s.v[j]), g.v[j], sum);
        dx16[k] = d.bytes();
    }
}
