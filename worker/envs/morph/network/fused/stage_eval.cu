// The first stage of a small host in validation, in float32, one image at a time in shared memory:
//
//   z = ReLU(BN(conv(x))) by running statistics;  plain = pool(z);  grown = pool(z + alpha gamma ReLU(GN(conv(z))))
//
// With GRAFT 0 there is only plain. A thread has all 8 channels of four pixels side by side; it reads a row of an inner
// channel once, takes the pixels beside its own from its neighbours, and meets each with the weights of three taps.
// Compiled at run time (stage.py), and for a CPU by the tests, which define EMULATED and what a GPU has.

#ifndef EMULATED
#include "gpu.cuh"
#endif

#define EDGE 32
#define PIXELS (EDGE * EDGE)
#define CELLS (PIXELS / 4)
#define THREADS 256
#define WARPS 8
#define CHANNELS 8
#define IMAGE_CHANNELS 4
#define PLANE ((EDGE + 2) * EDGE)  // of a channel, with a row of zeros above and below
#define GROUP (1.0f / (PIXELS * CHANNELS))

struct alignas(16) Quad { float v[4]; };

// Add what one inner channel gives: weights [9 taps][8 channels], row above the thread's in ``plane``.
DEVICE void add(float (&sum)[CHANNELS][4], const float* plane, const float* weights, int lane) {
  int i = lane & 7;
#pragma unroll
  for (int ky = 0; ky < 3; ky++) {
    Quad own = *(const Quad*)(plane + ky * EDGE + i * 4);
    float before = of_lane(own.v[3], (lane + 31) & 31), after = of_lane(own.v[0], (lane + 1) & 31);
    float row[6] = {i == 0 ? 0.0f : before, own.v[0], own.v[1], own.v[2], own.v[3], i == 7 ? 0.0f : after};
#pragma unroll
    for (int kx = 0; kx < 3; kx++) {
#pragma unroll
      for (int half = 0; half < 2; half++) {
        Quad w = *(const Quad*)(weights + (ky * 3 + kx) * CHANNELS + half * 4);
#pragma unroll
        for (int o = 0; o < 4; o++)
#pragma unroll
          for (int p = 0; p < 4; p++) sum[half * 4 + o][p] = fmaf(w.v[o], row[p + kx], sum[half * 4 + o][p]);
      }
    }
  }
}

// Weights [8, inner, 3, 3] as [inner][9][8].
DEVICE void arrange(float* to, const float* from, int inner, int thread) {
  for (int at = thread; at < CHANNELS * inner * 9; at += THREADS) {
    int o = at / (inner * 9), rest = at % (inner * 9);
    to[rest * CHANNELS + o] = from[at];
  }
}

// Sum of a value over the threads, for every thread.
DEVICE float block_sum(float v, float* scratch, int thread) {
#pragma unroll
  for (int lanes = 16; lanes; lanes >>= 1) v += across(v, lanes);
  if (!(thread & 31)) scratch[thread >> 5] = v;
  __syncthreads();
  float sum = 0.0f;
#pragma unroll
  for (int w = 0; w < WARPS; w++) sum += scratch[w];
  return sum;
}

// Store the maxima of 2 x 2 pixels: of the two cells that two threads share, the one above takes the left.
DEVICE void pool(const float (&z)[CHANNELS][4], float* image, int thread) {
  int lower = thread >> 3 & 1, cell = (thread >> 4) * (EDGE / 2) + (thread & 7) * 2 + lower;
  Quad out[2];
#pragma unroll
  for (int o = 0; o < CHANNELS; o++) {
    float left = larger(z[o][0], z[o][1]), right = larger(z[o][2], z[o][3]);
    float theirs = across(lower ? left : right, 8);
    out[o >> 2].v[o & 3] = larger(lower ? right : left, theirs);
  }
  Quad* to = (Quad*)(image + cell * CHANNELS);
  to[0] = out[0], to[1] = out[1];
}

