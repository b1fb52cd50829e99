// Known-wrong kernels and their corrected twins: threads of a block, and blocks, that do not wait for each other.
// BUG marks the line whose access collides, OTHER the line of the access it collides with (either may be the one named).

extern "C" __global__ void no_barrier_before_tree(const float* x, float* y) {
    __shared__ float s[128];
    int t = threadIdx.x;
    s[t] = x[t];                                                // OTHER no_barrier_before_tree
    for (int half = 64; half > 0; half /= 2) {
        if (t < half) s[t] += s[t + half];                      // BUG no_barrier_before_tree
        __syncthreads();
    }
    if (t == 0) y[0] = s[0];
}
extern "C" __global__ void no_barrier_in_tree(const float* x, float* y) {
    __shared__ float s[128];
    int t = threadIdx.x;
    s[t] = x[t];
    __syncthreads();
    for (int half = 64; half > 0; half /= 2)
        if (t < half) s[t] += s[t + half];                      // BUG no_barrier_in_tree
    __syncthreads();
    if (t == 0) y[0] = s[0];
}
// Inside one warp the tree seems to work without barriers.  Since Volta, lanes need not move in step.
extern "C" __global__ void warp_synchronous(const float* x, float* y) {
    __shared__ float s[128];
    int t = threadIdx.x;
    s[t] = x[t];
    __syncthreads();
    for (int half = 64; half >= 32; half /= 2) {
        if (t < half) s[t] += s[t + half];
        __syncthreads();
    }
    if (t < 32)
        for (int half = 16; half > 0; half /= 2)
            if (t < half) s[t] += s[t + half];                  // BUG warp_synchronous
    if (t == 0) y[0] = s[0];
}
extern "C" __global__ void tree_fixed(const float* x, float* y) {
    __shared__ float s[128];
    int t = threadIdx.x;
    s[t] = x[t];
    __syncthreads();
    for (int half = 64; half > 0; half /= 2) {
        if (t < half) s[t] += s[t + half];
        __syncthreads();
    }
    if (t == 0) y[0] = s[0];
}
extern "C" __global__ void warp_synchronous_fixed(const float* x, float* y) {
    __shared__ float s[128];
    int t = threadIdx.x;
    s[t] = x[t];
    __syncthreads();
    for (int half = 64; half >= 32; half /= 2) {
        if (t < half) s[t] += s[t + half];
        __syncthreads();
    }
    if (t < 32)
        for (int half = 16; half > 0; half /= 2) {
            float mine = t < half ? s[t + half] : 0;
            __syncwarp();
            if (t < half) s[t] += mine;
            __syncwarp();
        }
    if (t == 0) y[0] = s[0];
}

// The scratch array is used twice; a fast thread overwrites s[0] before a slow one has read it.
extern "C" __global__ void scratch_used_again(const float* x, float* y) {
    __shared__ float s[128];
    int t = threadIdx.x;
    s[t] = x[t];
    __syncthreads();
    float first = s[0];                                         // OTHER scratch_used_again
    s[t] = x[t] - first;                                        // BUG scratch_used_again
    __syncthreads();
    y[t] = s[127 - t];
}
extern "C" __global__ void scratch_used_again_fixed(const float* x, float* y) {
    __shared__ float s[128];
    int t = threadIdx.x;
    s[t] = x[t];
    __syncthreads();
    float first = s[0];
    __syncthreads();
    s[t] = x[t] - first;
    __syncthreads();
    y[t] = s[127 - t];
}

extern "C" __global__ void everyone_writes(const float* x, float* y) {
    __shared__ float last;
    int t = threadIdx.x;
    last = x[t];                                                // BUG everyone_writes
    __syncthreads();
    y[t] = last;
}
extern "C" __global__ void everyone_writes_fixed(const float* x, float* y) {
    __shared__ float last;
    int t = threadIdx.x;
    if (t == 127) last = x[t];
    __syncthreads();
    y[t] = last;
}

extern "C" __global__ void shift_shared(const float* x, float* y) {
    __shared__ float s[128];
    int t = threadIdx.x;
    s[t] = x[t];
    __syncthreads();
    s[t] = s[(t + 1) % 128];                                    // BUG shift_shared
    __syncthreads();
    y[t] = s[t];
}
extern "C" __global__ void shift_shared_fixed(const float* x, float* y) {
    __shared__ float s[128];
    int t = threadIdx.x;
    s[t] = x[t];
    __syncthreads();
    float next = s[(t + 1) % 128];
    __syncthreads();
    s[t] = next;
    __syncthreads();
    y[t] = s[t];
}

extern "C" __global__ void shared_counter(const float* x, float* y) {
    __shared__ int count;
    int t = threadIdx.x;
    if (t == 0) count = 0;
    __syncthreads();
    if (x[t] > 0) count += 1;                                   // BUG shared_counter
    __syncthreads();
    if (t == 0) y[0] = count;
}
extern "C" __global__ void shared_counter_fixed(const float* x, float* y) {
    __shared__ int count;
    int t = threadIdx.x;
    if (t == 0) count = 0;
    __syncthreads();
    if (x[t] > 0) atomicAdd(&count, 1);
    __syncthreads();
    if (t == 0) y[0] = count;
}

// Atomics do not help the one who reads without waiting.
extern "C" __global__ void atomic_then_read(const float* x, float* y) {
    __shared__ int count;
    int t = threadIdx.x;
    if (t == 0) count = 0;
    __syncthreads();
    if (x[t] > 0) atomicAdd(&count, 1);                         // OTHER atomic_then_read
    y[t] = count;                                               // BUG atomic_then_read
}
extern "C" __global__ void atomic_then_read_fixed(const float* x, float* y) {
    __shared__ int count;
    int t = threadIdx.x;
    if (t == 0) count = 0;
    __syncthreads();
    if (x[t] > 0) atomicAdd(&count, 1);
    __syncthreads();
    y[t] = count;
}

