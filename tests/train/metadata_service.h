// EC2's metadata service as far as spot notices go, on a loopback port.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace mythos::testing {

class MetadataService {
 public:
  struct Behaviour {
    std::string notice;        ///< the body of instance-action; "": 404
    int after = 0;             ///< so many requests for it are answered 404 first
    bool knows_tokens = true;  ///< else IMDSv1: PUT is 405, and GET needs no token
    int expire_after = 0;      ///< a token is good for so many requests; 0: for ever
  };

  explicit MetadataService(Behaviour behaviour) : behaviour_(std::move(behaviour)) {
    listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    if (::bind(listener_, reinterpret_cast<sockaddr*>(&address), size) != 0 || ::listen(listener_, 16) != 0 ||
        ::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
      throw std::runtime_error("no loopback server");
    }
    port_ = ntohs(address.sin_port);
    thread_ = std::jthread([this](const std::stop_token& stop) { serve(stop); });
  }
  ~MetadataService() {
    thread_.request_stop();
    thread_.join();
    ::close(listener_);
  }
  MetadataService(const MetadataService&) = delete;
  MetadataService& operator=(const MetadataService&) = delete;

  [[nodiscard]] std::string address() const { return "http://127.0.0.1:" + std::to_string(port_); }
  /// "PUT /latest/api/token 200", ...
  [[nodiscard]] std::vector<std::string> log() const {
    const std::lock_guard lock(mutex_);
    return log_;
  }

 private:
  void serve(const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      pollfd waiting{listener_, POLLIN, 0};
      if (::poll(&waiting, 1, 20) != 1) continue;
      const int connection = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
      std::string request;
      char buffer[4096];
      while (request.find("\r\n\r\n") == std::string::npos) {
        const ssize_t n = ::read(connection, buffer, sizeof(buffer));
        if (n <= 0) break;
        request.append(buffer, static_cast<size_t>(n));
      }
      answer(connection, request);
      ::close(connection);
    }
  }

  void answer(int connection, const std::string& request) {
    const std::string line = request.substr(0, request.find(" HTTP/"));
    int status = 404;
    std::string body = "<html>not found</html>";
    const bool has_token = token_ > 0 && request.find("X-aws-ec2-metadata-token: token" + std::to_string(token_) +
                                                      "\r\n") != std::string::npos;
    if (line == "PUT /latest/api/token") {
      const bool asked_well = request.find("X-aws-ec2-metadata-token-ttl-seconds: ") != std::string::npos;
      status = !behaviour_.knows_tokens ? 405 : asked_well ? 200 : 400;
      if (status == 200) body = "token" + std::to_string(++token_);
      uses_ = 0;
    } else if (line == "GET /latest/meta-data/spot/instance-action") {
      if (behaviour_.knows_tokens &&
          (!has_token || (behaviour_.expire_after > 0 && uses_++ >= behaviour_.expire_after))) {
        status = 401;
      } else if (asked_++ >= behaviour_.after && !behaviour_.notice.empty()) {
        status = 200;
        body = behaviour_.notice;
      }
    }
    const std::string text = "HTTP/1.1 " + std::to_string(status) +
                             " x\r\nContent-Length: " + std::to_string(body.size()) + "\r\nConnection: close\r\n\r\n" +
                             body;
    [[maybe_unused]] const ssize_t n = ::send(connection, text.data(), text.size(), MSG_NOSIGNAL);
    const std::lock_guard lock(mutex_);
    log_.push_back(line + " " + std::to_string(status));
  }

  Behaviour behaviour_;
  int listener_ = -1;
  int port_ = 0;
  int token_ = 0, uses_ = 0, asked_ = 0;  // of the serving thread
  mutable std::mutex mutex_;
  std::vector<std::string> log_;
  std::jthread thread_;
};

}  // namespace mythos::testing
