#include "storage/http_file.h"

#include "base/units.h"
#include "storage/url.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstring>
#include <utility>

namespace mythos {
namespace {

constexpr int most_renewals = 3;     // of a kept address, without a byte in between
constexpr int most_bad_answers = 5;  // of a kind that should not be, without a byte in between

bool parse_number(std::string_view& text, uint64_t& value) {
  const auto [end, err] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (err != std::errc()) return false;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return true;
}

bool skip(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

struct ContentRange {
  HttpRange range;
  std::optional<uint64_t> total;
};

// "bytes 0-99/1000", "bytes 0-99/*"
std::optional<ContentRange> content_range(std::string_view text) {
  ContentRange result;
  uint64_t last = 0;
  if (!skip(text, "bytes ") || !parse_number(text, result.range.begin) || !skip(text, "-") ||
      !parse_number(text, last) || !skip(text, "/") || last < result.range.begin || last == UINT64_MAX) {
    return {};
  }
  result.range.end = last + 1;
  if (text == "*") return result;
  uint64_t total = 0;
  if (!parse_number(text, total) || !text.empty() || total < result.range.end) return {};
  result.total = total;
  return result;
}

std::optional<uint64_t> content_length(const HttpHead& head) {
  const std::string field = head.field("content-length");
  std::string_view text = field;
  uint64_t length = 0;
  if (!parse_number(text, length) || !text.empty()) return {};
  return length;
}

void refuse_encoding(const std::string& name, const HttpHead& head) {
  const std::string encoding = head.field("content-encoding");
  if (encoding.empty() || encoding == "identity") return;
  throw failure(
      fmt::format("{} comes compressed by its server ({}), and such bytes cannot be read in parts", name, encoding),
      "turn compression off for this file on the server");
}

Error changed(const std::string& name) {
  return failure(fmt::format("{} changed while it was read", name), "leave the data alone while it is being read");
}

// Takes one range of a file into memory.
class RangeSink : public HttpSink {
 public:
  RangeSink(const std::string& name, HttpRange asked, uint64_t size, HttpRoute& route, std::span<std::byte> into)
      : name_(name), asked_(asked), size_(size), route_(route), into_(into) {}

  bool begin(const HttpHead& head) override {
    refuse_encoding(name_, head);
    if (!route_.same_content(head)) throw changed(name_);
    if (head.status != 206) {
      no_ranges = true;
      return false;
    }
    const auto range = content_range(head.field("content-range"));
    if (!range) {
      bad = "the answer does not say which part of the file it is";
    } else if (range->total && *range->total != size_) {
      throw failure(fmt::format("{} has {} bytes now; it had {}", name_, *range->total, size_),
                    "leave the data alone while it is being read");
    } else if (range->range.begin != asked_.begin || range->range.end > asked_.end) {
      bad = fmt::format("the answer is bytes {} to {} and not {} to {}", range->range.begin, range->range.end - 1,
                        asked_.begin, asked_.end - 1);
    }
    if (!bad.empty()) return false;
    promised = range->range.end - range->range.begin;
    length_ = content_length(head);
    return true;
  }

  bool write(std::span<const std::byte> bytes) override {
    const size_t n = std::min<size_t>(bytes.size(), static_cast<size_t>(promised) - taken);
    if (n > 0) std::memcpy(into_.data() + taken, bytes.data(), n);
    taken += n;
    // A wrong Content-Length would let us wait for bytes that never come.
    return taken < promised || length_ == promised;
  }

  bool no_ranges = false;
  std::string bad;
  uint64_t promised = 0;
  size_t taken = 0;

 private:
  const std::string& name_;
  HttpRange asked_;
  uint64_t size_;
  HttpRoute& route_;
  std::span<std::byte> into_;
  std::optional<uint64_t> length_;
};

// Takes a whole file of known size.
class WholeSink : public HttpSink {
 public:
  WholeSink(const std::string& name, uint64_t size, HttpRoute& route) : name_(name), size_(size), route_(route) {}
  bool begin(const HttpHead& head) override {
    refuse_encoding(name_, head);
    if (!route_.same_content(head)) throw changed(name_);
    text.reserve(static_cast<size_t>(size_));
    return true;
  }
  bool write(std::span<const std::byte> bytes) override {
    if (bytes.size() > size_ - text.size()) {
      throw failure(fmt::format("{} has more than the {} bytes that it had", name_, size_),
                    "leave the data alone while it is being read");
    }
    text.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    return true;
  }
  std::string text;

 private:
  const std::string& name_;
  uint64_t size_;
  HttpRoute& route_;
};

class RemoteFile : public ByteSource {
 public:
  RemoteFile(std::shared_ptr<HttpClient> client, HttpFile file) : client_(std::move(client)), file_(std::move(file)) {}

  [[nodiscard]] const std::string& name() const override { return file_.name; }
  [[nodiscard]] uint64_t size() const override { return file_.size; }
  [[nodiscard]] bool is_remote() const override { return true; }

  void read_at(uint64_t offset, std::span<std::byte> into, std::stop_token stop) const override {
    if (offset > file_.size || into.size() > file_.size - offset) {
      throw failure(fmt::format("{} has {} bytes; {} at offset {} are past its end", file_.name, file_.size,
                                into.size(), offset));
    }
    Retry retry(*client_, "read " + file_.name, file_.patience.value_or(client_->read_patience()), stop);
    int renewals = 0;
    int bad_answers = 0;
    for (size_t done = 0; done < into.size();) {
      throw_if_stopped(stop);
      if (const auto whole = whole_if_loaded()) {
        std::memcpy(into.data() + done, whole->data() + offset + done, into.size() - done);
        return;
      }
      const HttpRoute::Way way = file_.route->way();
      const HttpRange range{offset + done, offset + into.size()};
      RangeSink sink(file_.name, range, file_.size, *file_.route, into.subspan(done));
      const HttpResponse response = client_->once({way.url, token_for(way), range}, sink, stop);
      const int status = response.head.status;
      if (status / 100 == 2) {
        if (!way.direct) file_.check(response);
        if (sink.no_ranges) {
          load_whole(stop);
          continue;
        }
      }
      done += sink.taken;
      if (sink.taken > 0) {
        file_.route->worked(response);
        retry.progressed(sink.taken);
        renewals = bad_answers = 0;
      }
      if (done == into.size()) return;
      if (!sink.bad.empty()) {
        if (++bad_answers == most_bad_answers) {
          throw failure(fmt::format("cannot read {}: {}, {} times", file_.name, sink.bad, bad_answers));
        }
        retry.wait(sink.bad);
      } else if (status / 100 == 2 && sink.promised > 0) {
        if (sink.taken == sink.promised) continue;  // a part of what was asked for, and whole
        const std::string why = fmt::format("{} of {} bytes came", sink.taken, sink.promised);
        retry.wait(response.trouble.empty() ? why : fmt::format("{}: {}", why, response.trouble));
      } else if (!response.trouble.empty()) {
        if (way.direct && retry.tries() >= 2) file_.route->drop(way.url);  // the hub may know another host
        retry.wait(response.trouble);
      } else if (is_passing(status)) {
        retry.wait(status_text(status), response.head.retry_after());
      } else if (way.direct && is_refusal(status) && ++renewals <= most_renewals) {
        file_.route->drop(way.url);
      } else {
        throw file_.explain(response);
      }
    }
  }

 private:
  static bool is_refusal(int status) {
    return status == 400 || status == 401 || status == 403 || status == 404 || status == 410;
  }

  [[nodiscard]] std::string token_for(const HttpRoute::Way& way) const { return way.direct ? "" : file_.token; }

  [[nodiscard]] std::shared_ptr<const std::string> whole_if_loaded() const {
    const std::lock_guard lock(whole_mutex_);
    return whole_;
  }

  // Where the server knows no ranges.
  void load_whole(const std::stop_token& stop) const {
    std::unique_lock lock(loading_mutex_, std::defer_lock);
    while (!lock.try_lock_for(std::chrono::milliseconds(50))) throw_if_stopped(stop);
    if (whole_if_loaded()) return;
    if (file_.size > client_->options().whole_file_bytes) {
      throw failure(fmt::format("cannot read {}: its server sends only whole files, and this one has {}", file_.name,
                                bytes_text(static_cast<double>(file_.size))),
                    "use a server that knows range requests, or copy the file here");
    }
    Retry retry(*client_, "read " + file_.name, file_.patience.value_or(client_->read_patience()), stop);
    while (true) {
      const HttpRoute::Way way = file_.route->way();
      WholeSink sink(file_.name, file_.size, *file_.route);
      const HttpResponse response = client_->once({way.url, token_for(way), {}}, sink, stop);
      if (response.head.status / 100 == 2 && sink.text.size() == file_.size) {
        const std::lock_guard whole_lock(whole_mutex_);
        whole_ = std::make_shared<const std::string>(std::move(sink.text));
        return;
      }
      if (response.head.status / 100 == 2) {
        retry.wait(fmt::format("{} of {} bytes came", sink.text.size(), file_.size));
      } else if (!response.trouble.empty()) {
        retry.wait(response.trouble);
      } else if (is_passing(response.head.status)) {
        retry.wait(status_text(response.head.status), response.head.retry_after());
      } else {
        throw file_.explain(response);
      }
    }
  }

  std::shared_ptr<HttpClient> client_;
  HttpFile file_;
  mutable std::timed_mutex loading_mutex_;
  mutable std::mutex whole_mutex_;
  mutable std::shared_ptr<const std::string> whole_;
};

// Only looks at the head; of a whole file without a length it counts the bytes.
class ProbeSink : public HttpSink {
 public:
  ProbeSink(const std::string& name, uint64_t limit) : name_(name), limit_(limit) {}
  bool begin(const HttpHead& head) override {
    refuse_encoding(name_, head);
    known.reset();
    counted = 0;
    if (head.status == 206) {
      const auto range = content_range(head.field("content-range"));
      if (range && range->range.begin == 0) known = range->total;
      bad = !known;
      return false;
    }
    known = content_length(head);
    return !known;
  }
  bool write(std::span<const std::byte> bytes) override {
    counted += bytes.size();
    if (counted > limit_) {
      throw failure(fmt::format("cannot read {}: its server does not say how large it is", name_),
                    "use a server that knows range requests, or copy the file here");
    }
    return true;
  }
  std::optional<uint64_t> known;
  bool bad = false;
  uint64_t counted = 0;

 private:
  const std::string& name_;
  uint64_t limit_;
};

std::string version_of(const HttpHead& head) {
  const std::string etag = head.field("etag");
  return etag.empty() ? head.field("last-modified") : etag;
}

}  // namespace

HttpRoute::Way HttpRoute::way() const {
  const std::lock_guard lock(mutex_);
  return direct_.empty() ? Way{url_, false} : Way{direct_, true};
}

void HttpRoute::worked(const HttpResponse& response) {
  if (response.redirects.empty()) return;
  const std::string& url = response.head.url;
  if (origin_of(url) == origin_of(url_)) return;  // it may need the token
  const std::lock_guard lock(mutex_);
  direct_ = url;
}

void HttpRoute::drop(const std::string& direct) {
  const std::lock_guard lock(mutex_);
  if (direct_ != direct) return;
  direct_.clear();
  if (expected_) return;
  // The host that is named next may have its own idea of a tag; who names it tells whether the content is the same.
  etag_.clear();
  modified_.clear();
}

bool HttpRoute::same_content(const HttpHead& head) {
  const std::lock_guard lock(mutex_);
  const std::string etag = head.field("etag");
  const std::string modified = head.field("last-modified");
  if (!etag_.empty() && !etag.empty()) return etag_ == etag;
  if (etag_.empty() && !modified_.empty() && !modified.empty()) return modified_ == modified;
  if (etag_.empty()) etag_ = etag;
  if (modified_.empty()) modified_ = modified;
  return true;
}

void HttpRoute::expect(std::string etag, std::string modified) {
  const std::lock_guard lock(mutex_);
  etag_ = std::move(etag);
  modified_ = std::move(modified);
  expected_ = true;
}

std::shared_ptr<const ByteSource> open_http_file(std::shared_ptr<HttpClient> client, HttpFile file) {
  return std::make_shared<RemoteFile>(std::move(client), std::move(file));
}

HttpProbe probe_http_file(HttpClient& client, const HttpFile& file, std::optional<double> patience) {
  Retry retry(client, "read " + file.name, patience.value_or(client.options().contact_patience), {});
  int bad_answers = 0;
  while (true) {
    ProbeSink sink(file.name, client.options().whole_file_bytes);
    const HttpResponse response = client.once({file.route->url(), file.token, HttpRange{0, 1}}, sink);
    const HttpHead& head = response.head;
    if (!response.trouble.empty()) {
      retry.wait(response.trouble);
    } else if (is_passing(head.status)) {
      retry.wait(status_text(head.status), head.retry_after());
    } else if (head.status / 100 == 2 && sink.bad) {
      constexpr std::string_view why = "the answer does not say how large the file is";
      if (++bad_answers == most_bad_answers) throw failure(fmt::format("cannot read {}: {}", file.name, why));
      retry.wait(std::string(why));
    } else if (head.status / 100 == 2) {
      file.check(response);
      return {sink.known.value_or(sink.counted), version_of(head)};
    } else if (head.status == 416 && head.field("content-range") == "bytes */0") {
      return {0, version_of(head)};
    } else {
      throw file.explain(response);
    }
  }
}

std::string read_http_file(const std::shared_ptr<HttpClient>& client, HttpFile file, uint64_t max_bytes) {
  file.patience = client->options().contact_patience;
  file.size = probe_http_file(*client, file).size;
  if (file.size > max_bytes) {
    throw failure(fmt::format("{} has {}, more than the {} that it may have", file.name,
                              bytes_text(static_cast<double>(file.size)), bytes_text(static_cast<double>(max_bytes))));
  }
  std::string content(static_cast<size_t>(file.size), '\0');
  open_http_file(client, std::move(file))->read_at(0, std::as_writable_bytes(std::span(content)));
  return content;
}

HttpFile plain_http_file(const std::string& url) {
  HttpFile file;
  file.name = shown_url(url);
  file.route = std::make_shared<HttpRoute>(url);
  file.check = [](const HttpResponse&) {};
  file.explain = [name = file.name](const HttpResponse& response) { return status_error(name, response); };
  return file;
}

}  // namespace mythos
