// Multiple-choice tasks: what is scored, how, and what is refused.
#include "../support/tiny.h"
#include "base/error.h"
#include "config/run_config.h"
#include "infer/choice_scores.h"
#include "model/model.h"

#include <ATen/Parallel.h>

#include <cmath>

namespace mythos {
namespace {

class ChoiceTest : public ::testing::Test {
 protected:
  ChoiceTest() {
    at::set_num_threads(1);
    config_ = parse_config(testing::tiny_model_toml, "tiny", "tiny").model;
    config_.vocab_size = tokenizer_.n_ids();
    model_ = std::make_unique<Model>(config_, at::kCPU, at::kDouble, at::kDouble, false);
    initialize(model_->parameters(), config_, 2);
    for (const auto& [name, tensor] : model_->parameters().named_values()) {
      if (tensor.dim() == 2) tensor.mul_(6);
    }
  }

  struct Question {
    std::string question;
    std::vector<std::string> choices;
    size_t answer;
  };
  std::filesystem::path file(const std::string& text) {
    testing::write_text(folder_ / "task.jsonl", text);
    return folder_ / "task.jsonl";
  }
  ChoiceTask task_of(const std::vector<Question>& questions) {
    std::string text;
    for (const auto& q : questions) {
      text += Json{{"question", q.question}, {"choices", q.choices}, {"answer", q.answer}}.dump() + "\n";
    }
    return read_choice_task(file(text), tokenizer_, config_);
  }
  // Questions of many lengths, one longer than the model's 64 positions.
  static std::vector<Question> questions() {
    std::vector<Question> out;
    const auto documents = testing::generated_documents(4'000, 11);
    for (size_t i = 0; i + 4 < documents.size() && out.size() < 24; i += 4) {
      const auto piece = [&](size_t d, size_t n) { return documents[i + d].substr(0, n); };
      out.push_back({piece(0, 3 + 5 * (i % 9)), {piece(1, 4 + i % 7), piece(2, 9), piece(3, 2 + i % 3)}, i % 3});
    }
    out.push_back({testing::joined({documents.begin(), documents.begin() + 6}), {"The old river", "a stone"}, 1});
    out.push_back({"", {"The old", "caf\u00e9 caf\u00e9"}, 0});
    out.push_back({"The bird finds  ", {"the lamp", "it", "the ship, 3 times.", "x"}, 2});
    return out;
  }
  // One sequence at a time, from the logits of all positions.
  double straight(const std::string& question, const std::string& choice, int64_t loops) {
    const at::NoGradGuard no_grad;
    std::string stripped = question;
    while (!stripped.empty() && (stripped.back() == ' ' || stripped.back() == '\n')) stripped.pop_back();
    std::vector<int32_t> ids = tokenizer_.encode(stripped);
    const auto whole = tokenizer_.encode(question + " " + choice);
    const std::vector<int32_t> continuation(whole.begin() + static_cast<ptrdiff_t>(ids.size()), whole.end());
    if (ids.empty()) ids = {tokenizer_.end_of_text().value()};
    ids.insert(ids.end(), continuation.begin(), continuation.end());
    if (ids.size() > 65) ids.erase(ids.begin(), ids.end() - 65);
    const std::vector<int64_t> input(ids.begin(), ids.end() - 1);
    const at::Tensor p = model_->logits(model_->hidden(at::tensor(input, at::kLong).unsqueeze(0), {.n_loops = loops}))
                             .squeeze(0)
                             .log_softmax(-1);
    double sum = 0;
    for (size_t i = ids.size() - continuation.size(); i < ids.size(); ++i)
      sum += p[static_cast<int64_t>(i) - 1][ids[i]].item<double>();
    return sum;
  }
  void refused(const std::string& text, const std::string& says) {
    try {
      read_choice_task(file(text), tokenizer_, config_);
      ADD_FAILURE() << "taken: " << text;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ExitCode::usage) << e.line();
      EXPECT_NE(std::string(e.what()).find(says), std::string::npos) << e.line();
      EXPECT_NE(std::string(e.what()).find("task.jsonl"), std::string::npos) << e.line();
    }
  }

