// The CUDA kernels' source, run on the host: every fused op equals its composite form at every size, in every type.
#include "step/twins.h"
#include "kernels/cuda/place.h"

#include <gtest/gtest.h>

namespace mythos {
namespace {

class TwinsOnHost : public ::testing::TestWithParam<at::ScalarType> {
 private:
  cuda::OnHost host_;
};

TEST_P(TwinsOnHost, AreAlike) {
  const auto results = check_twins(at::kCPU, GetParam());
  EXPECT_GE(results.size(), 10 * twin_ops().size() / 2);
  for (const auto& r : results) {
    EXPECT_TRUE(r.ok()) << r.op << " of " << r.size << ": outputs differ by " << r.forward << ", gradients by "
                        << r.backward << " " << r.error;
  }
}

INSTANTIATE_TEST_SUITE_P(Types, TwinsOnHost, ::testing::Values(at::kDouble, at::kFloat, at::kBFloat16),
                         [](const auto& param) { return std::string(c10::toString(param.param)); });

// The same twins run the CPU's own kernels where nothing asks for the device's.
TEST(Twins, OfTheCpuAreAlikeToo) {
  for (const auto& r : check_twins(at::kCPU, at::kDouble))
    EXPECT_TRUE(r.ok()) << r.op << " of " << r.size << " " << r.error;
}

}  // namespace
}  // namespace mythos
