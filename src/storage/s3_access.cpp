#include "storage/s3_access.h"

#include "base/log.h"
#include "base/random.h"
#include "base/signals.h"
#include "storage/byte_source.h"
#include "storage/s3.h"
#include "storage/s3_settings.h"

#include <curl/curl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <map>
#include <mutex>
#include <optional>
#include <thread>

namespace mythos {
namespace {

// Everything that shows who asks: another environment gets another file system.
std::string environment_key() {
  std::string key;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const std::string_view name = text.substr(0, text.find('='));
    if (name.starts_with("AWS_") || name == "HOME" || name.ends_with("_proxy") || name.ends_with("_PROXY") ||
        name == "SSL_CERT_FILE") {
      key += text;
      key += '\n';
    }
  }
  return key;
}

// A few quick tries inside the SDK, so that a long listing need not begin again for one bad answer; longer pauses are
// made outside, where they can be stopped.
class QuickRetries : public arrow::fs::S3RetryStrategy {
 public:
  bool ShouldRetry(const AWSErrorDetail& error, int64_t attempted) override {
    const bool connection = error.message.find("curlCode") != std::string::npos;
    return error.should_retry && !connection && attempted < 3 && !stop_requested();
  }
  int64_t CalculateDelayBeforeNextRetry(const AWSErrorDetail& /*error*/, int64_t attempted) override {
    return INT64_C(100) << std::min<int64_t>(attempted, 3);
  }
};

// For writes there is no second place that tries again: a lost connection too, until patience ends.
class PatientRetries : public arrow::fs::S3RetryStrategy {
 public:
  explicit PatientRetries(double patience) : patience_(static_cast<int64_t>(patience * 1000)) {}
  bool ShouldRetry(const AWSErrorDetail& error, int64_t attempted) override {
    // What was waited before this attempt: 1/4, 1/2, 1, 2, 4, 4, ... seconds.
    int64_t waited = 0;
    for (int64_t i = 0; i < attempted; ++i) waited += pause(i);
    return error.should_retry && waited < patience_;
  }
  int64_t CalculateDelayBeforeNextRetry(const AWSErrorDetail& /*error*/, int64_t attempted) override {
    return pause(attempted);
  }