// Tiles: the next tile is loaded while slow threads still read this one.
extern "C" __global__ void tile_overwritten(const float* x, float* y) {
    __shared__ float tile[64];
    int t = threadIdx.x;
    float sum = 0;
    for (int start = 0; start < 256; start += 64) {
        tile[t] = x[start + t];                                 // BUG tile_overwritten
        __syncthreads();
        for (int j = 0; j < 64; ++j) sum += tile[j] * (j + t);  // OTHER tile_overwritten
    }
    y[t] = sum;
}
extern "C" __global__ void tile_overwritten_fixed(const float* x, float* y) {
    __shared__ float tile[64];
    int t = threadIdx.x;
    float sum = 0;
    for (int start = 0; start < 256; start += 64) {
        tile[t] = x[start + t];
        __syncthreads();
        for (int j = 0; j < 64; ++j) sum += tile[j] * (j + t);
        __syncthreads();
    }
    y[t] = sum;
}

// Dynamic shared memory in two parts that overlap: the second should start behind 64 floats.
extern "C" __global__ void parts_overlap(const float* x, float* y) {
    extern __shared__ float scratch[];
    float *a = scratch, *b = scratch + 32;
    int t = threadIdx.x;
    a[t] = x[t];                                                // OTHER parts_overlap
    b[t] = -x[t];                                               // BUG parts_overlap
    __syncthreads();
    y[t] = a[63 - t] - b[t];
}
extern "C" __global__ void parts_overlap_fixed(const float* x, float* y) {
    extern __shared__ float scratch[];
    float *a = scratch, *b = scratch + 64;
    int t = threadIdx.x;
    a[t] = x[t];
    b[t] = -x[t];
    __syncthreads();
    y[t] = a[63 - t] - b[t];
}

// In place in global memory, within one block.
extern "C" __global__ void shift_global(float* y) {
    int t = threadIdx.x;
    if (t < 127) y[t] = y[t + 1];                               // BUG shift_global
}
extern "C" __global__ void shift_global_fixed(float* y) {
    int t = threadIdx.x;
    float next = y[t < 127 ? t + 1 : t];
    __syncthreads();
    y[t] = next;
}

extern "C" __global__ void reverse_in_place(float* y) {
    int t = threadIdx.x;
    float other = y[127 - t];                                   // OTHER reverse_in_place
    y[t] = other;                                               // BUG reverse_in_place
}
extern "C" __global__ void reverse_in_place_fixed(float* y) {
    int t = threadIdx.x;
    float other = y[127 - t];
    __syncthreads();
    y[t] = other;
}

// ---- between blocks

extern "C" __global__ void blocks_write_one(const float* x, float* y) {
    if (threadIdx.x == 0)
        y[0] = x[blockIdx.x];                                   // BUG blocks_write_one
}
extern "C" __global__ void blocks_write_one_fixed(const float* x, float* y) {
    if (threadIdx.x == 0) y[blockIdx.x] = x[blockIdx.x];
}

extern "C" __global__ void blocks_add_to_one(const float* x, float* y) {
    if (threadIdx.x == 0)
        y[0] += x[blockIdx.x];                                  // BUG blocks_add_to_one
}
extern "C" __global__ void blocks_add_to_one_fixed(const float* x, float* y) {
    if (threadIdx.x == 0) atomicAdd(y, x[blockIdx.x]);
}

// Works as long as blocks run one after the other.
extern "C" __global__ void carry_from_block(const float* x, float* y) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float carry = blockIdx.x ? y[blockIdx.x * blockDim.x - 1] : 0;      // BUG carry_from_block
    y[i] = x[i] + carry;                                                // OTHER carry_from_block
}
extern "C" __global__ void carry_from_block_fixed(const float* x, float* y) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float carry = blockIdx.x ? x[blockIdx.x * blockDim.x - 1] : 0;
    y[i] = x[i] + carry;
}

// In place, with a neighbour that belongs to another block: read here, written there.
extern "C" __global__ void blocks_in_place(float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float next = i + 1 < n ? y[i + 1] : 0;                      // OTHER blocks_in_place
    __syncthreads();
    y[i] = next;                                                // BUG blocks_in_place
}
extern "C" __global__ void blocks_in_place_fixed(float* y, int n) {
    int t = threadIdx.x, i = blockIdx.x * blockDim.x + t;
    float next = t + 1 < blockDim.x ? y[i + 1] : 0;
    __syncthreads();
    y[i] = next;
}

// The last block to finish adds up what the others left: right, thanks to the fence and the counter.
__device__ unsigned finished;
extern "C" __global__ void last_block_fixed(const float* x, float* partial, float* y) {
    __shared__ bool last;
    int t = threadIdx.x;
    if (t == 0) {
        partial[blockIdx.x] = x[blockIdx.x];
        __threadfence();
        last = atomicInc(&finished, gridDim.x - 1) == gridDim.x - 1;
    }
    __syncthreads();
    if (last && t == 0) {
        float sum = 0;
        for (int b = 0; b < gridDim.x; ++b) sum += partial[b];
        y[0] = sum;
    }
}

// Not a bug of memory, but of order: the result depends on which block comes last.
extern "C" __global__ void depends_on_order(const float* x, float* y) {
    if (threadIdx.x == 0) atomicExch(y, x[blockIdx.x]);
}
