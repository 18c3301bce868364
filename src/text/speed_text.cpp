// Text made from a seed, for measuring.
#include <array>
#include <cmath>

#include "base/random.h"
#include "text/speed.h"

namespace mythos {

namespace {

constexpr std::array<std::string_view, 60> common_words = {
    "the",   "of",    "and",    "to",    "a",     "in",    "is",    "that",  "for",   "it",     "as",    "was",
    "with",  "be",    "by",     "on",    "not",   "he",    "this",  "are",   "or",    "his",    "from",  "at",
    "which", "but",   "have",   "an",    "had",   "they",  "you",   "were",  "their", "one",    "all",   "we",
    "can",   "her",   "has",    "there", "been",  "if",    "more",  "when",  "will",  "would",  "who",   "so",
    "no",    "water", "people", "time",  "years", "world", "other", "first", "new",   "system", "study", "number"};
constexpr std::array<std::string_view, 24> keywords = {
    "if",   "for",    "return", "const", "int",    "void", "class",  "def",      "self", "import", "from", "while",
    "else", "static", "std",    "auto",  "struct", "None", "size_t", "template", "bool", "true",   "not",  "in"};
constexpr std::array<std::string_view, 28> starts = {"b",  "br", "c",  "ch", "d", "dr", "f",  "g",  "gr", "h",
                                                     "j",  "k",  "l",  "m",  "n", "p",  "pr", "qu", "r",  "s",
                                                     "st", "t",  "th", "tr", "v", "w",  "",   ""};
constexpr std::array<std::string_view, 10> middles = {"a", "e", "i", "o", "u", "ea", "io", "ou", "ai", "y"};
constexpr std::array<std::string_view, 16> ends = {"n", "r",  "s", "t", "l", "nd", "st", "ng",
                                                   "m", "ck", "",  "",  "",  "rt", "x",  "ss"};

template <size_t N>
std::string_view one_of(Random& random, const std::array<std::string_view, N>& list) {
  return list[random.below(N)];
}

std::string made_up_word(Random& random) {
  std::string word;
  for (uint64_t n = 1 + random.below(4); n > 0; --n) {
    word += one_of(random, starts);
    word += one_of(random, middles);
    word += one_of(random, ends);
  }
  return word;
}

// Words of which the k-th comes about as often as 1 / k.
class Words {
 public:
  template <size_t N>
  Words(Random& random, const std::array<std::string_view, N>& common) : random_(random) {
    words_.assign(common.begin(), common.end());
    while (words_.size() < 30'000) words_.push_back(made_up_word(random));
  }
  const std::string& draw() {
    const auto n = static_cast<double>(words_.size());
    const auto k = static_cast<size_t>(std::exp(random_.uniform() * std::log(n + 1))) - 1;
    return words_[k < words_.size() ? k : words_.size() - 1];
  }

 private:
  Random& random_;
  std::vector<std::string> words_;
};

char capital(char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c; }

std::string identifier(Random& random, Words& words) {
  std::string name = words.draw();
  for (uint64_t n = random.below(3); n > 0; --n) {
    const bool snake = random.below(2) == 0;
    std::string part = words.draw();
    if (!snake) part[0] = capital(part[0]);
    name += snake ? "_" + part : part;
  }
  return name;
}

}  // namespace

SpeedText generated_prose(size_t size, uint64_t seed) {
  Random random(seed);
  Words words(random, common_words);
  std::string text;
  while (text.size() < size) {
    for (uint64_t sentences = 2 + random.below(6); sentences > 0; --sentences) {
      const uint64_t length = 5 + random.below(20);
      for (uint64_t i = 0; i < length; ++i) {
        std::string word = words.draw();
        if (i == 0 || random.below(40) == 0) word[0] = capital(word[0]);
        if (random.below(60) == 0) word = std::to_string(random.below(3000));
        if (random.below(80) == 0) word += "'s";
        text += word;
        text += i + 1 == length ? (sentences == 1 ? ".\n" : ". ") : random.below(12) == 0 ? ", " : " ";
      }
    }
    text += '\n';
  }
  text.resize(size);
  return {"generated prose", text};
}

SpeedText generated_code(size_t size, uint64_t seed) {
  constexpr std::array<std::string_view, 10> between = {" = ", ", ", "(", ".", " + ", "->", "::", " == ", "[", " < "};
  constexpr std::array<std::string_view, 6> line_ends = {";\n", ");\n", ":\n", " {\n", "]\n", "\n"};
  Random random(seed);
  Words words(random, keywords);
  std::string text;
  uint64_t depth = 0;
  while (text.size() < size) {
    text.append(4 * depth, ' ');
    if (random.below(8) == 0) {
      text += "// ";
      for (uint64_t n = 3 + random.below(8); n > 0; --n) text += words.draw() + (n == 1 ? "\n" : " ");
      continue;
    }
    text += one_of(random, keywords);
    text += ' ';
    for (uint64_t n = 1 + random.below(5); n > 0; --n) {
      text += random.below(6) == 0 ? std::to_string(random.below(1000)) : identifier(random, words);
      if (n > 1) text += one_of(random, between);
    }
    text += one_of(random, line_ends);
    if (random.below(12) == 0) text += '\n';
    depth = random.below(3) == 0 ? random.below(5) : depth;
  }
  text.resize(size);
  return {"generated code", text};
}

}  // namespace mythos
