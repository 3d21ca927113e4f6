// The kernel of stage_eval.cu as a function of a library; build with -DGRAFT.
#include "gpu.h"

#include "stage_eval.cu"

extern "C" void run_validate(int blocks, void** a, int images, int inner, int wants_plain) {
  launch(blocks, [=] {
    validate((float*)a[0], (float*)a[1], (float*)a[2], (float*)a[3], (float*)a[4], (float*)a[5], (float*)a[6],
             (float*)a[7], (float*)a[8], (float*)a[9], (float*)a[10], (float*)a[11], (float*)a[12], images, inner,
             wants_plain);
  });
}
