// The first stage of a small host, one image at a time in shared memory: block of 8 channels on 32 x 32 pixels, the
// graft behind it, 2x2 maxima. Passes over memory are what such a host waits for; here an image is read once a pass.
//
//   forward    z = ReLU(BN(y1));  y2 = conv(z);  out = pool(z + alpha gamma ReLU(GN(y2)))
//   backward   all gradients of that, and of the convolution that made y1 from x, as sums of a block of threads
//   finish     the sums of all blocks, in a fixed order
//
// With GRAFT 0 the stage is pool(z); with DETACH the graft does not reach z; with HOST 0 only the graft takes gradients.
// Convolutions are matrix products whose windows are picked out of the image in shared memory: of bf16 (half.cuh), or with
// SINGLE of float32 (single.cuh). No atomics: bits repeat. Compiled at run time (stage.py), and for a CPU by the tests,
// which define EMULATED and what a GPU has.

#ifndef EMULATED
#include "gpu.cuh"
#endif

#define EDGE 32
#define WIDE 34              // pixels of a row with its border of zeros
#define PIXELS (EDGE * EDGE)
#define CELLS (PIXELS / 4)
#define THREADS 256
#define WARPS 8
#define GROUP (1.0f / (PIXELS * 8))
// floats of a block's sums: weights of the graft by pair of taps, of the stage by row and half of the window, windows by
// row, column (there is no fourth) and channel
#define GRAFT_SUMS (5 * 128)
#define STAGE_SUMS (6 * 128)
#define WINDOW_SUMS (3 * 4 * 4)
#define NORMS (GRAFT_SUMS + STAGE_SUMS + WINDOW_SUMS)
#define SUMS (NORMS + 32)
// sums of an image's channels in shared memory: by thread, which keeps to a column, and of the first row and the last
#define FIRST_ROW THREADS
#define LAST_ROW (FIRST_ROW + EDGE)
#define COLUMNS (LAST_ROW + EDGE)

// Pairs of taps of a product: those of a column that lie above each other, what is left of the last row, tap 8 alone,
// which meets weights of zero the second time. So a lane reads from three places, and all else is known beforehand.
#define TAPS {{0, 3}, {1, 4}, {2, 5}, {6, 7}, {8, 9}}

struct alignas(16) Quad { float v[4]; };
DEVICE Quad sum(const Quad& a, const Quad& b) {
  Quad out = {{a.v[0] + b.v[0], a.v[1] + b.v[1], a.v[2] + b.v[2], a.v[3] + b.v[3]}};
  return out;
}

// What a thread owns: channels 2 c and 2 c + 1 of the pixels that a product leaves with it. A warp has four rows of an
// image; its product m has half a row, and of that a thread has pixel g and, as its second, pixel g + 8.
struct Own {
  int warp, lane, g, c;
  METHOD int row(int m) const { return warp * 4 + (m >> 1); }
  METHOD int column(int m, int second) const { return (m & 1) * 16 + second * 8 + g; }
  METHOD int pixel(int m, int second) const { return row(m) * EDGE + column(m, second); }
  METHOD int first(int m) const { return (row(m) + 1) * WIDE + (m & 1) * 16 + 1; }  // pixel of a product in its frame
  METHOD int framed(int m, int second) const { return first(m) + second * 8 + g; }
  METHOD int cell(int m, int second) const { return (row(m) >> 1) * (EDGE / 2) + (column(m, second) >> 1); }
  METHOD u32 bit(int m) const { return 1u << ((m >> 1 & 1) * 2 + (g & 1)); }  // of its cell's pixels
};
DEVICE Own owner(int thread) {
  Own own = {thread >> 5, thread & 31, (thread & 31) >> 2, thread & 3};
  return own;
}

#if SINGLE
#include "single.cuh"
#else
#include "half.cuh"
#endif

DEVICE float relu(float v) { return larger(v, 0.0f); }
// The channels whose bit of ``picks`` (one byte a channel) is set.
DEVICE Two picked_of(Two v, u32 picks, u32 bit) { return kept(v, picks & bit, picks & bit << 8); }

