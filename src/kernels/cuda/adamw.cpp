#include "kernels/cuda/adamw.h"

#include "kernels/cuda/ops.h"
#include "kernels/cuda/place.h"

#include <cmath>

namespace mythos::cuda {

at::Tensor judge_step(const at::Tensor& squares, const at::Tensor& loss, double clip) {
  static_assert(sizeof(Verdict) == 4 * sizeof(double));
  const at::Tensor verdict = at::empty({4}, squares.options());
  VerdictArgs a;
  a.parts = squares.numel();
  a.squares = squares.const_data_ptr<double>();
  a.loss = loss.const_data_ptr<double>();
  a.clip = clip;
  a.verdict = static_cast<Verdict*>(verdict.mutable_data_ptr());
  judge_step(a, place_of(squares));
  return verdict;
}

void adamw_update(const AdamWRange& range, const AdamWNumbers& numbers, const at::Tensor& verdict) {
  AdamWArgs a;
  a.type = type_of(range.value);
  a.count = range.value.numel();
  a.value = range.value.mutable_data_ptr();
  a.gradient = range.gradient.const_data_ptr();
  a.first = range.first.mutable_data_ptr();
  a.second = range.second.mutable_data_ptr();
  a.copy = range.copy.defined() ? range.copy.mutable_data_ptr() : nullptr;
  a.beta1 = numbers.beta1;
  a.beta2 = numbers.beta2;
  a.eps = numbers.eps;
  a.keep = 1 - numbers.lr * numbers.decay;
  a.rate = numbers.lr / (1 - std::pow(numbers.beta1, numbers.step));
  a.correction2 = std::sqrt(1 - std::pow(numbers.beta2, numbers.step));
  a.divisor = numbers.divisor;
  a.verdict = verdict.defined() ? static_cast<const Verdict*>(verdict.const_data_ptr()) : nullptr;
  adamw_update(a, place_of(range.value));
}

}  // namespace mythos::cuda
