// Known-wrong kernels and their corrected twins: barriers that not every thread reaches, shuffles with lanes missing.

#define FULL 0xffffffffu

// ---- barriers

extern "C" __global__ void barrier_in_if(const float* x, float* y) {
    __shared__ float s[64];
    int t = threadIdx.x;
    s[t] = x[t];
    if (t < 32)
        __syncthreads();                                        // BUG barrier_in_if
    y[t] = s[t];
}
extern "C" __global__ void barrier_in_if_fixed(const float* x, float* y) {
    __shared__ float s[64];
    int t = threadIdx.x;
    s[t] = x[t];
    __syncthreads();
    if (t < 32) y[t] = s[63 - t];
}

extern "C" __global__ void return_before_barrier(const float* x, float* y, int n) {
    __shared__ float s[64];
    int t = threadIdx.x;
    if (t >= n) return;
    s[t] = x[t];
    __syncthreads();                                            // BUG return_before_barrier
    y[t] = s[n - 1 - t];
}
extern "C" __global__ void return_before_barrier_fixed(const float* x, float* y, int n) {
    __shared__ float s[64];
    int t = threadIdx.x;
    if (t < n) s[t] = x[t];
    __syncthreads();
    if (t < n) y[t] = s[n - 1 - t];
}

extern "C" __global__ void two_barriers(const float* x, float* y) {
    __shared__ float s[64];
    int t = threadIdx.x;
    if (t < 32) {
        s[t] = x[t];
        __syncthreads();                                        // BUG two_barriers
    } else {
        s[t] = -x[t];
        __syncthreads();                                        // OTHER two_barriers
    }
    y[t] = s[63 - t];
}
extern "C" __global__ void two_barriers_fixed(const float* x, float* y) {
    __shared__ float s[64];
    int t = threadIdx.x;
    s[t] = t < 32 ? x[t] : -x[t];
    __syncthreads();
    y[t] = s[63 - t];
}

// n is not a multiple of the block: some threads make one turn more.
extern "C" __global__ void barrier_in_loop(const float* x, float* y, int n) {
    __shared__ float s[64];
    int t = threadIdx.x;
    float sum = 0;
    for (int i = t; i < n; i += blockDim.x) {
        s[t] = x[i];
        __syncthreads();                                        // BUG barrier_in_loop
        sum += s[(t + 1) % 64];
        __syncthreads();                                        // OTHER barrier_in_loop
    }
    y[t] = sum;
}
extern "C" __global__ void barrier_in_loop_fixed(const float* x, float* y, int n) {
    __shared__ float s[64];
    int t = threadIdx.x;
    float sum = 0;
    for (int start = 0; start < n; start += blockDim.x) {
        s[t] = start + t < n ? x[start + t] : 0;
        __syncthreads();
        sum += s[(t + 1) % 64];
        __syncthreads();
    }
    y[t] = sum;
}

// ---- shuffles

extern "C" __global__ void shuffle_from_gone(const float* x, float* y, int n) {
    int t = threadIdx.x;
    if (t >= n) return;
    float sum = x[t];
    for (int other = 16; other > 0; other /= 2)
        sum += __shfl_down_sync(FULL, sum, other);              // BUG shuffle_from_gone
    if (t == 0) y[0] = sum;
}
extern "C" __global__ void shuffle_from_gone_fixed(const float* x, float* y, int n) {
    int t = threadIdx.x;
    float sum = t < n ? x[t] : 0;
    for (int other = 16; other > 0; other /= 2) sum += __shfl_down_sync(FULL, sum, other);
    if (t == 0) y[0] = sum;
}

extern "C" __global__ void shuffle_outside_mask(const float* x, float* y) {
    int t = threadIdx.x;
    float v = x[t];
    if (t < 16)
        v += __shfl_xor_sync(0xffffu, v, 16);                   // BUG shuffle_outside_mask
    y[t] = v;
}
extern "C" __global__ void shuffle_outside_mask_fixed(const float* x, float* y) {
    int t = threadIdx.x;
    float v = x[t];
    if (t < 16) v += __shfl_xor_sync(0xffffu, v, 8);
    y[t] = v;
}

// A block of 16 threads has no lane 16.
extern "C" __global__ void shuffle_in_half_warp(const float* x, float* y) {
    int t = threadIdx.x;
    float sum = x[t];
    for (int other = 16; other > 0; other /= 2)
        sum += __shfl_xor_sync(FULL, sum, other);               // BUG shuffle_in_half_warp
    y[t] = sum;
}
extern "C" __global__ void shuffle_in_half_warp_fixed(const float* x, float* y) {
    int t = threadIdx.x;
    float sum = x[t];
    for (int other = 8; other > 0; other /= 2) sum += __shfl_xor_sync(0xffffu, sum, other);
    y[t] = sum;
}

extern "C" __global__ void mask_without_me(const float* x, float* y) {
    int t = threadIdx.x;
    y[t] = __shfl_sync(0xfffffffeu, x[t], 1);                   // BUG mask_without_me
}
extern "C" __global__ void mask_without_me_fixed(const float* x, float* y) {
    int t = threadIdx.x;
    y[t] = __shfl_sync(FULL, x[t], 1);
}

// Half of the warp waits for a shuffle, the other half for a barrier.
extern "C" __global__ void shuffle_or_barrier(const float* x, float* y) {
    int t = threadIdx.x;
    float v = x[t];
    if (t < 16)
        v = __shfl_xor_sync(FULL, v, 1);                        // BUG shuffle_or_barrier
    __syncthreads();                                            // OTHER shuffle_or_barrier
    y[t] = v;
}
extern "C" __global__ void shuffle_or_barrier_fixed(const float* x, float* y) {
    int t = threadIdx.x;
    float v = x[t], other = __shfl_xor_sync(FULL, v, 1);
    if (t < 16) v = other;
    __syncthreads();
    y[t] = v;
}

extern "C" __global__ void shuffle_or_vote(const float* x, float* y) {
    int t = threadIdx.x;
    float v = x[t];
    if (t < 16)
        v = __shfl_xor_sync(FULL, v, 1);                        // BUG shuffle_or_vote
    else
        v = __any_sync(FULL, v > 0);                            // OTHER shuffle_or_vote
    y[t] = v;
}
extern "C" __global__ void shuffle_or_vote_fixed(const float* x, float* y) {
    int t = threadIdx.x;
    float v = x[t];
    if (t < 16)
        v = __shfl_xor_sync(0x0000ffffu, v, 1);
    else
        v = __any_sync(0xffff0000u, v > 0);
    y[t] = v;
}

extern "C" __global__ void odd_width(const float* x, float* y) {
    int t = threadIdx.x;
    y[t] = __shfl_down_sync(FULL, x[t], 1, 12);                 // BUG odd_width
}
extern "C" __global__ void odd_width_fixed(const float* x, float* y) {
    int t = threadIdx.x;
    y[t] = __shfl_down_sync(FULL, x[t], 1, 16);
}

extern "C" __global__ void syncwarp_in_if(const float* x, float* y) {
    int t = threadIdx.x;
    if (t < 8)
        __syncwarp();                                           // BUG syncwarp_in_if
    y[t] = __shfl_sync(FULL, x[t], 0);                          // OTHER syncwarp_in_if
}
extern "C" __global__ void syncwarp_in_if_fixed(const float* x, float* y) {
    int t = threadIdx.x;
    if (t < 8) __syncwarp(0xff);
    y[t] = __shfl_sync(FULL, x[t], 0);
}
