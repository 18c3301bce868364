#include "infer/evaluate.h"

#include "base/error.h"
#include "base/units.h"
#include "infer/clustered.h"
#include "infer/loop_statistics.h"
#include "infer/token_scores.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace mythos {
namespace {

struct Stream {
  std::vector<int32_t> ids;
  std::vector<int32_t> bytes;     // what each id stands for in the text
  std::vector<int32_t> document;  // that it belongs to; a separator belongs to the one it ends
};

Stream join(const Tokenizer& tokenizer, const std::vector<std::string>& documents, bool separator, int64_t vocabulary) {
  Stream s;
  const auto end = tokenizer.end_of_text();
  if (separator && !end) throw usage_error("document_separator is set, but the tokenizer has no end-of-text token");
  if (separator) s.ids.push_back(*end);
  s.document.resize(s.ids.size(), 0);
  for (size_t d = 0; d < documents.size(); ++d) {
    tokenizer.encode(documents[d], s.ids);
    if (separator) s.ids.push_back(*end);
    s.document.resize(s.ids.size(), static_cast<int32_t>(d));
  }
  s.bytes.reserve(s.ids.size());
  for (const int32_t id : s.ids) {
    if (id >= vocabulary) {
      throw usage_error(
          fmt::format("the text has the token {}, and the model's vocabulary has {}", id, with_commas(vocabulary)),
          "use the tokenizer the model was trained with");
    }
    const bool is_end = separator && id == *end;
    s.bytes.push_back(is_end ? 2 : static_cast<int32_t>(tokenizer.token_bytes(id).size()));
  }
  return s;
}

// What is taken for independent: see Evaluation.
struct Clusters {
  at::Tensor of_token;                // int32 [predicted], by predicted token
  std::vector<double> tokens, bytes;  // by cluster
  int32_t documents = 0;
  bool by_window = false;

  Clusters(const Stream& stream, int64_t predicted, int64_t seq_len) : of_token(at::empty({predicted}, at::kInt)) {
    auto* const cluster = of_token.mutable_data_ptr<int32_t>();
    int32_t last = -1;
    for (int64_t i = 0; i < predicted; ++i) {
      const int32_t document = stream.document[static_cast<size_t>(i + 1)];
      if (document != last) ++documents;
      last = document;
      cluster[i] = documents - 1;
    }
    by_window = documents < 2;
    for (int64_t i = 0; by_window && i < predicted; ++i) cluster[i] = static_cast<int32_t>(i / seq_len);
    tokens.assign(static_cast<size_t>(cluster[predicted - 1]) + 1, 0);
    bytes = tokens;
    for (int64_t i = 0; i < predicted; ++i) {
      tokens[static_cast<size_t>(cluster[i])] += 1;
      bytes[static_cast<size_t>(cluster[i])] += stream.bytes[static_cast<size_t>(i + 1)];
    }
  }
};

// Sums over the tokens of every cluster, with one number of loops.
struct Sums {
  explicit Sums(size_t clusters)
      : nll(at::zeros({static_cast<int64_t>(clusters)}, at::kDouble)), hits(at::zeros_like(nll)) {}
  void add(const at::Tensor& cluster, const TokenScores& scores) {
    nll.index_add_(0, cluster, scores.nll);
    hits.index_add_(0, cluster, scores.hit.to(at::kDouble));
  }
  at::Tensor nll, hits;  // double [clusters]
};

std::span<const double> values(const at::Tensor& t) {
  return {t.const_data_ptr<double>(), static_cast<size_t>(t.numel())};
}

Evaluation figures(int64_t loops, const Sums& sums, const Sums& compared, const Clusters& clusters,
                   const LoopSummary& summary) {
  Evaluation e;
  e.loops = loops;
  e.documents = clusters.documents;
  e.clusters = static_cast<int64_t>(clusters.tokens.size());
  e.by_window = clusters.by_window;
  double n = 0, bytes = 0;
  for (const double t : clusters.tokens) n += t;
  for (const double b : clusters.bytes) bytes += b;
  e.tokens = static_cast<int64_t>(n);
  e.bytes = static_cast<int64_t>(bytes);
  e.loss = sums.nll.sum().item<double>() / n;
  e.loss_error = ratio_error(values(sums.nll), clusters.tokens);
  const at::Tensor bits = sums.nll / std::numbers::ln2;
  e.bits_per_byte_error = ratio_error(values(bits), clusters.bytes);
  e.accuracy = sums.hits.sum().item<double>() / n;
  e.accuracy_error = ratio_error(values(sums.hits), clusters.tokens);
  const at::Tensor difference = sums.nll - compared.nll;
  e.difference = difference.sum().item<double>() / n;
  e.difference_error = ratio_error(values(difference), clusters.tokens);
  e.mean_loops = summary.mean_loops;
  e.never_halted = summary.never_halted();
  if (!std::isfinite(e.loss)) {
    throw failure("the loss on this text is not a number", "the model's weights are damaged");
  }
  return e;
}

}  // namespace

