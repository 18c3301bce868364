// Whether this machine's GPU computes what it should, and how fast: the core alone, no tests' libraries.
// scripts/gpu_check builds and runs it; without a GPU (--device cpu) the same checks run the kernels' source on the
// host.
#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/units.h"
#include "kernels/cuda/grouped.h"
#include "kernels/cuda/place.h"
#include "kernels/device.h"
#include "kernels/memory.h"
#include "model/flops.h"
#include "plan/memory.h"
#include "step/gemm_rate.h"
#include "step/golden.h"
#include "step/op_speed.h"
#include "step/speed.h"
#include "step/train_step.h"
#include "step/twins.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>

#ifdef MYTHOS_CUDA
#include <cuda_runtime_api.h>
#endif

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace mythos {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

struct Options {
  at::Device device = at::kCPU;
  fs::path golden, out = "gpu_check.json";
  bool only_kernels = false;  // for compute-sanitizer: the fused ops, nothing timed
};

constexpr const char* usage =
    "usage: gpu_check [--device cuda|cpu] [--golden FOLDER] [--out FILE] [--only-kernels]\n"
    "  --golden FOLDER  reference vectors (tests/golden)\n"
    "  --out FILE       the results as one JSON document (gpu_check.json)\n"
    "  --only-kernels   every fused op against its composite form, and nothing else\n";

// Checks by name: each says what it found, and whether that is good.
class Report {
 public:
  explicit Report(const Options& o) : out_(o.out) {}
  void add(const std::string& name, bool ok, Json found, const std::string& text) {
    found["ok"] = ok;
    json_["checks"][name] = std::move(found);
    good_ = good_ && ok;
    std::printf("%-34s %-6s %s (%.0f s)\n", name.c_str(), ok ? "ok" : "FAILED", text.c_str(), seconds());
    std::fflush(stdout);
  }
  // What cannot be asked here is named, and counts neither way.
  void skip(const std::string& name, const std::string& why) {
    json_["checks"][name] = {{"skipped", why}};
    std::printf("%-34s -      %s\n", name.c_str(), why.c_str());
    std::fflush(stdout);
  }
  Json& json() { return json_; }
  [[nodiscard]] double seconds() const { return std::chrono::duration<double>(Clock::now() - begin_).count(); }
  bool write() {
    json_["ok"] = good_;
    json_["seconds"] = seconds();
    write_file_atomically(out_, json_.dump(2) + "\n");
    std::printf("%s: %s\n", good_ ? "all checks passed" : "SOME CHECKS FAILED", out_.c_str());
    return good_;
  }

 private:
  fs::path out_;
  Json json_ = Json::object();
  bool good_ = true;
  Clock::time_point begin_ = Clock::now();
};

Json machine(at::Device device) {
  const std::time_t now = std::time(nullptr);
  char date[32];
  std::strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", std::gmtime(&now));
  Json json = {{"date", date},
               {"device", device_name(device)},
               {"libtorch", libtorch_version()},
               {"compute_capability", cuda::compute_capability(device)},
               {"kernels", device.is_cpu() ? "the CUDA kernels' source, on the host" : "CUDA"}};
#ifdef MYTHOS_CUDA
  if (device.is_cuda()) {
    cudaDeviceProp p{};
    int driver = 0, runtime = 0;
    if (cudaGetDeviceProperties(&p, device.index()) == cudaSuccess) {
      json["device"] = p.name;
      json["multiprocessors"] = p.multiProcessorCount;
      json["memory_bytes"] = p.totalGlobalMem;
      json["l2_bytes"] = p.l2CacheSize;
    }
    cudaDriverGetVersion(&driver);
    cudaRuntimeGetVersion(&runtime);
    json["cuda_driver"] = driver;
    json["cuda_runtime"] = runtime;
  }
#endif
  return json;
}

// ---- correctness ----------------------------------------------------------------------------------------------------

void golden(const Options& o, Report& report) {
  if (o.golden.empty()) return report.skip("golden vectors", "no --golden FOLDER");
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(o.golden)) {
    if (entry.path().extension() == ".safetensors") files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  for (const auto type : {at::kDouble, at::kFloat}) {
    int64_t compared = 0, n = 0;
    double worst = 0;
    Json wrong = Json::array();
    for (const fs::path& file : files) {
      const auto findings = check_golden(file, o.device, type, golden_tolerance(type));
      if (!findings) continue;
      ++n;
      for (const GoldenFinding& f : *findings) {
        ++compared;
        if (f.tolerance > 0 && f.tolerance < 0.1) worst = std::max(worst, f.error);
        if (!f.ok()) wrong.push_back(fmt::format("{}: {}: {:.2g}", file.filename().string(), f.what, f.error));
      }
    }
    const std::string name = fmt::format("golden vectors, {}", type == at::kDouble ? "fp64" : "fp32");
    report.add(name, wrong.empty() && n > 0,
               {{"files", n}, {"comparisons", compared}, {"largest_error", worst}, {"wrong", wrong}},
               fmt::format("{} files, {} comparisons, largest error {:.2g}{}", n, compared, worst,
                           wrong.empty() ? "" : "; first: " + wrong[0].get<std::string>()));
  }
}

void twins(const Options& o, Report& report) {
  for (const auto type : {at::kDouble, at::kFloat, at::kBFloat16}) {
    const auto results = check_twins(o.device, type);
    Json wrong = Json::array();
    double forward = 0, backward = 0;
    for (const TwinResult& r : results) {
      forward = std::max(forward, r.forward);
      backward = std::max(backward, r.backward);
      if (!r.ok())
        wrong.push_back(
            fmt::format("{} of {}: {:.2g}, gradients {:.2g} {}", r.op, r.size, r.forward, r.backward, r.error));
    }
    report.add(fmt::format("fused ops, {}", c10::toString(type)), wrong.empty() && !results.empty(),
               {{"sizes", results.size()},
                {"ops", twin_ops().size()},
                {"largest_difference", forward},
                {"largest_gradient_difference", backward},
                {"wrong", wrong}},
               fmt::format("{} ops in {} sizes{}", twin_ops().size(), results.size(),
                           wrong.empty() ? "" : "; first: " + wrong[0].get<std::string>()));
  }
}

ModelConfig small_model() {
  ModelConfig c;
  c.vocab_size = 512;
  c.dim = 64;
  c.n_heads = 4;
  c.n_kv_heads = 2;
  c.max_seq_len = 64;
  c.max_loop_iters = 3;
  c.prelude_layers = 1;
  c.coda_layers = 1;
  c.kv_lora_rank = 16;
  c.q_lora_rank = 32;
  c.qk_rope_head_dim = 8;
  c.qk_nope_head_dim = 16;
  c.v_head_dim = 16;
  c.n_experts = 8;
  c.n_shared_experts = 1;
  c.n_experts_per_tok = 2;
  c.expert_dim = 32;
  c.lora_rank = 4;
  return c;
}

struct Batch {
  at::Tensor ids, targets;
};
std::vector<Batch> batches(const ModelConfig& c, int64_t n, int64_t rows, int64_t length) {
  const auto generator = at::make_generator<at::CPUGeneratorImpl>(7);
  std::vector<Batch> all;
  for (int64_t i = 0; i < n; ++i) {
    const at::Tensor both = at::randint(c.vocab_size, {rows, length + 1}, generator, at::kLong);
    all.push_back({both.narrow(1, 0, length).contiguous(), both.narrow(1, 1, length).contiguous()});
  }
  return all;
}

struct Trained {
  std::vector<double> losses;
  std::vector<NamedTensor> weights, gradients;  // on the host; the gradients are the first step's
  size_t graphs = 0;
  std::string why_no_graph;
};

// Some steps of a small model, two micro-steps each.
Trained train(const Options& o, at::ScalarType type, int64_t steps, Capture capture, double lr = 1e-3) {
  const ModelConfig c = small_model();
  Model model(c, o.device, type, at::kFloat, true);
  initialize(model.parameters(), c, 3);
  AdamW optimizer(model.parameters(), {});
  TrainStep step(model, optimizer, nullptr, 0.001, capture);
  const auto data = batches(c, 2 * steps, 4, 64);
  Trained out;
  for (int64_t s = 0; s < steps; ++s) {
    step.begin({.loss_tokens = 2 * 4 * 64});
    for (int64_t m = 0; m < 2; ++m) step.micro_step(data[2 * s + m].ids, data[2 * s + m].targets);
    if (s == 0) {
      for (const auto& [name, t] : model.parameters().named_gradients())
        out.gradients.push_back({name, t.cpu().clone()});
    }
    out.losses.push_back(step.finish(lr).loss);
  }
  for (const auto& [name, t] : model.parameters().named_values()) out.weights.push_back({name, t.cpu().clone()});
  out.graphs = step.graph().graphs();
  out.why_no_graph = step.graph().why_not();
  return out;
}

bool same_bits(const std::vector<NamedTensor>& a, const std::vector<NamedTensor>& b) {
  for (size_t i = 0; i < a.size(); ++i) {
    if (!a[i].tensor.equal(b[i].tensor)) return false;
  }
  return a.size() == b.size();
}

// Euclidean, over all tensors together.
double distance(const std::vector<NamedTensor>& a, const std::vector<NamedTensor>& b) {
  double difference = 0, size = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const at::Tensor x = a[i].tensor.to(at::kDouble), y = b[i].tensor.to(at::kDouble);
    difference += (x - y).square().sum().item<double>();
    size += y.square().sum().item<double>();
  }
  return std::sqrt(difference / size);
}

