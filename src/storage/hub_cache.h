// The hub's cache on this machine, laid out as Python's huggingface_hub does: what one wrote the other finds.
#pragma once

#include "storage/hub_address.h"

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace mythos {

/// One file of one repository: FOLDER/models--OWNER--NAME/snapshots/COMMIT/FILE.
class HubCache {
 public:
  HubCache(const std::filesystem::path& folder, const HubAddress& address);

  /// The commit its revision had when it was last looked up (refs/REVISION), or "".
  [[nodiscard]] std::string commit() const;
  /// Throws Error if it is there but cannot be read, or is larger than `max_bytes`.
  [[nodiscard]] std::optional<std::string> file(const std::string& commit, uint64_t max_bytes) const;
  /// Writes the file and its commit. What cannot be written is one warning in the log.
  void keep(const std::string& commit, std::string_view content) const;
  /// Writes the commit alone.
  void remember(const std::string& commit) const;

 private:
  std::filesystem::path folder_;
  HubAddress address_;
};

}  // namespace mythos
