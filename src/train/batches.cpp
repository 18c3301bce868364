#include "train/batches.h"

#include "base/signals.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace mythos {

Read BatchReader::look_ahead(int64_t micro_batches, BatchHash& hash) {
  std::deque<std::vector<int32_t>> rows;
  while (static_cast<int64_t>(rows.size()) < micro_batches * rows_) {
    std::vector<int32_t> row;
    if (const Read read = next_row(row); read != Read::whole) return read;
    hash.add(row);
    rows.push_back(std::move(row));
  }
  ahead_ = std::move(rows);
  return Read::whole;
}

Read BatchReader::next(at::Tensor& ids, BatchHash& hash) {
  ids = at::empty({rows_, seq_len_ + 1}, at::kLong);
  std::vector<int32_t> row;
  for (int64_t r = 0; r < rows_; ++r) {
    if (const Read read = next_row(row); read != Read::whole) return read;
    hash.add(row);
    std::copy(row.begin(), row.end(), ids.mutable_data_ptr<int64_t>() + r * (seq_len_ + 1));
  }
  return Read::whole;
}

Read BatchReader::next_row(std::vector<int32_t>& row) try {
  if (!ahead_.empty()) {
    row = std::move(ahead_.front());
    ahead_.pop_front();
    return Read::whole;
  }
  row.resize(static_cast<size_t>(seq_len_) + 1);
  return loader_.next(row) ? Read::whole : Read::ended;
} catch (const Stopped&) {
  if (stop_requested()) return Read::stopped;
  throw;
}

}  // namespace mythos
