#include "plan/by_gpus.h"

#include "base/error.h"
#include "base/units.h"
#include "model/flops.h"
#include "model/parameters.h"
#include "plan/rank_step.h"

#include <algorithm>
#include <charconv>

namespace mythos {
namespace {

constexpr int64_t master = 4;  // bytes
constexpr int64_t most_gpus = 65536;
constexpr size_t most_counts = 32;

double real(int64_t n) { return static_cast<double>(n); }
std::string shown(int64_t bytes) { return bytes_text(real(bytes)); }

// A ring of ranks, one after another: what it runs over.
struct Ring {
  bool inside = false;  // from GPU to GPU of a machine
  bool across = false;  // from machine to machine
  int64_t sharing = 1;  // rings that leave a machine at the same time
};

// One number of GPUs.
class Spread {
 public:
  Spread(const ByGpusRequest& request, const FlatLayout& layout, int64_t gpus)
      : r_(request), train_(request.config.train), layout_(layout), mode_(sharding_mode_from(train_.sharding)) {
    row_.gpus = gpus;
    row_.machines = (gpus + r_.interconnect.gpus_per_machine - 1) / r_.interconnect.gpus_per_machine;
    // Spread evenly where that is possible, and full machines first where it is not.
    even_ = gpus % row_.machines == 0;
    per_machine_ = even_ ? gpus / row_.machines : r_.interconnect.gpus_per_machine;
    settle_group();
  }

  GpuRow row() {
    settle_batch();
    row_.compute_seconds = real(r_.micro_batch * train_.seq_len) / r_.tokens_per_second;
    const RankStepRequest step = step_request();
    const RankStep played = row_.gpus == 1 ? alone() : play_step(step);
    settle_memory(step, played);
    settle_time(played);
    return std::move(row_);
  }

  [[nodiscard]] bool misses_link() const { return misses_link_; }
  [[nodiscard]] bool misses_network() const { return misses_network_; }

 private:
  void settle_group() {
    const int64_t n = row_.gpus;
    if (mode_ == ShardingMode::none || n == 1) return;
    row_.group = n;
    if (mode_ != ShardingMode::hybrid) return;
    row_.group = train_.sharding_group > 0 ? train_.sharding_group : even_ ? per_machine_ : 1;
    if (n % row_.group == 0) return;
    row_.refused = fmt::format("{} ranks are not groups of {}: train.sharding_group must divide them", n, row_.group);
    row_.group = n;
  }

  void settle_batch() {
    TrainSection t = train_;
    const int64_t at_once = r_.micro_batch * t.seq_len * row_.gpus;
    const int64_t asked = t.global_batch_tokens;
    const int64_t step = std::max<int64_t>(1, asked / at_once) * at_once;
    if (t.steps == 0 && t.target_tokens < step && t.target_tokens > 0) {
      row_.notes.push_back(fmt::format("train.target_tokens {} is less than one step of {}",
                                       with_commas(t.target_tokens), with_commas(step)));
      t.target_tokens = 0;
    }
    row_.batch = batch_plan(t, r_.micro_batch, row_.gpus);
    if (asked > 0 && at_once > asked) {
      row_.notes.push_back(
          fmt::format("the global batch rises from {} to {} tokens: {} x {} on each GPU are a step, and grad_accum "
                      "cannot be below 1",
                      with_commas(asked), with_commas(step), r_.micro_batch, with_commas(t.seq_len)));
    } else if (asked > 0 && step != asked) {
      row_.notes.push_back(fmt::format("{} tokens are no multiple of {} x {} x {}: a step takes {}", with_commas(asked),
                                       row_.gpus, r_.micro_batch, with_commas(t.seq_len), with_commas(step)));
    }
    row_.needs_lanes = row_.gpus * r_.config.data.workers > r_.config.data.lanes;
  }

