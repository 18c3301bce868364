// Files over http, with every fault made for real: the same bytes in the end, or one clear sentence.
#include "storage_testing.h"

#include "base/signals.h"
#include "storage/http_client.h"
#include "storage/url.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <ctime>
#include <set>
#include <stop_token>
#include <thread>

namespace mythos::test {
namespace {

using namespace std::chrono_literals;

class Http : public ServerTest {
 protected:
  Http() : bytes_(random_bytes(300'000, 7)), environment_("http://127.0.0.1:9") {
    folder_->write("files/a.bin", bytes_);
  }
  std::shared_ptr<const ByteSource> open(const HttpOptions& options = fast(), const std::string& origin = "hub") {
    storage_ = std::make_unique<Storage>(options);
    const auto files = storage_->list(server_->url("/files/a.bin", origin), kinds);
    server_->log();
    return storage_->open(files.at(0));
  }
  std::string read_part(const ByteSource& source, size_t at, size_t n) {
    std::string part(n, '\0');
    source.read_at(at, std::as_writable_bytes(std::span(part)));
    return part;
  }
  std::vector<std::string> ranges() {
    std::vector<std::string> found;
    for (const Json& entry : server_->log()) found.push_back(entry["range"]);
    return found;
  }

  std::string bytes_;
  HubEnvironment environment_;
  std::unique_ptr<Storage> storage_;
  LogLines log_;
};

TEST_F(Http, a_file_is_read_in_parts_over_one_connection) {
  Storage storage(fast());
  const auto files = storage.list(server_->url("/files/a.bin?x=1"), kinds);
  ASSERT_EQ(files.size(), 1U);
  EXPECT_EQ(files[0].name, "a.bin");
  EXPECT_EQ(files[0].size, bytes_.size());
  EXPECT_TRUE(files[0].version.starts_with('"'));
  const auto source = storage.open(files[0]);
  EXPECT_TRUE(source->is_remote());
  EXPECT_EQ(source->name(), server_->url("/files/a.bin"));
  server_->log();
  EXPECT_EQ(read_all(*source, 70'000), bytes_);
  const Json log = server_->log();
  uint64_t sent = 0;
  for (const Json& entry : log) {
    EXPECT_EQ(entry["status"], 206);
    EXPECT_EQ(entry["connection"], log[0]["connection"]);
    sent += entry["sent"].get<uint64_t>();
  }
  EXPECT_EQ(log.size(), 5U);
  EXPECT_EQ(sent, bytes_.size());
  EXPECT_EQ(read_part(*source, 123'456, 1), bytes_.substr(123'456, 1));
  EXPECT_HAS(error_of([&] { read_part(*source, bytes_.size(), 1); }), "past its end");
  EXPECT_EQ(storage.read(server_->url("/files/a.bin"), 1 << 20), bytes_);
  EXPECT_HAS(error_of([&] { storage.read(server_->url("/files/a.bin"), 1000); }), "300 kB");
}

TEST_F(Http, an_empty_file_has_no_bytes) {
  folder_->write("files/empty.txt", "");
  Storage storage(fast());
  const auto files = storage.list(server_->url("/files/empty.txt"), kinds);
  EXPECT_EQ(files.at(0).size, 0U);
  EXPECT_EQ(read_all(*storage.open(files[0])), "");
  EXPECT_EQ(storage.read(server_->url("/files/empty.txt"), 0), "");
}

TEST_F(Http, many_threads_read_at_once) {
  HttpOptions options = fast();
  options.connections = 3;
  const auto source = open(options);
  std::atomic<int> wrong{0};
  {
    std::vector<std::jthread> threads;
    for (size_t t = 0; t < 8; ++t) {
      threads.emplace_back([&, t] {
        for (size_t i = 0; i < 10; ++i) {
          const size_t at = (t * 31'337 + i * 17'001) % 290'000;
          if (read_part(*source, at, 9'999) != bytes_.substr(at, 9'999)) ++wrong;
        }
      });
    }
  }
  EXPECT_EQ(wrong, 0);
  std::set<int> connections;
  for (const Json& entry : server_->log()) connections.insert(entry["connection"].get<int>());
  EXPECT_LE(connections.size(), 4U);  // three, and the one that listed
}

// H8: trouble that passes by itself.
TEST_F(Http, passing_trouble_gives_the_same_bytes) {
  HttpOptions options = fast();
  options.stall_seconds = 0.5;
  const auto source = open(options);
  for (const Json& fault : std::vector<Json>{
           {{"kind", "status"}, {"status", 502}, {"times", 3}},
           {{"kind", "status"}, {"status", 503}, {"times", 3}},
           {{"kind", "status"}, {"status", 500}, {"times", 1}},
           {{"kind", "status"}, {"status", 408}, {"times", 1}},
           {{"kind", "status"}, {"status", 429}, {"times", 2}},
           {{"kind", "status"}, {"status", 504}, {"body", "<html>gateway</html>"}, {"times", 1}},
           {{"kind", "close"}, {"times", 2}},
           {{"kind", "reset"}, {"after", 0}, {"times", 2}},
           {{"kind", "reset"}, {"after", 100'000}, {"times", 2}},
           {{"kind", "stall"}, {"after", 1000}, {"times", 1}},
           {{"kind", "cut"}, {"times", 3}},
           {{"kind", "length"}, {"delta", 500}, {"times", 1}},
           {{"kind", "length"}, {"delta", -500}, {"times", 1}},
           {{"kind", "range"}, {"field", ""}, {"times", 1}},
           {{"kind", "range"}, {"field", "bytes 7-{last}/300000"}, {"times", 2}},
           {{"kind", "range"}, {"field", "bytes {begin}-{last}/*"}, {"times", 1}},
           {{"kind", "range"}, {"field", "nonsense"}, {"times", 1}},
       }) {
    Json with_path = fault;
    with_path["path"] = "a.bin";
    server_->fault(with_path);
    EXPECT_EQ(read_all(*source), bytes_) << fault.dump();
    server_->reset();
  }
}

// H10: the next request begins at the byte where the last one broke.
TEST_F(Http, a_broken_read_goes_on_where_it_broke) {
  HttpOptions options = fast();
  options.stall_seconds = 2;
  const auto source = open(options);
  server_->fault({{"path", "a.bin"}, {"kind", "cut"}, {"times", 1}});
  EXPECT_EQ(read_part(*source, 1000, 200'000), bytes_.substr(1000, 200'000));
  EXPECT_EQ(ranges(), (std::vector<std::string>{"bytes=1000-200999", "bytes=121000-200999"}));
  server_->fault({{"path", "a.bin"}, {"kind", "stall"}, {"after", 1000}, {"times", 1}});
  EXPECT_EQ(read_part(*source, 0, 5000), bytes_.substr(0, 5000));
  EXPECT_EQ(ranges(), (std::vector<std::string>{"bytes=0-4999", "bytes=1000-4999"}));
}

// H2: what does not fit is never taken for the file.
TEST_F(Http, wrong_parts_are_refused_in_words) {
  const auto source = open();
  const auto message = [&](Json fault) {
    fault["path"] = "a.bin";
    server_->fault(fault);
    std::string text = error_of([&] { read_all(*source, 100'000); });
    server_->reset();
    return text;
  };
  EXPECT_HAS(message({{"kind", "range"}, {"field", "bytes 5-{last}/300000"}}),
             "the answer is bytes 5 to 99999 and not 0 to 99999");
  EXPECT_HAS(message({{"kind", "range"}, {"field", ""}}), "does not say which part");
  EXPECT_HAS(message({{"kind", "range"}, {"field", "bytes {begin}-{last}/300001"}}),
             "has 300001 bytes now; it had 300000");
  EXPECT_HAS(message({{"kind", "etag"}, {"etag", "\"other\""}, {"skip", 1}}), "changed while it was read");
  EXPECT_HAS(message({{"kind", "encoding"}}), "comes compressed by its server (gzip)");
  folder_->write("files/a.bin", random_bytes(300'000, 8));  // really another one, between two parts
  EXPECT_HAS(error_of([&] { read_all(*source); }), "changed while it was read");
  folder_->write("files/a.bin", "short");
  EXPECT_HAS(error_of([&] { read_part(*source, 1000, 10); }), "HTTP 416");
}

TEST_F(Http, a_changed_file_is_not_tried_again) {
  const auto source = open();
  server_->fault({{"path", "a.bin"}, {"kind", "etag"}, {"etag", "\"other\""}});
  EXPECT_HAS(error_of([&] { read_all(*source); }), "changed");
  EXPECT_EQ(server_->log().size(), 1U);
}

// D13: an error page is no data, and says what it is.
TEST_F(Http, lasting_answers_are_immediate_and_distinct) {
  const auto source = open();
  for (const auto& [status, words] : std::vector<std::pair<int, std::string>>{{403, "HTTP 403 (access is denied)"},
                                                                              {404, "HTTP 404 (not found)"},
                                                                              {401, "HTTP 401 (not authorised)"},
                                                                              {416, "HTTP 416 (no such range)"},
                                                                              {410, "HTTP 410 (gone)"},
                                                                              {418, "HTTP 418"}}) {
    server_->fault({{"path", "a.bin"}, {"kind", "status"}, {"status", status}, {"body", "<html>secret page</html>"}});
    const std::string text = error_of([&] { read_all(*source); });
    EXPECT_HAS(text, words);
    EXPECT_HAS(text, server_->url("/files/a.bin"));
    EXPECT_EQ(server_->log().size(), 1U);
    server_->reset();
  }
  Storage storage(fast());
  EXPECT_HAS(error_of([&] { storage.list(server_->url("/files/none.txt?token=SECRET"), kinds); }), "HTTP 404");
}

TEST_F(Http, secrets_of_addresses_are_not_shown) {
  const std::string address =
      fmt::format("http://user:PASSWORD@127.0.0.1:{}/files/a.bin?sig=SECRET#SECRET", server_->port("hub"));
  Storage storage(fast());
  const auto file = storage.list(address, kinds).at(0);
  EXPECT_EQ(file.name, "a.bin");
  const auto source = storage.open(file);
  EXPECT_EQ(source->name(), server_->url("/files/a.bin"));
  EXPECT_TRUE(server_->log()[0]["authorization"].get<std::string>().starts_with("Basic "));
  std::string said;
  for (const char* kind : {"close", "status"}) {
    server_->fault({{"path", "a.bin"}, {"kind", kind}, {"status", 403}});
    HttpOptions options = fast();
    options.read_patience = 0.05;
    said += error_of([&] { read_all(*Storage(options).open(file)); });
    server_->reset();
  }
  said += log_.text() + shown_source(address);
  EXPECT_HAS(said, "/files/a.bin");
  for (const char* secret : {"PASSWORD", "SECRET", "user"}) EXPECT_HAS_NOT(said, secret);
}

// H7: not sooner than asked, and bounded.
TEST_F(Http, retry_after_is_waited_for) {
  const auto source = open();
  const auto gap = [&](const std::string& retry_after) {
    server_->fault({{"path", "a.bin"},
                    {"kind", "status"},
                    {"status", 429},
                    {"times", 1},
                    {"headers", {{"Retry-After", retry_after}}}});
    EXPECT_EQ(read_part(*source, 0, 10), bytes_.substr(0, 10));
    const Json log = server_->log();
    return log.at(1)["time"].get<double>() - log.at(0)["time"].get<double>();
  };
  EXPECT_GE(gap("1"), 1.0);
  char date[64];
  const time_t then = std::time(nullptr) + 2;
  struct tm parts {};
  std::strftime(date, sizeof date, "%a, %d %b %Y %H:%M:%S GMT", ::gmtime_r(&then, &parts));
  EXPECT_GE(gap(date), 1.0);
  const auto seconds = [](const std::string& value) {
    return HttpHead{503, "", {{"retry-after", value}}}.retry_after();
  };
  EXPECT_EQ(seconds("120"), 120);
  EXPECT_EQ(seconds("Wed, 21 Oct 2015 07:28:00 GMT"), 0);
  for (const char* nonsense : {"", "soon", "-5", "nan", "inf", "12 parsecs"})
    EXPECT_EQ(seconds(nonsense), std::nullopt) << nonsense;
}

TEST_F(Http, a_wait_that_a_server_asks_for_is_capped) {
  HttpOptions options = fast();
  options.most_server_wait = 0.2;
  const auto source = open(options);
  server_->fault(
      {{"path", "a.bin"}, {"kind", "status"}, {"status", 503}, {"times", 1}, {"headers", {{"Retry-After", "86400"}}}});
  EXPECT_EQ(read_part(*source, 0, 10), bytes_.substr(0, 10));
}

TEST_F(Http, waits_grow_are_said_once_and_end_with_patience) {
  HttpOptions options = fast();
  options.first_backoff = 0.05;
  options.most_backoff = 0.2;
  options.read_patience = 2;
  options.logged_wait = 0.02;
  const auto source = open(options);
  server_->fault({{"path", "a.bin"}, {"kind", "status"}, {"status", 503}});
  const std::string text = error_of([&] { read_all(*source); });
  EXPECT_HAS(text, fmt::format("cannot read {}: HTTP 503 (service unavailable); given up after",
                               server_->url("/files/a.bin")));
  const Json log = server_->log();
  EXPECT_GE(log.size(), 3U);
  EXPECT_LE(log.size(), 110U);  // with the shortest possible waits
  const std::string said = log_.text();
  EXPECT_HAS(said, fmt::format("warning: cannot read {} now: HTTP 503 (service unavailable); next try in",
                               server_->url("/files/a.bin")));
  EXPECT_EQ(static_cast<size_t>(std::ranges::count(said, '\n')), log.size() - 1);
}

TEST_F(Http, two_processes_do_not_wait_alike) {
  std::set<int64_t> gaps;
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    HttpOptions options = fast();
    options.seed = seed;
    options.first_backoff = options.most_backoff = 0.3;
    const auto source = open(options);
    server_->fault({{"path", "a.bin"}, {"kind", "status"}, {"status", 503}, {"times", 1}});
    read_part(*source, 0, 1);
    const Json log = server_->log();
    gaps.insert(std::llround((log.at(1)["time"].get<double>() - log.at(0)["time"].get<double>()) * 1000));
  }
  EXPECT_GE(gaps.size(), 2U);
}

TEST_F(Http, without_ranges_small_files_are_taken_whole_and_large_ones_refused) {
  for (const char* kind : {"norange", "unsized"}) {
    server_->fault({{"path", "a.bin"}, {"kind", "norange"}, {"times", kind == std::string("norange") ? -1 : 0}});
    if (kind == std::string("unsized")) server_->fault({{"path", "a.bin"}, {"kind", "unsized"}, {"times", 1}});
    const auto source = open();
    EXPECT_EQ(source->size(), bytes_.size()) << kind;
    EXPECT_EQ(read_all(*source, 50'000), bytes_) << kind;
    server_->reset();
  }
  server_->fault({{"path", "a.bin"}, {"kind", "norange"}});
  auto source = open();
  EXPECT_EQ(read_all(*source, 10'000), bytes_);
  EXPECT_EQ(server_->log().size(), 2U);  // the part that was refused, and the whole
  HttpOptions options = fast();
  options.whole_file_bytes = 100'000;
  source = open(options);
  EXPECT_HAS(error_of([&] { read_part(*source, 0, 10); }),
             "its server sends only whole files, and this one has 300 kB");
}

// H4 and its like.
TEST_F(Http, redirects_are_followed_within_bounds) {
  Storage storage(fast());
  const auto redirected = [&](const std::string& location, int status = 302) {
    server_->reset();
    server_->fault({{"path", "^/from.bin"}, {"kind", "redirect"}, {"location", location}, {"status", status}});
    return error_of([&] {
      const auto files = storage.list(server_->url("/from.bin"), kinds);
      EXPECT_EQ(read_all(*storage.open(files.at(0)), 100'000), bytes_);
    });
  };
  EXPECT_EQ(redirected("/files/a.bin", 301), "");
  EXPECT_EQ(redirected("files/a.bin", 307), "");
  EXPECT_EQ(redirected("//127.0.0.1:{hub}/files/a.bin", 308), "");
  EXPECT_EQ(redirected("http://127.0.0.1:{cdn}/files/a.bin", 303), "");
  EXPECT_HAS(redirected("file:///etc/passwd"), "which is not an http or https address");
  EXPECT_HAS(redirected("ftp://127.0.0.1/a.bin"), "which is not an http or https address");
  EXPECT_HAS(redirected("gopher://x/"), "which is not an http or https address");
  EXPECT_HAS(redirected("/from.bin"), "redirects in a circle");
  server_->reset();
  server_->fault({{"path", "from(.*)"}, {"kind", "redirect"}, {"location", "from.bin/x"}});
  const std::string text = error_of([&] { storage.list(server_->url("/from.bin"), kinds); });
  EXPECT_TRUE(text.find("more than 10 times") != std::string::npos || text.find("in a circle") != std::string::npos)
      << text;
  EXPECT_LE(server_->log().size(), 11U);
}

TEST_F(Http, a_page_of_links_is_a_folder) {
  folder_->write("files/set/b two.txt", "two");
  folder_->write("files/set/a.jsonl", "{}");
  folder_->write("files/set/c.parquet", "three");
  folder_->write("files/set/readme.md", "no");
  folder_->write("files/set/deeper/d.txt", "no");
  Storage storage(fast());
  const auto files = storage.list(server_->url("/files/set/"), kinds);
  EXPECT_EQ(names_of(files), (std::vector<std::string>{"a.jsonl", "b two.txt", "c.parquet"}));
  EXPECT_EQ(files[1].size, 3U);
  EXPECT_EQ(read_all(*storage.open(files[1])), "two");
  folder_->write("files/none/x.md", "");
  EXPECT_HAS(error_of([&] { storage.list(server_->url("/files/none/"), kinds); }), "links to no data files");
  EXPECT_HAS(error_of([&] { storage.list(server_->url("/files/set"), kinds); }), "is not a data file by its extension");
}

TEST_F(Http, names_and_hosts_that_are_not_there_are_named) {
  HttpOptions options = fast();
  options.contact_patience = 0.2;
  Storage storage(options);
  EXPECT_HAS(error_of([&] { storage.list("http://nowhere.invalid/a.txt", kinds); }),
             "the name nowhere.invalid cannot be found");
  // A port that was free a moment ago.
  EXPECT_HAS(error_of([&] { storage.list("http://127.0.0.1:1/a.txt", kinds); }), "127.0.0.1 cannot be reached");
  EXPECT_HAS(error_of([&] { storage.list("http://h ost:99999/a.txt", kinds); }), "not a valid http");
  EXPECT_HAS(error_of([&] { storage.list("ftp://127.0.0.1/a.txt", kinds); }), "ftp:// is not a known kind");
}

// P7: a stop ends every wait.
TEST_F(Http, stopping_ends_stalls_and_waits_at_once) {
  HttpOptions options = fast();
  options.stall_seconds = 60;
  options.first_backoff = options.most_backoff = 60;
  options.read_patience = 3600;
  const auto source = open(options);
  for (const Json& fault : std::vector<Json>{{{"kind", "stall"}, {"after", 1000}, {"path", "a.bin"}},
                                             {{"kind", "status"}, {"status", 503}, {"path", "a.bin"}}}) {
    server_->fault(fault);
    for (const bool by_signal : {false, true}) {
      std::stop_source stop;
      std::jthread asker([&] {
        std::this_thread::sleep_for(200ms);
        if (by_signal) {
          ::raise(SIGTERM);
        } else {
          stop.request_stop();
        }
      });
      if (by_signal) install_stop_handlers();
      std::string buffer(5000, '\0');
      const double taken = seconds_of([&] {
        EXPECT_THROW(source->read_at(0, std::as_writable_bytes(std::span(buffer)), stop.get_token()), Stopped);
      });
      EXPECT_LT(taken, 10);  // not the minute of the stall or the wait
      asker.join();
      clear_stop_request();
      ::signal(SIGTERM, SIG_DFL);
    }
    server_->reset();
  }
}

}  // namespace
}  // namespace mythos::test
