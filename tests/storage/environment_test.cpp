// What surrounds the program: certificates, proxies, name look-up, full disks, signals.
#include "storage_testing.h"

#include "base/signals.h"

#include <sys/mount.h>

#include <thread>

namespace mythos::test {
namespace {

int run(const std::string& command) { return std::system((command + " >/dev/null 2>&1").c_str()); }

// What a child process prints, and its exit code; for what only a process of its own can have.
std::pair<int, std::string> in_child(const std::function<void()>& work) {
  std::array<int, 2> ends{};
  if (::pipe(ends.data()) != 0) throw std::runtime_error("no pipe");
  const pid_t pid = ::fork();
  if (pid == 0) {
    std::string text = "no error";
    try {
      work();
    } catch (const Error& error) {
      text = error.line();
    } catch (const std::exception& error) {
      text = error.what();
    }
    const bool written = ::write(ends[1], text.data(), text.size()) == static_cast<ssize_t>(text.size());
    ::_exit(written ? 0 : 1);
  }
  ::close(ends[1]);
  std::string text(4000, '\0');
  const ssize_t n = ::read(ends[0], text.data(), text.size());
  text.resize(n > 0 ? static_cast<size_t>(n) : 0);
  ::close(ends[0]);
  int status = 0;
  ::waitpid(pid, &status, 0);
  return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), text};
}

class Tls : public ::testing::Test {
 protected:
  Tls() : environment_("http://127.0.0.1:9") {
    folder_.write("files/a.bin", bytes_);
    const std::string at = folder_.path().string();
    const bool made =
        run("openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=Test "
            "-keyout " +
            at + "/ca.key -out " + at + "/ca.pem -addext basicConstraints=critical,CA:TRUE") == 0 &&
        run("openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=127.0.0.1 -keyout " + at +
            "/key.pem -out " + at + "/csr.pem") == 0 &&
        run("printf 'subjectAltName=IP:127.0.0.1' > " + at + "/ext && openssl x509 -req -days 2 -in " + at +
            "/csr.pem -CA " + at + "/ca.pem -CAkey " + at + "/ca.key -CAcreateserial -extfile " + at + "/ext -out " +
            at + "/cert.pem") == 0;
    if (made)
      server_ = std::make_unique<Server>(folder_.path(), std::vector<std::string>{at + "/cert.pem", at + "/key.pem"});
  }
  void SetUp() override {
    if (!server_) GTEST_SKIP() << "no certificate can be made: the command openssl is missing";
  }

