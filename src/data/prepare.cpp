#include "data/prepare.h"

#include "base/error.h"
#include "base/file.h"
#include "base/lock.h"
#include "base/log.h"
#include "storage/storage.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

namespace mythos {
namespace fs = std::filesystem;

namespace {

struct Unit {
  size_t file = 0;
  int64_t part = 0;
  auto operator<=>(const Unit&) const = default;
};

struct Encoded {
  Unit unit;
  bool last = false;  // no unit behind it in its file
  PreparedUnit index;
  std::string ids;  // as stored
  int64_t text_bytes = 0;
  int64_t skipped = 0;
  uint64_t stored = 0;  // bytes of the unit in the source
};

// Encodes one unit.
Encoded encode_unit(const Corpus& corpus, const Unit& unit, const Encoder& encoder, uint32_t bytes_per_id, BadData& bad,
                    const std::stop_token& stop) {
  Encoded out{.unit = unit,
              .last = false,
              .index = {},
              .ids = {},
              .text_bytes = 0,
              .skipped = 0,
              .stored = corpus.info(unit.file, unit.part, stop).bytes};
  const auto reader = corpus.read(unit.file, unit.part, stop);
  Entry entry;
  std::vector<int32_t> ids;
  while (reader->next(entry)) {
    if (stop.stop_requested()) throw Stopped("stopped");
    if (entry.kind == Entry::Kind::damaged) {
      bad.report(entry.problem);
      out.skipped += entry.count;
      out.index.documents.push_back({static_cast<uint32_t>(entry.count), PreparedDocument::damaged});
      continue;
    }
    ids.clear();
    if (entry.kind == Entry::Kind::text) encoder.encode(entry.text, ids);
    if (entry.kind == Entry::Kind::tokens) {
      throw usage_error(fmt::format("{} is prepared already", corpus.name()), "train on it as it is");
    }
    // What gives no ids is like an empty document.
    const size_t bytes = ids.empty() ? 0 : entry.text.size();
    out.index.documents.push_back({static_cast<uint32_t>(ids.size()), static_cast<uint32_t>(bytes)});
    out.text_bytes += static_cast<int64_t>(bytes);
    for (const int32_t id : ids) {
      if (bytes_per_id == sizeof(uint16_t)) {
        const auto narrow = static_cast<uint16_t>(id);
        out.ids.append(reinterpret_cast<const char*>(&narrow), sizeof narrow);
      } else {
        out.ids.append(reinterpret_cast<const char*>(&id), sizeof id);
      }
    }
    out.index.tokens += ids.size();
  }
  out.index.hash = XXH3_64bits(out.ids.data(), out.ids.size());
  return out;
}

// Units in order from several threads: each takes the next one, and they are handed out in order. At most a few more
// are in memory than there are threads.
class Pipeline {
 public:
  Pipeline(const Corpus& corpus, const Encoder& encoder, uint32_t bytes_per_id, Unit begin, BadData& bad, int workers)
      : corpus_(corpus),
        encoder_(encoder),
        bytes_per_id_(bytes_per_id),
        next_(begin),
        bad_(bad),
        most_ahead_(2 * int64_t{workers} + 2) {
    for (int i = 0; i < workers; ++i) threads_.emplace_back([this] { work(); });
  }
  ~Pipeline() {
    stop_.request_stop();
    {
      const std::lock_guard lock(mutex_);
      ended_ = true;
    }
    room_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }
  Pipeline(const Pipeline&) = delete;
  Pipeline& operator=(const Pipeline&) = delete;

  // The next unit in order; false at the end. `idle` is called while waiting, and may throw.
  bool next(Encoded& out, const std::function<void()>& idle) {
    std::unique_lock lock(mutex_);
    for (;;) {
      const auto it = ready_.find(handed_out_);
      if (it != ready_.end()) {
        out = std::move(it->second);
        ready_.erase(it);
        ++handed_out_;
        room_.notify_all();
        return true;
      }
      if (error_) std::rethrow_exception(error_);
      if (ended_ && handed_out_ == taken_) return false;
      arrived_.wait_for(lock, std::chrono::milliseconds(100));
      lock.unlock();
      idle();
      lock.lock();
    }
  }

 private:
  void work() {
    for (;;) {
      Unit unit;
      int64_t number = 0;
      bool last = false;
      try {
        std::unique_lock lock(mutex_);
        room_.wait(lock, [&] { return ended_ || taken_ - handed_out_ < most_ahead_; });
        if (ended_) return;
        while (next_.file < corpus_.files().size() && !corpus_.has(next_.file, next_.part, stop_.get_token())) {
          next_ = {next_.file + 1, 0};
        }
        if (next_.file == corpus_.files().size()) {
          ended_ = true;
          arrived_.notify_all();
          room_.notify_all();
          return;
        }
        unit = next_;
        last = !corpus_.has(unit.file, unit.part + 1, stop_.get_token());
        ++next_.part;
        number = taken_++;
      } catch (...) {
        fail();
        return;
      }
      try {
        Encoded encoded = encode_unit(corpus_, unit, encoder_, bytes_per_id_, bad_, stop_.get_token());
        encoded.last = last;
        const std::lock_guard lock(mutex_);
        ready_[number] = std::move(encoded);
        arrived_.notify_all();
      } catch (...) {
        fail();
        return;
      }
    }
  }

