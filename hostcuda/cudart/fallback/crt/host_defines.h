// The macros of the toolkit's crt/host_defines.h that <cuda_runtime_api.h> uses, for a host compiler.
// PyPI's package of the runtime's headers lacks that file; the toolkit's own is found first.
#pragma once

#ifndef CUDARTAPI
#define CUDARTAPI
#endif
#define CUDARTAPI_CDECL
#define CUDA_CB
#define __host__
#define __device__
#define __global__
#define __shared__
#define __constant__
#define __managed__
#define __device_builtin__
#define __device_builtin_texture_type__
#define __device_builtin_surface_type__
#define __cudart_builtin__
#define __builtin_align__(n) __attribute__((aligned(n)))
#define __align__(n) __attribute__((aligned(n)))
#define __no_return__ __attribute__((noreturn))
#define __location__(a)
#define __specialization_static static
