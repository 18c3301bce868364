#include "data/documents.h"

#include "base/error.h"
#include "base/units.h"

#include <algorithm>
#include <utility>

namespace mythos {

DocumentReader::DocumentReader(std::shared_ptr<const Corpus> corpus, OnBadData policy, bool held_out)
    : corpus_(std::move(corpus)), bad_(policy) {
  if (!held_out) begin_ = corpus_->training_begin();
}

bool DocumentReader::next(std::string& text) {
  const auto& units = corpus_->units();
  Entry entry;
  while (unit_ < std::ssize(units)) {
    if (!reader_ && unit_ >= begin_.unit) {
      reader_ = corpus_->read(unit_);
      if (unit_ == begin_.unit) reader_->skip(in_unit_ = begin_.document);
    }
    if (!reader_ || !reader_->next(entry)) {
      reader_.reset();
      bytes_before_ += units[static_cast<size_t>(unit_++)].bytes;
      in_unit_ = 0;
      continue;
    }
    in_unit_ += entry.count;
    entries_ += entry.count;
    if (entry.kind == Entry::Kind::damaged) {
      skipped_ += entry.count;
      bad_.report(entry.problem);
    } else if (entry.kind == Entry::Kind::text) {
      text.assign(entry.text);
      ++documents_;
      return true;
    }
  }
  return false;
}

uint64_t DocumentReader::bytes_read() const {
  if (unit_ == std::ssize(corpus_->units())) return bytes_before_;
  const Corpus::Unit& unit = corpus_->units()[static_cast<size_t>(unit_)];
  const double part = static_cast<double>(in_unit_) / static_cast<double>(std::max<int64_t>(unit.documents, 1));
  return bytes_before_ + static_cast<uint64_t>(std::min(part, 1.0) * static_cast<double>(unit.bytes));
}

std::vector<std::string> validation_documents(const Corpus& corpus, const DataOptions& options) {
  constexpr uint64_t max_bytes = UINT64_C(1) << 30;
  const bool separate = !options.validation_source.empty();
  std::vector<std::string> documents;
  if (!separate && options.validation_documents == 0) return documents;
  std::shared_ptr<const Corpus> source;
  if (separate) {
    DataOptions other = options;
    other.source = options.validation_source;
    other.validation_source.clear();
    other.validation_documents = 0;
    source = std::make_shared<const Corpus>(other);
  } else {
    source = std::shared_ptr<const Corpus>(&corpus, [](const Corpus*) {});  // the reader ends before the caller's
  }
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
  if (separate && options.validation_documents > std::ssize(documents)) {
    throw usage_error(
        fmt::format("{} has {} documents with text, fewer than the {} to validate on", options.validation_source,
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
