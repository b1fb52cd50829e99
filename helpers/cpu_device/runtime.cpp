// The CPU device's engine: a worker process that loads compiled kernels and runs them, block by block, lane by lane.
//
// Every CUDA thread is a fiber.  A fiber runs until it must wait for others: at a barrier or a warp collective.  When
// checking, the compiler's -fsanitize=thread calls __tsan_read4(address) and so on before each access; those functions are
// defined here.  They check the access (checks.h) and note it in the lane's log; when all lanes wait, or a log is full,
// the logs of a warp are read side by side, and what a GPU would issue as one request is counted as one (counters.h).
//
// Being a process of its own it may crash, hang or recurse for ever: the Python side (worker.py) reads why from a
// signal handler's last words, starts another worker, and the arrays, which live in memory shared by both, survive.
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
#include <algorithm>
#include <map>
#include <vector>
#include "fiber.h"

struct uint3 { unsigned x, y, z; };

enum State : uint8_t { RUN, LOG_FULL, COLLECTIVE, BARRIER, DONE };
enum Space : uint8_t { GLOBAL, SHARED, LOCAL, VARIABLE, OTHER };
enum Kind : uint8_t { LOAD, STORE, ATOMIC };

struct alignas(64) Lane {  // what is known of a thread, beyond its state and its stack
  uint64_t value, result;  // of the collective it waits for
  const char *file;
  uintptr_t pc;
  unsigned mask;
  int op, argument, line;
  int16_t width;
  uint16_t depth;  // of function calls, so that lanes inside a call go before lanes after it
  uint3 thread;
};

// ---- what the Python side sends and gets (worker.py mirrors these layouts) -----------------------------------------
struct Request {
  uint32_t grid[3], block[3];
  uint32_t shared_bytes, argument_bytes, arrays, shared_symbols, variables, flags, seed, trace_limit;
  double seconds;
  uint64_t globals_at;  // offset in the arena where the module's device variables live, or ~0
  uint64_t library_bytes;
  uint32_t library_chars, entry_chars;
};
enum { CHECKED = 1, TRACE = 2, INIT_GLOBALS = 4, SHARE_BLOCKS = 8, DESCRIBE = 16 };
struct Array { uint64_t offset, bytes, flags; };
enum { INITIALIZED = 1, WANTS_WRITTEN = 2, PASSED = 4, READ_ONLY = 8 };
struct Symbol { uint64_t offset, bytes; };  // of a __shared__ array or a __device__ variable inside the library

enum Problem { OK, OUT_OF_BOUNDS, MISALIGNED, UNINITIALIZED, RACE, BLOCK_RACE, BARRIER_PROBLEM, COLLECTIVE_PROBLEM, TRAP,
               TIMEOUT, STACK_OVERFLOW, CRASH, UNWRITTEN, LOAD_FAILED };
struct Report {  // of the first problem
  int32_t problem, space, array, kind;
  uint64_t address, bytes, pc, other_pc, callers[8];
  uint32_t thread[3], block[3], other_thread[3];
  int32_t line, other_line, other_kind, signal;
  char file[256], other_file[256], text[512];
};
struct Reply {
  Report report;
  uint64_t barriers, collectives, exps, logs, divisions, blocks;
  uint64_t rows, events, printed, ended;  // ended: this process is no more
};

// ---- the launch under way -------------------------------------------------------------------------------------------
static Request request;
static Reply reply;
static char printed[1 << 20];  // like a GPU's, the buffer of printf has an end
static size_t printed_size;
static char *arena;
static uint64_t arena_bytes;
static std::vector<Array> arrays;
static std::vector<Symbol> shared_symbols, variables;
static char arguments[8192];
static void *argument_at[256];
static void (*entry)(void **);
static char *library_base, *library_end;
extern "C" { alignas(1024) char cuda_dynamic_memory[232448 + 1024]; }  // `extern __shared__` arrays point to it
static Stacks stacks;
constexpr int MAX_THREADS = 1024;
static Lane lanes[MAX_THREADS], *lane;  // `lane` is the one that runs, lanes[me]
static State state_of[MAX_THREADS];
static void *sp_of[MAX_THREADS + 2], *scheduler_sp;
static int me, threads, warp_end;
static bool failed, checked, in_order;
static uint64_t block_number;
static uint3 block_index;
static uint64_t random_state;
static int reply_fd;
static struct {  // the barrier that threads of the block wait at
  int arrived, predicates, kind, result;
  const char *file, *other_file;
  int line, other_line, first, other;  // `other`: a thread that waits at another barrier than `first`, or -1
} barrier;

