// The most likely tokens without all logits: a copy of the head in int8 says which tokens can be among the k most
// likely, and only these get logits, the same to the bit as linear() gives. A new token then reads a fraction of the
// head, which is most of a small model's weights.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace mythos {

class ScreenedHead {
 public:
  /// weight: [V, D], float or bfloat16 on the CPU, with dense rows; it must stay as it is. Takes V (D + 12) bytes.
  explicit ScreenedHead(const at::Tensor& weight);

  /// Whether all of the weights are finite and below 1e24 as rows' lengths: else nothing can be said.
  [[nodiscard]] bool usable() const { return usable_; }
  /// hidden: float [rows, D], at most 16 rows. [rows, V]: the logits of every token that is among the `k` largest of
  /// its row (those equal to the k-th too), perhaps of some more, and -infinity elsewhere. A row of hidden that is not
  /// finite, or longer than 1e12 or shorter than 1e-12, or with which too many tokens come into question, gets all its
  /// logits.
  [[nodiscard]] at::Tensor largest_logits(const at::Tensor& hidden, int64_t k) const;
  /// Of the last call: tokens that got logits, of all its rows.
  [[nodiscard]] int64_t candidates() const { return candidates_; }

  /// Bytes that a new token reads of a head of V x D.
  static double bytes_per_token(int64_t vocabulary, int64_t dim);

 private:
  // A row's numbers by which the bound is made: |logit - estimate| <= error |h| + length |h - quantised h|.
  struct Bound {
    float scale, error, length;
  };
  void exact(const at::Tensor& hidden, int64_t row, const at::Tensor& logits, int64_t first, int64_t count) const;

  at::Tensor weight_, quantised_;
  std::vector<Bound> bounds_;
  bool usable_ = true;
  mutable int64_t candidates_ = 0;
};

}  // namespace mythos
