#include "step/op_speed.h"

#include "base/error.h"
#include "base/units.h"
#include "kernels/device.h"
#include "step/gemm_rate.h"
#include "step/op_cases.h"

#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <chrono>
#include <limits>

namespace mythos {
namespace {

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

constexpr double infinite = std::numeric_limits<double>::infinity();

// Seconds of one call, over as many as the clock needs to be exact. A device is given several before it is waited for.
template <class Body>
double time_of(at::Device device, const Body& body) {
  const double least = device.is_cpu() ? 1e-3 : 5e-3;
  const int at_once = device.is_cpu() ? 1 : 10;
  wait_for_device(device);
  const auto begin = Clock::now();
  int runs = 0;
  double spent = 0;
  do {
    for (int i = 0; i < at_once; ++i) body();
    runs += at_once;
    wait_for_device(device);
    spent = seconds_since(begin);
  } while (spent < least);
  return spent / runs;
}

// Bytes read and written per second, by a copy or in place, of what no cache holds.
class Bandwidth {
 public:
  explicit Bandwidth(at::Device device) : device_(device), bytes_(int64_t{1} << (device.is_cpu() ? 27 : 30)) {}
  void round() {
    if (!from_.defined()) {
      from_ = at::ones({bytes_ / 4}, device_);
      to_ = at::ones({bytes_ / 4}, device_);
    }
    const auto moved = 2.0 * static_cast<double>(bytes_);
    for (int i = 0; i < 2; ++i) {
      best_ = std::max(best_, moved / time_of(device_, [&] { to_.copy_(from_); }));
      best_ = std::max(best_, moved / time_of(device_, [&] { to_.mul_(1.0); }));
    }
  }
  [[nodiscard]] double best() const { return best_; }

 private:
  at::Device device_;
  int64_t bytes_;
  at::Tensor from_, to_;
  double best_ = 0;
};

// The rate of the products an op consists of.
GemmRate products_of(Part part, const OpSpeedOptions& o) {
  const int64_t tokens = o.seq_len * o.micro_batch;
  auto shapes = gemm_shapes(o.model, part == Part::head ? std::min(tokens, o.head_tokens) : tokens, 1, o.device.type());
  std::erase_if(shapes, [&](const GemmShape& s) { return s.part != part; });
  return {std::move(shapes), o.device, o.type};
}

void run_both(const OpForm& form, const OpCase& op, std::vector<at::Tensor>& cotangents) {
  for (const auto& input : op.inputs) at::Tensor(input).mutable_grad().reset();
  const auto outputs = form();
  if (cotangents.empty()) {
    for (const auto& out : outputs) cotangents.push_back(at::ones_like(out, at::MemoryFormat::Contiguous));
  }
  torch::autograd::backward(outputs, cotangents);
}

template <class Measure>
double unless_too_large(const Measure& measured) {
  try {
    return measured();
  } catch (const c10::OutOfMemoryError&) {
    return infinite;
  }
}

OpSpeed measure(const std::string& name, const OpSpeedOptions& o, Bandwidth& bandwidth) {
  const OpCase op = op_case(name, o);
  OpSpeed result;
  result.name = name;
  result.shape = op.shape;
  result.by_flops = op.part.has_value();
  result.has_backward = op.differentiable;
  result.forward_work = op.forward_work;
  result.both_work = op.both_work;
  result.forward = result.both = {infinite, infinite};

  std::optional<GemmRate> products;
  if (op.part) products = products_of(*op.part, o);
  const auto limit_round = [&] {
    if (products) {
      products->round(0.2 * o.seconds);
    } else {
      bandwidth.round();
    }
  };
  std::vector<at::Tensor> cotangents;
  const auto keep = [](double& best, double seconds) { best = std::min(best, seconds); };
  const auto begin = Clock::now();
  constexpr int least_rounds = 3;
  // One more round than counted: the first warms up.
  for (int round = 0; round <= least_rounds || seconds_since(begin) < o.seconds; ++round) {
    if (round <= least_rounds) limit_round();
    OpTimes forward, both;
    {
      const at::NoGradGuard no_grad;
      forward.ours = time_of(o.device, op.ours);
      forward.composite = unless_too_large([&] { return time_of(o.device, op.composite); });
    }
    if (op.differentiable) {
      both.ours = time_of(o.device, [&] { run_both(op.ours, op, cotangents); });
      both.composite =
          unless_too_large([&] { return time_of(o.device, [&] { run_both(op.composite, op, cotangents); }); });
    } else {
      both = forward;
    }
    if (round == 0) continue;
    keep(result.forward.ours, forward.ours);
    keep(result.forward.composite, forward.composite);
    keep(result.both.ours, both.ours);
    keep(result.both.composite, both.composite);
  }
  result.limit = products ? products->best() : bandwidth.best();
  return result;
}

}  // namespace

std::vector<OpSpeed> measure_ops(const OpSpeedOptions& o, const std::function<void(const std::string&)>& say) {
  if (const auto wrong = problems(o.model); !wrong.empty()) throw usage_error(wrong.front());
  TORCH_CHECK(o.seq_len > 0 && o.micro_batch > 0 && o.head_tokens > 0, "measure_ops needs at least one token");
  if (o.seq_len > o.model.max_seq_len) {
    throw usage_error(fmt::format("seq_len is {}, the model has {} positions", o.seq_len, o.model.max_seq_len));
  }
  std::vector<std::string> chosen;
  for (const auto& name : op_names()) {
    if (name.find(o.filter) != std::string::npos) chosen.push_back(name);
  }
  if (chosen.empty()) throw usage_error(fmt::format("no op is named '{}'", o.filter), suggestion(o.filter, op_names()));
  Bandwidth bandwidth(o.device);
  std::vector<OpSpeed> results;
  for (const auto& name : chosen) {
    say(name);
    results.push_back(measure(name, o, bandwidth));
  }
  return results;
}

}  // namespace mythos
