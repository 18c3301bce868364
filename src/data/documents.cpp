#include "data/documents.h"

#include "base/error.h"
#include "base/units.h"

#include <algorithm>
#include <utility>

namespace mythos {

DocumentReader::DocumentReader(std::shared_ptr<const Corpus> corpus, OnBadData policy, bool held_out)
    : corpus_(std::move(corpus)), bad_(policy) {
  if (held_out) return;
  at_ = corpus_->training_begin();
  for (size_t f = 0; f < at_.file; ++f) bytes_before_ += corpus_->files()[f].size;
}

bool DocumentReader::next(std::string& text) {
  const auto& files = corpus_->files();
  Entry entry;
  while (at_.file < files.size()) {
    if (!reader_) {
      if (!corpus_->has(at_.file, at_.part)) {
        bytes_read_ = bytes_before_ += files[at_.file].size;
        at_ = {at_.file + 1, 0, 0};
        continue;
      }
      reader_ = corpus_->read(at_.file, at_.part);
      reader_->skip(at_.document);
    }
    if (!reader_->next(entry)) {
      reader_.reset();
      // Stored bytes; of a compressed file's text it can be more than the file has.
      bytes_read_ = std::min(std::max(bytes_read_, bytes_before_) + corpus_->info(at_.file, at_.part).bytes,
                             bytes_before_ + files[at_.file].size);
      at_ = {at_.file, at_.part + 1, 0};
      continue;
    }
    entries_ += entry.count;
    if (entry.kind == Entry::Kind::damaged) {
      skipped_ += entry.count;
      bad_.report(entry.problem);
    } else if (entry.kind == Entry::Kind::text || entry.kind == Entry::Kind::tokens) {
      text = corpus_->text_of(entry);
      ++documents_;
      return true;
    }
  }
  return false;
}

std::vector<std::string> validation_documents(const Sources& sources, const DataOptions& options) {
  constexpr uint64_t max_bytes = UINT64_C(1) << 30;
  std::vector<std::string> documents;
  if (options.validation_sources.empty()) {
    for (const auto& corpus : sources.corpora) {
      for (std::string& text : corpus->held_out()) documents.push_back(std::move(text));
    }
    return documents;
  }
  DataOptions other = options;
  other.sources = std::exchange(other.validation_sources, {});
  other.weights.clear();
  other.validation_documents = 0;
  const auto source = std::make_shared<const Corpus>(other);
  DocumentReader reader(source, options.on_bad_data);
  const int64_t limit = options.validation_documents > 0 ? options.validation_documents : INT64_MAX;
  uint64_t bytes = 0;
  std::string text;
  while (std::ssize(documents) < limit && reader.next(text)) {
    bytes += text.size();
    if (bytes > max_bytes) {
      throw usage_error(fmt::format("the first {} documents held out for validation are more than {} of text",
                                    with_commas(std::ssize(documents) + 1), bytes_text(static_cast<double>(max_bytes))),
                        fmt::format("set data.validation_documents to {} or less", std::ssize(documents)));
    }
    documents.push_back(std::move(text));
  }
  if (options.validation_documents > std::ssize(documents)) {
    throw usage_error(fmt::format("{} has {} documents with text, fewer than the {} to validate on", source->name(),
                                  with_commas(std::ssize(documents)), with_commas(options.validation_documents)),
                      "lower data.validation_documents");
  }
  return documents;
}

std::vector<std::vector<int32_t>> pack(const std::vector<std::string>& documents, const Encoder& encoder,
                                       int64_t seq_len, bool document_separator) {
  std::vector<std::vector<int32_t>> rows;
  std::vector<int32_t> ids;
  const auto cut = [&](size_t from) {
    const size_t n = std::min(static_cast<size_t>(seq_len) + 1, ids.size() - from);
    rows.emplace_back(ids.begin() + static_cast<std::ptrdiff_t>(from),
                      ids.begin() + static_cast<std::ptrdiff_t>(from + n));
    return from + n;
  };
  for (const std::string& document : documents) {
    const size_t before = ids.size();
    encoder.encode(document, ids);
    if (document_separator && ids.size() > before) ids.push_back(encoder.end_of_text.value());
    size_t from = 0;
    while (ids.size() - from > static_cast<size_t>(seq_len)) from = cut(from);
    ids.erase(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(from));
  }
  if (ids.size() >= 2) cut(0);
  return rows;
}

}  // namespace mythos
