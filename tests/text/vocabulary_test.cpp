#include "text/vocabulary.h"

#include <set>

#include "text/base64.h"
#include "text/splitter.h"
#include "text_testing.h"

namespace mythos {
namespace {

using testing::error_of;
using testing::small_vocabulary;
using testing::TemporaryFolder;
using Ids = std::vector<int32_t>;
using PlainJson = nlohmann::json;

std::string tiktoken_text(const Vocabulary& v) {
  std::string text;
  for (size_t i = 0; i < v.ordinary.size(); ++i) text += base64_encode(v.ordinary[i]) + " " + std::to_string(i) + "\n";
  return text;
}

// A tokenizer.json of a vocabulary; the merges are all splits of each token into two tokens, in the order of ids.
PlainJson hugging_face(const Vocabulary& v, bool merges_as_pairs) {
  PlainJson json;
  PlainJson vocab = PlainJson::object();
  PlainJson merges = PlainJson::array();
  std::set<std::string_view> known(v.ordinary.begin(), v.ordinary.end());
  for (size_t i = 0; i < v.ordinary.size(); ++i) {
    vocab[testing::byte_level(v.ordinary[i])] = i;
    const std::string_view bytes = v.ordinary[i];
    for (size_t cut = 1; cut < bytes.size(); ++cut) {
      if (!known.contains(bytes.substr(0, cut)) || !known.contains(bytes.substr(cut))) continue;
      const std::string left = testing::byte_level(bytes.substr(0, cut));
      const std::string right = testing::byte_level(bytes.substr(cut));
      merges.push_back(merges_as_pairs ? PlainJson{left, right} : PlainJson(left + " " + right));
    }
  }
  json["model"] = {{"type", "BPE"}, {"vocab", vocab}, {"merges", merges}};
  json["normalizer"] = nullptr;
  json["pre_tokenizer"] = PlainJson::parse(
      R"({"type":"Sequence","pretokenizers":[{"type":"Split","pattern":{"Regex":""},"behavior":"Isolated","invert":false},
         {"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":false}]})");
  json["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = v.pattern;
  json["added_tokens"] = PlainJson::array();
  for (const auto& s : v.special) {
    json["added_tokens"].push_back({{"id", s.id}, {"content", s.text}, {"special", true}});
  }
  return json;
}

std::string load_error(const std::string& text) {
  const TemporaryFolder folder;
  const auto path = folder.file("tokenizer", text);
  const std::string error = error_of([&] { Tokenizer::load(path); });
  if (!error.empty()) {
    EXPECT_HAS(error, path.string());
  }
  return error;
}
Tokenizer load_text(const std::string& text) {
  const TemporaryFolder folder;
  return Tokenizer::load(folder.file("tokenizer", text));
}

TEST(Base64, KnownValuesAndRefusals) {
  const std::vector<std::pair<std::string, std::string>> known = {
      {"", ""}, {"f", "Zg=="}, {"fo", "Zm8="}, {"foo", "Zm9v"}, {"foob", "Zm9vYg=="}, {"\xFF\xFE\xFD", "//79"}};
  std::string bytes;
  for (const auto& [plain, coded] : known) {
    EXPECT_EQ(base64_encode(plain), coded);
    EXPECT_TRUE(base64_decode(coded, bytes));
    EXPECT_EQ(bytes, plain);
  }
  for (const char* bad :
       {"Z", "Zg", "Zg=", "Zg=a", "Zh==", "Zm9=", "====", "Z===", "Zm 9", "Zg==Zg==", "Zm9v\n", "Zm9_"}) {
    EXPECT_FALSE(base64_decode(bad, bytes)) << bad;
  }
}

TEST(Tiktoken, SmallFileAndItsIds) {
  const Tokenizer t = load_text(tiktoken_text(small_vocabulary({"ab", "abc", " a"}, "")));
  EXPECT_EQ(t.n_ordinary(), 259);
  EXPECT_EQ(t.n_ids(), 259);
  EXPECT_EQ(t.end_of_text(), std::nullopt);
  EXPECT_EQ(t.encode("abcab a"), (Ids{257, 256, 258}));
  // Windows line ends and a blank last line change nothing.
  std::string text = tiktoken_text(t.vocabulary());
  for (size_t i = 0; (i = text.find('\n', i)) != std::string::npos; i += 2) text.replace(i, 1, "\r\n");
  EXPECT_EQ(load_text(text + "\n").fingerprint(), t.fingerprint());
}

TEST(Tiktoken, HostileFiles) {
  const std::string good = tiktoken_text(small_vocabulary({"ab"}, ""));
  EXPECT_EQ(load_error(good), "");
  EXPECT_HAS(load_error(""), "empty");
  EXPECT_HAS(load_error("  \n \n"), "empty");
  EXPECT_HAS(load_error("hello\n"), "line 1: expected a token in base64");
  EXPECT_HAS(load_error(good + "YWI 257\n"), "line 258: the token is not valid base64");
  EXPECT_HAS(load_error(good + "YWJj 256\n"), "line 258: the id 256 is given twice");
  EXPECT_HAS(load_error(good + "YWI= 257\n"), "ids 256 and 257 are the same token");
  EXPECT_HAS(load_error(good + "YWJj 4294967296\n"), "line 258: the id 4294967296 is not between");
  EXPECT_HAS(load_error(good + "YWJj 99999999999999999999\n"), "line 258: expected a token id");
  EXPECT_HAS(load_error(good + "YWJj -5\n"), "line 258: the id -5 is not between");
  EXPECT_HAS(load_error(good + "YWJj 257 \n"), "line 258: expected a token id");
  EXPECT_HAS(load_error(good + "YWJj\n"), "line 258");
  EXPECT_HAS(load_error(good + " 257\n"), "line 258: the token is empty");
  EXPECT_HAS(load_error(good.substr(good.find('\n') + 1)), "no token for the byte 0x00");
  EXPECT_HAS(load_error(good.substr(0, good.size() / 2)), "tokenizer");  // cut in two
  const TemporaryFolder folder;
  EXPECT_HAS(error_of([&] { Tokenizer::load(folder / "missing"); }), "missing");
}

TEST(Tiktoken, EveryTruncationIsAnErrorOrASmallerVocabulary) {
  const std::string good = tiktoken_text(small_vocabulary({"ab", "abc"}, ""));
  for (size_t n = 0; n < good.size(); n += 7) {
    const std::string error = load_error(good.substr(0, n));
    if (n < good.rfind("YWI=")) {
      EXPECT_NE(error, "") << n;
    }
  }
}

TEST(OwnFormat, HostileFiles) {
  const TemporaryFolder folder;
  Vocabulary v = small_vocabulary({"ab", "abc"}, std::string(o200k_pattern));
  v.special = {{258, "<|endoftext|>"}};
  v.end_of_text = 258;
  v.n_ordinary = 259;
  Tokenizer(v).save(folder / "own");
  const std::string good = read_file(folder / "own");
  EXPECT_EQ(load_error(good), "");
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    const size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return text.replace(at, from.size(), to);
  };
  EXPECT_HAS(load_error(with("tokenizer 1", "tokenizer 2")), "another version");
  EXPECT_HAS(load_error(with("{", "[")), "not a JSON object");
  EXPECT_HAS(load_error(with("\"pattern\"", "\"patern\"")), "pattern");
  EXPECT_HAS(load_error(with("\"merge_by_id\":true", "\"merge_by_id\":1")), "merge_by_id");
  EXPECT_HAS(load_error(with("\"end_of_text\":258", "\"end_of_text\":5")), "end-of-text id 5");
  EXPECT_HAS(load_error(with("\"n_ordinary\":259", "\"n_ordinary\":-1")), "n_ordinary");
  EXPECT_HAS(load_error(with("\"n_ordinary\":259", "\"n_ordinary\":1000")), "1000 ordinary tokens");
  EXPECT_HAS(load_error(with("\"tokens\":258", "\"tokens\":1e300")), "tokens");
  EXPECT_HAS(load_error(with("\"tokens\":258", "\"tokens\":60000000")), "too early");
  EXPECT_HAS(load_error(with("\"tokens\":258", "\"tokens\":257")), "line");
  EXPECT_HAS(load_error(with("\"special\":1", "\"special\":0")), "more lines");
  EXPECT_HAS(load_error(with("YWI= 256", "YWI= 255")), "given twice");
  EXPECT_HAS(load_error(good.substr(0, good.size() - 9)), "tokenizer");
  for (size_t n = 0; n + 1 < good.size(); n += 11) EXPECT_NE(load_error(good.substr(0, n)), "") << n;
}

