// Small sources on disk and a tokenizer one can read with the naked eye.
#pragma once

#include "base/error.h"
#include "data/corpus.h"
#include "data/documents.h"
#include "data/loader.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <charconv>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace mythos::test {
namespace fs = std::filesystem;

/// A fresh folder that is removed in the end.
class TempFolder {
 public:
  TempFolder() {
    std::string name = (fs::temp_directory_path() / "mythos-data-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("no temporary folder");
    path_ = name;
  }
  ~TempFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  [[nodiscard]] std::string operator/(const std::string& name) const { return (path_ / name).string(); }
  [[nodiscard]] std::string string() const { return path_.string(); }
  std::string write(const std::string& name, std::string_view text) const {
    const fs::path file = path_ / name;
    fs::create_directories(file.parent_path());
    std::ofstream(file, std::ios::binary) << text;
    return file.string();
  }

 private:
  fs::path path_;
};

/// "4 5 6" -> 4, 5, 6. The end-of-text id is 0.
inline Encoder number_encoder() {
  Encoder encoder;
  encoder.encode = [](std::string_view text, std::vector<int32_t>& out) {
    const char* p = text.data();
    const char* const end = p + text.size();
    while (p < end) {
      int32_t id = 0;
      const auto [next, error] = std::from_chars(p, end, id);
      if (error == std::errc()) out.push_back(id);
      p = error == std::errc() ? next : p + 1;
    }
  };
  encoder.fingerprint = "numbers";
  encoder.end_of_text = 0;
  encoder.n_ids = 1 << 30;
  return encoder;
}

/// A document of `n` ids that count up from `first`.
inline std::string counting(int64_t first, int64_t n) {
  std::string text;
  for (int64_t i = 0; i < n; ++i) text += (i > 0 ? " " : "") + std::to_string(first + i);
  return text;
}

inline std::string jsonl(const std::vector<std::string>& documents) {
  std::string text;
  for (const std::string& document : documents) text += Json{{"text", document}}.dump() + "\n";
  return text;
}

inline DataOptions options_for(const std::string& source, int64_t seq_len, int64_t lanes = 1, int64_t epochs = 1) {
  DataOptions options;
  options.sources = {source};
  options.seq_len = seq_len;
  options.lanes = lanes;
  options.epochs = epochs;
  options.prefetch = 0;
  options.on_bad_data = OnBadData::stop;
  return options;
}

/// File and number of every unit.
inline std::vector<std::pair<size_t, int64_t>> units_of(const Corpus& corpus) {
  std::vector<std::pair<size_t, int64_t>> units;
  for (size_t file = 0; file < corpus.files().size(); ++file) {
    for (int64_t part = 0; part < corpus.count(file); ++part) units.emplace_back(file, part);
  }
  return units;
}

using Row = std::vector<int32_t>;

/// Up to `n` more rows.
inline std::vector<Row> take(RowLoader& loader, int64_t seq_len, int64_t n = INT64_MAX) {
  std::vector<Row> rows;
  Row row(static_cast<size_t>(seq_len) + 1);
  while (std::ssize(rows) < n && loader.next(row)) rows.push_back(row);
  return rows;
}

inline std::vector<Row> all_rows(const DataOptions& options, int64_t n = INT64_MAX) {
  RowLoader loader(options, number_encoder());
  return take(loader, options.seq_len, n);
}

inline std::vector<std::string> all_documents(const DataOptions& options, bool held_out = true) {
  DocumentReader reader(std::make_shared<const Corpus>(options), options.on_bad_data, held_out);
  std::vector<std::string> documents;
  for (std::string text; reader.next(text);) documents.push_back(text);
  return documents;
}

/// What `call` throws as an Error, as the line a person sees; fails if it throws none.
template <class Call>
std::string error_of(Call&& call, std::optional<ExitCode> code = std::nullopt) {
  try {
    call();
  } catch (const Error& error) {
    if (code) {
      EXPECT_EQ(error.code(), *code) << error.line();
    }
    return error.line();
  }
  ADD_FAILURE() << "nothing was thrown";
  return "";
}

#define EXPECT_CONTAINS(text, part) EXPECT_NE((text).find(part), std::string::npos) << (text)

}  // namespace mythos::test