static uint32_t random_below(uint32_t n) {
  random_state = random_state * 6364136223846793005ull + 1442695040888963407ull;
  return (uint32_t)(((random_state >> 33) * n) >> 31);
}
static void write_all(const void *data, size_t n) {
  for (const char *p = (const char *)data; n;) {
    ssize_t w = write(reply_fd, p, n);
    if (w < 0 && errno == EINTR) continue;
    if (w <= 0) _exit(3);
    p += w, n -= w;
  }
}
static void set3(uint32_t to[3], uint3 v) { to[0] = v.x, to[1] = v.y, to[2] = v.z; }
static void copy_text(char *to, size_t n, const char *from) { snprintf(to, n, "%s", from ? from : ""); }

// Wait: go on with the next lane of the warp if it can run, else with the scheduler.
static inline __attribute__((always_inline)) void yield() {
  int next = me + 1;
  void **save = &sp_of[me];
  if (next < warp_end && state_of[next] == RUN && in_order) {
    me = next, lane = &lanes[next];
    for (int line = 0; line < 3; ++line) __builtin_prefetch((char *)sp_of[next + 2] + 64 * line);  // stacks are not in the cache
    fiber_switch(save, sp_of[next]);
  } else {
    fiber_switch(save, scheduler_sp);
  }
}
[[noreturn]] static void abandon() {
  fiber_switch(&sp_of[me], scheduler_sp);
  __builtin_unreachable();
}

// The first problem is the one that is told; whoever finds it leaves the fiber for good.
static Report new_report(Problem problem, uintptr_t pc) {
  Report r;
  memset(&r, 0, sizeof r);
  r.problem = problem, r.pc = pc ? pc - (uintptr_t)library_base : 0, r.array = -1;
  if (lane) set3(r.thread, lane->thread);
  set3(r.block, block_index);
  return r;
}
static void report(const Report &r) {
  if (!failed) reply.report = r;
  failed = true;
}

#include "checks.h"
#include "counters.h"

// ---- the hooks ------------------------------------------------------------------------------------------------------
static inline __attribute__((always_inline)) void note(const Place &p) {
  Log &log = logs[me % 32];
  log.entries[log.tail++ % LOG] = {key_of(p, lane->depth), p.address};
  if (log.tail - log.head < log_limit) return;
  state_of[me] = LOG_FULL;
  yield();
}
static __attribute__((noinline)) void access_slowly(Place &p) {
  if (!locate(p)) return;
  if (p.space == LOCAL) return count_local(p);  // its own stack: nobody else can see it
  if (p.space == SHARED) check_shared(p);
  else check_global(p);
  note(p);
}
static inline __attribute__((always_inline)) void access(uintptr_t address, int bytes, Kind kind, uintptr_t pc) {
  if (!lane || !checked) return;  // (no lane: the library's constructors run)
  Place p = {GLOBAL, array_of_pc[pc % 4096], address, bytes, kind, pc};
  if (kind == LOAD && harmless(p)) note(p);  // most accesses are
  else access_slowly(p);
}
static void access_range(uintptr_t address, size_t n, Kind kind, uintptr_t pc) {
  for (int step; n; address += step, n -= step) {
    for (step = 16; step > (int)n || address % step;) step /= 2;
    access(address, step, kind, pc);
  }
}
#define PC (uintptr_t) __builtin_return_address(0)
#define HOOK(n)                                                                                      \
  void __tsan_read##n(void *p) { access((uintptr_t)p, n, LOAD, PC); }                                \
  void __tsan_write##n(void *p) { access((uintptr_t)p, n, STORE, PC); }                              \
  void __tsan_volatile_read##n(void *p) { access((uintptr_t)p, n, LOAD, PC); }                       \
  void __tsan_volatile_write##n(void *p) { access((uintptr_t)p, n, STORE, PC); }                     \
  void __tsan_unaligned_read##n(void *p) { access_range((uintptr_t)p, n, LOAD, PC); }                \
  void __tsan_unaligned_write##n(void *p) { access_range((uintptr_t)p, n, STORE, PC); }              \
  void __tsan_unaligned_volatile_read##n(void *p) { access_range((uintptr_t)p, n, LOAD, PC); }       \
  void __tsan_unaligned_volatile_write##n(void *p) { access_range((uintptr_t)p, n, STORE, PC); }     \
  void __tsan_read_write##n(void *p) { access((uintptr_t)p, n, LOAD, PC), access((uintptr_t)p, n, STORE, PC); } \
  void __tsan_unaligned_read_write##n(void *p) { access_range((uintptr_t)p, n, LOAD, PC), access_range((uintptr_t)p, n, STORE, PC); }
