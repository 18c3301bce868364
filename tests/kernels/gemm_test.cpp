// Matrix products on pointers, by BLAS and by tensors, against at::mm.
#include "../support/tensors.h"

#include "kernels/cpu/gemm.h"

#include <ATen/Parallel.h>

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

}  // namespace
}  // namespace mythos
