#include "plan/hardware.h"

#include "base/error.h"
#include "base/file.h"
#include "base/units.h"
#include "plan/entry.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>

namespace mythos {
namespace fs = std::filesystem;
namespace {

// Letters and digits alone, small.
std::string plain(std::string_view name) {
  std::string out;
  for (const char c : name) {
    if (c >= 'A' && c <= 'Z') out += static_cast<char>(c - 'A' + 'a');
    if ((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '.') out += c;
  }
  return out;
}

template <typename T>
std::vector<std::string> names_of(const std::vector<T>& list) {
  std::vector<std::string> out;
  for (const auto& x : list) out.push_back(x.name);
  return out;
}

template <typename T>
const T& find(const std::vector<T>& list, const std::string& name, const char* what, const char* option) {
  std::vector<const T*> begins;
  for (const T& x : list) {
    if (plain(x.name) == plain(name)) return x;
    if (!plain(name).empty() && plain(x.name).starts_with(plain(name))) begins.push_back(&x);
  }
  if (begins.size() == 1 && std::string_view(what) == "GPU") return *begins[0];
  if (begins.size() > 1) {
    std::vector<std::string> names;
    for (const T* x : begins) names.push_back(x->name);
    throw usage_error(fmt::format("there are several {}s whose name begins with '{}'", what, name),
                      fmt::format("one of {}", fmt::join(names, ", ")));
  }
  throw usage_error(fmt::format("there is no {} '{}' in the catalogue", what, name),
                    fmt::format("{}; {} adds one", suggestion(name, names_of(list)), option));
}

template <typename T>
T& slot(std::vector<T>& list, const std::string& name, bool& known) {
  for (T& x : list) {
    if (plain(x.name) == plain(name)) {
      known = true;
      return x;
    }
  }
  known = false;
  list.push_back({});
  list.back().name = name;
  return list.back();
}

void take_gpu(std::vector<Gpu>& gpus, const Value& value, const std::string& name) {
  const std::string called = entry_name(value, "gpu", name);
  bool known = false;
  Gpu g = slot(gpus, called, known);
  Entry entry(value, fmt::format("{}: gpu \"{}\"", name, called), known);
  entry.text("name");
  if (const auto device = entry.text("device", false)) g.device = *device;
  if (const auto why = entry.text("unsupported", false)) g.unsupported = *why;
  if (const auto n = entry.number("memory_mib", 256, 1 << 24)) g.memory_bytes = static_cast<int64_t>(*n) << 20;
  if (const auto x = entry.number("bf16_tflops", 0.001, 1e6, g.unsupported.empty())) g.bf16_flops = *x * 1e12;
  if (const auto x = entry.number("bandwidth_gb_s", 1, 1e6)) g.bandwidth = *x * 1e9;
  if (const auto x = entry.number("link_gb_s", 0.001, 1e6, false)) g.link = *x * 1e9;
  entry.done();
  slot(gpus, called, known) = g;
}

std::map<std::string, double> prices_of(Entry& entry, const Value& value) {
  std::map<std::string, double> prices;
  const auto* const table = value.as<Value::Table>();
  if (table == nullptr) {
    throw usage_error(fmt::format("{}: prices must be a table like {{ us-east-1 = 1.861 }}", entry.place(value.line)));
  }
  Entry all(value, entry.what() + ": prices");
  for (const auto& [region, price] : *table) prices[region] = *all.number(region, 0, 1e5);
  return prices;
}

void take_instance(std::vector<Instance>& instances, const Value& value, const std::string& name) {
  const std::string called = entry_name(value, "instance", name);
  bool known = false;
  Instance i = slot(instances, called, known);
  Entry entry(value, fmt::format("{}: instance \"{}\"", name, called), known);
  entry.text("name");
  if (const auto gpu = entry.text("gpu")) i.gpu = *gpu;
  if (const auto n = entry.number("gpus", 1, 1024)) i.gpus = static_cast<int64_t>(*n);
  if (const auto n = entry.number("vcpus", 1, 1 << 16)) i.vcpus = static_cast<int64_t>(*n);
  if (const auto n = entry.number("memory_gib", 1, 1 << 20)) i.memory_bytes = static_cast<int64_t>(*n * 1073741824.0);
  if (const auto n = entry.number("local_disk_gb", 0, 1e7, false)) i.local_disk_bytes = static_cast<int64_t>(*n * 1e9);
  if (const auto x = entry.number("network_gbit_s", 0.001, 1e6, false)) i.network = *x * 1e9 / 8;
  if (const auto quota = entry.text("quota", false)) i.quota = *quota;
  if (const Value* const prices = entry.value("prices")) {
    for (const auto& [region, price] : prices_of(entry, *prices)) i.prices[region] = price;
  }
  if (const auto price = entry.number("price", 0, 1e5, false)) i.prices[""] = *price;
  entry.done();
  slot(instances, called, known) = i;
}

fs::path own_file() {
  const char* const base = std::getenv("XDG_CONFIG_HOME");
  if (base != nullptr && *base == '/') return fs::path(base) / "mythos" / "hardware.toml";
  const char* const home = std::getenv("HOME");
  return home != nullptr && *home == '/' ? fs::path(home) / ".config" / "mythos" / "hardware.toml" : fs::path();
}

}  // namespace

std::optional<double> Instance::price(const std::string& region) const {
  const auto own = prices.find("");
  if (own != prices.end()) return own->second;
  const auto found = prices.find(region);
  return found != prices.end() ? std::optional(found->second) : std::nullopt;
}

Catalogue Catalogue::built_in() {
  Catalogue c;
  c.add(built_in_hardware(), "the built-in catalogue");
  return c;
}

Catalogue Catalogue::load(const fs::path& file) {
  Catalogue c = built_in();
  std::error_code ec;
  const fs::path own = own_file();
  if (!own.empty() && fs::is_regular_file(own, ec)) c.add(read_file(own, 1 << 20), own.string());
  if (!file.empty()) {
    if (!fs::is_regular_file(file, ec)) throw usage_error(fmt::format("there is no file {}", file.string()));
    c.add(read_file(file, 1 << 20), file.string());
  }
  return c;
}

void Catalogue::add(std::string_view text, const std::string& name) {
  const Value root = parse_toml(text, name);
  const auto& table = std::get<Value::Table>(root.data);
  Catalogue next = *this;
  Entry top(root, name, true);
  if (const auto dated = top.text("dated")) next.dated_ = *dated;
  if (const Value* const estimate = top.value("estimate")) {
    Entry e(*estimate, name + ": [estimate]", !next.gpus_.empty());
    if (const auto x = e.number("mfu", 1e-6, 1)) next.assumed_.mfu = *x;
    if (const auto x = e.number("low", 1e-6, 1)) next.assumed_.low = *x;
    if (const auto x = e.number("high", 1e-6, 1)) next.assumed_.high = *x;
    if (const auto s = e.text("source")) next.assumed_.source = *s;
    e.done();
    if (!(next.assumed_.low <= next.assumed_.mfu && next.assumed_.mfu <= next.assumed_.high)) {
      throw usage_error(fmt::format("{}: [estimate] low, mfu and high must be in this order", name));
    }
  }
  if (const Value* const reference = top.value("reference")) {
    Entry e(*reference, name + ": [reference]", !next.gpus_.empty());
    if (const auto x = e.number("mfu", 1e-6, 1)) next.reference_.mfu = *x;
    if (const auto x = e.number("tokens_per_s", 1e-6, 1e12)) next.reference_.tokens_per_second = *x;
    if (const auto s = e.text("source")) next.reference_.source = *s;
    e.done();
  }
  top.value("gpu");
  top.value("instance");
  top.done();
  for (const Value* v : entries(table, "gpu", name)) take_gpu(next.gpus_, *v, name);
  for (const Value* v : entries(table, "instance", name)) take_instance(next.instances_, *v, name);
  for (const Instance& i : next.instances_) {
    const bool listed =
        std::any_of(next.gpus_.begin(), next.gpus_.end(), [&](const Gpu& g) { return plain(g.name) == plain(i.gpu); });
    if (!listed) {
      throw usage_error(fmt::format("{}: instance \"{}\" has the GPU '{}', which is not listed", name, i.name, i.gpu),
                        suggestion(i.gpu, names_of(next.gpus_)));
    }
  }
  *this = std::move(next);
}

const Gpu& Catalogue::gpu(const std::string& name) const {
  return find(gpus_, name, "GPU", "a [[gpu]] in --hardware FILE");
}

const Gpu& Catalogue::supported_gpu(const std::string& name) const {
  const Gpu& g = gpu(name);
  if (!g.unsupported.empty()) {
    throw refusal(fmt::format("{} cannot train this model: {}", g.name, g.unsupported),
                  "choose a card with bf16: A10G, L4, L40S, A100 or newer");
  }
  return g;
}

const Instance& Catalogue::instance(const std::string& name) const {
  return find(instances_, name, "instance", "an [[instance]] in --hardware FILE");
}

std::string Catalogue::region(const std::string& name) const {
  std::vector<std::string> regions;
  for (const Instance& i : instances_) {
    for (const auto& [region, price] : i.prices) {
      if (!region.empty() && std::find(regions.begin(), regions.end(), region) == regions.end())
        regions.push_back(region);
    }
  }
  std::sort(regions.begin(), regions.end());
  if (std::find(regions.begin(), regions.end(), name) != regions.end()) return name;
  throw usage_error(fmt::format("the catalogue has no prices for a region '{}'", name), suggestion(name, regions));
}

const Gpu* Catalogue::gpu_of_device(const std::string& device) const {
  const Gpu* best = nullptr;  // the longest name that is in it: "L40S" before "L4"
  size_t longest = 0;
  for (const Gpu& g : gpus_) {
    const std::string name = plain(g.device.empty() ? g.name : g.device);
    if (name.size() > longest && plain(device).find(name) != std::string::npos) {
      best = &g;
      longest = name.size();
    }
  }
  return best;
}

}  // namespace mythos