// v -> scale v + shift for both channels of a thread.
struct Line {
  float scale[2], shift[2];
  METHOD float of(Two v, int e) const { return fmaf(part(v, e), scale[e], shift[e]); }
  METHOD Two rectified(Two v) const { return two(relu(of(v, 0)), relu(of(v, 1))); }
  METHOD Two passed(Two gradients, Two v) const { return kept(gradients, of(v, 0) > 0.0f, of(v, 1) > 0.0f); }
};
DEVICE Line normal(const float* moments, int c) {
  Line line;
#pragma unroll
  for (int e = 0; e < 2; e++) {
    line.scale[e] = moments[8 + 2 * c + e];
    line.shift[e] = -moments[2 * c + e] * line.scale[e];
  }
  return line;
}
DEVICE Line scaled(const Line& line, const float* gain, const float* bias, int c) {
  Line out;
#pragma unroll
  for (int e = 0; e < 2; e++) {
    out.scale[e] = line.scale[e] * gain[2 * c + e];
    out.shift[e] = fmaf(line.shift[e], gain[2 * c + e], bias[2 * c + e]);
  }
  return out;
}

DEVICE void clear(char* memory, int bytes, int thread) {
  struct alignas(16) Four { u32 w[4]; } zero = {};
  for (int i = thread * 16; i < bytes; i += THREADS * 16) *(Four*)(memory + i) = zero;
}

// Sum of a value over the threads, for every thread.
DEVICE float block_sum(float v, float* scratch, const Own& own) {
#pragma unroll
  for (int lanes = 16; lanes; lanes >>= 1) v += across(v, lanes);
  if (!own.lane) scratch[own.warp] = v;
  __syncthreads();
  float sum = 0.0f;
#pragma unroll
  for (int w = 0; w < WARPS; w++) sum += scratch[w];
  return sum;
}

// Leave a warp's sums of v: first of both channels, then second; [8 warps][first, second][8 channels].
DEVICE void leave(float (&v)[4], float* scratch, const Own& own) {
#pragma unroll
  for (int lanes = 4; lanes < 32; lanes <<= 1)
#pragma unroll
    for (int i = 0; i < 4; i++) v[i] += across(v[i], lanes);
  if (own.g == 0)
#pragma unroll
    for (int i = 0; i < 4; i++) scratch[own.warp * 16 + (i >> 1) * 8 + own.c * 2 + (i & 1)] = v[i];
}
DEVICE float left(const float* scratch, int i) {
  float sum = 0.0f;
#pragma unroll
  for (int w = 0; w < WARPS; w++) sum += scratch[w * 16 + i];
  return sum;
}

