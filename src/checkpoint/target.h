// Where checkpoints are kept: a folder, a mounted bucket whose files cannot be renamed, or S3. The store
// (checkpoint/store.h) decides what to save, keep and use; a target only does it.
#pragma once

#include "checkpoint/checkpoint.h"
#include "checkpoint/shared_file.h"
#include "storage/byte_sink.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace mythos {

enum class Standing {
  whole,       ///< was written to its end
  unfinished,  ///< a file without the mark that is written last, where such marks are used
  aside,       ///< does not count any more, though it still has its name
};

struct StoredFile {
  std::string name;
  uint64_t bytes = 0;
  std::string version;  ///< changes with the content
  Standing standing = Standing::whole;
};

class CheckpointTarget {
 public:
  /// For a path, or "s3://BUCKET/PREFIX" (`patience`: see S3Folder). Touches nothing yet.
  static std::unique_ptr<CheckpointTarget> at(const std::string& address, double patience = 30);

  virtual ~CheckpointTarget() = default;
  CheckpointTarget(const CheckpointTarget&) = delete;
  CheckpointTarget& operator=(const CheckpointTarget&) = delete;

  /// As messages show it; no '/' at its end.
  [[nodiscard]] const std::string& address() const { return address_; }
  [[nodiscard]] std::string address_of(const std::string& name) const { return address_ + "/" + name; }
  /// Whether its bytes come over a network and are not read again without need.
  [[nodiscard]] virtual bool is_remote() const { return false; }

  /// Before a run: creates it, removes what killed processes left, and proves that writing, syncing, replacing, reading
  /// back and deleting work. Throws Error with the reason.
  virtual void prepare() = 0;
  /// All files there, sorted by name; none where there is no such folder. Throws Error if that cannot be told.
  [[nodiscard]] virtual std::vector<StoredFile> list() const = 0;
  /// For a file of `bytes`, replacing one of the same name, also one that was set aside under it. `fast`: as fast as
  /// may be; else with as little of the machine as may be.
  [[nodiscard]] virtual std::unique_ptr<ByteSink> create(const std::string& name, uint64_t bytes, bool fast) = 0;

  /// Whether several processes that see the folder may write one file together.
  [[nodiscard]] virtual bool takes_parts() const { return false; }
  /// Such a file; where takes_parts() only.
  [[nodiscard]] virtual std::unique_ptr<SharedFile> create_shared(const std::string& name, uint64_t bytes,
                                                                  int64_t writers) {
    (void)bytes, (void)writers;
    throw failure(address_of(name) + " cannot be written by several processes");
  }

  enum class Part {
    header,  ///< the tensors' bytes need not be there: they read as they may
    whole,
  };
  [[nodiscard]] virtual Checkpoint open(const StoredFile& file, Part part) const = 0;
  virtual void remove(const std::string& name) = 0;
  /// The file no longer counts, but is kept: renamed to NAME+suffix, or with a note beside it. Returns what to tell.
  virtual std::string set_aside(const std::string& name, std::string_view suffix) = 0;
  /// All of it gets out of the way under another name, which is returned. Throws Error if that cannot be.
  virtual std::string set_all_aside() = 0;
  /// Nothing where there is no limit, or none that can be known.
  [[nodiscard]] virtual std::optional<uint64_t> free_bytes() const { return std::nullopt; }

 protected:
  explicit CheckpointTarget(std::string address) : address_(std::move(address)) {}

 private:
  std::string address_;
};

/// NAME+suffix, the first of NAME+suffix.2, ... that `taken` does not know.
template <class Taken>
std::string free_name(const std::string& wanted, Taken taken) {
  if (!taken(wanted)) return wanted;
  for (int n = 2;; ++n) {
    std::string next = wanted + "." + std::to_string(n);
    if (!taken(next)) return next;
  }
}

}  // namespace mythos
