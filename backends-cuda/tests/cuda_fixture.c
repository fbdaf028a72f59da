/* Plays NVIDIA's driver, which prints its calls; it only has the functions that create a context. INIT is cuInit's code. */
#include <stdio.h>
#include <stdlib.h>

int cuInit(unsigned flags) {
    printf("init %u, order %s\n", flags, getenv("CUDA_DEVICE_ORDER"));
    return INIT;
}
int cuDeviceGet(int *device, int index) {
    *device = index + 40;
    return index < 2 ? 0 : 101;
}
int cuDevicePrimaryCtxRetain(void **context, int device) {
    printf("retain %d\n", device);
    *context = device == 40 || device == 41 ? &context : NULL;
    return 0;
}