  // Those that share everything out, which follow each other by number.
  Ring group_ring() const {
    const int64_t ranks = row_.group;
    Ring ring;
    if (ranks == 1) return ring;
    ring.inside = per_machine_ > 1;
    ring.across = row_.machines > 1 && (ranks > per_machine_ || per_machine_ % ranks != 0);
    // Groups that end within a machine are on it with another one.
    const bool alone = ranks == row_.gpus || ranks % per_machine_ == 0;
    ring.sharing = ring.across && !alone ? 2 : 1;
    return ring;
  }
  // The ranks at one place of each group.
  Ring copies_ring() const {
    if (row_.gpus == row_.group) return {};
    return {.inside = per_machine_ > row_.group,
            .across = row_.machines > 1,
            .sharing = std::min(row_.group, per_machine_)};
  }
  double seconds(int64_t bytes, const Ring& ring) {
    const Interconnect& i = r_.interconnect;
    if (bytes == 0) return 0;
    misses_link_ = misses_link_ || (ring.inside && i.link == 0);
    misses_network_ = misses_network_ || (ring.across && i.network == 0);
    double each = 0;
    if (ring.inside && i.link > 0) each = 1 / i.link;
    if (ring.across && i.network > 0) each = std::max(each, real(ring.sharing) / i.network);
    return real(bytes) * each;
  }

  // The step's computing by unit, in proportion to what is multiplied.
  void share_out_computing(RankStepRequest& step) const {
    const ModelConfig& c = r_.config.model;
    const FlopsPerToken f = flops_per_token(c, train_.seq_len, train_.loops);
    double loops = 0;
    for (const int64_t n : train_.loops) loops += real(n) / real(static_cast<int64_t>(train_.loops.size()));
    const double dense = real(c.prelude_layers + c.coda_layers);
    const double attention = f.attention / (dense + loops);
    const double backward = r_.recompute == Recompute::loop ? 3 : 2;
    double all = step.head = 3 * f.head;
    for (size_t u = 1; u < step.units.size(); ++u) {
      UnitCost& cost = step.units[u];
      cost.forward = u == step.looped ? f.loops + loops * attention : f.dense_blocks / dense + attention;
      cost.backward = backward * cost.forward;
      all += cost.forward + cost.backward;
    }
    const double scale = row_.compute_seconds / all;
    step.head *= scale;
    for (UnitCost& cost : step.units) {
      cost.forward *= scale;
      cost.backward *= scale;
    }
  }

  RankStepRequest step_request() {
    RankStepRequest step;
    step.mode = mode_;
    step.parts = row_.group;
    step.copies = row_.gpus / row_.group;
    step.element = r_.element;
    step.micro_steps = row_.batch.grad_accum;
    step.looped = static_cast<size_t>(r_.config.model.prelude_layers + 1);
    step.reduce_every_micro_step = train_.reduce_gradients == "micro_step";
    const Partition partition{.parts = row_.group};
    const Ring group = group_ring(), copies = copies_ring();
    for (const FlatLayout::Unit& unit : layout_.units) {
      UnitCost cost;
      cost.shard = partition.shard_size(unit.size);
      const int64_t others = (row_.group - 1) * cost.shard;
      const double all_reduce = seconds(2 * (step.copies - 1) * cost.shard * master / step.copies, copies);
      cost.gather = seconds(others * r_.element, group);
      cost.reduce = mode_ == ShardingMode::none ? all_reduce : seconds(others * master, group);
      cost.sum = mode_ == ShardingMode::hybrid ? all_reduce : 0;
      step.units.push_back(cost);
    }
    share_out_computing(step);
    return step;
  }

  // A process by itself shares nothing out.
  RankStep alone() const {
    RankStep step;
    step.micro_step = row_.compute_seconds;
    step.step = step.computing = real(row_.batch.grad_accum) * row_.compute_seconds;
    return step;
  }

  // Sets what comes and goes to what is there in the phase that needs most.
  void settle_passing(RankMemory& m, const RankStep& played) const {
    const int64_t loops = *std::max_element(train_.loops.begin(), train_.loops.end());
    const auto passing =
        passing_memory(r_.config.model, r_.micro_batch, train_.seq_len, loops, r_.recompute, r_.element);
    size_t most = 0;
    for (size_t p = 1; p < n_phases; ++p) {
      if (passing[p] + played.held[p].total() > passing[most] + played.held[most].total()) most = p;
    }
    m.activations = passing[most] - std::min(m.loss_chunk, passing[most]);
    m.loss_chunk = passing[most] - m.activations;
    m.gathered = played.held[most].values;
    m.whole_gradients = played.held[most].gradients;
  }

