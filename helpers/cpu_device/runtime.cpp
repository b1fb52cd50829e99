// The CPU device's engine: a worker process that loads compiled kernels and runs them, block by block, lane by lane.
//
// Every CUDA thread is a fiber.  A fiber runs until it must wait for others: at a barrier, at a warp collective, or - when
// checking - at every memory access, so that the lanes of a warp move in step as on a GPU and their accesses can be seen
// as one request.  The compiler's -fsanitize=thread calls __tsan_read4(address) and so on before each access; those
// functions are defined here: they check the address (checks.h) and hand the group to the counters (counters.h).
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
#include <string>
#include <vector>
#include "fiber.h"

struct uint3 { unsigned x, y, z; };

enum State : uint8_t { RUN, ACCESS, COLLECTIVE, BARRIER, DONE };
enum Space : uint8_t { GLOBAL, SHARED, LOCAL, VARIABLE, OTHER };
enum Kind : uint8_t { LOAD, STORE, ATOMIC };

struct Lane {
  void *sp;
  State state;
  Space space;   // the pending access
  Kind kind;
  uint8_t bytes;
  uint16_t depth;  // of function calls, so that lanes inside a call go before lanes after it
  int16_t array;
  uintptr_t pc, address;
  int op, argument, width;  // the pending collective or barrier
  unsigned mask;
  uint64_t value, result;
  const char *file;
  int line;
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
struct Array { uint64_t offset, bytes; uint32_t initialized, wants_written; };
struct Symbol { uint64_t offset, bytes; };  // of a __shared__ array or a __device__ variable inside the library

enum Problem { OK, OUT_OF_BOUNDS, MISALIGNED, UNINITIALIZED, RACE, BLOCK_RACE, BARRIER_PROBLEM, COLLECTIVE_PROBLEM, TRAP,
               TIMEOUT, STACK_OVERFLOW, CRASH, UNWRITTEN, LOAD_FAILED };
struct Report {  // of the first problem
  int32_t problem, space, array, kind;
  uint64_t address, bytes, pc, other_pc;
  uint32_t thread[3], block[3], other_thread[3];
  int32_t line, other_line, other_kind, signal;
  char file[256], other_file[256], text[512];
};
struct Reply {
  Report report;
  uint64_t barriers, collectives, exps, logs, divisions, blocks;
  uint64_t rows, events, printed;
};

// ---- the launch under way -------------------------------------------------------------------------------------------
static Request request;
static Reply reply;
static std::string printed;
static char *arena;
static uint64_t arena_bytes;
static std::vector<Array> arrays;
static std::vector<Symbol> shared_symbols, variables;
static char arguments[8192];
static void *argument_at[256];
static void (*entry)(void **);
static char *library_base, *library_end;
alignas(1024) static char dynamic_shared[232448 + 1024];
static Stacks stacks;
static std::vector<Lane> lanes;
static Lane *lane;  // the one that runs
static void *scheduler_sp;
static Lane *warp_end;
static bool failed, lockstep, in_order;
static uint3 block_index;
static uint64_t random_state;
static int reply_fd;

static int index_of(const Lane *l) { return (int)(l - lanes.data()); }
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
// Wait: go on with the next lane of the warp if it can run, else with the scheduler.
static inline __attribute__((always_inline)) void yield() {
  Lane *me = lane, *next = me + 1;
  if (next < warp_end && next->state == RUN && in_order) {
    lane = next;
    fiber_switch(&me->sp, next->sp);
  } else {
    fiber_switch(&me->sp, scheduler_sp);
  }
}

// Note the first problem; the caller then leaves the fiber for good.
static Report &report_problem(Problem problem, uintptr_t pc) {
  Report &r = reply.report;
  memset(&r, 0, sizeof r);
  r.problem = problem, r.pc = pc ? pc - (uintptr_t)library_base : 0, r.array = -1;
  if (lane) set3(r.thread, lane->thread);
  set3(r.block, block_index);
  failed = true;
  return r;
}
static void copy_text(char *to, size_t n, const char *from) { snprintf(to, n, "%s", from ? from : ""); }
static void other_lane(Report &r, const Lane &o) {
  set3(r.other_thread, o.thread);
  r.other_line = o.line;
  copy_text(r.other_file, sizeof r.other_file, o.file);
}
[[noreturn]] static void abandon() {
  fiber_switch(&lane->sp, scheduler_sp);
  __builtin_unreachable();
}

#include "checks.h"
#include "counters.h"

// ---- the hooks ------------------------------------------------------------------------------------------------------
static void access(uintptr_t address, int bytes, Kind kind, uintptr_t pc) {
  if (!lane || !lockstep) return;  // (no lane: the library's constructors run)
  lane->pc = pc;
  if (!locate(address, bytes, kind, pc)) return;
  check(address, bytes, kind, pc);
  lane->address = address, lane->bytes = bytes, lane->kind = kind;
  if (lane->space == LOCAL) return count_local();  // its own stack: nobody else can see it
  lane->state = ACCESS;
  yield();
}
#define PC (uintptr_t) __builtin_return_address(0)
#define HOOK(n)                                                                                   \
  void __tsan_read##n(void *p) { access((uintptr_t)p, n, LOAD, PC); }                             \
  void __tsan_write##n(void *p) { access((uintptr_t)p, n, STORE, PC); }                           \
  void __tsan_volatile_read##n(void *p) { access((uintptr_t)p, n, LOAD, PC); }                    \
  void __tsan_volatile_write##n(void *p) { access((uintptr_t)p, n, STORE, PC); }                  \
  void __tsan_unaligned_volatile_read##n(void *p) { access((uintptr_t)p, n, LOAD, PC); }          \
  void __tsan_unaligned_volatile_write##n(void *p) { access((uintptr_t)p, n, STORE, PC); }        \
  void __tsan_unaligned_read##n(void *p) { access((uintptr_t)p, n, LOAD, PC); }                   \
  void __tsan_unaligned_write##n(void *p) { access((uintptr_t)p, n, STORE, PC); }                 \
  void __tsan_read_write##n(void *p) { access((uintptr_t)p, n, LOAD, PC), access((uintptr_t)p, n, STORE, PC); } \
  void __tsan_unaligned_read_write##n(void *p) { access((uintptr_t)p, n, LOAD, PC), access((uintptr_t)p, n, STORE, PC); }
static void access_range(uintptr_t address, size_t n, Kind kind, uintptr_t pc) {
  for (size_t i = 0; i < n; i += 16) access(address + i, (int)(n - i < 16 ? n - i : 16), kind, pc);
}
extern "C" {
HOOK(1) HOOK(2) HOOK(4) HOOK(8) HOOK(16)
void __tsan_init() {}
void __tsan_func_entry(void *) { if (lane) ++lane->depth; }
void __tsan_func_exit() { if (lane) --lane->depth; }
void __tsan_read_range(void *p, size_t n) { access_range((uintptr_t)p, n, LOAD, PC); }
void __tsan_write_range(void *p, size_t n) { access_range((uintptr_t)p, n, STORE, PC); }
void *__tsan_memcpy(void *to, const void *from, size_t n) {
  access_range((uintptr_t)from, n, LOAD, PC), access_range((uintptr_t)to, n, STORE, PC);
  return memcpy(to, from, n);
}
void *__tsan_memmove(void *to, const void *from, size_t n) {
  access_range((uintptr_t)from, n, LOAD, PC), access_range((uintptr_t)to, n, STORE, PC);
  return memmove(to, from, n);
}
void *__tsan_memset(void *to, int c, size_t n) {
  access_range((uintptr_t)to, n, STORE, PC);
  return memset(to, c, n);
}

uint3 cuda_thread_idx() { return lane->thread; }
uint3 cuda_block_idx() { return block_index; }
uint3 cuda_block_dim() { return {request.block[0], request.block[1], request.block[2]}; }
uint3 cuda_grid_dim() { return {request.grid[0], request.grid[1], request.grid[2]}; }
void *cuda_dynamic_shared() { return dynamic_shared; }
void cuda_fence() { block_synchronized = true; }
void cuda_count(int what) { ++(what ? reply.logs : reply.exps); }
long long cuda_clock() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000ll + t.tv_nsec;
}
void cuda_trap(const char *why) {
  Report &r = report_problem(TRAP, PC);
  copy_text(r.text, sizeof r.text, why);
  abandon();
}
int cuda_printf(const char *format, ...) {
  char line[1024];
  va_list args;
  va_start(args, format);
  int n = vsnprintf(line, sizeof line, format, args);
  va_end(args);
  if (printed.size() < (1 << 20)) printed += line;  // like a GPU's, the buffer has an end
  return n;
}

int cuda_barrier(int kind, int predicate, const char *file, int line) {
  lane->op = kind, lane->value = predicate != 0, lane->file = file, lane->line = line, lane->state = BARRIER;
  lane->pc = PC;
  yield();
  return (int)lane->result;
}
uint64_t cuda_collective(int op, unsigned mask, uint64_t value, int argument, int width, const char *file, int line) {
  lane->op = op, lane->mask = mask, lane->value = value, lane->argument = argument, lane->width = width;
  lane->file = file, lane->line = line, lane->state = COLLECTIVE, lane->pc = PC;
  yield();
  return lane->result;
}
void cuda_atomic_enter(void *p, int bytes) {
  if (request.flags & CHECKED) access((uintptr_t)p, bytes, ATOMIC, PC);
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
  lane->state = DONE;
  yield();
  __builtin_trap();
}
}  // extern "C"

