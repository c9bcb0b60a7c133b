/* A driver of no GPU: it notes what the last launch was told. Triton's launcher is linked with it (launch_nowhere.py). */

#include "cuda.h"
#include <stdint.h>
#include <string.h>

int count = 0, sizes[256], launches = 0; /* how many parameters to note, of how many bytes each */
uint64_t about[7], parameters[256];

CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **given, void **more) {
  uint64_t told[] = {config->gridDimX, config->gridDimY, config->gridDimZ, config->blockDimX, config->sharedMemBytes,
                     (uint64_t)config->hStream, (uint64_t)function};
  memcpy(about, told, sizeof told);
  memset(parameters, 0, sizeof parameters);
  for (int i = 0; i < count; i++)
    memcpy(&parameters[i], given[i], sizes[i]);
  launches++;
  return CUDA_SUCCESS;
}

CUresult cuPointerGetAttribute(void *found, CUpointer_attribute which, CUdeviceptr address) {
  *(CUdeviceptr *)found = address;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int *found, CUdevice_attribute which, CUdevice device) {
  *found = 227 * 1024;
  return CUDA_SUCCESS;
}

CUresult cuFuncGetAttribute(int *found, CUfunction_attribute which, CUfunction function) {
  *found = which == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024 : 0;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext *found) {
  *found = (CUcontext)1;
  return CUDA_SUCCESS;
}

CUresult cuModuleLoadData(CUmodule *found, const void *image) {
  *found = (CUmodule)2;
  return CUDA_SUCCESS;
}

CUresult cuModuleGetFunction(CUfunction *found, CUmodule module, const char *name) {
  *found = (CUfunction)(1000 + strlen(name));
  return CUDA_SUCCESS;
}

CUresult cuGetErrorString(CUresult error, const char **found) {
  *found = "there is no GPU";
  return CUDA_SUCCESS;
}

/* What does nothing; most of it is there only to be linked with. */
#define NOTHING(name, ...) \
  CUresult name(__VA_ARGS__) { return CUDA_SUCCESS; }
NOTHING(cuInit, unsigned flags)
NOTHING(cuDriverGetVersion, int *version)
NOTHING(cuDeviceGet, CUdevice *device, int number)
NOTHING(cuDevicePrimaryCtxRetain, CUcontext *context, CUdevice device)
NOTHING(cuCtxSetCurrent, CUcontext context)
NOTHING(cuCtxGetDevice, CUdevice *device)
NOTHING(cuCtxGetLimit, size_t *size, CUlimit limit)
NOTHING(cuCtxSetLimit, CUlimit limit, size_t size)
NOTHING(cuModuleUnload, CUmodule module)
NOTHING(cuFuncSetAttribute, CUfunction function, CUfunction_attribute which, int number)
NOTHING(cuFuncSetCacheConfig, CUfunction function, CUfunc_cache config)
NOTHING(cuOccupancyMaxActiveClusters, int *found, CUfunction function, const CUlaunchConfig *config)
NOTHING(cuPointerGetAttributes, unsigned count, CUpointer_attribute *which, void **found, CUdeviceptr address)
NOTHING(cuStreamIsCapturing, CUstream stream, CUstreamCaptureStatus *status)
