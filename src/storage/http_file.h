// Files behind http:// and https:// addresses, read in parts.
#pragma once

#include "storage/byte_source.h"
#include "storage/http_client.h"

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

namespace mythos {

/// How one file is reached, shared by everything that reads it. An address may lead to another host, often with a
/// signature that expires: that one is kept and asked directly until it is refused, then the first one is asked again.
class HttpRoute {
 public:
  struct Way {
    std::string url;
    bool direct = false;  ///< the kept address, not the file's own
  };

  explicit HttpRoute(std::string url) : url_(std::move(url)) {}

  [[nodiscard]] Way way() const;
  /// An answer with bytes came from `response.head.url`.
  void worked(const HttpResponse& response);
  /// The kept address is of no more use; another one may be kept already.
  void drop(const std::string& direct);
  [[nodiscard]] const std::string& url() const { return url_; }

  /// Whether the head tells of the same content as the ones before; remembers it if it is the first.
  bool same_content(const HttpHead& head);
  /// The content is known by `etag` from the listing on.
  void expect(std::string etag, std::string modified);

 private:
  mutable std::mutex mutex_;
  const std::string url_;
  std::string direct_;
  std::string etag_;
  std::string modified_;
  bool expected_ = false;
};

/// A file to read: what is known of it beforehand.
struct HttpFile {
  std::string name;  ///< for messages
  std::string token;
  uint64_t size = 0;
  std::shared_ptr<HttpRoute> route;
  std::optional<double> patience;  ///< of its reads; else the client's
  /// Looks at an answer that came through the file's own address: throws Error if it is of another content.
  std::function<void(const HttpResponse&)> check;
  /// Words for an answer that is no success.
  std::function<Error(const HttpResponse&)> explain;
};

std::shared_ptr<const ByteSource> open_http_file(std::shared_ptr<HttpClient> client, HttpFile file);

struct HttpProbe {
  uint64_t size = 0;
  std::string version;  ///< the ETag, else Last-Modified, else ""
};
/// Asks for the first byte (signed addresses refuse HEAD) of `file`, whose size is not needed.
HttpProbe probe_http_file(HttpClient& client, const HttpFile& file, std::optional<double> patience = {});

/// Probes a file and reads all of it; throws Error if it is larger than `max_bytes`.
std::string read_http_file(const std::shared_ptr<HttpClient>& client, HttpFile file, uint64_t max_bytes);

/// What a plain address is: no token, nothing known but the address.
HttpFile plain_http_file(const std::string& url);

/// The files of an address: itself or, if it ends in '/', those with one of the `extensions` which its HTML page links
/// to, one level deep.
std::vector<SourceFile> list_http_files(HttpClient& client, const std::string& source,
                                        std::span<const std::string_view> extensions);
/// The targets of the links of an HTML page, as they stand there.
std::vector<std::string> links_of(std::string_view html);

}  // namespace mythos