TEST(OwnFormat, KeepsListedMergesAndGaps) {
  Vocabulary v = small_vocabulary({"ab", "", "bc", "abc"}, "\\w+|\\W+");
  v.merge_by_id = false;
  v.whole_pieces = false;
  v.merges = {{'b', 'c'}, {'a', 'b'}};
  v.special = {{300, "<x>"}};
  const Tokenizer t(v);
  EXPECT_EQ(t.encode("abc ab"), (Ids{'a', 258, ' ', 256}));
  EXPECT_EQ(t.decode(Ids{257}), "\uFFFD");
  const TemporaryFolder folder;
  t.save(folder / "own");
  const Tokenizer u = Tokenizer::load(folder / "own");
  EXPECT_EQ(u.fingerprint(), t.fingerprint());
  EXPECT_EQ(u.encode("abc ab"), t.encode("abc ab"));
  EXPECT_EQ(u.n_ids(), 301);
  EXPECT_EQ(u.decode(Ids{300}), "<x>");
}

TEST(HuggingFace, SmallFileInBothFormsOfMerges) {
  Vocabulary v = small_vocabulary({"ab", "abc", " a"}, std::string(o200k_pattern));
  v.special = {{260, "<|endoftext|>"}};
  v.end_of_text = 260;
  const Tokenizer direct(v);
  for (const bool pairs : {false, true}) {
    const Tokenizer t = load_text(hugging_face(v, pairs).dump());
    EXPECT_EQ(t.fingerprint(), direct.fingerprint());
    EXPECT_EQ(t.n_ordinary(), 259);
    EXPECT_EQ(t.n_ids(), 261);
    EXPECT_EQ(t.end_of_text(), 260);
    EXPECT_EQ(t.encode("abcab a"), (Ids{257, 256, 258}));
    EXPECT_EQ(t.encode("<|endoftext|>"), direct.encode("<|endoftext|>"));
  }
}

