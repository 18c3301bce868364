// Matrix products on pointers, by BLAS, by tensors and by our own kernel, against at::mm.
#include "../support/tensors.h"

#include "kernels/cpu/gemm.h"
#include "kernels/cpu/packed_gemm.h"
#include "kernels/product.h"

#include <ATen/Parallel.h>

#include <random>

namespace mythos {
namespace {

using namespace test;  // NOLINT(google-build-using-namespace)

template <class T>
using Gemm = void(bool, bool, int64_t, int64_t, int64_t, T, const T*, int64_t, const T*, int64_t, T, T*, int64_t);

// op(A) [m, k] and op(B) [k, n] inside wider rows, C inside wider rows that must keep what is beside it.
template <class T>
void expect_products(const std::string& what, Gemm<T>* gemm, at::ScalarType type) {
  Draw draw(type);
  for (const auto& [m, n, k] :
       {std::array<int64_t, 3>{1, 1, 1}, {1, 7, 5}, {7, 1, 5}, {5, 6, 1}, {17, 33, 20}, {64, 96, 70}}) {
    for (const bool ta : {false, true}) {
      for (const bool tb : {false, true}) {
        for (const auto& [alpha, beta] : {std::pair{1.0, 0.0}, {1.0, 1.0}, {0.5, -2.0}}) {
          const at::Tensor wide_a = draw.normal(ta ? at::IntArrayRef{k, m + 3} : at::IntArrayRef{m, k + 3});
          const at::Tensor wide_b = draw.normal(tb ? at::IntArrayRef{n, k + 2} : at::IntArrayRef{k, n + 2});
          const at::Tensor a = wide_a.narrow(1, 0, ta ? m : k), b = wide_b.narrow(1, 0, tb ? k : n);
          const at::Tensor c = draw.normal({m, n + 4});
          at::Tensor expected = c.clone();
          expected.narrow(1, 0, n).mul_(beta).add_(at::mm(ta ? a.t() : a, tb ? b.t() : b), alpha);
          if (beta == 0) c.narrow(1, 0, n).fill_(std::numeric_limits<double>::quiet_NaN());  // must not be read
          gemm(ta, tb, m, n, k, static_cast<T>(alpha), a.const_data_ptr<T>(), a.stride(0), b.const_data_ptr<T>(),
               b.stride(0), static_cast<T>(beta), c.mutable_data_ptr<T>(), c.stride(0));
          EXPECT_CLOSE(c, expected, rounding(type))
              << fmt::format("{}: {} x {} x {}, {} {}, {} {}", what, m, n, k, ta, tb, alpha, beta);
        }
      }
    }
  }
}

TEST(Gemm, EqualsProductsOfTensors) {
  expect_products<float>("float", &cpu::gemm<float>, at::kFloat);
  expect_products<double>("double", &cpu::gemm<double>, at::kDouble);
}

TEST(Gemm, OfViewsEqualsProductsOfTensors) {
  expect_products<float>("float", &cpu::gemm_of_views<float>, at::kFloat);
  expect_products<double>("double", &cpu::gemm_of_views<double>, at::kDouble);
}

TEST(Gemm, OfNothing) {
  double c = 3;
  cpu::gemm<double>(false, false, 0, 4, 4, 1, nullptr, 4, nullptr, 4, 0, nullptr, 4);
  cpu::gemm<double>(false, false, 1, 1, 0, 1, &c, 1, &c, 1, 1, &c, 1);
  EXPECT_EQ(c, 3);
}

TEST(Gemm, RefusesWhatBlasCannotCount) {
  double x = 0;
  EXPECT_THROW(cpu::gemm<double>(false, false, int64_t{1} << 31, 1, 1, 1, &x, 1, &x, 1, 0, &x, 1), c10::Error);
  EXPECT_THROW(cpu::gemm<double>(false, false, 1, 1, -1, 1, &x, 1, &x, 1, 0, &x, 1), c10::Error);
}

TEST(Gemm, IsTheSameInsideAParallelRegionAndSerially) {
  Draw draw(at::kFloat);
  const at::Tensor a = draw.normal({96, 80}), b = draw.normal({80, 112});
  const auto product = [&](const at::Tensor& c) {
    cpu::gemm<float>(false, false, 96, 112, 80, 1, a.const_data_ptr<float>(), 80, b.const_data_ptr<float>(), 112, 0,
                     c.mutable_data_ptr<float>(), 112);
  };
  const at::Tensor all = at::empty({6, 96, 112});
  at::parallel_for(0, 6, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) product(all[i]);
  });
  const at::Tensor alone = at::empty({96, 112});
  {
    const cpu::SerialBlas serial;
    product(alone);
  }
  for (int64_t i = 0; i < 6; ++i) EXPECT_TRUE(all[i].equal(alone));
}

