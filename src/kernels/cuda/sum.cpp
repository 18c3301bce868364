#include "kernels/cuda/sum.h"

#include "kernels/cuda/ops.h"
#include "kernels/cuda/place.h"

namespace mythos::cuda {

at::Tensor sum_in_order(const at::Tensor& numbers) {
  TORCH_INTERNAL_ASSERT(numbers.scalar_type() == at::kDouble && numbers.is_contiguous());
  const at::Tensor out = at::empty({}, numbers.options());
  SumArgs a;
  a.count = numbers.numel();
  a.numbers = numbers.const_data_ptr<double>();
  a.out = out.mutable_data_ptr<double>();
  sum_numbers(a, place_of(numbers));
  return out;
}

at::Tensor sum_of_squares(const std::vector<at::Tensor>& flat) {
  const at::Tensor parts = at::zeros({square_parts}, flat.at(0).options().dtype(at::kDouble));
  for (const at::Tensor& numbers : flat) {
    TORCH_INTERNAL_ASSERT(numbers.is_contiguous());
    SquaresArgs a;
    a.type = type_of(numbers);
    a.count = numbers.numel();
    a.numbers = numbers.const_data_ptr();
    a.squares = parts.mutable_data_ptr<double>();
    add_squares(a, place_of(numbers));
  }
  return parts;
}

}  // namespace mythos::cuda
