// Known-wrong kernels, each beside its corrected twin: what they read and write.  The comment BUG marks the line that the
// CPU device must name.  See test_cpu_device_bugs.py for the launches.

// ---- out of bounds in global memory

extern "C" __global__ void read_next(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i + 1];                                 // BUG read_next
}
extern "C" __global__ void read_next_fixed(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = i + 1 < n ? x[i + 1] : 0;
}

extern "C" __global__ void write_unguarded(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float v = i < n ? x[i] : 0;
    y[i] = 2 * v;                                               // BUG write_unguarded
}
extern "C" __global__ void write_unguarded_fixed(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = 2 * x[i];
}

extern "C" __global__ void read_before(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i] - x[i - 1];                          // BUG read_before
}
extern "C" __global__ void read_before_fixed(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i] - (i ? x[i - 1] : 0);
}

extern "C" __global__ void loop_to_n(const float* x, float* y, int n) {
    float sum = 0;
    for (int j = threadIdx.x; j <= n; j += blockDim.x)
        sum += x[j];                                            // BUG loop_to_n
    y[threadIdx.x] = sum;
}
extern "C" __global__ void loop_to_n_fixed(const float* x, float* y, int n) {
    float sum = 0;
    for (int j = threadIdx.x; j < n; j += blockDim.x) sum += x[j];
    y[threadIdx.x] = sum;
}

// Transposed in the index, not in the launch: right for square matrices only.
extern "C" __global__ void swapped_strides(const float* x, float* y, int n) {
    int row = threadIdx.y, column = threadIdx.x, rows = 4, columns = 16;
    y[row * columns + column] = x[column * columns + row];      // BUG swapped_strides
}
extern "C" __global__ void swapped_strides_fixed(const float* x, float* y, int n) {
    int row = threadIdx.y, column = threadIdx.x, rows = 4, columns = 16;
    y[row * columns + column] = x[column * rows + row];
}

__device__ float element(const float* x, int i) {
    return x[i];                                                // BUG in_a_function
}
extern "C" __global__ void in_a_function(const float* x, float* y, int n) {
    int i = threadIdx.x;
    y[i] = element(x, 2 * i);
}
extern "C" __global__ void in_a_function_fixed(const float* x, float* y, int n) {
    int i = threadIdx.x;
    y[i] = element(x, 2 * i % n);
}

// The last float4 hangs over the end: 4 does not divide n.
extern "C" __global__ void float4_tail(const float* x, float* y, int n) {
    const float4* x4 = (const float4*)x;
    int i = threadIdx.x;
    if (4 * i < n) {
        float4 v = x4[i];                                       // BUG float4_tail
        y[i] = v.x + v.y + v.z + v.w;
    }
}
extern "C" __global__ void float4_tail_fixed(const float* x, float* y, int n) {
    const float4* x4 = (const float4*)x;
    int i = threadIdx.x;
    if (4 * i + 3 < n) {
        float4 v = x4[i];
        y[i] = v.x + v.y + v.z + v.w;
    } else if (4 * i < n) {
        float sum = 0;
        for (int j = 4 * i; j < n; ++j) sum += x[j];
        y[i] = sum;
    }
}

extern "C" __global__ void histogram(const int* x, int* bins, int n) {
    int i = threadIdx.x;
    if (i < n)
        atomicAdd(&bins[x[i]], 1);                              // BUG histogram
}
extern "C" __global__ void histogram_fixed(const int* x, int* bins, int n) {
    int i = threadIdx.x;
    if (i < n && x[i] < 8) atomicAdd(&bins[x[i]], 1);
}

// An offset so large that it lands in another array, one that this launch was not given.
extern "C" __global__ void far_away(const float* x, float* y, long long offset) {
    y[threadIdx.x] = x[threadIdx.x + offset];                   // BUG far_away
}
extern "C" __global__ void far_away_fixed(const float* x, float* y, long long offset) {
    y[threadIdx.x] = x[threadIdx.x];
}