  void fail() {
    const std::lock_guard lock(mutex_);
    if (!error_) error_ = std::current_exception();
    ended_ = true;
    arrived_.notify_all();
    room_.notify_all();
  }

  const Corpus& corpus_;
  const Encoder& encoder_;
  uint32_t bytes_per_id_;
  Unit next_;
  BadData& bad_;
  int64_t most_ahead_;
  std::stop_source stop_;
  std::mutex mutex_;
  std::condition_variable room_, arrived_;
  int64_t taken_ = 0;       // units given to threads
  int64_t handed_out_ = 0;  // units that next() gave
  std::map<int64_t, Encoded> ready_;
  bool ended_ = false;
  std::exception_ptr error_;
  std::vector<std::thread> threads_;
};

// What must be the same for a start to go on with what an earlier one did.
Json identity_of(const Corpus& corpus, const DataOptions& options, const Encoder& encoder) {
  Json manifest = corpus.manifest();
  return {{"source", std::move(manifest)},
          {"tokenizer", encoder.fingerprint},
          {"text_column", options.text_column},
          {"commits", options.storage->commits()}};
}

void check_identity(const Json& was, const Json& now, const fs::path& out) {
  for (const char* key : {"tokenizer", "text_column", "source"}) {
    if (was.contains(key) && was[key] == now[key]) continue;
    throw refusal(fmt::format("{} holds text that was prepared with another {}", out.string(),
                              key == std::string_view("text_column") ? "text column" : key),
                  "choose another folder with --out, or remove that one");
  }
}

class Preparation {
 public:
  Preparation(const DataOptions& options, const Encoder& encoder, fs::path out,
              const std::function<void(const PrepareProgress&)>& progress)
      : options_(options),
        encoder_(encoder),
        out_(std::move(out)),
        progress_(progress),
        bad_(options.on_bad_data),
        bytes_per_id_(encoder.n_ids > 0 && encoder.n_ids <= 65536 ? 2 : 4) {}

  PrepareReport run() {
    std::error_code ec;
    if (fs::exists(out_, ec) && !fs::is_directory(out_, ec)) {
      throw usage_error(fmt::format("{} is not a folder", out_.string()), "choose another with --out");
    }
    const bool begun = fs::exists(out_ / "preparing.json", ec) || fs::exists(out_ / "prepared.json", ec);
    if (!begun && fs::is_directory(out_, ec) && !fs::is_empty(out_, ec)) {
      throw refusal(fmt::format("{} is not empty and holds nothing prepared", out_.string()),
                    "choose another folder with --out");
    }
    Json before;
    if (begun) {
      const fs::path path = out_ / "preparing.json";
      before = parse_json(read_file(path, 8 << 20), path.string());
      if (before.contains("commits")) options_.storage->pin(commits_of(before));
    }
    corpus_ = std::make_shared<const Corpus>(options_);
    const Json identity = identity_of(*corpus_, options_, encoder_);
    if (begun) check_identity(before, identity, out_);
    make_folder(out_);
    const FolderLock lock(out_, "preparing data in", "choose another folder with --out");
    PrepareReport report;
    if (fs::exists(out_ / "prepared.json", ec) && every_chunk_is_there()) {
      report.info = read_prepared_info(out_);
      report.was_done = true;
      return report;
    }
    fs::remove(out_ / "prepared.json", ec);
    remove_stale_temporaries(out_);
    if (!begun) write_file_atomically(out_ / "preparing.json", identity.dump(1) + "\n");
    const Unit begin = find_begin();
    report.tokens_before = info_.tokens;
    write_units(begin);
    finish();
    report.info = info_;
    for (const auto& entry : fs::directory_iterator(out_, ec)) {
      if (entry.is_regular_file(ec)) report.bytes += entry.file_size(ec);
    }
    return report;
  }

 private:
  // A finished folder from which somebody removed a damaged file is prepared again where that was.
  bool every_chunk_is_there() const {
    const PreparedInfo info = read_prepared_info(out_);
    for (size_t f = 0; f < info.files.size(); ++f) {
      for (int64_t part = 0; part < info.files[f].units; part += units_per_chunk) {
        try {
          if (!read_index(out_, f, part / units_per_chunk)) return false;
        } catch (const DamagedFile&) {
          return false;
        }
      }
    }
    return true;
  }

