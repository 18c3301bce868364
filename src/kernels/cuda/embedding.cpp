#include "kernels/cuda/embedding.h"

#include "kernels/cuda/ops.h"
#include "kernels/cuda/place.h"

namespace mythos::cuda {

void embedding_gradient(const at::Tensor& ids, const at::Tensor& dy, const at::Tensor& sink) {
  TORCH_INTERNAL_ASSERT(dy.is_contiguous() && sink.is_contiguous() && dy.dim() == 2 && dy.size(0) == ids.numel() &&
                        sink.dim() == 2 && sink.size(1) == dy.size(1));
  const auto [sorted, order] = at::sort(ids, /*stable=*/std::optional<bool>(true), 0, /*descending=*/false);
  EmbeddingArgs a;
  a.type = type_of(dy);
  a.out_type = type_of(sink);
  TORCH_CHECK(a.type == a.out_type || (a.type == Type::bf16 && a.out_type == Type::f32), "a gradient in ",
              dy.scalar_type(), " cannot be added to one in ", sink.scalar_type());
  a.count = dy.size(0);
  a.width = dy.size(1);
  a.ids = sorted.const_data_ptr<int64_t>();
  a.order = order.const_data_ptr<int64_t>();
  a.dy = dy.const_data_ptr();
  a.out = sink.mutable_data_ptr();
  embedding_gradient(a, place_of(dy));
}

}  // namespace mythos::cuda
