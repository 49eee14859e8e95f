/* kernels: all of them, for launch.cu, for the emulator and for the PTX. */
#ifndef FIRE_CUDA_KERNELS_CUH
#define FIRE_CUDA_KERNELS_CUH

#include "common.cuh"
#include "fused.cuh"
#include "gram.cuh"
#include "lanczos.cuh"
#include "reduce.cuh"
#include "weights.cuh"

#endif
