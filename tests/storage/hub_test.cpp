// Repositories of a hub: listings, configurations, redirects to another host, tokens, revisions, the cache.
#include "storage_testing.h"

#include <algorithm>
#include <set>

namespace mythos::test {
namespace {

constexpr const char* token = "hf_good_token";

class HubTest : public ServerTest {
 protected:
  static void SetUpTestSuite() {
    ServerTest::SetUpTestSuite();
    for (const char* file : {"data/CC-1/a.parquet", "data/CC-1/b.parquet", "data/CC-2/a.parquet",
                             "sample/10BT/000.parquet", "sample/10BT/001.parquet", "sample/100BT/000.parquet"}) {
      folder_->write(std::string("datasets/org/web/") + file, bytes_of(file));
      folder_->write(std::string("datasets/org/plain/") + file, bytes_of(file));
    }
    folder_->write("datasets/org/web/README.md",
                   "---\nconfigs:\n- config_name: default\n  data_files:\n  - split: train\n    path: data/*/*\n"
                   "- config_name: sample-10BT\n  data_files:\n  - split: train\n    path: sample/10BT/*\n"
                   "- config_name: tests-only\n  data_files:\n  - split: a\n    path: sample/*/*\n  - split: b\n    "
                   "path: data/*/*\n"
                   "- config_name: outside\n  data_files: ../../x\n"
                   "- config_name: nothing\n  data_files: none/*\n---\n# Web\n");
    folder_->write("datasets/org/plain/notes.md", "x");
    folder_->write("datasets/org/plain/.hidden/x.parquet", "x");
    folder_->write("datasets/org/flat/x y#1.jsonl", "{}");
    folder_->write("datasets/org/flat/sub/z.txt", "zz");
    for (const char* name : {"gated", "gated-denied", "private"}) {
      folder_->write(fmt::format("datasets/org/{}/a.parquet", name), bytes_of(name));
    }
    folder_->write("models/org/model/tokenizer.json", "{\"tokens\": []}");
    folder_->write("models/org/model/weights.bin", bytes_of("weights"));
  }
  HubTest() { environment_ = std::make_unique<HubEnvironment>(server_->url("")); }

