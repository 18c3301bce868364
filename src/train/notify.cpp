#include "train/notify.h"

#include "base/log.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

extern char** environ;

namespace mythos {
namespace fs = std::filesystem;
namespace {

using Clock = std::chrono::steady_clock;
constexpr size_t most_output = size_t{64} << 10;

struct Message {
  RunEvent event = RunEvent::finish;
  int64_t step = 0;
  std::string text;
};

// The environment with these variables instead of what they were.
std::vector<std::string> environment_with(const std::vector<std::pair<std::string, std::string>>& more) {
  std::vector<std::string> out;
  for (char** e = environ; *e != nullptr; ++e) {
    const std::string_view entry(*e);
    bool replaced = false;
    for (const auto& [name, value] : more) replaced = replaced || entry.starts_with(name + "=");
    if (!replaced) out.emplace_back(entry);
  }
  for (const auto& [name, value] : more) out.push_back(name + "=" + value);
  return out;
}

// Starts the command; its output comes from `output`. Returns 0, or an errno.
int start(const std::string& command, std::vector<std::string> environment, int output, pid_t& pid) {
  posix_spawn_file_actions_t files;
  posix_spawnattr_t attributes;
  ::posix_spawn_file_actions_init(&files);
  ::posix_spawnattr_init(&attributes);
  ::posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_adddup2(&files, output, STDOUT_FILENO);
  ::posix_spawn_file_actions_adddup2(&files, output, STDERR_FILENO);
  // A group of its own: Ctrl-C does not reach it, and it can be ended as a whole. Signals as a program expects them.
  sigset_t all, none;
  ::sigfillset(&all);
  ::sigemptyset(&none);
  ::posix_spawnattr_setpgroup(&attributes, 0);
  ::posix_spawnattr_setsigdefault(&attributes, &all);
  ::posix_spawnattr_setsigmask(&attributes, &none);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK);
  std::string shell = "sh", option = "-c", text = command;
  char* arguments[] = {shell.data(), option.data(), text.data(), nullptr};
  std::vector<char*> variables;
  for (auto& v : environment) variables.push_back(v.data());
  variables.push_back(nullptr);
  const int error = ::posix_spawn(&pid, "/bin/sh", &files, &attributes, arguments, variables.data());
  ::posix_spawn_file_actions_destroy(&files);
  ::posix_spawnattr_destroy(&attributes);
  return error;
}

void log_output(const std::string& output) {
  for (size_t begin = 0; begin < output.size();) {
    const size_t end = std::min(output.find('\n', begin), output.size());
    if (end > begin) log::info("run.notify: {}", std::string_view(output).substr(begin, end - begin));
    begin = end + 1;
  }
}

}  // namespace

std::string_view to_string(RunEvent event) {
  switch (event) {
    case RunEvent::finish:
      return "finish";
    case RunEvent::crash:
      return "crash";
    case RunEvent::stop:
      return "stop";
    case RunEvent::rollback:
      return "rollback";
    case RunEvent::low_disk:
      return "low_disk";
  }
  return "";
}

struct Notifier::Impl {
  Impl(std::string c, fs::path r, double l)
      : command(std::move(c)), run(std::move(r)), limit(l), thread([this] { work(); }) {}
  ~Impl() {
    {
      const std::lock_guard lock(mutex);
      ending = true;
    }
    wake.notify_all();
    thread.join();
  }

  void work() {
    // Signals are for the thread that trains.
    sigset_t all;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_BLOCK, &all, nullptr);
    std::unique_lock lock(mutex);
    while (true) {
      wake.wait(lock, [this] { return ending || !queue.empty(); });
      if (queue.empty()) return;
      const Message message = std::move(queue.front());
      queue.pop_front();
      lock.unlock();
      tell(message);
      lock.lock();
    }
  }

  void tell(const Message& m) const {
    const auto complain = [&](const std::string& why) {
      log::warn("run.notify of '{}' {}; the run is not affected", to_string(m.event), why);
    };
    int pipe[2];
    if (::pipe2(pipe, O_CLOEXEC) != 0) return complain(fmt::format("was not started: {}", std::strerror(errno)));
    pid_t pid = 0;
    const int error = start(command,
                            environment_with({{"MYTHOS_EVENT", std::string(to_string(m.event))},
                                              {"MYTHOS_RUN", run.string()},
                                              {"MYTHOS_STEP", std::to_string(m.step)},
                                              {"MYTHOS_MESSAGE", m.text}}),
                            pipe[1], pid);
    ::close(pipe[1]);
    if (error != 0) {
      ::close(pipe[0]);
      return complain(fmt::format("was not started: {}", std::strerror(error)));
    }
    const auto end = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(limit));
    std::string output;
    int status = 0;
    bool ended = false;
    // Something it left running in the background may keep the pipe open: what counts is the command itself.
    for (bool open = true; !ended && Clock::now() < end;) {
      pollfd waiting{pipe[0], POLLIN, 0};
      if (open) {
        ::poll(&waiting, 1, 50);
      } else {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
      }
      if (open && waiting.revents != 0) open = take(pipe[0], output);
      ended = ::waitpid(pid, &status, WNOHANG) == pid;
    }
    if (!ended) {
      ::kill(-pid, SIGKILL);
      ::waitpid(pid, &status, 0);
    }
    for (pollfd waiting{pipe[0], POLLIN, 0}; ::poll(&waiting, 1, 0) == 1 && take(pipe[0], output);) {
    }
    ::close(pipe[0]);
    log_output(output);
    if (!ended) {
      complain(fmt::format("took longer than {} s and was ended", limit));
    } else if (WIFSIGNALED(status)) {
      complain(fmt::format("was ended by signal {}", WTERMSIG(status)));
    } else if (WEXITSTATUS(status) != 0) {
      complain(fmt::format("failed with exit code {}", WEXITSTATUS(status)));
    }
  }

  // False at the end of the output.
  static bool take(int fd, std::string& output) {
    char buffer[4096];
    const ssize_t n = ::read(fd, buffer, sizeof(buffer));
    if (n < 0) return errno == EINTR || errno == EAGAIN;
    if (n == 0) return false;
    if (output.size() < most_output) output.append(buffer, static_cast<size_t>(n));
    return true;
  }

  std::string command;
  fs::path run;
  double limit;
  std::mutex mutex;
  std::condition_variable wake;
  std::deque<Message> queue;
  bool ending = false;
  std::thread thread;  // last: it uses all of the above
};

Notifier::Notifier(std::string command, const fs::path& run, double limit_seconds) {
  std::error_code ec;
  if (!command.empty()) impl_ = std::make_unique<Impl>(std::move(command), fs::absolute(run, ec), limit_seconds);
}
Notifier::~Notifier() = default;

void Notifier::send(RunEvent event, int64_t step, std::string message) {
  if (!impl_) return;
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->queue.push_back({event, step, std::move(message)});
  }
  impl_->wake.notify_all();
}

}  // namespace mythos
