#include "infer/generate.h"

#include "../support/tiny.h"
#include "base/error.h"
#include "config/run_config.h"
#include "optim/adamw.h"
#include "step/train_step.h"
#include "text/unicode.h"

#include <ATen/Parallel.h>

namespace mythos {
namespace {

using testing::generated_documents;
using testing::small_tokenizer;

ModelConfig tiny_model(int64_t vocab) {
  ModelConfig c = parse_config(testing::tiny_model_toml, "tiny", "tiny").model;
  c.vocab_size = vocab;
  return c;
}

class GenerateTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    at::set_num_threads(1);
    tokenizer = std::make_unique<Tokenizer>(small_tokenizer(generated_documents(20'000)));
  }
  static void TearDownTestSuite() { tokenizer.reset(); }

  static std::unique_ptr<Model> model(int64_t vocab = 0, double scale = 8) {
    const ModelConfig config = tiny_model(vocab > 0 ? vocab : tokenizer->n_ids());
    auto m = std::make_unique<Model>(config, at::kCPU, at::kFloat, at::kFloat, false);
    initialize(m->parameters(), config, 5);
    // Larger weights than fresh ones: logits that differ, so that greedy choices are no matter of rounding.
    for (const auto& [name, tensor] : m->parameters().named_values()) {
      if (tensor.dim() == 2) tensor.mul_(scale);
    }
    return m;
  }
  static std::string usage_line(const std::function<void()>& work) {
    try {
      work();
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ExitCode::usage) << e.line();
      return e.line();
    }
    ADD_FAILURE() << "no error";
    return "";
  }

  static std::unique_ptr<Tokenizer> tokenizer;
};
std::unique_ptr<Tokenizer> GenerateTest::tokenizer;

TEST_F(GenerateTest, TheSameSeedGivesTheSameTextAndAnotherSeedAnother) {
  const auto m = model();
  GenerateOptions o;
  o.max_new_tokens = 24;
  o.sampling = {.temperature = 1.5, .top_k = 0};
  o.seed = 3;
  const auto a = generate(*m, *tokenizer, "The old river", o);
  EXPECT_EQ(a.ids, generate(*m, *tokenizer, "The old river", o).ids);
  o.seed = 4;
  EXPECT_NE(a.ids, generate(*m, *tokenizer, "The old river", o).ids);
  o.sampling.temperature = 0;
  const auto greedy = generate(*m, *tokenizer, "The old river", o).ids;
  o.seed = 99;
  EXPECT_EQ(greedy, generate(*m, *tokenizer, "The old river", o).ids);
}

TEST_F(GenerateTest, CachedGreedyDecodingEqualsTheFullForward) {
  const auto m = model();
  for (const int64_t loops : {1, 3, 5}) {  // 5: more than the model's table has
    GenerateOptions o;
    o.max_new_tokens = 30;
    o.n_loops = loops;
    o.sampling.temperature = 0;
    const auto g = generate(*m, *tokenizer, "The silent king", o);
    std::vector<int64_t> ids;
    for (const int32_t id : tokenizer->encode("The silent king")) ids.push_back(id);
    const at::NoGradGuard no_grad;
    for (const int32_t id : g.ids) {
      const at::Tensor input = at::tensor(ids, at::kLong).unsqueeze(0);
      const at::Tensor h = m->hidden(input, {.n_loops = loops});
      EXPECT_EQ(m->logits(h.select(1, h.size(1) - 1)).argmax().item<int64_t>(), id) << loops << " loops";
      ids.push_back(id);
    }
    EXPECT_TRUE(g.ended || g.ids.size() == 30U);
  }
}

TEST_F(GenerateTest, TheLargestLogitsAreThoseOfTheFullForward) {
  const auto m = model();
  GenerateOptions o;
  o.max_new_tokens = 12;  // enough for a screened vocabulary, were all logits not asked for
  o.sampling.temperature = 0;
  for (const int64_t wanted : {int64_t{3}, tokenizer->n_ids(), int64_t{1} << 20}) {
    o.top_logits = wanted;
    const auto g = generate(*m, *tokenizer, "The silent king", o);
    ASSERT_EQ(g.top_logits.size(), g.ids.size() + (g.ended ? 1 : 0));
    std::vector<int64_t> ids;
    for (const int32_t id : tokenizer->encode("The silent king")) ids.push_back(id);
    const at::NoGradGuard no_grad;
    for (size_t i = 0; i < g.ids.size(); ++i) {
      const TopLogits& top = g.top_logits[i];
      ASSERT_EQ(std::ssize(top.ids), std::min(wanted, tokenizer->n_ids()));
      EXPECT_EQ(top.ids.front(), g.ids[i]);
      EXPECT_TRUE(std::is_sorted(top.logits.rbegin(), top.logits.rend()));
      const at::Tensor h = m->hidden(at::tensor(ids, at::kLong).unsqueeze(0), {.n_loops = 0});
      const at::Tensor logits = m->logits(h.select(1, h.size(1) - 1)).squeeze(0);
      const at::Tensor expected = logits.index_select(0, at::tensor(top.ids, at::kLong));
      const double scale = expected.abs().max().item<double>();
      EXPECT_LT((at::tensor(top.logits) - expected).abs().max().item<double>(), 1e-5 * scale);
      ids.push_back(g.ids[i]);
    }
  }
  o.top_logits = 0;
  EXPECT_TRUE(generate(*m, *tokenizer, "The silent king", o).top_logits.empty());
}

// G5
TEST_F(GenerateTest, EmptyPromptsStartFromEndOfText) {
  const auto m = model();
  GenerateOptions o;
  o.max_new_tokens = 5;
  EXPECT_EQ(generate(*m, *tokenizer, "", o).prompt_tokens, 1);
  for (const char* blank : {"\n", " "}) EXPECT_EQ(generate(*m, *tokenizer, blank, o).prompt_tokens, 1);
  // A model without the end-of-text token: the tokenizer's last id is not in its vocabulary.
  const auto without = model(tokenizer->n_ids() - 1);
  const auto line = usage_line([&] { generate(*without, *tokenizer, "", o); });
  EXPECT_NE(line.find("the prompt is empty"), std::string::npos) << line;
  EXPECT_NO_THROW(generate(*without, *tokenizer, " ", o));
}

TEST_F(GenerateTest, NoNewTokensGiveNoTextAndNoError) {
  const auto m = model();
  GenerateOptions o;
  o.max_new_tokens = 0;
  int pieces = 0;
  const auto g = generate(*m, *tokenizer, "The", o, [&](std::string_view) { ++pieces; });
  EXPECT_TRUE(g.ids.empty());
  EXPECT_EQ(pieces, 0);
  o.max_new_tokens = -1;
  usage_line([&] { generate(*m, *tokenizer, "The", o); });
  o.max_new_tokens = 1;
  o.n_loops = -1;
  usage_line([&] { generate(*m, *tokenizer, "The", o); });
}

TEST_F(GenerateTest, PromptsBeyondTheModelsPositionsAreRefusedBeforeAnythingIsComputed) {
  const auto m = model();
  const int64_t most = m->config().max_seq_len;
  const std::string word = "a";
  const auto text_of = [&](int64_t tokens) {
    std::string text;
    while (static_cast<int64_t>(tokenizer->encode(text).size()) < tokens) text += "7";
    return text;
  };
  GenerateOptions o;
  o.sampling.temperature = 0;
  o.max_new_tokens = 1;
  EXPECT_NO_THROW(generate(*m, *tokenizer, text_of(most), o)) << "the last new token needs no position";
  int pieces = 0;
  const auto count = [&](std::string_view) { ++pieces; };
  const auto line = usage_line([&] { generate(*m, *tokenizer, text_of(most + 1), o, count); });
  EXPECT_NE(line.find(fmt::format("a prompt of {} tokens", most + 1)), std::string::npos) << line;
  EXPECT_NE(line.find("max_seq_len"), std::string::npos) << line;
  o.max_new_tokens = most - 9;
  EXPECT_NO_THROW(generate(*m, *tokenizer, text_of(10), o));
  ++o.max_new_tokens;
  usage_line([&] { generate(*m, *tokenizer, text_of(10), o, count); });
  o.max_new_tokens = INT64_MAX;
  usage_line([&] { generate(*m, *tokenizer, text_of(10), o, count); });
  o.max_new_tokens = 0;
  usage_line([&] { generate(*m, *tokenizer, text_of(most + 1), o, count); });
  EXPECT_EQ(pieces, 0);
}

// T10
TEST_F(GenerateTest, APaddedVocabularyNeverGivesATokenTheTokenizerDoesNotKnow) {
  const auto m = model(tokenizer->n_ids() + 300, 1);
  GenerateOptions o;
  o.sampling = {.temperature = 3, .top_k = 0};
  o.n_loops = 1;
  int64_t samples = 0;
  for (o.seed = 0; samples < 2000; ++o.seed) {
    o.max_new_tokens = 60;
    std::string text;
    const auto g = generate(*m, *tokenizer, "x", o, [&](std::string_view piece) { text += piece; });
    for (const int32_t id : g.ids) ASSERT_LT(id, tokenizer->n_ids());
    EXPECT_EQ(text, tokenizer->decode(g.ids));
    samples += static_cast<int64_t>(g.ids.size()) + 1;
  }
  for (const int32_t id : {static_cast<int32_t>(tokenizer->n_ids()), INT32_MAX, -1})
    EXPECT_EQ(tokenizer->token_bytes(id), "\xEF\xBF\xBD");
}

// G7
TEST_F(GenerateTest, IdsBeyondTheModelsVocabularyAreRefusedWithBothNumbers) {
  const auto m = model(260);
  const auto ids = tokenizer->encode("The river");
  const int32_t most = *std::max_element(ids.begin(), ids.end());
  ASSERT_GE(most, 260);
  const auto line = usage_line([&] { generate(*m, *tokenizer, "The river", {}); });
  EXPECT_NE(line.find(fmt::format("token {}", most)), std::string::npos) << line;
  EXPECT_NE(line.find("260"), std::string::npos) << line;
}

TEST_F(GenerateTest, UndefinedWeightsAreAnErrorAndNotAToken) {
  const auto m = model();
  m->parameters().values(0).fill_(std::nan(""));
  for (const double t : {0.0, 0.7}) {
    GenerateOptions o;
    o.sampling.temperature = t;
    try {
      generate(*m, *tokenizer, "The", o);
      ADD_FAILURE() << "no error";
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ExitCode::failed);
    }
  }
}

TEST_F(GenerateTest, SeveralPromptsGiveWhatEachGivesAlone) {
  const auto m = model();
  GenerateOptions o;
  o.max_new_tokens = 20;
  o.sampling = {.temperature = 0};
  std::vector<std::string> prompts;
  for (int i = 0; i < 19; ++i)
    prompts.push_back(std::string("The old river ").substr(0, static_cast<size_t>(i % 14) + 1));
  std::vector<std::string> texts(prompts.size());
  const auto all = generate_all(*m, *tokenizer, prompts, o, [&](size_t i, std::string_view p) { texts[i] += p; });
  ASSERT_EQ(all.size(), prompts.size());
  for (size_t i = 0; i < prompts.size(); ++i) {
    const auto alone = generate(*m, *tokenizer, prompts[i], o);
    EXPECT_EQ(all[i].ids, alone.ids) << i;
    EXPECT_EQ(all[i].text, alone.text);
    EXPECT_EQ(texts[i], alone.text);
    EXPECT_EQ(all[i].ended, alone.ended);
    EXPECT_EQ(all[i].prompt_tokens, alone.prompt_tokens);
  }
  o.sampling = {.temperature = 1.5, .top_k = 0};
  const auto drawn = generate_all(*m, *tokenizer, {"The", "The"}, o);
  EXPECT_NE(drawn[0].ids, drawn[1].ids) << "each text has random numbers of its own";
  EXPECT_EQ(drawn[0].ids, generate(*m, *tokenizer, "The", o).ids);
  EXPECT_EQ(drawn[1].ids, generate_all(*m, *tokenizer, {"The", "The"}, o)[1].ids);
}

TEST_F(GenerateTest, ScreeningTheVocabularyChangesNoText) {
  for (const auto weights : {at::kFloat, at::kBFloat16}) {
    const auto m = inference_model(tiny_model(tokenizer->n_ids() + 5), at::kCPU, weights);
    m->screens_from = 1;
    initialize(m->parameters(), m->config(), 5);
    for (const auto& [name, tensor] : m->parameters().named_values()) {
      if (tensor.dim() == 2) tensor.mul_(8);
    }
    m->parameters().refresh_compute();
    const std::vector<std::string> prompts = {"The old river", "A", "The third king finds"};
    int left_out = 0;
    for (const SamplingOptions sampling : {SamplingOptions{.temperature = 0},
                                           {.temperature = 0.7, .top_k = 3},
                                           {.temperature = 1.4, .top_k = 20, .top_p = 0.9},
                                           {.top_p = 0}}) {
      GenerateOptions o;
      o.max_new_tokens = 20;
      o.sampling = sampling;
      for (const uint64_t seed : {1, 2, 3, 4, 5}) {
        o.seed = seed;
        o.screen = true;
        EXPECT_TRUE(m->screens(tokenizer->n_ids(), 3));
        const auto some = generate_all(*m, *tokenizer, prompts, o);
        left_out += m->candidates() < tokenizer->n_ids();
        o.screen = false;
        const auto all = generate_all(*m, *tokenizer, prompts, o);
        for (size_t i = 0; i < prompts.size(); ++i) EXPECT_EQ(some[i].ids, all[i].ids) << seed;
        const auto alone = generate(*m, *tokenizer, prompts[1], o).ids;
        o.screen = true;
        EXPECT_EQ(generate(*m, *tokenizer, prompts[1], o).ids, alone) << seed;
      }
    }
    EXPECT_GT(left_out, 10) << "most runs must have had logits of some tokens alone";
    EXPECT_FALSE(m->screens(tokenizer->n_ids(), 0)) << "everything is wanted";
    EXPECT_FALSE(m->screens(tokenizer->n_ids(), tokenizer->n_ids()));
  }
}

TEST_F(GenerateTest, WeightsThatChangeAreScreenedAnew) {
  for (const auto weights : {at::kFloat, at::kBFloat16}) {
    const auto m = inference_model(tiny_model(tokenizer->n_ids()), at::kCPU, weights);
    m->screens_from = 1;
    GenerateOptions o;
    o.max_new_tokens = 20;
    o.sampling.temperature = 0;
    std::vector<std::vector<int32_t>> seen;
    for (const uint64_t seed : {5, 6}) {
      initialize(m->parameters(), m->config(), seed);
      for (const auto& [name, tensor] : m->parameters().named_values()) {
        if (tensor.dim() == 2) tensor.mul_(8);
      }
      o.screen = true;
      seen.push_back(generate(*m, *tokenizer, "The old river", o).ids);
      o.screen = false;
      EXPECT_EQ(seen.back(), generate(*m, *tokenizer, "The old river", o).ids) << seed;
    }
    EXPECT_NE(seen[0], seen[1]);
  }
}

TEST_F(GenerateTest, APromptInPiecesGivesTheSameText) {
  const auto m = model();
  GenerateOptions o;
  o.max_new_tokens = 12;
  o.sampling.temperature = 0;
  const auto whole = generate(*m, *tokenizer, "The silent king of the old river", o);
  for (o.prompt_chunk = 1; o.prompt_chunk < 9; ++o.prompt_chunk)
    EXPECT_EQ(generate(*m, *tokenizer, "The silent king of the old river", o).ids, whole.ids) << o.prompt_chunk;
  o.prompt_chunk = 0;
  usage_line([&] { generate(*m, *tokenizer, "The", o); });
}

TEST_F(GenerateTest, StopStringsEndTheTextBeforeThem) {
  const auto m = model();
  GenerateOptions o;
  o.max_new_tokens = 40;
  o.sampling.temperature = 0;
  const auto whole = generate(*m, *tokenizer, "The old", o);
  ASSERT_GT(whole.text.size(), 8U);
  for (const size_t at : {size_t{0}, size_t{3}, whole.text.size() / 2}) {
    const std::string stop = whole.text.substr(at, 3);
    o.stop = {"never in this text", stop};
    std::string streamed;
    const auto g = generate(*m, *tokenizer, "The old", o, [&](std::string_view piece) { streamed += piece; });
    EXPECT_EQ(g.text, whole.text.substr(0, whole.text.find(stop)));
    EXPECT_EQ(streamed, g.text);
    EXPECT_EQ(g.stopped_by, stop);
    EXPECT_FALSE(g.ended);
  }
  o.stop = {"never in this text"};
  EXPECT_EQ(generate(*m, *tokenizer, "The old", o).text, whole.text) << "what was held back comes in the end";
  o.stop = {""};
  const auto line = usage_line([&] { generate(*m, *tokenizer, "The old", o); });
  EXPECT_NE(line.find("stop string is empty"), std::string::npos) << line;
}

TEST_F(GenerateTest, AdaptiveLoopsAreCountedAndStayWithinAll) {
  const auto m = model();
  for (const auto& [name, tensor] : m->parameters().named_values()) {
    if (name == "recurrent.act.halt.bias") tensor.fill_(8);  // everything halts at once
  }
  GenerateOptions o;
  o.max_new_tokens = 10;
  o.sampling.temperature = 0;
  EXPECT_DOUBLE_EQ(generate(*m, *tokenizer, "The", o).mean_loops, static_cast<double>(m->config().max_loop_iters));
  o.adaptive = true;
  const auto g = generate(*m, *tokenizer, "The", o);
  ASSERT_GT(g.ids.size(), 1U);
  EXPECT_LT(g.mean_loops, static_cast<double>(m->config().max_loop_iters));
  EXPECT_GE(g.mean_loops, 1);
}

TEST(TextStream, HoldsBackWhatMayBecomeAStopString) {
  std::vector<std::string> pieces;
  TextStream stream({"END", "ENOUGH"}, [&](std::string_view piece) { pieces.emplace_back(piece); });
  EXPECT_TRUE(stream.add("aE"));
  EXPECT_TRUE(stream.add("N"));
  EXPECT_TRUE(stream.add("xEEN"));
  EXPECT_FALSE(stream.add("OUGH more"));
  EXPECT_FALSE(stream.add("nothing"));
  stream.finish();
  EXPECT_EQ(pieces, (std::vector<std::string>{"a", "ENxE"}));
  EXPECT_EQ(stream.stopped_by(), "ENOUGH");
}

TEST(IncompleteUtf8, CountsTheBytesOfACharacterThatIsNotWhole) {
  const std::string text = "a\u00e9\u65e5\U0001F600";
  const std::vector<size_t> expected = {0, 0, 1, 0, 1, 2, 0, 1, 2, 3, 0};
  for (size_t n = 0; n <= text.size(); ++n) EXPECT_EQ(incomplete_utf8_tail(text.substr(0, n)), expected[n]) << n;
  // What can never become whole is not waited for.
  for (const char* bytes : {"\x80", "a\x80\x80\x80\x80", "\xFF", "\xC0", "\xC1", "\xF8", "\xC3\x80"})
    EXPECT_EQ(incomplete_utf8_tail(bytes), 0U) << bytes;
}

// A byte-level model that has learnt a text of two-, three- and four-byte characters by heart.
TEST_F(GenerateTest, TextComesInWholeCharacters) {
  const Tokenizer bytes = small_tokenizer(generated_documents(2'000), 257);
  const std::string cycle = "\u00e9\u65e5\U0001F600";
  const ModelConfig config = tiny_model(257);
  Model m(config, at::kCPU, at::kFloat, at::kFloat, true);
  initialize(m.parameters(), config, 1);
  AdamW optimizer(m.parameters(), {});
  TrainStep step(m, optimizer);
  std::vector<int64_t> ids;
  for (int i = 0; i < 37; ++i) ids.push_back(static_cast<unsigned char>(cycle[static_cast<size_t>(i) % cycle.size()]));
  const at::Tensor row = at::tensor(ids, at::kLong).unsqueeze(0);
  double loss = 9;
  for (int i = 0; i < 300 && loss > 0.05; ++i) {
    step.begin({.clip = 1, .n_loops = 1, .loss_tokens = 36});
    step.micro_step(row.narrow(1, 0, 36).contiguous(), row.narrow(1, 1, 36).contiguous());
    loss = step.finish(1e-2).loss;
  }
  ASSERT_LT(loss, 0.5) << "the text was not learnt";
  GenerateOptions o;
  o.max_new_tokens = 25;  // ends within a character
  o.n_loops = 1;
  o.sampling.temperature = 0;
  std::vector<std::string> pieces;
  const auto g = generate(m, bytes, cycle, o, [&](std::string_view piece) { pieces.emplace_back(piece); });
  std::string text;
  for (size_t i = 0; i < pieces.size(); ++i) {
    text += pieces[i];
    if (i + 1 < pieces.size()) {
      EXPECT_TRUE(pieces[i] == "\u00e9" || pieces[i] == "\u65e5" || pieces[i] == "\U0001F600") << pieces[i];
    }
  }
  EXPECT_EQ(text, bytes.decode(g.ids)) << "what is incomplete at the end comes as it is";
  EXPECT_EQ(text.substr(0, 18), cycle + cycle);
}

}  // namespace
}  // namespace mythos
