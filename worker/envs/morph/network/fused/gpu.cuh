// What the kernels ask of a GPU; the tests have the same for a CPU (tests/worker/envs/morph/emulated/gpu.h).

typedef unsigned int u32;
#define DEVICE __device__ __forceinline__
#define METHOD DEVICE
#define KERNEL extern "C" __global__
#define BOUNDS(blocks) __launch_bounds__(256, blocks)
#define SHARED extern __shared__ __align__(16)

// Two numbers as bf16, rounded to the nearest.
DEVICE u32 pair(float low, float high) {
  u32 both;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  return both;
}
// A number as TF32, rounded to the nearest.
DEVICE float shortened(float v) {
  u32 out;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(out) : "f"(v));
  return __uint_as_float(out);
}
DEVICE void load4(u32 (&r)[4], const char* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"((u32)__cvta_generic_to_shared(row)) : "memory");
}
DEVICE void load4t(u32 (&r)[4], const char* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"((u32)__cvta_generic_to_shared(row)) : "memory");
}
DEVICE void multiply(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
               "{%0,%1,%2,%3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
DEVICE void multiply(float (&d)[4], const float (&a)[4], float b0, float b1) {
  asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
               "{%0,%1,%2,%3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(__float_as_uint(a[0])), "r"(__float_as_uint(a[1])), "r"(__float_as_uint(a[2])),
                 "r"(__float_as_uint(a[3])), "r"(__float_as_uint(b0)), "r"(__float_as_uint(b1)));
}
// The transpose of a matrix of 8 x 8 halves whose row i / 4 holds columns 2 (i % 4) and the next in lane i.
DEVICE u32 turned(u32 v) {
  u32 out;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(out) : "r"(v));
  return out;
}
// The larger, NaN where either is NaN, as in PyTorch.
DEVICE float larger(float a, float b) {
  float out;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(out) : "f"(a), "f"(b));
  return out;
}
DEVICE u32 larger(u32 a, u32 b) {
  u32 out;
  asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(out) : "r"(a), "r"(b));
  return out;
}
DEVICE u32 across(u32 v, int lanes) { return __shfl_xor_sync(0xffffffffu, v, lanes); }
DEVICE float across(float v, int lanes) { return __shfl_xor_sync(0xffffffffu, v, lanes); }
DEVICE float of_lane(float v, int lane) { return __shfl_sync(0xffffffffu, v, lane); }
