// A fiber: a stack of its own and a switch of a dozen instructions, so that a barrier costs nanoseconds, not a system call.
#pragma once
#include <stdint.h>
#include <sys/mman.h>

extern "C" void fiber_start();  // the first switch into a fiber lands here and calls fiber_main()
extern "C" void fiber_main();   // defined by the scheduler; never returns

#ifdef __APPLE__
#define SYMBOL(name) "_" #name
#define ALSO_X18  // belongs to the system there
#else
#define SYMBOL(name) #name
#define ALSO_X18 , "x18"
#endif

// Store this stack pointer in *save and go on where the stack `load` stopped.  Inline, and leaving by a jump: a `ret` would
// be predicted to return to the wrong place every time.  (It pushes, so this code is compiled with -mno-red-zone.)
static inline __attribute__((always_inline)) void fiber_switch(void **save, void *load) {
#if defined(__x86_64__)
  asm volatile(
      "leaq 1f(%%rip), %%rax\n pushq %%rbp\n pushq %%rax\n movq %%rsp, (%0)\n"
      "movq %1, %%rsp\n popq %%rax\n popq %%rbp\n jmp *%%rax\n 1:"
      : "+D"(save), "+S"(load)::"rax", "rbx", "rcx", "rdx", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "xmm0", "xmm1",
        "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15",
        "memory", "cc");
#elif defined(__aarch64__)
  register void **to asm("x0") = save;
  register void *from asm("x1") = load;
  asm volatile(
      "adr x9, 1f\n stp x29, x9, [sp, #-16]!\n mov x10, sp\n str x10, [x0]\n"
      "mov sp, x1\n ldp x29, x9, [sp], #16\n br x9\n 1:"
      : "+r"(to), "+r"(from)::"x2", "x3", "x4", "x5", "x6", "x7", "x8", "x9", "x10", "x11", "x12", "x13", "x14", "x15", "x16",
        "x17", "x19", "x20", "x21", "x22", "x23", "x24", "x25", "x26", "x27", "x28", "x30", "v0", "v1", "v2", "v3", "v4", "v5",
        "v6", "v7", "v8", "v9", "v10", "v11", "v12", "v13", "v14", "v15", "v16", "v17", "v18", "v19", "v20", "v21", "v22",
        "v23", "v24", "v25", "v26", "v27", "v28", "v29", "v30", "v31", "memory", "cc" ALSO_X18);
#else
#error "the CPU device knows x86-64 and 64-bit Arm; another processor needs its own fiber_switch"
#endif
}

#if defined(__x86_64__)
asm(".text\n.globl " SYMBOL(fiber_start) "\n" SYMBOL(fiber_start) ":\n call " SYMBOL(fiber_main) "\n ud2\n");
#else
asm(".text\n.globl " SYMBOL(fiber_start) "\n.p2align 2\n" SYMBOL(fiber_start) ":\n bl " SYMBOL(fiber_main) "\n brk #1\n");
#endif
// A stack that, switched to, calls fiber_main.  `top` is a multiple of 16.
inline void *fiber_prepare(char *top) {
  void **sp = (void **)top;
#if defined(__x86_64__)
  *--sp = nullptr;              // rbp
  *--sp = (void *)fiber_start;  // where to jump
#else
  *--sp = (void *)fiber_start;  // x9, where to branch
  *--sp = nullptr;              // x29
#endif
  return sp;
}

// The stacks of a block's threads.  A guard page under each turns endless recursion into a signal; the tops are spread
// over the cache sets, or 256 stacks would fight for the same few lines.
struct Stacks {
  static constexpr size_t size = 256 << 10, guard = 64 << 10;
  char *base = nullptr;
  int count = 0;
  void reserve(int n) {
    if (n <= count) return;
    if (base) munmap(base, size * count);
    base = (char *)mmap(nullptr, size * n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    for (int i = 0; i < n; ++i) mprotect(base + size * i, guard, PROT_NONE);
    count = n;
  }
  char *low(int i) const { return base + size * i + guard; }
  char *top(int i) const { return base + size * (i + 1) - (i % 61) * 192 - 64; }
  bool holds(uintptr_t p) const { return p - (uintptr_t)base < size * count; }
  int owner(uintptr_t p) const { return (int)((p - (uintptr_t)base) / size); }
  bool in_guard(uintptr_t p) const { return holds(p) && (p - (uintptr_t)base) % size < guard; }
};