extern "C" {
HOOK(1) HOOK(2) HOOK(4) HOOK(8) HOOK(16)
void __tsan_init() {}
void __tsan_func_entry(void *) { if (lane) ++lane->depth; }
void __tsan_func_exit() { if (lane) --lane->depth; }
// A range of 8 or 16 bytes is a float2 or float4 that the compiler knows to be misaligned; others are structs.
static void access_struct(uintptr_t p, size_t n, Kind kind, uintptr_t pc) {
  n <= 16 && (n & (n - 1)) == 0 ? access(p, (int)n, kind, pc) : access_range(p, n, kind, pc);
}
void __tsan_read_range(void *p, size_t n) { access_struct((uintptr_t)p, n, LOAD, PC); }
void __tsan_write_range(void *p, size_t n) { access_struct((uintptr_t)p, n, STORE, PC); }
void *cuda_memcpy(void *to, const void *from, size_t n) {
  if (checked) access_range((uintptr_t)from, n, LOAD, PC), access_range((uintptr_t)to, n, STORE, PC);
  return memmove(to, from, n);
}
void *cuda_memset(void *to, int c, size_t n) {
  if (checked) access_range((uintptr_t)to, n, STORE, PC);
  return memset(to, c, n);
}
void *__tsan_memcpy(void *to, const void *from, size_t n) { return cuda_memcpy(to, from, n); }
void *__tsan_memmove(void *to, const void *from, size_t n) { return cuda_memcpy(to, from, n); }
void *__tsan_memset(void *to, int c, size_t n) { return cuda_memset(to, c, n); }
// -fsanitize=bounds: an index beyond an array whose size the compiler knows, such as a thread's own array.
void __ubsan_handle_out_of_bounds_abort(void *data, uint64_t index) {
  struct Type { uint16_t kind, info; char name[]; };
  struct { const char *file; uint32_t line, column; const Type *array, *index; } *at = (decltype(at))data;
  int bits = 1 << (at->index->info >> 1);
  bool is_signed = at->index->info & 1;
  Report r = new_report(OUT_OF_BOUNDS, PC);
  r.space = LOCAL, r.kind = LOAD, r.line = at->line;
  r.address = is_signed && bits < 64 ? (uint64_t)((int64_t)(index << (64 - bits)) >> (64 - bits)) : index;
  copy_text(r.file, sizeof r.file, at->file);
  copy_text(r.text, sizeof r.text, at->array->name);
  report(r);
  abandon();
}

void __ubsan_handle_divrem_overflow_abort(void *, uint64_t, uint64_t) {
  Report r = new_report(CRASH, PC);
  r.signal = SIGFPE;
  report(r);
  abandon();
}

uint3 cuda_thread_idx() { return lane->thread; }
uint3 cuda_block_idx() { return block_index; }
uint3 cuda_block_dim() { return {request.block[0], request.block[1], request.block[2]}; }
uint3 cuda_grid_dim() { return {request.grid[0], request.grid[1], request.grid[2]}; }
unsigned cuda_dynamic_bytes() { return request.shared_bytes; }
void cuda_fence() { block_synchronized = true; }
void cuda_count(int what) { ++(what ? reply.logs : reply.exps); }
long long cuda_clock() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000ll + t.tv_nsec;
}
void cuda_trap(const char *why) {
  Report r = new_report(TRAP, PC);
  copy_text(r.text, sizeof r.text, why);
  report(r);
  abandon();
}
int cuda_printf(const char *format, ...) {
  char line[1024];
  va_list args;
  va_start(args, format);
  int n = vsnprintf(line, sizeof line, format, args);
  va_end(args);
  size_t room = sizeof printed - printed_size, length = std::min<size_t>(n < 0 ? 0 : n, std::min(room, sizeof line - 1));
  memcpy(printed + printed_size, line, length);
  printed_size += length;
  return n;
}

