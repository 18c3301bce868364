#include "kernels/cuda/place.h"

#include "kernels/cuda/norm.h"

#ifdef MYTHOS_CUDA
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>
#endif

#include <atomic>

namespace mythos::cuda {
namespace {

std::atomic<int> hosts = 0;

bool known(at::ScalarType type) { return type == at::kFloat || type == at::kDouble || type == at::kBFloat16; }

}  // namespace

OnHost::OnHost() { ++hosts; }
OnHost::~OnHost() { --hosts; }

bool applies(const at::Tensor& t) {
  if (!known(t.scalar_type())) return false;
#ifdef MYTHOS_CUDA
  if (t.is_cuda()) return true;
#endif
  return t.device().is_cpu() && hosts.load(std::memory_order_relaxed) > 0;
}

Where place_of(const at::Tensor& like) {
#ifdef MYTHOS_CUDA
  if (like.is_cuda()) return {true, c10::cuda::getCurrentCUDAStream(like.device().index()).stream()};
#endif
  TORCH_INTERNAL_ASSERT(like.device().is_cpu());
  return {};
}

int compute_capability([[maybe_unused]] at::Device device) {
#ifdef MYTHOS_CUDA
  if (device.is_cuda()) {
    const int index = device.has_index() ? device.index() : 0;
    int major = 0, minor = 0;
    C10_CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, index));
    C10_CUDA_CHECK(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, index));
    return major * 10 + minor;
  }
#endif
  return 0;
}

Type type_of(at::ScalarType type) {
  TORCH_INTERNAL_ASSERT(known(type), "a kernel of kernels/cuda got ", type);
  return type == at::kDouble ? Type::f64 : type == at::kBFloat16 ? Type::bf16 : Type::f32;
}

at::Tensor deliver_parts(const at::Tensor& parts, const at::Tensor& sink, at::ScalarType type) {
  auto shape = parts.sizes().vec();
  shape.erase(shape.begin());
  AddPartsArgs a;
  a.overwrite = !sink.defined();
  const at::Tensor out = a.overwrite ? at::empty(shape, parts.options().dtype(type)) : sink;
  a.type = type_of(parts);
  a.out_type = type_of(out);
  a.parts = parts.size(0);
  a.width = out.numel();
  a.rows = parts.const_data_ptr();
  a.out = out.data_ptr();
  TORCH_INTERNAL_ASSERT(parts.is_contiguous() && out.is_contiguous() && parts.numel() == a.parts * a.width &&
                        (a.type == Type::f64) == (a.out_type == Type::f64));
  add_parts(a, place_of(parts));
  return a.overwrite ? out : at::Tensor();
}

}  // namespace mythos::cuda
