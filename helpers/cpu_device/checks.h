// Is this access right?  Bounds, alignment, reads of memory nothing wrote, and races.  Included by runtime.cpp.
//
// Races are found by order, not by luck: each barrier of a block starts a new epoch, each __syncwarp a new warp epoch.
// Every 2 bytes of shared and 4 bytes of global memory remember who wrote and who read them last, and when.  Two accesses
// of which one writes are a race when neither an epoch nor, within a warp, a warp epoch lies between them - whichever of
// the two happened to come first in this run.
#pragma once

struct Mark {       // the last write of a cell, or its last read
  uint32_t epoch;   // never repeats, so a mark of an earlier block or launch is recognised by its age alone
  uint32_t warp_epoch;
  uint32_t pc;      // relative to the library
  uint16_t thread;  // linear in the block
  uint8_t mask;     // which bytes of the cell
  uint8_t extra;    // a write: bit 0 atomic, bits 4-7 all the bytes written since the launch (shared: the block) began
};                  // a read: Readers, bits 4-7 the bytes that other blocks have read
enum Readers : uint8_t { ONE_THREAD, ONE_WARP, SEVERAL_WARPS };
struct Cell { Mark write, read; };

static uint32_t epoch = 1, launch_epoch, block_epoch;
static uint32_t warp_epoch[32];
static bool block_synchronized;    // this block has used a fence or a global atomic: it may read what other blocks wrote
static char *initialized;          // one byte for each byte of the arena, shared with the Python side
struct Used { bool read, written; };
static std::vector<Used> used;     // per array, in this launch
static Mark *global_writes, *global_reads;  // one for each 4 bytes of the arena; no memory until touched
static std::vector<Cell> dynamic_cells;
static std::vector<std::vector<Cell>> static_cells;  // one vector for each __shared__ array
static int array_of_pc[4096];      // the array an instruction accessed last: it probably does again

// Something was read that nothing has written.  Perhaps nothing ever does, perhaps another thread is about to, and it is
// a race: that is known at the next barrier (shared memory) or at the end of the launch (global memory).
static Report read_too_early;

