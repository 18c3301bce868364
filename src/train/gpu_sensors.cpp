#include "train/gpu_sensors.h"

#include <dlfcn.h>

#include <charconv>
#include <cstdlib>
#include <string_view>

namespace mythos {

Json to_json(const GpuReading& r) {
  Json out = Json::object();
  const auto put = [&](const char* name, const std::optional<double>& value) {
    if (value) out[name] = *value;
  };
  put("power_w", r.power_watts);
  put("temperature_c", r.temperature_celsius);
  put("sm_clock_mhz", r.sm_clock_mhz);
  put("memory_clock_mhz", r.memory_clock_mhz);
  put("utilisation", r.utilisation);
  put("memory_utilisation", r.memory_utilisation);
  return out;
}

// The few functions that are used, as NVIDIA's NVML API reference describes them (docs.nvidia.com/deploy/nvml-api).
struct GpuSensors::Library {
  using Device = void*;
  struct Utilisation {
    unsigned gpu, memory;  // percent
  };
  static constexpr int ok = 0;
  static constexpr int on_die = 0, sm_clock = 1, memory_clock = 2;

  void* handle = nullptr;
  Device device = nullptr;
  bool started = false;
  int (*init)() = nullptr;
  int (*shutdown)() = nullptr;
  int (*by_index)(unsigned, Device*) = nullptr;
  int (*by_uuid)(const char*, Device*) = nullptr;
  int (*power)(Device, unsigned*) = nullptr;  // milliwatts
  int (*temperature)(Device, int, unsigned*) = nullptr;
  int (*clock)(Device, int, unsigned*) = nullptr;
  int (*utilisation)(Device, Utilisation*) = nullptr;

  template <class Function>
  void find(Function*& function, const char* name) const {
    function = reinterpret_cast<Function*>(::dlsym(handle, name));
  }

  explicit Library(const char* file) : handle(::dlopen(file, RTLD_NOW | RTLD_LOCAL)) {
    if (handle == nullptr) return;
    find(init, "nvmlInit_v2");
    find(shutdown, "nvmlShutdown");
    find(by_index, "nvmlDeviceGetHandleByIndex_v2");
    find(by_uuid, "nvmlDeviceGetHandleByUUID");
    find(power, "nvmlDeviceGetPowerUsage");
    find(temperature, "nvmlDeviceGetTemperature");
    find(clock, "nvmlDeviceGetClockInfo");
    find(utilisation, "nvmlDeviceGetUtilizationRates");
    started = init != nullptr && init() == ok;
  }
  ~Library() {
    if (started && shutdown != nullptr) shutdown();
    if (handle != nullptr) ::dlclose(handle);
  }
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  void choose(int index) {
    const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES");
    std::string_view rest = visible != nullptr ? visible : "";
    if (!started || by_index == nullptr) return;
    if (rest.empty()) {
      if (by_index(static_cast<unsigned>(index), &device) != ok) device = nullptr;
      return;
    }
    for (; index > 0 && !rest.empty(); --index)
      rest.remove_prefix(std::min(rest.size(), rest.find(',')) + (rest.find(',') < rest.size() ? 1 : 0));
    const std::string name(rest.substr(0, rest.find(',')));
    unsigned number = 0;
    const auto [end, code] = std::from_chars(name.data(), name.data() + name.size(), number);
    if (code == std::errc() && end == name.data() + name.size()) {
      if (by_index(number, &device) != ok) device = nullptr;
    } else if (by_uuid == nullptr || by_uuid(name.c_str(), &device) != ok) {
      device = nullptr;
    }
  }
};

GpuSensors::GpuSensors(int index, const std::string& library)
    : library_(std::make_unique<Library>(library.empty() ? "libnvidia-ml.so.1" : library.c_str())) {
  library_->choose(index);
}
GpuSensors::~GpuSensors() = default;

std::optional<GpuReading> GpuSensors::read() const {
  const Library& l = *library_;
  if (l.device == nullptr) return std::nullopt;
  GpuReading r;
  unsigned value = 0;
  if (l.power != nullptr && l.power(l.device, &value) == Library::ok) r.power_watts = value / 1000.0;
  if (l.temperature != nullptr && l.temperature(l.device, Library::on_die, &value) == Library::ok) {
    r.temperature_celsius = value;
  }
  if (l.clock != nullptr && l.clock(l.device, Library::sm_clock, &value) == Library::ok) r.sm_clock_mhz = value;
  if (l.clock != nullptr && l.clock(l.device, Library::memory_clock, &value) == Library::ok) r.memory_clock_mhz = value;
  Library::Utilisation used{};
  if (l.utilisation != nullptr && l.utilisation(l.device, &used) == Library::ok) {
    r.utilisation = used.gpu / 100.0;
    r.memory_utilisation = used.memory / 100.0;
  }
  if (to_json(r).empty()) return std::nullopt;
  return r;
}

}  // namespace mythos
