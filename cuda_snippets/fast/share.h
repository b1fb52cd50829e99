// What a thread holds of a row in registers.
#pragma once
#include "fast/team.h"

struct Share {
    Piece piece[VECTORS];
    float extra;                                    // an element of the ends

    // Thread t of `threads` takes every threads-th vector.  All loads are under way before the first is used.
    __device__ void load(const Row& row, int t, int threads) {
        for (int i = 0; i < VECTORS; ++i) {
            const int k = t + i * threads;
            uint4 bytes = make_uint4(MINUS_INF, MINUS_INF, MINUS_INF, MINUS_INF);
            if (k < row.vectors) bytes = *row.vector(k);
            piece[i] = Piece(bytes);
        }
        extra = row.load_end(t);
    }

    // fmaxf drops a NaN.  That is allowed here: weigh() keeps it.
    __device__ float largest() const {
        float m = extra;
        for (int i = 0; i < VECTORS; ++i) m = fmaxf(m, piece[i].largest());
        return m;
    }

    // The sum of exp(x - m).  The exponentials take the place of x, except with -DLOG.
    __device__ float weigh(float m) {
        const auto exponential = [m = finite(m)](float x) { return weight(x, m); };
        float d = exponential(extra);
#ifndef LOG
        extra = d;
#endif
        for (int i = 0; i < VECTORS; ++i) {
            const Piece e = piece[i].map(exponential);
            d += e.sum();
#ifndef LOG
            piece[i] = e;
#endif
        }
        return d;
    }

    __device__ State state() {
        const float m = largest(), d = weigh(m);
        return {m, d};
    }

    // y, from the state of the row; `own` is the m that weigh() was given.
    __device__ void store(const Row& row, int t, int threads, float own, State state) const {
#ifdef LOG
        const Result result(state);
#else
        const float factor = __fdividef(weight(own, finite(state.m)), state.d);      // 1 <= d: the quick division is enough
        const auto result = [factor](float e) { return e * factor; };
#endif
        for (int i = 0; i < VECTORS; ++i) {
            const int k = t + i * threads;
            if (k < row.vectors) row.store(k, piece[i].map(result));
        }
        row.store_end(t, result(extra));
    }
};