cpu::MatrixView view(const at::Tensor& t) { return {t.const_data_ptr<float>(), t.stride(0), t.stride(1)}; }

// Operands inside wider rows, either way round; C inside wider rows that must keep what is beside it.
void expect_packed(int64_t m, int64_t n, int64_t k) {
  Draw draw(at::kFloat);
  for (const bool ta : {false, true}) {
    for (const bool tb : {false, true}) {
      for (const bool accumulate : {false, true}) {
        const at::Tensor wide_a = draw.normal(ta ? at::IntArrayRef{k, m + 3} : at::IntArrayRef{m, k + 3});
        const at::Tensor wide_b = draw.normal(tb ? at::IntArrayRef{n, k + 2} : at::IntArrayRef{k, n + 2});
        const at::Tensor a = ta ? wide_a.narrow(1, 0, m).t() : wide_a.narrow(1, 0, k);
        const at::Tensor b = tb ? wide_b.narrow(1, 0, k).t() : wide_b.narrow(1, 0, n);
        const at::Tensor c = draw.normal({m, n + 5});
        at::Tensor expected = c.to(at::kDouble);
        if (!accumulate) expected.narrow(1, 0, n).zero_();
        expected.narrow(1, 0, n).add_(at::mm(a.to(at::kDouble), b.to(at::kDouble)));
        if (!accumulate) c.narrow(1, 0, n).fill_(std::numeric_limits<float>::quiet_NaN());  // must not be read
        cpu::packed_gemm(m, n, k, view(a), view(b), accumulate, c.mutable_data_ptr<float>(), c.stride(0));
        EXPECT_CLOSE(c, expected.to(at::kFloat), 1e-5)
            << fmt::format("{} x {} x {}, {} {} {}", m, n, k, ta, tb, accumulate);
      }
    }
  }
}

class PackedGemm : public testing::Test {
 protected:
  void SetUp() override {
    if (!cpu::packed_gemm_runs()) GTEST_SKIP() << "this processor has no AVX2";
  }
};

TEST_F(PackedGemm, EqualsProductsInDouble) {
  for (const auto& [m, n, k] : {std::array<int64_t, 3>{1, 1, 1},
                                {1, 7, 5},
                                {7, 1, 5},
                                {5, 6, 1},
                                {17, 33, 20},
                                {6, 16, 384},
                                {12, 32, 385},
                                {13, 40, 391},
                                {97, 129, 70},
                                {100, 300, 800},
                                {300, 310, 401},
                                {1000, 20, 390},
                                {20, 1000, 390}}) {
    expect_packed(m, n, k);
  }
}

TEST_F(PackedGemm, EqualsProductsInDoubleOnRandomSizes) {
  std::mt19937 random(11);
  for (int i = 0; i < 30; ++i) {
    const auto size = [&](int most) { return std::uniform_int_distribution<int64_t>(1, most)(random); };
    expect_packed(size(320), size(320), size(900));
  }
}