TEST(HuggingFace, TheOrderOfMergesIsTheOrderOfTheFile) {
  Vocabulary v = small_vocabulary({"ab", "bc", "abc"}, std::string(o200k_pattern));
  PlainJson json = hugging_face(v, false);
  json["model"]["merges"] = {"b c", "a b"};  // "abc" is in the vocabulary, but no merge makes it
  EXPECT_EQ(load_text(json.dump()).encode("abc"), (Ids{'a', 257}));
  json["model"]["merges"] = {"a b", "b c"};
  EXPECT_EQ(load_text(json.dump()).encode("abc"), (Ids{256, 'c'}));
  json["model"]["ignore_merges"] = true;
  EXPECT_EQ(load_text(json.dump()).encode("abc"), (Ids{258}));
}

TEST(HuggingFace, AddedTokensInTheVocabularyAreNotOrdinary) {
  Vocabulary v = small_vocabulary({"ab", "<|endoftext|>"}, std::string(o200k_pattern));
  PlainJson json = hugging_face(v, false);
  json["added_tokens"] = {{{"id", 257}, {"content", "<|endoftext|>"}, {"special", true}}};
  const Tokenizer t = load_text(json.dump());
  EXPECT_EQ(t.n_ordinary(), 257);
  EXPECT_EQ(t.n_ids(), 258);
  EXPECT_EQ(t.end_of_text(), 257);
  EXPECT_EQ(t.decode(t.encode("<|endoftext|>")), "<|endoftext|>");
  EXPECT_EQ(t.encode("<|endoftext|>").size(), 13u);
}

TEST(HuggingFace, Gpt2sOwnSplitAndOtherRules) {
  Vocabulary v = small_vocabulary({" a", "12"}, "");
  PlainJson json = hugging_face(v, false);
  json["pre_tokenizer"] = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}};
  const Tokenizer t = load_text(json.dump());
  EXPECT_EQ(t.split("it's 12345 a!?\n x"), (std::vector<size_t>{2, 4, 10, 12, 14, 15, 17}));
  EXPECT_EQ(t.encode(" a12\xFF\xC3"
                     "x"),
            (Ids{256, 257, 0xFF, 0xC3, 'x'}));
}

TEST(HuggingFace, T7_SurrogatePairsInTheFileAreOneCharacter) {
  Vocabulary v = small_vocabulary({}, std::string(o200k_pattern));
  PlainJson json = hugging_face(v, false);
  json["added_tokens"] = {{{"id", 256}, {"content", "PLACE"}, {"special", true}}};
  std::string text = json.dump();
  text.replace(text.find("PLACE"), 5, "\\ud83d\\udc4d");
  EXPECT_EQ(load_text(text).decode(Ids{256}), "\U0001F44D");
  text.replace(text.find("\\udc4d"), 6, "x");
  EXPECT_HAS(load_error(text), "not valid JSON");
}