std::vector<int64_t> rising(std::span<const int64_t> counts, int64_t one) {
  std::vector<int64_t> all(counts.begin(), counts.end());
  all.push_back(one);
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  return all;
}

LoopSweep sweep_loops(Model& model, const Tokenizer& tokenizer, const std::vector<std::string>& documents,
                      std::span<const int64_t> counts, const EvaluationOptions& o,
                      const std::function<void(double)>& progress) {
  const ModelConfig& config = model.config();
  const Stream stream = join(tokenizer, documents, o.document_separator, config.vocab_size);
  int64_t predicted = static_cast<int64_t>(stream.ids.size()) - 1;
  if (predicted < 1) throw usage_error("the text to evaluate on has fewer than two tokens", "give more text");
  if (o.max_tokens > 0) predicted = std::min(predicted, o.max_tokens);
  const int64_t seq_len = std::min(o.seq_len, config.max_seq_len);
  const int64_t compared = o.n_loops > 0 ? o.n_loops : config.max_loop_iters;
  const std::vector<int64_t> all = rising(counts, compared);
  const Clusters clusters(stream, predicted, seq_len);
  std::vector<Sums> sums;
  for (size_t i = 0; i < all.size(); ++i) sums.emplace_back(clusters.tokens.size());
  LoopStatistics statistics(config.n_experts, config.act_threshold);
  const at::Device device = model.parameters().device();

  for (int64_t begin = 0; begin < predicted;) {
    // Full windows go in batches; the last, shorter one alone.
    const int64_t full = std::min(o.batch, (predicted - begin) / seq_len);
    const int64_t rows = std::max<int64_t>(1, full);
    const int64_t length = full > 0 ? seq_len : predicted - begin;
    const int64_t n = rows * length;
    at::Tensor ids = at::empty({rows, length}, at::kLong);
    at::Tensor targets = at::empty({n}, at::kLong);
    const auto first = stream.ids.begin() + begin;
    std::copy(first, first + n, ids.mutable_data_ptr<int64_t>());
    std::copy(first + 1, first + n + 1, targets.mutable_data_ptr<int64_t>());
    targets = targets.to(device);
    const at::Tensor cluster = clusters.of_token.narrow(0, begin, n).to(at::kLong);
    const auto take = [&](size_t i, const at::Tensor& hidden) {
      sums[i].add(cluster, score_tokens(model, hidden.flatten(0, 1), targets));
    };
    model.hidden_by_loops(ids.to(device), all, take, &statistics.observer());
    begin += n;
    if (progress) progress(static_cast<double>(begin) / static_cast<double>(predicted));
  }

  LoopSweep sweep;
  const auto at_compared = static_cast<size_t>(std::find(all.begin(), all.end(), compared) - all.begin());
  for (size_t i = 0; i < all.size(); ++i) {
    const Evaluation e = figures(all[i], sums[i], sums[at_compared], clusters, statistics.read(all[i]));
    if (i == at_compared) sweep.trained = e;
    if (std::find(counts.begin(), counts.end(), all[i]) != counts.end()) sweep.by_loops.push_back(e);
  }
  sweep.loops = statistics.read(all.back());
  return sweep;
}

Evaluation evaluate(Model& model, const Tokenizer& tokenizer, const std::vector<std::string>& documents,
                    const EvaluationOptions& options, const std::function<void(double)>& progress) {
  return sweep_loops(model, tokenizer, documents, {}, options, progress).trained;
}

}  // namespace mythos