  void settle_memory(RankStepRequest step, const RankStep& played) {
    const int64_t loops = *std::max_element(train_.loops.begin(), train_.loops.end());
    const MemoryPlan plan =
        plan_memory(r_.config.model, r_.micro_batch, train_.seq_len, loops, r_.recompute, r_.element);
    RankMemory& m = row_.memory;
    m.loss_chunk = plan.loss_chunk;
    m.program = plan.program;
    settle_passing(m, played);
    const bool same = r_.element == master;
    if (row_.gpus == 1) {
      m.copies = same ? 0 : plan.weights / (master + r_.element) * r_.element;
      m.master = plan.weights - m.copies;
      m.gradients = plan.gradients;
      m.moments = plan.moments;
    } else {
      const bool transient = mode_ == ShardingMode::full || mode_ == ShardingMode::hybrid;
      const Partition partition{.parts = row_.group};
      for (const FlatLayout::Unit& unit : layout_.units) {
        const int64_t own = partition.shard_size(unit.size), whole = row_.group * own;
        m.moments += 8 * own;
        if (transient) {
          m.master += master * own;
          m.gradients += master * own;
          continue;
        }
        m.master += master * (same ? whole : own);
        m.copies += same ? 0 : r_.element * whole;
        m.gradients += master * whole;
      }
    }
    row_.fits = m.total() <= r_.memory;
    if (row_.fits) return;
    row_.why_not = why_not(m);
    if (m.whole_gradients == 0 || step.reduce_every_micro_step || step.micro_steps == 1) return;
    step.reduce_every_micro_step = true;
    RankMemory sparing = m;
    sparing.loss_chunk = plan.loss_chunk;
    settle_passing(sparing, play_step(step));
    if (sparing.total() > r_.memory) return;
    row_.why_not +=
        fmt::format("; with train.reduce_gradients = \"micro_step\" it is {}, which fits", shown(sparing.total()));
  }

  std::string why_not(const RankMemory& m) const {
    const std::string much = fmt::format("{} needed, {} there", shown(m.total()), shown(r_.memory));
    const std::string state = fmt::format("{}: weights {}, gradients {}, moments {}", much, shown(m.master + m.copies),
                                          shown(m.gradients), shown(m.moments));
    if (m.activations + m.loss_chunk + m.program > r_.memory) {
      return fmt::format("{}: activations and logits alone take {}", much, shown(m.activations + m.loss_chunk));
    }
    if (row_.gpus == 1 || mode_ == ShardingMode::none) return state;
    if (mode_ == ShardingMode::optimizer) {
      const bool more = m.of_every_gpu() + m.gradients <= r_.memory;
      return fmt::format("{}; {}", state,
                         more ? "more GPUs share out the moments" : "this sharding keeps weights and gradients whole");
    }
    if (m.of_every_gpu() <= r_.memory) {
      return fmt::format("{}; {}", state,
                         mode_ == ShardingMode::full ? "more GPUs share them out" : "a larger group shares them out");
    }
    // Not even where it is alone there.
    const FlatLayout::Unit& unit = largest();
    const int64_t in_use = unit.size * (r_.element + master);
    const bool never = in_use + m.activations + m.loss_chunk + m.program > r_.memory;
    return fmt::format("{}: whole units take {}, their gradients {}{}; the largest is \"{}\", {} without gradients{}",
                       much, shown(m.gathered), shown(m.whole_gradients),
                       row_.batch.grad_accum > 1 && train_.reduce_gradients == "step"
                           ? ", which stay from the first micro-step to the last"
                           : "",
                       unit.name, shown(unit.size * r_.element), never ? ", and no number of GPUs changes that" : "");
  }

  [[nodiscard]] const FlatLayout::Unit& largest() const {
    return *std::max_element(layout_.units.begin(), layout_.units.end(),
                             [](const auto& a, const auto& b) { return a.size < b.size; });
  }

  void settle_time(const RankStep& played) {
    row_.micro_step_gather_bytes = played.micro_step_gathered;
    row_.step_gather_bytes = played.gathered;
    row_.step_reduce_bytes = played.reduced;
    if (misses_link_ || misses_network_) return;
    row_.micro_step_seconds = played.micro_step;
    row_.step_seconds = played.step;
    row_.step_traffic_seconds = played.traffic;
    if (played.traffic > 0) {
      row_.hidden = std::clamp(1 - (played.step - played.computing) / played.traffic, 0.0, 1.0);
    }
    row_.tokens_per_second = real(row_.batch.global_batch_tokens) / played.step;
    row_.efficiency = *row_.tokens_per_second / (real(row_.gpus) * r_.tokens_per_second);
    if (row_.batch.steps == 0) return;
    row_.hours = real(row_.batch.steps) * played.step / 3600;
    if (r_.price > 0) row_.cost = *row_.hours * r_.price * real(r_.price_of_machine ? row_.machines : row_.gpus);
  }

