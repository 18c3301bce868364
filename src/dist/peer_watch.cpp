#include "dist/peer_watch.h"

#include "base/error.h"
#include "base/log.h"
#include "base/machine.h"
#include "base/signals.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace mythos {
namespace {

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point t) { return std::chrono::duration<double>(Clock::now() - t).count(); }

enum class Kind : int32_t { alive, leaving, failed, end };

// One message. All ranks run the same program on machines of one kind.
struct Message {
  uint64_t secret = 0;
  Kind kind = Kind::alive;
  int32_t rank = 0;
  int32_t stop = 0;  // the signal that asked this rank to stop, or asked another one
  int32_t unused = 0;
  int64_t step = 0;
  int64_t process = 0;
  std::array<char, 64> host{};
};

class Socket {
 public:
  Socket() = default;
  explicit Socket(int fd) : fd_(fd) {}
  ~Socket() { close(); }
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    close();
    fd_ = std::exchange(other.fd_, -1);
    return *this;
  }
  void close() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }
  [[nodiscard]] int fd() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

// What one rank is known to be.
struct Peer {
  Socket socket;
  Message last;
  std::string part;  // of a message
  Clock::time_point heard = Clock::now();
  bool known = false;
  bool left = false;
  bool closed = false;
};

void send(const Socket& socket, const Message& message) {
  // Small enough for any socket's buffer; one that is full belongs to a process that will be missed soon.
  if (socket) (void)::send(socket.fd(), &message, sizeof message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

// Whole messages that have come; sets `closed` when there will be no more.
std::vector<Message> receive(Peer& peer, uint64_t secret) {
  std::array<char, 4096> buffer;
  for (;;) {
    const ssize_t n = ::recv(peer.socket.fd(), buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) break;
    if (n <= 0) {
      peer.closed = true;
      break;
    }
    peer.part.append(buffer.data(), static_cast<size_t>(n));
  }
  std::vector<Message> messages;
  size_t at = 0;
  for (; peer.part.size() - at >= sizeof(Message); at += sizeof(Message)) {
    std::memcpy(static_cast<void*>(&messages.emplace_back()), peer.part.data() + at, sizeof(Message));
    if (messages.back().secret != secret) {  // not one of ours
      messages.pop_back();
      peer.closed = true;
      break;
    }
  }
  peer.part.erase(0, at);
  return messages;
}

// Every address of this machine that another may reach it at; its own loopback last.
std::string addresses() {
  std::string outside, loopback;
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return "127.0.0.1";
  for (const ifaddrs* a = list; a != nullptr; a = a->ifa_next) {
    if (a->ifa_addr == nullptr || a->ifa_addr->sa_family != AF_INET || (a->ifa_flags & IFF_UP) == 0) continue;
    sockaddr_in address{};
    std::memcpy(&address, a->ifa_addr, sizeof address);
    std::array<char, INET_ADDRSTRLEN> text{};
    ::inet_ntop(AF_INET, &address.sin_addr, text.data(), text.size());
    ((a->ifa_flags & IFF_LOOPBACK) != 0 ? loopback : outside) += std::string(text.data()) + " ";
  }
  ::freeifaddrs(list);
  return outside + loopback;
}

Socket connect_to(const std::string& address, uint16_t port, double seconds) {
  Socket socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(port);
  if (!socket || ::inet_pton(AF_INET, address.c_str(), &to.sin_addr) != 1) return {};
  if (::connect(socket.fd(), reinterpret_cast<const sockaddr*>(&to), sizeof to) != 0 && errno != EINPROGRESS) return {};
  pollfd wanted{socket.fd(), POLLOUT, 0};
  if (::poll(&wanted, 1, static_cast<int>(seconds * 1000)) != 1) return {};
  int error = 0;
  socklen_t size = sizeof error;
  if (::getsockopt(socket.fd(), SOL_SOCKET, SO_ERROR, &error, &size) != 0 || error != 0) return {};
  return socket;
}

}  // namespace

struct PeerWatch::Impl {
  int64_t rank = 0, size = 1;
  uint64_t secret = 0;
  Socket listening;
  std::vector<Peer> peers;    // rank 0: by rank; others: rank 0 alone
  std::vector<Peer> unknown;  // rank 0: connected, and not yet said who they are
  std::atomic<double> timeout{60};
  std::atomic<int64_t> step{0};
  std::atomic<bool> stop{false};
  std::atomic<bool> leaving{false};
  std::thread thread;

  [[nodiscard]] Message own(Kind kind) const {
    Message m{secret, kind, static_cast<int32_t>(rank), stop_signal(), 0, step, ::getpid(), {}};
    const std::string host = host_name();
    std::memcpy(m.host.data(), host.data(), std::min(host.size(), m.host.size() - 1));
    return m;
  }

  [[noreturn]] void lost(const Peer& peer, int64_t who, const std::string& how) {
    const std::string is = peer.known ? fmt::format("rank {} of {} (process {} on {})", who, size, peer.last.process,
                                                    peer.last.host.data())
                                      : fmt::format("rank {} of {}", who, size);
    log::live_line("");
    log::error("{} {} in step {}: this rank ends too (start the run again, and it goes on from its last checkpoint)",
               is, how, std::max<int64_t>(peer.last.step, step));
    for (const Peer& other : peers) send(other.socket, own(Kind::end));
    std::_Exit(1);
  }

  // Ends the process if this rank is gone.
  void judge(Peer& peer, int64_t who) {
    if (peer.left || leaving) return;
    if (peer.known && peer.last.kind == Kind::end) std::_Exit(1);  // rank 0 has said why
    if (peer.known && peer.last.kind == Kind::failed) lost(peer, who, "has failed (its own message says why)");
    if (peer.closed && peer.known) lost(peer, who, "has died");
    const double silent = seconds_since(peer.heard);
    if (silent > timeout) lost(peer, who, fmt::format("was not heard of for {:.0f} s", silent));
  }

  void hear(Peer& peer, const std::vector<Message>& messages) {
    for (const Message& m : messages) {
      peer.last = m;
      peer.last.host.back() = 0;
      peer.known = true;
      peer.heard = Clock::now();
      peer.left = peer.left || m.kind == Kind::leaving;
      if (m.stop != 0) request_stop(m.stop);
    }
  }

  void accept_one() {
    Socket socket(::accept4(listening.fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket || unknown.size() > 4096) return;
    unknown.emplace_back().socket = std::move(socket);
  }

  // Who has said its name takes its place.
  void sort_unknown() {
    std::erase_if(unknown, [&](Peer& peer) {
      hear(peer, receive(peer, secret));
      if (!peer.known) return peer.closed || seconds_since(peer.heard) > 60;
      const int64_t r = peer.last.rank;
      if (r > 0 && r < size && !peers[static_cast<size_t>(r)].known) peers[static_cast<size_t>(r)] = std::move(peer);
      return true;
    });
  }

  void watch() {
    Clock::time_point told{};
    while (!stop) {
      std::vector<pollfd> wanted;
      if (listening) wanted.push_back({listening.fd(), POLLIN, 0});
      for (auto* list : {&peers, &unknown}) {
        for (const Peer& p : *list) {
          if (p.socket && !p.closed) wanted.push_back({p.socket.fd(), POLLIN, 0});
        }
      }
      const double beat = std::min(1.0, timeout / 5);
      ::poll(wanted.data(), wanted.size(), static_cast<int>(std::min(0.2, beat) * 1000));
      if (listening && (wanted.front().revents & POLLIN) != 0) accept_one();
      sort_unknown();
      for (Peer& p : peers) {
        if (p.socket && !p.closed) hear(p, receive(p, secret));
      }
      for (size_t i = 0; i < peers.size(); ++i) {
        if (rank == 0 && i == 0) continue;
        judge(peers[i], rank == 0 ? static_cast<int64_t>(i) : 0);
      }
      if (seconds_since(told) < beat) continue;
      told = Clock::now();
      for (const Peer& p : peers) send(p.socket, own(Kind::alive));
    }
  }
};

PeerWatch::PeerWatch(Communicator& world, double timeout_seconds) : impl_(std::make_unique<Impl>()) {
  Impl& w = *impl_;
  w.rank = world.rank();
  w.size = world.size();
  w.timeout = timeout_seconds;
  std::string where;
  if (w.rank == 0) {
    w.listening = Socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    sockaddr_in any{};
    any.sin_family = AF_INET;
    socklen_t size = sizeof any;
    auto* address = reinterpret_cast<sockaddr*>(&any);
    if (w.listening && ::bind(w.listening.fd(), address, size) == 0 && ::listen(w.listening.fd(), 4096) == 0 &&
        ::getsockname(w.listening.fd(), address, &size) == 0) {
      std::random_device random;
      w.secret = (uint64_t{random()} << 32) | random();
      where = fmt::format("{} {} {}", w.secret, ntohs(any.sin_port), addresses());
    }
  }
  where = text_of(world, 0, where);
  if (where.empty()) throw failure("rank 0 cannot listen for the other ranks' signs of life");
  if (w.rank == 0) {
    w.peers = std::vector<Peer>(static_cast<size_t>(w.size));
  } else {
    char* rest = nullptr;
    w.secret = std::strtoull(where.c_str(), &rest, 10);
    const auto port = static_cast<uint16_t>(std::strtoul(rest, &rest, 10));
    std::string list = rest;
    Peer peer;
    for (size_t at = 0; !peer.socket && at < list.size();) {
      const size_t end = std::min(list.find(' ', at), list.size());
      if (end > at) peer.socket = connect_to(list.substr(at, end - at), port, 5);
      at = end + 1;
    }
    if (!peer.socket) {
      throw failure(fmt::format("rank {} cannot reach rank 0 on port {} of {}", w.rank, port, list),
                    "let the machines reach each other over TCP");
    }
    w.peers.push_back(std::move(peer));
    send(w.peers[0].socket, w.own(Kind::alive));
  }
  w.thread = std::thread([&w] { w.watch(); });
}

PeerWatch::~PeerWatch() {
  const bool failed = !impl_->leaving;
  impl_->stop = true;
  impl_->thread.join();
  for (const Peer& peer : impl_->peers) send(peer.socket, impl_->own(failed ? Kind::failed : Kind::leaving));
}

void PeerWatch::at_step(int64_t step) { impl_->step = step; }

void PeerWatch::set_timeout(double seconds) { impl_->timeout = seconds; }

void PeerWatch::leave() { impl_->leaving = true; }

}  // namespace mythos
