// Kernels of stage.cu as functions of a library; build with -DGRAFT and -DDETACH.
#include "gpu.h"

#include "stage.cu"

extern "C" void run_forward(int blocks, void** a, int images) {
  launch(blocks, [=] {
    forward((char*)a[0], (float*)a[1], (float*)a[2], (float*)a[3], (float*)a[4], (float*)a[5], (float*)a[6],
            (float*)a[7], (float*)a[8], (char*)a[9], (float*)a[10], (char*)a[11], (char*)a[12], images);
  });
}
extern "C" void run_backward(int blocks, void** a, int images) {
  launch(blocks, [=] {
    backward((char*)a[0], (char*)a[1], (char*)a[2], (char*)a[3], (char*)a[4], (float*)a[5], (float*)a[6],
             (float*)a[7], (float*)a[8], (float*)a[9], (float*)a[10], (float*)a[11], (float*)a[12], (float*)a[13],
             (float*)a[14], images);
  });
}
extern "C" void run_finish(int blocks, void** a, int summed, int inner, float count) {
  launch(blocks, [=] {
    finish((float*)a[0], (float*)a[1], (float*)a[2], (float*)a[3], (float*)a[4], (float*)a[5], (float*)a[6],
           (float*)a[7], (float*)a[8], (float*)a[9], (float*)a[10], summed, inner, count);
  });
}