KERNEL void BOUNDS(FORWARD_BLOCKS) forward(
    const char* y1, const float* moments, const float* gain, const float* bias, const float* weight,
    const float* gn_weight, const float* gn_bias, const float* gamma, const float* alpha, char* y2, float* gn_moments,
    char* out, char* picks, int images) {
  SHARED char memory[];
  int thread = threadIdx.x;
  Own own = owner(thread);
  Line norm = scaled(normal(moments, own.c), gain, bias, own.c);
#if GRAFT
  float *scratch = (float*)(memory + FRAMED), strength[2];
  Weights graft = weights(weight, own, false);
#pragma unroll
  for (int e = 0; e < 2; e++) strength[e] = alpha[0] * gamma[2 * own.c + e];
  clear(memory, FRAMED, thread);
  __syncthreads();
#endif
  for (int image = blockIdx.x; image < images; image += gridDim.x) {
    const char* from = y1 + (long long)image * PIXELS * PIXEL + own.c * PIXEL / 4;
    Two z[8][2];
#pragma unroll
    for (int m = 0; m < 8; m++)
#pragma unroll
      for (int second = 0; second < 2; second++) z[m][second] = *(const Two*)(from + own.pixel(m, second) * PIXEL);
#pragma unroll
    for (int m = 0; m < 8; m++)
#pragma unroll
      for (int second = 0; second < 2; second++) {
        z[m][second] = norm.rectified(z[m][second]);
#if GRAFT
        put(memory + framed(own.framed(m, second), own.c), z[m][second]);
#endif
      }
#if GRAFT
    __syncthreads();
    Two y[8][2];
    float sum = 0.0f;
    char* to = y2 + (long long)image * PIXELS * PIXEL + own.c * PIXEL / 4;
#pragma unroll
    for (int m = 0; m < 8; m++) {
      float d[4];
      convolve(d, memory, graft, 1, own, m);
#pragma unroll
      for (int second = 0; second < 2; second++) {
        Two v = two(d[2 * second], d[2 * second + 1]);
        y[m][second] = v;
        *(Two*)(to + own.pixel(m, second) * PIXEL) = v;
        sum += part(v, 0) + part(v, 1);
      }
    }
    float mean = block_sum(sum, scratch, own) * GROUP;
    sum = 0.0f;
#pragma unroll
    for (int m = 0; m < 8; m++)
#pragma unroll
      for (int i = 0; i < 4; i++) {
        float d = part(y[m][i >> 1], i & 1) - mean;
        sum = fmaf(d, d, sum);
      }
    float rstd = 1.0f / sqrtf(block_sum(sum, scratch + WARPS, own) * GROUP + 1e-5f);
    if (!thread) gn_moments[2 * image] = mean, gn_moments[2 * image + 1] = rstd;
    Line both;
#pragma unroll
    for (int e = 0; e < 2; e++) both.scale[e] = rstd, both.shift[e] = -mean * rstd;
    both = scaled(both, gn_weight, gn_bias, own.c);
#pragma unroll
    for (int m = 0; m < 8; m++)
#pragma unroll
      for (int second = 0; second < 2; second++) {
        float v[2];
#pragma unroll
        for (int e = 0; e < 2; e++)
          v[e] = fmaf(strength[e], relu(both.of(y[m][second], e)), part(z[m][second], e));
        z[m][second] = two(v[0], v[1]);
      }
#endif
    char* pooled = out + (long long)image * CELLS * PIXEL + own.c * PIXEL / 4;
    char* picked = picks + (long long)image * CELLS * 8 + own.c * 2;
    // of two threads with one cell's columns the even one takes the cells of first pixels, the other those of second
    int odd = own.g & 1;
#pragma unroll
    for (int m = 0; m < 8; m++) {
      if (m & 2) continue;
      Two theirs[2], mine[2];
#pragma unroll
      for (int down = 0; down < 2; down++) {
        mine[down] = odd ? z[m + 2 * down][1] : z[m + 2 * down][0];
        theirs[down] = across(odd ? z[m + 2 * down][0] : z[m + 2 * down][1], 4);
      }
      Two top = larger(larger(mine[0], theirs[0]), larger(mine[1], theirs[1]));
      u32 at[2] = {};
      // the first of equal maxima, as a bit
#pragma unroll
      for (int p = 3; p >= 0; p--) {
        Two v = odd == (p & 1) ? mine[p >> 1] : theirs[p >> 1];
        if (same(top, v, 0)) at[0] = 1u << p;
        if (same(top, v, 1)) at[1] = 256u << p;
      }
      int cell = own.cell(m, odd);
      *(Two*)(pooled + cell * PIXEL) = top;
      *(unsigned short*)(picked + cell * 8) = (unsigned short)(at[0] | at[1]);
    }
  }
}