TEST(HuggingFace, HostileFiles) {
  const Vocabulary v = small_vocabulary({"ab", "abc"}, std::string(o200k_pattern));
  const PlainJson good = hugging_face(v, false);
  EXPECT_EQ(load_error(good.dump()), "");
  const auto with = [&](auto change) {
    PlainJson json = good;
    change(json);
    return load_error(json.dump());
  };
  EXPECT_HAS(load_error("{"), "not valid JSON");
  EXPECT_HAS(load_error("{}"), "no \"model\"");
  EXPECT_HAS(load_error(good.dump().substr(0, 500)), "not valid JSON");
  EXPECT_HAS(load_error(R"({"model": )" + std::string(100'000, '[')), "nested too deeply");
  EXPECT_HAS(load_error("{\"model\":{\"vocab\":{\"a\":{}}}}"), "not a whole number");
  EXPECT_HAS(with([](auto& j) { j["model"]["type"] = "Unigram"; }), "Unigram");
  EXPECT_HAS(with([](auto& j) { j["model"].erase("vocab"); }), "no \"vocab\"");
  EXPECT_HAS(with([](auto& j) { j["model"]["vocab"]["abcd"] = 257; }), "same id 257");
  EXPECT_HAS(with([](auto& j) { j["model"]["vocab"]["abcd"] = 1.5; }), "not a whole number");
  EXPECT_HAS(with([](auto& j) { j["model"]["vocab"]["abcd"] = "7"; }), "not a whole number");
  EXPECT_HAS(with([](auto& j) { j["model"]["vocab"]["abcd"] = -1; }), "is not between");
  EXPECT_HAS(with([](auto& j) { j["model"]["vocab"]["abcd"] = UINT64_MAX; }), "is not between");
  EXPECT_HAS(with([](auto& j) { j["model"]["vocab"]["abcd"] = 1 << 30; }), "is not between");
  EXPECT_HAS(with([](auto& j) { j["model"]["vocab"]["中"] = 258; }), "byte-level alphabet");
  EXPECT_HAS(with([](auto& j) { j["model"]["vocab"].erase("A"); }), "no token for the byte 0x41");
  EXPECT_HAS(with([](auto& j) { j["model"]["merges"].push_back("zz"); }), "has no space");
  EXPECT_HAS(with([](auto& j) { j["model"]["merges"].push_back(7); }), "not a pair");
  EXPECT_HAS(with([](auto& j) { j["model"]["merges"].push_back({"a", "b", "c"}); }), "not a pair");
  EXPECT_HAS(with([](auto& j) { j["model"]["merges"].push_back("z q"); }), "not a token");
  EXPECT_HAS(with([](auto& j) { j["model"]["merges"].push_back("a b"); }), "listed before");
  EXPECT_HAS(with([](auto& j) { j["model"]["byte_fallback"] = true; }), "does not support");
  EXPECT_HAS(with([](auto& j) { j["model"]["dropout"] = 0.1; }), "does not support");
  EXPECT_HAS(with([](auto& j) { j["model"]["end_of_word_suffix"] = "</w>"; }), "does not support");
  EXPECT_HAS(with([](auto& j) { j["normalizer"] = {{"type", "NFC"}}; }), "normalizes");
  EXPECT_HAS(with([](auto& j) { j["pre_tokenizer"] = nullptr; }), "no byte-level pre-tokenizer");
  EXPECT_HAS(with([](auto& j) { j["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "(a"; }),
             "regular expression");
  EXPECT_HAS(with([](auto& j) { j["pre_tokenizer"]["pretokenizers"][0]["behavior"] = "MergedWithNext"; }),
             "MergedWithNext");
  EXPECT_HAS(with([](auto& j) { j["pre_tokenizer"]["pretokenizers"][1]["add_prefix_space"] = true; }), "adds a space");
  EXPECT_HAS(with([](auto& j) { j["added_tokens"] = {{{"id", 5}, {"content", "<x>"}}}; }), "id 5 is given twice");
  EXPECT_HAS(with([](auto& j) {
               j["added_tokens"] = {{{"id", 300}, {"content", "<x>"}}, {{"id", 301}, {"content", "<x>"}}};
             }),
             "listed twice");
  EXPECT_HAS(with([](auto& j) { j["added_tokens"] = {{{"id", 1e18}, {"content", "<x>"}}}; }), "not a whole number");
  EXPECT_HAS(with([](auto& j) { j["added_tokens"] = {7}; }), "added token");
}

// The whole o200k vocabulary in the other format: the same tokenizer.
TEST(HuggingFace, O200kAsTokenizerJsonIsTheSame) {
  const Tokenizer& o200k = testing::o200k();
  Vocabulary v = o200k.vocabulary();
  v.special.insert(v.special.begin(), {199998, "<|startoftext|>"});
  const Tokenizer t = load_text(hugging_face(v, true).dump());
  EXPECT_EQ(t.fingerprint(), o200k.fingerprint());
  EXPECT_EQ(t.n_ordinary(), 199998);
  EXPECT_EQ(t.n_ids(), 200019);
  EXPECT_EQ(t.end_of_text(), 199999);
  EXPECT_TRUE(t.vocabulary().merge_by_id);
  for (const auto& x : testing::read_vectors("o200k_more_vectors.jsonl")) EXPECT_EQ(t.encode(x.text), x.ids);
}

}  // namespace
}  // namespace mythos
