#include "text/training.h"

#include "text_testing.h"

namespace mythos {
namespace {

using testing::error_of;
using Ids = std::vector<int32_t>;
using Docs = std::vector<std::string>;

Docs prose() {
  Docs docs;
  Random random(8);
  const Docs words = {"the", "loop",  "looped",    "looping", "model",   "models", "of",
                      "a",   "depth", "recurrent", "train",   "trained", "中文",   "naïve"};
  for (int d = 0; d < 60; ++d) {
    std::string text;
    for (int w = 0; w < 80; ++w) text += (w ? " " : "") + words[random.below(words.size())];
    docs.push_back(text + ".\n");
  }
  return docs;
}

TEST(Training, SmallExampleByHand) {
  // Pieces: "abab" x3, " ab" x2, "cab" x2. Counts: ab 6 + 2 + 2 = 10, ba 3, " a" 2, ca 2.
  // Then (ab ab) 3, ("c" ab) 2, (" " ab) 2: of the equal ones the space has the lower id.
  const Docs docs = {"abab", "abab", "abab ab", "cab", "cab ab"};
  const Tokenizer t = train_tokenizer(docs, {.vocab_size = 261});
  EXPECT_EQ(t.token_bytes(256), "ab");
  EXPECT_EQ(t.token_bytes(257), "abab");
  EXPECT_EQ(t.token_bytes(258), " ab");
  EXPECT_EQ(t.token_bytes(259), "cab");
  EXPECT_EQ(t.token_bytes(260), "<|endoftext|>");
  EXPECT_EQ(t.end_of_text(), 260);
  EXPECT_EQ(t.n_ordinary(), 261);
  EXPECT_EQ(t.n_ids(), 261);
  EXPECT_EQ(t.encode("abab ab"), (Ids{257, 258}));
  EXPECT_EQ(t.encode("<|endoftext|>").size(), 13u);  // letters, not the token
  EXPECT_EQ(t.encode("A"), (Ids{'A'}));
}

TEST(Training, OverlappingRunsMergeFromTheLeft) {
  // aa aa a: then (aa a) and (aa aa) are equally frequent, and the lower right id wins.
  const Tokenizer t = train_tokenizer(Docs{"aaaaa", "aaaaa"}, {.vocab_size = 259});
  EXPECT_EQ(t.token_bytes(256), "aa");
  EXPECT_EQ(t.token_bytes(257), "aaa");
  EXPECT_EQ(t.encode("aaaaa"), (Ids{256, 257}));
}

TEST(Training, TheSameTextGivesTheSameTokensInAnyOrder) {
  Docs docs = prose();
  const TokenizerTraining options{.vocab_size = 300};
  const Tokenizer a = train_tokenizer(docs, options);
  const Tokenizer b = train_tokenizer(docs, options);
  std::reverse(docs.begin(), docs.end());
  const Tokenizer c = train_tokenizer(docs, options);
  EXPECT_EQ(a.fingerprint(), b.fingerprint());
  EXPECT_EQ(a.fingerprint(), c.fingerprint());
  for (const std::string& d : docs) EXPECT_EQ(a.decode(a.encode(d)), d);
}

TEST(Training, SavedAndLoadedIsTheSame) {
  const testing::TemporaryFolder folder;
  const Docs docs = prose();
  const Tokenizer a = train_tokenizer(docs, {.vocab_size = 300});
  a.save(folder / "tokenizer.txt");
  const Tokenizer b = Tokenizer::load(folder / "tokenizer.txt");
  EXPECT_EQ(a.fingerprint(), b.fingerprint());
  EXPECT_EQ(b.n_ordinary(), 300);
  EXPECT_EQ(b.end_of_text(), 299);
  Random random(4);
  for (const std::string& d : docs) EXPECT_EQ(a.encode(d), b.encode(d));
  const std::string noise = testing::random_bytes(random, 3000);
  EXPECT_EQ(a.encode(noise), b.encode(noise));
  EXPECT_EQ(b.decode(b.encode(noise)), noise);
}

TEST(Training, TextBecomesFewerTokens) {
  const Docs docs = prose();
  const Tokenizer t = train_tokenizer(docs, {.vocab_size = 300});
  EXPECT_LT(t.encode(docs[0]).size() * 3, docs[0].size());
}

TEST(Training, ReportsProgressAndMayBeStopped) {
  int64_t last_tokens = 0;
  int64_t documents = 0;
  train_tokenizer(prose(), {.vocab_size = 300}, [&](const TrainingProgress& p) {
    EXPECT_GE(p.tokens, last_tokens);
    last_tokens = p.tokens;
    documents = p.documents;
    EXPECT_EQ(p.vocab_size, 300);
  });
  EXPECT_EQ(last_tokens, 300);
  EXPECT_EQ(documents, 60);
  EXPECT_HAS(error_of([] {
               train_tokenizer(prose(), {.vocab_size = 300}, [](const TrainingProgress& p) {
                 if (!p.reading) throw failure("stopped");
               });
             }),
             "stopped");
}

TEST(Training, WhatCannotBeTrainedIsRefused) {
  for (const int64_t size : {int64_t{256}, int64_t{0}, int64_t{-1}, max_token_ids + 1}) {
    try {
      train_tokenizer(prose(), {.vocab_size = size});
      ADD_FAILURE() << size;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ExitCode::usage);
      EXPECT_HAS(e.line(), "257");
    }
  }
  EXPECT_HAS(error_of([] { train_tokenizer(Docs{}, {.vocab_size = 300}); }), "no text");
  EXPECT_HAS(error_of([] { train_tokenizer(Docs{"", ""}, {.vocab_size = 300}); }), "no text");
  EXPECT_HAS(error_of([] { train_tokenizer(Docs{"abab", "abab"}, {.vocab_size = 300}); }), "vocabulary of 259 at most");
  EXPECT_EQ(train_tokenizer(Docs{"abab", "abab"}, {.vocab_size = 259}).n_ids(), 259);
  EXPECT_EQ(train_tokenizer(Docs{"x"}, {.vocab_size = 257}).n_ids(), 257);
}

TEST(Training, HostileTextIsText) {
  Random random(6);
  const Docs docs = {std::string(300'000, 'a'), std::string(300'000, ' '), testing::random_bytes(random, 100'000),
                     std::string("\0\0\0", 3)};
  const Tokenizer t = train_tokenizer(docs, {.vocab_size = 400, .max_token_bytes = 32});
  for (int32_t id = 0; id < 399; ++id) EXPECT_LE(t.token_bytes(id).size(), 32u);
  for (const std::string& d : docs) EXPECT_EQ(t.decode(t.encode(d)), d);
}

}  // namespace
}  // namespace mythos
