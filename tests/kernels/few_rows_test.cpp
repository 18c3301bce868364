// Products of a few rows, and latent attention with the up-projections absorbed, against plain ones.
#include "../support/tensors.h"

#include "kernels/absorbed_attention.h"
#include "kernels/cpu/few_rows.h"
#include "kernels/cpu/read.h"
#include "kernels/cpu/softmax.h"
#include "kernels/linear.h"
#include "kernels/moe.h"
#include "kernels/product.h"

#include <numeric>

namespace mythos {
namespace {

using namespace test;  // NOLINT(google-build-using-namespace)

constexpr at::ScalarType stored[] = {at::kFloat, at::kBFloat16, at::kDouble};
at::ScalarType computed(at::ScalarType type) { return type == at::kDouble ? at::kDouble : at::kFloat; }
double tolerance(at::ScalarType type) { return type == at::kDouble ? 1e-12 : 2e-5; }

TEST(FewRows, EqualThePlainProductForEverySize) {
  const at::NoGradGuard no_grad;
  for (const auto type : stored) {
    Draw draw(computed(type));
    for (const int64_t k : {1, 7, 15, 16, 17, 32, 130, 1024}) {
      for (const int64_t n : {1, 3, 4, 5, 64, 333}) {
        const at::Tensor w = draw.normal({n, k}, 1).to(type);
        for (const int64_t rows : {1, 2, 3, 4, 5, 7, 8, 16, 17}) {
          const at::Tensor x = draw.normal({rows, k}, 1);
          EXPECT_CLOSE(project(x, w) / std::sqrt(k), at::mm(x, w.to(x.scalar_type()).t()) / std::sqrt(k),
                       tolerance(type))
              << type << " " << rows << " x " << k << " x " << n;
        }
      }
    }
  }
}

TEST(FewRows, ARowDoesNotDependOnItsCompany) {
  const at::NoGradGuard no_grad;
  for (const auto type : stored) {
    Draw draw(computed(type));
    const at::Tensor w = draw.normal({301, 77}, 1).to(type);
    const at::Tensor x = draw.normal({cpu::few_rows_most, 77}, 1);
    const at::Tensor together = project(x, w);
    for (int64_t r = 0; r < x.size(0); ++r) EXPECT_TRUE(together[r].equal(project(x.narrow(0, r, 1), w)[0])) << r;
    for (const int64_t n : {2, 3, 5, 9})
      EXPECT_TRUE(together.narrow(0, 1, n).equal(project(x.narrow(0, 1, n), w))) << n;
  }
}

TEST(FewRows, TakeRowsOfLargerMatricesAndRefuseTransposedOnes) {
  const at::NoGradGuard no_grad;
  Draw draw(at::kFloat);
  const at::Tensor wide = draw.normal({9, 40}, 1), w = draw.normal({12, 60}, 1).narrow(1, 5, 33);
  const at::Tensor x = wide.narrow(1, 3, 33);
  EXPECT_CLOSE(project(x, w), at::mm(x.contiguous(), w.contiguous().t()), 2e-5);
  EXPECT_TRUE(few_rows_apply(x, w));
  EXPECT_FALSE(few_rows_apply(draw.normal({9, 12}, 1), w.t()));
  EXPECT_FALSE(few_rows_apply(draw.normal({cpu::few_rows_most + 1, 33}, 1), w));
  EXPECT_FALSE(few_rows_apply(x.to(at::kDouble), w.to(at::kBFloat16)));
}

TEST(FewRows, WeightedRowsAreTheTransposedProduct) {
  Draw draw(at::kFloat);
  for (const int64_t n : {1, 3, 4, 9, 33}) {
    const at::Tensor a = draw.normal({n}, 1), w = draw.normal({n, 29}, 1);
    at::Tensor y = at::empty({29}, at::kFloat);
    cpu::weighted_rows(n, int64_t{29}, a.const_data_ptr<float>(), w.const_data_ptr<float>(), int64_t{29},
                       y.mutable_data_ptr<float>());
    EXPECT_CLOSE(y, at::mv(w.t(), a), 1e-5) << n;
  }
}

TEST(FewRows, ExpertsOfFewTokensEqualThoseOfManyInAnyStoredType) {
  const at::NoGradGuard no_grad;
  for (const auto type : stored) {
    Draw draw(computed(type));
    const at::Tensor gate_up = draw.normal({5, 2 * 21, 40}, 0.3).to(type),
                     down = draw.normal({5, 40, 21}, 0.3).to(type);
    const at::Tensor wide_up = gate_up.to(computed(type)), wide_down = down.to(computed(type));
    for (const int64_t tokens : {1, 2, 9, 16, 40}) {
      const at::Tensor x = draw.normal({tokens, 40}, 1);
      const Routing routing = route(draw.normal({tokens, 5}, 1), {}, 2);
      const at::Tensor y = routed_experts(x, {gate_up, {}}, {down, {}}, routing.experts, routing.weights);
      EXPECT_CLOSE(y, routed_experts_reference(x, wide_up, wide_down, routing.experts, routing.weights),
                   10 * tolerance(type))
          << type << " " << tokens;
      if (tokens > 16) continue;
      for (int64_t t = 0; t < tokens; ++t) {
        EXPECT_TRUE(
            y.narrow(0, t, 1).equal(routed_experts(x.narrow(0, t, 1), {gate_up, {}}, {down, {}},
                                                   routing.experts.narrow(0, t, 1), routing.weights.narrow(0, t, 1))));
      }
    }
  }
}

TEST(AbsorbedAttention, EqualsAttentionOverProjectedKeysAndValues) {
  const MlaHeads cases[] = {{1, 1, 2, 1}, {3, 5, 4, 6}, {5, 16, 8, 13}, {16, 7, 2, 9}};
  for (const auto type : stored) {
    Draw draw(computed(type));
    for (const auto& sizes : cases) {
      for (const int64_t rank : {1, 12, 37}) {
        const at::Tensor kv_up = draw.normal({sizes.heads * (sizes.nope + sizes.value), rank}, 0.5).to(type);
        for (const auto& [t, s] : {std::pair<int64_t, int64_t>{1, 1}, {1, 9}, {1, 500}, {3, 3}, {4, 70}, {33, 40}}) {
          const at::Tensor q = draw.normal({2, t, sizes.heads * (sizes.nope + sizes.rope)}, 1);
          const at::Tensor storage = draw.normal({2, s + 3, rank}, 1);  // a cache has room behind
          const at::Tensor latent = storage.narrow(1, 0, s), key = draw.normal({2, s, sizes.rope}, 1);
          const auto rows = RotaryTable(sizes.rope, 10000.0, at::kCPU).slice(s - t, t);
          const at::Tensor kv = at::matmul(latent, kv_up.to(latent.scalar_type()).t());
          const at::Tensor expected = mla_attention_reference(q, kv, key, rows, sizes);
          const std::string what = fmt::format("H {} rank {} T {} S {}", sizes.heads, rank, t, s);
          EXPECT_CLOSE(absorbed_attention(q, latent, kv_up, key, rows, sizes), expected, 5 * tolerance(type)) << what;
          EXPECT_CLOSE(absorbed_attention_reference(q, latent, kv_up, key, rows, sizes), expected, 5 * tolerance(type))
              << what;
        }
      }
    }
  }
}

// G3: one query over a longer cache sees all of it.
TEST(FieldCaseG3, OneAbsorbedQuerySeesTheWholeCache) {
  Draw draw(at::kFloat);
  const MlaHeads sizes{2, 4, 2, 3};
  const at::Tensor kv_up = draw.normal({14, 5}, 1), q = draw.normal({1, 1, 12}, 1);
  const at::Tensor latent = draw.normal({1, 8, 5}, 1), key = draw.normal({1, 8, 2}, 1);
  const auto rows = RotaryTable(2, 10000.0, at::kCPU).slice(7, 1);
  const at::Tensor all = absorbed_attention(q, latent, kv_up, key, rows, sizes);
  for (int64_t s = 0; s < 8; ++s) {
    at::Tensor changed = latent.clone();
    changed.select(1, s).add_(1);
    EXPECT_FALSE(all.allclose(absorbed_attention(q, changed, kv_up, key, rows, sizes)))
        << "key " << s << " is not seen";
  }
  EXPECT_FALSE(all.allclose(
      at::matmul(latent.narrow(1, 0, 1), kv_up.t()).view({1, 1, 2, 7}).narrow(-1, 4, 3).reshape({1, 1, 6})));
}

TEST(AbsorbedAttention, RefusesShapesThatDoNotFit) {
  Draw draw(at::kFloat);
  const MlaHeads sizes{2, 4, 2, 3};
  const auto rows = RotaryTable(2, 10000.0, at::kCPU).slice(0, 1);
  EXPECT_THROW((void)absorbed_attention(draw.normal({1, 1, 12}, 1), draw.normal({1, 4, 5}, 1), draw.normal({13, 5}, 1),
                                        draw.normal({1, 4, 2}, 1), rows, sizes),
               c10::Error);
  EXPECT_THROW((void)absorbed_attention(draw.normal({1, 5, 12}, 1), draw.normal({1, 4, 5}, 1), draw.normal({14, 5}, 1),
                                        draw.normal({1, 4, 2}, 1), rows, sizes),
               c10::Error);
}

TEST(SoftmaxRow, EqualsLibTorchs) {
  Draw draw(at::kFloat);
  for (const int64_t n : {1, 2, 15, 16, 17, 300}) {
    at::Tensor row = draw.normal({n}, 5);
    const at::Tensor expected = row.softmax(0);
    cpu::softmax_row(row.mutable_data_ptr<float>(), n);
    EXPECT_CLOSE(row, expected, 1e-6) << n;
  }
}

TEST(SumWords, CountsEveryWordOnceWhateverTheStreams) {
  for (const int64_t n : {0, 1, 7, 8, 31, 32, 33, 1000, 4099}) {
    std::vector<uint64_t> words(static_cast<size_t>(n));
    std::iota(words.begin(), words.end(), uint64_t{1});
    for (const int64_t streams : {1, 2, 4}) {
      EXPECT_EQ(cpu::sum_words(words.data(), n, streams), static_cast<uint64_t>(n * (n + 1) / 2))
          << n << " " << streams;
    }
  }
}

}  // namespace
}  // namespace mythos