KERNEL void BOUNDS(2) backward(
    const char* grad, const char* picks, const char* x, const char* y1, const char* y2, const float* moments,
    const float* gain, const float* bias, const float* weight, const float* gn_moments, const float* gn_weight,
    const float* gn_bias, const float* gamma, const float* alpha, float* sums, int images) {
  SHARED char memory[];
  char *x_at = memory, *z_at = x_at + X_BYTES, *dy_at = z_at + FRAMED;
  float* scratch = (float*)(dy_at + FRAMED);
  int thread = threadIdx.x;
  Own own = owner(thread);
  Line normed = scaled(normal(moments, own.c), gain, bias, own.c);
#if HOST
  float stage[6][4] = {}, norm[4] = {};
  Quad* columns = (Quad*)(scratch + 2 * 128);
  clear(x_at, X_BYTES, thread);
  clear((char*)columns, COLUMNS * 16, thread);
#endif
#if GRAFT
  float graft[5][4] = {}, graft_norm = 0.0f, scale[2];
  Weights adjoint = weights(weight, own, true);
#pragma unroll
  for (int e = 0; e < 2; e++) scale[e] = alpha[0] * gamma[2 * own.c + e] * gn_weight[2 * own.c + e];
  clear(z_at, FRAMED, thread);
  clear(dy_at, FRAMED, thread);
#endif
  __syncthreads();
  for (int image = blockIdx.x; image < images; image += gridDim.x) {
    const char* before = y1 + (long long)image * PIXELS * PIXEL + own.c * PIXEL / 4;
    const char* given = grad + (long long)image * CELLS * PIXEL + own.c * PIXEL / 4;
    const char* picked = picks + (long long)image * CELLS * 8 + own.c * 2;
#if HOST
#pragma unroll
    for (int k = 0; k < 4; k++) {
      Quad pixel = fill(x_at, x + (long long)image * PIXELS * PIXEL / 2, thread + k * THREADS);
      columns[thread] = sum(columns[thread], pixel);
      // of the windows' sums a tap lacks the row or the column that it leaves; the first warp has row 0, the last 31
      if (k == 0 && own.warp == 0) columns[FIRST_ROW + own.lane] = sum(columns[FIRST_ROW + own.lane], pixel);
      if (k == 3 && own.warp == WARPS - 1) columns[LAST_ROW + own.lane] = sum(columns[LAST_ROW + own.lane], pixel);
    }
#endif
#if GRAFT
    Two g[4][2];  // of the cells of rows m and m + 2
    u32 at[4][2];
#pragma unroll
    for (int k = 0; k < 4; k++)
#pragma unroll
      for (int second = 0; second < 2; second++) {
        int cell = own.cell((k & 1) + (k >> 1) * 4, second);
        g[k][second] = *(const Two*)(given + cell * PIXEL);
        at[k][second] = *(const unsigned short*)(picked + cell * 8);
      }
    const char* after = y2 + (long long)image * PIXELS * PIXEL + own.c * PIXEL / 4;
    Two y[8][2];
#pragma unroll
    for (int m = 0; m < 8; m++)
#pragma unroll
      for (int second = 0; second < 2; second++) {
        y[m][second] = *(const Two*)(after + own.pixel(m, second) * PIXEL);
        Two v = *(const Two*)(before + own.pixel(m, second) * PIXEL);
        put(z_at + framed(own.framed(m, second), own.c), normed.rectified(v));
      }
    float mean = gn_moments[2 * image], rstd = gn_moments[2 * image + 1], both[4] = {};
    Line inner;
#pragma unroll
    for (int e = 0; e < 2; e++) inner.scale[e] = rstd, inner.shift[e] = -mean * rstd;
    Line outer = scaled(inner, gn_weight, gn_bias, own.c);
    Two passed[8][2];
#pragma unroll
    for (int m = 0; m < 8; m++)
#pragma unroll
      for (int second = 0; second < 2; second++) {
        int k = (m & 1) + (m >> 2) * 2;
        Two v = y[m][second], d = outer.passed(picked_of(g[k][second], at[k][second], own.bit(m)), v);
        passed[m][second] = d;
#pragma unroll
        for (int e = 0; e < 2; e++) {
          both[e] += part(d, e);
          both[2 + e] = fmaf(part(d, e), part(v, e), both[2 + e]);
        }
      }
    // sums with what is normalised, from those with what is not
#pragma unroll
    for (int e = 0; e < 2; e++) both[2 + e] = rstd * (both[2 + e] - mean * both[e]);
    float* parts = scratch + (image / gridDim.x & 1) * 128;
    leave(both, parts, own);
    __syncthreads();
    float total = left(parts, own.lane & 15);
    graft_norm += total;
    int channel = own.lane & 7;
    float share = total * (alpha[0] * gamma[channel] * gn_weight[channel]);
#pragma unroll
    for (int lanes = 1; lanes < 8; lanes <<= 1) share += across(share, lanes);
    float other = across(share, 8), s = (own.lane & 8 ? other : share) * GROUP, t = (own.lane & 8 ? share : other) * GROUP;
    // rstd (scale d - s - xhat t)
    float slope = -rstd * rstd * t, rest = -rstd * s - mean * slope, steep[2] = {rstd * scale[0], rstd * scale[1]};
#pragma unroll
    for (int m = 0; m < 8; m++)
#pragma unroll
      for (int second = 0; second < 2; second++) {
        float v[2];
#pragma unroll
        for (int e = 0; e < 2; e++)
          v[e] = fmaf(part(passed[m][second], e), steep[e], fmaf(part(y[m][second], e), slope, rest));
        put(dy_at + framed(own.framed(m, second), own.c), two(v[0], v[1]));
      }
#endif
    __syncthreads();
#pragma unroll 1
    for (int k = 0; k < 4; k++) {
#if HOST
      Two reaching[2];
      u32 at[2];
#pragma unroll
      for (int second = 0; second < 2; second++) {
        int cell = own.cell((k & 1) + (k >> 1) * 4, second);
        reaching[second] = *(const Two*)(given + cell * PIXEL);
        at[second] = *(const unsigned short*)(picked + cell * 8);
      }
#endif
#pragma unroll
      for (int down = 0; down < 4; down += 2) {
        int m = (k & 1) + (k >> 1) * 4 + down;
#if HOST
        Two whole[2], of[2];  // gradients and what they are of
        float d[4] = {};
#if GRAFT && !DETACH
        convolve(d, dy_at, adjoint, -1, own, m);
#endif
#pragma unroll
        for (int second = 0; second < 2; second++) {
          Two v = *(const Two*)(before + own.pixel(m, second) * PIXEL);
          Two direct = picked_of(reaching[second], at[second], own.bit(down));
          Two sum = two(d[2 * second] + part(direct, 0), d[2 * second + 1] + part(direct, 1));
          of[second] = v, whole[second] = normed.passed(sum, v);
#pragma unroll
          for (int e = 0; e < 2; e++) {
            norm[e] += part(whole[second], e);
            norm[2 + e] = fmaf(part(whole[second], e), part(v, e), norm[2 + e]);
          }
        }
        // BN's backward pass is put together from products of the gradient and of its own input with the windows
        meet_windows(stage, whole, of, x_at, own, m);
#endif
#if GRAFT
        meet_taps(graft, z_at, dy_at, own, m);
#endif
      }
    }
    __syncthreads();
  }
#if HOST
  Line standard = normal(moments, own.c);
#pragma unroll
  for (int e = 0; e < 2; e++) norm[2 + e] = fmaf(norm[2 + e], standard.scale[e], norm[e] * standard.shift[e]);
  leave(norm, scratch, own);
#endif
  // warps add up in their order; the images are no longer needed
  float *own_sums = (float*)memory + own.warp * NORMS;
  int place = own.g * 8 + own.c * 2;
#pragma unroll
  for (int r = 0; r < 4; r++) {
    int at = place + (r >> 1) * 64 + (r & 1);
#if GRAFT
#pragma unroll
    for (int tile = 0; tile < 5; tile++) own_sums[tile * 128 + at] = graft[tile][r];
#endif
#if HOST
#pragma unroll
    for (int tile = 0; tile < 6; tile++) own_sums[GRAFT_SUMS + tile * 128 + at] = stage[tile][r];
#endif
  }
  __syncthreads();
  float* to = sums + (long long)blockIdx.x * SUMS;
  for (int i = GRAFT ? thread : GRAFT_SUMS + thread; i < GRAFT_SUMS + (HOST ? STAGE_SUMS : 0); i += THREADS) {
    float sum = 0.0f;
#pragma unroll
    for (int w = 0; w < WARPS; w++) sum += ((float*)memory)[w * NORMS + i];
    to[i] = sum;
  }
  if (thread < 16) {
#if HOST
    to[NORMS + thread] = left(scratch, thread);
#endif
#if GRAFT
    to[NORMS + 16 + thread] = graft_norm;
#endif
  }
#if HOST
  if (thread < EDGE) {  // over the warps
    Quad all = {};
#pragma unroll
    for (int w = 0; w < WARPS; w++) all = sum(all, columns[w * 32 + thread]);
    columns[thread] = all;
  }
  __syncthreads();
  if (thread < WINDOW_SUMS) {
    int ky = thread / 16, kx = thread / 4 % 4, ch = thread % 4;
    float sum = 0.0f;
    for (int x = kx == 2; x < EDGE - (kx == 0); x++) {
      float whole = columns[x].v[ch];
      if (ky == 0) whole -= columns[LAST_ROW + x].v[ch];
      if (ky == 2) whole -= columns[FIRST_ROW + x].v[ch];
      sum += whole;
    }
    to[GRAFT_SUMS + STAGE_SUMS + thread] = sum;
  }
#endif
}

