#include "kernels/cuda/cross_entropy.h"

#include "kernels/cross_entropy.h"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/place.h"

namespace mythos::cuda {

void cross_entropy(const at::Tensor& logits, const at::Tensor& targets, const at::Tensor& losses, double scale,
                   bool gradients) {
  TORCH_INTERNAL_ASSERT(logits.dim() == 2 && logits.is_contiguous() && targets.is_contiguous() &&
                        losses.is_contiguous() && losses.scalar_type() == at::kDouble &&
                        targets.numel() == logits.size(0) && losses.numel() == logits.size(0));
  CrossEntropyArgs a;
  a.type = type_of(logits);
  a.rows = logits.size(0);
  a.classes = logits.size(1);
  a.logits = logits.mutable_data_ptr();
  a.targets = targets.const_data_ptr<int64_t>();
  a.ignored = ignored_target;
  a.scale = scale;
  a.gradients = gradients;
  a.losses = losses.mutable_data_ptr<double>();
  cross_entropy(a, place_of(logits));
}

}  // namespace mythos::cuda
