/* Plays NVIDIA's management library, for tests of detection. What it says is compiled in:
   DRIVER, CUDA (13000 is 13.0), INIT (nvmlInit_v2's code), DEVICES (initialisers of struct device),
   LOST (index of a device that has fallen off the bus; -1: none). */
#include <stdio.h>
#include <stdlib.h>

struct device { const char *uuid, *name; unsigned long long memory; int major, minor; };
struct memory { unsigned long long total, free, used; };

static const struct device devices[] = {DEVICES {0}};
enum { COUNT = sizeof devices / sizeof *devices - 1 };
static int sessions;

static int write_text(char *buffer, unsigned length, const char *text) {
    return (unsigned)snprintf(buffer, length, "%s", text) < length ? 0 : 7;
}

const char *nvmlErrorString(int code) {
    return code == 9 ? "Driver Not Loaded" : code == 15 ? "GPU is lost" : code == 18 ? "Driver/library version mismatch" : "Unknown Error";
}
int nvmlInit_v2(void) { if (!INIT) sessions++; return INIT; }
int nvmlShutdown(void) { return sessions-- > 0 ? 0 : 1; }
int fixture_sessions(void) { return sessions; }
int nvmlSystemGetDriverVersion(char *buffer, unsigned length) { return write_text(buffer, length, DRIVER); }
int nvmlSystemGetCudaDriverVersion_v2(int *version) { *version = CUDA; return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = COUNT; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) {
    if (index >= COUNT) return 2;
    if ((int)index == LOST) return 15;
    *handle = (void *)&devices[index];
    return 0;
}
int nvmlDeviceGetName(void *handle, char *buffer, unsigned length) {
    return write_text(buffer, length, ((struct device *)handle)->name);
}
int nvmlDeviceGetUUID(void *handle, char *buffer, unsigned length) {
    return write_text(buffer, length, ((struct device *)handle)->uuid);
}
int nvmlDeviceGetMemoryInfo(void *handle, struct memory *memory) {
    memory->total = ((struct device *)handle)->memory;
    memory->free = memory->used = 0;
    return 0;
}
int nvmlDeviceGetCudaComputeCapability(void *handle, int *major, int *minor) {
    *major = ((struct device *)handle)->major;
    *minor = ((struct device *)handle)->minor;
    return 0;
}
