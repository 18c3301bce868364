// A look at a source: how much there is, and what it reads like.
#pragma once

#include "base/json.h"
#include "data/corpus.h"
#include "data/options.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace mythos {

struct SourceReport {
  std::string source;
  int64_t files = 0;
  int64_t files_skipped = 0;  ///< damaged
  int64_t units = 0;
  int64_t documents = 0;  ///< null, empty and damaged ones included
  uint64_t bytes = 0;     ///< of the files
  /// Of up to 1,600 documents from units spread evenly over the source.
  int64_t sampled = 0;
  int64_t sampled_empty = 0;
  int64_t sampled_damaged = 0;
  int64_t sampled_bytes = 0;
  double text_bytes = 0;  ///< estimated for the whole source
  std::optional<int64_t> sampled_tokens;
  std::optional<double> tokens;      ///< estimated for the whole source
  std::vector<std::string> samples;  ///< the begin of some documents, cut between UTF-8 characters
};

/// `encoder` may be null: no figures in tokens then. Bad data in the sample is counted, whatever the options say.
SourceReport inspect(const Corpus& corpus, const DataOptions& options, const Encoder* encoder, int n_samples = 3);
Json to_json(const SourceReport& report);

}  // namespace mythos
