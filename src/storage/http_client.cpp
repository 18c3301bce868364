#include "storage/http_client.h"

#include "base/log.h"
#include "base/random.h"
#include "base/signals.h"
#include "storage/url.h"

#include <curl/curl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <random>
#include <set>

namespace mythos {
namespace {

constexpr size_t most_redirects = 10;
constexpr size_t kept_of_failures = size_t{64} << 10;
constexpr size_t most_header_bytes = size_t{256} << 10;
constexpr uint64_t stalled_below = 1024;  // bytes in stall_seconds
constexpr int poll_ms = 50;               // a signal is seen after this

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// A connection with what libcurl keeps of it.
struct Slot {
  CURLM* multi = curl_multi_init();
  CURL* easy = curl_easy_init();
  Slot() {
    if (multi == nullptr || easy == nullptr) throw failure("libcurl cannot be started: out of memory");
  }
  ~Slot() {
    curl_easy_cleanup(easy);
    curl_multi_cleanup(multi);
  }
  Slot(const Slot&) = delete;
  Slot& operator=(const Slot&) = delete;
};

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// One answer while it comes in.
struct Transfer {
  HttpResponse response;
  HttpSink* sink = nullptr;
  size_t header_bytes = 0;
  uint64_t received = 0;
  bool begun = false;
  bool wanted = true;  // the sink takes more
  bool cut = false;    // broken off by us, which is no trouble
  std::exception_ptr error;

  [[nodiscard]] bool success() const { return response.head.status / 100 == 2; }

  void begin() {
    if (begun || !success()) return;
    begun = true;
    wanted = sink->begin(response.head);
  }

