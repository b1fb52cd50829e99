// Copies from global to shared memory that a GPU does in the background; here they are done at once.
#pragma once

inline void __pipeline_memcpy_async(void *to, const void *from, size_t bytes, size_t zeros = 0) {
  if (bytes == 16) *(int4 *)to = *(const int4 *)from;
  else if (bytes == 8) *(int2 *)to = *(const int2 *)from;
  else *(int *)to = *(const int *)from;
  (void)zeros;
}
inline void __pipeline_commit() {}
inline void __pipeline_wait_prior(size_t) {}
