#include "train/spot.h"

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/signals.h"

#include <curl/curl.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>

namespace mythos {
namespace {

constexpr const char* ec2_address = "http://169.254.169.254";
constexpr size_t most_body = 64 << 10;

std::string first_word(const std::string& path) {
  try {
    const std::string text = read_file(path, 4096);
    return text.substr(0, text.find_first_of(" \n\0"));
  } catch (const Error&) {
    return "";  // not there, or for root alone
  }
}

struct Answer {
  long status = 0;  // 0: none came
  std::string body;
};

size_t collect(char* data, size_t size, size_t count, void* to) {
  auto& body = *static_cast<std::string*>(to);
  const size_t n = size * count;
  if (body.size() + n > most_body) return 0;  // no such thing is that long
  body.append(data, n);
  return n;
}

}  // namespace

std::optional<SpotNotice> spot_notice_from(std::string_view body) {
  const Json json = Json::parse(body, nullptr, false);
  if (!json.is_object()) return std::nullopt;
  const auto text = [&](const char* key) {
    const auto found = json.find(key);
    return found != json.end() && found->is_string() ? found->get<std::string>() : std::string();
  };
  SpotNotice notice{text("action"), text("time")};
  if (notice.action != "terminate" && notice.action != "stop" && notice.action != "hibernate") return std::nullopt;
  return notice;
}

bool is_ec2_machine(const std::string& system) {
  if (first_word(system + "/class/dmi/id/sys_vendor") == "Amazon") return true;  // "Amazon EC2", Nitro
  if (first_word(system + "/class/dmi/id/board_asset_tag").starts_with("i-")) return true;
  for (const char* file : {"/class/dmi/id/product_uuid", "/hypervisor/uuid"}) {  // Xen
    std::string uuid = first_word(system + file).substr(0, 3);
    std::transform(uuid.begin(), uuid.end(), uuid.begin(), [](char c) { return c >= 'A' && c <= 'Z' ? c + 32 : c; });
    if (uuid == "ec2") return true;
  }
  return false;
}

std::string spot_address(const std::string& setting) {
  if (setting == "off") return "";
  if (setting == "auto") return is_ec2_machine() ? ec2_address : "";
  if (!setting.starts_with("http://") && !setting.starts_with("https://")) {
    throw usage_error(
        fmt::format("run.spot_notice is '{}', it must be \"auto\", \"off\" or an http(s) address", setting),
        "leave it out to look for a notice on EC2 alone");
  }
  std::string address = setting;
  while (address.ends_with('/')) address.pop_back();
  return address;
}

struct SpotWatch::Impl {
  Impl(std::string a, std::function<void(const SpotNotice&)> t, double e)
      : address(std::move(a)),
        told(std::move(t)),
        every(e),
        ready(::curl_global_init(CURL_GLOBAL_DEFAULT)),
        thread([this](const std::stop_token& stop) { work(stop); }) {}

  void work(const std::stop_token& stop) {
    sigset_t all;  // signals are for the thread that trains
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_BLOCK, &all, nullptr);
    std::mutex mutex;
    std::condition_variable_any wake;
    while (!stop.stop_requested()) {
      if (const auto notice = look(stop)) {
        told(*notice);
        return;
      }
      std::unique_lock lock(mutex);
      wake.wait_for(lock, stop, std::chrono::duration<double>(every), [] { return false; });
    }
  }

  std::optional<SpotNotice> look(const std::stop_token& stop) {
    for (int tries = 0; tries < 2; ++tries) {
      if (token.empty()) {
        const Answer a = ask(stop, "PUT", "/latest/api/token", "X-aws-ec2-metadata-token-ttl-seconds: 21600");
        if (a.status == 200) token = a.body;
        // A service that is there but knows no tokens is asked without one.
        if (a.status == 0) return missing(stop);
      }
      const Answer a = ask(stop, "GET", "/latest/meta-data/spot/instance-action",
                           token.empty() ? "" : "X-aws-ec2-metadata-token: " + token);
      if (a.status == 0) return missing(stop);
      if (a.status == 401 && !token.empty()) {  // it has expired
        token.clear();
        continue;
      }
      return a.status == 200 ? spot_notice_from(a.body) : std::nullopt;
    }
    return std::nullopt;
  }

  std::optional<SpotNotice> missing(const std::stop_token& stop) {
    if (!said && !stop.stop_requested()) log::warn("no answer from {}: a spot notice would not be heard", address);
    said = true;
    return std::nullopt;
  }

  Answer ask(const std::stop_token& stop, const char* method, const std::string& path,
             const std::string& header) const {
    Answer answer;
    CURL* const curl = ::curl_easy_init();
    if (curl == nullptr) return answer;
    curl_slist* const headers = header.empty() ? nullptr : ::curl_slist_append(nullptr, header.c_str());
    const std::string url = address + path;
    const auto broken_off = +[](void* s, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
      return static_cast<const std::stop_token*>(s)->stop_requested() ? 1 : 0;
    };
    ::curl_easy_setopt(curl, CURLOPT_URL, url.c_str());
    ::curl_easy_setopt(curl, CURLOPT_CUSTOMREQUEST, method);
    ::curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers);
    ::curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
    ::curl_easy_setopt(curl, CURLOPT_NOPROXY, "*");
    ::curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT_MS, 2000L);
    ::curl_easy_setopt(curl, CURLOPT_TIMEOUT_MS, 4000L);
    ::curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, &collect);
    ::curl_easy_setopt(curl, CURLOPT_WRITEDATA, &answer.body);
    ::curl_easy_setopt(curl, CURLOPT_NOPROGRESS, 0L);
    ::curl_easy_setopt(curl, CURLOPT_XFERINFOFUNCTION, broken_off);
    ::curl_easy_setopt(curl, CURLOPT_XFERINFODATA, &stop);
    if (::curl_easy_perform(curl) == CURLE_OK) ::curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &answer.status);
    ::curl_slist_free_all(headers);
    ::curl_easy_cleanup(curl);
    return answer;
  }

  std::string address;
  std::function<void(const SpotNotice&)> told;
  double every;
  CURLcode ready;  // before the first thread uses it
  std::string token;
  bool said = false;
  std::jthread thread;  // last: it uses all of the above
};

SpotWatch::SpotWatch(std::string address, std::function<void(const SpotNotice&)> told, double every_seconds)
    : impl_(address.empty() ? nullptr : std::make_unique<Impl>(std::move(address), std::move(told), every_seconds)) {}
SpotWatch::~SpotWatch() = default;

SpotStop::SpotStop(const std::string& setting)
    : watch_(spot_address(setting), [this](const SpotNotice& notice) {
        {
          const std::lock_guard lock(mutex_);
          what_ = fmt::format("Amazon takes this spot machine back ({} at {})", notice.action, notice.time);
        }
        log::warn("{}: saving and stopping as on SIGTERM", what());
        request_stop(SIGTERM);
      }) {}

std::string SpotStop::what() const {
  const std::lock_guard lock(mutex_);
  return what_;
}

}  // namespace mythos
