#include "storage/storage.h"

#include "base/error.h"
#include "storage/local.h"
#include "storage/s3.h"

namespace mythos {

struct Storage::Impl {};

Storage::Storage() : impl_(std::make_unique<Impl>()) {}
Storage::~Storage() = default;

bool is_address(std::string_view source) {
  const size_t scheme = source.find("://");
  return scheme != std::string_view::npos && scheme > 0 && source.find_first_of("/*?[") > scheme;
}

std::vector<SourceFile> Storage::list(const std::string& source, std::span<const std::string_view> extensions) {
  if (is_s3_address(source)) return list_s3_files(source, extensions);
  if (is_address(source)) {
    throw usage_error(fmt::format("source {} is not on this machine: {}:// cannot be read", source,
                                  source.substr(0, source.find("://"))),
                      "give a local file, folder or glob");
  }
  return list_local_files(source, extensions);
}

std::shared_ptr<const ByteSource> Storage::open(const SourceFile& file) {
  if (is_s3_address(file.location)) return open_s3_file(file);
  return open_local_file(file);
}

void Storage::pin(const std::map<std::string, std::string>&) {}
std::map<std::string, std::string> Storage::commits() const { return {}; }

std::shared_ptr<const ByteSource> read_ahead(std::shared_ptr<const ByteSource> source, uint64_t /*offset*/,
                                             uint64_t /*size*/) {
  return source;
}

}  // namespace mythos
