// What this machine is: processors and memory this process may use.
#pragma once

#include <cstdint>
#include <string>

namespace mythos {

/// CPUs this process may use: affinity and the cgroup's quota taken into account.
int64_t usable_cpus();
/// Threads to compute with where nobody says: OMP_NUM_THREADS (its first number) where that is set, else usable_cpus().
int64_t default_threads();
/// Memory this process may use in bytes: the machine's, or the cgroup's limit where that is lower.
int64_t usable_memory();
/// Memory available now without swapping, bytes.
int64_t available_memory();
/// Resident memory of this process, bytes: now, and the most so far.
int64_t resident_bytes();
int64_t peak_resident_bytes();
/// The most so far is what it is now, from here on; where the system does not let it be, it stays.
void reset_peak_resident_bytes();
/// "AMD EPYC 7763 64-Core Processor", or "CPU" where the system does not say.
std::string processor_name();
std::string host_name();

}  // namespace mythos