// ---- warp collectives ------------------------------------------------------------------------------------------------
enum { SYNC, SYNC_COUNT, SYNC_AND, SYNC_OR };
enum { C_IDX, C_UP, C_DOWN, C_XOR, C_SYNCWARP, C_ACTIVE, C_BALLOT, C_MATCH_ANY, C_MATCH_ALL, C_ADD, C_MIN_S, C_MAX_S, C_MIN_U,
       C_MAX_U, C_AND, C_OR, C_REDUCE_XOR };

static bool collective_problem(Lane &l, const Lane *other, const char *text) {
  lane = &l;
  Report &r = report_problem(COLLECTIVE_PROBLEM, l.pc);
  r.line = l.line, r.kind = l.op;
  copy_text(r.file, sizeof r.file, l.file);
  if (other) other_lane(r, *other), r.other_kind = other->state;
  copy_text(r.text, sizeof r.text, text);
  return false;
}
// All lanes of `mask` have arrived: give each its result.  `warp` is the first lane of the warp, `n` its number of lanes.
static bool complete(Lane *warp, int n, unsigned mask) {
  int op = warp[__builtin_ctz(mask)].op;
  uint64_t all = 0;
  if (op == C_MIN_S) all = 0x7fffffff;
  if (op == C_MAX_S) all = 0x80000000u;
  if (op == C_MIN_U || op == C_AND) all = ~0u;
  bool same = true;
  uint64_t first = warp[__builtin_ctz(mask)].value;
  for (unsigned m = mask; m; m &= m - 1) {
    uint64_t v = warp[__builtin_ctz(m)].value;
    same &= v == first;
    switch (op) {
      case C_BALLOT: all |= (uint64_t)(v != 0) << __builtin_ctz(m); break;
      case C_ADD: all = (uint32_t)(all + v); break;
      case C_MIN_S: all = (uint32_t)std::min((int32_t)all, (int32_t)v); break;
      case C_MAX_S: all = (uint32_t)std::max((int32_t)all, (int32_t)v); break;
      case C_MIN_U: all = std::min(all, v); break;
      case C_MAX_U: all = std::max(all, v); break;
      case C_AND: all &= v; break;
      case C_OR: all |= v; break;
      case C_REDUCE_XOR: all ^= v; break;
    }
  }
  if (op == C_MATCH_ALL) all = same ? mask : 0;
  if (op == C_ACTIVE) all = mask;
  for (unsigned m = mask; m; m &= m - 1) {
    int i = __builtin_ctz(m);
    Lane &l = warp[i];
    l.result = all;
    if (op <= C_XOR) {
      int segment = i & ~(l.width - 1), from = i;
      if (op == C_IDX) from = segment + (l.argument & (l.width - 1));
      if (op == C_UP) from = i - l.argument < segment ? i : i - l.argument;
      if (op == C_DOWN) from = i + l.argument >= segment + l.width ? i : i + l.argument;
      if (op == C_XOR) from = (i ^ l.argument) >= segment + l.width ? i : i ^ l.argument;
      if (from >= n || !(mask >> from & 1)) {
        char text[160];
        snprintf(text, sizeof text, from >= n ? "reads lane %d, but this warp has only %d lanes" : warp[from].state == DONE
                 ? "reads lane %d, which has already returned" : "reads lane %d, which takes no part (mask 0x%08x)",
                 from, from >= n ? n : (int)l.mask);
        return collective_problem(l, nullptr, text);
      }
      l.result = warp[from].value;
    }
    if (op == C_MATCH_ANY) {
      l.result = 0;
      for (unsigned k = mask; k; k &= k - 1)
        if (warp[__builtin_ctz(k)].value == l.value) l.result |= 1u << __builtin_ctz(k);
    }
  }
  for (unsigned m = mask; m; m &= m - 1) warp[__builtin_ctz(m)].state = RUN;
  if (op == C_SYNCWARP) ++warp_epoch[index_of(warp) / 32];
  if (op <= C_XOR) ++reply.collectives;
  return true;
}
// Every lane of the warp waits.  Complete one collective whose lanes are all there, or say why none can be.
static bool run_collective(Lane *warp, int n) {
  unsigned exited = 0;
  for (int i = 0; i < n; ++i) exited |= (unsigned)(warp[i].state == DONE) << i;
  if (n < 32) exited |= ~0u << n;
  Lane *stuck = nullptr, *missing = nullptr;
  for (int i = 0; i < n; ++i) {
    Lane &l = warp[i];
    if (l.state != COLLECTIVE) continue;
    if (l.op == C_ACTIVE) {  // the lanes that stand at this very call
      unsigned together = 0;
      for (int k = 0; k < n; ++k)
        if (warp[k].state == COLLECTIVE && warp[k].op == C_ACTIVE && warp[k].pc == l.pc) together |= 1u << k;
      return complete(warp, n, together);
    }
    if (!(l.mask >> i & 1)) return collective_problem(l, nullptr, "is called by a lane that its own mask leaves out");
    Lane *waits_for = nullptr;
    for (unsigned m = l.mask & ~exited; m && !waits_for; m &= m - 1) {
      Lane &o = warp[__builtin_ctz(m)];
      if (o.state != COLLECTIVE || o.op != l.op || o.mask != l.mask) waits_for = &o;
    }
    if (!waits_for) return complete(warp, n, l.mask & ~exited);
    if (!stuck) stuck = &l, missing = waits_for;
  }
  return collective_problem(*stuck, missing, "waits for a lane that is somewhere else");
}

