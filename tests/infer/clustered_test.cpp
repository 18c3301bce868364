#include "infer/clustered.h"

#include "base/random.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>
#include <vector>

namespace mythos {
namespace {

TEST(Clustered, HandComputed) {
  // Ratio 10/5 = 2; residuals 1 - 2, 4 - 4, 5 - 4: variance 3/2 * 2 / 25.
  const std::vector<double> y = {1, 4, 5}, x = {1, 2, 2};
  EXPECT_NEAR(ratio_error(y, x).value(), std::sqrt(1.5 * 2) / 5, 1e-15);
}

TEST(Clustered, OfOneObservationEachItIsTheOrdinaryError) {
  const std::vector<double> y = {1, 4, 5, 2, 8}, x(5, 1.0);
  double squares = 0;
  for (const double v : y) squares += (v - 4) * (v - 4);
  EXPECT_NEAR(ratio_error(y, x).value(), std::sqrt(squares / 4 / 5), 1e-15);
}

TEST(Clustered, EqualRatiosHaveNoError) {
  EXPECT_NEAR(ratio_error(std::vector<double>{2, 4, 6}, std::vector<double>{1, 2, 3}).value(), 0, 1e-15);
}

TEST(Clustered, OneClusterSaysNothing) {
  EXPECT_FALSE(ratio_error(std::vector<double>{2}, std::vector<double>{1}));
  EXPECT_FALSE(ratio_error(std::vector<double>{2, 0}, std::vector<double>{1, 0})) << "an empty one does not count";
  EXPECT_FALSE(ratio_error({}, {}));
}

TEST(Clustered, IsAsWideAsTheMeansReallySpread) {
  // Observations of a cluster share half of their variance. The error told must be the spread of the means over many
  // samples; the one that takes them for independent is less than half of it.
  Random random(7);
  const auto normal = [&] {
    return std::sqrt(-2 * std::log(1 - random.uniform())) * std::cos(2 * std::numbers::pi * random.uniform());
  };
  const int samples = 300, clusters = 60;
  double mean_sum = 0, mean_squares = 0, told = 0, naive = 0;
  for (int s = 0; s < samples; ++s) {
    std::vector<double> y, x;
    double sum = 0, squares = 0, n = 0;
    for (int g = 0; g < clusters; ++g) {
      const double size = 5 + static_cast<double>(random.below(20)), shared = normal();
      double here = 0;
      for (double i = 0; i < size; ++i) {
        const double v = shared + normal();
        here += v;
        squares += v * v;
      }
      y.push_back(here);
      x.push_back(size);
      sum += here;
      n += size;
    }
    const double mean = sum / n;
    mean_sum += mean;
    mean_squares += mean * mean;
    told += ratio_error(y, x).value() / samples;
    naive += std::sqrt((squares / n - mean * mean) / n) / samples;
  }
  const double spread = std::sqrt(mean_squares / samples - mean_sum * mean_sum / samples / samples);
  EXPECT_NEAR(told / spread, 1, 0.12);
  EXPECT_LT(naive / spread, 0.5);
}

TEST(Clustered, ShareOfIndependentObservations) {
  EXPECT_NEAR(share_error(0.25, 101).value(), std::sqrt(0.25 * 0.75 / 100), 1e-15);
  EXPECT_EQ(share_error(1, 10).value(), 0);
  EXPECT_FALSE(share_error(1, 1));
}

}  // namespace
}  // namespace mythos
