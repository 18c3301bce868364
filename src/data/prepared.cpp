#include "data/prepared.h"

#include "base/error.h"
#include "base/file.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cstring>
#include <map>
#include <mutex>
#include <utility>

namespace mythos {
namespace fs = std::filesystem;

namespace {

constexpr int format_version = 1;
constexpr std::string_view magic = "mythos tokens 1\n";
constexpr uint64_t max_index_bytes = UINT64_C(4) << 30;

// Little-endian numbers in a row.
class Packer {
 public:
  template <class T>
  void add(T value) {
    const auto* p = reinterpret_cast<const char*>(&value);
    bytes_.append(p, sizeof value);
  }
  std::string& bytes() { return bytes_; }

 private:
  std::string bytes_;
};

class Unpacker {
 public:
  Unpacker(std::string_view bytes, const std::string& where) : bytes_(bytes), where_(where) {}
  template <class T>
  T take() {
    if (bytes_.size() < sizeof(T)) throw DamagedFile(where_ + " ends too early");
    T value;
    std::memcpy(&value, bytes_.data(), sizeof value);
    bytes_.remove_prefix(sizeof value);
    return value;
  }
  [[nodiscard]] size_t left() const { return bytes_.size(); }

 private:
  std::string_view bytes_;
  const std::string& where_;
};

// A unit's ids, from the map of its chunk.
class PreparedReader : public UnitReader {
 public:
  PreparedReader(std::shared_ptr<const MappedFile> map, const std::byte* ids, const PreparedUnit& unit,
                 uint32_t bytes_per_id)
      : map_(std::move(map)), ids_(ids), unit_(unit), bytes_per_id_(bytes_per_id) {}

  bool next(Entry& entry) override {
    if (at_ == unit_.documents.size()) return false;
    const PreparedDocument& document = unit_.documents[at_++];
    entry.count = 1;
    entry.ids = {};
    entry.text = {};
    if (document.text_bytes == PreparedDocument::damaged) {
      entry.kind = Entry::Kind::damaged;
      entry.count = document.tokens;
      entry.problem = "a document was left out when the source was prepared";
      return true;
    }
    entry.text_bytes = document.text_bytes;
    entry.kind = document.tokens == 0 ? Entry::Kind::empty : Entry::Kind::tokens;
    if (bytes_per_id_ == sizeof(int32_t)) {
      entry.ids = {reinterpret_cast<const int32_t*>(ids_), document.tokens};
    } else {
      const auto* narrow = reinterpret_cast<const uint16_t*>(ids_);
      wide_.assign(narrow, narrow + document.tokens);
      entry.ids = wide_;
    }
    ids_ += uint64_t{document.tokens} * bytes_per_id_;
    return true;
  }

  void skip(int64_t count) override {
    for (; count > 0 && at_ < unit_.documents.size(); --count) {
      const PreparedDocument& document = unit_.documents[at_++];
      if (document.text_bytes != PreparedDocument::damaged) ids_ += uint64_t{document.tokens} * bytes_per_id_;
    }
  }

 private:
  std::shared_ptr<const MappedFile> map_;
  const std::byte* ids_;
  PreparedUnit unit_;
  uint32_t bytes_per_id_;
  std::vector<int32_t> wide_;
  size_t at_ = 0;
};

class PreparedUnits : public DataFile {
 public:
  PreparedUnits(fs::path folder, const PreparedInfo& info, size_t file)
      : folder_(std::move(folder)), file_(file), units_(info.files[file].units), in_order_(info.files[file].in_order) {}

  bool has(int64_t part, std::stop_token /*stop*/) override { return part >= 0 && part < units_; }
  int64_t count(std::stop_token /*stop*/) override { return units_; }

  UnitInfo info(int64_t part, std::stop_token /*stop*/) override {
    const std::lock_guard lock(mutex_);
    const Chunk& chunk = chunk_of(part);
    const PreparedUnit& unit = chunk.index.units[static_cast<size_t>(part % units_per_chunk)];
    int64_t documents = 0;
    for (const auto& d : unit.documents) documents += d.text_bytes == PreparedDocument::damaged ? d.tokens : 1;
    return {documents, unit.tokens * chunk.index.bytes_per_id};
  }

