// Softmax backward in two passes, for rows of any length: dx = y * (dy - sum of y * dy).
//
// New:     against online V2: what has to be known before anything can be written is one sum, of products of two rows.  Where y
//          comes from is in rules.h, with the entry points: it was saved, or it is made again from x and the state (m, d).
// Traffic: 4 reads and 1 write per element.
// Launch:  one row a block: grid M.  The block is a multiple of 32 threads, at most 1024.
// Limits:  any M, N up to 2^30.  dx may be dy or the saved row.  Where the three are not aligned alike, the row goes element by
//          element.
#include "backward/rules.h"

template <class MakeRule>
__device__ inline void backward_row(Team team, const T* a, const T* dy, T* dx, int N, MakeRule make_rule) {
    const Split row(a, N, aligned_alike(a, dy) && aligned_alike(a, dx));
    const uint4 *a16 = (const uint4*)(a + row.head), *dy16 = (const uint4*)(dy + row.head);
    uint4* dx16 = (uint4*)(dx + row.head);

    const auto rule = make_rule();

    // Pass 1: the sum over this thread's elements, then over the row.
    F sum = 0;
    for (int e = team.t; e < row.ends; e += team.threads) sum += rule.term(rule.probability(a[row.end(e)]), dy[row.end(e)]);
    for (int k = team.t; k < row.vectors; k += team.threads) {
        const Piece s(a16[k]), g(dy16[k]);
        for (int j = 0; j < WIDTH; ++j) sum += rule.term(rule.probability(s.v[j]), g.v[j]);
    }
    sum = team_merge(sum, (F)0, partial);

    // Pass 2: the gradient.
    for (int e = team.t; e < row.ends; e += team.threads) {
        const int j = row.end(e);
        dx[j] = (T)rule.gradient(rule.probability(a[j]), dy[j], sum);
    }
    for (int k = team.t; k < row.vectors; k += team.threads) {
        const Piece s(a16[k]), g(dy16[k]);
        Piece d;
        for (int j = 0; j < WIDTH; ++j) d.v[j] = rule.gradient(rule.probability(s.v[j]), g.v[j], sum);
        dx16[k] = d.bytes();
    }
}
