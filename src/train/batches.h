// Rows of the data, gathered into micro-batches.
#pragma once

#include "data/loader.h"
#include "train/resume.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <vector>

namespace mythos {

enum class Read {
  whole,
  stopped,  ///< a stop was asked for meanwhile
  ended,    ///< the data did
};

/// To be used from one thread. The loader must outlive it.
class BatchReader {
 public:
  /// Micro-batches of `rows` rows of seq_len + 1 ids.
  BatchReader(RowLoader& loader, int64_t rows, int64_t seq_len) : loader_(loader), rows_(rows), seq_len_(seq_len) {}

  /// Reads `micro_batches` that next() will hand out, and adds their rows to `hash`.
  Read look_ahead(int64_t micro_batches, BatchHash& hash);
  /// The next micro-batch, [rows, seq_len + 1], int64; its rows are added to `hash`. Throws what RowLoader::next()
  /// does.
  Read next(at::Tensor& ids, BatchHash& hash);

 private:
  Read next_row(std::vector<int32_t>& row);

  RowLoader& loader_;
  int64_t rows_, seq_len_;
  std::deque<std::vector<int32_t>> ahead_;
};

}  // namespace mythos