void narrow_against_wide(const Options& o, Report& report) {
  const Trained narrow = train(o, at::kBFloat16, 3, Capture::never), wide = train(o, at::kFloat, 3, Capture::never);
  double loss = 0;
  for (size_t i = 0; i < wide.losses.size(); ++i) {
    loss = std::max(loss, std::abs(narrow.losses[i] - wide.losses[i]) / wide.losses[i]);
  }
  const double gradient = distance(narrow.gradients, wide.gradients);
  report.add("bfloat16 against fp32", loss < 5e-3 && gradient < 5e-2,
             {{"loss_difference", loss}, {"gradient_distance", gradient}},
             fmt::format("losses within {:.1e}, gradients within {:.1e}", loss, gradient));
}

void determinism(const Options& o, Report& report) {
  const auto twice = [&] {
    const Trained a = train(o, at::kBFloat16, 3, Capture::when_possible),
                  b = train(o, at::kBFloat16, 3, Capture::when_possible);
    return same_bits(a.weights, b.weights) && a.losses == b.losses;
  };
  const bool by_default = twice();
  at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/true);
  const bool asked = twice();
  at::globalContext().setDeterministicAlgorithms(false, true);
  report.add("determinism", asked, {{"by_default", by_default}, {"with_deterministic_algorithms", asked}},
             fmt::format("three steps twice: {} by default, {} where LibTorch is asked to be deterministic",
                         by_default ? "the same bits" : "other bits", asked ? "the same bits" : "other bits"));
}

