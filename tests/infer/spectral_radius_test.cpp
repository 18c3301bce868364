#include "infer/spectral_radius.h"

#include "../support/small_model.h"
#include "base/error.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

namespace mythos {
namespace {

TEST(SpectralRadiusOf, CountsEveryValueInItsBin) {
  std::vector<double> values;
  for (int i = 0; i <= 100; ++i) values.push_back(0.2 + 0.005 * i);
  const SpectralRadius r = spectral_radius(values);
  EXPECT_EQ(r.min, 0.2);
  EXPECT_EQ(r.max, values.back());
  ASSERT_EQ(r.counts.size(), 10U);
  ASSERT_EQ(r.edges.size(), 11U);
  EXPECT_EQ(r.edges.front(), r.min);
  EXPECT_EQ(r.edges.back(), r.max);
  EXPECT_EQ(std::accumulate(r.counts.begin(), r.counts.end(), int64_t{0}), 101);
  for (size_t b = 0; b < 10; ++b) {
    int64_t inside = 0;
    for (const double v : values) {
      const bool last = b == 9;
      if (v >= r.edges[b] - 1e-12 && (last || v < r.edges[b + 1] - 1e-12)) ++inside;
    }
    EXPECT_NEAR(static_cast<double>(r.counts[b]), static_cast<double>(inside), 1) << b;
  }
}

TEST(SpectralRadiusOf, EqualValuesAreOneBin) {
  const SpectralRadius r = spectral_radius(std::vector<double>(32, 0.3679));
  EXPECT_EQ(r.counts, (std::vector<int64_t>{32}));
  EXPECT_EQ(r.edges, (std::vector<double>{0.3679, 0.3679}));
}

TEST(SpectralRadiusOf, TellsWhetherItIsWithinTheRange) {
  EXPECT_TRUE(spectral_radius({0.0001, 0.999}).within());
  EXPECT_FALSE(spectral_radius({0.00009, 0.9}).within());
  EXPECT_FALSE(spectral_radius({0.5, 0.9991}).within());
}

TEST(SpectralRadiusOf, AModelAndADamagedOne) {
  const auto model = test::small_model(test::small_config(), at::kFloat);
  const SpectralRadius r = spectral_radius(*model);
  const auto [high, low] = model->spectral_radius();
  EXPECT_NEAR(r.max, high, 1e-7);
  EXPECT_NEAR(r.min, low, 1e-7);
  EXPECT_EQ(std::accumulate(r.counts.begin(), r.counts.end(), int64_t{0}), 32);
  {
    const at::NoGradGuard no_grad;
    test::value(*model, "recurrent.injection.log_A")[3] = std::nan("");
  }
  try {
    spectral_radius(*model);
    ADD_FAILURE() << "no error";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ExitCode::failed);
    EXPECT_NE(std::string(e.what()).find("rho(A)"), std::string::npos);
  }
}

}  // namespace
}  // namespace mythos
