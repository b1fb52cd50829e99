// The threads of one block as fibers that go on in random order: what the kernels need of a GPU beside ptx.h.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <ucontext.h>
#include <vector>

struct uint3 { unsigned x, y, z; };
// A tile that is under way, to shared memory or (full == nullptr) back.  map: address, 3 sizes, 2 strides, 3 of the box.
struct Copy { char* tile; uint64_t map[9]; void* full; int column, row, head, thread; };

static ucontext_t scheduler, fibers[1024];
static std::vector<char> stacks;
static bool done[1024];
static int me, threads;
static long long progress, stuck;
static uint3 block, grid;
static std::mt19937 random_numbers;
static std::vector<Copy> copies;
static void (*body)();
static struct { uint64_t value[32], result[32]; int arrived, generation; } warps[32];
static struct { int arrived, generation; } meetings[32];                // 16: __syncthreads()

extern "C" {
alignas(1024) char cuda_dynamic_memory[232448 + 1024];
uint3 cuda_thread_idx() { return {(unsigned)me, 0, 0}; }
uint3 cuda_block_idx() { return block; }
uint3 cuda_block_dim() { return {(unsigned)threads, 1, 1}; }
uint3 cuda_grid_dim() { return grid; }
void cuda_count(int) {}
void cuda_trap(const char* why) { fprintf(stderr, "thread %d: %s\n", me, why), _Exit(3); }
void emulator_bytes(void* full, int n);
void emulator_progress() { ++progress; }
void emulator_yield() { swapcontext(&fibers[me], &scheduler); }
void emulator_copy(void* to, const void* from, void* full, int column, int row, int head) {
    Copy c{(char*)to, {}, full, column, row, head, me};
    memcpy(c.map, from, sizeof c.map);
    copies.push_back(c);
}
void emulator_wait_stores() {
    const auto mine = [](const Copy& c) { return !c.full && c.thread == me; };
    while (std::any_of(copies.begin(), copies.end(), mine)) emulator_yield();
}
static void meet(int number, int count, bool wait) {
    auto& m = meetings[number];
    const int generation = m.generation;
    ++progress;
    if (++m.arrived == count) m.arrived = 0, ++m.generation;
    while (wait && m.generation == generation) emulator_yield();
}
void emulator_meet(int number, int count, int wait) { meet(number, count, wait); }
int cuda_barrier(int, int, const char*, int) { return meet(16, threads, true), 0; }
uint64_t cuda_collective(int kind, unsigned, uint64_t value, int argument, int, const char*, int) {  // of whole warps
    auto& w = warps[me / 32];
    const int generation = w.generation, lane = me % 32;
    w.value[lane] = value;
    if (++w.arrived == 32) {
        uint64_t votes = 0;
        for (int i = 0; i < 32; ++i) votes |= (uint64_t)(w.value[i] != 0) << i;
        w.arrived = 0, ++w.generation, ++progress;
        // each lane reads its own result below: nobody writes values before all have read them
        memcpy(w.result, w.value, sizeof w.value);
        if (kind == 6) for (auto& r : w.result) r = votes;
    }
    while (w.generation == generation) emulator_yield();
    return w.result[kind == 0 ? argument % 32 : kind == 3 ? lane ^ argument : lane];
}

static void finish(const Copy& c) {
    const auto [address, D, S, heads, row_stride, head_stride, width, rows, one] = c.map;
    for (uint64_t r = 0; r < rows; ++r)
        for (uint64_t x = 0; x < width; ++x) {
            const bool exists = c.row + r < S && c.column + x < D && (uint64_t)c.head < heads;
            const size_t at = 128 * r + 2 * x;
            char* const in_tile = c.tile + (at ^ (at >> 7 & 7) << 4);
            void* const in_array = (void*)(address + c.head * head_stride + (c.row + r) * row_stride + 2 * (c.column + x));
            if (c.full) exists ? memcpy(in_tile, in_array, 2) : memset(in_tile, 0, 2);
            else if (exists) memcpy(in_array, in_tile, 2);
        }
    if (c.full) emulator_bytes(c.full, (int)(2 * width * rows));
}
static void fiber() {
    body();
    done[me] = true;
    ++progress;
    swapcontext(&fibers[me], &scheduler);
}
static void run_block() {
    memset(cuda_dynamic_memory, 0xff, sizeof cuda_dynamic_memory);       // NaN
    memset(meetings, 0, sizeof meetings), memset(warps, 0, sizeof warps);
    for (int i = 0; i < threads; ++i) {
        getcontext(&fibers[i]);
        fibers[i].uc_stack.ss_sp = &stacks[(size_t)i << 16], fibers[i].uc_stack.ss_size = 1 << 16;
        makecontext(&fibers[i], fiber, 0);
        done[i] = false;
    }
    std::vector<int> order(threads / 32);
    for (size_t i = 0; i < order.size(); ++i) order[i] = (int)i;
    for (int left = threads; left;) {
        const long long before = progress;
        std::shuffle(order.begin(), order.end(), random_numbers);
        left = 0;
        for (int w : order) {
            const bool late = random_numbers() % 4 == 0;
            for (int i = 32 * w; i < 32 * w + 32; ++i) {
                left += !done[i];
                if (!late && !done[i]) me = i, swapcontext(&scheduler, &fibers[i]);
            }
        }
        for (size_t i = 0; i < copies.size();)
            if (random_numbers() % 3 == 0) {
                const Copy c = copies[i];
                copies.erase(copies.begin() + i), finish(c);
            } else ++i;
        stuck = progress == before && copies.empty() ? stuck + 1 : 0;
        if (stuck > 1000) fprintf(stderr, "block %u %u: all threads wait\n", block.x, block.y), _Exit(4);
    }
}
}  // extern "C"

