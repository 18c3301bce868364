// TensorBoard event files: curves and texts that `tensorboard --logdir RUN/tensorboard` shows.
//
// A file is a sequence of TFRecords (length, masked CRC-32C of the length, bytes, masked CRC-32C of the bytes), each
// one `Event` of https://github.com/tensorflow/tensorboard/tree/master/tensorboard/compat/proto (event, summary,
// tensor).
#pragma once

#include "base/append_file.h"

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace mythos {

/// CRC-32C (Castagnoli) as TFRecords carry it: rotated by 15 bits and moved, so that a CRC over data that holds CRCs
/// stays useful.
uint32_t masked_crc32c(std::string_view bytes);

class EventWriter {
 public:
  using Scalars = std::vector<std::pair<std::string, double>>;

  /// A new file in `folder`, which is created. It sorts behind every file that is there, whatever the clock says:
  /// readers take files in the order of their names. It begins with going_back_to(last_step). Throws Error if it cannot
  /// be written.
  EventWriter(const std::filesystem::path& folder, int64_t last_step);
  ~EventWriter();
  EventWriter(const EventWriter&) = delete;
  EventWriter& operator=(const EventWriter&) = delete;

  /// Readers forget what was written so far of steps after `last_step`, in this file and in those before it; 0: of all.
  void going_back_to(int64_t last_step);
  /// Points of curves at a step. Names with a '/' are grouped by what is before it.
  void scalars(int64_t step, const Scalars& values);
  /// A text at a step; shown as Markdown.
  void text(int64_t step, std::string_view name, std::string_view markdown);

  /// Hands what was added to the system, whole records or none: from then on a kill takes nothing of it. Where that
  /// fails (a full disk) it is kept for the next time, up to a megabyte, and said once.
  void flush();

 private:
  void add(int64_t step, std::string_view field);

  AppendFile file_;
  std::string waiting_;
  bool warned_ = false;
};

}  // namespace mythos
