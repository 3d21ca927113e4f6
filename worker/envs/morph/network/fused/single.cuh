// Pixels of eight channels in float32, and products of them in TF32.
//
// A framed image is two planes of four channels, so that again sixteen bytes are a row of ldmatrix, and of a thread's
// numbers that are read one by one no two are in one bank. What products read is rounded when it is laid down.

#define PIXEL 32          // bytes of a pixel
#define FORWARD_BLOCKS 2  // of threads on a multiprocessor
#define X_BYTES (WIDE * WIDE * 16)
#define PLANE (WIDE * WIDE * 16 + 16)
#define FRAMED (2 * PLANE)

struct alignas(8) Two { float v[2]; };  // channels side by side

DEVICE Two two(float low, float high) { Two out = {{low, high}}; return out; }
DEVICE float part(Two v, int upper) { return v.v[upper]; }
DEVICE Two kept(Two v, bool low, bool high) { return two(low ? v.v[0] : 0.0f, high ? v.v[1] : 0.0f); }
DEVICE bool same(Two a, Two b, int upper) { return __float_as_uint(a.v[upper]) == __float_as_uint(b.v[upper]); }
DEVICE Two larger(Two a, Two b) { return two(larger(a.v[0], b.v[0]), larger(a.v[1], b.v[1])); }
DEVICE Two across(Two v, int lanes) { return two(across(v.v[0], lanes), across(v.v[1], lanes)); }

// Where channels 2 c and 2 c + 1 of a pixel of a framed image lie.
DEVICE int framed(int pixel, int c) { return pixel * 16 + (c >> 1) * PLANE + (c & 1) * 8; }
DEVICE void put(char* to, Two v) { *(Two*)to = two(shortened(v.v[0]), shortened(v.v[1])); }

// Weights [8, 8, 3, 3] of taps as the right side of a product: rows are inner channels (ADJOINT: outer).
struct Weights { float b[9][2]; };
DEVICE Weights weights(const float* w, const Own& own, bool adjoint) {
  Weights out;
#pragma unroll
  for (int tap = 0; tap < 9; tap++)
#pragma unroll
    for (int h = 0; h < 2; h++) {
      int n = own.g, k = own.c + 4 * h;
      out.b[tap][h] = shortened(w[(adjoint ? k * 72 + n * 9 : n * 72 + k * 9) + tap]);
    }
  return out;
}

// Product m of a framed image with taps: pixels of half a row times channels.
DEVICE void convolve(float (&d)[4], const char* image, const Weights& weights, int sign, const Own& own, int m) {
  const char* from = image + (own.lane >> 4) * PLANE + (own.first(m) + (own.lane & 15)) * 16;
#pragma unroll
  for (int r = 0; r < 4; r++) d[r] = 0.0f;
#pragma unroll
  for (int tap = 0; tap < 9; tap++) {
    u32 a[4];
    load4(a, from + sign * ((tap / 3 - 1) * WIDE + tap % 3 - 1) * 16);
    float left[4] = {__uint_as_float(a[0]), __uint_as_float(a[1]), __uint_as_float(a[2]), __uint_as_float(a[3])};
    multiply(d, left, weights.b[tap][0], weights.b[tap][1]);
  }
}

// Pixel i of an image of four channels, into its frame; returns them.
DEVICE Quad fill(char* frame, const char* image, int i) {
  Quad pixel = *(const Quad*)(image + (long long)i * 16);
#pragma unroll
  for (int ch = 0; ch < 4; ch++) pixel.v[ch] = shortened(pixel.v[ch]);
  *(Quad*)(frame + (((i >> 5) + 1) * WIDE + (i & 31) + 1) * 16) = pixel;
  return pixel;
}

// The transpose of pixels times channels: of channel g pixels 2 c and 2 c + 1, rounded.
DEVICE Two turned(Two v) {
  u32 low = __float_as_uint(shortened(v.v[0])), high = __float_as_uint(shortened(v.v[1]));
  u32 lower = turned(low & 0xffffu | high << 16), upper = turned(low >> 16 | high & 0xffff0000u);
  return two(__uint_as_float(lower & 0xffffu | upper << 16), __uint_as_float(lower >> 16 | upper & 0xffff0000u));
}

// Add to sums by row and half of the window what product m has: gradients above, what they are of below, times x.
DEVICE void meet_windows(
    float (&sums)[6][4], const Two (&gradients)[2], const Two (&values)[2], const char* x, const Own& own, int m) {
#pragma unroll
  for (int second = 0; second < 2; second++) {
    Two above = turned(gradients[second]), below = turned(values[second]);
    float sides[4] = {above.v[0], below.v[0], above.v[1], below.v[1]};
    const char* from = x + (own.first(m) + second * 8 + own.c * 2 + (own.g >> 2)) * 16 + (own.g & 3) * 4;
#pragma unroll
    for (int ky = 0; ky < 3; ky++) {
      float right[4];
#pragma unroll
      for (int j = 0; j < 4; j++) right[j] = *(const float*)(from + ((ky - 1) * WIDE + j - 1) * 16);
      multiply(sums[ky * 2], sides, right[0], right[1]);
      multiply(sums[ky * 2 + 1], sides, right[2], right[3]);
    }
  }
}

// Add to sums by pair of taps what product m has: windows of z times gradients dy.
DEVICE void meet_taps(float (&sums)[5][4], const char* z, const char* dy, const Own& own, int m) {
  constexpr int taps[5][2] = TAPS;
#pragma unroll
  for (int second = 0; second < 2; second++) {
    int at = (own.g >> 2) * PLANE + (own.first(m) + second * 8 + own.c * 2) * 16 + (own.g & 3) * 4;
    float right[2] = {*(const float*)(dy + at), *(const float*)(dy + at + 16)}, window[3][4];
#pragma unroll
    for (int ky = 0; ky < 3; ky++)
#pragma unroll
      for (int j = 0; j < 4; j++) window[ky][j] = *(const float*)(z + at + ((ky - 1) * WIDE + j - 1) * 16);
#pragma unroll
    for (int s = 0; s < 5; s++) {
      int first = taps[s][0], other = taps[s][1] % 9;  // what would be tap 9 is not read
      const float *one = window[first / 3] + first % 3, *next = window[other / 3] + other % 3;
      float left[4] = {one[0], next[0], one[1], next[1]};
      multiply(sums[s], left, right[0], right[1]);
    }
  }
}