  const std::string bytes_ = random_bytes(50'000, 9);
  TempFolder folder_;
  HubEnvironment environment_;
  std::unique_ptr<Server> server_;
};

TEST_F(Tls, authorities_are_taken_from_the_environment) {
  const std::string url = server_->url("/files/a.bin", "tls");
  Storage storage(fast());
  const std::string text = error_of([&] { storage.list(url, kinds); });
  EXPECT_HAS(text, "the certificate of 127.0.0.1 is not to be trusted");
  EXPECT_HAS(text, "set SSL_CERT_FILE");
  for (const char* name : {"SSL_CERT_FILE", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE"}) {
    const Variable authority(name, (folder_ / "ca.pem").string());
    Storage trusting(fast());
    EXPECT_EQ(read_all(*trusting.open(trusting.list(url, kinds).at(0)), 20'000), bytes_) << name;
  }
  const Variable missing("SSL_CERT_FILE", "/nowhere/ca.pem");
  EXPECT_HAS(error_of([&] { storage.list(url, kinds); }),
             "SSL_CERT_FILE is set to /nowhere/ca.pem, which does not exist");
}

// H4: no way from https to http.
TEST_F(Tls, a_redirect_to_http_is_refused) {
  const Variable authority("SSL_CERT_FILE", (folder_ / "ca.pem").string());
  const Variable endpoint("HF_ENDPOINT", server_->url("", "tls"));
  const Variable token("HF_TOKEN", "hf_good_token");
  folder_.write("datasets/org/x/a.parquet", bytes_);
  Storage storage(fast());
  const auto file = storage.list("hf://datasets/org/x", kinds).at(0);
  server_->log();
  const std::string text = error_of([&] { read_all(*storage.open(file)); });  // to the host of files, which has no TLS
  EXPECT_HAS(text, "redirects from https to http://127.0.0.1");
  EXPECT_HAS(text, "which is not encrypted: refused");
  EXPECT_HAS_NOT(text, "SECRET");
  for (const Json& entry : server_->log()) EXPECT_EQ(entry["origin"], "tls");
  server_->set("redirect", "tls");
  EXPECT_EQ(read_all(*storage.open(file)), bytes_);
}

TEST_F(Tls, plain_http_on_a_tls_port_is_an_error_in_words) {
  HttpOptions options = fast();
  options.contact_patience = 0.1;
  Storage storage(options);
  EXPECT_HAS(
      error_of([&] { storage.list(fmt::format("https://127.0.0.1:{}/files/a.bin", server_->port("hub")), kinds); }),
      "no encrypted connection to 127.0.0.1");
}

class Around : public ServerTest {
 protected:
  Around() : environment_("http://127.0.0.1:9") { folder_->write("files/a.bin", bytes_); }
  const std::string bytes_ = random_bytes(50'000, 10);
  HubEnvironment environment_;
};

TEST_F(Around, a_proxy_is_used_where_the_environment_says_so) {
  const Variable proxy("http_proxy", server_->url("", "proxy"));
  {
    const Variable everywhere("no_proxy", std::nullopt);
    const Variable also("NO_PROXY", std::nullopt);
    Storage storage(fast());
    const auto file = storage.list(server_->url("/files/a.bin"), kinds).at(0);
    EXPECT_EQ(read_all(*storage.open(file), 20'000), bytes_);
    int through = 0;
    for (const Json& entry : server_->log()) through += entry["origin"] == "proxy" ? 1 : 0;
    EXPECT_EQ(through, 4);
  }
  const Variable not_here("no_proxy", "127.0.0.1");
  Storage storage(fast());
  storage.list(server_->url("/files/a.bin"), kinds);
  for (const Json& entry : server_->log()) EXPECT_EQ(entry["origin"], "hub");
}

TEST_F(Around, a_proxy_that_is_not_there_is_named_without_its_password) {
  const Variable proxy("http_proxy", "http://me:PASSWORD@nowhere.invalid:3128");
  const Variable everywhere("no_proxy", std::nullopt);
  const Variable also("NO_PROXY", std::nullopt);
  HttpOptions options = fast();
  options.contact_patience = 0.1;
  const std::string text = error_of([&] { Storage(options).list(server_->url("/files/a.bin"), kinds); });
  EXPECT_HAS(text, "the name of the proxy cannot be found");
  EXPECT_HAS_NOT(text, "PASSWORD");
}

TEST_F(Around, without_any_network_the_error_names_the_host) {
  const auto [code, text] = in_child([] {
    if (::unshare(CLONE_NEWNET) != 0) throw std::runtime_error("skip");
    HttpOptions options = fast();
    options.contact_patience = 0.3;
    const std::array<std::string_view, 1> parquet{".parquet"};
    const Variable nowhere("HF_ENDPOINT", "https://hub.example");
    Storage(options).list("hf://datasets/org/web/data", parquet);
  });
  if (text == "skip") GTEST_SKIP() << "needs the right to make a network of its own";
  EXPECT_HAS(text, "cannot read hf://datasets/org/web: the name hub.example cannot be found; given up after");
  EXPECT_HAS(text, "check the network");
}

TEST_F(Around, a_full_disk_in_the_cache_is_one_warning) {
  const TempFolder folder;
  if (::mount("tmpfs", folder.path().c_str(), "tmpfs", 0, "size=16k") != 0) {
    GTEST_SKIP() << "needs the right to mount";
  }
  folder_->write("models/org/model/weights.bin", bytes_);
  const Variable endpoint("HF_ENDPOINT", server_->url(""));
  const Variable cache("HF_HUB_CACHE", folder.path().string());
  const LogLines log;
  std::string content;
  const std::string error = error_of([&] { content = Storage(fast()).read("hf://org/model/weights.bin", 100'000); });
  size_t left = 0;
  for (const auto& entry : fs::recursive_directory_iterator(folder.path())) left += entry.is_regular_file() ? 1 : 0;
  ::umount(folder.path().c_str());
  EXPECT_EQ(error, "");
  EXPECT_EQ(content, bytes_);
  EXPECT_EQ(left, 0U);
  EXPECT_HAS(log.text(), "warning: weights.bin is not kept for the next start: ");
}

// P7 (a): a signal during a stall ends the work, not only the wait.
TEST_F(Around, a_signal_during_a_stall_ends_the_read) {
  server_->fault({{"path", "a.bin"}, {"kind", "stall"}, {"after", 1000}, {"skip", 1}});
  const std::string url = server_->url("/files/a.bin");
  const auto [code, text] = in_child([&] {
    install_stop_handlers();
    HttpOptions options = fast();
    options.stall_seconds = 600;
    Storage storage(options);
    const auto source = storage.open(storage.list(url, kinds).at(0));
    std::thread([child = ::getpid()] {
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
      ::kill(child, SIGTERM);
    }).detach();
    read_all(*source);
  });
  EXPECT_EQ(code, 0);
  EXPECT_EQ(text, "reading over the network was stopped");
}

}  // namespace
}  // namespace mythos::test