void graphs(const Options& o, Report& report) {
  const Trained plain = train(o, at::kBFloat16, 4, Capture::never),
                captured = train(o, at::kBFloat16, 4, Capture::when_possible);
  if (o.device.is_cpu()) return report.skip("CUDA graphs", captured.why_no_graph);
  const double apart = distance(captured.weights, plain.weights);
  report.add("CUDA graphs", captured.graphs == 1 && apart < 1e-3,
             {{"graphs", captured.graphs},
              {"why_not", captured.why_no_graph},
              {"distance", apart},
              {"same_bits", same_bits(captured.weights, plain.weights)}},
             captured.graphs == 1
                 ? fmt::format("a micro-step is one graph; weights after four steps within {:.1e}", apart)
                 : captured.why_no_graph);
}

void out_of_memory(const Options& o, Report& report) {
  if (o.device.is_cpu()) return report.skip("out of memory", "the host's memory is not filled up");
  const ModelConfig c = small_model();
  Model model(c, o.device, at::kBFloat16, at::kFloat, true);
  initialize(model.parameters(), c, 3);
  AdamW optimizer(model.parameters(), {});
  TrainStep step(model, optimizer, nullptr, 0, Capture::never);
  const auto loss_of = [&](int64_t rows) {
    const Batch batch = batches(c, 1, rows, 64)[0];
    step.begin({.loss_tokens = static_cast<double>(rows * 64)});
    step.micro_step(batch.ids, batch.targets);
    return step.finish(0).loss;
  };
  const double before = loss_of(4);
  std::string message;
  try {
    // About 50 KB of activations a token.
    (void)loss_of(free_memory(o.device) / (64 * int64_t{10'000}));
  } catch (const c10::OutOfMemoryError& e) {
    message = e.what_without_backtrace();
  }
  release_cached_memory(o.device);
  const double after = loss_of(4);
  report.add(
      "out of memory", !message.empty() && before == after,
      {{"message", message}, {"loss_before", before}, {"loss_after", after}},
      message.empty() ? "nothing ran out" : "a batch that is too large is refused, and the next step is as before");
}

// ---- speed ----------------------------------------------------------------------------------------------------------

TrainSpeedOptions speed_options(const Options& o, int64_t micro_batch, Recompute recompute) {
  TrainSpeedOptions t;
  t.model = o.device.is_cpu() ? small_model() : preset("mythos_300m");
  t.model.vocab_size = o.device.is_cpu() ? 512 : 199'998;
  t.device = o.device;
  t.compute = at::kBFloat16;
  t.seq_len = t.model.max_seq_len;
  t.micro_batch = micro_batch;
  t.grad_accum = o.device.is_cpu() ? 1 : 8;
  t.steps = 3;
  t.warmup = 1;
  t.recompute = recompute;
  return t;
}

void train_speed(const Options& o, Report& report) {
  Json all = Json::array();
  bool measured = false, memory_ok = true;
  std::string best_text;
  double best = 0;
  for (const Recompute recompute : {Recompute::none, Recompute::loop}) {
    for (const int64_t micro_batch : {1, 2, 3, 6, 12}) {
      if (o.device.is_cpu() && micro_batch > 2) continue;
      const TrainSpeedOptions t = speed_options(o, micro_batch, recompute);
      const MemoryPlan plan = plan_memory(t.model, micro_batch, t.seq_len, t.model.max_loop_iters, recompute, 2);
      const char* how = recompute == Recompute::loop ? "loop" : "none";
      Json one = {{"micro_batch", micro_batch}, {"recompute", how}, {"planned_bytes", plan.total() - plan.program}};
      if (!o.device.is_cpu() && plan.total() > free_memory(o.device)) {
        one["skipped"] = "does not fit, by the plan";
        all.push_back(std::move(one));
        continue;
      }
      try {
        const TrainSpeed s = measure_training(t, [](const std::string&) {});
        measured = true;
        one["tokens_per_s"] = s.tokens_per_second();
        one["flops_per_s"] = s.tokens_per_second() * s.train_flops_per_token;
        one["gemm_flops_per_s"] = s.gemm_flops_per_s;
        one["fraction_of_gemm_limit"] = s.fraction_of_limit();
        one["peak_tensor_bytes"] = s.peak_tensor_bytes;
        one["plan_over_peak"] =
            static_cast<double>(plan.total() - plan.program) / static_cast<double>(s.peak_tensor_bytes);
        one["step_seconds"] = s.step_seconds;
        one["cuda_graphs"] = s.graphs;
        one["why_no_graph"] = s.why_no_graph;
        // A plan may be wrong by some; one that promises less than half of what is needed would end a run.
        memory_ok = memory_ok && one["plan_over_peak"].get<double>() > 0.5;
        if (s.tokens_per_second() > best) {
          best = s.tokens_per_second();
          best_text = fmt::format(
              "{} tokens/s at micro_batch {}, recompute {}: {}FLOP/s, {:.0f}% of its products' rate; "
              "tensors {}, planned {}",
              with_commas(static_cast<int64_t>(best)), micro_batch, how, si_text(best * s.train_flops_per_token),
              100 * s.fraction_of_limit(), bytes_text(static_cast<double>(s.peak_tensor_bytes)),
              bytes_text(static_cast<double>(plan.total() - plan.program)));
        }
      } catch (const c10::OutOfMemoryError& e) {
        one["out_of_memory"] = e.what_without_backtrace();
      }
      release_cached_memory(o.device);
      all.push_back(std::move(one));
      if (report.seconds() > 400) break;
    }
  }
  report.json()["training"] = std::move(all);
  report.add("training", measured && (o.device.is_cpu() || memory_ok), {}, best_text);
}

void op_speed(const Options& o, Report& report) {
  OpSpeedOptions s;
  s.model = o.device.is_cpu() ? small_model() : preset("mythos_300m");
  s.model.vocab_size = o.device.is_cpu() ? 512 : 199'998;
  s.seq_len = s.model.max_seq_len;
  s.micro_batch = o.device.is_cpu() ? 1 : 3;
  s.head_tokens = o.device.is_cpu() ? 64 : 6144;
  s.seconds = o.device.is_cpu() ? 0.01 : 0.3;
  s.device = o.device;
  s.type = at::kBFloat16;
  Json all = Json::array();
  std::string slowest;
  double least = 1e9;
  for (const OpSpeed& op : measure_ops(s, [](const std::string&) {})) {
    const auto times = [](const OpTimes& t, double rate, double limit) {
      return Json{{"ms", 1e3 * t.ours},
                  {"composite_ms", 1e3 * t.composite},
                  {"rate", rate},
                  {"fraction_of_limit", rate / limit}};
    };
    all.push_back({{"name", op.name},
                   {"shape", op.shape},
                   {"unit", op.by_flops ? "FLOP/s" : "B/s"},
                   {"limit", op.limit},
                   {"forward", times(op.forward, op.forward_rate(), op.limit)},
                   {"forward_backward", times(op.both, op.both_rate(), op.limit)}});
    if (op.both_rate() / op.limit < least) {
      least = op.both_rate() / op.limit;
      slowest = op.name;
    }
  }
  report.json()["ops"] = std::move(all);
  report.add("ops", true, {},
             fmt::format("farthest from its limit: {} ({:.0f}% forward and backward)", slowest, 100 * least));
}

int run(const Options& o) {
  keep_tensor_memory();
  std::unique_ptr<cuda::OnHost> host;
  if (o.device.is_cpu()) host = std::make_unique<cuda::OnHost>();
  Report report(o);
  report.json()["machine"] = machine(o.device);
  const std::string grouped =
      cuda::name_of(cuda::grouped_backend(at::empty({1, 8}, at::TensorOptions(o.device).dtype(at::kBFloat16)), {8}));
  report.json()["machine"]["experts_by"] = grouped;
  std::printf("%s, LibTorch %s; experts by %s\n", report.json()["machine"]["device"].get<std::string>().c_str(),
              libtorch_version().c_str(), grouped.c_str());
  twins(o, report);
  if (!o.only_kernels) {
    golden(o, report);
    narrow_against_wide(o, report);
    determinism(o, report);
    graphs(o, report);
    out_of_memory(o, report);
    op_speed(o, report);
    train_speed(o, report);
  }
  return report.write() ? 0 : 1;
}

Options parse(int argc, char** argv) {
  Options o;
  std::string device = "cuda";
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const auto value = [&] {
      if (i + 1 == argc) throw usage_error(word + " wants a value", "see --help");
      return std::string(argv[++i]);
    };
    if (word == "--help") {
      std::fputs(usage, stdout);
      std::exit(0);
    } else if (word == "--device") {
      device = value();
    } else if (word == "--golden") {
      o.golden = value();
    } else if (word == "--out") {
      o.out = value();
    } else if (word == "--only-kernels") {
      o.only_kernels = true;
    } else {
      throw usage_error(fmt::format("unknown option {}", word), "see --help");
    }
  }
  if (device != "cpu" && device != "cuda")
    throw usage_error(fmt::format("--device {}: known are cuda and cpu", device));
  if (device == "cuda") {
    if (!at::hasCUDA()) {
      throw usage_error("there is no CUDA device that LibTorch can use",
                        "look at nvidia-smi; --device cpu runs the same checks on the host");
    }
    o.device = at::Device(at::kCUDA, 0);
  }
  return o;
}

}  // namespace
}  // namespace mythos

int main(int argc, char** argv) {
  try {
    return mythos::run(mythos::parse(argc, argv));
  } catch (const mythos::Error& e) {
    std::fprintf(stderr, "gpu_check: %s\n", e.line().c_str());
    return static_cast<int>(e.code());
  } catch (const std::exception& e) {
    std::fprintf(stderr, "gpu_check: %s\n", e.what());
    return 1;
  }
}
