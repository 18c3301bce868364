#include "text/speed.h"

#include "text_testing.h"

namespace mythos {
namespace {

TEST(Speed, DocumentsCoverTheTextAndEndWithLines) {
  EXPECT_EQ(documents_of("ab\ncd\nef", 1), (std::vector<std::string_view>{"ab\n", "cd\n", "ef"}));
  EXPECT_EQ(documents_of("ab\ncd\nef", 3), (std::vector<std::string_view>{"ab\ncd\n", "ef"}));
  EXPECT_EQ(documents_of("ab\ncd\nef", 100), (std::vector<std::string_view>{"ab\ncd\nef"}));
  EXPECT_TRUE(documents_of("", 3).empty());
}

TEST(Speed, GeneratedTextDependsOnItsSeedAlone) {
  for (const auto make : {generated_prose, generated_code}) {
    EXPECT_EQ(make(20'000, 1).bytes, make(20'000, 1).bytes);
    EXPECT_NE(make(20'000, 1).bytes, make(20'000, 2).bytes);
    EXPECT_EQ(make(20'000, 1).bytes.size(), 20'000u);
    // Neither too easy nor too hard: real prose and code have 3.5 to 5 bytes a token.
    const auto tokens = static_cast<double>(testing::o200k().encode(make(200'000, 1).bytes).size());
    EXPECT_GT(200'000 / tokens, 2.5);
    EXPECT_LT(200'000 / tokens, 5.5);
  }
}

TEST(Speed, MeasuresTheWholeText) {
  const SpeedText text = generated_prose(50'000, 3);
  const TextSpeed speed = measure_text(testing::o200k(), text, 1000, 3);
  EXPECT_EQ(speed.bytes, 50'000);
  int64_t tokens = 0;
  for (const auto d : documents_of(text.bytes, 1000)) tokens += static_cast<int64_t>(testing::o200k().encode(d).size());
  EXPECT_EQ(speed.tokens, tokens);
  EXPECT_EQ(speed.documents, static_cast<int64_t>(documents_of(text.bytes, 1000).size()));
  for (const double rate : {speed.bytes_per_s, speed.tokens_per_s, speed.split_bytes_per_s, speed.read_bytes_per_s}) {
    EXPECT_GT(rate, 0);
  }
}

TEST(Speed, ThreadsDoubleUpToTheMost) {
  std::vector<int> counts;
  for (const auto& s : measure_threads(testing::o200k(), generated_code(20'000, 1), 1000, 3, 1)) {
    counts.push_back(s.threads);
    EXPECT_GT(s.bytes_per_s, 0);
    EXPECT_GT(s.cpu_ns_per_byte, 0);
  }
  EXPECT_EQ(counts, (std::vector<int>{1, 2, 3}));
}

TEST(Speed, HostileTextsAreMeasuredAtTwoLengths) {
  for (const auto& s : measure_hostile(testing::o200k(), 5000, 1e8, 1)) {
    EXPECT_GE(s.bytes, 5000) << s.name;
    EXPECT_GT(s.ratio, 0) << s.name;
    EXPECT_NEAR(s.against_prose, s.ns_per_byte / 10, 1e-9) << s.name;
  }
}

TEST(Tokenizer, CountsPieces) {
  for (const std::string_view text : {"", "a", "Hello, world! It's 12345  \n ok"}) {
    EXPECT_EQ(testing::o200k().count_pieces(text), testing::o200k().split(text).size());
  }
}

}  // namespace
}  // namespace mythos
