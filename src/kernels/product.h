// Matrix products of tensors as the fused ops need them: into memory that is there, stored or added. No autograd.
#pragma once

#include <ATen/ATen.h>

namespace mythos {

/// out = a b. a: [m, k], b: [k, n], out: [m, n], each a matrix or a transposed one; out does not overlap a or b. On the
/// CPU, where it is faster than LibTorch's own, by cpu/packed_gemm; otherwise by at::mm.
void multiply(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b);
/// out += a b. Here out may be of a wider type than a and b: nothing is rounded to theirs.
void multiply_add(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b);
/// a b in new memory.
at::Tensor product(const at::Tensor& a, const at::Tensor& b);
/// The same of narrow numbers (bfloat16), in fp32: the sums as they are accumulated.
at::Tensor product_wide(const at::Tensor& a, const at::Tensor& b);
/// x W^T in new memory: x [..., in], weight [out, in], computed and returned in x's type, whatever the weight's. On the
/// CPU a few rows of x go through cpu/few_rows, which reads the weight once.
at::Tensor project(const at::Tensor& x, const at::Tensor& weight);
/// The gradient of that weight, dy^T x, with dy [..., out]: added to `sink`, and nothing is returned; or where there is
/// no sink, in new memory.
at::Tensor weight_gradient(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& sink);

/// Whether multiply_few_rows() takes these: x [rows, in] in float or double on the CPU, few rows of it; weight
/// [.., out, in] of the same type, or bfloat16 with float.
bool few_rows_apply(const at::Tensor& x, const at::Tensor& weight);
struct Range {
  int64_t first = 0, count = 0;
};
/// out = x W^T on this thread alone, for some rows of x and some columns of out. x: [.., in]; weight: [out, in], or one
/// expert of [E, out, in]; out: [.., out]; each with dense rows. Makes no views: it is called for small pieces.
void multiply_few_rows(const at::Tensor& out, const at::Tensor& x, const at::Tensor& weight, Range rows, Range columns,
                       int64_t expert = 0);

/// What multiply() and multiply_add() do where packed_gemm is not taken.
void multiply_reference(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b, bool accumulate);

}  // namespace mythos
