// Requests over HTTP(S): one try, or tried again as long as patience lasts. On libcurl.
#pragma once

#include "storage/byte_source.h"
#include "storage/http_options.h"

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

namespace mythos {

/// Status and header fields of one answer.
struct HttpHead {
  int status = 0;                             ///< 0: no answer came
  std::string url;                            ///< that was asked; may hold secrets
  std::map<std::string, std::string> fields;  ///< by lower-case name

  /// The value of a field, or "".
  [[nodiscard]] std::string field(const std::string& name) const;
  /// Seconds that Retry-After asks for (a number or a date); nothing where it is missing or makes no sense.
  [[nodiscard]] std::optional<double> retry_after() const;
};

struct HttpRange {
  uint64_t begin = 0;
  uint64_t end = 0;  ///< behind the last byte
};

struct HttpRequest {
  std::string url;
  std::string token;  ///< sent as "Authorization: Bearer ..." to the origin of `url` and to no other
  std::optional<HttpRange> range;
};

/// Takes the body of an answer with a 2xx status.
class HttpSink {
 public:
  virtual ~HttpSink() = default;
  HttpSink() = default;
  HttpSink(const HttpSink&) = delete;
  HttpSink& operator=(const HttpSink&) = delete;

  /// Once for an answer, before its bytes. False: no byte of it is wanted.
  virtual bool begin(const HttpHead& head) = 0;
  /// False: enough.
  virtual bool write(std::span<const std::byte> bytes) = 0;
};

struct HttpResponse {
  HttpHead head;                    ///< of the last answer
  std::vector<HttpHead> redirects;  ///< that led to it
  std::string body;                 ///< of answers that are no success: their first 64 kB
  std::string trouble;              ///< why the transfer broke, in words; "" if it did not. Worth another try
};

/// Thread-safe. Connections are kept and used again. Proxy variables are libcurl's own (http_proxy, https_proxy,
/// no_proxy); certificates come from REQUESTS_CA_BUNDLE, CURL_CA_BUNDLE, SSL_CERT_FILE or the system.
class HttpClient {
 public:
  explicit HttpClient(const HttpOptions& options);
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  /// One try. Redirects are followed: ten at most, in no circle, to http and https only and never from https to http.
  /// Throws Error for what another try would not mend (a certificate, a redirect that is refused), and Stopped.
  HttpResponse once(const HttpRequest& request, HttpSink& sink, const std::stop_token& stop = {});

  /// The whole body of a small thing, tried for contact_patience (or less, see `patience`). An answer that is no
  /// success and that another try would not mend is returned. `what`: its name in messages.
  HttpResponse get(const HttpRequest& request, const std::string& what, uint64_t max_bytes,
                   std::optional<double> patience = {}, const std::stop_token& stop = {});

  [[nodiscard]] const HttpOptions& options() const;
  [[nodiscard]] double read_patience() const;
  void set_read_patience(double seconds);

  /// For Retry: uniform in [0, 1).
  double random();
  /// For Retry: says `line` in the log unless the same `topic` was said less than `seconds` ago.
  void say(const std::string& topic, double seconds, const std::string& line);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// The waits between tries of one thing: exponential, with full jitter, until patience ends.
class Retry {
 public:
  /// `doing`: "read hub/x.parquet", for messages.
  Retry(HttpClient& client, std::string doing, double patience, std::stop_token stop);

  /// Waits before the next try. Throws Error "cannot DOING: WHY" once patience has ended, and Stopped.
  void wait(const std::string& why, std::optional<double> server_asks = {});
  /// Bytes came: enough of them, and the waits begin anew.
  void progressed(uint64_t bytes);
  /// Tries without progress so far.
  [[nodiscard]] int tries() const { return tries_; }

 private:
  HttpClient& client_;
  std::string doing_;
  double patience_;
  std::stop_token stop_;
  double begun_;
  double granted_ = 0;  // seconds of waiting that servers asked for
  uint64_t bytes_ = 0;
  int tries_ = 0;
};

/// Waits, and throws Stopped as soon as `stop` or a signal asks for it.
void sleep_or_stop(double seconds, const std::stop_token& stop);
/// Throws Stopped if `stop` or a signal asks for it.
void throw_if_stopped(const std::stop_token& stop);
/// 408, 429 and the 5xx that pass by themselves.
bool is_passing(int status);
/// "HTTP 503 (service unavailable)"
std::string status_text(int status);
/// An answer that is no success, in words with what to do. `what`: the file's name in the message.
Error status_error(const std::string& what, const HttpResponse& response);

}  // namespace mythos
