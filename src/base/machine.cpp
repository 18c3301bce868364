#include "base/machine.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
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

int64_t default_threads() {
  const char* const asked = std::getenv("OMP_NUM_THREADS");
  const auto n = asked != nullptr ? number_in(asked) : std::nullopt;
  return n && *n > 0 ? std::min<int64_t>(*n, 4096) : usable_cpus();
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

void reset_peak_resident_bytes() {
  const int fd = ::open("/proc/self/clear_refs", O_WRONLY | O_CLOEXEC);
  if (fd < 0) return;
  (void)!::write(fd, "5", 1);
  ::close(fd);
}

int64_t peak_resident_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (!line.starts_with("VmHWM:")) continue;
    const size_t digits = line.find_first_of("0123456789");
    if (digits != std::string::npos) return number_in(std::string_view(line).substr(digits)).value_or(0) * 1024;
  }
  rusage usage{};  // which also knows of the program that this process was before
  ::getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss * 1024;
}

std::string host_name() {
  char name[256] = {};
  return ::gethostname(name, sizeof(name) - 1) == 0 ? name : "unknown";
}

std::string processor_name() {
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

}  // namespace mythos