  std::unique_ptr<UnitReader> read(int64_t part, std::stop_token /*stop*/) override {
    const std::lock_guard lock(mutex_);
    const Chunk& chunk = chunk_of(part);
    const auto i = static_cast<size_t>(part % units_per_chunk);
    const PreparedUnit& unit = chunk.index.units[i];
    const auto bytes = chunk.map->bytes().subspan(chunk.begins[i], unit.tokens * chunk.index.bytes_per_id);
    if (XXH3_64bits(bytes.data(), bytes.size()) != unit.hash) {
      throw failure(fmt::format("{} is damaged: the ids of unit {} do not match their checksum",
                                tokens_path(folder_, file_, part / units_per_chunk).string(), part),
                    "remove it and its .index, and run the same `mythos data prepare` again");
    }
    return std::make_unique<PreparedReader>(chunk.map, bytes.data(), unit, chunk.index.bytes_per_id);
  }

  void release() override {
    const std::lock_guard lock(mutex_);
    chunks_.clear();
  }

  [[nodiscard]] bool in_order_only() const override { return in_order_; }

 private:
  struct Chunk {
    PreparedChunk index;
    std::shared_ptr<const MappedFile> map;
    std::vector<uint64_t> begins;  // of each unit, in bytes
  };

  const Chunk& chunk_of(int64_t part) {
    const int64_t number = part / units_per_chunk;
    const auto known = chunks_.find(number);
    if (known != chunks_.end()) return known->second;
    const auto path = index_path(folder_, file_, number);
    Chunk chunk;
    try {
      auto index = read_index(folder_, file_, number);
      const int64_t units = std::min(units_per_chunk, units_ - number * units_per_chunk);
      if (!index) throw failure(fmt::format("{} is missing", path.string()), repair);
      if (static_cast<int64_t>(index->units.size()) != units) {
        throw failure(fmt::format("{} has {} units, not {}", path.string(), index->units.size(), units), repair);
      }
      chunk.index = std::move(*index);
    } catch (const DamagedFile& damage) {
      throw failure(damage.what(), repair);
    }
    chunk.map = std::make_shared<const MappedFile>(tokens_path(folder_, file_, number));
    uint64_t at = 0;
    for (const PreparedUnit& unit : chunk.index.units) {
      chunk.begins.push_back(at);
      at += unit.tokens * chunk.index.bytes_per_id;
    }
    if (at != chunk.map->bytes().size()) {
      throw failure(fmt::format("{} has {} bytes, not {}", tokens_path(folder_, file_, number).string(),
                                chunk.map->bytes().size(), at),
                    repair);
    }
    if (chunks_.size() >= 4) chunks_.erase(chunks_.begin());
    return chunks_[number] = std::move(chunk);
  }