int cuda_barrier(int kind, int predicate, const char *file, int line) {
  auto &b = barrier;
  if (!b.arrived) b.kind = kind, b.file = file, b.line = line, b.first = me;
  else if ((line != b.line || (file != b.file && strcmp(file, b.file))) && b.other < 0) b.other = me, b.other_file = file, b.other_line = line;
  ++b.arrived, b.predicates += predicate != 0;
  state_of[me] = BARRIER;
  yield();
  return barrier.result;
}
uint64_t cuda_collective(int op, unsigned mask, uint64_t value, int argument, int width, const char *file, int line) {
  Lane &l = *lane;
  l.op = op, l.mask = mask, l.value = value, l.argument = argument, l.width = (int16_t)width;
  l.file = file, l.line = line, l.pc = PC, state_of[me] = COLLECTIVE;
  yield();
  return lane->result;
}
void cuda_atomic_enter(void *p, int bytes) {
  if (checked) access((uintptr_t)p, bytes, ATOMIC, PC);
}
uint64_t cuda_peek(void *p, int bytes) {
  return bytes == 2 ? __atomic_load_n((uint16_t *)p, __ATOMIC_SEQ_CST)
       : bytes == 4 ? __atomic_load_n((uint32_t *)p, __ATOMIC_SEQ_CST) : __atomic_load_n((uint64_t *)p, __ATOMIC_SEQ_CST);
}
uint64_t cuda_compare_and_swap(void *p, int bytes, uint64_t expected, uint64_t desired) {
#define CAS(T) { T e = (T)expected; __atomic_compare_exchange_n((T *)p, &e, (T)desired, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST); return e; }
  if (bytes == 2) CAS(uint16_t)
  if (bytes == 4) CAS(uint32_t)
  CAS(uint64_t)
}
void fiber_main() {
  entry(argument_at);
  state_of[me] = DONE;
  yield();
  __builtin_trap();
}
}  // extern "C"

// ---- warp collectives ------------------------------------------------------------------------------------------------
enum { SYNC, SYNC_COUNT, SYNC_AND, SYNC_OR };
enum { C_IDX, C_UP, C_DOWN, C_XOR, C_SYNCWARP, C_ACTIVE, C_BALLOT, C_MATCH_ANY, C_MATCH_ALL, C_ADD, C_MIN_S, C_MAX_S, C_MIN_U,
       C_MAX_U, C_AND, C_OR, C_REDUCE_XOR };