  static std::string bytes_of(const std::string& name) { return random_bytes(20'000, std::hash<std::string>()(name)); }
  static std::vector<std::string> list(const std::string& source) {
    Storage storage(fast());
    return names_of(storage.list(source, kinds));
  }
  static std::string refusal(const std::string& source) {
    return error_of([&] { list(source); });
  }
  void as(const std::string& who) {
    environment_.reset();  // first, as it brings the old values back
    environment_ = std::make_unique<HubEnvironment>(server_->url(""), who);
  }
  std::vector<Json> asked(const std::string& origin) {
    std::vector<Json> found;
    for (const Json& entry : server_->log()) {
      if (entry["origin"] == origin) found.push_back(entry);
    }
    return found;
  }

  std::unique_ptr<HubEnvironment> environment_;
  LogLines log_;
};

const std::vector<std::string> all_of_data{"data/CC-1/a.parquet", "data/CC-1/b.parquet", "data/CC-2/a.parquet"};
const std::vector<std::string> sample_10{"sample/10BT/000.parquet", "sample/10BT/001.parquet"};

TEST_F(HubTest, folders_files_patterns_and_configurations) {
  for (const char* repo : {"hf://datasets/org/web", "hf://datasets/org/plain"}) {
    const std::string at = repo;
    EXPECT_EQ(list(at), all_of_data);
    EXPECT_EQ(list(at + "/"), all_of_data);
    EXPECT_EQ(list(at + "@main/data"), all_of_data);
    EXPECT_EQ(list(at + "/default"), all_of_data);
    EXPECT_EQ(list(at + "/data/*/*"), all_of_data);
    EXPECT_EQ(list(at + "/data/*"), all_of_data);  // folders that a pattern takes
    EXPECT_EQ(list(at + "/data/*/a.*"), (std::vector<std::string>{all_of_data[0], all_of_data[2]}));
    EXPECT_EQ(list(at + "/data/CC-1"), (std::vector<std::string>{all_of_data[0], all_of_data[1]}));
    EXPECT_EQ(list(at + "/sample/10BT"), sample_10);
    EXPECT_EQ(list(at + "/sample-10BT"), sample_10);
    EXPECT_EQ(list(at + "/sample/10BT/001.parquet"), (std::vector<std::string>{sample_10[1]}));
    EXPECT_EQ(list(at + "@" + commit_of_server + "/sample/10BT"), sample_10);
  }
  EXPECT_EQ(list("hf://datasets/org/plain/CC-2"), (std::vector<std::string>{all_of_data[2]}));
  EXPECT_EQ(list("hf://datasets/org/plain/**"), list("hf://datasets/org/plain/*"));
  EXPECT_EQ(list("hf://datasets/org/flat"), (std::vector<std::string>{"sub/z.txt", "x y#1.jsonl"}));
  EXPECT_EQ(list("hf://org/model"), (std::vector<std::string>{"weights.bin"}));
}

TEST_F(HubTest, names_that_are_not_there_get_the_nearest) {
  EXPECT_HAS(refusal("hf://datasets/org/web/sample-10TB"), "did you mean 'sample-10BT'?");
  EXPECT_HAS(refusal("hf://datasets/org/web/dato"), "did you mean 'data'?");
  EXPECT_HAS(refusal("hf://datasets/org/web/data/CC-3"), "did you mean 'data/CC-1'?");
  EXPECT_HAS(refusal("hf://datasets/org/web/data/CC-1/c.parquet"), "did you mean 'data/CC-1/a.parquet'?");
  EXPECT_HAS(refusal("hf://datasets/org/web/elsewhere"), "there are README.md, data, default");
  EXPECT_HAS(refusal("hf://datasets/org/web/data/*/*.txt"), "no file matches");
  EXPECT_HAS(refusal("hf://datasets/org/plain/notes.md"), "which is not a data file by its extension");
  EXPECT_HAS(refusal("hf://datasets/org/web/tests-only"), "has no split 'train' (its splits are a, b");
  EXPECT_HAS(refusal("hf://datasets/org/web/outside"), "which is outside the repository");
  EXPECT_HAS(refusal("hf://datasets/org/web/nothing"),
             "no file of hf://datasets/org/web matches its configuration 'nothing' (none/*)");
  EXPECT_HAS(refusal("hf://datasets/org"), "names no repository");
}

// H6: every page, in the same order, through the endpoint.
TEST_F(HubTest, listings_follow_their_pages) {
  server_->set("link_host", "https://huggingface.invalid");
  Storage storage(fast());
  const auto files = storage.list("hf://datasets/org/many/data", kinds);
  ASSERT_EQ(files.size(), 1037U);
  EXPECT_EQ(files[1036].name, "data/part-01036.parquet");
  EXPECT_EQ(files[1036].size, 2036U);
  EXPECT_EQ(files[7].version, fmt::format("{:064x}", 7));
  EXPECT_TRUE(std::ranges::is_sorted(files, {}, &SourceFile::name));
  EXPECT_EQ(server_->log().size(), 3U);  // the commit and two pages
  server_->set("page", 100);
  server_->set("empty_page", true);
  EXPECT_EQ(list("hf://datasets/org/many/data").size(), 1037U);
  server_->set("cyclic", true);
  EXPECT_HAS(refusal("hf://datasets/org/many/data"), "goes round in a circle");
  server_->reset();
  server_->fault({{"path", "/tree/"}, {"kind", "status"}, {"status", 502}, {"times", 2}, {"skip", 1}});
  EXPECT_EQ(list("hf://datasets/org/many/data").size(), 1037U);
  server_->fault({{"path", "/tree/"}, {"kind", "status"}, {"status", 404}, {"times", 1}, {"skip", 1}});
  EXPECT_HAS(refusal("hf://datasets/org/many/data"), "HTTP 404");  // a page that is missing is no end
}

TEST_F(HubTest, hostile_listings_are_refused) {
  for (const char* body :
       {"{}", "[1]", "[{\"type\":\"file\",\"path\":\"../x.txt\",\"size\":1}]",
        "[{\"type\":\"file\",\"path\":\"/x.txt\",\"size\":1}]", "[{\"type\":\"file\",\"path\":\"x.txt\",\"size\":-1}]",
        "[{\"type\":\"file\",\"path\":\"x.txt\"}]", "[{\"type\":\"file\",\"size\":1}]", "[", "<html>"}) {
    server_->fault({{"path", "/tree/"}, {"kind", "status"}, {"status", 200}, {"body", body}});
    const std::string text = refusal("hf://datasets/org/web/data");
    EXPECT_TRUE(has(text, "is not what the hub sends") || has(text, "is not valid JSON")) << body << text;
    server_->reset();
  }
  for (const char* body : {"{}", "{\"sha\": 5}", "{\"sha\": \"../../..\"}", "[]", "x"}) {
    server_->fault({{"path", "/revision/"}, {"kind", "status"}, {"status", 200}, {"body", body}});
    EXPECT_NE(refusal("hf://datasets/org/web/data"), "");
    server_->reset();
  }
}

// H3: the token stays with its host; the signed address is kept.
TEST_F(HubTest, files_come_from_another_host_without_the_token) {
  as(token);
  Storage storage(fast());
  const auto files = storage.list("hf://datasets/org/web/sample/10BT", kinds);
  const auto source = storage.open(files.at(0));
  EXPECT_EQ(source->name(), "hf://datasets/org/web/sample/10BT/000.parquet");
  EXPECT_EQ(files[0].location, "hf://datasets/org/web@" + commit_of_server + "/sample/10BT/000.parquet");
  EXPECT_EQ(read_all(*source, 3'000), bytes_of("sample/10BT/000.parquet"));
  EXPECT_EQ(read_all(*storage.open(files[0])), bytes_of("sample/10BT/000.parquet"));
  int resolved = 0;
  for (const Json& entry : server_->log()) {
    const bool hub = entry["origin"] == "hub";
    EXPECT_EQ(entry["authorization"], hub ? "Bearer hf_good_token" : "");
    resolved += hub && has(entry["path"], "/resolve/") ? 1 : 0;
  }
  EXPECT_EQ(resolved, 1);
}

TEST_F(HubTest, the_token_is_kept_on_its_own_host) {
  as(token);
  for (const char* location :
       {"/datasets/org/private/resolve/0123456789abcdef0123456789abcdef01234567/a.parquet",
        "http://127.0.0.1:{hub}/datasets/org/private/resolve/0123456789abcdef0123456789abcdef01234567/a.parquet"}) {
    server_->fault(
        {{"path", "/web/resolve/.*001.parquet"}, {"kind", "redirect"}, {"status", 307}, {"location", location}});
    server_->set("redirect", "");
    Storage storage(fast());
    auto file = storage.list("hf://datasets/org/web/sample/10BT/001.parquet", kinds).at(0);
    EXPECT_EQ(read_all(*storage.open(file)), bytes_of("private"));
    server_->reset();
  }
}

TEST_F(HubTest, signed_addresses_that_expire_are_renewed_at_the_same_byte) {
  server_->set("signed_uses", 2);
  Storage storage(fast());
  const auto source = storage.open(storage.list("hf://datasets/org/web/sample/10BT/000.parquet", kinds).at(0));
  server_->log();
  EXPECT_EQ(read_all(*source, 4'000), bytes_of("sample/10BT/000.parquet"));
  const auto cdn = asked("cdn");
  ASSERT_EQ(cdn.size(), 7U);  // five parts, and two that were refused
  EXPECT_EQ(std::ranges::count_if(cdn, [](const Json& e) { return e["status"] == 403; }), 2);
  EXPECT_EQ(cdn[2]["range"], cdn[3]["range"]);
  // One that is refused from the start is an error, and so is one that is refused again and again.
  server_->fault({{"path", "/blob/"}, {"kind", "status"}, {"status", 403}});
  const std::string text = error_of([&] { read_all(*source); });
  EXPECT_HAS(text, "HTTP 403");
  EXPECT_HAS_NOT(text, "SECRET");
  EXPECT_LE(asked("cdn").size(), 4U);
}

TEST_F(HubTest, passing_trouble_at_either_host_gives_the_same_bytes) {
  Storage storage(fast());
  const auto file = storage.list("hf://datasets/org/web/sample/10BT/000.parquet", kinds).at(0);
  for (const char* origin : {"hub", "cdn"}) {
    for (const char* kind : {"status", "close", "reset", "cut"}) {
      server_->fault({{"path", "000.parquet"},
                      {"origin", origin},
                      {"kind", kind},
                      {"status", 503},
                      {"after", 5'000},
                      {"times", 3}});
      Storage fresh(fast());
      EXPECT_EQ(read_all(*fresh.open(file), 6'000), bytes_of("sample/10BT/000.parquet")) << origin << kind;
      server_->reset();
    }
  }
}

TEST_F(HubTest, another_content_than_the_listed_is_refused) {
  Storage storage(fast());
  const auto file = storage.list("hf://datasets/org/web/sample/10BT/000.parquet", kinds).at(0);
  server_->fault({{"path", "/resolve/"}, {"kind", "linked"}, {"linked", "\"other\""}});
  EXPECT_HAS(error_of([&] { read_all(*storage.open(file)); }), "is not the file any more that the hub has listed");
  server_->reset();
  auto longer = file;
  ++longer.size;
  EXPECT_HAS(error_of([&] { read_all(*Storage(fast()).open(longer)); }), "has 20000 bytes now; it had 20001");
}

TEST_F(HubTest, repositories_that_are_gated_or_missing_are_named_in_words) {
  const auto reading = [&](const std::string& repo) {
    return error_of([&] {
      Storage storage(fast());
      read_all(*storage.open(storage.list("hf://datasets/org/" + repo, kinds).at(0)));
    });
  };
  EXPECT_HAS(reading("missing"),
             "does not exist, or is private or gated (check the name; for a private or gated one set HF_TOKEN)");
  EXPECT_HAS(reading("private"), "does not exist, or is private or gated");
  EXPECT_HAS(reading("gated"),
             "is gated (ask for access on " + server_->url("/datasets/org/gated") + " and set HF_TOKEN)");
  EXPECT_HAS(reading("web@v9"), "has no revision 'v9'");
  as(token);
  EXPECT_HAS(reading("missing"), "check the name, and that the token may read it");
  EXPECT_EQ(reading("private"), "");
  EXPECT_EQ(reading("gated"), "");
  EXPECT_HAS(reading("gated-denied"), "the token's owner has no access to it yet");
  as("hf_expired_token");
  EXPECT_HAS(reading("web"), "the hub does not accept the token for hf://datasets/org/web: it is wrong or has expired");
  EXPECT_HAS_NOT(reading("web"), "hf_expired_token");
  Storage storage(fast());
  as("");
  EXPECT_HAS(error_of([&] { storage.read("hf://org/model/none.json", 100); }),
             "hf://org/model/none.json does not exist");
}

TEST_F(HubTest, the_saved_token_is_used) {
  environment_->home().write("token", "hf_good_token\n");
  EXPECT_EQ(list("hf://datasets/org/private").size(), 1U);
}

TEST_F(HubTest, a_revision_is_asked_for_once_and_can_be_pinned) {
  const std::string older(40, 'b');
  server_->set("commits", {{"main", commit_of_server}, {"v1", older}});
  Storage storage(fast());
  EXPECT_TRUE(storage.commits().empty());
  storage.list("hf://datasets/org/web/sample/10BT", kinds);
  storage.list("hf://datasets/org/web/data", kinds);
  storage.list("hf://datasets/org/web@v1/data", kinds);
  EXPECT_EQ(storage.commits(), (std::map<std::string, std::string>{{"hf://datasets/org/web@main", commit_of_server},
                                                                   {"hf://datasets/org/web@v1", older}}));
  int revisions = 0;
  for (const Json& entry : server_->log()) revisions += has(entry["path"], "/revision/") ? 1 : 0;
  EXPECT_EQ(revisions, 2);
  Storage resumed(fast());
  resumed.pin({{"hf://datasets/org/web@main", older}});
  const auto files = resumed.list("hf://datasets/org/web/data", kinds);
  EXPECT_HAS(files.at(0).location, "@" + older + "/");
  EXPECT_EQ(resumed.commits().at("hf://datasets/org/web@main"), older);
  for (const Json& entry : server_->log()) EXPECT_HAS_NOT(entry["path"].get<std::string>(), "/revision/");
  EXPECT_THROW(resumed.pin({{"hf://datasets/org/web@main", "x"}}), Error);
}

TEST_F(HubTest, an_endpoint_may_have_a_path) {
  // The way of a mirror that passes "/mirror" on: here, by redirects.
  server_->fault({{"path", "^/mirror/api/datasets/org/many/revision"},
                  {"kind", "redirect"},
                  {"location", "/api/datasets/org/many/revision/main"}});
  const HubEnvironment mirror(server_->url("/mirror/"));
  EXPECT_HAS(refusal("hf://datasets/org/many/data"), "has no file, folder or configuration 'data'");
  for (const Json& entry : server_->log()) {
    const std::string path = entry["path"];
    EXPECT_TRUE(path.starts_with("/mirror/") || has(path, "/revision/")) << path;
  }
}

TEST_F(HubTest, small_files_are_kept_in_the_hubs_cache) {
  const std::string address = "hf://org/model/tokenizer.json";
  EXPECT_EQ(Storage(fast()).read(address, 1000), "{\"tokens\": []}");
  const fs::path cache = environment_->home() / "hub/models--org--model";
  EXPECT_EQ(read_file(cache / "refs/main"), commit_of_server);
  EXPECT_EQ(read_file(cache / "snapshots" / commit_of_server / "tokenizer.json"), "{\"tokens\": []}");
  server_->log();
  EXPECT_EQ(Storage(fast()).read(address, 1000), "{\"tokens\": []}");
  EXPECT_EQ(server_->log().size(), 1U);  // which commit is the newest, and no download
  EXPECT_EQ(Storage(fast()).read("hf://org/model@" + commit_of_server + "/tokenizer.json", 1000), "{\"tokens\": []}");
  EXPECT_EQ(server_->log().size(), 0U);
  EXPECT_HAS(error_of([&] { Storage(fast()).read(address, 3); }), "tokenizer.json");
  EXPECT_HAS(error_of([&] { Storage(fast()).read("hf://org/model/weights.bin", 100); }), "more than the 100 B");
  EXPECT_HAS(error_of([&] { Storage(fast()).read("hf://org/model", 100); }), "names a repository and no file in it");
  EXPECT_EQ(Storage(fast()).read("hf://org/model/weights.bin", 100'000), bytes_of("weights"));
  EXPECT_EQ(Storage(fast()).read("hf://datasets/org/flat/sub/z.txt", 100), "zz");
  EXPECT_EQ(log_.text(), "");
}

TEST_F(HubTest, a_cache_that_python_wrote_is_used_without_a_network) {
  const TempFolder& home = environment_->home();
  home.write("hub/models--org--model/refs/main", commit_of_server);
  home.write("hub/models--org--model/blobs/abc", "from python");
  fs::create_directories(home / ("hub/models--org--model/snapshots/" + commit_of_server));
  fs::create_symlink("../../blobs/abc",
                     home / ("hub/models--org--model/snapshots/" + commit_of_server + "/tokenizer.json"));
  {
    const Variable nowhere("HF_ENDPOINT", "http://127.0.0.1:1");
    HttpOptions options = fast();
    options.contact_patience = 0.1;
    EXPECT_EQ(Storage(options).read("hf://org/model/tokenizer.json", 1000), "from python");
    EXPECT_HAS(log_.text(), "tokenizer.json is taken from the cache as it was at commit 01234567");
    EXPECT_HAS(error_of([&] { Storage(options).read("hf://org/model/other.json", 1000); }),
               "127.0.0.1 cannot be reached");
  }
  const Variable offline("HF_HUB_OFFLINE", "1");
  EXPECT_EQ(Storage(fast()).read("hf://org/model/tokenizer.json", 1000), "from python");
  EXPECT_HAS(error_of([&] { Storage(fast()).read("hf://org/model/other.json", 1000); }), "HF_HUB_OFFLINE forbids");
  EXPECT_HAS(refusal("hf://datasets/org/web"), "HF_HUB_OFFLINE forbids");
  EXPECT_EQ(server_->log().size(), 0U);
}

TEST_F(HubTest, a_cache_that_cannot_be_written_is_one_warning) {
  const Variable cache("HF_HUB_CACHE", "/proc/nowhere");
  EXPECT_EQ(Storage(fast()).read("hf://org/model/tokenizer.json", 1000), "{\"tokens\": []}");
  EXPECT_HAS(log_.text(), "warning: tokenizer.json is not kept for the next start: ");
  const std::string said = log_.text();
  EXPECT_EQ(std::ranges::count(said, '\n'), 1);
}

TEST_F(HubTest, a_damaged_download_is_never_kept) {
  server_->fault({{"path", "weights.bin"}, {"origin", "cdn"}, {"kind", "cut"}, {"skip", 1}});
  HttpOptions options = fast();
  options.contact_patience = 0.3;
  const std::string text = error_of([&] { Storage(options).read("hf://org/model/weights.bin", 100'000); });
  EXPECT_HAS(text, "the answer ended too early; given up after");
  EXPECT_FALSE(fs::exists(environment_->home() / "hub/models--org--model/snapshots"));
}

}  // namespace
}  // namespace mythos::test
