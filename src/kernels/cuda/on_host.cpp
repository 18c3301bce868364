// The host's form of the kernels, from the source that nvcc compiles for the device.
#include "kernels/cuda/adamw.cu"
#include "kernels/cuda/cross_entropy.cu"
#include "kernels/cuda/embedding.cu"
#include "kernels/cuda/loop.cu"
#include "kernels/cuda/moe.cu"
#include "kernels/cuda/norm.cu"
#include "kernels/cuda/sum.cu"
