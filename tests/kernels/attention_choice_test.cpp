// Which of LibTorch's attention kernels a device takes, what they are given, and what happens where one refuses.
#include "../support/tensors.h"
#include "kernels/cuda/attention.h"
#include "kernels/cuda/first_that_takes.h"

namespace mythos {
namespace {

using B = cuda::AttentionBackend;
using Backends = std::vector<B>;

Backends order(int capability, at::ScalarType type, int64_t width, int64_t value, int64_t count = 128,
               bool deterministic = false) {
  return cuda::attention_backends({capability, type, count, width, value, deterministic});
}

TEST(AttentionChoice, ByDeviceTypeAndWidths) {
  const auto bf16 = at::kBFloat16;
  EXPECT_EQ(order(90, bf16, 96, 64), (Backends{B::cudnn, B::flash, B::efficient, B::math}));
  EXPECT_EQ(order(100, bf16, 192, 128), (Backends{B::cudnn, B::flash, B::efficient, B::math}));
  EXPECT_EQ(order(90, bf16, 192, 192), (Backends{B::flash, B::efficient, B::math}));
  EXPECT_EQ(order(90, bf16, 96, 64, 1), (Backends{B::flash, B::efficient, B::math}));
  EXPECT_EQ(order(90, bf16, 96, 64, 128, true), (Backends{B::flash, B::efficient, B::math}));
  for (const int small : {80, 86, 89, 120}) {
    EXPECT_EQ(order(small, bf16, 96, 64), (Backends{B::flash, B::cudnn, B::efficient, B::math}));
    EXPECT_EQ(order(small, at::kFloat, 96, 64), (Backends{B::efficient, B::math}));
  }
  EXPECT_EQ(order(89, bf16, 200, 64), (Backends{B::efficient, B::math}));
  EXPECT_EQ(order(80, bf16, 200, 64), (Backends{B::flash, B::efficient, B::math}));
  EXPECT_EQ(order(90, bf16, 264, 64), (Backends{B::efficient, B::math}));
  EXPECT_EQ(order(75, bf16, 96, 64), (Backends{B::math}));
  EXPECT_EQ(order(90, at::kDouble, 96, 64), (Backends{B::math}));
  EXPECT_EQ(order(0, at::kDouble, 96, 64), (Backends{B::flash_cpu, B::math}));
}

TEST(AttentionChoice, PadsAsABackendWants) {
  const auto pair = [](B b, at::ScalarType type) {
    const auto w = cuda::padded_widths(b, type, {33, 20});
    return std::pair(w.key, w.value);
  };
  EXPECT_EQ(pair(B::cudnn, at::kBFloat16), std::pair(int64_t{40}, int64_t{24}));
  EXPECT_EQ(pair(B::flash, at::kBFloat16), std::pair(int64_t{40}, int64_t{40}));
  EXPECT_EQ(pair(B::efficient, at::kBFloat16), std::pair(int64_t{40}, int64_t{24}));
  EXPECT_EQ(pair(B::efficient, at::kFloat), std::pair(int64_t{36}, int64_t{20}));
  EXPECT_EQ(pair(B::flash_cpu, at::kFloat), std::pair(int64_t{33}, int64_t{33}));
  EXPECT_EQ(pair(B::math, at::kFloat), std::pair(int64_t{33}, int64_t{20}));
}

TEST(AttentionChoice, RemembersWhatTookTheWork) {
  cuda::FirstThatTakes<int> memory;
  std::vector<size_t> tried, heard;
  size_t refusing = 1;
  const auto run = [&](int key) {
    return memory.run(
        key, 0, 3,
        [&](size_t i) {
          tried.push_back(i);
          TORCH_CHECK(i >= refusing, "refused");
        },
        [&](size_t i, const c10::Error&) { heard.push_back(i); });
  };
  EXPECT_EQ(run(5), 1U);
  EXPECT_EQ(run(5), 1U);
  EXPECT_EQ(tried, (std::vector<size_t>{0, 1, 1}));
  EXPECT_EQ(heard, std::vector<size_t>{0});
  refusing = 2;  // one that took this kind once may not refuse it
  EXPECT_THROW(run(5), c10::Error);
  EXPECT_EQ(run(6), 2U);
  refusing = 3;
  EXPECT_THROW(run(7), c10::Error);
}

TEST(AttentionChoice, MathIsTheCpusOwn) {
  test::Draw draw(at::kDouble);
  const at::Tensor q = draw.normal({2, 6, 9, 8}), k = draw.normal({2, 3, 9, 8}), v = draw.normal({2, 3, 9, 8});
  const at::Tensor dout = draw.normal({2, 6, 9, 8});
  const auto a = cuda::attend(B::math, q, k, v, 0.3, true), b = cuda::attend(B::flash_cpu, q, k, v, 0.3, true);
  EXPECT_LT((a.out - b.out).abs().max().item<double>(), 1e-12);
  const auto da = cuda::attend_backward(B::math, q, k, v, a, dout, 0.3);
  const auto db = cuda::attend_backward(B::flash_cpu, q, k, v, b, dout, 0.3);
  for (size_t i = 0; i < 3; ++i) EXPECT_LT((da[i] - db[i]).abs().max().item<double>(), 1e-11) << i;
}

}  // namespace
}  // namespace mythos
