// What a run asks of its data.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace mythos {

class Storage;

/// What to do with data that cannot be read as what it should be: a line that is not JSON, a damaged row group.
enum class OnBadData {
  stop,  ///< an Error that names the place
  skip,  ///< leave it out, count it, and say so in the log
};
/// "stop" or "skip"; anything else is a usage error with the nearest name.
OnBadData on_bad_data_from(std::string_view name);

/// The tokenizer as the loader sees it.
struct Encoder {
  /// Appends the ids of a text. Called from several threads at once.
  std::function<void(std::string_view, std::vector<int32_t>&)> encode;
  std::string fingerprint;             ///< changes whenever the ids of some text would
  std::optional<int32_t> end_of_text;  ///< put after every document if `document_separator`
  int64_t n_ids = 0;                   ///< ids are below this; 0 if unknown
};

struct DataOptions {
  std::shared_ptr<Storage> storage;  ///< null: one of its own
  std::vector<std::string> sources;  ///< files, folders, globs or addresses: .txt, .jsonl (also .gz, .zst), .parquet
  /// One per source: how much of the rows comes from each. Empty: one source after the other, as if they were one.
  std::vector<double> weights;
  std::string text_column = "text";  ///< of .jsonl and .parquet
  /// The first so many documents of the source with text in them are held out: never in a row. With
  /// `validation_sources` they are the first of those (0: all of it) and nothing is held out here.
  int64_t validation_documents = 0;
  std::vector<std::string> validation_sources;
  bool document_separator = false;  ///< the end-of-text id after every document
  int64_t lanes = 16;               ///< streams that are packed side by side
  int64_t seq_len = 2048;           ///< a row has one id more
  int64_t vocab_size = 0;           ///< ids at or above it are an error; 0: not checked
  int64_t epochs = 0;               ///< passes over the source; 0: without end
  uint64_t seed = 0;                ///< used only with `shuffle`
  /// Files in another order in every epoch, their units and the documents inside windows of 1,000 as well.
  bool shuffle = false;
  OnBadData on_bad_data = OnBadData::skip;
  int workers = 1;       ///< threads that read, tokenize and pack
  int64_t prefetch = 4;  ///< rows kept ready per lane; 0: no threads, rows are made when asked for
  int64_t rank = 0;      ///< this loader hands out every world-th row, beginning with row `rank`
  int64_t world = 1;
  std::function<std::string(std::span<const int32_t>)> decode;  ///< of prepared sources: ids to text
  uint64_t max_document_bytes = UINT64_C(256) << 20;            ///< longer ones are bad data
};

/// Checks the ranges of all values; throws one usage error naming the first that is out of its range.
void check(const DataOptions& options);

}  // namespace mythos
