// What a GPU has, for a CPU: a block's threads are contexts that take turns, and what a warp does together waits for
// all of its lanes. Slow, exact in order, and enough to hold stage.cu against PyTorch without a card.
#pragma once
#include <ucontext.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <vector>

#define EMULATED
typedef unsigned int u32;
#define DEVICE static inline
#define METHOD inline
#define KERNEL static
#define BOUNDS(blocks)
#define __shared__ static
#define SHARED extern

struct Index { int x; };
static Index threadIdx, blockIdx, gridDim;
alignas(16) char memory[200000];

static ucontext_t scheduler, contexts[256];
static bool ended[256];
static std::function<void()> body;
struct Meeting { int here = 0; long turn = 0; };
static Meeting block_meeting, warp_meetings[8];
static const char* rows[256];
static u32 lefts[256][4], rights[256][2];
static float values[256];
static u32 words[256];

static void meet(Meeting& meeting, int size) {
  long turn = meeting.turn;
  if (++meeting.here == size) meeting.here = 0, meeting.turn++;
  int own = threadIdx.x;
  while (meeting.turn == turn) swapcontext(&contexts[own], &scheduler);
}
static void __syncthreads() { meet(block_meeting, 256); }
static void warp_meets() { meet(warp_meetings[threadIdx.x >> 5], 32); }

static float __uint_as_float(u32 v) { float f; memcpy(&f, &v, 4); return f; }
static u32 __float_as_uint(float f) { u32 v; memcpy(&v, &f, 4); return v; }
static u32 rounded(float f) {
  if (std::isnan(f)) return 0x7fff;
  u32 v = __float_as_uint(f);
  return (v + 0x7fff + ((v >> 16) & 1)) >> 16;
}
static u32 pair(float low, float high) { return rounded(low) | rounded(high) << 16; }
static float shortened(float f) { return std::isnan(f) ? f : __uint_as_float((__float_as_uint(f) + 0x1000) & ~0x1fffu); }

static void load_matrices(u32* r, const char* row, bool transposed) {
  int lane = threadIdx.x & 31, first = threadIdx.x - lane, i = lane >> 2, j = (lane & 3) * 2;
  rows[threadIdx.x] = row;
  warp_meets();
  for (int m = 0; m < 4; m++) {
    const char** of = rows + first + m * 8;
    auto half = [&](int y, int x) { unsigned short v; memcpy(&v, of[y] + 2 * x, 2); return (u32)v; };
    r[m] = transposed ? half(j, i) | half(j + 1, i) << 16 : half(i, j) | half(i, j + 1) << 16;
  }
  warp_meets();
}
static void load4(u32 (&r)[4], const char* row) { load_matrices(r, row, false); }
static void load4t(u32 (&r)[4], const char* row) { load_matrices(r, row, true); }
static float half(u32 v, int upper) { return __uint_as_float(upper ? v & 0xffff0000u : v << 16); }
static void multiply(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  int lane = threadIdx.x & 31, first = threadIdx.x - lane;
  memcpy(lefts[threadIdx.x], a, 16);
  rights[threadIdx.x][0] = b0, rights[threadIdx.x][1] = b1;
  warp_meets();
  for (int r = 0; r < 4; r++) {
    int row = (lane >> 2) + (r >> 1) * 8, column = (lane & 3) * 2 + (r & 1);
    double sum = d[r];
    for (int k = 0; k < 16; k++) {
      float left = half(lefts[first + (row & 7) * 4 + (k & 7) / 2][(row >> 3) + (k >> 3) * 2], k & 1);
      float right = half(rights[first + column * 4 + (k & 7) / 2][k >> 3], k & 1);
      sum += (double)left * right;
    }
    d[r] = (float)sum;
  }
  warp_meets();
}
static void multiply(float (&d)[4], const float (&a)[4], float b0, float b1) {
  int lane = threadIdx.x & 31, first = threadIdx.x - lane;
  memcpy(lefts[threadIdx.x], a, 16);
  rights[threadIdx.x][0] = __float_as_uint(b0), rights[threadIdx.x][1] = __float_as_uint(b1);
  warp_meets();
  // a unit of TF32 reads no more of a number than nineteen bits
  auto read = [](u32 v) { return (double)__uint_as_float(v & ~0x1fffu); };
  for (int r = 0; r < 4; r++) {
    int row = (lane >> 2) + (r >> 1) * 8, column = (lane & 3) * 2 + (r & 1);
    double sum = d[r];
    for (int k = 0; k < 8; k++)
      sum += read(lefts[first + (row & 7) * 4 + (k & 3)][(row >> 3) + (k >> 2) * 2]) *
             read(rights[first + column * 4 + (k & 3)][k >> 2]);
    d[r] = (float)sum;
  }
  warp_meets();
}
static float larger(float a, float b) { return std::isnan(a) ? a : std::isnan(b) || b > a ? b : a; }
static u32 larger(u32 a, u32 b) { return pair(larger(half(a, 0), half(b, 0)), larger(half(a, 1), half(b, 1))); }
static u32 across(u32 v, int lanes) {
  words[threadIdx.x] = v;
  warp_meets();
  u32 theirs = words[threadIdx.x ^ lanes];
  warp_meets();
  return theirs;
}
static u32 turned(u32 v) {
  int lane = threadIdx.x & 31, first = threadIdx.x - lane, i = lane >> 2, j = (lane & 3) * 2;
  words[threadIdx.x] = v;
  warp_meets();
  auto half = [&](int y, int x) { return words[first + y * 4 + x / 2] >> 16 * (x & 1) & 0xffff; };
  u32 out = half(j, i) | half(j + 1, i) << 16;
  warp_meets();
  return out;
}
static float across(float v, int lanes) {
  values[threadIdx.x] = v;
  warp_meets();
  float theirs = values[threadIdx.x ^ lanes];
  warp_meets();
  return theirs;
}

static float of_lane(float v, int lane) {
  values[threadIdx.x] = v;
  warp_meets();
  float theirs = values[(threadIdx.x & ~31) + lane];
  warp_meets();
  return theirs;
}

static void enter(int thread) {
  threadIdx.x = thread;
  body();
  ended[thread] = true;
  swapcontext(&contexts[thread], &scheduler);
}
static void launch(int blocks, std::function<void()> kernel) {
  static std::vector<char> stacks(256 * 65536);
  body = kernel;
  gridDim.x = blocks;
  for (blockIdx.x = 0; blockIdx.x < blocks; blockIdx.x++) {
    for (int t = 0; t < 256; t++) {
      ended[t] = false;
      getcontext(&contexts[t]);
      contexts[t].uc_stack.ss_sp = &stacks[t * 65536];
      contexts[t].uc_stack.ss_size = 65536;
      contexts[t].uc_link = &scheduler;
      makecontext(&contexts[t], (void (*)())enter, 1, t);
    }
    for (bool any = true; any;) {
      any = false;
      for (int t = 0; t < 256; t++)
        if (!ended[t]) any = true, threadIdx.x = t, swapcontext(&scheduler, &contexts[t]);
    }
  }
}
