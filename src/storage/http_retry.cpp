// How long and how often requests are tried again, and what answers mean in words.
#include "base/signals.h"
#include "base/units.h"
#include "storage/http_client.h"
#include "storage/url.h"

#include <curl/curl.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <ctime>
#include <mutex>

namespace mythos {
namespace {

constexpr uint64_t enough_progress = uint64_t{64} << 10;

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

std::string_view words_of(int status) {
  switch (status) {
    case 400:
      return "bad request";
    case 401:
      return "not authorised";
    case 403:
      return "access is denied";
    case 404:
      return "not found";
    case 407:
      return "the proxy asks for a password";
    case 408:
      return "request timeout";
    case 410:
      return "gone";
    case 416:
      return "no such range";
    case 429:
      return "too many requests";
    case 500:
      return "internal server error";
    case 502:
      return "bad gateway";
    case 503:
      return "service unavailable";
    case 504:
      return "gateway timeout";
    default:
      return "";
  }
}

// Keeps the body of a success.
class Whole : public HttpSink {
 public:
  Whole(std::string what, uint64_t limit) : what_(std::move(what)), limit_(limit) {}
  bool begin(const HttpHead& head) override {
    text_.clear();
    const std::string encoding = head.field("content-encoding");
    if (!encoding.empty() && encoding != "identity") {
      throw failure(fmt::format("{} comes compressed ({}) though that was not asked for", what_, encoding));
    }
    return true;
  }
  bool write(std::span<const std::byte> bytes) override {
    if (bytes.size() > limit_ - text_.size()) {
      throw failure(fmt::format("{} is larger than {}", what_, bytes_text(static_cast<double>(limit_))));
    }
    text_.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    return true;
  }
  std::string take() { return std::move(text_); }

 private:
  std::string what_;
  uint64_t limit_;
  std::string text_;
};

}  // namespace

std::string HttpHead::field(const std::string& name) const {
  const auto it = fields.find(name);
  return it == fields.end() ? "" : it->second;
}

std::optional<double> HttpHead::retry_after() const {
  const std::string text = field("retry-after");
  if (text.empty()) return {};
  double seconds = 0;
  const auto [end, err] = std::from_chars(text.data(), text.data() + text.size(), seconds);
  if (err == std::errc() && end == text.data() + text.size()) {
    return std::isfinite(seconds) && seconds >= 0 ? std::optional(seconds) : std::nullopt;
  }
  const time_t date = curl_getdate(text.c_str(), nullptr);
  if (date < 0) return {};
  // A whole second more: dates have no fractions.
  return std::max(0.0, std::difftime(date, std::time(nullptr)) + 1);
}

void throw_if_stopped(const std::stop_token& stop) {
  if (stop.stop_requested() || stop_requested()) throw Stopped("reading over the network was stopped");
}

void sleep_or_stop(double seconds, const std::stop_token& stop) {
  constexpr double step = 0.05;
  std::mutex mutex;
  std::condition_variable_any never;
  const double end = now() + seconds;
  while (true) {
    throw_if_stopped(stop);
    const double left = end - now();
    if (left <= 0) return;
    std::unique_lock lock(mutex);
    never.wait_for(lock, stop, std::chrono::duration<double>(std::min(left, step)), [] { return false; });
  }
}

bool is_passing(int status) {
  return status == 408 || status == 425 || status == 429 || (status >= 500 && status != 501 && status != 505);
}

std::string status_text(int status) {
  const std::string_view words = words_of(status);
  return words.empty() ? fmt::format("HTTP {}", status) : fmt::format("HTTP {} ({})", status, words);
}

Error status_error(const std::string& what, const HttpResponse& response) {
  const int status = response.head.status;
  std::string hint;
  if (status == 401 || status == 403)
    hint = "check that it may be read without a password, and that a signed address has not expired";
  if (status == 404 || status == 410) hint = "check the address";
  if (status == 407) hint = "put user and password into the proxy's address: http://USER:PASSWORD@HOST:PORT";
  if (status == 416) hint = "the file is shorter than it was; start anew with the data as it is now";
  std::string where;
  if (!response.redirects.empty()) where = fmt::format(" from {}", shown_url(response.head.url));
  return failure(fmt::format("cannot read {}: {}{}", what, status_text(status), where), hint);
}

Retry::Retry(HttpClient& client, std::string doing, double patience, std::stop_token stop)
    : client_(client), doing_(std::move(doing)), patience_(patience), stop_(std::move(stop)), begun_(now()) {}

void Retry::progressed(uint64_t bytes) {
  bytes_ += bytes;
  begun_ = now();
  if (bytes_ < enough_progress) return;
  bytes_ = 0;
  tries_ = 0;
  granted_ = 0;
}

void Retry::wait(const std::string& why, std::optional<double> server_asks) {
  throw_if_stopped(stop_);
  const HttpOptions& options = client_.options();
  ++tries_;
  const double most = std::min(options.most_backoff, options.first_backoff * std::exp2(std::min(tries_ - 1, 30)));
  double seconds = most * (0.1 + 0.9 * client_.random());
  if (server_asks) {
    // Not sooner than asked for, and not all at once. Such waits do not use up patience, within bounds.
    const double asked = std::min(*server_asks, options.most_server_wait);
    seconds += asked;
    granted_ = std::min(granted_ + asked, options.most_server_wait);
  }
  const double spent = now() - begun_;
  if (spent + seconds > patience_ + granted_) {
    const std::string tried = tries_ == 1 ? "one try" : fmt::format("{} tries in {}", tries_, duration_text(spent));
    throw failure(fmt::format("cannot {}: {}; given up after {}", doing_, why, tried),
                  "check the network and try again");
  }
  if (seconds >= options.logged_wait) {
    client_.say(why, seconds, fmt::format("cannot {} now: {}; next try in {}", doing_, why, duration_text(seconds)));
  }
  sleep_or_stop(seconds, stop_);
}

HttpResponse HttpClient::get(const HttpRequest& request, const std::string& what, uint64_t max_bytes,
                             std::optional<double> patience, const std::stop_token& stop) {
  Retry retry(*this, "read " + what, patience.value_or(options().contact_patience), stop);
  while (true) {
    Whole body(what, max_bytes);
    HttpResponse response = once(request, body, stop);
    if (!response.trouble.empty()) {
      retry.wait(response.trouble);
    } else if (is_passing(response.head.status)) {
      retry.wait(status_text(response.head.status), response.head.retry_after());
    } else {
      if (response.head.status / 100 == 2) response.body = body.take();
      return response;
    }
  }
}

}  // namespace mythos
