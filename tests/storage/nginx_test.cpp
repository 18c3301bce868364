// A real web server: nginx with the hub's layout as plain files, and with its own pages of links.
#include "storage_testing.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <thread>

namespace mythos::test {
namespace {

int free_port() {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  ::bind(fd, reinterpret_cast<sockaddr*>(&address), size);
  ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
  ::close(fd);
  return ntohs(address.sin_port);
}

std::string nginx_program() {
  for (const char* path : {"/usr/sbin/nginx", "/usr/bin/nginx", "/usr/local/sbin/nginx"}) {
    if (::access(path, X_OK) == 0) return path;
  }
  return "";
}

// Two servers of one process: the hub, whose resolve/ redirects, and the host of its files.
class Nginx : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string program = nginx_program();
    if (program.empty()) GTEST_SKIP() << "nginx is not installed";
    hub_ = free_port();
    cdn_ = free_port();
    const std::string at = folder_.path().string();
    folder_.write("nginx.conf", fmt::format(R"(
daemon off; worker_processes 1; pid {0}/pid; error_log {0}/error.log;
events {{ worker_connections 64; }}
http {{
  access_log {0}/access.log; default_type application/octet-stream;
  client_body_temp_path {0}/t1; proxy_temp_path {0}/t2; fastcgi_temp_path {0}/t3; uwsgi_temp_path {0}/t4; scgi_temp_path {0}/t5;
  server {{
    listen 127.0.0.1:{1}; root {0}/hub;
    location /api/ {{ try_files $uri $uri.json =404; }}
    location ~ ^/datasets/(.+)/resolve/[0-9a-f]+/(.+)$ {{ return 302 http://127.0.0.1:{2}/$1/$2?Signature=x; }}
    location /pages/ {{ autoindex on; }}
  }}
  server {{ listen 127.0.0.1:{2}; root {0}/files; }}
}})",
                                            at, hub_, cdn_));
    const auto file = [&](const std::string& name, size_t n) {
      folder_.write("files/org/web/" + name, random_bytes(n, n));
      return Json{{"type", "file"}, {"oid", std::string(40, '1')}, {"size", n}, {"path", name}};
    };
    const Json list = {file("sample/10BT/001.parquet", 300'000), file("sample/10BT/000.parquet", 2'000'001)};
    const std::string api = "hub/api/datasets/org/web/";
    folder_.write(api + "revision/main.json", Json{{"sha", commit_of_server}}.dump());
    folder_.write(api + "tree/" + commit_of_server + "/sample/10BT.json", list.dump());
    folder_.write("hub/pages/a b.txt", "one");
    folder_.write("hub/pages/c&d.jsonl", "{}");
    folder_.write("hub/pages/deeper/e.txt", "no");
    // Workers of a server that root starts are nobody.
    ::chmod(at.c_str(), 0755);
    environment_ = std::make_unique<HubEnvironment>(fmt::format("http://127.0.0.1:{}", hub_));
    pid_ = ::fork();
    if (pid_ == 0) {
      ::freopen("/dev/null", "w", stderr);
      ::execl(program.c_str(), program.c_str(), "-p", at.c_str(), "-c", (at + "/nginx.conf").c_str(), nullptr);
      ::_exit(127);
    }
  }
  void TearDown() override {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGTERM);
    ::waitpid(pid_, nullptr, 0);
  }

  TempFolder folder_;
  std::unique_ptr<HubEnvironment> environment_;
  int hub_ = 0;
  int cdn_ = 0;
  pid_t pid_ = -1;
};

// While it starts, connections are refused: the first request waits for it.
TEST_F(Nginx, a_hub_of_plain_files_is_listed_and_read) {
  Storage storage(fast());
  const auto files = storage.list("hf://datasets/org/web/sample/10BT", kinds);
  ASSERT_EQ(names_of(files), (std::vector<std::string>{"sample/10BT/000.parquet", "sample/10BT/001.parquet"}));
  for (const auto& file : files) {
    const std::string expected = read_file(folder_ / ("files/org/web/" + file.name));
    const auto source = storage.open(file);
    EXPECT_EQ(read_all(*source, 150'000), expected);
    const auto ahead = read_ahead(source, 10, file.size - 10);
    EXPECT_EQ(read_all(*ahead, 99'999), expected);
  }
  const std::string log = read_file(folder_ / "access.log");
  EXPECT_HAS(log, "\"GET /org/web/sample/10BT/000.parquet?Signature=x HTTP/1.1\" 206");
  size_t resolved = 0;
  for (size_t at = log.find("/resolve/"); at != std::string::npos; at = log.find("/resolve/", at + 1)) ++resolved;
  EXPECT_EQ(resolved, 2U);  // once a file
  // The configuration's name leads to the same files; the plain files know no README.
  EXPECT_EQ(names_of(storage.list("hf://datasets/org/web/sample/10BT/*.parquet", kinds)), names_of(files));
}

TEST_F(Nginx, its_pages_of_links_are_folders) {
  Storage storage(fast());
  const auto files = storage.list(fmt::format("http://127.0.0.1:{}/pages/", hub_), kinds);
  ASSERT_EQ(names_of(files), (std::vector<std::string>{"a b.txt", "c&d.jsonl"}));
  EXPECT_EQ(read_all(*storage.open(files[0])), "one");
  EXPECT_EQ(storage.read(fmt::format("http://127.0.0.1:{}/pages/c&d.jsonl", hub_), 10), "{}");
}

}  // namespace
}  // namespace mythos::test