  static constexpr const char* repair = "run the same `mythos data prepare` again";
  std::mutex mutex_;
  fs::path folder_;
  size_t file_;
  int64_t units_;
  bool in_order_;
  std::map<int64_t, Chunk> chunks_;
};

}  // namespace

uint64_t PreparedChunk::tokens() const {
  uint64_t sum = 0;
  for (const PreparedUnit& unit : units) sum += unit.tokens;
  return sum;
}

fs::path tokens_path(const fs::path& folder, size_t file, int64_t chunk) {
  return folder / fmt::format("{:05}-{:05}.tokens", file, chunk);
}
fs::path index_path(const fs::path& folder, size_t file, int64_t chunk) {
  return folder / fmt::format("{:05}-{:05}.index", file, chunk);
}

void write_index(const PreparedChunk& chunk, const fs::path& path) {
  Packer out;
  out.bytes() = magic;
  out.add(chunk.bytes_per_id);
  out.add(uint32_t{chunk.last});
  out.add(static_cast<uint64_t>(chunk.first_part));
  out.add(static_cast<uint64_t>(chunk.units.size()));
  for (const PreparedUnit& unit : chunk.units) {
    out.add(unit.hash);
    out.add(static_cast<uint64_t>(unit.documents.size()));
    for (const PreparedDocument& document : unit.documents) {
      out.add(document.tokens);
      out.add(document.text_bytes);
    }
  }
  out.add(uint64_t{XXH3_64bits(out.bytes().data(), out.bytes().size())});
  write_file_atomically(path, out.bytes());
}

std::optional<PreparedChunk> read_index(const fs::path& folder, size_t file, int64_t number) {
  const fs::path path = index_path(folder, file, number);
  const std::string where = path.string();
  std::error_code ec;
  if (!fs::exists(path, ec)) return std::nullopt;
  const std::string bytes = read_file(path, max_index_bytes);
  if (!bytes.starts_with(magic) || bytes.size() < magic.size() + sizeof(uint64_t)) {
    throw DamagedFile(where + " is not an index of tokens of this version");
  }
  const std::string_view body = std::string_view(bytes).substr(0, bytes.size() - sizeof(uint64_t));
  uint64_t hash = 0;
  std::memcpy(&hash, bytes.data() + body.size(), sizeof hash);
  if (XXH3_64bits(body.data(), body.size()) != hash) {
    throw DamagedFile(where + " is damaged: it does not match its checksum");
  }
  Unpacker in(body.substr(magic.size()), where);
  PreparedChunk chunk;
  chunk.bytes_per_id = in.take<uint32_t>();
  chunk.last = in.take<uint32_t>() != 0;
  chunk.first_part = static_cast<int64_t>(in.take<uint64_t>());
  const auto units = in.take<uint64_t>();
  if ((chunk.bytes_per_id != 2 && chunk.bytes_per_id != 4) || units > static_cast<uint64_t>(units_per_chunk) ||
      chunk.first_part != number * units_per_chunk) {
    throw DamagedFile(where + " contradicts itself");
  }
  for (uint64_t u = 0; u < units; ++u) {
    PreparedUnit& unit = chunk.units.emplace_back();
    unit.hash = in.take<uint64_t>();
    const auto documents = in.take<uint64_t>();
    if (documents > in.left() / 8) throw DamagedFile(where + " ends too early");
    unit.documents.reserve(documents);
    for (uint64_t d = 0; d < documents; ++d) {
      PreparedDocument document;
      document.tokens = in.take<uint32_t>();
      document.text_bytes = in.take<uint32_t>();
      if (document.text_bytes != PreparedDocument::damaged) unit.tokens += document.tokens;
      unit.documents.push_back(document);
    }
  }
  const uint64_t size = fs::file_size(tokens_path(folder, file, number), ec);
  if (ec || size != chunk.tokens() * chunk.bytes_per_id) {
    throw DamagedFile(fmt::format("{} does not fit {}", where, tokens_path(folder, file, number).string()));
  }
  return chunk;
}

Json to_json(const PreparedInfo& info) {
  Json files = Json::array();
  for (const auto& f : info.files) {
    files.push_back({{"name", f.name}, {"size", f.size}, {"units", f.units}, {"in_order", f.in_order}});
  }
  return {{"format", format_version},        {"source", info.source},         {"tokenizer", info.tokenizer},
          {"text_column", info.text_column}, {"n_ids", info.n_ids},           {"documents", info.documents},
          {"tokens", info.tokens},           {"text_bytes", info.text_bytes}, {"skipped", info.skipped},
          {"commits", info.commits},         {"files", std::move(files)}};
}

PreparedInfo prepared_info_from(const Json& json, const std::string& where) {
  PreparedInfo info;
  try {
    if (json.at("format") != format_version) {
      throw failure(
          fmt::format("{} has format {}, this program reads {}", where, json.at("format").dump(), format_version),
          "prepare the source again");
    }
    info.source = json.at("source").get<std::string>();
    info.tokenizer = json.at("tokenizer").get<std::string>();
    info.text_column = json.at("text_column").get<std::string>();
    info.n_ids = json.at("n_ids").get<int64_t>();
    info.documents = json.at("documents").get<int64_t>();
    info.tokens = json.at("tokens").get<int64_t>();
    info.text_bytes = json.at("text_bytes").get<int64_t>();
    info.skipped = json.at("skipped").get<int64_t>();
    info.commits = json.at("commits");
    for (const Json& f : json.at("files")) {
      info.files.push_back({f.at("name").get<std::string>(), f.at("size").get<uint64_t>(), f.at("units").get<int64_t>(),
                            f.at("in_order").get<bool>()});
      if (info.files.back().units < 0) throw failure(fmt::format("{} has a file of less than no units", where));
    }
  } catch (const Json::exception& e) {
    throw failure(fmt::format("{} is damaged: {}", where, e.what()), "prepare the source again");
  }
  return info;
}

bool is_prepared(const std::string& path) {
  std::error_code ec;
  if (!fs::is_directory(path, ec)) return false;
  if (fs::exists(fs::path(path) / "prepared.json", ec)) return true;
  if (!fs::exists(fs::path(path) / "preparing.json", ec)) return false;
  throw usage_error(fmt::format("{} is not prepared to its end", path),
                    "run the same `mythos data prepare` again: it goes on where it stopped");
}

PreparedInfo read_prepared_info(const fs::path& folder) {
  const fs::path path = folder / "prepared.json";
  return prepared_info_from(parse_json(read_file(path, 256 << 20), path.string()), path.string());
}

std::unique_ptr<DataFile> open_prepared_units(const fs::path& folder, const PreparedInfo& info, size_t file) {
  return std::make_unique<PreparedUnits>(folder, info, file);
}

}  // namespace mythos