  const ByGpusRequest& r_;
  const TrainSection& train_;
  const FlatLayout& layout_;
  ShardingMode mode_;
  GpuRow row_;
  int64_t per_machine_ = 1;
  bool even_ = true, misses_link_ = false, misses_network_ = false;
};

DesignLimit limit_of(const ByGpusRequest& r, const FlatLayout& layout, const RankMemory& memory) {
  DesignLimit limit;
  for (const FlatLayout::Unit& unit : layout.units) {
    if (unit.size <= limit.unit_parameters) continue;
    limit.unit = unit.name;
    limit.unit_parameters = unit.size;
  }
  limit.gathered_bytes = limit.unit_parameters * r.element;
  limit.in_use_bytes = limit.unit_parameters * (r.element + master);
  const int64_t beside = memory.activations + memory.loss_chunk + memory.program;
  limit.largest_parameters = std::max<int64_t>(0, r.memory - beside) / (r.element + master);
  limit.fits = limit.unit_parameters <= limit.largest_parameters;

  const ModelConfig& c = r.config.model;
  double loops = 0;
  for (const int64_t n : r.config.train.loops)
    loops += real(n) / real(static_cast<int64_t>(r.config.train.loops.size()));
  limit.gpus = *std::max_element(r.counts.begin(), r.counts.end());
  limit.token_bytes =
      4 * real(c.n_experts_per_tok) * real(c.dim) * real(r.element) * loops * (1 - 1 / real(limit.gpus));
  limit.token_compute_seconds = 1 / r.tokens_per_second;
  // Each GPU sends to all: rings do not help, its share of the machine's network is what it has.
  const int64_t per_machine = std::min(limit.gpus, r.interconnect.gpus_per_machine);
  const double rate = limit.gpus > per_machine ? r.interconnect.network / real(per_machine) : r.interconnect.link;
  if (rate > 0) {
    limit.token_rate = rate;
    limit.token_traffic_seconds = limit.token_bytes / rate;
  }
  return limit;
}

}  // namespace

std::vector<int64_t> gpu_counts_from(const std::string& text, const char* option) {
  const auto wrong = [&](const std::string& what) {
    return usage_error(fmt::format("{} is '{}': {}", option, text.substr(0, 200), what),
                       "numbers of GPUs with commas between them, like 1,8,64");
  };
  std::vector<int64_t> counts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string word = text.substr(begin, end - begin);
    int64_t n = 0;
    const auto [rest, error] = std::from_chars(word.data(), word.data() + word.size(), n);
    if (word.empty()) throw wrong("a number is missing");
    if (error != std::errc() || rest != word.data() + word.size() || n < 1 || n > most_gpus) {
      throw wrong(fmt::format("'{}' is no number from 1 to {}", word.substr(0, 40), with_commas(most_gpus)));
    }
    if (counts.size() == most_counts) throw wrong(fmt::format("these are more than {}", most_counts));
    counts.push_back(n);
    begin = end + 1;
  }
  return counts;
}

ByGpus plan_by_gpus(const std::string& gpu, const ByGpusRequest& request) {
  ByGpus plan;
  plan.request = request;
  plan.gpu = gpu;
  const FlatLayout layout = flat_layout(request.config.model);
  bool link = false, network = false;
  for (const int64_t n : request.counts) {
    Spread spread(request, layout, n);
    plan.rows.push_back(spread.row());
    link = link || spread.misses_link();
    network = network || spread.misses_network();
  }
  if (link) plan.missing.push_back(fmt::format("link_gb_s of the GPU {} (--hardware FILE gives it)", gpu));
  if (network) plan.missing.emplace_back("the network between machines (--network-gbit-s or an --instance gives it)");
  plan.limit = limit_of(request, layout, plan.rows.front().memory);
  return plan;
}

}  // namespace mythos