KERNEL void BOUNDS(3) validate(
    const float* x, const float* weight, const float* mean, const float* variance, const float* gain, const float* bias,
    const float* graft, const float* gn_weight, const float* gn_bias, const float* gamma, const float* alpha,
    float* plain, float* grown, int images, int inner, int wants_plain) {
  SHARED char memory[];
  float *image_at = (float*)memory, *z_at = image_at + IMAGE_CHANNELS * PLANE, *w1 = z_at + CHANNELS * PLANE;
  float *w2 = w1 + IMAGE_CHANNELS * 9 * CHANNELS, *scales = w2 + CHANNELS * 9 * CHANNELS, *scratch = scales + 16;
  int thread = threadIdx.x, lane = thread & 31, above = (thread >> 3) * EDGE, own = above + EDGE + (thread & 7) * 4;
  arrange(w1, weight, inner, thread);
#if GRAFT
  arrange(w2, graft, CHANNELS, thread);
#endif
  for (int i = thread; i < (IMAGE_CHANNELS + CHANNELS) * EDGE; i += THREADS) {
    float* plane = image_at + i / EDGE * PLANE + i % EDGE;
    plane[0] = plane[PLANE - EDGE] = 0.0f;
  }
  if (thread < CHANNELS) {
    float scale = gain[thread] / sqrtf(variance[thread] + 1e-5f);
    scales[thread] = scale, scales[CHANNELS + thread] = bias[thread] - mean[thread] * scale;
  }
  for (int image = blockIdx.x; image < images; image += gridDim.x) {
    const Quad* from = (const Quad*)x + (long long)image * PIXELS;
#pragma unroll
    for (int k = 0; k < 4; k++) {
      Quad pixel = from[k * THREADS + thread];
#pragma unroll
      for (int c = 0; c < IMAGE_CHANNELS; c++) image_at[c * PLANE + EDGE + k * THREADS + thread] = pixel.v[c];
    }
    __syncthreads();
    float z[CHANNELS][4] = {};
#pragma unroll 1
    for (int c = 0; c < inner; c++) add(z, image_at + c * PLANE + above, w1 + c * 9 * CHANNELS, lane);
#pragma unroll
    for (int o = 0; o < CHANNELS; o++) {
#pragma unroll
      for (int p = 0; p < 4; p++) z[o][p] = larger(fmaf(z[o][p], scales[o], scales[CHANNELS + o]), 0.0f);
#if GRAFT
      Quad row = {{z[o][0], z[o][1], z[o][2], z[o][3]}};
      *(Quad*)(z_at + o * PLANE + own) = row;
#endif
    }
    if (wants_plain) pool(z, plain + (long long)image * CELLS * CHANNELS, thread);
    __syncthreads();
#if GRAFT
    float y[CHANNELS][4] = {}, sum = 0.0f;
#pragma unroll 1
    for (int c = 0; c < CHANNELS; c++) add(y, z_at + c * PLANE + above, w2 + c * 9 * CHANNELS, lane);
#pragma unroll
    for (int o = 0; o < CHANNELS; o++)
#pragma unroll
      for (int p = 0; p < 4; p++) sum += y[o][p];
    float middle = block_sum(sum, scratch, thread) * GROUP;
    sum = 0.0f;
#pragma unroll
    for (int o = 0; o < CHANNELS; o++)
#pragma unroll
      for (int p = 0; p < 4; p++) sum = fmaf(y[o][p] - middle, y[o][p] - middle, sum);
    float rstd = 1.0f / sqrtf(block_sum(sum, scratch + WARPS, thread) * GROUP + 1e-5f);
#pragma unroll
    for (int o = 0; o < CHANNELS; o++) {
      Quad row = *(const Quad*)(z_at + o * PLANE + own);
      float strength = alpha[0] * gamma[o], scale = rstd * gn_weight[o];
#pragma unroll
      for (int p = 0; p < 4; p++)
        y[o][p] = fmaf(strength, larger(fmaf(y[o][p] - middle, scale, gn_bias[o]), 0.0f), row.v[p]);
    }
    pool(y, grown + (long long)image * CELLS * CHANNELS, thread);
#endif
  }
}