__constant__ float weights[8] = {1, 2, 3, 4, 5, 6, 7, 8};
__device__ int after_weights = 5;
extern "C" __global__ void constant_array(const float* x, float* y, int n) {
    int i = threadIdx.x;
    y[i] = x[i] * weights[i];                                   // BUG constant_array
}
extern "C" __global__ void constant_array_fixed(const float* x, float* y, int n) {
    int i = threadIdx.x;
    y[i] = x[i] * weights[i % 8];
}

// An array of the thread's own: too short for n.
extern "C" __global__ void own_array(const float* x, float* y, int n) {
    float row[4];
    for (int j = 0; j < n; ++j)
        row[j] = x[j];                                          // BUG own_array
    float sum = 0;
    for (int j = 0; j < n; ++j) sum += row[j] * row[n - 1 - j];
    y[threadIdx.x] = sum;
}
extern "C" __global__ void own_array_fixed(const float* x, float* y, int n) {
    float row[8];
    for (int j = 0; j < n; ++j) row[j] = x[j];
    float sum = 0;
    for (int j = 0; j < n; ++j) sum += row[j] * row[n - 1 - j];
    y[threadIdx.x] = sum;
}

// ---- out of bounds in shared memory

extern "C" __global__ void shared_too_small(const float* x, float* y, int n) {
    __shared__ float s[64];
    int t = threadIdx.x;
    s[t] = x[t];                                                // BUG shared_too_small
    __syncthreads();
    y[t] = s[n - 1 - t];
}
extern "C" __global__ void shared_too_small_fixed(const float* x, float* y, int n) {
    __shared__ float s[128];
    int t = threadIdx.x;
    s[t] = x[t];
    __syncthreads();
    y[t] = s[n - 1 - t];
}

// a[32] is b[0] on a GPU: nothing crashes, b is just wrong.
extern "C" __global__ void into_the_next(const float* x, float* y, int n) {
    __shared__ float a[32];
    __shared__ float b[32];
    int t = threadIdx.x;
    b[t] = x[t];
    a[t + 1] = x[t];                                            // BUG into_the_next
    __syncthreads();
    y[t] = a[t ? t : 1] + b[31 - t];
}
extern "C" __global__ void into_the_next_fixed(const float* x, float* y, int n) {
    __shared__ float a[33];
    __shared__ float b[32];
    int t = threadIdx.x;
    b[t] = x[t];
    a[t + 1] = x[t];
    __syncthreads();
    y[t] = a[t ? t : 1] + b[31 - t];
}

extern "C" __global__ void dynamic_shared(const float* x, float* y, int n) {
    extern __shared__ float scratch[];
    int t = threadIdx.x;
    scratch[t] = x[t];                                          // BUG dynamic_shared
    __syncthreads();
    y[t] = scratch[n - 1 - t];
}

extern "C" __global__ void shared_before(const float* x, float* y, int n) {
    __shared__ float s[64];
    int t = threadIdx.x;
    s[t] = x[t];
    __syncthreads();
    y[t] = s[t] - s[t - 1];                                     // BUG shared_before
}
extern "C" __global__ void shared_before_fixed(const float* x, float* y, int n) {
    __shared__ float s[64];
    int t = threadIdx.x;
    s[t] = x[t];
    __syncthreads();
    y[t] = s[t] - (t ? s[t - 1] : 0);
}

// ---- misaligned

extern "C" __global__ void row_of_float4(const float* x, float* y, int columns) {
    const float4* row = (const float4*)(x + blockIdx.x * columns);
    float4 v = row[threadIdx.x];                                // BUG row_of_float4
    y[blockIdx.x * blockDim.x + threadIdx.x] = v.x + v.y + v.z + v.w;
}
extern "C" __global__ void row_of_float4_fixed(const float* x, float* y, int columns) {
    const float* v = x + blockIdx.x * columns + 4 * threadIdx.x;
    y[blockIdx.x * blockDim.x + threadIdx.x] = v[0] + v[1] + v[2] + v[3];
}

