// Which keys a query sees, what is added to a score, and which head of K and V a head of queries uses.
//
// -DGROUP=...  heads of queries that share a head of K and V (grouped-query attention); 1: none.
// -DWINDOW     one parameter more: int window.  Query i sees only keys less than `window` away from key i + Sk - Sq.
// -DBIAS       parameters more: fp32 numbers [batch, heads, Sq, Sk] that are added to the scaled scores; their strides over
//              batch and heads may be 0, so that a bias is shared.
#pragma once
#include "common.h"

#ifndef GROUP
#define GROUP 1
#endif

#ifdef WINDOW
#define WINDOW_PARAMETER , int window
#else
#define WINDOW_PARAMETER
constexpr int window = 0;                       // not used
#endif

#ifdef BIAS
#define BIAS_PARAMETERS , const float* __restrict__ bias, int heads, long long batch_stride, long long head_stride
#define BIAS_OF(head) Bias{bias + (head) / heads * batch_stride + (head) % heads * head_stride, Sq, Sk}
struct Bias {
    const float* b;                             // of one head: [Sq, Sk]
    int Sq, Sk;
    __device__ float operator()(int i, int j) const { return i < Sq ? b[(size_t)i * Sk + j] : 0; }
};
#else
#define BIAS_PARAMETERS
#define BIAS_OF(head) Bias{}
struct Bias {
    __device__ float operator()(int, int) const { return -0.f; }        // x + -0 is x for every x, so no addition is left
};
#endif

// A query sees the keys first ... end - 1.
struct Keys {
    int first, end;
    __device__ bool has(int j) const { return first <= j && j < end; }
};

// What query i sees.  The diagonal of the mask ends at the last query and the last key.
__device__ inline Keys seen_by(int i, int Sq, int Sk, int causal, int window) {
    const int diagonal = i + Sk - Sq;
#ifdef WINDOW
    return {max(0, diagonal - window + 1), min(Sk, diagonal + (causal ? 1 : window))};
#else
    return {0, causal ? min(Sk, diagonal + 1) : Sk};
#endif
}
