// One rank of the tests of several: mpirun starts it with the name of a case. Ends with 0 if all is as it should be on
// this rank, else says what is not.
#include "../support/small_model.h"

#include "dist/sharding.h"
#include "dist/store_communicator.h"
#include "dist/team.h"
#include "step/train_step.h"

#include <ATen/CPUGeneratorImpl.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <limits>
#include <map>
#include <set>
#include <string>

namespace mythos::test {
namespace {

int failures = 0;
int64_t my_rank = 0;

template <class... Args>
void expect(bool good, fmt::format_string<Args...> format, Args&&... args) {
  if (good) return;
  ++failures;
  fmt::print("rank {}: {}\n", my_rank, fmt::format(format, std::forward<Args>(args)...));
}

double difference(const at::Tensor& a, const at::Tensor& b) {
  const double scale = b.abs().max().item<double>();
  const double d = (a - b).abs().max().item<double>();
  return scale > 0 ? d / scale : d;
}

// ---- collectives ----------------------------------------------------------------------------------------------------

// `large`: elements of one rank's part.
void collectives(Communicator& world, int64_t large) {
  const int64_t n = world.size(), r = world.rank();
  for (const auto type : {at::kFloat, at::kDouble, at::kLong, at::kByte}) {
    for (const int64_t each : {int64_t{1}, int64_t{16}, int64_t{1000}, large + 1}) {
      const at::Tensor out = at::zeros({n * each}, type);
      Handle handle = world.all_gather(out, at::full({each}, r + 1, type));
      wait(handle);
      for (int64_t k = 0; k < n; ++k) {
        expect(out.narrow(0, k * each, each).eq(k + 1).all().item<bool>(), "all_gather of {}: part {}", each, k);
      }
      // In place.
      out.zero_();
      out.narrow(0, r * each, each).fill_(r + 3);
      handle = world.all_gather(out, out.narrow(0, r * each, each));
      wait(handle);
      expect(out[0].item<int64_t>() == 3 && out[n * each - 1].item<int64_t>() == n + 2, "all_gather in place");
    }
  }
  for (const auto type : {at::kFloat, at::kDouble}) {
    for (const int64_t each : {int64_t{1}, int64_t{48}, large}) {
      // A sum that depends on its order: ranks are added one after another.
      std::vector<at::Tensor> all;
      for (int64_t k = 0; k < n; ++k) {
        all.push_back(
            at::randn({n * each}, at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(k + 1)), at::kDouble)
                .mul(std::pow(10.0, static_cast<double>(k)))
                .to(type));
      }
      at::Tensor sum = all[0].clone();
      for (int64_t k = 1; k < n; ++k) sum.add_(all[static_cast<size_t>(k)]);
      const at::Tensor mine = all[static_cast<size_t>(r)].clone();
      const at::Tensor out = at::empty({each}, type);
      Handle handle = world.reduce_scatter(out, mine);
      wait(handle);
      expect(out.equal(sum.narrow(0, r * each, each)), "reduce_scatter of {}", each);
      expect(mine.equal(all[static_cast<size_t>(r)]), "reduce_scatter changes what it is given");
      handle = world.reduce_scatter(mine.narrow(0, r * each, each), mine);
      wait(handle);
      expect(mine.narrow(0, r * each, each).equal(sum.narrow(0, r * each, each)), "reduce_scatter in place");
      at::Tensor everything = all[static_cast<size_t>(r)].clone();
      handle = world.all_reduce(everything);
      wait(handle);
      expect(everything.equal(sum), "all_reduce of {}", n * each);
      // A number of elements that does not divide, and several at a time that are waited for in another order.
      at::Tensor odd = all[static_cast<size_t>(r)].narrow(0, 0, n * each - (n * each > 1 ? 1 : 0)).clone();
      at::Tensor one = at::full({1}, r, type);
      Handle first = world.all_reduce(odd);
      Handle second = world.all_reduce(one);
      wait(second);
      wait(first);
      expect(odd.equal(sum.narrow(0, 0, odd.numel())), "all_reduce of {}", odd.numel());
      expect(one.item<int64_t>() == n * (n - 1) / 2, "all_reduce of one number");
    }
  }
  for (int64_t from = 0; from < n; ++from) {
    at::Tensor t = at::full({70'000}, from == r ? 5 : 0, at::kInt);
    Handle handle = world.broadcast(t, from);
    wait(handle);
    expect(t.eq(5).all().item<bool>(), "broadcast from {}", from);
    expect(text_of(world, from, r == from ? "hello" : "no") == "hello", "text of {}", from);
  }
  const auto texts = all_texts(world, std::string(static_cast<size_t>(r), 'x'));
  for (int64_t k = 0; k < n; ++k) expect(static_cast<int64_t>(texts[static_cast<size_t>(k)].size()) == k, "texts");
  expect(all_of(world, true) && !all_of(world, r != n - 1), "all_of");
  const auto half = world.split(r % 2);
  expect(half->size() == (n + 1 - r % 2) / 2 && half->rank() == r / 2, "split");
  at::Tensor sum = at::full({3}, r, at::kLong);
  Handle handle = half->all_reduce(sum);
  wait(handle);
  int64_t wanted = 0;
  for (int64_t k = r % 2; k < n; k += 2) wanted += k;
  expect(sum[2].item<int64_t>() == wanted, "all_reduce in half of the ranks");
  world.barrier();
}

// ---- training -------------------------------------------------------------------------------------------------------

struct Setting {
  ShardingMode mode = ShardingMode::full;
  at::ScalarType type = at::kDouble;
  Sharding::Options options;
  int64_t rows = 2, micro_steps = 2, steps = 20;
  Recompute recompute = Recompute::none;
  double router_bias_speed = 0;
  double lr = 1e-3;
  ModelConfig config = small_config();
  // Rows [n, 9] of a step, the same on all ranks.
  std::function<at::Tensor(int64_t step, int64_t n)> batch;
  std::function<void(Model&)> prepare = [](Model&) {};
};

at::Tensor random_rows(int64_t step, int64_t n) {
  const auto generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(1000 + step));
  return at::randint(61, {n, 9}, generator, at::kLong);
}

// The same few rows again and again are learnt: losses fall, and differences would grow.
at::Tensor repeated_rows(int64_t step, int64_t n) { return random_rows(step % 3, n); }

struct Trained {
  Trained(const Setting& s, Sharding* sharding)
      : model(s.config, at::kCPU, s.type, s.type == at::kBFloat16 ? at::kFloat : s.type, true,
              sharding != nullptr ? sharding->partition() : Partition{}),
        optimizer(model.parameters(), {}),
        step(model, optimizer, sharding, s.router_bias_speed) {
    // Weights large enough for every part to matter.
    const auto source = small_model(s.config, at::kDouble);
    s.prepare(*source);
    const auto values = source->parameters().named_values();
    for (size_t i = 0; i < values.size(); ++i) model.parameters().set_value(i, values[i].tensor);
    model.parameters().refresh_compute();
    model.named_buffers()[0].tensor.copy_(source->named_buffers()[0].tensor);
  }
  // Rows [micro_steps * rows, 9], in order.
  StepResult train(const Setting& s, const at::Tensor& rows, int64_t at_once, double tokens,
                   const LoopObserver* observer = nullptr, const std::function<void()>& between = {}) {
    const int64_t micro_steps = rows.size(0) / at_once;
    step.begin({.clip = 0.7,
                .n_loops = 0,
                .recompute = s.recompute,
                .observer = observer,
                .loss_tokens = tokens,
                .micro_steps = micro_steps});
    for (int64_t m = 0; m < micro_steps; ++m) {
      const at::Tensor micro = rows.narrow(0, m * at_once, at_once);
      step.micro_step(micro.narrow(1, 0, 8).contiguous(), micro.narrow(1, 1, 8).contiguous());
      if (between && m + 1 < micro_steps) between();
    }
    return step.finish(s.lr);
  }
  Model model;
  AdamW optimizer;
  TrainStep step;
};

at::Tensor every(const at::Tensor& rows, int64_t first, int64_t stride) {
  return rows.slice(0, first, rows.size(0), stride).contiguous();
}

void expect_same_state(const Setting& s, Sharding& sharding, const Trained& ours, const Trained& alone,
                       double tolerance) {
  const auto values = sharding.whole([&] {
    std::vector<at::Tensor> own;
    for (size_t u = 0; u < ours.model.parameters().units(); ++u) own.push_back(ours.model.parameters().values(u));
    return own;
  }());
  const auto first = sharding.whole(ours.optimizer.first_moments());
  const auto second = sharding.whole(ours.optimizer.second_moments());
  if (my_rank != 0) return;
  const ParameterStore& store = ours.model.parameters();
  const auto compare = [&](const char* what, const std::vector<NamedTensor>& a, const std::vector<NamedTensor>& b) {
    double worst = 0;
    for (size_t i = 0; i < a.size(); ++i) {
      const double d = difference(a[i].tensor, b[i].tensor);
      worst = std::max(worst, d);
      expect(d <= tolerance, "{} {} differs by {}", what, a[i].name, d);
    }
    if (std::getenv("MYTHOS_TEST_SAY") != nullptr) fmt::print("{}: {:.2e}\n", what, worst);
  };
  compare("weight", store.named(values), alone.model.parameters().named_values());
  compare("first moment", store.named(first), alone.optimizer.named_first_moments());
  compare("second moment", store.named(second), alone.optimizer.named_second_moments());
  (void)s;
}

// N ranks of m rows are one of N m.
void equal(const std::shared_ptr<Communicator>& world, const Setting& s) {
  Sharding sharding(world, s.mode, s.options);
  Trained ours(s, &sharding);
  Trained alone(s, nullptr);
  const int64_t n = world->size();
  const int64_t rows = n * s.rows * s.micro_steps;
  // In bfloat16 the sums over one micro-step's rows are rounded, and rows are cut differently.
  const double tolerance = s.type == at::kDouble ? 1e-10 : s.type == at::kFloat ? 1e-4 : 0.1;
  double first_loss = 0, loss = 0;
  for (int64_t step = 0; step < s.steps; ++step) {
    const at::Tensor batch = s.batch(step, rows);
    const auto tokens = static_cast<double>(rows * 8);
    const StepResult a = ours.train(s, every(batch, my_rank, n), s.rows, tokens);
    const StepResult b = alone.train(s, batch, n * s.rows, tokens);
    expect(a.updated && b.updated, "step {} was left out", step);
    expect(std::abs(a.loss - b.loss) <= tolerance * b.loss, "step {}: loss {} for {}", step, a.loss, b.loss);
    expect(std::abs(a.gradient_norm - b.gradient_norm) <= tolerance * b.gradient_norm, "step {}: norm {} for {}", step,
           a.gradient_norm, b.gradient_norm);
    for (const auto& others : all_numbers(*world, std::vector<double>{a.loss, a.gradient_norm})) {
      expect(others[0] == a.loss && others[1] == a.gradient_norm, "ranks have other losses or norms");
    }
    if (step == 0) first_loss = b.loss;
    loss = b.loss;
  }
  expect(loss < first_loss, "nothing was learnt: {} after {}", loss, first_loss);
  // Adam takes the sign of gradients that bfloat16 leaves little of.
  expect_same_state(s, sharding, ours, alone, s.type == at::kBFloat16 ? 0.4 : tolerance);
  // What every rank computes with is the same, to the bit.
  sharding.hold_all();
  for (size_t u = 0; u < ours.model.parameters().units(); ++u) {
    const at::Tensor whole = ours.model.parameters().whole_values(u);
    at::Tensor of_first = whole.clone();
    Handle handle = world->broadcast(of_first, 0);
    wait(handle);
    expect(of_first.equal(whole), "ranks have other weights in unit {}", u);
  }
  sharding.release_all();
  const at::Tensor bias = ours.model.router_bias(), expected = alone.model.router_bias();
  expect(difference(bias, expected) <= tolerance, "the router's bias differs by {}", difference(bias, expected));
  expect(
      s.router_bias_speed == 0 || !bias.equal(small_model(s.config, at::kDouble)->router_bias().to(bias.scalar_type())),
      "no bias has moved");
}

// A NaN on one rank: all leave the step out, nothing changes, and the next step is done.
void not_a_number(const std::shared_ptr<Communicator>& world, const Setting& s) {
  Sharding sharding(world, s.mode, s.options);
  Trained ours(s, &sharding);
  Trained alone(s, nullptr);
  const int64_t n = world->size();
  const int64_t rows = n * s.rows * s.micro_steps;
  for (int64_t step = 0; step < 3; ++step) {
    const at::Tensor batch = s.batch(step, rows);
    const auto tokens = static_cast<double>(rows * 8);
    const bool bad = step == 1;
    const StepResult a = ours.train(s, every(batch, my_rank, n), s.rows, tokens, nullptr, [&] {
      if (bad && my_rank == n - 1) {
        ours.model.parameters().whole_gradients(1)[7].fill_(std::numeric_limits<double>::quiet_NaN());
      }
    });
    expect(a.updated == !bad, "step {}: updated is {}", step, a.updated);
    if (!bad) alone.train(s, batch, n * s.rows, tokens);
  }
  expect(ours.optimizer.steps() == 2, "{} updates", ours.optimizer.steps());
  expect_same_state(s, sharding, ours, alone, 1e-10);
  // A loss that is no number names its rank.
  const double nan = std::numeric_limits<double>::quiet_NaN();
  expect(sharding.totals(my_rank == n - 1 ? nan : 1, 1).first_bad == n - 1, "the rank of a bad loss");
}

// Every rank would stop after another loop; all run as many as the one that needs most.
void halting(const std::shared_ptr<Communicator>& world, Setting s) {
  const int64_t n = world->size();
  s.config.max_loop_iters = 8;
  s.prepare = [](Model& model) {
    value(model, "recurrent.act.halt.weight").zero_();
    value(model, "recurrent.act.halt.bias").fill_(-0.9);
    // Each position's state decides: the halting probability follows one channel of the embedding.
    value(model, "recurrent.act.halt.weight")[0][3] = 4.0;
    value(model, "embed.weight").select(1, 3).copy_(at::linspace(-3, 6, 61, at::kDouble));
  };
  // Rank r reads ids of its own.
  s.batch = [n](int64_t step, int64_t rows) {
    const at::Tensor drawn = random_rows(step, rows).remainder(61 / n);
    return drawn + (at::arange(rows, at::kLong).remainder(n) * (61 / n)).unsqueeze(1);
  };
  std::set<int64_t> wanted;
  Sharding sharding(world, s.mode, s.options);
  Trained ours(s, &sharding);
  Trained alone(s, nullptr);
  for (int64_t step = 0; step < 3; ++step) {
    const at::Tensor batch = s.batch(step, n * s.rows);
    const auto tokens = static_cast<double>(n * s.rows * 8);
    const auto loops_of = [](Trained& t, const std::function<void(const LoopObserver*)>& run) {
      (void)t;
      int64_t most = 0;
      const LoopObserver count = [&](const LoopReport& r) { most = std::max(most, r.loop + 1); };
      run(&count);
      return most;
    };
    // By itself, on this rank's rows.
    const at::Tensor mine = every(batch, my_rank, n);
    const int64_t own = loops_of(alone, [&](const LoopObserver* o) {
      const at::NoGradGuard no_grad;
      (void)alone.model.hidden(mine.narrow(1, 0, 8).contiguous(), {.observer = o});
    });
    for (const auto& all : all_numbers(*world, std::vector<int64_t>{own})) wanted.insert(all[0]);
    const int64_t together = loops_of(ours, [&](const LoopObserver* o) { ours.train(s, mine, s.rows, tokens, o); });
    const int64_t expected =
        loops_of(alone, [&](const LoopObserver* o) { alone.train(s, batch, n * s.rows, tokens, o); });
    expect(together == expected, "{} loops for {}", together, expected);
  }
  expect(wanted.size() > 1, "all ranks want to stop after the same loop");
  expect_same_state(s, sharding, ours, alone, 1e-10);
}

// Every rank's tokens go to other experts.
void idle_experts(const std::shared_ptr<Communicator>& world, Setting s) {
  const int64_t n = world->size();
  s.batch = [n](int64_t step, int64_t rows) {
    return random_rows(step, rows).remainder(3) + (at::arange(rows, at::kLong).remainder(n) * 17 + step).unsqueeze(1);
  };
  s.config.max_loop_iters = 1;
  Sharding sharding(world, s.mode, s.options);
  Trained ours(s, &sharding);
  Trained alone(s, nullptr);
  bool idle = false;
  for (int64_t step = 0; step < 3; ++step) {
    const at::Tensor batch = s.batch(step, n * s.rows);
    std::set<int64_t> used;
    const LoopObserver look = [&](const LoopReport& r) {
      const at::Tensor e = r.experts.reshape({-1});
      for (int64_t i = 0; i < e.numel(); ++i) used.insert(e[i].item<int64_t>());
    };
    ours.train(s, every(batch, my_rank, n), s.rows, static_cast<double>(n * s.rows * 8), &look);
    alone.train(s, batch, n * s.rows, static_cast<double>(n * s.rows * 8));
    std::vector<int64_t> own(5, 0);
    for (const int64_t e : used) own[static_cast<size_t>(e)] = 1;
    for (size_t e = 0; e < 5; ++e) {
      int64_t users = 0;
      for (const auto& all : all_numbers(*world, own)) users += all[e];
      idle = idle || (users > 0 && users < n);
    }
  }
  expect(idle, "every expert is used on all ranks or on none");
  expect_same_state(s, sharding, ours, alone, 1e-10);
}

// R4, R5: ranks with unequal numbers of counted targets, one with none.
void unequal_targets(const std::shared_ptr<Communicator>& world, const Setting& s) {
  const int64_t n = world->size();
  Sharding sharding(world, s.mode, s.options);
  Trained ours(s, &sharding);
  Trained alone(s, nullptr);
  const std::vector<int64_t> counted{1, 7, 0, 5};
  for (int64_t step = 0; step < 3; ++step) {
    const at::Tensor ids = random_rows(step, n).narrow(1, 0, 8).contiguous();
    at::Tensor targets = random_rows(step + 50, n).narrow(1, 0, 8).contiguous();
    double tokens = 0;
    for (int64_t r = 0; r < n; ++r) {
      const int64_t k = counted[static_cast<size_t>((r + step) % 4)];
      targets[r].narrow(0, k, 8 - k).fill_(-100);
      tokens += static_cast<double>(k);
    }
    StepOptions o{.loss_tokens = tokens};
    ours.step.begin(o);
    ours.step.micro_step(ids.narrow(0, my_rank, 1), targets.narrow(0, my_rank, 1));
    alone.step.begin(o);
    alone.step.micro_step(ids, targets);
    const StepResult a = ours.step.finish(1e-3), b = alone.step.finish(1e-3);
    expect(a.updated && std::abs(a.loss - b.loss) < 1e-10, "step {}: loss {} for {}", step, a.loss, b.loss);
  }
  expect_same_state(s, sharding, ours, alone, 1e-10);
}

// What is sent is what the mode must send, and no more.
void bytes(const std::shared_ptr<Communicator>& world, const Setting& s) {
  Sharding sharding(world, s.mode, s.options);
  Trained ours(s, &sharding);
  const int64_t n = world->size();
  const at::Tensor batch = random_rows(0, n * s.rows * s.micro_steps);
  const auto step = [&](int64_t micro_steps) {
    const int64_t before = sharding.bytes_sent();
    ours.train(s, every(batch, my_rank, n).narrow(0, 0, micro_steps * s.rows), s.rows, 100);
    return sharding.bytes_sent() - before;
  };
  int64_t all = 0, parts = 0, without_first = 0;
  const ParameterStore& store = ours.model.parameters();
  const int64_t element = store.values(0).element_size();
  for (size_t u = 0; u < store.units(); ++u) {
    all += store.layout().units[u].size * element;
    parts += store.shard(u) * element;
    if (u > 0 && u + 1 < store.units()) without_first += store.shard(u) * element;
  }
  // Votes on halting and the step's totals; small beside the rest.
  const int64_t votes = 8 * (n - 1) * (s.micro_steps * (s.config.max_loop_iters - 1) + 2);
  const int64_t one = step(1), more = step(s.micro_steps);
  int64_t wanted = 0, micro = 0;
  switch (s.mode) {
    case ShardingMode::none:
      wanted = 2 * all * (n - 1) / n;
      break;
    case ShardingMode::optimizer:
      wanted = 2 * parts * (n - 1);
      break;
    case ShardingMode::full:
      // Gathered in the forward and the backward pass, the first and the last unit only once; gradients leave once.
      micro = (n - 1) * (parts + without_first);
      wanted = micro + (n - 1) * parts;
      if (s.options.reduce_every_micro_step) micro = wanted;
      break;
    case ShardingMode::hybrid:
      return;
  }
  const int64_t slack = votes + 64 * static_cast<int64_t>(store.units()) * n;
  expect(std::abs(one - wanted) <= slack, "{} bytes for {}", one, wanted);
  const int64_t extra = more - one - micro * (s.micro_steps - 1);
  expect(std::abs(extra) <= votes, "{} bytes more with {} micro-steps", extra, s.micro_steps);
}

// A case and its options: "equal", "mode", "full", "type", "float".
bool run_case(const std::shared_ptr<Communicator>& world, const std::vector<std::string>& words) {
  std::map<std::string, std::string> options;
  for (size_t i = 1; i + 1 < words.size(); i += 2) options[words[i]] = words[i + 1];
  Setting s;
  s.batch = repeated_rows;
  if (options.contains("mode")) s.mode = sharding_mode_from(options["mode"]);
  if (options.contains("group")) s.options.group = std::stoll(options["group"]);
  if (options["type"] == "float") {
    s.type = at::kFloat;
    // Adam divides by the size of the gradients: where one nearly cancels, what is left of a step's difference is the
    // learning rate times its last digits.
    s.lr = 2e-4;
  }
  if (options["type"] == "bf16") {
    s.type = at::kBFloat16;
    s.steps = 5;
  }
  s.options.reduce_every_micro_step = options["reduce"] == "micro_step";
  if (options["recompute"] == "loop") s.recompute = Recompute::loop;
  if (options.contains("balance")) s.router_bias_speed = std::stod(options["balance"]);
  const int before = failures;
  if (words[0] == "collectives") {
    collectives(*world, options.contains("large") ? std::stoll(options["large"]) : 600'000);
  } else if (words[0] == "equal") {
    equal(world, s);
  } else if (words[0] == "nan") {
    not_a_number(world, s);
  } else if (words[0] == "halting") {
    halting(world, s);
  } else if (words[0] == "idle") {
    idle_experts(world, s);
  } else if (words[0] == "targets") {
    unequal_targets(world, s);
  } else if (words[0] == "bytes") {
    bytes(world, s);
  } else {
    expect(false, "there is no case '{}'", words[0]);
  }
  if (failures == before) return true;
  fmt::print("rank {}: the above of:", my_rank);
  for (const std::string& word : words) fmt::print(" {}", word);
  fmt::print("\n");
  return false;
}

// The number of ranks there should be, then cases with "," between them.
int run(const std::vector<std::string>& words) {
  at::set_num_threads(1);
  const Launch launch = launch_of_environment();
  Team team = launch.by == Launch::By::torchrun
                  ? Team(std::make_shared<StoreCommunicator>(store_of_environment(launch.rank, launch.size), "test",
                                                             launch.rank, launch.size),
                         20)
                  : Team(launch, false, 20);
  my_rank = team.rank();
  expect(!words.empty() && team.size() == std::stoll(words[0]), "{} ranks", team.size());
  for (size_t begin = 1; begin < words.size();) {
    const auto end = std::find(words.begin() + static_cast<ptrdiff_t>(begin), words.end(), ",");
    run_case(team.world(), {words.begin() + static_cast<ptrdiff_t>(begin), end});
    begin = static_cast<size_t>(end - words.begin()) + 1;
  }
  const bool good = all_of(*team.world(), failures == 0);
  team.leave();
  return good ? 0 : 1;
}

}  // namespace
}  // namespace mythos::test

int main(int argc, char** argv) {
  try {
    return mythos::test::run({argv + 1, argv + argc});
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