  void header(std::string_view line) {
    header_bytes += line.size();
    while (!line.empty() && (line.back() == '\r' || line.back() == '\n')) line.remove_suffix(1);
    if (line.starts_with("HTTP/")) {  // also behind "100 Continue" and a proxy's "200 Connection established"
      response.head.fields.clear();
      response.head.status = 0;
      const size_t code = std::min(line.find(' ') + 1, line.size());
      std::from_chars(line.data() + code, line.data() + line.size(), response.head.status);
      return;
    }
    const size_t colon = line.find(':');
    if (colon == std::string_view::npos) return;
    std::string name(line.substr(0, colon));
    std::ranges::transform(name, name.begin(),
                           [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
    line.remove_prefix(std::min(line.find_first_not_of(" \t", colon + 1), line.size()));
    while (!line.empty() && (line.back() == ' ' || line.back() == '\t')) line.remove_suffix(1);
    // A field that comes twice is a list.
    std::string& value = response.head.fields[name];
    value = value.empty() ? std::string(line) : value + ", " + std::string(line);
  }

  bool body(std::span<const std::byte> bytes) {
    received += bytes.size();
    if (success()) {
      begin();
      if (wanted) wanted = sink->write(bytes);
      cut = !wanted;
    } else {
      const size_t room = kept_of_failures - response.body.size();
      response.body.append(reinterpret_cast<const char*>(bytes.data()), std::min(room, bytes.size()));
      cut = bytes.size() > room;
    }
    return !cut;
  }
};

size_t on_header(char* data, size_t /*one*/, size_t n, void* user) {
  auto& transfer = *static_cast<Transfer*>(user);
  try {
    transfer.header({data, n});
  } catch (...) {
    transfer.error = std::current_exception();
  }
  return transfer.error || transfer.header_bytes > most_header_bytes ? 0 : n;
}

size_t on_body(char* data, size_t /*one*/, size_t n, void* user) {
  auto& transfer = *static_cast<Transfer*>(user);
  try {
    return transfer.body({reinterpret_cast<const std::byte*>(data), n}) ? n : 0;
  } catch (...) {
    transfer.error = std::current_exception();
    return 0;
  }
}

struct ListFree {
  void operator()(curl_slist* list) const { curl_slist_free_all(list); }
};
using Lines = std::unique_ptr<curl_slist, ListFree>;

void add_line(Lines& lines, const std::string& line) {
  curl_slist* longer = curl_slist_append(lines.get(), line.c_str());
  if (longer == nullptr) throw failure("out of memory");
  static_cast<void>(lines.release());
  lines.reset(longer);
}

// Where certificates of authorities are, as other tools are told; "" is libcurl's own place.
std::string certificates() {
  for (const char* name : {"REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE"}) {
    std::string path = environment(name);
    if (path.empty()) continue;
    std::error_code ec;
    if (!std::filesystem::exists(path, ec)) {
      throw usage_error(fmt::format("{} is set to {}, which does not exist", name, path), "correct it or unset it");
    }
    return path;
  }
  return "";
}

struct Failure {
  std::string why;
  bool passing = true;
};

// What libcurl's own text is taken for: those that cannot hold an address with its secrets.
Failure failure_of(CURLcode code, const std::string& detail, const std::string& host) {
  const auto with_detail = [&](std::string_view text) {
    return detail.empty() ? std::string(text) : fmt::format("{} ({})", text, detail);
  };
  switch (code) {
    case CURLE_COULDNT_RESOLVE_HOST:
      return {fmt::format("the name {} cannot be found", host)};
    case CURLE_COULDNT_RESOLVE_PROXY:
      return {"the name of the proxy cannot be found"};
    case CURLE_COULDNT_CONNECT:
      return {with_detail(fmt::format("{} cannot be reached", host))};
    case CURLE_OPERATION_TIMEDOUT:
      return {with_detail(fmt::format("no connection to {} in time", host))};
    case CURLE_PARTIAL_FILE:
      return {"the answer ended too early"};
    case CURLE_GOT_NOTHING:
      return {fmt::format("{} closed the connection without an answer", host)};
    case CURLE_SEND_ERROR:
    case CURLE_RECV_ERROR:
      return {with_detail(fmt::format("the connection to {} broke", host))};
    case CURLE_SSL_CONNECT_ERROR:
      return {with_detail(fmt::format("no encrypted connection to {}", host))};
    case CURLE_PEER_FAILED_VERIFICATION:
      return {with_detail(fmt::format("the certificate of {} is not to be trusted", host)), false};
    case CURLE_SSL_CACERT_BADFILE:
      return {"the certificates of the authorities cannot be read", false};
    case CURLE_OUT_OF_MEMORY:
      return {"out of memory", false};
    default:
      return {fmt::format("{}: {}", host, curl_easy_strerror(code)), code != CURLE_UNSUPPORTED_PROTOCOL};
  }
}

}  // namespace

struct HttpClient::Impl {
  explicit Impl(const HttpOptions& given)
      : options(given),
        read_patience(given.read_patience),
        generator(given.seed != 0 ? given.seed
                                  : (uint64_t{std::random_device{}()} << 32) ^ static_cast<uint64_t>(::getpid())) {}

  std::unique_ptr<Slot> take(const std::stop_token& stop);
  void give(std::unique_ptr<Slot> slot);
  HttpResponse hop(const HttpRequest& request, bool with_token, HttpSink& sink, const std::stop_token& stop);

  const HttpOptions options;
  std::atomic<double> read_patience;

  std::mutex slots_mutex;
  std::condition_variable_any slots_changed;
  std::vector<std::unique_ptr<Slot>> free_slots;  // the last one given back is the first one taken: it is connected
  size_t slots_in_use = 0;

  std::mutex random_mutex;
  Random generator;

