#include "infer/evaluate.h"

#include "../support/tiny.h"
#include "base/error.h"
#include "config/run_config.h"

#include <ATen/Parallel.h>

#include <cmath>

namespace mythos {
namespace {

class EvaluateTest : public ::testing::Test {
 protected:
  EvaluateTest() {
    at::set_num_threads(1);
    documents_ = testing::generated_documents(1'500, 3);
    config_ = parse_config(testing::tiny_model_toml, "tiny", "tiny").model;
    config_.vocab_size = tokenizer_.n_ids();
    model_ = std::make_unique<Model>(config_, at::kCPU, at::kFloat, at::kFloat, false);
    initialize(model_->parameters(), config_, 2);
    for (const auto& [name, tensor] : model_->parameters().named_values()) {
      if (tensor.dim() == 2) tensor.mul_(6);
    }
  }

  struct Sums {
    double nll = 0, hits = 0;
    int64_t tokens = 0;
    int64_t bytes = 0;
    // By document: its tokens, their likelihood, hits and bytes.
    std::vector<double> tokens_of, nll_of, hits_of, bytes_of;
  };
  // Window by window, one at a time, over the softmax of all logits in double.
  Sums straight(const EvaluationOptions& o) {
    const at::NoGradGuard no_grad;
    std::vector<int64_t> ids;
    std::vector<size_t> document;
    const auto end = tokenizer_.end_of_text().value();
    if (o.document_separator) ids.push_back(end);
    document.resize(ids.size());
    for (size_t d = 0; d < documents_.size(); ++d) {
      for (const int32_t id : tokenizer_.encode(documents_[d])) ids.push_back(id);
      if (o.document_separator) ids.push_back(end);
      document.resize(ids.size(), d);
    }
    Sums s;
    for (auto* v : {&s.tokens_of, &s.nll_of, &s.hits_of, &s.bytes_of}) v->resize(documents_.size());
    for (size_t begin = 0; begin + 1 < ids.size(); begin += static_cast<size_t>(o.seq_len)) {
      const size_t n = std::min(static_cast<size_t>(o.seq_len), ids.size() - 1 - begin);
      const at::Tensor input = at::tensor(std::vector<int64_t>(ids.begin() + static_cast<ptrdiff_t>(begin),
                                                               ids.begin() + static_cast<ptrdiff_t>(begin + n)),
                                          at::kLong)
                                   .unsqueeze(0);
      const at::Tensor p = model_->logits(model_->hidden(input, {.n_loops = o.n_loops})).to(at::kDouble).softmax(-1);
      s.tokens += static_cast<int64_t>(n);
      for (size_t i = begin + 1; i <= begin + n; ++i) {
        const auto id = static_cast<int32_t>(ids[i]);
        const at::Tensor here = p[0][static_cast<int64_t>(i - begin) - 1];
        const double nll = -std::log(here[id].item<double>());
        const double hit = here.argmax().item<int64_t>() == id ? 1 : 0;
        const int64_t bytes = id == end ? 2 : static_cast<int64_t>(tokenizer_.token_bytes(id).size());
        s.nll += nll;
        s.hits += hit;
        s.bytes += bytes;
        const size_t d = document[i];
        s.tokens_of[d] += 1;
        s.nll_of[d] += nll;
        s.hits_of[d] += hit;
        s.bytes_of[d] += static_cast<double>(bytes);
      }
    }
    return s;
  }

  Tokenizer tokenizer_ = testing::small_tokenizer(testing::generated_documents(20'000));
  std::vector<std::string> documents_;
  ModelConfig config_;
  std::unique_ptr<Model> model_;
};

TEST_F(EvaluateTest, EqualsTheSoftmaxOfAllLogitsWindowByWindow) {
  for (const bool separator : {false, true}) {
    for (const int64_t loops : {1, 3, 6}) {
      const EvaluationOptions o{.seq_len = 23, .batch = 4, .document_separator = separator, .n_loops = loops};
      const Evaluation e = evaluate(*model_, tokenizer_, documents_, o);
      const Sums s = straight(o);
      EXPECT_NE(s.tokens % o.seq_len, 0) << "the last window must be a short one";
      EXPECT_EQ(e.tokens, s.tokens);
      EXPECT_EQ(e.bytes, s.bytes);
      EXPECT_EQ(e.loops, loops);
      EXPECT_EQ(e.documents, static_cast<int64_t>(documents_.size()));
      EXPECT_NEAR(e.loss, s.nll / static_cast<double>(s.tokens), 2e-6);
      EXPECT_NEAR(e.perplexity(), std::exp(e.loss), 1e-9);
      EXPECT_NEAR(e.bits_per_byte(), s.nll / std::log(2.0) / static_cast<double>(s.bytes), 2e-6);
      EXPECT_NEAR(e.accuracy, s.hits / static_cast<double>(s.tokens), 1e-12);
      EXPECT_FALSE(e.by_window);
      EXPECT_EQ(e.clusters, static_cast<int64_t>(documents_.size()));
      // Linearised, by document.
      const auto error = [](const std::vector<double>& y, const std::vector<double>& x) {
        double sum_y = 0, sum_x = 0, squares = 0;
        for (size_t d = 0; d < x.size(); ++d) {
          sum_y += y[d];
          sum_x += x[d];
        }
        for (size_t d = 0; d < x.size(); ++d) squares += std::pow(y[d] - sum_y / sum_x * x[d], 2);
        const auto n = static_cast<double>(x.size());
        return std::sqrt(n / (n - 1) * squares) / sum_x;
      };
      EXPECT_NEAR(e.loss_error.value(), error(s.nll_of, s.tokens_of), 2e-6);
      EXPECT_NEAR(e.bits_per_byte_error.value(), error(s.nll_of, s.bytes_of) / std::log(2.0), 2e-6);
      EXPECT_NEAR(e.accuracy_error.value(), error(s.hits_of, s.tokens_of), 1e-9);
      EXPECT_NEAR(e.perplexity_error().value(), e.perplexity() * e.loss_error.value(), 1e-9);
    }
  }
}

TEST_F(EvaluateTest, ASweepIsWhatEachCountGivesAlone) {
  const EvaluationOptions o{.seq_len = 23, .batch = 4, .document_separator = true, .n_loops = 3};
  const std::vector<int64_t> counts = {5, 1, 2};
  double last_share = 0;
  const LoopSweep sweep =
      sweep_loops(*model_, tokenizer_, documents_, counts, o, [&](double share) { last_share = share; });
  EXPECT_EQ(last_share, 1);
  EXPECT_EQ(sweep.trained.loops, 3);
  EXPECT_EQ(sweep.trained.difference, 0);
  EXPECT_EQ(sweep.trained.difference_error, 0);
  ASSERT_EQ(sweep.by_loops.size(), 3U);
  for (const Evaluation& e : sweep.by_loops) {
    EvaluationOptions alone = o;
    alone.n_loops = e.loops;
    const Evaluation one = evaluate(*model_, tokenizer_, documents_, alone);
    EXPECT_EQ(e.loss, one.loss) << e.loops;
    EXPECT_EQ(e.loss_error, one.loss_error);
    EXPECT_EQ(e.accuracy, one.accuracy);
    EXPECT_EQ(e.mean_loops, one.mean_loops);
    EXPECT_EQ(e.never_halted, one.never_halted);
    EXPECT_NEAR(e.difference, one.loss - sweep.trained.loss, 1e-12);
    EXPECT_NE(e.difference, 0);
    EXPECT_LT(e.difference_error.value(), e.loss_error.value()) << "the same text, so it cancels";
  }
  EXPECT_EQ(sweep.by_loops[0].loops, 1);
  EXPECT_EQ(sweep.by_loops[2].loops, 5);
  EXPECT_EQ(sweep.loops.halted_by_loop.size(), 5U);
  EXPECT_EQ(sweep.loops.experts_by_loop.size(), 5U);
}

TEST_F(EvaluateTest, OneDocumentHasItsErrorByWindow) {
  documents_ = {testing::joined(documents_)};
  const Evaluation e = evaluate(*model_, tokenizer_, documents_, {.seq_len = 16});
  EXPECT_TRUE(e.by_window);
  EXPECT_EQ(e.documents, 1);
  EXPECT_EQ(e.clusters, (e.tokens + 15) / 16);
  EXPECT_GT(e.loss_error.value(), 0);
  const Evaluation one = evaluate(*model_, tokenizer_, documents_, {.seq_len = 16, .max_tokens = 16});
  EXPECT_FALSE(one.loss_error) << "of one window nothing is known";
  EXPECT_TRUE(to_json(one)["loss_standard_error"].is_null());
}

TEST_F(EvaluateTest, DocumentsAreThoseThatWereReached) {
  const auto first = static_cast<int64_t>(tokenizer_.encode(documents_[0]).size());
  const Evaluation e =
      evaluate(*model_, tokenizer_, documents_, {.seq_len = 16, .document_separator = true, .max_tokens = first + 2});
  EXPECT_EQ(e.documents, 2);
  EXPECT_EQ(e.clusters, 2);
}

TEST_F(EvaluateTest, TokensOutsideTheVocabularyAreAUsageError) {
  config_.vocab_size = 260;
  Model small(config_, at::kCPU, at::kFloat, at::kFloat, false);
  try {
    evaluate(small, tokenizer_, documents_, {.seq_len = 16});
    ADD_FAILURE() << "no error";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ExitCode::usage);
    EXPECT_NE(std::string(e.what()).find("260"), std::string::npos) << e.what();
  }
}

TEST_F(EvaluateTest, SeparatorsMakeEveryTokenOfTheTextCount) {
  int64_t tokens = 0, bytes = 0;
  for (const auto& d : documents_) {
    tokens += static_cast<int64_t>(tokenizer_.encode(d).size());
    bytes += static_cast<int64_t>(d.size());
  }
  const auto n = static_cast<int64_t>(documents_.size());
  const Evaluation with = evaluate(*model_, tokenizer_, documents_, {.seq_len = 24, .document_separator = true});
  EXPECT_EQ(with.tokens, tokens + n);
  EXPECT_EQ(with.bytes, bytes + 2 * n);
  const Evaluation without = evaluate(*model_, tokenizer_, documents_, {.seq_len = 24});
  EXPECT_EQ(without.tokens, tokens - 1) << "all but the first, which nothing predicts";
}

TEST_F(EvaluateTest, DoesNotDependOnTheBatch) {
  const Evaluation one = evaluate(*model_, tokenizer_, documents_, {.seq_len = 16, .batch = 1});
  for (const int64_t batch : {2, 3, 7, 1000}) {
    const Evaluation many = evaluate(*model_, tokenizer_, documents_, {.seq_len = 16, .batch = batch});
    EXPECT_EQ(many.tokens, one.tokens);
    EXPECT_EQ(many.bytes, one.bytes);
    EXPECT_NEAR(many.loss, one.loss, 1e-6) << batch;
    EXPECT_NEAR(many.loss_error.value(), one.loss_error.value(), 1e-6) << batch;
    EXPECT_EQ(many.accuracy, one.accuracy) << batch;
    EXPECT_NEAR(many.mean_loops, one.mean_loops, 1e-9) << batch;
  }
}

TEST_F(EvaluateTest, HaltingIsCountedPerPosition) {
  // No position ever halts: p is about 0 everywhere.
  for (const auto& [name, tensor] : model_->parameters().named_values()) {
    if (name == "recurrent.act.halt.weight") tensor.zero_();
    if (name == "recurrent.act.halt.bias") tensor.fill_(-20);
  }
  const Evaluation never = evaluate(*model_, tokenizer_, documents_, {.seq_len = 16, .n_loops = 3});
  EXPECT_EQ(never.never_halted, 1);
  EXPECT_EQ(never.mean_loops, 3);
  // All of them do at once, then at the second loop.
  for (const auto& [name, tensor] : model_->parameters().named_values()) {
    if (name == "recurrent.act.halt.bias") tensor.fill_(20);
  }
  const Evaluation at_once = evaluate(*model_, tokenizer_, documents_, {.seq_len = 16, .n_loops = 3});
  EXPECT_EQ(at_once.never_halted, 0);
  EXPECT_EQ(at_once.mean_loops, 1);
  for (const auto& [name, tensor] : model_->parameters().named_values()) {
    if (name == "recurrent.act.halt.bias") tensor.fill_(0.5);
  }
  EXPECT_EQ(evaluate(*model_, tokenizer_, documents_, {.seq_len = 16, .n_loops = 3}).mean_loops, 2);
}

TEST_F(EvaluateTest, StopsAboutWhereItIsAsked) {
  const Evaluation e = evaluate(*model_, tokenizer_, documents_, {.seq_len = 16, .batch = 2, .max_tokens = 50});
  EXPECT_EQ(e.tokens, 50);
  std::vector<double> shares;
  evaluate(*model_, tokenizer_, documents_, {.seq_len = 16, .batch = 2}, [&](double s) { shares.push_back(s); });
  EXPECT_TRUE(std::is_sorted(shares.begin(), shares.end()));
  EXPECT_EQ(shares.back(), 1);
}

TEST_F(EvaluateTest, WindowsAreNoLongerThanTheModelsPositions) {
  const Evaluation a = evaluate(*model_, tokenizer_, documents_, {.seq_len = 5000});
  const Evaluation b = evaluate(*model_, tokenizer_, documents_, {.seq_len = config_.max_seq_len});
  EXPECT_EQ(a.loss, b.loss);
}

TEST_F(EvaluateTest, TextThatPredictsNothingIsAUsageError) {
  for (const std::vector<std::string>& none : {std::vector<std::string>{}, {""}, {"a"}}) {
    try {
      evaluate(*model_, tokenizer_, none, {.seq_len = 16});
      ADD_FAILURE() << "no error";
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ExitCode::usage);
    }
  }
}

TEST_F(EvaluateTest, UndefinedWeightsAreAnError) {
  model_->parameters().values(0).fill_(std::nan(""));
  EXPECT_THROW(evaluate(*model_, tokenizer_, documents_, {.seq_len = 16}), Error);
}

}  // namespace
}  // namespace mythos