// What a launch needs, as the test writes it before the items, q, k and v; the addresses in the maps are filled in here.
struct Launch {
    int64_t x, y, threads, seed, Sq, Sk, causal, items, blocks, q_bytes, k_bytes, lse_numbers;
    uint64_t maps[4][16];
    double scale;
};
static Launch launch;
static std::vector<char> q, k, v, o;
static std::vector<float> lse;
static std::vector<int> items;
extern "C" void call_kernel(const void* maps, float* lse, int Sq, int Sk, int causal, float scale, const int* items, int blocks);
static void call() {
    call_kernel(launch.maps, lse.data(), (int)launch.Sq, (int)launch.Sk, (int)launch.causal, (float)launch.scale,
                items.data(), (int)launch.blocks);
}
static void read(void* to, size_t n) {
    if (fread(to, 1, n, stdin) != n) _Exit(5);
}
// From stdin to stdout: Launch, items, q, k, v become o and lse.  Ends with 3 if a thread traps, with 4 if nothing goes on.
int main() {
    read(&launch, sizeof launch);
    q.resize(launch.q_bytes), k.resize(launch.k_bytes), v.resize(launch.k_bytes), o.assign(launch.q_bytes, (char)0xff);
    lse.assign(launch.lse_numbers, NAN);
    items.resize(launch.items), read(items.data(), 4 * items.size());
    std::vector<char>* arrays[] = {&q, &k, &v};
    for (int i = 0; i < 3; ++i) read(arrays[i]->data(), arrays[i]->size()), launch.maps[i][0] = (uint64_t)arrays[i]->data();
    launch.maps[3][0] = (uint64_t)o.data();
    grid = {(unsigned)launch.x, (unsigned)launch.y, 1}, threads = (int)launch.threads, body = call;
    random_numbers.seed((unsigned)launch.seed);
    stacks.resize((size_t)threads << 16);
    for (block.y = 0; block.y < grid.y; ++block.y)
        for (block.x = 0; block.x < grid.x; ++block.x) run_block();
    fwrite(o.data(), 1, o.size(), stdout), fwrite(lse.data(), 4, lse.size(), stdout);
}