 private:
  static int64_t pause(int64_t attempted) { return INT64_C(250) << std::min<int64_t>(attempted, 4); }
  int64_t patience_;  // milliseconds
};

// Whether this machine has a metadata server (EC2): anything it answers within a second counts. Without this question
// the SDK waits for one at every start, for 12 seconds where packets vanish.
bool metadata_server_answers() {
  std::string address = process_environment("AWS_EC2_METADATA_SERVICE_ENDPOINT");
  if (address.empty()) address = "http://169.254.169.254";
  const std::unique_ptr<CURL, decltype(&curl_easy_cleanup)> curl(curl_easy_init(), curl_easy_cleanup);
  if (!curl) return false;
  curl_easy_setopt(curl.get(), CURLOPT_URL, address.c_str());
  curl_easy_setopt(curl.get(), CURLOPT_PROXY, "");
  curl_easy_setopt(curl.get(), CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(curl.get(), CURLOPT_NOBODY, 1L);
  curl_easy_setopt(curl.get(), CURLOPT_TIMEOUT_MS, 1000L);
  return curl_easy_perform(curl.get()) == CURLE_OK;
}

void no_wait_for_metadata(const S3Settings& settings) {
  const bool own_credentials = !process_environment("AWS_ACCESS_KEY_ID").empty();
  if (!process_environment("AWS_EC2_METADATA_DISABLED").empty() || (own_credentials && !settings.region.empty()) ||
      metadata_server_answers()) {
    return;
  }
  // The SDK takes this from nowhere else. Done once, before the first S3 call.
  ::setenv("AWS_EC2_METADATA_DISABLED", "true", 1);
}

// Arrow's S3 wants to be begun once and ended once, while the statics it uses are there. The function-local Library
// below ends it: it is made after all of those, so it goes away before them.
class Library {
 public:
  Library() {
    no_wait_for_metadata(s3_settings());
    auto options = arrow::fs::S3GlobalOptions::Defaults();
    if (process_environment("ARROW_S3_LOG_LEVEL").empty()) options.log_level = arrow::fs::S3LogLevel::Off;
    begun_ = arrow::fs::InitializeS3(options);
    if (!begun_.ok()) return;
    // Some of the statics come with the first client and the first call in the background: those are made here.
    auto first = arrow::fs::S3Options::Anonymous();
    first.region = "us-east-1";
    begun_ = arrow::fs::S3FileSystem::Make(first).status();
    if (begun_.ok()) begun_ = arrow::io::default_io_context().executor()->Submit([] {}).status();
  }
  ~Library() {
    systems_.clear();
    if (const auto ended = arrow::fs::EnsureS3Finalized(); !ended.ok()) ended.Warn();
  }
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  // For reading, or with a patience for writing.
  std::shared_ptr<arrow::fs::S3FileSystem> system(const std::string& bucket, std::optional<double> patience = {},
                                                  bool parallel = true) {
    const std::lock_guard lock(mutex_);
    if (!begun_.ok()) throw failure(fmt::format("Arrow's S3 cannot be started: {}", begun_.message()));
    const S3Settings settings = s3_settings();
    const std::string region = region_for(settings, bucket);
    auto& slot = systems_[fmt::format("{}{}\n{} {}", environment_key(), region, patience.value_or(-1), parallel)];
    if (!slot) slot = make(settings, region, bucket, patience, parallel);
    return slot;
  }

 private:
  // Asked of Amazon where nothing says it; another server takes any.
  static std::string region_for(const S3Settings& settings, const std::string& bucket) {
    if (!settings.region.empty()) return settings.region;
    if (!settings.endpoint.empty() || !settings.proxy.empty()) return "us-east-1";
    const std::string address = "s3://" + bucket;
    const auto region =
        call_s3([bucket] { return arrow::fs::ResolveS3BucketRegion(bucket); }, {}, "looking for", address);
    if (region.ok()) return *region;
    if (s3_trouble(region.status()) == S3Trouble::unreachable) throw s3_error(region.status(), "reach", address);
    return "us-east-1";  // what is wrong will show when the bucket itself is asked
  }

  static std::shared_ptr<arrow::fs::S3FileSystem> make(const S3Settings& settings, const std::string& region,
                                                       const std::string& bucket, std::optional<double> patience,
                                                       bool parallel) {
    arrow::fs::S3Options options;
    options.ConfigureDefaultCredentials();
    if (options.GetAccessKey().empty()) options.ConfigureAnonymousCredentials();
    options.region = region;
    options.endpoint_override = settings.endpoint;
    options.scheme = settings.scheme;
    options.tls_ca_file_path = settings.ca_file;
    options.connect_timeout = 5;
    options.request_timeout = 10;  // without a byte
    options.retry_strategy = std::make_shared<QuickRetries>();
    if (patience) {
      options.retry_strategy = std::make_shared<PatientRetries>(*patience);
      options.background_writes = parallel;
      options.allow_delayed_open = true;  // a small object is one request
    }
    if (!settings.proxy.empty()) {
      auto proxy = arrow::fs::S3ProxyOptions::FromUri(settings.proxy);
      if (!proxy.ok()) throw usage_error("the proxy variable in the environment is not an address", "http://HOST:PORT");
      options.proxy_options = *std::move(proxy);
    }
    auto made = arrow::fs::S3FileSystem::Make(options);
    if (!made.ok()) throw s3_error(made.status(), "reach", "s3://" + bucket);
    return *std::move(made);
  }

  arrow::Status begun_;
  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<arrow::fs::S3FileSystem>> systems_;
};

Library& library() {
  static Library instance;
  return instance;
}

bool has(const std::string& text, std::initializer_list<const char*> parts) {
  return std::ranges::any_of(parts, [&](const char* part) { return text.find(part) != std::string::npos; });
}

// Whether requests for "s3://BUCKET..." are signed.
bool has_credentials(const std::string& address) {
  const std::string bucket = address.substr(5, address.find('/', 5) - 5);
  return s3_file_system(bucket)->options().credentials_kind != arrow::fs::S3CredentialsKind::Anonymous;
}

std::string endpoint_text() {
  try {
    const S3Settings settings = s3_settings();
    if (settings.endpoint.empty()) return settings.proxy.empty() ? "Amazon S3" : "Amazon S3 (through the proxy)";
    return settings.scheme + "://" + settings.endpoint + (settings.proxy.empty() ? "" : " (through the proxy)");
  } catch (const Error&) {
    return "the S3 server";
  }
}

// The part of a message behind "Details: " or behind "operation: ", without the request's id.
std::string reason(const std::string& message) {
  std::string text = message;
  for (const char* mark : {"Details: ", "operation: "}) {
    if (const size_t at = message.rfind(mark); at != std::string::npos) {
      text = message.substr(at + std::char_traits<char>::length(mark));
      break;
    }
  }
  if (const size_t id = text.find(" (Request ID"); id != std::string::npos) text.resize(id);
  std::ranges::replace(text, '\n', ' ');
  while (text.ends_with(' ') || text.ends_with('.')) text.pop_back();
  if (text.size() > 300) text.resize(300);
  if (text.empty() || text == "No response body") {
    const size_t code = message.find("HTTP status ");
    text = "the server refused without saying why";
    if (code != std::string::npos) text += fmt::format(" (HTTP status {})", message.substr(code + 12, 3));
  }
  return text;
}

}  // namespace

S3Trouble s3_trouble(const arrow::Status& status) {
  if (status.ok()) return S3Trouble::none;
  const std::string& text = status.message();
  if (has(text, {"NO_SUCH_BUCKET", "NoSuchBucket"})) return S3Trouble::no_bucket;
  if (has(text, {"the bucket is located in", "PermanentRedirect", "AuthorizationHeaderMalformed"})) {
    return S3Trouble::wrong_region;
  }
  if (has(text, {"ExpiredToken", "token has expired", "TokenRefreshRequired"})) return S3Trouble::expired;
  if (has(text, {"REQUEST_TIME_TOO_SKEWED", "RequestTimeTooSkewed", "REQUEST_EXPIRED"})) return S3Trouble::clock;
  if (has(text, {"INVALID_ACCESS_KEY_ID", "SIGNATURE_DOES_NOT_MATCH", "INVALID_SIGNATURE", "INVALID_CLIENT_TOKEN_ID",
                 "UNRECOGNIZED_CLIENT", "InvalidToken", "InvalidAccessKeyId", "SignatureDoesNotMatch"})) {
    return S3Trouble::bad_credentials;
  }
  if (has(text, {"ACCESS_DENIED", "AccessDenied", "HTTP status 403", "MISSING_AUTHENTICATION_TOKEN"})) {
    return S3Trouble::denied;
  }
  if (has(text, {"NO_SUCH_KEY", "NoSuchKey", "Path does not exist", "RESOURCE_NOT_FOUND"})) return S3Trouble::no_key;
  if (has(text, {"curlCode: 60", "curlCode: 77", "curlCode: 51"})) return S3Trouble::certificate;
  if (has(text, {"NETWORK_CONNECTION", "curlCode: "})) return S3Trouble::unreachable;
  if (has(text, {"SLOW_DOWN", "SlowDown", "SERVICE_UNAVAILABLE", "THROTTLING", "INTERNAL_FAILURE", "REQUEST_TIMEOUT",
                 "RequestTimeout", "HTTP status 5", "HTTP status 429", "HTTP status 408"})) {
    return S3Trouble::busy;
  }
  return S3Trouble::other;
}

arrow::Status clearer_s3_status(arrow::fs::S3FileSystem& system, const std::string& path, const arrow::Status& status) {
  const S3Trouble trouble = s3_trouble(status);
  if (trouble != S3Trouble::denied && trouble != S3Trouble::other) return status;
  arrow::fs::FileSelector select;
  select.base_dir = path;
  select.allow_not_found = true;
  const auto listing = system.GetFileInfo(select);
  // Who may read objects need not be allowed to list them: that is no news.
  return listing.ok() || s3_trouble(listing.status()) == S3Trouble::denied ? status : listing.status();
}

Error s3_error(const arrow::Status& status, const std::string& doing, const std::string& address) {
  const std::string begin = fmt::format("cannot {} {}: ", doing, address);
  const std::string& text = status.message();
  switch (s3_trouble(status)) {
    case S3Trouble::no_bucket:
      return usage_error(begin + "there is no such bucket", "check its name and the account");
    case S3Trouble::no_key:
      return usage_error(begin + "there is no such object", "check the address");
    case S3Trouble::denied: {
      if (has_credentials(address)) {
        const bool writes = doing == "write" || doing == "delete" || doing == "move";
        return failure(begin + "access denied with the credentials in use",
                       fmt::format("they need {} there; AWS_PROFILE chooses others",
                                   writes ? "s3:ListBucket, s3:GetObject, s3:PutObject and s3:DeleteObject"
                                          : "s3:ListBucket and s3:GetObject"));
      }
      return failure(begin + "access denied, and no credentials were found",
                     "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, or run aws configure");
    }
    case S3Trouble::bad_credentials:
      return failure(begin + "the server does not take the credentials",
                     "check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN, or the profile");
    case S3Trouble::expired:
      return failure(begin + "the session token has expired",
                     "get new credentials (aws sso login, aws sts), then start again: it goes on where it stopped");
    case S3Trouble::clock:
      return failure(begin + "this machine's clock is too far from the server's", "set the clock");
    case S3Trouble::wrong_region: {
      const size_t at = text.find("the bucket is located in '");
      if (at == std::string::npos) {
        return failure(begin + "the bucket is in another region", "set AWS_REGION to the bucket's");
      }
      const size_t first = at + std::char_traits<char>::length("the bucket is located in '");
      const std::string region = text.substr(first, text.find('\'', first) - first);
      return failure(begin + "the bucket is in region " + region, "set AWS_REGION=" + region);
    }
    case S3Trouble::certificate:
      return failure(fmt::format("{}the certificate of {} is not trusted ({})", begin, endpoint_text(), reason(text)),
                     "AWS_CA_BUNDLE names a file of certificate authorities");
    case S3Trouble::unreachable:
      return failure(fmt::format("{}no connection to {} ({})", begin, endpoint_text(), reason(text)),
                     "check the network, AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL, AWS_REGION and the proxy variables");
    case S3Trouble::busy:
      return failure(fmt::format("{}{} goes on answering with errors ({})", begin, endpoint_text(), reason(text)),
                     "try again later");
    default:
      return failure(begin + reason(text));
  }
}

void check_s3_stop(const std::stop_token& stop, const std::string& doing, const std::string& address) {
  if (stop.stop_requested() || stop_requested()) throw Stopped(fmt::format("{} {} was stopped", doing, address));
}

void pause_s3(int attempt, const std::stop_token& stop, const std::string& doing, const std::string& address,
              const arrow::Status& status) {
  using std::chrono::steady_clock;
  // Half to all of the doubled pause: many readers then do not come back together.
  const double whole = std::min(15.0, 0.5 * static_cast<double>(1 << std::min(attempt - 1, 10)));
  const auto now = steady_clock::now();
  Random random(derive_seed(static_cast<uint64_t>(now.time_since_epoch().count()), 0, address));
  const std::chrono::duration<double> pause(whole * (0.5 + 0.5 * random.uniform()));
  if (attempt > 1) log::warn("{} {}: {}; trying again in {:.0f} s", doing, address, reason(status.message()), whole);
  while (steady_clock::now() - now < pause) {
    check_s3_stop(stop, doing, address);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

std::shared_ptr<arrow::fs::S3FileSystem> s3_file_system(const std::string& bucket) { return library().system(bucket); }

std::shared_ptr<arrow::fs::S3FileSystem> s3_write_system(const std::string& bucket, double patience, bool parallel) {
  return library().system(bucket, patience, parallel);
}

}  // namespace mythos