  std::mutex said_mutex;
  std::map<std::string, double> said;  // topic -> when it may be said again
};

std::unique_ptr<Slot> HttpClient::Impl::take(const std::stop_token& stop) {
  std::unique_lock lock(slots_mutex);
  const auto is_free = [this] { return slots_in_use < std::max<size_t>(options.connections, 1); };
  while (!slots_changed.wait_for(lock, stop, std::chrono::milliseconds(poll_ms), is_free)) throw_if_stopped(stop);
  std::unique_ptr<Slot> slot;
  if (free_slots.empty()) {
    slot = std::make_unique<Slot>();
  } else {
    slot = std::move(free_slots.back());
    free_slots.pop_back();
  }
  ++slots_in_use;
  return slot;
}

void HttpClient::Impl::give(std::unique_ptr<Slot> slot) {
  curl_easy_reset(slot->easy);  // it points to what is about to go
  {
    const std::lock_guard lock(slots_mutex);
    free_slots.push_back(std::move(slot));
    --slots_in_use;
  }
  slots_changed.notify_one();
}

HttpResponse HttpClient::Impl::hop(const HttpRequest& request, bool with_token, HttpSink& sink,
                                   const std::stop_token& stop) {
  throw_if_stopped(stop);
  Transfer transfer;
  transfer.sink = &sink;
  transfer.response.head.url = request.url;
  const std::string origin = origin_of(request.url);
  const std::string host = origin.substr(origin.find("://") + 3, origin.rfind(':') - origin.find("://") - 3);
  const std::string authorities = origin.starts_with("https:") ? certificates() : "";

  Lines lines;
  add_line(lines, "Accept: */*");
  add_line(lines, "Accept-Encoding: identity");
  if (request.range) add_line(lines, fmt::format("Range: bytes={}-{}", request.range->begin, request.range->end - 1));
  if (with_token) add_line(lines, "Authorization: Bearer " + request.token);

  std::unique_ptr<Slot> slot = take(stop);
  // Given back however this ends.
  const auto give_back = [this, &slot](void*) { give(std::move(slot)); };
  const std::unique_ptr<void, decltype(give_back)> returner(this, give_back);
  CURL* easy = slot->easy;
  CURLM* multi = slot->multi;
  std::array<char, CURL_ERROR_SIZE> detail{};
  curl_easy_reset(easy);
  curl_easy_setopt(easy, CURLOPT_URL, request.url.c_str());
  curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(easy, CURLOPT_USERAGENT, "mythos");
  curl_easy_setopt(easy, CURLOPT_HTTPHEADER, lines.get());
  curl_easy_setopt(easy, CURLOPT_HEADEROPT, static_cast<long>(CURLHEADER_SEPARATE));
  // One request a connection: HTTP/2 would add its own windows and nothing that helps here.
  curl_easy_setopt(easy, CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_1_1));
  curl_easy_setopt(easy, CURLOPT_FOLLOWLOCATION, 0L);
  curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT_MS, std::max(1L, static_cast<long>(options.connect_timeout * 1000)));
  curl_easy_setopt(easy, CURLOPT_TCP_KEEPALIVE, 1L);
  curl_easy_setopt(easy, CURLOPT_BUFFERSIZE, 256L << 10);
  curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, detail.data());
  curl_easy_setopt(easy, CURLOPT_HEADERFUNCTION, on_header);
  curl_easy_setopt(easy, CURLOPT_HEADERDATA, &transfer);
  curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, on_body);
  curl_easy_setopt(easy, CURLOPT_WRITEDATA, &transfer);
  if (!authorities.empty()) curl_easy_setopt(easy, CURLOPT_CAINFO, authorities.c_str());
#if LIBCURL_VERSION_NUM >= 0x075500
  curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
#else
  curl_easy_setopt(easy, CURLOPT_PROTOCOLS, static_cast<long>(CURLPROTO_HTTP | CURLPROTO_HTTPS));
#endif
#if LIBCURL_VERSION_NUM >= 0x075700
  curl_easy_setopt(easy, CURLOPT_QUICK_EXIT, 1L);  // a name look-up that hangs is not waited for
