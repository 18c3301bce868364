#include "text/tokenizer.h"

#include <thread>

#include "text_testing.h"

namespace mythos {
namespace {

using testing::o200k;
using Ids = std::vector<int32_t>;
using namespace std::string_literals;

void expect_round_trip(const Tokenizer& t, std::string_view text) {
  const Ids ids = t.encode(text);
  ASSERT_EQ(t.decode(ids), text);
}

TEST(Tokenizer, EncodesTheGivenVectorsExactly) {
  for (const auto& [name, least] :
       {std::pair("o200k_vectors.jsonl", 201), std::pair("o200k_more_vectors.jsonl", 400)}) {
    const auto vectors = testing::read_vectors(name);
    ASSERT_GE(static_cast<int>(vectors.size()), least);
    for (const auto& v : vectors) {
      EXPECT_EQ(o200k().encode(v.text), v.ids) << name << ": " << v.text;
      EXPECT_EQ(o200k().decode(v.ids), v.text);
    }
  }
}

TEST(Tokenizer, KnowsTheSizesOfO200k) {
  EXPECT_EQ(o200k().n_ordinary(), 199998);
  EXPECT_EQ(o200k().n_ids(), 200019);
  EXPECT_EQ(o200k().end_of_text(), 199999);
  EXPECT_EQ(o200k().fingerprint().size(), 16u);
}

TEST(Tokenizer, EncodeAppends) {
  Ids ids{7};
  o200k().encode("a", ids);
  o200k().encode("", ids);
  o200k().encode(" ", ids);
  EXPECT_EQ(ids, (Ids{7, 64, 220}));
}

TEST(Tokenizer, T3_TheLastSpaceGoesToTheNextWord) {
  const std::string spaces(1'000'000, ' ');
  EXPECT_EQ(o200k().split(spaces + "x"), (std::vector<size_t>{999'999, 1'000'001}));
  EXPECT_EQ(o200k().split(spaces), (std::vector<size_t>{1'000'000}));
  EXPECT_EQ(o200k().split("  \n  x"), (std::vector<size_t>{3, 4, 6}));
  EXPECT_EQ(o200k().encode("   \n   x"), (Ids{10190, 256, 1215}));
  expect_round_trip(o200k(), spaces + "x");
}

TEST(Tokenizer, T4_SpecialSpellingsInTextAreText) {
  EXPECT_EQ(o200k().encode("<|endoftext|>"), (Ids{27, 91, 419, 1440, 919, 91, 29}));
  EXPECT_EQ(o200k().encode("<|start|>"), (Ids{27, 91, 5236, 91, 29}));
  EXPECT_EQ(o200k().decode(Ids{199999}), "<|endoftext|>");
}

TEST(Tokenizer, T5_TheRuleIsO200ksAndNotAnOlderOne) {
  EXPECT_EQ(o200k().encode("camelCase HTTPSession don't DON'T I'LL 1234567 ://\n\n/x —→“q”\n"),
            (Ids{178067, 6187, 125497, 1685, 4128, 153384, 3413,  7454, 220, 7633, 19354,
                 22,     712,  55245,  14,   87,   2733,   20216, 1100, 80,  25644}));
}

TEST(Tokenizer, T7_InvalidUtf8KeepsItsBytes) {
  const std::string smile = "\xF0\x9F\x98\x80";
  for (const std::string& text :
       {"a\xED\xA0\xBD"s + "b", "\xFF\xFE"s, "\xC0\x80"s, smile.substr(0, 3), smile.substr(0, 1),
        "x" + smile.substr(0, 3), smile.substr(0, 3) + "x", "\x80\x80 \x80"s, "\xF4\x90\x80\x80"s, "\xE0\x80\x80"s,
        "\xC3"s, "é\xC3"s, "\xF8\x88\x80\x80\x80"s}) {
    expect_round_trip(o200k(), text);
  }
  // An invalid byte is a symbol by itself: it leads a word as a symbol does.
  EXPECT_EQ(o200k().split("a\xFF"
                          "b"),
            (std::vector<size_t>{1, 3}));
  EXPECT_EQ(o200k().split("a\xFF\xFE 1"), (std::vector<size_t>{1, 3, 4, 5}));
}

TEST(Tokenizer, T8_ANulByteIsAByte) {
  for (const std::string& text : {"foo\0bar"s, "\0"s, "\0\0"s, "\0a\0"s}) expect_round_trip(o200k(), text);
  EXPECT_EQ(o200k().decode(o200k().encode("foo\0bar"s)).size(), 7u);
}

TEST(Tokenizer, T10_AnyIdDecodesToSomething) {
  EXPECT_EQ(o200k().decode(Ids{199998}), "\uFFFD");  // the gap before the end of text
  for (const int32_t id : {-1, 200000, 200019, 300000, INT32_MAX, INT32_MIN}) {
    EXPECT_EQ(o200k().decode(Ids{id}), "\uFFFD") << id;
    EXPECT_EQ(o200k().token_bytes(id), "\uFFFD") << id;
  }
  EXPECT_EQ(o200k().decode(Ids{64, 200010, 64}), "a\uFFFDa");
  Random random(5);
  for (int i = 0; i < 2000; ++i) {
    EXPECT_FALSE(o200k().decode(Ids{static_cast<int32_t>(random.below(202'000))}).empty());
  }
}

TEST(Tokenizer, RandomBytesRoundTrip) {
  Random random(1);
  for (int i = 0; i < 300; ++i) expect_round_trip(o200k(), testing::random_bytes(random, random.below(600)));
  expect_round_trip(o200k(), testing::random_bytes(random, 200'000));
  // Mostly valid text with stray bytes, from few pieces so that words come out long.
  const std::vector<std::string> parts = {"a",  "B", " ", "\n", "\r",   "'s",       "é", "\u0301",
                                          "中", "👍", "1", "/",  "\xFF", "\xE4\xB8", "ſ", "\0"s};
  for (int i = 0; i < 300; ++i) {
    std::string text;
    for (uint64_t n = random.below(200); n > 0; --n) text += parts[random.below(parts.size())];
    expect_round_trip(o200k(), text);
  }
}

TEST(Tokenizer, LongHostileTextsRoundTrip) {
  for (const std::string& unit :
       {"a"s, "_"s, " "s, "\n"s, "中"s, "\u0301"s, "👍"s, "!"s, "A\u0301"s, "\n "s, "\xFF"s, "A'"s}) {
    std::string text;
    while (text.size() < 200'000) text += unit;
    expect_round_trip(o200k(), text);
  }
}

TEST(Tokenizer, OneWordOfMillionsOfLetters) {
  Random random(2);
  std::string word(2'000'000, ' ');
  for (char& c : word) c = static_cast<char>('a' + random.below(26));
  EXPECT_EQ(o200k().split(word).size(), 1u);
  expect_round_trip(o200k(), word);
}

TEST(Tokenizer, ManyThreadsGetTheSameIds) {
  const auto vectors = testing::read_vectors("o200k_more_vectors.jsonl");
  std::vector<int> wrong(4, 0);
  std::vector<std::thread> threads;
  for (size_t t = 0; t < wrong.size(); ++t) {
    threads.emplace_back([&, t] {
      Ids ids;
      for (int round = 0; round < 3; ++round) {
        for (size_t i = 0; i < vectors.size(); ++i) {
          const auto& v = vectors[(i * (2 * t + 1) + t) % vectors.size()];
          ids.clear();
          o200k().encode(v.text, ids);
          wrong[t] += ids != v.ids;
        }
      }
    });
  }
  for (auto& t : threads) t.join();
  EXPECT_EQ(wrong, std::vector<int>(4, 0));
}

TEST(Tokenizer, OurOwnFileKeepsIdsAndFingerprint) {
  const testing::TemporaryFolder folder;
  o200k().save(folder / "own");
  const Tokenizer t = Tokenizer::load(folder / "own");
  EXPECT_EQ(t.fingerprint(), o200k().fingerprint());
  EXPECT_EQ(t.n_ordinary(), 199998);
  EXPECT_EQ(t.n_ids(), 200019);
  EXPECT_EQ(t.end_of_text(), 199999);
  for (const auto& v : testing::read_vectors("o200k_vectors.jsonl")) EXPECT_EQ(t.encode(v.text), v.ids);
}

}  // namespace
}  // namespace mythos
