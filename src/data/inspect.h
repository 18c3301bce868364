// A look at a source: how much there is, and what it reads like.
#pragma once

#include "base/json.h"
#include "data/corpus.h"
#include "data/options.h"

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace mythos {

/// A figure for the whole source, and how far off it may be (95%, from the spread of the sample; 0: counted).
struct Estimate {
  double value = 0;
  double error = 0;
};

struct SourceReport {
  std::string source;
  int64_t files = 0;
  int64_t files_skipped = 0;  ///< damaged
  int64_t files_read = 0;     ///< whose units were counted: all, or a sample where there are many far away
  uint64_t bytes = 0;         ///< of the files
  Estimate units;
  Estimate documents;  ///< null, empty and damaged ones included
  /// Of the documents of up to 32 units spread evenly over the source; about 3,200 of them are encoded.
  int64_t sampled = 0;
  int64_t sampled_empty = 0;
  int64_t sampled_damaged = 0;
  int64_t sampled_bytes = 0;
  Estimate text_bytes;
  std::optional<int64_t> sampled_tokens;
  std::optional<Estimate> tokens;
  std::vector<std::string> samples;  ///< the begin of some documents, cut between UTF-8 characters
};

/// Of a figure for each sampled unit, `sizes` documents long, scaled to `documents`: the ratio estimate and its error.
Estimate scaled(const std::vector<double>& figures, const std::vector<double>& sizes, const Estimate& documents);

/// `encoder` may be null: no figures in tokens then. Bad data in the sample is counted, never an error.
/// `progress` gets the number of files looked into.
SourceReport inspect(const Corpus& corpus, const Encoder* encoder, int n_samples = 3,
                     const std::function<void(size_t)>& progress = {});
Json to_json(const SourceReport& report);

}  // namespace mythos