// Column i of sums [blocks, SUMS], added up by the eight threads of a lane in a fixed order.
DEVICE float column(const float* sums, int i, int blocks, float* scratch, int thread) {
  float sum = 0.0f;
#pragma unroll 8
  for (int row = thread >> 5; row < blocks; row += 8) sum += sums[(long long)row * SUMS + i];
  __syncthreads();
  scratch[thread] = sum;
  __syncthreads();
  sum = 0.0f;
  for (int part = 0; part < 8; part++) sum += scratch[part * 32 + (thread & 31)];
  return sum;
}

// Blocks 0-19: gradient of the graft's weight; 20: of both norms and of gamma; 21-29: of the stage's weight.
KERNEL void BOUNDS(1) finish(
    const float* sums, const float* moments, const float* gain, const float* gn_weight, const float* gn_bias,
    const float* gamma, const float* alpha, float* d_weight, float* d_norm, float* d_graft, float* d_graft_norm,
    int blocks, int inner, float count) {
  __shared__ float scratch[THREADS];
  int thread = threadIdx.x, lane = thread & 31, block = blockIdx.x;
  if (block < 20) {
#if GRAFT
    constexpr int taps[5][2] = TAPS;
    int item = block * 32 + lane, tap = taps[item / 128][item / 64 % 2], c = item / 8 % 8, o = item % 8;
    float sum = column(sums, item, blocks, scratch, thread);
    if (thread < 32 && tap < 9) d_graft[o * 72 + c * 9 + tap] = sum;
#endif
  } else if (block == 20) {
    float sum = column(sums, NORMS + lane, blocks, scratch, thread);
#if HOST
    if (thread < 16) d_norm[thread] = sum;
#endif
#if GRAFT
    __syncthreads();
    if (thread < 32) scratch[thread] = sum;
    __syncthreads();
    if (thread < 8) {
      float first = scratch[16 + thread], second = scratch[24 + thread];
      d_graft_norm[thread] = alpha[0] * gamma[thread] * second;
      d_graft_norm[8 + thread] = alpha[0] * gamma[thread] * first;
      d_graft_norm[16 + thread] = alpha[0] * (gn_weight[thread] * second + gn_bias[thread] * first);
    }
#endif
  } else {
    int item = (block - 21) * 32 + lane, o = item / 36, c = item / 9 % 4, ky = item / 3 % 3, kx = item % 3;
    int tile = ky * 2 + kx / 2, n = kx % 2 * 4 + c, at = GRAFT_SUMS + tile * 128 + o * 8 + n;
    float a = column(sums, at, blocks, scratch, thread), y = column(sums, at + 64, blocks, scratch, thread);
    float w = column(sums, GRAFT_SUMS + STAGE_SUMS + ky * 16 + kx * 4 + c, blocks, scratch, thread);
    float s = column(sums, NORMS + o, blocks, scratch, thread) / count;
    float t = column(sums, NORMS + 8 + o, blocks, scratch, thread) / count;
    // dL/dy = gain rstd (d - mean(d) - xhat mean(d xhat)) (Ioffe & Szegedy 2015), times each window
    float rstd = moments[8 + o];
    if (thread < 32 && c < inner)
      d_weight[((o * inner + c) * 3 + ky) * 3 + kx] = gain[o] * rstd * (a - s * w - t * rstd * (y - moments[o] * w));
  }
}
