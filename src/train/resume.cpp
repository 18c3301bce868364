#include "train/resume.h"

#include <cmath>

namespace mythos {
namespace {

double norm(const std::vector<NamedTensor>& tensors) {
  const at::NoGradGuard no_grad;
  double sum = 0;
  for (const auto& [name, tensor] : tensors) {
    const double n = at::linalg_vector_norm(tensor, 2, std::nullopt, false, at::kDouble).item<double>();
    sum += n * n;
  }
  return std::sqrt(sum);
}

}  // namespace

StateNorms state_norms(const ParameterStore& parameters, const AdamW& optimizer) {
  return {norm(parameters.named_values()), norm(optimizer.named_first_moments()),
          norm(optimizer.named_second_moments())};
}

}  // namespace mythos