// ---- the scheduler -----------------------------------------------------------------------------------------------------
static void resume(Lane &l) {
  lane = &l;
  fiber_switch(&scheduler_sp, l.sp);
}
// The lanes that access memory next, as one instruction: the deepest call first, then the lowest address of code, which is
// how lanes that took different branches come together again.  With a seed: any one lane.
static bool run_access(Lane *warp, int n) {
  Lane *best = nullptr;
  int waiting = 0;
  for (int i = 0; i < n; ++i) {
    Lane &l = warp[i];
    if (l.state != ACCESS) continue;
    ++waiting;
    if (!best || l.depth > best->depth || (l.depth == best->depth && l.pc < best->pc)) best = &l;
    if (request.seed && random_below(waiting) == 0) best = &l;
  }
  if (!best) return false;
  if (request.seed && random_below(4)) {  // one lane alone; now and then all of them, or nothing would ever coalesce
    count_request(best, 1);
    best->state = RUN;
    return true;
  }
  count_request(warp, n, best->pc, best->depth);
  return true;
}
static bool run_warp(Lane *warp, int n) {
  warp_end = warp + n;
  for (;;) {
    int at_collective = 0, start = request.seed ? random_below(n) : 0;
    for (int k = 0; k < n; ++k) {
      Lane &l = warp[start + k < n ? start + k : start + k - n];
      if (l.state == RUN) resume(l);
      if (failed) return false;
    }
    for (int k = 0; k < n; ++k) at_collective += warp[k].state == COLLECTIVE;
    if (lockstep && run_access(warp, n)) continue;
    if (!at_collective) return true;
    if (!run_collective(warp, n)) return false;
  }
}
static bool barrier_problem(Lane &l, const Lane &other, const char *text) {
  lane = &l;
  Report &r = report_problem(BARRIER_PROBLEM, l.pc);
  r.line = l.line, r.other_kind = other.state, r.other_pc = other.pc - (uintptr_t)library_base;
  copy_text(r.file, sizeof r.file, l.file);
  other_lane(r, other);
  copy_text(r.text, sizeof r.text, text);
  return false;
}
// Every thread of the block waits at a barrier or has returned.  Sets `done` when all have returned.
static bool run_barrier(bool &done) {
  Lane *first = nullptr, *gone = nullptr;
  int count = 0, threads = (int)lanes.size();
  for (Lane &l : lanes) {
    if (l.state == DONE) gone = &l;
    else if (!first) first = &l;
    count += l.state == BARRIER && l.value;
  }
  if (!first) return done = true;
  if (gone) return barrier_problem(*first, *gone, "returned before this barrier");
  for (Lane &l : lanes)
    if (l.line != first->line || (l.file != first->file && strcmp(l.file, first->file))) return barrier_problem(*first, l, "waits at another barrier");
  for (Lane &l : lanes) {
    l.result = l.op == SYNC_COUNT ? count : l.op == SYNC_AND ? count == threads : count > 0;
    l.state = RUN;
  }
  ++epoch, ++reply.barriers;
  return true;
}
static bool run_block(uint64_t number) {
  block_index = {(unsigned)(number % request.grid[0]), (unsigned)(number / request.grid[0] % request.grid[1]),
                 (unsigned)(number / request.grid[0] / request.grid[1])};
  int threads = (int)lanes.size(), warps = (threads + 31) / 32;
  for (int i = 0; i < threads; ++i) {
    Lane &l = lanes[i];
    l.state = RUN, l.depth = 0, l.line = 0, l.file = "";
    l.thread = {i % request.block[0], i / request.block[0] % request.block[1], i / request.block[0] / request.block[1]};
    l.sp = fiber_prepare(stacks.top(i));
  }
  begin_block();
  for (bool done = false; !done;) {
    int start = request.seed ? random_below(warps) : 0, step = request.seed && random_below(2) ? warps - 1 : 1;
    for (int k = 0; k < warps; ++k) {
      int w = (int)((start + (uint64_t)k * step) % warps);
      if (!run_warp(&lanes[w * 32], std::min(32, threads - w * 32))) return false;
    }
    if (!run_barrier(done)) return false;
  }
  ++reply.blocks;
  return true;
}
static void run_grid() {
  uint64_t blocks = (uint64_t)request.grid[0] * request.grid[1] * request.grid[2];
  uint64_t *next = (uint64_t *)arena;  // the first bytes of the arena: a counter that workers on other cores share
  if (request.flags & SHARE_BLOCKS) {
    uint64_t some = std::max<uint64_t>(1, std::min<uint64_t>(16, blocks / 64));
    for (uint64_t b; !failed && (b = __atomic_fetch_add(next, some, __ATOMIC_RELAXED)) < blocks;)
      for (uint64_t i = b; i < std::min(b + some, blocks); ++i)
        if (!run_block(i)) break;
    return;
  }
  uint64_t start = request.seed ? random_below((uint32_t)std::min<uint64_t>(blocks, 1u << 30)) : 0;
  bool backward = request.seed && random_below(2);
  for (uint64_t k = 0; k < blocks && !failed; ++k) {
    uint64_t b = (start + k) % blocks;
    run_block(backward ? blocks - 1 - b : b);
  }
}

