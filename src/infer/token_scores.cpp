#include "infer/token_scores.h"

#include "kernels/cross_entropy.h"

namespace mythos {

TokenScores score_tokens(const Model& model, const at::Tensor& hidden, const at::Tensor& targets) {
  const at::NoGradGuard no_grad;
  const int64_t n = hidden.size(0);
  TokenScores scores{at::empty({n}, at::kDouble), at::empty({n}, at::kBool)};
  const int64_t chunk =
      cross_entropy_chunk_rows(model.config().vocab_size, n, model.parameters().device().type(),
                               static_cast<int64_t>(c10::elementSize(model.parameters().compute_dtype())));
  for (int64_t r = 0; r < n; r += chunk) {
    const int64_t rows = std::min(chunk, n - r);
    const at::Tensor logits = model.logits(hidden.narrow(0, r, rows)).to(accumulate_type(hidden.scalar_type()));
    const at::Tensor wanted = targets.narrow(0, r, rows);
    scores.nll.narrow(0, r, rows).copy_(at::cross_entropy_loss(logits, wanted, {}, at::Reduction::None));
    scores.hit.narrow(0, r, rows).copy_(logits.argmax(-1).eq(wanted));
  }
  return scores;
}

}  // namespace mythos
