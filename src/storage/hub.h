// Repositories of the Hugging Face hub, or of a server that answers like it.
#pragma once

#include "storage/byte_source.h"
#include "storage/http_client.h"
#include "storage/http_file.h"
#include "storage/hub_address.h"

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace mythos {

/// One file or folder of a repository.
struct HubEntry {
  std::string path;
  bool is_file = true;
  uint64_t size = 0;
  std::string version;  ///< hash of the content
};

/// Thread-safe. Held by shared pointers: the files it opens hold it.
class Hub : public std::enable_shared_from_this<Hub> {
 public:
  Hub(std::shared_ptr<HttpClient> client, HubSettings settings);

  /// The data files of hf://datasets/OWNER/NAME[@REVISION][/PATH]: PATH is a folder, a file, a pattern or the name of a
  /// configuration; without it the default configuration is meant.
  std::vector<SourceFile> list(const std::string& source, std::span<const std::string_view> extensions);
  std::shared_ptr<const ByteSource> open(const SourceFile& file);
  /// The content of one file, from the hub's cache on this machine if it is there, else kept there.
  std::string read(const std::string& address, uint64_t max_bytes);

  /// The commit of an address's revision: asked for once, then remembered.
  std::string commit_of(const HubAddress& address, std::optional<double> patience = {});
  void pin(const std::map<std::string, std::string>& commits);
  [[nodiscard]] std::map<std::string, std::string> commits() const;

 private:
  friend class HubListing;

  /// What is in a folder of a repository ("" is its root); nothing if there is no such folder.
  std::optional<std::vector<HubEntry>> tree(const HubAddress& address, const std::string& commit,
                                            const std::string& folder, bool recursive);
  /// A small text file of a repository, or nothing if there is none.
  std::optional<std::string> text(const HubAddress& address, const std::string& commit, const std::string& file,
                                  uint64_t max_bytes);
  [[nodiscard]] std::string api(const HubAddress& address) const;
  [[nodiscard]] std::string file_url(const HubAddress& address, const std::string& commit,
                                     const std::string& file) const;
  [[nodiscard]] std::string next_page(const std::string& page, const std::string& links) const;
  /// Words for an answer that is no success. `file`: what was asked for, or "".
  [[nodiscard]] Error explain(const HubAddress& address, const std::string& file, const HttpResponse& response) const;
  void refuse_offline(const std::string& what) const;
  HttpFile file_of(const HubAddress& address, const std::string& commit);

  std::shared_ptr<HttpClient> client_;
  const HubSettings settings_;
  std::mutex resolving_;  // one asks, the others wait for the answer
  mutable std::mutex mutex_;
  std::map<std::string, std::string> pinned_;
  std::map<std::string, std::string> commits_;
  std::map<std::string, std::shared_ptr<HttpRoute>> routes_;
};

}  // namespace mythos
