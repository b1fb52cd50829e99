// Known-wrong kernels and their corrected twins: those that never end, or end everything.

extern "C" __global__ void for_ever(const int* x, int* y) {
    unsigned k = x[threadIdx.x];
    while (k != 1) k = k * 2654435761u | 2;                     // BUG for_ever
    y[threadIdx.x] = k;
}
extern "C" __global__ void nothing_for_ever(const int* x, int* y) {     // OTHER nothing_for_ever
    while (true) {}                                             // BUG nothing_for_ever
}
extern "C" __global__ void wait_for_memory(const int* x, int* y) {
    if (threadIdx.x == 0)
        while (((volatile const int*)x)[1] == 2) {}             // BUG wait_for_memory
    y[threadIdx.x] = x[threadIdx.x];
}
// Thread 0 waits for a flag that thread 1 sets only behind the barrier.
extern "C" __global__ void wait_for_thread(const int* x, int* y) {
    __shared__ int flag;
    if (threadIdx.x == 0) flag = 0;
    __syncthreads();
    if (threadIdx.x == 0)
        while (atomicAdd(&flag, 0) == 0) {}                     // BUG wait_for_thread
    __syncthreads();
    if (threadIdx.x == 1) atomicExch(&flag, 1);
    y[threadIdx.x] = x[threadIdx.x];
}
extern "C" __global__ void barriers_for_ever(const int* x, int* y) {
    for (int step = 0; x[0] + step != -1; step += 2)            // OTHER barriers_for_ever
        __syncthreads();                                        // BUG barriers_for_ever
    y[threadIdx.x] = 1;
}
extern "C" __global__ void shuffles_for_ever(const int* x, int* y) {
    int v = x[threadIdx.x] | 1;
    while (__any_sync(0xffffffffu, v != 0))                     // BUG shuffles_for_ever
        v = __shfl_xor_sync(0xffffffffu, v, 1) * 3;             // OTHER shuffles_for_ever
    y[threadIdx.x] = v;
}

__device__ int ever_deeper(const int* x, int n) {               // OTHER recursion
    int two[2] = {n, n + 1};                                    // OTHER2 recursion
    if (n != -1) two[x[n & 1] & 1] = ever_deeper(x, n + 2);     // BUG recursion
    return two[0] * two[1];
}
extern "C" __global__ void recursion(const int* x, int* y) { y[threadIdx.x] = ever_deeper(x, 0); }

extern "C" __global__ void large_array(const int* x, int* y, int n) {   // OTHER3 large_array
    int row[200000];                                            // BUG large_array
    for (int i = 0; i < n; ++i) row[(i * 7919) % 200000] = x[i % 32];   // OTHER large_array
    int sum = 0;
    for (int i = 0; i < n; ++i) sum += row[(i * 7919) % 200000];        // OTHER2 large_array
    y[threadIdx.x] = sum;
}

extern "C" __global__ void gives_up(const int* x, int* y) {
    if (threadIdx.x == 3)
        abort();                                                // BUG gives_up
    y[threadIdx.x] = x[threadIdx.x];
}
extern "C" __global__ void traps(const int* x, int* y) {
    if (threadIdx.x == 3)
        __trap();                                               // BUG traps
    y[threadIdx.x] = x[threadIdx.x];
}
extern "C" __global__ void asserts(const int* x, int* y) {
    assert(x[threadIdx.x] < 31);                                // BUG asserts
    y[threadIdx.x] = x[threadIdx.x];
}
extern "C" __global__ void divides_by_zero(const int* x, int* y) {
    y[threadIdx.x] = 100 / x[threadIdx.x];                      // BUG divides_by_zero
}
extern "C" __global__ void wild_pointer(const int* x, int* y) {
    int* p = (int*)(0x123456789000ull + 4 * threadIdx.x);
    *p = x[threadIdx.x];                                        // BUG wild_pointer
}
extern "C" __global__ void null_pointer(const int* x, int* y) {
    int* p = x[0] == 0 ? nullptr : y;
    p[threadIdx.x] = x[threadIdx.x];                            // BUG null_pointer
}
extern "C" __global__ void no_function(const int* x, int* y) {
    int (*f)(int) = x[0] == 0 ? (int (*)(int))(size_t)x[0] : nullptr;
    y[threadIdx.x] = f(x[threadIdx.x]) + x[0];                  // BUG no_function
}

extern "C" __global__ void ends_fixed(const int* x, int* y) {
    unsigned k = x[threadIdx.x];
    while (k > 1) k /= 2;
    assert(x[threadIdx.x] < 32);
    y[threadIdx.x] = k + 100 / (x[threadIdx.x] + 1);
}
