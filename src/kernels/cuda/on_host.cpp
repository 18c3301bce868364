// The host's form of the kernels, from the source that nvcc compiles for the device.
#include "kernels/cuda/heads.cu"
#include "kernels/cuda/norm.cu"
#include "kernels/cuda/swiglu.cu"