extern "C" __global__ void shared_float2(const float* x, float* y, int n) {
    __shared__ float s[66];
    int t = threadIdx.x;
    *(float2*)(s + 2 * t + 1) = make_float2(x[t], -x[t]);       // BUG shared_float2
    __syncthreads();
    y[t] = s[2 * t + 1];
}
extern "C" __global__ void shared_float2_fixed(const float* x, float* y, int n) {
    __shared__ float s[66];
    int t = threadIdx.x;
    *(float2*)(s + 2 * t) = make_float2(x[t], -x[t]);
    __syncthreads();
    y[t] = s[2 * t];
}

extern "C" __global__ void double_in_bytes(const unsigned char* x, float* y, int n) {
    y[threadIdx.x] = *(const double*)(x + 12 * threadIdx.x);    // BUG double_in_bytes
}
extern "C" __global__ void double_in_bytes_fixed(const unsigned char* x, float* y, int n) {
    y[threadIdx.x] = *(const double*)(x + 16 * threadIdx.x);
}

// ---- memory that nothing wrote

extern "C" __global__ void add_to_empty(const float* x, float* y, int n) {
    int i = threadIdx.x;
    if (i < n) y[i] += x[i];                                    // BUG add_to_empty
}
extern "C" __global__ void add_to_empty_fixed(const float* x, float* y, int n) {
    int i = threadIdx.x;
    if (i < n) y[i] = x[i];
}

extern "C" __global__ void atomic_on_empty(const float* x, float* y, int n) {
    atomicAdd(y, x[threadIdx.x]);                               // BUG atomic_on_empty
}

// Half of y is written, all of it is read.
extern "C" __global__ void half_filled(const float* x, float* y, int n) {
    int t = threadIdx.x;
    if (t < n / 2) y[t] = x[t];
    __syncthreads();
    float other = y[n - 1 - t];                                 // BUG half_filled
    __syncthreads();
    y[t] = other;
}
extern "C" __global__ void half_filled_fixed(const float* x, float* y, int n) {
    int t = threadIdx.x;
    y[t] = x[t];
    __syncthreads();
    float other = y[n - 1 - t];
    __syncthreads();
    y[t] = other;
}

extern "C" __global__ void empty_shared(const float* x, float* y, int n) {
    __shared__ float s[64];
    int t = threadIdx.x;
    if (t < n) s[t] = x[t];
    __syncthreads();
    y[t] = s[t] + s[63 - t];                                    // BUG empty_shared
}
extern "C" __global__ void empty_shared_fixed(const float* x, float* y, int n) {
    __shared__ float s[64];
    int t = threadIdx.x;
    s[t] = t < n ? x[t] : 0;
    __syncthreads();
    y[t] = s[t] + s[63 - t];
}

extern "C" __global__ void empty_shared_bytes(const float* x, float* y, int n) {
    __shared__ unsigned char flags[64];
    int t = threadIdx.x;
    if (t % 2) flags[t] = 1;
    __syncthreads();
    y[t] = flags[t];                                            // BUG empty_shared_bytes
}
extern "C" __global__ void empty_shared_bytes_fixed(const float* x, float* y, int n) {
    __shared__ unsigned char flags[64];
    int t = threadIdx.x;
    flags[t] = t % 2;
    __syncthreads();
    y[t] = flags[t];
}

// ---- outputs left unwritten: nothing that runs is wrong, something is missing

extern "C" __global__ void dropped_tail(const float* x, float* y, int n) {
    int per_thread = n / blockDim.x;
    for (int k = 0; k < per_thread; ++k) {
        int i = threadIdx.x * per_thread + k;
        y[i] = x[i];
    }
}
extern "C" __global__ void dropped_tail_fixed(const float* x, float* y, int n) {
    for (int i = threadIdx.x; i < n; i += blockDim.x) y[i] = x[i];
}

extern "C" __global__ void half_written(const float* x, float* y, int n) {
    int i = threadIdx.x;
    if (i % 2 == 0) y[i] = x[i];
}
extern "C" __global__ void half_written_fixed(const float* x, float* y, int n) {
    int i = threadIdx.x;
    y[i] = i % 2 == 0 ? x[i] : 0;
}