static const char *waiting_at(int thread, const Lane &l, int *line) {
  bool at_barrier = state_of[thread] == BARRIER;
  *line = at_barrier ? barrier.line : state_of[thread] == COLLECTIVE ? l.line : 0;
  return at_barrier ? barrier.file : l.file;
}
// Thread `t` cannot go on; `other` (or -1) is the one it misses.
static bool collective_problem(int t, int other, const char *text) {
  Lane &l = lanes[t];
  lane = &l;
  Report r = new_report(COLLECTIVE_PROBLEM, l.pc);
  r.line = l.line, r.kind = l.op;
  copy_text(r.file, sizeof r.file, l.file);
  copy_text(r.text, sizeof r.text, text);
  if (other >= 0) {
    set3(r.other_thread, lanes[other].thread);
    copy_text(r.other_file, sizeof r.other_file, waiting_at(other, lanes[other], &r.other_line));
    r.other_kind = state_of[other];
  }
  report(r);
  return false;
}
static uint64_t combine(int op, uint64_t a, uint64_t b) {
  switch (op) {
    case C_ADD: return (uint32_t)(a + b);
    case C_MIN_S: return (uint32_t)std::min((int32_t)a, (int32_t)b);
    case C_MAX_S: return (uint32_t)std::max((int32_t)a, (int32_t)b);
    case C_MIN_U: return std::min(a, b);
    case C_MAX_U: return std::max(a, b);
    case C_AND: return a & b;
    case C_OR: return a | b;
    default: return a ^ b;
  }
}
// The lane that lane `i` reads in a shuffle: itself where the source would lie outside its segment.
static int source_lane(const Lane &l, int i) {
  int first = i & ~(l.width - 1), end = first + l.width;
  switch (l.op) {
    case C_IDX: return first + (l.argument & (l.width - 1));
    case C_UP: return i - l.argument < first ? i : i - l.argument;
    case C_DOWN: return i + l.argument >= end ? i : i + l.argument;
    default: return (i ^ l.argument) >= end ? i : i ^ l.argument;
  }
}
// Each lane of `mask` gets the value of the lane that it reads.
static bool shuffle(int first, int n, unsigned mask) {
  Lane *warp = lanes + first;
  for (unsigned m = mask; m; m &= m - 1) {
    int i = __builtin_ctz(m), from = source_lane(warp[i], i);
    if (from >= n || !(mask >> from & 1)) {
      char text[160];
      snprintf(text, sizeof text, from >= n ? "reads lane %d, but this warp has only %d lanes" : state_of[first + from] == DONE
               ? "reads lane %d, which has already returned" : "reads lane %d, which takes no part (mask 0x%08x)",
               from, from >= n ? n : (int)warp[i].mask);
      return collective_problem(first + i, -1, text);
    }
    warp[i].result = warp[from].value;
  }
  ++reply.collectives;
  return true;
}
// Each lane of `mask` gets what all of them together amount to.
static void vote(Lane *warp, int op, unsigned mask) {
  uint64_t all = warp[__builtin_ctz(mask)].value, votes = 0;
  bool same = true;
  for (unsigned m = mask; m; m &= m - 1) {
    int i = __builtin_ctz(m);
    same &= warp[i].value == warp[__builtin_ctz(mask)].value;
    votes |= (uint64_t)(warp[i].value != 0) << i;
    if (op >= C_ADD && m != mask) all = combine(op, all, warp[i].value);
  }
  if (op == C_BALLOT) all = votes;
  if (op == C_MATCH_ALL) all = same ? mask : 0;
  if (op == C_ACTIVE) all = mask;
  for (unsigned m = mask; m; m &= m - 1) {
    Lane &l = warp[__builtin_ctz(m)];
    l.result = op == C_MATCH_ANY ? 0 : all;
    for (unsigned k = op == C_MATCH_ANY ? mask : 0; k; k &= k - 1)
      l.result |= (uint64_t)(warp[__builtin_ctz(k)].value == l.value) << __builtin_ctz(k);
  }
}
// All lanes of `mask` have arrived: give each its result.  `first` is the first thread of the warp, `n` its number of lanes.
static bool complete(int first, int n, unsigned mask) {
  int op = lanes[first + __builtin_ctz(mask)].op;
  if (op == C_SYNCWARP) ++warp_epoch[first / 32];
  else if (op > C_XOR) vote(lanes + first, op, mask);
  else if (!shuffle(first, n, mask)) return false;
  for (unsigned m = mask; m; m &= m - 1) state_of[first + __builtin_ctz(m)] = RUN;
  return true;
}
// Every lane of the warp waits.  Complete one collective whose lanes are all there, or say why none can be.
static bool run_collective(int first, int n) {
  const Lane *warp = lanes + first;
  const State *state = state_of + first;
  unsigned gone = n < 32 ? ~0u << n : 0;
  for (int i = 0; i < n; ++i) gone |= (unsigned)(state[i] == DONE) << i;
  int stuck = -1, missing = -1, active = -1;
  for (int i = 0; i < n; ++i) {
    const Lane &l = warp[i];
    if (state[i] != COLLECTIVE) continue;
    if (l.op == C_ACTIVE) {  // of several such calls, the one that the others still have before them
      if (active < 0 || l.depth > warp[active].depth || (l.depth == warp[active].depth && l.pc < warp[active].pc)) active = i;
      continue;
    }
    if (!(l.mask >> i & 1)) return collective_problem(first + i, -1, "is called by a lane that its own mask leaves out");
    if (l.width < 1 || l.width > 32 || (l.width & (l.width - 1))) {
      char text[80];
      snprintf(text, sizeof text, "shuffles with width %d, which is no power of two up to 32", l.width);
      return collective_problem(first + i, -1, text);
    }
    int waits_for = -1;
    for (unsigned m = l.mask & ~gone; m && waits_for < 0; m &= m - 1) {
      int k = __builtin_ctz(m);
      if (state[k] != COLLECTIVE || warp[k].op != l.op || warp[k].mask != l.mask) waits_for = k;
    }
    if (waits_for < 0) return complete(first, n, l.mask & ~gone);
    if (stuck < 0) stuck = i, missing = waits_for;
  }
  if (active >= 0) {  // the lanes that stand at this very call
    unsigned together = 0;
    for (int k = 0; k < n; ++k) together |= (unsigned)(state[k] == COLLECTIVE && warp[k].op == C_ACTIVE && warp[k].pc == warp[active].pc) << k;
    return complete(first, n, together);
  }
  return collective_problem(first + stuck, first + missing, state[missing] == BARRIER ? "waits for a lane that waits at a barrier"
                            : "waits for a lane that waits for something else");
}

