// Amazon takes spot machines back with two minutes' notice. Where this is one, the notice is a stop like SIGTERM.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

namespace mythos {

struct SpotNotice {
  std::string action;  ///< "terminate", "stop" or "hibernate"
  std::string time;    ///< when, UTC, "2026-05-24T19:58:10Z"
};
/// The body of instance-action; nothing where it is something else.
std::optional<SpotNotice> spot_notice_from(std::string_view body);

/// Whether this is a machine of EC2, from what its firmware says (/sys/class/dmi/id, /sys/hypervisor/uuid): no request
/// is made. `system` stands for /sys.
bool is_ec2_machine(const std::string& system = "/sys");

/// The address to ask for a run.spot_notice of "auto" (that of EC2 on EC2, else none), "off" (none), or an address.
/// Throws usage Error for anything else.
std::string spot_address(const std::string& setting);

/// Asks ADDRESS/latest/meta-data/spot/instance-action on a thread of its own, with a session token (IMDSv2) where the
/// service gives one. Neither a proxy nor a redirect is used. A service that does not answer is asked again, and said
/// once.
class SpotWatch {
 public:
  /// `told` is called once, from that thread, when there is a notice.
  SpotWatch(std::string address, std::function<void(const SpotNotice&)> told, double every_seconds = 5);
  /// Returns soon: a request that is on is broken off.
  ~SpotWatch();
  SpotWatch(const SpotWatch&) = delete;
  SpotWatch& operator=(const SpotWatch&) = delete;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// A watch as run.spot_notice sets it up, which turns a notice into a request to stop like SIGTERM's.
class SpotStop {
 public:
  explicit SpotStop(const std::string& setting);
  /// What a notice said; "" as long as there was none.
  [[nodiscard]] std::string what() const;

 private:
  mutable std::mutex mutex_;
  std::string what_;
  SpotWatch watch_;  // last: its thread uses the above
};

}  // namespace mythos
