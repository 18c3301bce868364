#include "text/splitter.h"

#include "text_testing.h"

namespace mythos {
namespace {

using Ends = std::vector<size_t>;

Ends split_by_rule(std::string_view text) {
  static const O200kSplitter splitter;
  Ends ends;
  for (size_t at = 0; at < text.size(); ends.push_back(at)) at = splitter.next(text, at);
  return ends;
}
Ends split_by_regex(const RegexSplitter& splitter, std::string_view text) {
  RegexSplitter::Scratch scratch(splitter);
  RegexSplitter::Walk walk(splitter, scratch, text);
  Ends ends;
  for (size_t at = 0; at < text.size(); ends.push_back(at)) at = walk.next(at);
  return ends;
}

TEST(Splitter, TheHandWrittenRuleIsTheRegularExpression) {
  const RegexSplitter regex{std::string(o200k_pattern)};
  const std::vector<std::string> parts = {
      "a",  "b",  "s",      "S",      "t",      "l", "L", "D", "re", "A", "Z",      "ǅ", "ʰ",  "中",
      "あ", "é",  "\u0301", "\u0300", "1",      "²", "½", "١", "'",  "'", "’",      " ", " ",  "\n",
      "\r", "\t", "\u0085", "\u00A0", "\u3000", "/", "!", "-", "_",  "👍", "\u200D", "ſ", "\v", ","};
  Random random(11);
  for (int i = 0; i < 4000; ++i) {
    std::string text;
    for (uint64_t n = 1 + random.below(24); n > 0; --n) text += parts[random.below(parts.size())];
    ASSERT_EQ(split_by_rule(text), split_by_regex(regex, text)) << text;
  }
}

TEST(Splitter, InvalidBytesInARegexRuleArePiecesOfTheirOwn) {
  const RegexSplitter regex{"a+|b"};
  EXPECT_EQ(split_by_regex(regex,
                           "aa\xFF\xFE"
                           "ab"),
            (Ends{2, 4, 5, 6}));
  EXPECT_EQ(split_by_regex(regex, "xxaaxx"), (Ends{2, 4, 6}));
  EXPECT_EQ(split_by_regex(regex, "\xF0\x9F"), (Ends{2}));
}

TEST(Splitter, ARuleThatExplodesStillEnds) {
  const RegexSplitter regex{"(?:a+)+$|(?:a|aa)+b"};
  std::string text(20'000, 'a');
  text += '!';
  const Ends ends = split_by_regex(regex, text);
  EXPECT_EQ(ends.back(), text.size());
}

TEST(Splitter, ABadRuleIsRefused) {
  EXPECT_HAS(testing::error_of([] { RegexSplitter("(a"); }), "regular expression");
}

TEST(Unicode, ClassesOfKnownCharacters) {
  const CharClasses classes;
  EXPECT_EQ(classes.of('A'), CharClass::upper);
  EXPECT_EQ(classes.of(0x1C5), CharClass::upper);  // Lt
  EXPECT_EQ(classes.of(0x17F), CharClass::lower);
  EXPECT_EQ(classes.of(0x2B0), CharClass::letter);
  EXPECT_EQ(classes.of(0x4E2D), CharClass::letter);
  EXPECT_EQ(classes.of(0x301), CharClass::mark);
  EXPECT_EQ(classes.of(0xBD), CharClass::number);
  EXPECT_EQ(classes.of(0x85), CharClass::space);
  EXPECT_EQ(classes.of(0x200B), CharClass::other);
  EXPECT_EQ(classes.of('\r'), CharClass::newline);
  EXPECT_EQ(classes.of(0x10FFFF), CharClass::other);
  EXPECT_EQ(classes.of(invalid_code), CharClass::other);
  EXPECT_EQ(classes.of(0x1C89), CharClass::upper);  // new in Unicode 16.0
}

TEST(Unicode, StepsOverEveryCodePoint) {
  for (uint32_t code = 0; code <= 0x10FFFF; code += code < 0x3000 ? 1 : 61) {
    std::string text;
    append_utf8(text, code);
    const auto* p = reinterpret_cast<const unsigned char*>(text.data());
    const Utf8Step s = utf8_step(p, p + text.size());
    if (code >= 0xD800 && code <= 0xDFFF) {
      EXPECT_EQ(s.code, invalid_code);
    } else {
      ASSERT_EQ(s.code, code);
      ASSERT_EQ(s.size, text.size());
      for (size_t cut = 1; cut < text.size(); ++cut) ASSERT_EQ(utf8_step(p, p + cut).code, invalid_code);
    }
  }
}

}  // namespace
}  // namespace mythos