#endif

  curl_multi_add_handle(multi, easy);
  const auto remove = [multi](CURL* handle) { curl_multi_remove_handle(multi, handle); };
  const std::unique_ptr<CURL, decltype(remove)> remover(easy, remove);
  const std::stop_callback wake(stop, [multi] { curl_multi_wakeup(multi); });

  CURLcode result = CURLE_OK;
  bool stalled = false;
  double window_begin = now();
  uint64_t window_bytes = 0;
  for (bool done = false; !done && !stalled;) {
    int running = 0;
    if (curl_multi_perform(multi, &running) != CURLM_OK) throw failure("libcurl failed: out of memory");
    int left = 0;
    while (const CURLMsg* message = curl_multi_info_read(multi, &left)) {
      if (message->msg != CURLMSG_DONE) continue;
      done = true;
      result = message->data.result;
    }
    if (done) break;
    throw_if_stopped(stop);
    if (now() - window_begin >= options.stall_seconds) {
      curl_off_t connecting = 0;
      curl_easy_getinfo(easy, CURLINFO_PRETRANSFER_TIME_T, &connecting);
      // While it is not connected, libcurl's own limit counts.
      stalled = connecting > 0 && transfer.received - window_bytes < stalled_below;
      window_begin = now();
      window_bytes = transfer.received;
    }
    curl_multi_poll(multi, nullptr, 0, poll_ms, nullptr);
  }
  if (transfer.error) std::rethrow_exception(transfer.error);
  if (transfer.header_bytes > most_header_bytes)
    throw failure(fmt::format("{} sends more than 256 kB of header", host));
  if (stalled) {
    transfer.response.trouble = fmt::format("{} sent nothing for {:g} s", host, options.stall_seconds);
  } else if (result != CURLE_OK && !transfer.cut) {
    const Failure problem = failure_of(result, detail.data(), host);
    if (!problem.passing) {
      throw failure(problem.why, result == CURLE_PEER_FAILED_VERIFICATION || result == CURLE_SSL_CACERT_BADFILE
                                     ? "set SSL_CERT_FILE to a file with the certificate of its authority, or install "
                                       "the package ca-certificates"
                                     : "");
    }
    transfer.response.trouble = problem.why;
  } else {
    transfer.begin();
  }
  return std::move(transfer.response);
}

HttpClient::HttpClient(const HttpOptions& options) {
  static std::once_flag once;
  std::call_once(once, [] { curl_global_init(CURL_GLOBAL_DEFAULT); });
  impl_ = std::make_unique<Impl>(options);
}
HttpClient::~HttpClient() = default;

HttpResponse HttpClient::once(const HttpRequest& request, HttpSink& sink, const std::stop_token& stop) {
  const std::string home = origin_of(request.url);
  HttpRequest step = request;
  std::vector<HttpHead> redirects;
  std::set<std::string> seen{request.url};
  while (true) {
    const bool with_token = !request.token.empty() && origin_of(step.url) == home;
    HttpResponse response = impl_->hop(step, with_token, sink, stop);
    const int status = response.head.status;
    const bool redirect = status == 301 || status == 302 || status == 303 || status == 307 || status == 308;
    const std::string location = response.head.field("location");
    if (!redirect || location.empty()) {
      response.redirects = std::move(redirects);
      return response;
    }
    const std::string next = resolve_url(step.url, location);
    if (step.url.starts_with("https:") && !next.starts_with("https:")) {
      throw failure(fmt::format("{} redirects from https to {}, which is not encrypted: refused", shown_url(step.url),
                                shown_url(next)));
    }
    if (!seen.insert(next).second) throw failure(fmt::format("{} redirects in a circle", shown_url(request.url)));
    redirects.push_back(std::move(response.head));
    if (redirects.size() > most_redirects) {
      throw failure(fmt::format("{} redirects more than {} times", shown_url(request.url), most_redirects));
    }
    step.url = next;
  }
}

const HttpOptions& HttpClient::options() const { return impl_->options; }
double HttpClient::read_patience() const { return impl_->read_patience; }
void HttpClient::set_read_patience(double seconds) { impl_->read_patience = seconds; }

double HttpClient::random() {
  const std::lock_guard lock(impl_->random_mutex);
  return impl_->generator.uniform();
}

void HttpClient::say(const std::string& topic, double seconds, const std::string& line) {
  {
    const std::lock_guard lock(impl_->said_mutex);
    const double time = now();
    std::erase_if(impl_->said, [&](const auto& entry) { return entry.second <= time; });
    if (!impl_->said.emplace(topic, time + seconds).second) return;
  }
  log::warn("{}", line);
}

}  // namespace mythos