// ---- the scheduler -----------------------------------------------------------------------------------------------------
static void resume(int thread) {
  me = thread, lane = &lanes[thread];
  if (!in_order) log_limit = random_below(4) ? 1 + random_below(3) : LOG;
  fiber_switch(&scheduler_sp, sp_of[thread]);
}
// Let a warp run until each of its lanes waits at a barrier or has returned.
static bool run_warp(int first, int n) {
  warp_end = first + n;
  const State *state = state_of + first;
  if (checked) for (int i = 0; i < n; ++i) logs[i].head = logs[i].tail = 0;
  for (;;) {
    int start = in_order ? 0 : random_below(n);
    for (int k = 0; k < n; ++k) {
      int i = start + k < n ? start + k : start + k - n;
      if (state[i] == RUN) resume(first + i);
      if (failed) return false;
    }
    if (checked && replay(first, n)) continue;
    if (!memchr(state, COLLECTIVE, n)) return true;
    if (!run_collective(first, n)) return false;
  }
}
// Every thread of the block waits at a barrier or has returned.  Sets `done` when all have returned.
static bool run_barrier(bool &done) {
  if (!nothing_read_too_early()) return false;
  auto &b = barrier;
  if (!b.arrived) return done = true;
  if (b.arrived < threads || b.other >= 0) {
    const State *gone = (const State *)memchr(state_of, DONE, threads);
    int other = gone ? (int)(gone - state_of) : b.other;
    lane = &lanes[b.first];
    Report r = new_report(BARRIER_PROBLEM, 0);
    r.line = b.line;
    copy_text(r.file, sizeof r.file, b.file);
    set3(r.other_thread, lanes[other].thread);
    if (!gone) r.other_line = b.other_line, copy_text(r.other_file, sizeof r.other_file, b.other_file);
    report(r);
    return false;
  }
  b.result = b.kind == SYNC_COUNT ? b.predicates : b.kind == SYNC_AND ? b.predicates == threads : b.predicates > 0;
  b.arrived = b.predicates = 0;
  memset(state_of, RUN, threads);
  ++epoch, ++reply.barriers;
  return true;
}
static bool run_block(uint64_t number) {
  block_number = number;
  block_index = {(unsigned)(number % request.grid[0]), (unsigned)(number / request.grid[0] % request.grid[1]),
                 (unsigned)(number / request.grid[0] / request.grid[1])};
  for (int i = 0; i < threads; ++i) lanes[i].depth = 0, sp_of[i] = fiber_prepare(stacks.top(i));
  memset(state_of, RUN, threads);
  barrier.arrived = barrier.predicates = 0, barrier.other = -1;
  begin_block();
  int warps = (threads + 31) / 32;
  for (bool done = false; !done;) {
    int start = in_order ? 0 : random_below(warps), step = !in_order && random_below(2) ? warps - 1 : 1;
    for (int k = 0; k < warps; ++k) {
      int w = (int)((start + (uint64_t)k * step) % warps);
      if (!run_warp(w * 32, std::min(32, threads - w * 32))) return false;
    }
    if (!run_barrier(done)) return false;
  }
  ++reply.blocks;
  return true;
}
static void run_grid() {
  uint64_t blocks = (uint64_t)request.grid[0] * request.grid[1] * request.grid[2];
  threads = request.block[0] * request.block[1] * request.block[2];
  stacks.reserve(threads);
  for (unsigned i = 0; i < (unsigned)threads; ++i)
    lanes[i].thread = {i % request.block[0], i / request.block[0] % request.block[1], i / request.block[0] / request.block[1]};
  if (request.flags & SHARE_BLOCKS) {
    uint64_t *next = (uint64_t *)arena;  // the first bytes of the arena: a counter that workers on other cores share
    uint64_t some = std::max<uint64_t>(1, std::min<uint64_t>(16, blocks / 64));
    for (uint64_t b; !failed && (b = __atomic_fetch_add(next, some, __ATOMIC_RELAXED)) < blocks;)
      for (uint64_t i = b; i < std::min(b + some, blocks) && !failed; ++i) run_block(i);
    if (failed) __atomic_store_n(next, blocks, __ATOMIC_RELAXED);  // the others need not go on
    return;
  }
  uint64_t start = in_order ? 0 : random_below((uint32_t)std::min<uint64_t>(blocks, 1u << 30));
  bool backward = !in_order && random_below(2);
  for (uint64_t k = 0; k < blocks && !failed; ++k) {
    uint64_t b = (start + k) % blocks;
    run_block(backward ? blocks - 1 - b : b);
  }
}

