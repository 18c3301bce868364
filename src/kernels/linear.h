// Matrix products with weights, and the token embedding.
#pragma once

#include "kernels/weight.h"

namespace mythos {

/// y = x W^T. x: [..., in], weight: [out, in].
at::Tensor linear(const at::Tensor& x, const Weight& weight);

/// The same in fp32 at least, without rounding the sums of narrower numbers: for what is compared (the router's
/// logits).
at::Tensor linear_wide(const at::Tensor& x, const Weight& weight);

/// Rows of the table: ids int64 of any shape -> [..., D]. The backward pass adds rows in the order of ids.
at::Tensor embedding(const at::Tensor& ids, const Weight& table);

}  // namespace mythos
