#include "data/corpus.h"

#include "base/error.h"
#include "base/log.h"
#include "base/units.h"
#include "data/prepared.h"
#include "storage/storage.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <set>
#include <thread>
#include <utility>

namespace mythos {
namespace {

constexpr std::array<std::string_view, 7> extensions{".txt",      ".txt.gz",    ".txt.zst", ".jsonl",
                                                     ".jsonl.gz", ".jsonl.zst", ".parquet"};
constexpr size_t files_kept_open = 4;
constexpr int index_threads = 8;

enum State : char { unknown, good, damaged };

std::string shown(const std::vector<std::string>& sources) {
  std::string text;
  for (const std::string& source : sources) text += (text.empty() ? "" : ", ") + shown_source(source);
  return text;
}

std::string hash_of(std::string_view bytes) {
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

}  // namespace

void BadData::report(const std::string& problem) {
  if (policy_ == OnBadData::stop) {
    throw failure(problem, "repair or remove it, or set data.on_bad_data to skip");
  }
  if (quiet_) return;
  constexpr int64_t shown = 20;
  int64_t number = 0;
  {
    const std::lock_guard lock(mutex_);
    number = ++reported_;
  }
  if (number <= shown) log::warn("{}; it is left out", problem);
  if (number == shown) log::warn("more bad data is left out and counted, but no longer listed");
}

Corpus::Corpus(const DataOptions& options)
    : storage_(options.storage ? options.storage : std::make_shared<Storage>()),
      name_(shown(options.sources)),
      column_(options.text_column),
      n_held_out_(options.validation_sources.empty() ? options.validation_documents : 0),
      decode_(options.decode),
      bad_(options.on_bad_data) {
  if (options.sources.empty()) {
    throw usage_error("no data source is given", "set data.source to a file, a folder, a glob or an address");
  }
  open_files(options);
  state_.assign(files_.size(), unknown);
  for (const SourceFile& file : files_) bytes_ += file.size;
  make_manifest();
  look_for_documents();
  if (n_held_out_ == 0) training_begin_ = Place{};
}

Corpus::~Corpus() = default;

void Corpus::open_files(const DataOptions& options) {
  std::set<std::string> names;
  for (const std::string& source : options.sources) {
    if (is_prepared(source)) {
      open_prepared(source);
      continue;
    }
    for (SourceFile& file : storage_->list(source, extensions)) {
      if (!names.insert(file.location).second) {
        throw usage_error(fmt::format("{} is named twice in data.source", shown_source(file.location)),
                          "name it once; data.epochs and data.weights say how often it is read");
      }
      const auto open = [storage = storage_, file] { return storage->open(file); };
      const std::string extension = file_extension(file.location);
      if (extension == ".parquet") {
        open_.push_back(open_parquet_units(open, column_, options.max_document_bytes));
      } else {
        open_.push_back(open_line_units(file.location, open,
                                        {extension.starts_with(".jsonl"), column_, options.max_document_bytes}));
      }
      files_.push_back(std::move(file));
      prepared_.push_back(false);
    }
  }
}

// Files with the names and sizes of the originals, so that a run can change from one to the other.
void Corpus::open_prepared(const std::string& folder) {
  const PreparedInfo info = read_prepared_info(folder);
  if (!tokenizer_.empty() && tokenizer_ != info.tokenizer) {
    throw usage_error(fmt::format("{} was prepared with another tokenizer than the other sources", folder),
                      "prepare them with the same one");
  }
  tokenizer_ = info.tokenizer;
  for (size_t f = 0; f < info.files.size(); ++f) {
    files_.push_back({tokens_path(folder, f, 0).string(), info.files[f].name, info.files[f].size, ""});
    open_.push_back(open_prepared_units(folder, info, f));
    prepared_.push_back(true);
  }
}

// A source without any document is refused before anything else is done with it.
void Corpus::look_for_documents() const {
  for (size_t f = 0; f < files_.size(); ++f) {
    for (int64_t part = 0; has(f, part); ++part) {
      if (info(f, part).documents > 0) return;
    }
  }
  throw usage_error(fmt::format("{} holds no documents ({} file{}, {})", name_, files_.size(),
                                files_.size() == 1 ? "" : "s", bytes_text(static_cast<double>(bytes_))),
                    files_skipped_ > 0 ? "its damaged files were left out" : "give a source with text in it");
}

void Corpus::make_manifest() {
  constexpr uint64_t looked_at = 4096;
  std::string text;
  std::string ends;
  for (size_t f = 0; f < files_.size(); ++f) {
    const SourceFile& file = files_[f];
    text += fmt::format("{}\n{}\n", file.name, file.size);
    if (is_address(file.location) || prepared_[f]) continue;
    const auto source = storage_->open(file);
    std::vector<std::byte> bytes(std::min(file.size, looked_at));
    for (const uint64_t offset : {uint64_t{0}, file.size - bytes.size()}) {
      source->read_at(offset, bytes);
      ends += hash_of({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
    }
  }
  manifest_ = Json{{"files", files_.size()},
                   {"bytes", bytes_},
                   {"hash", hash_of(text)},
                   {"ends", ends.empty() ? Json(nullptr) : Json(hash_of(ends))}};
}

// What a file answers; a damaged one answers nothing from the time on when that was found.
template <class Call>
auto Corpus::guarded(size_t file, Call&& call) const -> decltype(call()) {
  {
    const std::lock_guard lock(mutex_);
    if (state_[file] == damaged) return {};
    if (std::ranges::find(recent_, file) == recent_.end()) {
      recent_.push_back(file);
      if (recent_.size() > files_kept_open) {
        open_[recent_.front()]->release();
        recent_.pop_front();
      }
    }
  }
  std::string problem;
  try {
    auto answer = call();
    const std::lock_guard lock(mutex_);
    if (state_[file] == unknown) state_[file] = good;
    any_good_ = true;
    return answer;
  } catch (const DamagedFile& damage) {
    problem = damage.what();
  } catch (const Error& error) {
    // A missing column is a wrong setting, unless other files have it.
    const std::lock_guard lock(mutex_);
    if (error.code() != ExitCode::usage || !any_good_) throw;
    problem = error.what();
  }
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(state_[file], damaged) == damaged) return {};
  }
  ++files_skipped_;
  bad_.report(problem);
  return {};
}

bool Corpus::has(size_t file, int64_t part, const std::stop_token& stop) const {
  return guarded(file, [&] { return open_[file]->has(part, stop); });
}

int64_t Corpus::count(size_t file, const std::stop_token& stop) const {
  return guarded(file, [&] { return open_[file]->count(stop); });
}

UnitInfo Corpus::info(size_t file, int64_t part, const std::stop_token& stop) const {
  return guarded(file, [&] { return open_[file]->info(part, stop); });
}

std::unique_ptr<UnitReader> Corpus::read(size_t file, int64_t part, const std::stop_token& stop) const {
  auto reader = guarded(file, [&] { return open_[file]->read(part, stop); });
  if (!reader) {
    throw failure(fmt::format("{} could be read before and cannot now", shown_source(files_[file].location)),
                  "leave the data alone while it is read");
  }
  return reader;
}

Corpus::Totals Corpus::totals(const std::function<void(size_t)>& progress) const {
  std::atomic<size_t> next{0};
  std::mutex mutex;
  size_t done = 0;
  Totals totals;
  std::exception_ptr error;
  std::stop_source stop;
  const auto work = [&] {
    for (size_t f = next++; f < files_.size() && !stop.stop_requested(); f = next++) {
      try {
        Totals own;
        own.units = count(f, stop.get_token());
        for (int64_t part = 0; part < own.units; ++part) {
          const UnitInfo unit = info(f, part, stop.get_token());
          own.documents += unit.documents;
          own.bytes += unit.bytes;
        }
        const std::lock_guard lock(mutex);
        totals.units += own.units;
        totals.documents += own.documents;
        totals.bytes += own.bytes;
        ++done;
        if (progress) progress(done);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!error) error = std::current_exception();
        stop.request_stop();
      }
    }
  };
  if (files_.size() > 1 && is_address(files_.front().location)) {
    std::vector<std::jthread> threads;
    for (int i = 0; i < index_threads; ++i) threads.emplace_back(work);
  } else {
    work();
  }
  if (error) std::rethrow_exception(error);
  return totals;
}

std::string Corpus::text_of(const Entry& entry) const {
  if (entry.kind != Entry::Kind::tokens) return std::string(entry.text);
  if (!decode_) {
    throw usage_error(fmt::format("{} holds tokens, and its text cannot be had without their tokenizer", name_),
                      "name the tokenizer it was prepared with");
  }
  return decode_(entry.ids);
}

Corpus::Place Corpus::training_begin() const {
  {
    const std::lock_guard lock(begin_mutex_);
    if (training_begin_) return *training_begin_;
  }
  static_cast<void>(held_out());
  const std::lock_guard lock(begin_mutex_);
  return *training_begin_;
}

void Corpus::set_training_begin(const Place& place) const {
  const std::lock_guard lock(begin_mutex_);
  training_begin_ = place;
}

std::vector<std::string> Corpus::held_out() const {
  constexpr uint64_t max_bytes = UINT64_C(1) << 30;
  std::vector<std::string> documents;
  uint64_t bytes = 0;
  Entry entry;
  for (size_t f = 0; f < files_.size() && n_held_out_ > 0; ++f) {
    for (int64_t part = 0; has(f, part); ++part) {
      const auto reader = read(f, part);
      for (int64_t document = 0; reader->next(entry); ++document) {
        if (entry.kind == Entry::Kind::damaged) bad_.report(entry.problem);
        if (entry.kind != Entry::Kind::text && entry.kind != Entry::Kind::tokens) continue;
        documents.push_back(text_of(entry));
        bytes += documents.back().size();
        if (bytes > max_bytes) {
          throw usage_error(fmt::format("the first {} documents held out for validation are more than {} of text",
                                        with_commas(std::ssize(documents)), bytes_text(static_cast<double>(max_bytes))),
                            fmt::format("set data.validation_documents to {} or less", std::ssize(documents) - 1));
        }
        if (std::ssize(documents) < n_held_out_) continue;
        set_training_begin({f, part, document + 1});
        return documents;
      }
    }
  }
  if (n_held_out_ > 0) {
    throw usage_error(fmt::format("{} has {} documents with text; {} cannot be held out of them", name_,
                                  with_commas(std::ssize(documents)), with_commas(n_held_out_)),
                      "lower data.validation_documents");
  }
  return documents;
}

}  // namespace mythos