// ---- last words --------------------------------------------------------------------------------------------------------
static void send_reply(bool ended = false) {
  Report &r = reply.report;
  if (read_too_early.problem && r.problem != RACE && r.problem != BLOCK_RACE) r = read_too_early;  // what followed, followed from it
  reply.rows = ended ? 0 : counter_rows.size(), reply.events = ended ? 0 : trace.size();
  reply.printed = printed_size, reply.ended = ended;
  write_all(&reply, sizeof reply);
  write_all(counter_rows.data(), reply.rows * sizeof(CounterRow));
  write_all(trace.data(), reply.events * sizeof(Event));
  write_all(printed, printed_size);
}
// Where the code that a signal stopped was, its stack, and on Arm the caller, which need not be on the stack yet.
static void find_place(void *context, uintptr_t *pc, uintptr_t **sp, uintptr_t *caller) {
  ucontext_t *u = (ucontext_t *)context;
  *caller = 0;
#if defined(__APPLE__) && defined(__aarch64__)
  *pc = u->uc_mcontext->__ss.__pc, *sp = (uintptr_t *)u->uc_mcontext->__ss.__sp, *caller = u->uc_mcontext->__ss.__lr;
#elif defined(__APPLE__)
  *pc = u->uc_mcontext->__ss.__rip, *sp = (uintptr_t *)u->uc_mcontext->__ss.__rsp;
#elif defined(__aarch64__)
  *pc = u->uc_mcontext.pc, *sp = (uintptr_t *)u->uc_mcontext.sp, *caller = u->uc_mcontext.regs[30];
#else
  *pc = u->uc_mcontext.gregs[REG_RIP], *sp = (uintptr_t *)u->uc_mcontext.gregs[REG_RSP];
#endif
}
static double deadline;
static pid_t parent;
static double seconds_now() { return cuda_clock() * 1e-9; }

static void on_signal(int number, siginfo_t *info, void *context) {
  if (number == SIGALRM) {  // ten times a second during a launch
    if (getppid() != parent) _exit(0);
    if (seconds_now() < deadline) return;
  }
  signal(number, SIG_DFL);
  if (!lane) _exit(4);
  uintptr_t pc, *sp, caller;
  find_place(context, &pc, &sp, &caller);
  auto in_library = [](uintptr_t p) { return p >= (uintptr_t)library_base && p < (uintptr_t)library_end; };
  uintptr_t address = (uintptr_t)info->si_addr;
  bool overflow = number != SIGALRM && stacks.in_guard(address);
  Report r = new_report(number == SIGALRM ? TIMEOUT : overflow ? STACK_OVERFLOW : CRASH, in_library(pc) ? pc + 1 : 0);
  if (!stacks.holds((uintptr_t)sp)) sp = (uintptr_t *)sp_of[me];
  if (overflow) sp = (uintptr_t *)stacks.low(me);
  uintptr_t *stop = std::min(sp + 512, (uintptr_t *)stacks.top(stacks.owner((uintptr_t)sp)));
  if (in_library(caller)) r.other_pc = caller - (uintptr_t)library_base;
  for (int n = 0; n < 8 && sp < stop; ++sp)  // further callers: addresses of code on the stack
    if (in_library(*sp)) r.callers[n++] = *sp - (uintptr_t)library_base;
  r.signal = number, r.address = address;
  report(r);
  send_reply(true);
  _exit(0);
}
static void catch_signals() {
  static char signal_stack[64 << 10];
  stack_t alternative = {};
  alternative.ss_sp = signal_stack, alternative.ss_size = sizeof signal_stack;
  sigaltstack(&alternative, nullptr);
  struct sigaction action = {};
  action.sa_sigaction = on_signal, action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART;
  for (int s : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGALRM}) sigaction(s, &action, nullptr);
  signal(SIGINT, SIG_IGN);  // Ctrl-C belongs to the Python side, which ends this process
}
static void set_alarm(double seconds) {
  deadline = seconds_now() + seconds;
  itimerval timer = {};
  if (seconds > 0) timer.it_value.tv_usec = timer.it_interval.tv_usec = 100000;
  setitimer(ITIMER_REAL, &timer, nullptr);
}

