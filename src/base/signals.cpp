#include "base/signals.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>

namespace mythos {
namespace {

std::atomic<int> requested{0};
std::atomic<bool> signalled{false};
std::atomic<bool> save_wanted{false};
static_assert(std::atomic<int>::is_always_lock_free, "a signal handler may only touch lock-free atomics");

extern "C" void on_stop_signal(int number) {
  request_stop(number);
  if (!signalled.exchange(true)) return;
  // A closing terminal hangs up twice, once through the shell: that is no second wish.
  if (number != SIGHUP) ::_exit(128 + number);
}

extern "C" void on_save_signal(int) { save_wanted = true; }
extern "C" void on_rank_signal(int) { request_stop(SIGTERM); }

}  // namespace

void install_stop_handlers() {
  struct sigaction action {};
  action.sa_handler = on_stop_signal;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction old {};
    ::sigaction(number, nullptr, &old);
    if (number == SIGHUP && old.sa_handler == SIG_IGN) continue;  // started with nohup: go on when the terminal goes
    ::sigaction(number, &action, nullptr);
  }
  ::signal(SIGPIPE, SIG_IGN);
  ::signal(SIGXFSZ, SIG_IGN);
  ::signal(SIGTTOU, SIG_IGN);
}

void install_save_handler() {
  struct sigaction action {};
  action.sa_handler = on_save_signal;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  ::sigaction(SIGUSR1, &action, nullptr);
}

void install_rank_handler() {
  struct sigaction action {};
  action.sa_handler = on_rank_signal;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  ::sigaction(SIGUSR2, &action, nullptr);
}

bool take_save_request() noexcept { return save_wanted.exchange(false); }

void request_stop(int number) noexcept {
  int expected = 0;
  requested.compare_exchange_strong(expected, number);
}

int stop_signal() noexcept { return requested.load(std::memory_order_relaxed); }

void clear_stop_request() noexcept {
  requested.store(0);
  signalled.store(false);
}

}  // namespace mythos