  testing::TemporaryFolder folder_;
  Tokenizer tokenizer_ = testing::small_tokenizer(testing::generated_documents(20'000));
  ModelConfig config_;
  std::unique_ptr<Model> model_;
};

TEST_F(ChoiceTest, LikelihoodsAreThoseOfOneSequenceAtATime) {
  const auto asked = questions();
  const ChoiceTask task = task_of(asked);
  ASSERT_EQ(task.questions.size(), asked.size());
  const std::vector<int64_t> counts = {1, 3, 5};
  for (const int64_t batch : {1, 70, 100'000}) {
    const auto all = choice_likelihoods(*model_, task, counts, batch);
    for (size_t c = 0; c < counts.size(); ++c) {
      for (size_t q = 0; q < asked.size(); ++q) {
        for (size_t i = 0; i < asked[q].choices.size(); ++i) {
          EXPECT_NEAR(all[c][q][i], straight(asked[q].question, asked[q].choices[i], counts[c]), 1e-10)
              << "batch " << batch << ", question " << q << ", choice " << i << ", " << counts[c] << " loops";
        }
      }
    }
  }
}

TEST_F(ChoiceTest, AccuraciesFollowFromTheLikelihoods) {
  const auto asked = questions();
  const ChoiceTask task = task_of(asked);
  const std::vector<int64_t> counts = {5, 1};
  double share = 0;
  const ChoiceResult r = score_choices(*model_, task, counts, 3, 512, [&](double s) { share = s; });
  EXPECT_EQ(share, 1);
  EXPECT_EQ(r.questions, static_cast<int64_t>(asked.size()));
  EXPECT_EQ(r.cut, 1);
  EXPECT_EQ(r.trained.loops, 3);
  ASSERT_EQ(r.by_loops.size(), 2U);
  EXPECT_EQ(r.by_loops[0].loops, 1);
  const auto n = static_cast<double>(asked.size());
  double right = 0, by_characters = 0, by_bytes = 0;
  for (const auto& q : asked) {
    std::vector<double> plain, characters, bytes;
    for (const auto& c : q.choices) {
      const double sum = straight(q.question, c, 3);
      const auto wide = std::count(c.begin(), c.end(), '\xC3');  // the first of the two bytes of an accent
      plain.push_back(sum);
      characters.push_back(sum / static_cast<double>(static_cast<ptrdiff_t>(c.size()) - wide));
      bytes.push_back(sum / static_cast<double>(c.size()));
    }
    const auto is_right = [&](const std::vector<double>& v) {
      return std::max_element(v.begin(), v.end()) - v.begin() == static_cast<ptrdiff_t>(q.answer) ? 1 : 0;
    };
    right += is_right(plain);
    by_characters += is_right(characters);
    by_bytes += is_right(bytes);
  }
  EXPECT_DOUBLE_EQ(r.trained.acc, right / n);
  EXPECT_DOUBLE_EQ(r.trained.acc_norm, by_characters / n);
  EXPECT_DOUBLE_EQ(r.trained.acc_bytes, by_bytes / n);
  EXPECT_NEAR(r.trained.acc_error.value(), std::sqrt(right / n * (1 - right / n) / (n - 1)), 1e-12);
  const Json json = to_json(r);
  EXPECT_EQ(json["acc"], r.trained.acc);
  EXPECT_EQ(json["by_loops"].size(), 2U);
}

TEST_F(ChoiceTest, LengthsAreWhatTheNamesSay) {
  // Likelihoods -4 and -6: the first wins plain and by bytes (4 to 8), by characters (4 to 4) too; -4 against -5 of 8
  // bytes in 4 characters: by bytes the second wins, by characters the first.
  const ChoiceTask task = task_of({{"x", {"abcd", "\u00e9\u00e9\u00e9\u00e9"}, 1}, {"x", {"abcd", "abcdefgh"}, 1}});
  const ChoiceAccuracy a = choice_accuracy(task, {{-4, -5}, {-4, -5}}, 2);
  EXPECT_EQ(a.acc, 0);
  EXPECT_EQ(a.acc_norm, 0.5);
  EXPECT_EQ(a.acc_bytes, 1);
  EXPECT_EQ(a.loops, 2);
  const ChoiceAccuracy tie = choice_accuracy(task, {{-4, -4}, {-9, -9}}, 2);
  EXPECT_EQ(tie.acc, 0) << "of equal ones the first counts";
}

TEST_F(ChoiceTest, BlanksAtTheEndOfTheQuestionGoToTheChoice) {
  const auto bytes_as_ids = [](std::string_view text) { return std::vector<int32_t>(text.begin(), text.end()); };
  const TokenPair pair = encode_pair(bytes_as_ids, "ab \n", " c");
  EXPECT_EQ(pair.context, (std::vector<int32_t>{'a', 'b'}));
  EXPECT_EQ(pair.continuation, (std::vector<int32_t>{' ', '\n', ' ', 'c'}));
  EXPECT_EQ(encode_pair(bytes_as_ids, " ", " c").context.size(), 0U);
  EXPECT_EQ(without_trailing_blanks("a\u00a0\u2003\u3000\u0085\t\x1f "), "a");
  EXPECT_EQ(without_trailing_blanks("caf\u00e9"), "caf\u00e9");
  EXPECT_EQ(without_trailing_blanks("\xA0"), "\xA0") << "a byte that is no character";
  EXPECT_EQ(without_trailing_blanks(" \n"), "");
  // Whatever the tokenizer makes of both together, tokens are counted off.
  const auto merging = [](std::string_view text) { return std::vector<int32_t>((text.size() + 3) / 4, 7); };
  EXPECT_EQ(encode_pair(merging, "abc", "d").continuation.size(), 0U);
}

TEST_F(ChoiceTest, LongQuestionsAreCutAtTheLeft) {
  const auto documents = testing::generated_documents(2'000, 4);
  const ChoiceTask task = task_of({{testing::joined(documents), {"the ship", "it"}, 0}});
  const ChoiceRow& row = task.questions[0].choices[0];
  EXPECT_TRUE(row.cut);
  EXPECT_EQ(row.ids.size(), 65U);
  EXPECT_EQ(row.bytes, 8);
  EXPECT_EQ(row.characters, 8);
  const std::vector<int32_t> end(row.ids.end() - row.scored, row.ids.end());
  EXPECT_TRUE(tokenizer_.decode(end).ends_with(" the ship"));
}

TEST_F(ChoiceTest, BadFilesAreOneSentenceWithTheLine) {
  const std::string good = R"({"question": "a", "choices": ["b", "c"], "answer": 1, "more": [1]})";
  EXPECT_EQ(read_choice_task(file("\n" + good + "\r\n  \n" + good), tokenizer_, config_).questions.size(), 2U);
  EXPECT_EQ(read_choice_task(file(good + "\n" + good + "\n{"), tokenizer_, config_, 2).questions.size(), 2U);
  refused("", "no question");
  refused("\n  \n", "no question");
  refused(good + "\n\n{\"question\": ", "task.jsonl:3 is not valid JSON");
  refused(good + "\n[1]", "task.jsonl:2: not a JSON object");
  refused(R"({"choices": ["b", "c"], "answer": 1})", "task.jsonl:1: no key 'question'");
  refused(R"({"question": "a", "answer": 1})", "no key 'choices'");
  refused(R"({"question": "a", "choices": ["b", "c"]})", "no key 'answer'");
  refused(R"({"question": 1, "choices": ["b", "c"], "answer": 1})", "'question' is not a string");
  refused(R"({"question": "a", "choices": "bc", "answer": 1})", "'choices' is not a list of strings");
  refused(R"({"question": "a", "choices": ["b", 2], "answer": 1})", "'choices' is not a list of strings");
  refused(R"({"question": "a", "choices": ["b"], "answer": 0})", "'choices' has 1, at least 2");
  refused(R"({"question": "a", "choices": [], "answer": 0})", "'choices' has 0");
  refused(R"({"question": "a", "choices": ["b", "c"], "answer": 2})", "'answer' is 2, and there are 2 choices");
  refused(R"({"question": "a", "choices": ["b", "c"], "answer": -1})", "'answer' is -1");
  refused(R"({"question": "a", "choices": ["b", "c"], "answer": 18446744073709551615})",
          "'answer' is 18446744073709551615");
  refused(R"({"question": "a", "choices": ["b", "c"], "answer": "1"})", "'answer' is not a whole number");
  refused(R"({"question": "a", "choices": ["b", "c"], "answer": 0.5})", "'answer' is not a whole number");
  refused(R"({"question": "a", "choices": ["b", "c"], "answer": true})", "'answer' is not a whole number");
  refused(R"({"question": "a", "choices": ["b", ""], "answer": 0})", "choice 1 is empty");
  refused(R"({"question": "a", "choices": ["b", ")" + std::string(400, '7') + R"("], "answer": 0})", "choice 1 has");
  refused(std::string(2000, '['), "task.jsonl:1 has JSON nested deeper");
  EXPECT_THROW(read_choice_task(folder_ / "none.jsonl", tokenizer_, config_), Error);
  config_.vocab_size = 300;
  refused(R"({"question": "The old river finds the stone", "choices": ["The third", "the ship"], "answer": 0})",
          "vocabulary has 300");
}

TEST_F(ChoiceTest, DamagedWeightsAreAnError) {
  const ChoiceTask task = task_of({{"a", {"b", "c"}, 0}});
  model_->parameters().values(0).fill_(std::nan(""));
  EXPECT_THROW(choice_likelihoods(*model_, task, std::vector<int64_t>{1}, 100), Error);
}

}  // namespace
}  // namespace mythos
