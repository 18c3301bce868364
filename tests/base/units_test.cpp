#include "base/units.h"

#include <gtest/gtest.h>

#include <clocale>
#include <cmath>
#include <limits>
#include <locale>

namespace mythos {
namespace {

TEST(Units, CommasEveryThreeDigits) {
  EXPECT_EQ(with_commas(0), "0");
  EXPECT_EQ(with_commas(999), "999");
  EXPECT_EQ(with_commas(1000), "1,000");
  EXPECT_EQ(with_commas(339241922), "339,241,922");
  EXPECT_EQ(with_commas(-1), "-1");
  EXPECT_EQ(with_commas(-999), "-999");
  EXPECT_EQ(with_commas(-1000), "-1,000");
  EXPECT_EQ(with_commas(-123456), "-123,456");
  EXPECT_EQ(with_commas(std::numeric_limits<int64_t>::min()), "-9,223,372,036,854,775,808");
}

TEST(Units, BytesInDecimalUnitsWithThreeFigures) {
  EXPECT_EQ(bytes_text(0), "0 B");
  EXPECT_EQ(bytes_text(999), "999 B");
  EXPECT_EQ(bytes_text(1000), "1.00 kB");
  EXPECT_EQ(bytes_text(4070903064), "4.07 GB");
  EXPECT_EQ(bytes_text(40.7e9), "40.7 GB");
  EXPECT_EQ(bytes_text(407e9), "407 GB");
  EXPECT_EQ(bytes_text(-2.5e6), "-2.50 MB");
}

TEST(Units, RoundingNeverShowsAThousandOfTheSmallerUnit) {
  EXPECT_EQ(bytes_text(999499), "999 kB");
  EXPECT_EQ(bytes_text(999500), "1.00 MB");
  EXPECT_EQ(bytes_text(9.9951e6), "10.0 MB");
  EXPECT_EQ(bytes_text(99.951e6), "100 MB");
  EXPECT_EQ(bytes_text(5e21), "5000 EB");  // beyond the last prefix
}

TEST(Units, SiTextTakesItsUnitRightBehind) {
  EXPECT_EQ(si_text(2.28e9) + "FLOPs", "2.28 GFLOPs");
  EXPECT_EQ(si_text(512) + "tokens", "512 tokens");
  EXPECT_EQ(si_text(0.5) + "s", "0.50 s");
}

TEST(Units, DurationsAsAPersonSaysThem) {
  EXPECT_EQ(duration_text(0), "0 s");
  EXPECT_EQ(duration_text(-5), "0 s");
  EXPECT_EQ(duration_text(45.2), "45 s");
  EXPECT_EQ(duration_text(89.4), "89 s");
  EXPECT_EQ(duration_text(90), "2 min");
  EXPECT_EQ(duration_text(12 * 60), "12 min");
  EXPECT_EQ(duration_text(3 * 3600 + 5 * 60), "3 h 05 min");
  EXPECT_EQ(duration_text(5 * 86400 + 12 * 3600), "5d 12h");
}

TEST(Units, WhatIsNotANumberIsUnknown) {
  const double infinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(duration_text(infinity), "unknown");
  EXPECT_EQ(duration_text(std::nan("")), "unknown");
  EXPECT_EQ(duration_text(1e300), "unknown");
  EXPECT_EQ(bytes_text(infinity), "unknown");
  EXPECT_EQ(si_text(std::nan("")), "unknown");
}

class CommaPoint : public std::numpunct<char> {
  char do_decimal_point() const override { return ','; }
  char do_thousands_sep() const override { return '.'; }
  std::string do_grouping() const override { return "\3"; }
};

TEST(Units, AlikeInEveryLocale) {
  const std::string c_locale = std::setlocale(LC_ALL, nullptr);
  const std::locale before = std::locale::global(std::locale(std::locale::classic(), new CommaPoint));
  for (const char* name : {"de_DE.UTF-8", "fr_FR.UTF-8", "tr_TR.UTF-8"}) std::setlocale(LC_ALL, name);  // if installed
  EXPECT_EQ(with_commas(1234567), "1,234,567");
  EXPECT_EQ(bytes_text(1234567), "1.23 MB");
  EXPECT_EQ(si_text(1.5), "1.50 ");
  EXPECT_EQ(nearest_name("DIM", {"dim", "lr"}), "dim");
  std::locale::global(before);
  std::setlocale(LC_ALL, c_locale.c_str());
}

TEST(NearestName, FindsTypingErrors) {
  const std::vector<std::string> known = {"seq_len", "micro_batch",  "global_batch_tokens",
                                          "lr",      "warmup_steps", "steps"};
  EXPECT_EQ(nearest_name("seqlen", known), "seq_len");
  EXPECT_EQ(nearest_name("micro_bacth", known), "micro_batch");
  EXPECT_EQ(nearest_name("Micro-Batch", known), "micro_batch");
  EXPECT_EQ(nearest_name("global_batch_token", known), "global_batch_tokens");
  EXPECT_EQ(nearest_name("warmup", known), "warmup_steps");
  EXPECT_EQ(nearest_name("lr", known), "lr");
}

TEST(NearestName, IsSilentWhenNothingIsNear) {
  const std::vector<std::string> known = {"seq_len", "micro_batch", "lr"};
  EXPECT_EQ(nearest_name("temperature", known), "");
  EXPECT_EQ(nearest_name("xy", known), "");  // every letter differs
  EXPECT_EQ(nearest_name("", known), "");
  EXPECT_EQ(nearest_name("anything", {}), "");
  EXPECT_EQ(nearest_name(std::string(100000, 'x'), known), "");
}

TEST(Suggestion, NamesTheNearestOrAll) {
  EXPECT_EQ(suggestion("prset", {"preset", "dim"}), "did you mean 'preset'?");
  EXPECT_EQ(suggestion("zzzzzz", {"preset", "dim"}), "known: preset, dim");
}

}  // namespace
}  // namespace mythos
