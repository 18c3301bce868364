#include "storage/storage.h"

#include "base/error.h"
#include "base/file.h"
#include "base/units.h"
#include "storage/http_client.h"
#include "storage/http_file.h"
#include "storage/hub.h"
#include "storage/local.h"
#include "storage/s3.h"
#include "storage/url.h"

#include <mutex>
#include <utility>

namespace mythos {
namespace {

enum class Kind { local, http, hub, s3, other };

Kind kind_of(std::string_view source) {
  if (!is_address(source)) return Kind::local;
  std::string scheme(source.substr(0, source.find("://")));
  for (char& c : scheme) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
  if (scheme == "http" || scheme == "https") return Kind::http;
  if (scheme == "s3") return Kind::s3;
  return scheme == "hf" ? Kind::hub : Kind::other;
}

Error unknown_kind(std::string_view source) {
  return usage_error(fmt::format("{} cannot be read: {}:// is not a known kind of address", shown_url(source),
                                 source.substr(0, source.find("://"))),
                     "give a local path, or an http://, https://, hf:// or s3:// address");
}

HttpFile http_file_of(const SourceFile& listed) {
  HttpFile file = plain_http_file(listed.location);
  file.size = listed.size;
  const bool tag = listed.version.starts_with('"') || listed.version.starts_with("W/");
  if (!listed.version.empty()) file.route->expect(tag ? listed.version : "", tag ? "" : listed.version);
  return file;
}

std::string read_s3_file(const std::string& address, uint64_t max_bytes) {
  const std::string extension = file_extension(address);
  const std::string_view extensions[]{extension};
  const auto files = list_s3_files(address, extensions);
  if (files.size() != 1) throw usage_error(fmt::format("{} is not one file but {}", address, files.size()));
  if (files.front().size > max_bytes) {
    throw failure(fmt::format("{} has {}, more than the {} that it may have", address,
                              bytes_text(static_cast<double>(files.front().size)),
                              bytes_text(static_cast<double>(max_bytes))));
  }
  std::string text(files.front().size, '\0');
  open_s3_file(files.front())->read_at(0, std::as_writable_bytes(std::span(text)));
  return text;
}

}  // namespace

// What stands behind an address is made when the first one is used: paths need neither libcurl nor the environment.
struct Storage::Impl {
  explicit Impl(const HttpOptions& given) : options(given) {}

  std::shared_ptr<HttpClient> http() {
    const std::lock_guard lock(mutex);
    return http_unlocked();
  }
  std::shared_ptr<Hub> hub() {
    const std::lock_guard lock(mutex);
    if (!hub_) {
      hub_ = std::make_shared<Hub>(http_unlocked(), hub_settings());
      hub_->pin(pinned);
    }
    return hub_;
  }
  std::shared_ptr<HttpClient> http_unlocked() {
    if (!client) client = std::make_shared<HttpClient>(options);
    return client;
  }

  std::mutex mutex;
  HttpOptions options;
  std::map<std::string, std::string> pinned;
  std::shared_ptr<HttpClient> client;
  std::shared_ptr<Hub> hub_;
};

Storage::Storage() : Storage(HttpOptions()) {}
Storage::Storage(const HttpOptions& options) : impl_(std::make_unique<Impl>(options)) {}
Storage::~Storage() = default;

bool is_address(std::string_view source) {
  const size_t scheme = source.find("://");
  return scheme != std::string_view::npos && scheme > 0 && source.find_first_of("/*?[") > scheme;
}

std::string shown_source(std::string_view source) {
  return is_address(source) && !source.starts_with("hf://") ? shown_url(source) : std::string(source);
}

std::vector<SourceFile> Storage::list(const std::string& source, std::span<const std::string_view> extensions) {
  switch (kind_of(source)) {
    case Kind::local:
      return list_local_files(source, extensions);
    case Kind::http:
      return list_http_files(*impl_->http(), source, extensions);
    case Kind::hub:
      return impl_->hub()->list(source, extensions);
    case Kind::s3:
      return list_s3_files(source, extensions);
    case Kind::other:
      break;
  }
  throw unknown_kind(source);
}

std::shared_ptr<const ByteSource> Storage::open(const SourceFile& file) {
  switch (kind_of(file.location)) {
    case Kind::local:
      return open_local_file(file);
    case Kind::http:
      return open_http_file(impl_->http(), http_file_of(file));
    case Kind::hub:
      return impl_->hub()->open(file);
    case Kind::s3:
      return open_s3_file(file);
    case Kind::other:
      break;
  }
  throw unknown_kind(file.location);
}

std::string Storage::read(const std::string& address, uint64_t max_bytes) {
  switch (kind_of(address)) {
    case Kind::local:
      return read_file(address, max_bytes);
    case Kind::http:
      return read_http_file(impl_->http(), plain_http_file(address), max_bytes);
    case Kind::hub:
      return impl_->hub()->read(address, max_bytes);
    case Kind::s3:
      return read_s3_file(address, max_bytes);
    case Kind::other:
      break;
  }
  throw unknown_kind(address);
}

void Storage::pin(const std::map<std::string, std::string>& commits) {
  const std::lock_guard lock(impl_->mutex);
  for (const auto& [key, commit] : commits) impl_->pinned[key] = commit;
  if (impl_->hub_) impl_->hub_->pin(commits);
}

std::map<std::string, std::string> Storage::commits() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->hub_ ? impl_->hub_->commits() : std::map<std::string, std::string>();
}

void Storage::set_patience(double seconds) {
  const std::lock_guard lock(impl_->mutex);
  impl_->options.read_patience = seconds;
  if (impl_->client) impl_->client->set_read_patience(seconds);
}

void Storage::set_contact_patience(double seconds) {
  const std::lock_guard lock(impl_->mutex);
  impl_->options.contact_patience = seconds;
}

}  // namespace mythos
