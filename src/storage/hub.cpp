#include "storage/hub.h"

#include "base/json.h"
#include "base/log.h"
#include "storage/hub_cache.h"
#include "storage/url.h"

#include <algorithm>
#include <set>
#include <utility>

namespace mythos {
namespace {

constexpr JsonLimits json_limits{.bytes = size_t{64} << 20, .depth = 64, .keys_of_object = 65536};
constexpr size_t most_pages = 5'000;
constexpr size_t most_entries = 2'000'000;
constexpr size_t most_routes = 100'000;
constexpr double patience_with_cache = 3;  // seconds; then what is on this machine is used

// An ETag's or hash's text without its quotes.
std::string unquoted(std::string tag) {
  if (tag.starts_with("W/")) tag.erase(0, 2);
  std::erase(tag, '"');
  return tag;
}

// The path of an entry is a hostile name until it is known to stay within the repository.
bool is_safe_path(std::string_view path) {
  const auto control = [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7F; };
  if (path.empty() || path.size() > 4096 || std::ranges::any_of(path, control)) return false;
  while (true) {
    const size_t slash = path.find('/');
    const std::string_view part = path.substr(0, slash);
    if (part.empty() || part == "." || part == "..") return false;
    if (slash == std::string_view::npos) return true;
    path.remove_prefix(slash + 1);
  }
}

HubEntry entry_of(const Json& json, const std::string& what) {
  const auto bad = [&] { return failure(fmt::format("the list of files in {} is not what the hub sends", what)); };
  if (!json.is_object()) throw bad();
  const auto text = [&](const Json& object, const char* key) -> std::string {
    const auto it = object.find(key);
    return it != object.end() && it->is_string() ? it->get<std::string>() : "";
  };
  HubEntry entry;
  entry.path = text(json, "path");
  if (!is_safe_path(entry.path)) throw bad();
  entry.is_file = text(json, "type") == "file";
  if (!entry.is_file) return entry;
  const auto lfs = json.find("lfs");
  const bool large = lfs != json.end() && lfs->is_object();
  const Json& sized = large && lfs->contains("size") ? *lfs : json;
  const auto size = sized.find("size");
  if (size == sized.end() || !size->is_number_integer() || *size < 0) throw bad();
  entry.size = size->get<uint64_t>();
  entry.version = large ? text(*lfs, "oid") : text(json, "oid");
  if (entry.version.starts_with("sha256:")) entry.version.erase(0, 7);
  return entry;
}

// The address of rel="next" in a Link field, or "".
std::string next_of(std::string_view links) {
  while (true) {
    const size_t begin = links.find('<');
    const size_t end = links.find('>', std::min(begin, links.size()));
    if (begin == std::string_view::npos || end == std::string_view::npos) return "";
    const std::string_view url = links.substr(begin + 1, end - begin - 1);
    links.remove_prefix(end + 1);
    const std::string_view parameters = links.substr(0, links.find('<'));
    if (parameters.find("rel=\"next\"") != std::string_view::npos ||
        parameters.find("rel=next") != std::string_view::npos) {
      return std::string(url);
    }
  }
}

}  // namespace

Hub::Hub(std::shared_ptr<HttpClient> client, HubSettings settings)
    : client_(std::move(client)), settings_(std::move(settings)) {}

std::string Hub::api(const HubAddress& address) const {
  return fmt::format("{}/api/{}/{}", settings_.endpoint, address.dataset ? "datasets" : "models", address.repository());
}

std::string Hub::file_url(const HubAddress& address, const std::string& commit, const std::string& file) const {
  return fmt::format("{}/{}{}/resolve/{}/{}", settings_.endpoint, address.dataset ? "datasets/" : "",
                     address.repository(), encode_part(commit), encode_path(file));
}

void Hub::refuse_offline(const std::string& what) const {
  if (settings_.offline) {
    throw usage_error(fmt::format("{} is not on this machine, and HF_HUB_OFFLINE forbids to ask the hub for it", what),
                      "unset HF_HUB_OFFLINE, or give local files");
  }
}

Error Hub::explain(const HubAddress& address, const std::string& file, const HttpResponse& response) const {
  const HttpHead& head = response.head;
  const std::string what = file.empty() ? address.shown() : address.shown() + "/" + file;
  if (origin_of(head.url) != origin_of(settings_.endpoint)) return status_error(what, response);
  const std::string code = head.field("x-error-code");
  const std::string kind = address.dataset ? "data set" : "model";
  const std::string page =
      fmt::format("{}/{}{}", shown_url(settings_.endpoint), address.dataset ? "datasets/" : "", address.repository());
  const bool token = !settings_.token.empty();
  if (code == "GatedRepo") {
    return usage_error(fmt::format("the {} {} is gated{}", kind, address.shown(),
                                   token ? ", and the token's owner has no access to it yet" : ""),
                       fmt::format("ask for access on {}{}", page, token ? "" : " and set HF_TOKEN"));
  }
  if (code == "RevisionNotFound") {
    return usage_error(fmt::format("the {} {} has no revision '{}'", kind, address.shown(), address.revision),
                       "check what stands behind the @");
  }
  if (code == "EntryNotFound") return usage_error(fmt::format("{} does not exist", what), "check the path");
  if (head.status == 401 && token && code != "RepoNotFound") {
    return usage_error(
        fmt::format("the hub does not accept the token for {}: it is wrong or has expired", address.shown()),
        "set HF_TOKEN to a valid token, or unset it and remove the saved one for what is public");
  }
  if (code == "RepoNotFound" || head.status == 401) {
    return usage_error(fmt::format("the {} {} does not exist, or is private or gated", kind, address.shown()),
                       token ? "check the name, and that the token may read it"
                             : "check the name; for a private or gated one set HF_TOKEN");
  }
  if (head.status == 403) {
    return usage_error(fmt::format("the hub denies access to {}", what),
                       token ? "check that the token may read it" : "set HF_TOKEN to a token that may read it");
  }
  if (head.status == 404 && file.empty()) {
    return usage_error(
        fmt::format("the hub knows no {} {} with a revision '{}'", kind, address.shown(), address.revision),
        "check the name, and that HF_ENDPOINT is a hub");
  }
  return status_error(what, response);
}

std::string Hub::commit_of(const HubAddress& address, std::optional<double> patience) {
  if (is_commit(address.revision)) return address.revision;
  const std::string key = address.key();
  const std::lock_guard asking(resolving_);
  {
    const std::lock_guard lock(mutex_);
    if (const auto it = commits_.find(key); it != commits_.end()) return it->second;
    if (const auto it = pinned_.find(key); it != pinned_.end()) return commits_[key] = it->second;
  }
  refuse_offline(address.shown());
  const std::string url = fmt::format("{}/revision/{}", api(address), encode_part(address.revision));
  const HttpResponse response = client_->get({url, settings_.token, {}}, address.shown(), json_limits.bytes, patience);
  if (response.head.status / 100 != 2) throw explain(address, "", response);
  const Json json = parse_json(response.body, fmt::format("the hub's answer about {}", address.shown()), json_limits);
  const auto sha = json.is_object() ? json.find("sha") : json.end();
  if (sha == json.end() || !sha->is_string() || !is_commit(sha->get<std::string>())) {
    throw failure(fmt::format("the hub's answer about {} names no commit", key), "check that HF_ENDPOINT is a hub");
  }
  const std::lock_guard lock(mutex_);
  return commits_[key] = sha->get<std::string>();
}

void Hub::pin(const std::map<std::string, std::string>& commits) {
  const std::lock_guard lock(mutex_);
  for (const auto& [key, commit] : commits) {
    if (!is_commit(commit)) throw failure(fmt::format("'{}' is not a commit of {}", commit, key));
    pinned_[key] = commit;
  }
}

std::map<std::string, std::string> Hub::commits() const {
  const std::lock_guard lock(mutex_);
  return commits_;
}

std::string Hub::next_page(const std::string& page, const std::string& links) const {
  const std::string next = next_of(links);
  if (next.empty()) return "";
  // A hub behind another address names its own; the way there leads through the endpoint all the same.
  const std::string url = resolve_url(page, next);
  const size_t path = url.find('/', url.find("://") + 3);
  const size_t api_path = path == std::string::npos ? path : url.find("/api/", path);
  if (api_path == std::string::npos) {
    throw failure(
        fmt::format("the list of files at {} goes on at {}, which is not the hub's", shown_url(page), shown_url(url)));
  }
  return settings_.endpoint + url.substr(api_path);
}

std::optional<std::vector<HubEntry>> Hub::tree(const HubAddress& address, const std::string& commit,
                                               const std::string& folder, bool recursive) {
  const std::string what = folder.empty() ? address.shown() : address.shown() + "/" + folder;
  std::string url = fmt::format("{}/tree/{}{}{}?recursive={}&expand=false&limit=1000", api(address), commit,
                                folder.empty() ? "" : "/", encode_path(folder), recursive);
  std::vector<HubEntry> entries;
  std::set<std::string> pages;
  while (!url.empty()) {
    if (!pages.insert(url).second) throw failure(fmt::format("the list of files in {} goes round in a circle", what));
    const HttpResponse response = client_->get({url, settings_.token, {}}, what, json_limits.bytes);
    const std::string code = response.head.field("x-error-code");
    if (response.head.status == 404 && pages.size() == 1 && (code.empty() || code == "EntryNotFound")) return {};
    if (response.head.status / 100 != 2) throw explain(address, folder, response);
    const Json json = parse_json(response.body, fmt::format("the list of files in {}", what), json_limits);
    if (!json.is_array()) throw failure(fmt::format("the list of files in {} is not what the hub sends", what));
    for (const Json& entry : json) entries.push_back(entry_of(entry, what));
    if (entries.size() > most_entries || pages.size() > most_pages) {
      throw failure(fmt::format("the list of files in {} does not end: {} files on {} pages so far", what,
                                entries.size(), pages.size()));
    }
    url = next_page(url, response.head.field("link"));
  }
  return entries;
}

std::optional<std::string> Hub::text(const HubAddress& address, const std::string& commit, const std::string& file,
                                     uint64_t max_bytes) {
  const HttpRequest request{file_url(address, commit, file), settings_.token, {}};
  HttpResponse response = client_->get(request, address.shown() + "/" + file, max_bytes);
  if (response.head.status == 404) return {};
  if (response.head.status / 100 != 2) throw explain(address, file, response);
  return std::move(response.body);
}

HttpFile Hub::file_of(const HubAddress& address, const std::string& commit) {
  HttpFile file;
  file.name = address.shown() + "/" + address.path;
  file.token = settings_.token;
  const std::string url = file_url(address, commit, address.path);
  {
    const std::lock_guard lock(mutex_);
    if (routes_.size() >= most_routes) routes_.clear();
    auto& route = routes_[url];
    if (!route) route = std::make_shared<HttpRoute>(url);
    file.route = route;
  }
  file.check = [](const HttpResponse&) {};
  file.explain = [hub = shared_from_this(), address](const HttpResponse& response) {
    return hub->explain(address, address.path, response);
  };
  return file;
}

std::shared_ptr<const ByteSource> Hub::open(const SourceFile& listed) {
  const HubAddress address = parse_hub_address(listed.location);
  HttpFile file = file_of(address, commit_of(address));
  refuse_offline(file.name);
  file.size = listed.size;
  file.check = [name = file.name, version = listed.version, size = listed.size](const HttpResponse& response) {
    const auto look = [&](const HttpHead& head) {
      const std::string tag = unquoted(head.field("x-linked-etag"));
      const std::string bytes = head.field("x-linked-size");
      if ((!tag.empty() && !version.empty() && tag != version) ||
          (!bytes.empty() && bytes != fmt::format("{}", size))) {
        throw failure(fmt::format("{} is not the file any more that the hub has listed", name),
                      "start anew with the data as it is now");
      }
    };
    for (const HttpHead& head : response.redirects) look(head);
    look(response.head);
  };
  return open_http_file(client_, std::move(file));
}

std::string Hub::read(const std::string& text_of_address, uint64_t max_bytes) {
  const HubAddress address = parse_hub_address(text_of_address);
  if (address.path.empty()) {
    throw usage_error(fmt::format("{} names a repository and no file in it", text_of_address), "add the file's path");
  }
  const HubCache cache(settings_.cache, address);
  const std::string known = cache.commit();
  const auto cached = known.empty() ? std::nullopt : cache.file(known, max_bytes);
  std::string commit;
  try {
    if (settings_.offline && cached && !is_commit(address.revision)) {
      const std::lock_guard lock(mutex_);
      if (!commits_.contains(address.key()) && !pinned_.contains(address.key())) return *cached;
    }
    std::optional<double> patience;
    if (cached) patience = std::min(patience_with_cache, client_->options().contact_patience);
    commit = commit_of(address, patience);
  } catch (const Stopped&) {
    throw;
  } catch (const Error& error) {
    if (!cached || error.code() != ExitCode::failed) throw;
    log::warn("{}; {} is taken from the cache as it was at commit {}", error.what(), address.path, known.substr(0, 8));
    return *cached;
  }
  if (commit == known && cached) return *cached;
  if (const auto there = cache.file(commit, max_bytes)) {
    cache.remember(commit);
    return *there;
  }
  refuse_offline(text_of_address);
  const std::string content = read_http_file(client_, file_of(address, commit), max_bytes);
  cache.keep(commit, content);
  return content;
}

}  // namespace mythos
