// One file that several processes fill at once, each its own places. It is whole or absent, as one by a single writer.
#pragma once

#include "base/file.h"
#include "storage/byte_sink.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace mythos {

/// Bytes and where in the file they belong.
struct FilePiece {
  uint64_t offset = 0;
  std::span<const std::byte> bytes;
};

/// What the first writer has: a temporary file beside the target, and a note for each of the others, which says when
/// that one is done. Both are gone when this is, or after close().
class SharedFile {
 public:
  /// Sets the space for `bytes` aside. `writers`: how many there are, this one included. Throws Error.
  SharedFile(const std::filesystem::path& target, uint64_t bytes, int64_t writers);
  ~SharedFile();
  SharedFile(const SharedFile&) = delete;
  SharedFile& operator=(const SharedFile&) = delete;

  /// For write_part() of the others.
  [[nodiscard]] const std::filesystem::path& temporary() const { return temporary_; }
  /// Until the others are done. Throws Error naming the first that failed and why.
  void wait_for_others() const;
  /// Ends wait_for_others(), perhaps in another thread: for what a note cannot tell.
  void give_up() { given_up_ = true; }
  /// The file as it is now, read from where it lies: what others wrote is seen once they are done.
  [[nodiscard]] std::span<const std::byte> read_back();
  /// Lets go of the file, whole or not.
  void close();
  /// Goes through the file from its begin: bytes of read_back() are there already, others are written. Once; this must
  /// outlive it.
  [[nodiscard]] std::unique_ptr<ByteSink> sink();

 private:
  std::filesystem::path target_, temporary_;
  std::optional<AtomicFile> file_;
  int64_t writers_ = 1;
  std::optional<MappedFile> map_;
  std::atomic<bool> given_up_ = false;
};

/// Writes and syncs these pieces of the temporary file, and says so in the note of writer 1, 2, ... (0: there is none,
/// and what fails is thrown). What fails for another writer is told in its note, and nothing is thrown; false where not
/// even that could be done.
bool write_part(const std::filesystem::path& temporary, int64_t writer, std::span<const FilePiece> pieces);

}  // namespace mythos
