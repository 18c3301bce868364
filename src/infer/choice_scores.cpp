#include "infer/choice_scores.h"

#include "base/error.h"
#include "infer/clustered.h"
#include "infer/evaluate.h"
#include "infer/token_scores.h"

#include <algorithm>
#include <cmath>

namespace mythos {
namespace {

struct Row {
  const ChoiceRow* row;
  double* likelihood;  // of the first count; that of the next is `stride` further
  [[nodiscard]] int64_t length() const { return static_cast<int64_t>(row->ids.size()) - 1; }
};

// The rows from `begin` on that are computed together: sorted by falling length, so that the first one is the longest.
size_t batch_end(const std::vector<Row>& rows, size_t begin, int64_t batch_tokens) {
  const int64_t longest = rows[begin].length();
  size_t end = begin + 1;
  while (end < rows.size() && longest * static_cast<int64_t>(end - begin + 1) <= batch_tokens &&
         rows[end].length() >= longest - std::max<int64_t>(4, longest / 8)) {
    ++end;
  }
  return end;
}

}  // namespace

std::vector<Likelihoods> choice_likelihoods(Model& model, const ChoiceTask& task, std::span<const int64_t> counts,
                                            int64_t batch_tokens, const std::function<void(double)>& progress) {
  size_t n_rows = 0;
  for (const auto& q : task.questions) n_rows += q.choices.size();
  std::vector<double> sums(n_rows * counts.size(), 0);
  std::vector<Row> rows;
  for (const auto& q : task.questions) {
    for (const auto& c : q.choices) rows.push_back({&c, &sums[rows.size()]});
  }
  std::stable_sort(rows.begin(), rows.end(), [](const Row& a, const Row& b) { return a.length() > b.length(); });

  const at::Device device = model.parameters().device();
  for (size_t begin = 0; begin < rows.size();) {
    const size_t end = batch_end(rows, begin, batch_tokens);
    const std::span<const Row> batch(&rows[begin], end - begin);
    const int64_t length = batch.front().length();
    const at::Tensor ids = at::zeros({static_cast<int64_t>(batch.size()), length}, at::kLong);
    std::vector<int64_t> places, wanted;
    for (size_t r = 0; r < batch.size(); ++r) {
      const auto& row = *batch[r].row;
      const int64_t first = static_cast<int64_t>(r) * length;
      std::copy(row.ids.begin(), row.ids.end() - 1, ids.mutable_data_ptr<int64_t>() + first);
      for (int64_t i = batch[r].length() - row.scored; i < batch[r].length(); ++i) {
        places.push_back(first + i);
        wanted.push_back(row.ids[static_cast<size_t>(i) + 1]);
      }
    }
    const at::Tensor at_places = at::tensor(places, at::kLong).to(device);
    const at::Tensor targets = at::tensor(wanted, at::kLong).to(device);
    const auto take = [&](size_t count, const at::Tensor& hidden) {
      const TokenScores scores = score_tokens(model, hidden.flatten(0, 1).index_select(0, at_places), targets);
      const double* nll = scores.nll.const_data_ptr<double>();
      for (const Row& row : batch) {
        double& sum = row.likelihood[count * n_rows];
        for (int64_t i = 0; i < row.row->scored; ++i) sum -= *nll++;
        if (!std::isfinite(sum))
          throw failure(fmt::format("a likelihood in {} is not a number", task.file),
                        "the model's weights are damaged");
      }
    };
    model.hidden_by_loops(ids.to(device), counts, take);
    begin = end;
    if (progress) progress(static_cast<double>(begin) / static_cast<double>(rows.size()));
  }

  std::vector<Likelihoods> out(counts.size());
  for (size_t count = 0; count < counts.size(); ++count) {
    const double* next = sums.data() + count * n_rows;
    for (const auto& q : task.questions) {
      out[count].emplace_back(next, next + q.choices.size());
      next += q.choices.size();
    }
  }
  return out;
}

ChoiceAccuracy choice_accuracy(const ChoiceTask& task, const Likelihoods& likelihoods, int64_t loops) {
  ChoiceAccuracy a;
  a.loops = loops;
  const auto n = static_cast<double>(task.questions.size());
  for (size_t q = 0; q < task.questions.size(); ++q) {
    const ChoiceQuestion& question = task.questions[q];
    const auto right = [&](const auto& length_of) {
      std::vector<double> score = likelihoods[q];
      for (size_t i = 0; i < score.size(); ++i) score[i] /= length_of(question.choices[i]);
      const auto best = std::max_element(score.begin(), score.end()) - score.begin();
      return static_cast<size_t>(best) == question.answer ? 1.0 : 0.0;
    };
    a.acc += right([](const ChoiceRow&) { return 1.0; });
    a.acc_norm += right([](const ChoiceRow& c) { return static_cast<double>(c.characters); });
    a.acc_bytes += right([](const ChoiceRow& c) { return static_cast<double>(c.bytes); });
  }
  for (double* const hits : {&a.acc, &a.acc_norm, &a.acc_bytes}) *hits /= n;
  a.acc_error = share_error(a.acc, n);
  a.acc_norm_error = share_error(a.acc_norm, n);
  a.acc_bytes_error = share_error(a.acc_bytes, n);
  return a;
}

ChoiceResult score_choices(Model& model, const ChoiceTask& task, std::span<const int64_t> counts, int64_t trained_loops,
                           int64_t batch_tokens, const std::function<void(double)>& progress) {
  const std::vector<int64_t> all = rising(counts, trained_loops);
  const auto likelihoods = choice_likelihoods(model, task, all, batch_tokens, progress);
  ChoiceResult result;
  result.file = task.file;
  result.questions = static_cast<int64_t>(task.questions.size());
  for (const auto& q : task.questions) {
    result.chance += 1.0 / static_cast<double>(q.choices.size()) / static_cast<double>(result.questions);
    if (std::any_of(q.choices.begin(), q.choices.end(), [](const ChoiceRow& c) { return c.cut; })) ++result.cut;
  }
  for (size_t i = 0; i < all.size(); ++i) {
    const ChoiceAccuracy a = choice_accuracy(task, likelihoods[i], all[i]);
    if (all[i] == trained_loops) result.trained = a;
    if (std::find(counts.begin(), counts.end(), all[i]) != counts.end()) result.by_loops.push_back(a);
  }
  return result;
}

namespace {

Json accuracy_json(const ChoiceAccuracy& a) {
  return {{"loops", a.loops},
          {"acc", a.acc},
          {"acc_standard_error", to_json(a.acc_error)},
          {"acc_norm", a.acc_norm},
          {"acc_norm_standard_error", to_json(a.acc_norm_error)},
          {"acc_bytes", a.acc_bytes},
          {"acc_bytes_standard_error", to_json(a.acc_bytes_error)}};
}

}  // namespace

Json to_json(const ChoiceResult& r) {
  Json json = {{"file", r.file}, {"questions", r.questions}, {"cut", r.cut}, {"chance", r.chance}};
  json.update(accuracy_json(r.trained));
  json["by_loops"] = Json::array();
  for (const auto& a : r.by_loops) json["by_loops"].push_back(accuracy_json(a));
  return json;
}

}  // namespace mythos
