// Pixels of eight channels in bf16, and products of them.
//
// A pixel is sixteen bytes, which is what one row of ldmatrix is, so it picks windows out of an image as it is.

#define PIXEL 16          // bytes of a pixel
#define FORWARD_BLOCKS 3  // of threads on a multiprocessor
#define X_BYTES FRAMED    // of an image
#define FRAMED (WIDE * WIDE * 16)

typedef u32 Two;  // channels side by side

DEVICE Two two(float low, float high) { return pair(low, high); }
DEVICE float part(Two v, int upper) { return __uint_as_float(upper ? v & 0xffff0000u : v << 16); }
DEVICE Two kept(Two v, bool low, bool high) { return v & ((low ? 0xffffu : 0u) | (high ? 0xffff0000u : 0u)); }
DEVICE bool same(Two a, Two b, int upper) { return !((a ^ b) & (upper ? 0xffff0000u : 0xffffu)); }

// Where channels 2 c and 2 c + 1 of a pixel of a framed image lie.
DEVICE int framed(int pixel, int c) { return pixel * 16 + c * 4; }
DEVICE void put(char* to, Two v) { *(Two*)to = v; }

// Weights [8, 8, 3, 3] of pairs of taps as the right side of a product: rows are inner channels of either tap
// (ADJOINT: outer), columns the others. There is no tap 9.
struct Weights { u32 b[5][2]; };
DEVICE Weights weights(const float* w, const Own& own, bool adjoint) {
  constexpr int taps[5][2] = TAPS;
  Weights out;
  int n = own.g, k = own.c * 2;
#pragma unroll
  for (int s = 0; s < 5; s++)
#pragma unroll
    for (int h = 0; h < 2; h++) {
      int tap = taps[s][h], at = adjoint ? k * 72 + n * 9 + tap : n * 72 + k * 9 + tap;
      out.b[s][h] = tap < 9 ? pair(w[at], w[at + (adjoint ? 72 : 9)]) : 0u;
    }
  return out;
}

struct Places {
  const char* at[3];
  METHOD const char* of(int s, int sign) const {
    constexpr int taps[5][2] = TAPS;
    int tap = taps[s][0];
    return at[s < 3 ? 0 : s - 2] + sign * ((tap / 3 - 1) * WIDE + tap % 3 - 1) * 16;
  }
};
DEVICE Places places(const char* pixel, int second, int sign) {
  Places out = {{pixel + second * sign * WIDE * 16, pixel + second * sign * 16, pixel}};
  return out;
}

// Product m of a framed image with taps: pixels of half a row times channels.
DEVICE void convolve(float (&d)[4], const char* image, const Weights& weights, int sign, const Own& own, int m) {
  Places from = places(image + (own.first(m) + (own.lane & 15)) * 16, own.lane >> 4, sign);
#pragma unroll
  for (int r = 0; r < 4; r++) d[r] = 0.0f;
#pragma unroll
  for (int s = 0; s < 5; s++) {
    u32 a[4];
    load4(a, from.of(s, sign));
    multiply(d, a, weights.b[s][0], weights.b[s][1]);
  }
}

// Pixel i of an image of four channels, into its frame; returns them. Two pixels side by side are a row of a matrix, so
// each stands twice.
DEVICE Quad fill(char* frame, const char* image, int i) {
  struct alignas(8) Four { u32 w[2]; } four = *(const Four*)(image + (long long)i * 8);
  char* to = frame + (((i >> 5) + 1) * WIDE + (i & 31) + 1) * 16;
  *(Four*)to = four;
  *(Four*)(to - 8) = four;
  Quad out = {{part(four.w[0], 0), part(four.w[0], 1), part(four.w[1], 0), part(four.w[1], 1)}};
  return out;
}

// Add to sums by row and half of the window what product m has: gradients above, what they are of below, times x.
DEVICE void meet_windows(
    float (&sums)[6][4], const Two (&gradients)[2], const Two (&values)[2], const char* x, const Own& own, int m) {
  u32 sides[4] = {turned(gradients[0]), turned(values[0]), turned(gradients[1]), turned(values[1])};
  const char* from = x + (own.first(m) + (own.lane & 15) + (own.lane >> 4) * 2) * 16;
#pragma unroll
  for (int ky = 0; ky < 3; ky++) {
    u32 right[4];
    load4t(right, from + ((ky - 1) * WIDE - 1) * 16);
    multiply(sums[ky * 2], sides, right[0], right[1]);
    multiply(sums[ky * 2 + 1], sides, right[2], right[3]);
  }
}

// Add to sums by pair of taps what product m has: windows of z times gradients dy.
DEVICE void meet_taps(float (&sums)[5][4], const char* z, const char* dy, const Own& own, int m) {
  u32 right[4];
  load4t(right, dy + (own.first(m) + (own.lane & 15)) * 16);
  Places from = places(z + (own.first(m) + (own.lane & 7) + (own.lane >> 4) * 8) * 16, own.lane >> 3 & 1, 1);
#pragma unroll
  for (int s = 0; s < 5; s++) {
    u32 a[4];
    load4t(a, from.of(s, 1));
    multiply(sums[s], a, right[0], right[1]);
  }
}