// ---- last words --------------------------------------------------------------------------------------------------------
static void send_reply() {
  reply.rows = counter_rows.size(), reply.events = trace.size(), reply.printed = printed.size();
  write_all(&reply, sizeof reply);
  write_all(counter_rows.data(), counter_rows.size() * sizeof(CounterRow));
  write_all(trace.data(), trace.size() * sizeof(Event));
  write_all(printed.data(), printed.size());
}
static uintptr_t program_counter(void *context) {
  ucontext_t *u = (ucontext_t *)context;
#if defined(__APPLE__) && defined(__aarch64__)
  return u->uc_mcontext->__ss.__pc;
#elif defined(__APPLE__)
  return u->uc_mcontext->__ss.__rip;
#elif defined(__aarch64__)
  return u->uc_mcontext.pc;
#else
  return u->uc_mcontext.gregs[REG_RIP];
#endif
}
static void on_signal(int number, siginfo_t *info, void *context) {
  signal(number, SIG_DFL);
  if (!lane) _exit(4);
  uintptr_t pc = program_counter(context);
  if (pc < (uintptr_t)library_base || pc >= (uintptr_t)library_end) pc = lane->pc;
  Problem problem = number == SIGALRM ? TIMEOUT : stacks.in_guard((char *)info->si_addr) ? STACK_OVERFLOW : CRASH;
  Report &r = report_problem(problem, pc);
  r.signal = number, r.address = (uint64_t)info->si_addr;
  send_reply();
  _exit(0);
}
static void catch_signals() {
  static char signal_stack[64 << 10];
  stack_t alternative = {};
  alternative.ss_sp = signal_stack, alternative.ss_size = sizeof signal_stack;
  sigaltstack(&alternative, nullptr);
  struct sigaction action = {};
  action.sa_sigaction = on_signal, action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  for (int s : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGALRM}) sigaction(s, &action, nullptr);
  signal(SIGINT, SIG_IGN);  // Ctrl-C belongs to the Python side, which ends this process
}
static void set_alarm(double seconds) {
  itimerval timer = {};
  timer.it_value.tv_sec = (time_t)seconds, timer.it_value.tv_usec = (suseconds_t)((seconds - (time_t)seconds) * 1e6);
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
  static std::vector<char *> mapped;
  char *section = library_base + variables[0].offset;
  if (std::find(mapped.begin(), mapped.end(), section) != mapped.end()) return;
  if (request.flags & INIT_GLOBALS) memcpy(arena + request.globals_at, section, variables[0].bytes);
  mmap(section, variables[0].bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, arena_fd, (off_t)request.globals_at);
  mapped.push_back(section);
}
static void load_failed(const char *why) {
  copy_text(report_problem(LOAD_FAILED, 0).text, sizeof(Report::text), why);
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
  initialized = arena + arena_bytes;
  catch_signals();

  std::vector<char> library, name;
  while (read_all(request_fd, &request, sizeof request)) {
    memset(&reply, 0, sizeof reply);
    printed.clear(), counter_rows.clear(), trace.clear();
    failed = false, lane = nullptr;
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
        char text[16];
        snprintf(text, sizeof text, "%c%d ", p->kind, p->bytes);
        printed += text;
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
    int threads = request.block[0] * request.block[1] * request.block[2];
    stacks.reserve(threads);
    lanes.assign(threads, Lane());
    lockstep = request.flags & CHECKED, in_order = !request.seed;
    random_state = request.seed * 0x9e3779b97f4a7c15ull + 1;
    begin_launch();
    uint64_t *divisions = (uint64_t *)dlsym(handle, "cuda_divisions");
    if (divisions) *divisions = 0;
    set_alarm(request.seconds);
    run_grid();
    set_alarm(0);
    if (divisions) reply.divisions = *divisions;
    lane = nullptr;
    if (!failed) find_unwritten();
    send_reply();
  }
  return 0;
}
