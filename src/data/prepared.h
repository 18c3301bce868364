// Text that was tokenized beforehand: a folder of memory-mapped token files, read like the source it was made from.
#pragma once

#include "base/json.h"
#include "data/data_file.h"
#include "storage/byte_source.h"

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace mythos {

/// Units of one file of the original source that are in one token file.
constexpr int64_t units_per_chunk = 64;

/// One document of a unit as the index of a token file holds it.
struct PreparedDocument {
  static constexpr uint32_t damaged = 0xFFFFFFFF;
  uint32_t tokens = 0;      ///< 0: null, empty, or without ids; of a damaged place: the documents it stands for
  uint32_t text_bytes = 0;  ///< `damaged`: a place where a document should be
};
struct PreparedUnit {
  std::vector<PreparedDocument> documents;
  uint64_t tokens = 0;
  uint64_t hash = 0;  ///< XXH3-64 of its ids as stored
};
/// What a token file holds: the units from `first_part` on.
struct PreparedChunk {
  uint32_t bytes_per_id = 4;  ///< 2 or 4, little-endian
  int64_t first_part = 0;
  bool last = false;  ///< no more units in this file of the source
  std::vector<PreparedUnit> units;

  [[nodiscard]] uint64_t tokens() const;
};

/// The files of chunk `number` of the source's file `file` in a prepared folder.
std::filesystem::path tokens_path(const std::filesystem::path& folder, size_t file, int64_t chunk);
std::filesystem::path index_path(const std::filesystem::path& folder, size_t file, int64_t chunk);
/// Writes an index whole or not at all.
void write_index(const PreparedChunk& chunk, const std::filesystem::path& path);
/// Nothing if there is no such file; DamagedFile if it is not whole or does not fit its token file.
std::optional<PreparedChunk> read_index(const std::filesystem::path& folder, size_t file, int64_t chunk);

/// What a folder was prepared from and with; `prepared.json` in it, written last.
struct PreparedInfo {
  struct File {
    std::string name;
    uint64_t size = 0;  ///< of the original
    int64_t units = 0;
    bool in_order = false;  ///< see DataFile::in_order_only: keeps its order under shuffle
  };
  std::string source;     ///< as it was named
  std::string tokenizer;  ///< fingerprint
  std::string text_column;
  int64_t n_ids = 0;
  int64_t documents = 0;  ///< null, empty and lost ones included
  int64_t tokens = 0;
  int64_t text_bytes = 0;
  int64_t skipped = 0;
  Json commits = Json::object();
  std::vector<File> files;
};
Json to_json(const PreparedInfo& info);
/// Throws Error if it is not one.
PreparedInfo prepared_info_from(const Json& json, const std::string& where);

/// Whether a path is a prepared folder; a usage error if it is one that is not finished.
bool is_prepared(const std::string& path);
PreparedInfo read_prepared_info(const std::filesystem::path& folder);
/// One file of the original source, from its token files.
std::unique_ptr<DataFile> open_prepared_units(const std::filesystem::path& folder, const PreparedInfo& info,
                                              size_t file);

}  // namespace mythos
