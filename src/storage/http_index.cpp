// What a web server shows of a folder: the links of its page.
#include "base/units.h"
#include "storage/http_file.h"
#include "storage/url.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <exception>
#include <mutex>
#include <set>
#include <thread>

namespace mythos {
namespace {

constexpr uint64_t most_page_bytes = uint64_t{16} << 20;
constexpr size_t most_links = 100'000;

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; }
bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == '\f'; }

bool starts_with_ignoring_case(std::string_view text, std::string_view lower_prefix) {
  if (text.size() < lower_prefix.size()) return false;
  return std::equal(lower_prefix.begin(), lower_prefix.end(), text.begin(),
                    [](char a, char b) { return a == lower(b); });
}

std::string without_entities(std::string_view text) {
  static constexpr std::array<std::pair<std::string_view, char>, 7> entities{{{"&amp;", '&'},
                                                                              {"&lt;", '<'},
                                                                              {"&gt;", '>'},
                                                                              {"&quot;", '"'},
                                                                              {"&#39;", '\''},
                                                                              {"&#x27;", '\''},
                                                                              {"&#34;", '"'}}};
  std::string out;
  while (!text.empty()) {
    const auto* it = std::ranges::find_if(entities, [&](const auto& e) { return text.starts_with(e.first); });
    const size_t n = it == entities.end() ? 1 : it->first.size();
    out += it == entities.end() ? text[0] : it->second;
    text.remove_prefix(n);
  }
  return out;
}

std::string_view last_segment(std::string_view path) { return path.substr(path.rfind('/') + 1); }

// Sizes and versions of many files, several at a time.
void probe_all(HttpClient& client, std::vector<SourceFile>& files) {
  std::atomic<size_t> next{0};
  std::mutex mutex;
  std::exception_ptr first_error;
  const auto work = [&] {
    for (size_t i = next++; i < files.size(); i = next++) {
      try {
        const HttpProbe probe = probe_http_file(client, plain_http_file(files[i].location));
        files[i].size = probe.size;
        files[i].version = probe.version;
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!first_error) first_error = std::current_exception();
        next = files.size();
      }
    }
  };
  std::vector<std::jthread> others;
  for (size_t n = 1; n < std::min(client.options().connections, files.size()); ++n) others.emplace_back(work);
  work();
  others.clear();
  if (first_error) std::rethrow_exception(first_error);
}

}  // namespace

std::vector<std::string> links_of(std::string_view html) {
  std::vector<std::string> links;
  while (links.size() < most_links) {
    const size_t tag = html.find('<');
    if (tag == std::string_view::npos) break;
    html.remove_prefix(tag + 1);
    if (!starts_with_ignoring_case(html, "a") || html.size() < 2 || !is_space(html[1])) continue;
    std::string_view inside = html.substr(1, html.find('>') - 1);
    // Quotes may hold a '>', which no server writes into a link unescaped.
    while (!inside.empty()) {
      while (!inside.empty() && is_space(inside[0])) inside.remove_prefix(1);
      const size_t name_end = std::min(inside.find_first_of("= \t\r\n\f"), inside.size());
      const std::string_view name = inside.substr(0, name_end);
      inside.remove_prefix(name_end);
      while (!inside.empty() && is_space(inside[0])) inside.remove_prefix(1);
      if (inside.empty() || inside[0] != '=') {
        if (name.empty()) break;
        continue;
      }
      inside.remove_prefix(1);
      while (!inside.empty() && is_space(inside[0])) inside.remove_prefix(1);
      std::string_view value;
      if (!inside.empty() && (inside[0] == '"' || inside[0] == '\'')) {
        const size_t end = inside.find(inside[0], 1);
        if (end == std::string_view::npos) break;
        value = inside.substr(1, end - 1);
        inside.remove_prefix(end + 1);
      } else {
        value = inside.substr(0, std::min(inside.find_first_of(" \t\r\n\f"), inside.size()));
        inside.remove_prefix(value.size());
      }
      if (name.size() == 4 && starts_with_ignoring_case(name, "href")) {
        links.push_back(without_entities(value));
        break;
      }
    }
  }
  return links;
}

std::vector<SourceFile> list_http_files(HttpClient& client, const std::string& source,
                                        std::span<const std::string_view> extensions) {
  const std::string shown = shown_url(source);
  const std::string kinds = fmt::format("supported are {}", fmt::join(extensions, ", "));
  const auto supported = [&](std::string_view address) {
    return std::ranges::find(extensions, file_extension(address)) != extensions.end();
  };
  origin_of(source);  // throws if it is no address
  std::vector<SourceFile> files;
  if (!shown.ends_with('/')) {
    if (!supported(source)) {
      throw usage_error(fmt::format("{} is not a data file by its extension", shown),
                        kinds + "; the address of a folder's page ends in '/'");
    }
    const HttpProbe probe = probe_http_file(client, plain_http_file(source));
    files.push_back({source, decode_percent(last_segment(path_of(source))), probe.size, probe.version});
    return files;
  }

  const HttpResponse page = client.get({source, "", {}}, shown, most_page_bytes);
  if (page.head.status / 100 != 2) throw status_error(shown, page);
  const std::string& base = page.head.url;
  const std::string folder = path_of(base);
  const std::string origin = origin_of(base);
  std::set<std::string> seen;
  for (const std::string& link : links_of(page.body)) {
    std::string url;
    try {
      url = resolve_url(base, link);
      if (origin_of(url) != origin) continue;
    } catch (const Error&) {
      continue;  // mailto: and the like
    }
    const std::string path = path_of(url);
    // Only what lies directly in the folder; a link with a query sorts the page.
    if (!path.starts_with(folder) || path.size() == folder.size()) continue;
    const std::string_view name = std::string_view(path).substr(folder.size());
    if (name.find('/') != std::string_view::npos || url.find('?') != std::string::npos) continue;
    if (supported(url) && seen.insert(url).second) files.push_back({url, decode_percent(name), 0, ""});
  }
  if (files.empty()) throw usage_error(fmt::format("the page {} links to no data files", shown), kinds);
  probe_all(client, files);
  std::ranges::sort(files, {}, &SourceFile::name);
  return files;
}

}  // namespace mythos
