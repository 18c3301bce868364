// Against tiktoken itself, where scripts/peers has installed it (scripts/setup --test does).
#include "../support/program.h"
#include "text/unicode.h"
#include "text_testing.h"

namespace mythos {
namespace {

namespace fs = std::filesystem;

std::string any_character(Random& random, uint32_t from, uint32_t size) {
  uint32_t code;
  do code = from + static_cast<uint32_t>(random.below(size));
  while (code >= 0xD800 && code <= 0xDFFF);
  std::string bytes;
  append_utf8(bytes, code);
  return bytes;
}

// Characters and strings that the splitting rule treats in ways of their own.
const std::vector<std::string> special = {
    "a",          "z",          "A",          "Z",          "'",          "'s",     "'S",         "'ll",
    "'RE",        "'\u017F",    "\u2019s",    "0",          "9",          "12",     "1234",       "/",
    "//",         "_",          "-",          ".",          " ",          "  ",     "\t",         "\n",
    "\r",         "\r\n",       "\x01",       "\x0B",       "\x1C",       "\u0085", "\u00A0",     "\u00AD",
    "\u1680",     "\u2003",     "\u2028",     "\u202F",     "\u3000",     "\u180E", "\u200B",     "\u200D",
    "\uFE0F",     "\u0301",     "\u0489",     "\u20DD",     "\u212A",     "\u0130", "\u0131",     "\u01C5",
    "\u02B0",     "\u2160",     "\u24D0",     "\u00BD",     "\u0661",     "\u4E2D", "\u3042",     "\u05D0",
    "\u0627",     "\u0E01",     "\uFFFD",     "\uFEFF",     "\uFFFE",     "\uE000", "\U0001F44D", "\U0001F3FD",
    "\U0001F1E9", "\U0001D7D9", "\U00010400", "\U00010428", "\U000E0101", "the",    " The",       "HTTP",
    "e\u0301"};

std::string random_text(Random& random) {
  constexpr size_t sizes[] = {1, 2, 3, 5, 10, 30, 100, 300};
  const size_t size = sizes[random.below(8)];
  const auto one_of = [&](const auto& list) -> const std::string& { return list[random.below(list.size())]; };
  std::string text;
  switch (random.below(6)) {
    case 0:  // all planes
      for (size_t i = 0; i < size; ++i) text += any_character(random, 0, 0x110000);
      break;
    case 1:
      for (size_t i = 0; i < size; ++i) text += one_of(special);
      break;
    case 2: {  // one block, with special ones between
      const auto block = static_cast<uint32_t>(random.below(random.below(2) == 0 ? 0x30 : 0x200)) << 8;
      for (size_t i = 0; i < size; ++i) {
        text += random.below(5) == 0 ? one_of(special)
                                     : any_character(random, block >= 0xD800 && block <= 0xDFFF ? 0 : block, 256);
      }
      break;
    }
    case 3:
      for (size_t i = 0; i < size; ++i) text += static_cast<char>(random.below(128));
      break;
    case 4: {  // runs
      const std::vector<std::string> few = {one_of(special), one_of(special), one_of(special)};
      for (size_t i = 0; i < size; ++i) text += one_of(few);
      break;
    }
    default: {  // one long piece: longer than what is merged at once
      const std::string_view letters = random.below(2) == 0 ? "etaoin" : "abcdefghijklmnopqrstuvwxyz";
      const size_t length = random.below(20) == 0 ? 3000 : 10 * size / 3 + 1;
      for (size_t i = 0; i < length; ++i) text += letters[random.below(letters.size())];
    }
  }
  return text;
}

TEST(Peer, TheSameIdsAsTiktokenOnRandomUnicode) {
  const fs::path peer = fs::path(MYTHOS_SITE_DIR).parent_path() / "peers/tiktoken";
  if (!fs::exists(peer / "python")) GTEST_SKIP() << "tiktoken is not installed: run scripts/peers tiktoken";
  std::string python = read_file(peer / "python");
  python.erase(python.find_last_not_of(" \n") + 1);

  Random random(20260524);
  std::vector<std::string> texts;
  for (int i = 0; i < 4000; ++i) texts.push_back(random_text(random));
  std::string lines;
  for (const std::string& text : texts) lines += nlohmann::json({{"text", text}}).dump() + "\n";

  const testing::TemporaryFolder folder;
  testing::Program::Options options;
  options.folder = folder / "";
  options.input = folder.file("in", lines);
  options.program = python;
  options.environment = {{"PYTHONPATH", (peer / "site").string()}};
  const std::string script = (fs::path(MYTHOS_TEST_DIR) / "peers/tiktoken_peer.py").string();
  testing::Program program({script, testing::o200k_path().string()}, options);
  ASSERT_EQ(program.wait(), 0) << program.err();

  std::istringstream answers(program.out());
  size_t n = 0;
  for (std::string line; std::getline(answers, line); ++n) {
    ASSERT_LT(n, texts.size());
    const std::vector<int32_t> expected = nlohmann::json::parse(line)["ids"];
    ASSERT_EQ(testing::o200k().encode(texts[n]), expected) << n << ": " << nlohmann::json(texts[n]).dump(-1, ' ', true);
  }
  EXPECT_EQ(n, texts.size());
}

}  // namespace
}  // namespace mythos
