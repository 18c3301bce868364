// The catalogue of GPUs, rented machines and prices (configs/hardware.toml, compiled in), and what a user lays over it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace mythos {

struct Gpu {
  std::string name;
  std::string device;  ///< part of the name that the driver gives it, where that is another
  int64_t memory_bytes = 0;
  double bf16_flops = 0;    ///< dense, fp32 accumulation; 0 where `unsupported` is set
  double bandwidth = 0;     ///< bytes/s
  double link = 0;          ///< bytes/s it sends to the other GPUs of its machine; 0: not known
  std::string unsupported;  ///< why it cannot train this model; empty: it can
};

struct Instance {
  std::string name;
  std::string gpu;  ///< a Gpu's name
  int64_t gpus = 0;
  int64_t vcpus = 0;
  int64_t memory_bytes = 0;              ///< of the host
  int64_t local_disk_bytes = 0;          ///< lost when the machine stops; 0: none
  double network = 0;                    ///< bytes/s it sends to other machines; 0: not known
  std::map<std::string, double> prices;  ///< dollars an hour by region; under "": anywhere
  std::string quota;                     ///< the quota's family ("G and VT", "P"); empty: it needs none

  /// Dollars an hour; nothing where the catalogue has no price for the region.
  [[nodiscard]] std::optional<double> price(const std::string& region) const;
};

/// What is assumed where nothing was measured.
struct AssumedSpeed {
  double mfu = 0, low = 0, high = 0;  ///< fractions of the dense bf16 peak
  std::string source;
};
/// The Python reference's own run.
struct ReferenceSpeed {
  double mfu = 0;
  double tokens_per_second = 0;
  std::string source;
};

class Catalogue {
 public:
  /// What the program was built with.
  static Catalogue built_in();
  /// built_in() with ~/.config/mythos/hardware.toml ($XDG_CONFIG_HOME) laid over it where that is there, and then
  /// `file` where one is named.
  static Catalogue load(const std::filesystem::path& file = {});

  /// Lays a catalogue's text over this one. Entries are found by name; one that is new needs all its fields. Throws one
  /// usage Error naming `name`, the entry, the field and its line: unknown keys, missing fields, wrong types, negative
  /// or absurd numbers, a machine with a GPU that is not listed.
  void add(std::string_view text, const std::string& name);

  /// By name, whatever its case, spaces and dashes ("rtx4090"). Throws usage Error with the nearest names.
  [[nodiscard]] const Gpu& gpu(const std::string& name) const;
  /// The same, refusing cards that cannot train with the reason.
  [[nodiscard]] const Gpu& supported_gpu(const std::string& name) const;
  [[nodiscard]] const Instance& instance(const std::string& name) const;
  /// A region of the catalogue as it is spelt there. Throws usage Error with the nearest.
  [[nodiscard]] std::string region(const std::string& name) const;
  /// The listed GPU that a device's own name means ("NVIDIA L40S"); null if none does.
  [[nodiscard]] const Gpu* gpu_of_device(const std::string& device) const;

  [[nodiscard]] const std::vector<Gpu>& gpus() const { return gpus_; }
  [[nodiscard]] const std::vector<Instance>& instances() const { return instances_; }
  [[nodiscard]] const AssumedSpeed& assumed() const { return assumed_; }
  [[nodiscard]] const ReferenceSpeed& reference() const { return reference_; }
  /// "2026-07-20": the date its prices are of.
  [[nodiscard]] const std::string& dated() const { return dated_; }

 private:
  std::vector<Gpu> gpus_;
  std::vector<Instance> instances_;
  AssumedSpeed assumed_;
  ReferenceSpeed reference_;
  std::string dated_;
};

/// The texts that were compiled in.
std::string_view built_in_hardware();
std::string_view built_in_quotas();

}  // namespace mythos
