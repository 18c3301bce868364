// Every *.safetensors with `golden` metadata in MYTHOS_GOLDEN_DIR (default: the copies here), in fp64 and fp32.
#include "step/golden.h"
#include "kernels/cuda/place.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

namespace mythos {
namespace {

std::vector<std::filesystem::path> golden_files() {
  const char* folder = std::getenv("MYTHOS_GOLDEN_DIR");
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder ? folder : MYTHOS_TEST_DIR "/golden")) {
    if (entry.path().extension() == ".safetensors") files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

class Golden : public testing::TestWithParam<std::filesystem::path> {
 protected:
  static void check(at::ScalarType type) {
    const auto findings = check_golden(GetParam(), at::kCPU, type, golden_tolerance(type));
    if (!findings) GTEST_SKIP() << "no golden metadata in " << GetParam();
    EXPECT_GT(findings->size(), 50U);
    double worst = 0;
    for (const auto& f : *findings) {
      EXPECT_TRUE(f.ok()) << f.what << ": error " << f.error << ", allowed " << f.tolerance;
      if (f.tolerance > 0 && f.tolerance < 0.1) worst = std::max(worst, f.error);
    }
    std::printf("  %zu comparisons, largest error %.2g\n", findings->size(), worst);
  }
};

TEST_P(Golden, Float64) { check(at::kDouble); }
TEST_P(Golden, Float32) { check(at::kFloat); }
// The source of the CUDA kernels, run on the host.
TEST_P(Golden, Float64InTheDevicesForm) {
  const cuda::OnHost host;
  check(at::kDouble);
}
TEST_P(Golden, Float32InTheDevicesForm) {
  const cuda::OnHost host;
  check(at::kFloat);
}

INSTANTIATE_TEST_SUITE_P(Files, Golden, testing::ValuesIn(golden_files()), [](const auto& param) {
  std::string name = param.param.stem().string();
  std::replace_if(
      name.begin(), name.end(), [](unsigned char c) { return std::isalnum(c) == 0; }, '_');
  return name;
});

TEST(GoldenFolder, HoldsFiles) { EXPECT_FALSE(golden_files().empty()); }

}  // namespace
}  // namespace mythos
