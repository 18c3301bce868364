#include "storage/hub_cache.h"

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"

namespace mythos {
namespace fs = std::filesystem;

HubCache::HubCache(const fs::path& folder, const HubAddress& address)
    : folder_(folder / fmt::format("{}--{}--{}", address.dataset ? "datasets" : "models", address.owner, address.name)),
      address_(address) {}

std::string HubCache::commit() const {
  if (is_commit(address_.revision)) return address_.revision;
  const fs::path file = folder_ / "refs" / address_.revision;
  std::error_code ec;
  if (!fs::is_regular_file(file, ec)) return "";
  try {
    std::string text = read_file(file, 1000);
    while (!text.empty() && (text.back() == '\n' || text.back() == '\r' || text.back() == ' ')) text.pop_back();
    return is_commit(text) ? text : "";
  } catch (const Error&) {
    return "";
  }
}

std::optional<std::string> HubCache::file(const std::string& commit, uint64_t max_bytes) const {
  const fs::path file = folder_ / "snapshots" / commit / address_.path;
  std::error_code ec;
  if (!fs::is_regular_file(file, ec)) return {};
  return read_file(file, max_bytes);
}

void HubCache::keep(const std::string& commit, std::string_view content) const {
  const fs::path file = folder_ / "snapshots" / commit / address_.path;
  try {
    make_folder(file.parent_path());
    remove_stale_temporaries(file.parent_path());
    write_file_atomically(file, content);
  } catch (const Error& error) {
    log::warn("{} is not kept for the next start: {}", address_.path, error.what());
    return;
  }
  remember(commit);
}

void HubCache::remember(const std::string& commit) const {
  if (is_commit(address_.revision)) return;
  const fs::path file = folder_ / "refs" / address_.revision;
  try {
    make_folder(file.parent_path());
    write_file_atomically(file, commit);
  } catch (const Error& error) {
    log::warn("the commit of {} is not kept for the next start: {}", address_.key(), error.what());
  }
}

}  // namespace mythos