// ---- the worker's loop -------------------------------------------------------------------------------------------------
static bool read_all(int fd, void *data, size_t n) {
  for (char *p = (char *)data; n;) {
    ssize_t r = read(fd, p, n);
    if (r < 0 && errno == EINTR) continue;
    if (r <= 0) return false;
    p += r, n -= r;
  }
  return true;
}
template <class T> static void read_many(int fd, std::vector<T> &to, size_t n) {
  to.resize(n);
  if (!read_all(fd, to.data(), n * sizeof(T))) _exit(0);
}
// __device__ and __constant__ variables live in the arena: lay its pages over the library's section, so that every worker
// and the Python side see the same variables, and a crash loses none.
static void map_variables(int arena_fd) {
  struct Section { std::vector<char> initial; uint64_t at; };  // `at`: whose variables lie there now; several modules may share a library
  static std::map<char *, Section> sections;
  char *start = library_base + variables[0].offset;
  auto found = sections.find(start);
  if (found == sections.end()) found = sections.insert({start, {std::vector<char>(start, start + variables[0].bytes), ~0ull}}).first;
  Section &s = found->second;
  if (request.flags & INIT_GLOBALS) memcpy(arena + request.globals_at, s.initial.data(), s.initial.size());
  if (s.at != request.globals_at) mmap(start, variables[0].bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, arena_fd, (off_t)request.globals_at);
  s.at = request.globals_at;
}
static void load_failed(const char *why) {
  Report r = new_report(LOAD_FAILED, 0);
  copy_text(r.text, sizeof r.text, why);
  report(r);
  send_reply();
}
int main(int argc, char **argv) {
  if (argc < 6) return 2;
  int arena_fd = atoi(argv[1]), request_fd = atoi(argv[4]);
  reply_fd = atoi(argv[5]);
  char *wanted = (char *)strtoull(argv[2], nullptr, 0);
  arena_bytes = strtoull(argv[3], nullptr, 0);
  arena = (char *)mmap(wanted, 2 * arena_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, arena_fd, 0);
  if (arena != wanted) return 5;
  initialized = arena + arena_bytes, parent = getppid();
  catch_signals();

  std::vector<char> library, name;
  while (read_all(request_fd, &request, sizeof request)) {
    memset(&reply, 0, sizeof reply);
    printed_size = 0, counter_rows.clear(), trace.clear();
    failed = false, lane = nullptr, read_too_early.problem = OK;
    read_many(request_fd, arrays, request.arrays);
    read_many(request_fd, shared_symbols, request.shared_symbols);
    read_many(request_fd, variables, request.variables);
    std::vector<uint32_t> offsets;
    uint32_t argument_count;
    if (!read_all(request_fd, &argument_count, sizeof argument_count)) break;
    read_many(request_fd, offsets, argument_count);
    if (!read_all(request_fd, arguments, request.argument_bytes)) break;
    read_many(request_fd, library, request.library_chars);
    read_many(request_fd, name, request.entry_chars);

    void *handle = dlopen(library.data(), RTLD_NOW | RTLD_LOCAL);
    void *symbol = handle ? dlsym(handle, name.data()) : nullptr;
    if (!symbol) { load_failed(dlerror()); continue; }
    if (request.flags & DESCRIBE) {  // the parameters' kinds and sizes, as text
      struct Parameter { char kind; int bytes; };
      for (const Parameter *p = ((const Parameter *(*)())symbol)(); p->kind; ++p) {
        printed_size += snprintf(printed + printed_size, 16, "%c%d ", p->kind, p->bytes);
      }
      send_reply();
      continue;
    }
    Dl_info where;
    dladdr(symbol, &where);
    library_base = (char *)where.dli_fbase, library_end = library_base + request.library_bytes;
    if (request.globals_at != ~0ull && request.variables) map_variables(arena_fd);
    entry = (void (*)(void **))symbol;
    for (uint32_t i = 0; i < argument_count; ++i) argument_at[i] = arguments + offsets[i];
    checked = request.flags & CHECKED, in_order = !request.seed;
    random_state = request.seed * 0x9e3779b97f4a7c15ull + 1, log_limit = LOG;
    begin_launch();
    uint64_t *divisions = (uint64_t *)dlsym(handle, "cuda_divisions");
    if (divisions) *divisions = 0;
    set_alarm(request.seconds);
    run_grid();
    set_alarm(0);
    if (divisions) reply.divisions = *divisions;
    lane = nullptr;
    find_unwritten();
    send_reply();
    end_launch();
  }
  return 0;
}
