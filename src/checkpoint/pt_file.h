// A file of torch.save (PyTorch 1.6 and later): a zip archive with a pickle that names the tensors in it.
#pragma once

#include "checkpoint/pickle_reader.h"
#include "checkpoint/zip_reader.h"

#include <cstddef>
#include <deque>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace mythos {

/// Mapped; the tensors' bytes are looked at only when asked for. No code is run, whatever the pickle says.
class PtFile {
 public:
  /// Throws FormatError naming the file and what is wrong, and for a file of another kind what it is.
  explicit PtFile(const std::filesystem::path& path);

  [[nodiscard]] const Pickle& pickle() const { return pickle_; }
  [[nodiscard]] const PickleValue& root() const { return pickle_[pickle_.root()]; }
  [[nodiscard]] const std::filesystem::path& path() const { return zip_.path(); }
  [[nodiscard]] uint64_t file_bytes() const { return zip_.file_bytes(); }

  /// Checks the bytes of every entry against its checksum. Throws FormatError naming the first damaged one.
  void check() const;
  /// The elements of a tensor in row-major order, where they lie in the file or, if they lie otherwise, in `copies`.
  [[nodiscard]] std::span<const std::byte> bytes(const PickleValue& tensor,
                                                 std::deque<std::vector<std::byte>>& copies) const;
  /// The number in a tensor of one element, or a plain number. Throws FormatError naming `what` if it is neither.
  [[nodiscard]] double number(const PickleValue& value, std::string_view what) const;
  [[nodiscard]] DType dtype(const PickleValue& tensor) const { return pickle_[tensor.items.front()].dtype; }

 private:
  [[nodiscard]] const ZipFile::Entry& entry_of(const PickleValue& storage) const;

  ZipFile zip_;
  std::string prefix_;  ///< the archive's folder, "NAME/" or ""
  Pickle pickle_;
};

}  // namespace mythos
