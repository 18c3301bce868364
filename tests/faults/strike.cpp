// Loaded into the program with LD_PRELOAD: makes one of its system calls the last thing it does, or lets calls fail as
// a full, broken or read-only disk does, or moves the clock. Told by its environment:
//   MYTHOS_STRIKE="ACT CLASS AT"  ACT: kill (before the call), killed (after it), short (half of a write is done),
//                                 ERRNO (this call fails), ERRNO+ (this one and all that change something after it)
//                                 CLASS: write (fallocate, too), sync, rename, unlink, open, any
//                                 AT: the call's number, from 1, of those below MYTHOS_STRIKE_FOLDER
//   MYTHOS_CLOCK="AT SECONDS"     from the clock's reading number AT on it is SECONDS off
//   MYTHOS_SLOW=BYTES_PER_SECOND  what is written below MYTHOS_STRIKE_FOLDER takes so long
//   MYTHOS_STRIKE_REPORT=FILE     is created when the strike takes place
#include <dlfcn.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>

namespace {

template <typename F>
F* next(const char* name) {
  return reinterpret_cast<F*>(::dlsym(RTLD_NEXT, name));
}

struct Plan {
  std::string folder, act, kind, report;
  long at = 0;
  int error = 0;
  bool sticky = false;
  long clock_at = 0, clock_off = 0;
  double bytes_per_second = 0;

  Plan() {
    if (const char* text = ::getenv("MYTHOS_STRIKE"); text != nullptr) {
      char act_text[32] = "", kind_text[32] = "";
      if (std::sscanf(text, "%31s %31s %ld", act_text, kind_text, &at) != 3) std::abort();
      act = act_text;
      kind = kind_text;
      sticky = act.ends_with("+");
      error = std::atoi(act.c_str());
    }
    if (const char* text = ::getenv("MYTHOS_STRIKE_FOLDER"); text != nullptr) folder = text;
    if (const char* text = ::getenv("MYTHOS_STRIKE_REPORT"); text != nullptr) report = text;
    if (const char* text = ::getenv("MYTHOS_SLOW"); text != nullptr) bytes_per_second = std::atof(text);
    if (const char* text = ::getenv("MYTHOS_CLOCK"); text != nullptr) {
      if (std::sscanf(text, "%ld %ld", &clock_at, &clock_off) != 2) std::abort();
    }
  }
};
const Plan& plan() {
  static const Plan p;
  return p;
}
std::atomic<long> calls{0}, readings{0};

bool below_folder(std::string_view path) { return !plan().folder.empty() && path.starts_with(plan().folder); }
bool below_folder(int fd) {
  if (plan().at == 0 && plan().bytes_per_second == 0) return false;
  char link[64], path[PATH_MAX];
  std::snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  const ssize_t n = ::readlink(link, path, sizeof path);
  return n > 0 && below_folder(std::string_view(path, static_cast<size_t>(n)));
}

void note() {
  if (plan().report.empty()) return;
  ::close(::open(plan().report.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644));
}

enum class Strike { none, fails, after, half };
// What happens to this call of a kind; does not come back where it is to be the last thing.
Strike strike(std::string_view kind, bool counts) {
  const Plan& p = plan();
  if (p.at == 0 || !counts || (p.kind != "any" && p.kind != kind)) return Strike::none;
  const long n = ++calls;
  if (n < p.at || (n > p.at && !p.sticky)) return Strike::none;
  if (n == p.at) note();
  if (p.act == "kill") ::kill(::getpid(), SIGKILL);
  if (p.act == "killed") return Strike::after;
  if (p.act == "short") return Strike::half;
  errno = p.error;
  return Strike::fails;
}
// As long as a slow disk takes for it.
void dawdle(bool below, size_t bytes) {
  if (plan().bytes_per_second == 0 || !below) return;
  ::usleep(static_cast<useconds_t>(static_cast<double>(bytes) / plan().bytes_per_second * 1e6));
}
template <typename T>
T then(Strike s, T result) {
  if (s == Strike::after) ::kill(::getpid(), SIGKILL);
  return result;
}
bool changes(int flags) { return (flags & O_ACCMODE) != O_RDONLY; }

}  // namespace

extern "C" {
ssize_t write(int fd, const void* data, size_t size) {
  static const auto real = next<ssize_t(int, const void*, size_t)>("write");
  const bool below = fd > 2 && below_folder(fd);
  dawdle(below, size);
  const Strike s = strike("write", below);
  if (s == Strike::fails) return -1;
  return then(s, real(fd, data, s == Strike::half ? (size + 1) / 2 : size));
}
ssize_t pwrite(int fd, const void* data, size_t size, off_t at) {
  static const auto real = next<ssize_t(int, const void*, size_t, off_t)>("pwrite");
  const bool below = below_folder(fd);
  dawdle(below, size);
  const Strike s = strike("write", below);
  if (s == Strike::fails) return -1;
  return then(s, real(fd, data, s == Strike::half ? (size + 1) / 2 : size, at));
}
int fallocate(int fd, int mode, off_t at, off_t size) {
  static const auto real = next<int(int, int, off_t, off_t)>("fallocate");
  const Strike s = strike("write", below_folder(fd));
  return s == Strike::fails ? -1 : then(s, real(fd, mode, at, size));
}
int fsync(int fd) {
  static const auto real = next<int(int)>("fsync");
  const Strike s = strike("sync", below_folder(fd));
  return s == Strike::fails ? -1 : then(s, real(fd));
}
int rename(const char* from, const char* to) {
  static const auto real = next<int(const char*, const char*)>("rename");
  const Strike s = strike("rename", below_folder(to));
  return s == Strike::fails ? -1 : then(s, real(from, to));
}
int unlink(const char* path) {
  static const auto real = next<int(const char*)>("unlink");
  const Strike s = strike("unlink", below_folder(path));
  return s == Strike::fails ? -1 : then(s, real(path));
}
int remove(const char* path) {
  static const auto real = next<int(const char*)>("remove");
  const Strike s = strike("unlink", below_folder(path));
  return s == Strike::fails ? -1 : then(s, real(path));
}
int open(const char* path, int flags, ...) {
  static const auto real = next<int(const char*, int, ...)>("open");
  va_list list;
  va_start(list, flags);
  const mode_t mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(list, mode_t) : 0;
  va_end(list);
  const Strike s = strike("open", changes(flags) && below_folder(path));
  return s == Strike::fails ? -1 : then(s, real(path, flags, mode));
}
int clock_gettime(clockid_t clock, timespec* t) {
  static const auto real = next<int(clockid_t, timespec*)>("clock_gettime");
  const int result = real(clock, t);
  if (clock == CLOCK_REALTIME && plan().clock_at > 0 && ++readings >= plan().clock_at) {
    if (readings == plan().clock_at) note();
    t->tv_sec += plan().clock_off;
  }
  return result;
}
time_t time(time_t* out) {
  timespec t{};
  clock_gettime(CLOCK_REALTIME, &t);
  if (out != nullptr) *out = t.tv_sec;
  return t.tv_sec;
}
}