static void begin_launch() {
  if (epoch > 1u << 31) _exit(8);  // 2^31 barriers: before an epoch repeats, let a fresh worker take over
  launch_epoch = ++epoch;
  used.assign(arrays.size(), Used());
  if (!checked) return;
  if (!global_writes) {
    for (Mark **marks : {&global_writes, &global_reads}) {
      void *p = mmap(nullptr, arena_bytes / 4 * sizeof(Mark), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (p == MAP_FAILED) _exit(6);
      *marks = (Mark *)p;
    }
  }
  dynamic_cells.assign(request.shared_bytes / 2 + 8, Cell());
  static_cells.clear();
  for (const Symbol &s : shared_symbols) static_cells.emplace_back(s.bytes / 2 + 8);
}
static void begin_block() {
  block_epoch = ++epoch;
  block_synchronized = false;
}
// Marks take four times the memory of what is written: give that of large arrays back, and of huge ones keep none.
static bool too_large_for_marks(const Array &a) { return a.bytes > 1ull << 29 && !(a.flags & WANTS_WRITTEN); }
static void end_launch() {
  for (size_t i = 0; checked && i < arrays.size(); ++i)
    if (arrays[i].bytes > 4 << 20 && (used[i].written || used[i].read))
      for (Mark *marks : {global_writes, global_reads}) {
        char *from = (char *)(((uintptr_t)&marks[arrays[i].offset / 4] + 65535) & ~65535ull);
        char *to = (char *)((uintptr_t)&marks[(arrays[i].offset + arrays[i].bytes) / 4] & ~65535ull);
        madvise(from, to - from, MADV_DONTNEED);
      }
}

// ---- where an access goes ----------------------------------------------------------------------------------------------
struct Place {
  Space space;
  int array;         // index in its table; dynamic shared memory is -1
  uintptr_t address;
  int bytes;
  Kind kind;
  uintptr_t pc;
};
static uint64_t library_offset(uintptr_t address) { return address - (uintptr_t)library_base; }
static uint64_t dynamic_offset(uintptr_t address) { return address - (uintptr_t)cuda_dynamic_memory; }

static Report describe(Problem problem, const Place &p) {
  Report r = new_report(problem, p.pc);
  r.space = p.space, r.kind = p.kind, r.address = p.address, r.bytes = p.bytes, r.array = p.array;
  if (p.space == SHARED && p.array < 0) r.address = dynamic_offset(p.address), r.array = -2;
  else if (p.space == SHARED || p.space == VARIABLE) r.address = library_offset(p.address);
  return r;
}
[[noreturn]] static void bad_access(Problem problem, const Place &p) {
  report(describe(problem, p));
  abandon();
}
[[noreturn]] static void race(Problem problem, const Mark &other, Kind other_kind, const Place &p) {
  Report r = describe(problem, p);
  r.other_pc = other.pc, r.other_kind = other_kind;
  unsigned t = other.thread, x = request.block[0], y = request.block[1];
  set3(r.other_thread, {t % x, t / x % y, t / x / y});
  report(r);
  abandon();
}

// A section's first symbol is the section itself; the others are its arrays, with gaps between them.
static bool in_section(const std::vector<Symbol> &symbols, uintptr_t address) {
  return !symbols.empty() && library_offset(address) - symbols[0].offset < symbols[0].bytes;
}
static int find_symbol(const std::vector<Symbol> &symbols, uintptr_t address, int bytes) {
  uint64_t offset = library_offset(address);
  for (size_t i = 1; i < symbols.size(); ++i)
    if (offset >= symbols[i].offset && offset + bytes <= symbols[i].offset + symbols[i].bytes) return (int)i;
  return -1;
}
static int find_array(uint64_t offset) {
  auto after = std::upper_bound(arrays.begin(), arrays.end(), offset, [](uint64_t o, const Array &a) { return o < a.offset; });
  return (int)(after - arrays.begin()) - 1;
}
// Fill in `space` and `array`; false for memory that is nobody's business (the arguments, constants of the library).
static bool locate(Place &p) {
  uint64_t offset = p.address - (uintptr_t)arena;
  bool inside = true;
  if (offset < arena_bytes) {
    p.space = GLOBAL;
    int &guess = array_of_pc[p.pc % 4096];
    if ((unsigned)guess >= arrays.size() || offset - arrays[guess].offset >= arrays[guess].bytes) guess = find_array(offset);
    p.array = guess;
    inside = p.array >= 0 && offset + p.bytes <= arrays[p.array].offset + arrays[p.array].bytes && (arrays[p.array].flags & PASSED);
  } else if (stacks.holds(p.address)) {
    p.space = LOCAL, p.array = -1;
    inside = stacks.owner(p.address) == me;
  } else if (dynamic_offset(p.address) < sizeof cuda_dynamic_memory) {
    p.space = SHARED, p.array = -1;
    inside = dynamic_offset(p.address) + p.bytes <= request.shared_bytes;
  } else if (p.address - (uintptr_t)library_base < (uintptr_t)(library_end - library_base)) {
    if (in_section(shared_symbols, p.address)) p.space = SHARED, p.array = find_symbol(shared_symbols, p.address, p.bytes);
    else if (in_section(variables, p.address)) p.space = VARIABLE, p.array = find_symbol(variables, p.address, p.bytes);
    else return false;
    if (p.array < 0) p.array = 0, inside = false;
  } else if (p.address - (uintptr_t)arguments < sizeof arguments || p.address - (uintptr_t)argument_at < sizeof argument_at) {
    return false;
  } else {
    p.space = OTHER, p.array = -1, inside = false;
  }
  if (!inside) bad_access(OUT_OF_BOUNDS, p);
  if (p.space != LOCAL && (p.address & (p.bytes - 1))) bad_access(MISALIGNED, p);
  return true;
}

// A load from an array that was written before this launch, and that nobody writes now?
static inline bool harmless(const Place &p) {
  if ((unsigned)p.array >= arrays.size()) return false;
  const Array &a = arrays[p.array];
  uint64_t offset = p.address - (uintptr_t)arena - a.offset;
  constexpr int all = INITIALIZED | PASSED | READ_ONLY;
  return offset < a.bytes && a.bytes - offset >= (unsigned)p.bytes && (a.flags & all) == all && !(p.address & (p.bytes - 1)) && !used[p.array].written;
}

// ---- who else was there ------------------------------------------------------------------------------------------------
static bool in_this_launch(const Mark &m) { return m.epoch >= launch_epoch; }
static bool of_another_block(const Mark &m) { return in_this_launch(m) && m.epoch < block_epoch; }
static bool ordered_in_warp(const Mark &m) { return m.thread / 32 == me / 32 && m.warp_epoch < warp_epoch[me / 32]; }
static unsigned high_bits(const Mark &m, uint32_t since) { return m.epoch >= since ? m.extra >> 4 : 0; }

static bool collides_with_write(const Mark &w, unsigned mask, bool atomic) {
  return w.epoch == epoch && (w.mask & mask) && w.thread != me && !(atomic && (w.extra & 1)) && !ordered_in_warp(w);
}
static bool read_by_others(const Mark &r, unsigned mask) {
  if (r.epoch != epoch || !(r.mask & mask)) return false;
  unsigned readers = r.extra & 15;
  return readers == SEVERAL_WARPS || (!ordered_in_warp(r) && !(readers == ONE_THREAD && r.thread == me));
}
static Mark mark(const Place &p, unsigned mask, unsigned extra) {
  return {epoch, warp_epoch[me / 32], (uint32_t)library_offset(p.pc), (uint16_t)me, (uint8_t)mask, (uint8_t)extra};
}
// A mark has room for one group of readers: bytes that only some of them read are forgotten rather than the wrong accused.
static void mark_read(Mark &r, unsigned mask, const Place &p) {
  unsigned elsewhere = high_bits(r, launch_epoch) | (of_another_block(r) ? r.mask : 0), readers = ONE_THREAD;
  if (read_by_others(r, mask)) {  // the first reader stays the one that is named
    readers = r.thread / 32 == me / 32 && (r.extra & 15) != SEVERAL_WARPS ? ONE_WARP : SEVERAL_WARPS;
    r.mask &= mask, r.extra = (uint8_t)(readers | elsewhere << 4);
    return;
  }
  if (r.epoch == epoch && r.thread == me && (r.extra & 15) == ONE_THREAD) {
    mask |= r.mask;
  }
  r = mark(p, mask, readers | elsewhere << 4);
}
static void mark_write(Mark &w, unsigned mask, const Place &p, uint32_t since) {
  bool again = w.epoch == epoch && w.thread == me;
  w = mark(p, again ? w.mask | mask : mask, (high_bits(w, since) | mask) << 4 | (p.kind == ATOMIC));
}
static void note_read_too_early(const Place &p) {
  if (read_too_early.problem == OK) read_too_early = describe(UNINITIALIZED, p);
}

static void check_global(const Place &p) {
  uint64_t offset = p.address - (uintptr_t)arena;
  int array = p.array;
  if (p.space == VARIABLE) offset = request.globals_at + library_offset(p.address) - variables[0].offset, array = find_array(offset);
  const Array &a = arrays[array];
  if (!(a.flags & INITIALIZED)) {
    if (p.kind != STORE && memchr(initialized + offset, 0, p.bytes)) note_read_too_early(p);
    if (p.kind != LOAD) memset(initialized + offset, 1, p.bytes);
  }
  bool atomic = p.kind == ATOMIC;
  if (atomic) block_synchronized = true;
  if (too_large_for_marks(a)) return;
  if (p.kind == LOAD && (a.flags & READ_ONLY) && !used[array].written) return;
  (p.kind == LOAD ? used[array].read : used[array].written) = true;
  for (uint64_t at = offset; at < offset + p.bytes; at += 4) {
    unsigned mask = ((1u << std::min(p.bytes, 4)) - 1) << at % 4;
    if (used[array].written) {
      Mark &w = global_writes[at / 4];
      bool also_atomic = w.extra & 1;
      if (!block_synchronized && of_another_block(w) && (w.extra >> 4 & mask)) race(BLOCK_RACE, w, also_atomic ? ATOMIC : STORE, p);
      if (collides_with_write(w, mask, atomic)) race(RACE, w, also_atomic ? ATOMIC : STORE, p);
    }
    if (p.kind == LOAD) {
      mark_read(global_reads[at / 4], mask, p);
      continue;
    }
    if (used[array].read) {
      Mark &r = global_reads[at / 4];
      if (!block_synchronized && ((of_another_block(r) ? r.mask : 0) | high_bits(r, launch_epoch)) & mask) race(BLOCK_RACE, r, LOAD, p);
      if (read_by_others(r, mask)) race(RACE, r, LOAD, p);
    }
    mark_write(global_writes[at / 4], mask, p, launch_epoch);
  }
}

static void check_shared(const Place &p) {
  bool dynamic = p.array < 0, atomic = p.kind == ATOMIC;
  uint64_t offset = dynamic ? dynamic_offset(p.address) : library_offset(p.address) - shared_symbols[p.array].offset;
  Cell *cells = dynamic ? dynamic_cells.data() : static_cells[p.array].data();
  for (uint64_t at = offset; at < offset + p.bytes; at += 2) {
    Cell &c = cells[at / 2];
    unsigned mask = p.bytes == 1 ? 1u << at % 2 : 3;
    if (collides_with_write(c.write, mask, atomic)) race(RACE, c.write, c.write.extra & 1 ? ATOMIC : STORE, p);
    if (p.kind != STORE && (mask & ~high_bits(c.write, block_epoch))) note_read_too_early(p);
    if (p.kind == LOAD) {
      mark_read(c.read, mask, p);
      continue;
    }
    if (read_by_others(c.read, mask)) race(RACE, c.read, LOAD, p);
    mark_write(c.write, mask, p, block_epoch);
  }
}

// At a barrier nobody is left who could write what was read too early.
static bool nothing_read_too_early() {
  if (read_too_early.problem == OK || read_too_early.space != SHARED) return true;
  report(read_too_early);
  return false;
}

// After the launch: arrays that had to be written whole, but were not.
static void find_unwritten() {
  for (size_t i = 0; i < arrays.size() && checked && !failed; ++i) {
    const Array &a = arrays[i];
    if (!(a.flags & WANTS_WRITTEN)) continue;
    uint64_t missing = 0, first = 0;
    for (uint64_t at = a.offset; at < a.offset + a.bytes; ++at) {
      const Mark &w = global_writes[at / 4];
      if (in_this_launch(w) && (w.extra >> 4 >> at % 4 & 1)) continue;
      if (!missing++) first = at;
    }
    if (!missing) continue;
    Report r = new_report(UNWRITTEN, 0);
    r.space = GLOBAL, r.array = (int)i, r.address = (uintptr_t)arena + first, r.bytes = missing;
    report(r);
  }
}