TEST_F(PackedGemm, AddsNothingAndClearsWhereThereIsNothingToSum) {
  const at::Tensor c = at::full({2, 3}, 7.0F);
  const cpu::MatrixView empty{nullptr, 1, 1};
  cpu::packed_gemm(2, 3, 0, empty, empty, true, c.mutable_data_ptr<float>(), 3);
  EXPECT_TRUE(c.eq(7).all().item<bool>());
  cpu::packed_gemm(2, 3, 0, empty, empty, false, c.mutable_data_ptr<float>(), 3);
  EXPECT_TRUE(c.eq(0).all().item<bool>());
  cpu::packed_gemm(0, 3, 4, empty, empty, false, nullptr, 3);
}

// The sums of an element do not depend on who computes it.
TEST_F(PackedGemm, IsTheSameForAnyNumberOfThreads) {
  Draw draw(at::kFloat);
  const int before = at::get_num_threads();
  for (const auto& [m, n, k] : {std::array<int64_t, 3>{500, 200, 700}, {60, 500, 700}, {200, 500, 401}}) {
    for (const bool tb : {false, true}) {
      const at::Tensor a = draw.normal({m, k}), b = tb ? draw.normal({n, k}).t() : draw.normal({k, n});
      std::vector<at::Tensor> results;
      for (const int threads : {1, 2, 3}) {
        at::set_num_threads(threads);
        results.push_back(at::empty({m, n}));
        cpu::packed_gemm(m, n, k, view(a), view(b), false, results.back().mutable_data_ptr<float>(), n);
      }
      at::set_num_threads(before);
      EXPECT_TRUE(results[0].equal(results[1]) && results[0].equal(results[2])) << m << " " << tb;
    }
  }
}

TEST_F(PackedGemm, KeepsNonFiniteNumbersWhereTheyBelong) {
  const at::Tensor a = at::ones({40, 50}), b = at::ones({50, 40});
  a[3][7] = std::numeric_limits<float>::infinity();
  b[9][39] = std::numeric_limits<float>::quiet_NaN();
  const at::Tensor c = at::empty({40, 40});
  cpu::packed_gemm(40, 40, 50, view(a), view(b), false, c.mutable_data_ptr<float>(), 40);
  const at::Tensor expected = at::mm(a, b);
  EXPECT_TRUE(c.isnan().equal(expected.isnan()) && c.isinf().equal(expected.isinf()));
  EXPECT_EQ(c.isfinite().sum().item<int64_t>(), 39 * 39);
}

TEST_F(PackedGemm, RefusesOperandsWithoutAStrideOfOne) {
  const at::Tensor a = at::ones({4, 8}).slice(1, 0, 8, 2), c = at::empty({4, 4});
  EXPECT_THROW(cpu::packed_gemm(4, 4, 4, view(a), view(c), false, c.mutable_data_ptr<float>(), 4), c10::Error);
}

TEST(Product, TakesEveryKindOfTensor) {
  for (const auto type : {at::kFloat, at::kDouble, at::kBFloat16}) {
    Draw draw(at::kFloat);
    for (const auto& [m, n, k] : {std::array<int64_t, 3>{1, 9, 4}, {70, 90, 80}, {130, 40, 200}}) {
      const at::Tensor a = draw.normal({m, k}).to(type), w = draw.normal({n, k}).to(type);
      const at::Tensor expected = at::mm(a.to(at::kDouble), w.to(at::kDouble).t());
      const double tolerance = type == at::kBFloat16 ? 2e-2 : 1e-5;
      EXPECT_CLOSE(product(a, w.t()).to(at::kDouble), expected, tolerance);
      EXPECT_CLOSE(project(a.view({1, m, k}), w).view({m, n}).to(at::kDouble), expected, tolerance);
      at::Tensor out = at::ones({m, n}, a.options());
      multiply_add(out, a, w.t());
      EXPECT_CLOSE(out.to(at::kDouble), expected + 1, tolerance);
      const at::Tensor strided = at::stack({a, a}, 2).select(2, 0);  // no stride of 1: LibTorch's product
      EXPECT_CLOSE(product(strided, w.t()).to(at::kDouble), expected, tolerance);
    }
  }
  at::Tensor out = at::empty({3, 3});
  EXPECT_THROW(multiply(out, at::ones({3, 4}), at::ones({5, 3})), c10::Error);
}

}  // namespace
}  // namespace mythos
