#include "data/speed.h"

#include "base/error.h"
#include "base/file.h"
#include "base/random.h"
#include "data/loader.h"

#include <arrow/api.h>
#include <arrow/io/file.h>
#include <netinet/in.h>
#include <parquet/arrow/writer.h>
#include <parquet/properties.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <ctime>
#include <thread>
#include <utility>

namespace mythos {
namespace fs = std::filesystem;

namespace {

constexpr size_t rows_of_group = 1000;

void check(const arrow::Status& status) {
  if (!status.ok()) throw failure(fmt::format("cannot write Parquet: {}", status.message()));
}

template <class Builder, class Value>
std::shared_ptr<arrow::Array> column(size_t n, const Value& value) {
  Builder builder;
  for (size_t i = 0; i < n; ++i) check(builder.Append(value(i)));
  std::shared_ptr<arrow::Array> array;
  check(builder.Finish(&array));
  return array;
}

std::shared_ptr<arrow::Schema> fineweb_schema() {
  return arrow::schema({arrow::field("text", arrow::utf8()), arrow::field("id", arrow::utf8()),
                        arrow::field("dump", arrow::utf8()), arrow::field("url", arrow::utf8()),
                        arrow::field("file_path", arrow::utf8()), arrow::field("language", arrow::utf8()),
                        arrow::field("language_score", arrow::float64()), arrow::field("token_count", arrow::int64()),
                        arrow::field("score", arrow::float64()), arrow::field("int_score", arrow::int64())});
}

void write_file(const fs::path& path, std::span<const std::string> documents, size_t first) {
  const auto schema = fineweb_schema();
  const auto properties = parquet::WriterProperties::Builder().compression(parquet::Compression::SNAPPY)->build();
  const auto opened = arrow::io::FileOutputStream::Open(path.string());
  check(opened.status());
  auto writer = parquet::arrow::FileWriter::Open(*schema, arrow::default_memory_pool(), *opened, properties);
  check(writer.status());
  for (size_t at = 0; at < documents.size(); at += rows_of_group) {
    const auto group = documents.subspan(at, std::min(rows_of_group, documents.size() - at));
    const size_t n = group.size();
    const auto id = [&](size_t i) { return fmt::format("<urn:uuid:{:032x}>", first + at + i); };
    using arrow::StringBuilder;
    const auto table = arrow::Table::Make(
        schema,
        {column<StringBuilder>(n, [&](size_t i) { return group[i]; }), column<StringBuilder>(n, id),
         column<StringBuilder>(n, [](size_t) { return "CC-MAIN-2024-10"; }),
         column<StringBuilder>(n, [&](size_t i) { return fmt::format("https://example.org/page/{}", first + at + i); }),
         column<StringBuilder>(n, [](size_t i) { return fmt::format("crawl-data/segment-{}.warc.gz", i % 7); }),
         column<StringBuilder>(n, [](size_t) { return "en"; }),
         column<arrow::DoubleBuilder>(n, [](size_t i) { return 0.9 + 1e-4 * static_cast<double>(i); }),
         column<arrow::Int64Builder>(n, [&](size_t i) { return static_cast<int64_t>(group[i].size() / 4); }),
         column<arrow::DoubleBuilder>(n, [](size_t i) { return 2.5 + 1e-3 * static_cast<double>(i); }),
         column<arrow::Int64Builder>(n, [](size_t i) { return static_cast<int64_t>(3 + i % 2); })});
    check((*writer)->WriteTable(*table, static_cast<int64_t>(rows_of_group)));
  }
  check((*writer)->Close());
  check((*opened)->Close());
}

double cpu_seconds() {
  timespec t{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

class Watch {
 public:
  void stop(StreamSpeed& speed) const {
    speed.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
    speed.cpu_seconds = cpu_seconds() - cpu_;
  }

 private:
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  double cpu_ = cpu_seconds();
};

// A port that is free now. Somebody may take it before nginx does; then nginx says so.
int free_port() {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  const bool ok = fd >= 0 && ::bind(fd, reinterpret_cast<sockaddr*>(&address), size) == 0 &&
                  ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0;
  if (fd >= 0) ::close(fd);
  if (!ok) throw failure("there is no free port on the loopback address");
  return ntohs(address.sin_port);
}

bool answers(int port) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  const bool ok = fd >= 0 && ::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
  if (fd >= 0) ::close(fd);
  return ok;
}

std::string find_nginx() {
  for (const char* path : {"/usr/sbin/nginx", "/usr/local/sbin/nginx", "/usr/bin/nginx", "/usr/local/bin/nginx"}) {
    if (::access(path, X_OK) == 0) return path;
  }
  throw failure("there is no nginx on this machine to stream from",
                "install the package nginx-light, or give a source with --source");
}

}  // namespace

std::vector<std::string> make_documents(const std::vector<std::string>& paragraphs, uint64_t bytes, uint64_t seed) {
  Random random(seed);
  std::vector<std::string> documents;
  for (uint64_t made = 0; made < bytes; made += documents.back().size()) {
    // Log-normal lengths, as web pages have.
    const double u = (static_cast<double>(random.below(1 << 20)) + 0.5) / (1 << 20);
    const double v = static_cast<double>(random.below(1 << 20)) / (1 << 20);
    const double normal = std::sqrt(-2 * std::log(u)) * std::cos(6.283185307179586 * v);
    const auto length = static_cast<size_t>(std::min(3000 * std::exp(0.9 * normal), 500'000.0));
    std::string& document = documents.emplace_back();
    // Neighbours stay together, so that a document reads like one.
    for (size_t at = random.below(paragraphs.size()); document.size() < length; at = (at + 1) % paragraphs.size()) {
      if (!document.empty()) document += '\n';
      document += paragraphs[at];
    }
  }
  return documents;
}

void write_fineweb_shaped(const fs::path& folder, const std::vector<std::string>& documents, int files) {
  const fs::path at = folder / "sample" / "10BT";
  make_folder(at);
  const size_t each = (documents.size() + static_cast<size_t>(files) - 1) / static_cast<size_t>(files);
  for (int f = 0; f < files; ++f) {
    const size_t first = std::min(documents.size(), static_cast<size_t>(f) * each);
    write_file(at / fmt::format("{:03}_00000.parquet", f),
               std::span(documents).subspan(first, std::min(each, documents.size() - first)), first);
  }
}

LocalServer::LocalServer(const fs::path& folder) {
  const std::string nginx = find_nginx();
  std::string name = (fs::temp_directory_path() / "mythos-nginx-XXXXXX").string();
  if (::mkdtemp(name.data()) == nullptr) throw failure("cannot create a folder for nginx");
  work_ = name;
  const int port = free_port();
  address_ = fmt::format("http://127.0.0.1:{}", port);
  write_file_atomically(
      work_ / "nginx.conf",
      fmt::format("daemon off;\nmaster_process off;\npid {0}/pid;\nerror_log {0}/error.log;\n"
                  "events {{ worker_connections 256; }}\n"
                  "http {{\n  access_log off;\n  sendfile on;\n  client_body_temp_path {0}/body;\n"
                  "  proxy_temp_path {0}/proxy;\n  fastcgi_temp_path {0}/fastcgi;\n  uwsgi_temp_path {0}/uwsgi;\n"
                  "  scgi_temp_path {0}/scgi;\n"
                  "  server {{ listen 127.0.0.1:{1}; root \"{2}\"; autoindex on; }}\n}}\n",
                  work_.string(), port, fs::absolute(folder).string()));
  const std::string conf = (work_ / "nginx.conf").string();
  process_ = ::fork();
  if (process_ == 0) {
    ::execl(nginx.c_str(), "nginx", "-p", work_.c_str(), "-c", conf.c_str(), "-e", "/dev/null", nullptr);
    ::_exit(127);
  }
  for (int i = 0; i < 100 && process_ > 0; ++i) {
    if (answers(port)) return;
    int status = 0;
    if (::waitpid(process_, &status, WNOHANG) == process_) process_ = -1;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  std::string why;
  try {
    why = read_file(work_ / "error.log", 1 << 20);
  } catch (const Error&) {
  }
  stop();
  throw failure(fmt::format("nginx did not start: {}", why.substr(0, why.find('\n'))));
}

LocalServer::~LocalServer() { stop(); }

void LocalServer::stop() {
  if (process_ > 0) {
    ::kill(process_, SIGTERM);
    ::waitpid(process_, nullptr, 0);
    process_ = -1;
  }
  std::error_code ignored;
  if (!work_.empty()) fs::remove_all(work_, ignored);
}

StreamSpeed measure_stream(const DataOptions& options, const Encoder& encoder) {
  StreamSpeed speed;
  const Watch watch;
  RowLoader loader(options, encoder);
  std::vector<int32_t> row(static_cast<size_t>(options.seq_len) + 1);
  while (loader.next(row)) speed.tokens += std::ssize(row);
  watch.stop(speed);
  speed.text_bytes = loader.totals().bytes;
  speed.waited = loader.seconds_waited();
  return speed;
}

StreamSpeed measure_encoding(const std::vector<std::string>& documents, const Encoder& encoder) {
  StreamSpeed speed;
  const Watch watch;
  std::vector<int32_t> ids;
  for (const std::string& document : documents) {
    ids.clear();
    encoder.encode(document, ids);
    speed.tokens += std::ssize(ids);
    speed.text_bytes += std::ssize(document);
  }
  watch.stop(speed);
  return speed;
}

Json to_json(const StreamSpeed& speed) {
  return {{"tokens", speed.tokens},
          {"text_bytes", speed.text_bytes},
          {"seconds", speed.seconds},
          {"cpu_seconds", speed.cpu_seconds},
          {"cores_used", speed.cores()},
          {"tokens_per_s", speed.tokens_per_second()},
          {"tokens_per_core_s", speed.tokens_per_core_second()}};
}

}  // namespace mythos
