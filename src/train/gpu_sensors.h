// Power, temperature, clocks and utilisation of an NVIDIA GPU, read through the driver's own library (NVML), which is
// loaded when there is one and not missed when there is none.
#pragma once

#include "base/json.h"

#include <memory>
#include <optional>
#include <string>

namespace mythos {

struct GpuReading {
  std::optional<double> power_watts;
  std::optional<double> temperature_celsius;
  std::optional<double> sm_clock_mhz, memory_clock_mhz;
  std::optional<double> utilisation, memory_utilisation;  ///< fractions of the last second or so
};
/// {"power_w", "temperature_c", "sm_clock_mhz", "memory_clock_mhz", "utilisation", "memory_utilisation"}, what is
/// known.
Json to_json(const GpuReading& reading);

class GpuSensors {
 public:
  /// The `index`-th of the GPUs this process may use (CUDA_VISIBLE_DEVICES, by number or by UUID). `library`: another
  /// file than the system's libnvidia-ml.so.1. Where anything is missing, read() gives nothing.
  explicit GpuSensors(int index, const std::string& library = "");
  ~GpuSensors();
  GpuSensors(const GpuSensors&) = delete;
  GpuSensors& operator=(const GpuSensors&) = delete;

  /// What the GPU tells now, in about a millisecond; nothing if it tells nothing.
  [[nodiscard]] std::optional<GpuReading> read() const;

 private:
  struct Library;
  std::unique_ptr<Library> library_;
};

}  // namespace mythos
