#include "plan/machine.h"

#include "kernels/cross_entropy.h"

#include <fmt/format.h>
#include <sched.h>
#include <sys/resource.h>
#include <torch/csrc/api/include/torch/version.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <fstream>
#include <optional>
#include <sstream>

namespace mythos {
namespace {

std::string first_line(const char* path) {
  std::ifstream in(path);
  std::string line;
  std::getline(in, line);
  return line;
}

std::optional<int64_t> number_in(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end == text.data()) return std::nullopt;
  return value;
}

// "MemAvailable:   123 kB" in bytes.
std::optional<int64_t> meminfo(const std::string& key) {
  std::ifstream in("/proc/meminfo");
  std::string name;
  int64_t kib = 0;
  std::string line;
  while (std::getline(in, line)) {
    std::istringstream fields(line);
    fields.imbue(std::locale::classic());
    if (fields >> name >> kib && name == key + ":") return kib * 1024;
  }
  return std::nullopt;
}

std::optional<int64_t> cgroup_memory_limit() {
  for (const char* path : {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}) {
    if (const auto n = number_in(first_line(path)); n && *n > 0) return n;
  }
  return std::nullopt;
}

}  // namespace

int64_t usable_cpus() {
  int64_t n = std::max<int64_t>(1, ::sysconf(_SC_NPROCESSORS_ONLN));
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof(set), &set) == 0 && CPU_COUNT(&set) > 0) n = std::min<int64_t>(n, CPU_COUNT(&set));
  // cgroup v2: "max 100000" or "QUOTA PERIOD" in microseconds.
  const std::string quota = first_line("/sys/fs/cgroup/cpu.max");
  const size_t space = quota.find(' ');
  if (space != std::string::npos) {
    const auto q = number_in(quota);
    const auto period = number_in(std::string_view(quota).substr(space + 1));
    if (q && period && *q > 0 && *period > 0) n = std::min(n, std::max<int64_t>(1, (*q + *period - 1) / *period));
  }
  return n;
}

int64_t usable_memory() {
  const int64_t total = meminfo("MemTotal").value_or(int64_t{1} << 40);
  return std::min(total, cgroup_memory_limit().value_or(total));
}

int64_t available_memory() {
  const int64_t free = meminfo("MemAvailable").value_or(usable_memory());
  const auto limit = cgroup_memory_limit();
  if (!limit) return free;
  const auto used = number_in(first_line("/sys/fs/cgroup/memory.current"));
  return std::min(free, std::max<int64_t>(0, *limit - used.value_or(0)));
}

int64_t resident_bytes() {
  const std::string line = first_line("/proc/self/statm");
  const size_t space = line.find(' ');
  if (space == std::string::npos) return 0;
  return number_in(std::string_view(line).substr(space + 1)).value_or(0) * ::sysconf(_SC_PAGESIZE);
}

int64_t peak_resident_bytes() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss * 1024;
}

std::string host_name() {
  char name[256] = {};
  return ::gethostname(name, sizeof(name) - 1) == 0 ? name : "unknown";
}

std::string libtorch_version() {
  return fmt::format("{}.{}.{}", TORCH_VERSION_MAJOR, TORCH_VERSION_MINOR, TORCH_VERSION_PATCH);
}

std::string device_name(at::Device device) {
  if (!device.is_cpu()) return device.str();
  std::ifstream in("/proc/cpuinfo");
  std::string line;
  while (std::getline(in, line)) {
    if (line.starts_with("model name")) {
      const size_t colon = line.find(": ");
      if (colon != std::string::npos) return line.substr(colon + 2);
    }
  }
  return "CPU";
}

std::vector<GemmShape> gemm_shapes(const ModelConfig& c, int64_t tokens, int64_t loops) {
  std::vector<GemmShape> shapes;
  const auto add = [&](int64_t m, int64_t n, int64_t k, double times) {
    shapes.push_back({std::max<int64_t>(1, m), n, k, 2.0 * static_cast<double>(n) * static_cast<double>(k) * times});
  };
  const auto attention = [&](double times) {
    if (c.attn_type == AttentionType::mla) {
      add(tokens, c.q_lora_rank + c.kv_lora_rank + c.qk_rope_head_dim, c.dim, times);
      add(tokens, c.n_heads * c.qk_head_dim(), c.q_lora_rank, times);
      add(tokens, c.n_heads * (c.qk_nope_head_dim + c.v_head_dim), c.kv_lora_rank, times);
      add(tokens, c.dim, c.n_heads * c.v_head_dim, times);
    } else {
      add(tokens, (c.n_heads + 2 * c.n_kv_heads) * c.head_dim(), c.dim, times);
      add(tokens, c.dim, c.n_heads * c.head_dim(), times);
    }
  };
  const auto blocks = static_cast<double>(c.prelude_layers + c.coda_layers);
  const auto n = static_cast<double>(loops);
  add(std::min(tokens, cross_entropy_chunk_rows(c.vocab_size)), c.vocab_size, c.dim, 1);
  attention(blocks + n);
  if (blocks > 0) {
    add(tokens, 2 * c.dense_dim(), c.dim, blocks);
    add(tokens, c.dim, c.dense_dim(), blocks);
  }
  const int64_t per_expert = tokens * c.n_experts_per_tok / c.n_experts;
  add(per_expert, 2 * c.expert_dim, c.dim, n * static_cast<double>(c.n_experts_per_tok));
  add(per_expert, c.dim, c.expert_dim, n * static_cast<double>(c.n_experts_per_tok));
  if (c.n_shared_experts > 0) {
    add(tokens, 2 * c.shared_dim(), c.dim, n * static_cast<double>(c.n_shared_experts));
    add(tokens, c.dim, c.shared_dim(), n * static_cast<double>(c.n_shared_experts));
  }
  return shapes;
}

double measure_gemm_rate(const std::vector<GemmShape>& shapes, at::Device device, at::ScalarType dtype,
                         double seconds) {
  using Clock = std::chrono::steady_clock;
  const at::NoGradGuard no_grad;
  double total_flops = 0, total_time = 0;
  for (const auto& s : shapes) total_flops += s.flops;
  for (const auto& s : shapes) {
    const auto options = at::TensorOptions(device).dtype(dtype);
    const at::Tensor a = at::ones({s.m, s.k}, options);
    const at::Tensor b = at::ones({s.n, s.k}, options);
    at::Tensor c = at::empty({s.m, s.n}, options);
    const double flops = 2.0 * static_cast<double>(s.m) * static_cast<double>(s.n) * static_cast<double>(s.k);
    double best = 0, spent = 0;
    const double share = seconds * s.flops / total_flops;
    for (int run = 0; run < 3 || (spent < share && run < 1000); ++run) {
      const auto begin = Clock::now();
      at::mm_out(c, a, b.t());
      if (!device.is_cpu()) c.view(-1)[0].item();  // wait for the device
      const double t = std::chrono::duration<double>(Clock::now() - begin).count();
      spent += t;
      if (run > 0) best = std::max(best, flops / t);  // the first run warms up
    }
    total_time += s.flops / best;
  }
  return total_flops / total_time;
}

}  // namespace mythos
