/* Plays NVIDIA's driver for the GPU of the rank in $RANK, whose memory is the host's: processes share it by files.
   $UNLINKED is an attribute that no two GPUs have, $FULL the rank whose memory is full. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef struct { int process, file; size_t size; char rest[48]; } Handle;
static Handle own;

static int number(const char *name) { return getenv(name) ? atoi(getenv(name)) : -1; }

static void *map(int file, size_t size) { return mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0); }

int cuCtxGetDevice(int *device) { return *device = number("RANK"), 0; }
int cuCtxSynchronize(void) { return 0; }
int cuDeviceGetPCIBusId(char *bus, int length, int device) { return snprintf(bus, length, "0000:%02x:00.0", device), 0; }
int cuDeviceGetByPCIBusId(int *device, const char *bus) { return *device = strtol(bus + 5, NULL, 16), 0; }

int cuDeviceGetP2PAttribute(int *value, int attribute, int one, int other) {
    *value = attribute != number("UNLINKED");
    return one == other ? 101 : 0;
}

int cuMemAlloc_v2(unsigned long long *address, size_t size) {
    own = (Handle){getpid(), memfd_create("gpu", 0), size};
    if (number("RANK") == number("FULL") || ftruncate(own.file, size)) return 2;
    return *address = (unsigned long long)map(own.file, size), memset((void *)*address, 255, size), 0;
}

int cuMemsetD8_v2(unsigned long long address, unsigned char value, size_t size) {
    return memset((void *)address, value, size), 0;
}

int cuIpcGetMemHandle(Handle *handle, unsigned long long address) { return *handle = own, address ? 0 : 1; }

int cuIpcOpenMemHandle_v2(unsigned long long *address, Handle handle, unsigned flags) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", handle.process, handle.file);
    int file = open(path, O_RDWR);
    return *address = (unsigned long long)map(file, handle.size), file < 0 || flags != 1 ? 201 : 0;
}