  // Counts what earlier starts did, and gives the first unit that is not done.
  Unit find_begin() {
    info_.files.resize(corpus_->files().size());
    Unit at;
    while (at.file < corpus_->files().size()) {
      std::optional<PreparedChunk> chunk;
      try {
        chunk = read_index(out_, at.file, at.part / units_per_chunk);
      } catch (const DamagedFile& damage) {
        log::warn("{}: it is made again", damage.what());
      }
      if (!chunk) {
        // A file without units leaves nothing behind.
        if (at.part == 0 && !corpus_->has(at.file, 0)) {
          ++at.file;
          continue;
        }
        return at;
      }
      for (const PreparedUnit& unit : chunk->units) {
        for (const PreparedDocument& document : unit.documents) {
          const bool damaged = document.text_bytes == PreparedDocument::damaged;
          info_.documents += damaged ? document.tokens : 1;
          info_.skipped += damaged ? document.tokens : 0;
          info_.text_bytes += damaged ? 0 : document.text_bytes;
        }
        info_.tokens += static_cast<int64_t>(unit.tokens);
      }
      at.part += static_cast<int64_t>(chunk->units.size());
      info_.files[at.file].units = at.part;
      if (chunk->last) {
        bytes_before_ += corpus_->files()[at.file].size;
        at = {at.file + 1, 0};
      } else if (at.part % units_per_chunk != 0) {
        throw failure(fmt::format("{} is not whole", index_path(out_, at.file, at.part / units_per_chunk).string()),
                      "remove it and start again");
      }
    }
    return at;
  }

  void write_units(const Unit& begin) {
    Pipeline pipeline(*corpus_, encoder_, bytes_per_id_, begin, bad_, options_.workers);
    std::optional<AtomicFile> file;
    PreparedChunk chunk;
    Encoded unit;
    while (pipeline.next(unit, [&] { tell(); })) {
      if (!file) {
        file.emplace(tokens_path(out_, unit.unit.file, unit.unit.part / units_per_chunk));
        chunk = {.bytes_per_id = bytes_per_id_, .first_part = unit.unit.part, .last = false, .units = {}};
      }
      file->write(unit.ids);
      for (const PreparedDocument& document : unit.index.documents) {
        info_.documents += document.text_bytes == PreparedDocument::damaged ? document.tokens : 1;
      }
      info_.tokens += static_cast<int64_t>(unit.index.tokens);
      info_.text_bytes += unit.text_bytes;
      info_.skipped += unit.skipped;
      in_file_ += unit.stored;
      chunk.units.push_back(std::move(unit.index));
      info_.files[unit.unit.file].units = unit.unit.part + 1;
      if (unit.last || std::ssize(chunk.units) == units_per_chunk) {
        // The index is written last: a token file without one does not count.
        chunk.last = unit.last;
        file->commit();
        file.reset();
        write_index(chunk, index_path(out_, unit.unit.file, unit.unit.part / units_per_chunk));
      }
      if (unit.last) {
        bytes_before_ += corpus_->files()[unit.unit.file].size;
        in_file_ = 0;
        ++files_done_;
      }
      file_ = unit.unit.file;
      tell();
    }
  }

  void tell() {
    const auto now = std::chrono::steady_clock::now();
    if (!progress_ || now - told_ < std::chrono::milliseconds(200)) return;
    told_ = now;
    const uint64_t of_file = corpus_->files()[file_].size;
    const auto done = static_cast<double>(bytes_before_ + std::min(in_file_, of_file));
    progress_({info_.documents, info_.tokens, info_.text_bytes, files_done_, corpus_->files().size(),
               corpus_->bytes() > 0 ? std::min(1.0, done / static_cast<double>(corpus_->bytes())) : 1.0});
  }

  void finish() {
    info_.source = corpus_->name();
    info_.tokenizer = encoder_.fingerprint;
    info_.text_column = options_.text_column;
    info_.n_ids = encoder_.n_ids;
    info_.commits = options_.storage->commits();
    for (size_t f = 0; f < info_.files.size(); ++f) {
      info_.files[f].name = corpus_->files()[f].name;
      info_.files[f].size = corpus_->files()[f].size;
      info_.files[f].in_order = corpus_->file(f).in_order_only();
    }
    const Json json = to_json(info_);
    write_file_atomically(out_ / "prepared.json", json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n");
  }

  DataOptions options_;
  const Encoder& encoder_;
  fs::path out_;
  const std::function<void(const PrepareProgress&)>& progress_;
  BadData bad_;
  uint32_t bytes_per_id_;
  std::shared_ptr<const Corpus> corpus_;
  PreparedInfo info_;
  uint64_t bytes_before_ = 0;  // of files of the source that are done
  uint64_t in_file_ = 0;
  size_t file_ = 0;
  size_t files_done_ = 0;
  std::chrono::steady_clock::time_point told_{};
};

}  // namespace

PrepareReport prepare(const DataOptions& wanted, const Encoder& encoder, const fs::path& out,
                      const std::function<void(const PrepareProgress&)>& progress) {
  DataOptions options = wanted;
  if (!options.storage) options.storage = std::make_shared<Storage>();
  options.validation_documents = 0;
  return Preparation(options, encoder, out, progress).run();
}

}  // namespace mythos
