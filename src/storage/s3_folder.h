// A folder of objects on S3 that is written to: put, list, upload, delete.
#pragma once

#include "storage/byte_sink.h"
#include "storage/byte_source.h"

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace arrow::fs {
class S3FileSystem;
}

namespace mythos {

/// The objects directly below "s3://BUCKET/PREFIX". Nothing is contacted before the first call. What may pass (no
/// connection, a busy server) is tried again for about `patience` seconds, then it is an Error in one sentence; after a
/// stop was asked for only shortly, except for uploads. Thread-safe.
class S3Folder {
 public:
  /// Throws a usage error for an address without a bucket.
  explicit S3Folder(const std::string& address, double patience = 30);

  struct Entry {
    std::string name;
    uint64_t size = 0;
    std::string version;  ///< changes with the content: the time of its last change
  };
  /// Sorted by name; empty where there is nothing. Throws Error where that cannot be told.
  [[nodiscard]] std::vector<Entry> list() const;
  /// A multipart upload: the object appears, whole, in commit(), and never otherwise. `fast`: several parts at a time,
  /// on threads of their own; else only the calling thread works. At most some 40 MB are held in memory.
  [[nodiscard]] std::unique_ptr<ByteSink> upload(const std::string& name, bool fast) const;
  /// A small object.
  void put(const std::string& name, std::string_view text) const;
  [[nodiscard]] std::string get(const std::string& name, uint64_t max_bytes) const;
  /// No error if it is not there.
  void remove(const std::string& name) const;
  /// Copies on the server, then deletes. Amazon copies at most 5 GB so.
  void move(const std::string& name, const S3Folder& to) const;
  [[nodiscard]] std::shared_ptr<const ByteSource> open(const Entry& entry) const;

  /// "s3://BUCKET/PREFIX", without a '/' at its end.
  [[nodiscard]] const std::string& address() const { return address_; }
  [[nodiscard]] bool is_bucket() const { return path_.find('/') == std::string::npos; }

 private:
  [[nodiscard]] std::shared_ptr<arrow::fs::S3FileSystem> system(bool parallel = false) const;
  [[nodiscard]] std::string path(const std::string& name) const { return path_ + "/" + name; }
  [[nodiscard]] std::string shown(const std::string& name) const { return address_ + "/" + name; }

  std::string address_;
  std::string path_;  // BUCKET/PREFIX
  double patience_;
};

}  // namespace mythos
