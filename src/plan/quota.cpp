#include "plan/quota.h"

#include "base/error.h"
#include "base/units.h"
#include "plan/entry.h"

#include <fcntl.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>

extern char** environ;

namespace mythos {
namespace {

std::string read_command(const QuotaAdvice& a) {
  return fmt::format(
      "aws service-quotas get-service-quota --service-code ec2 --quota-code {} --region {} --query Quota.Value",
      a.quota.code, a.region);
}
std::string request_command(const QuotaAdvice& a, int64_t value) {
  return fmt::format(
      "aws service-quotas request-service-quota-increase --service-code ec2 --quota-code {} --desired-value {} "
      "--region {}",
      a.quota.code, value, a.region);
}
std::string history_command(const QuotaAdvice& a) {
  return fmt::format(
      "aws service-quotas list-requested-service-quota-change-history-by-quota --service-code ec2 --quota-code {} "
      "--region {}",
      a.quota.code, a.region);
}

// The values approved in a region: those below what is needed, the first that covers it, and where that leaves no room
// for a second machine (a stopped one may count for a while) the next.
std::vector<int64_t> ladder_of(const std::vector<QuotaRequest>& known, const std::string& region, int64_t needed) {
  std::vector<int64_t> approved;
  for (const QuotaRequest& r : known) {
    if (r.region == region && r.approved()) approved.push_back(r.asked);
  }
  std::sort(approved.begin(), approved.end());
  std::vector<int64_t> ladder;
  for (const int64_t value : approved) {
    const bool covered = !ladder.empty() && ladder.back() > needed;
    if (covered) break;
    ladder.push_back(value);
  }
  if (ladder.empty() || ladder.back() < needed) return {};
  // A small machine needs no climbing: the first value that covers it is asked for at once.
  if (ladder.front() >= needed) ladder.resize(1);
  return ladder;
}

std::string outcome(const QuotaRequest& r) {
  std::string text = r.approved()     ? "approved"
                     : r.granted == 0 ? "refused: only through the account team"
                                      : fmt::format("{} given", r.granted);
  if (r.hours) text += fmt::format(", after {}", duration_text(*r.hours * 3600));
  return text;
}

}  // namespace

QuotaBook QuotaBook::built_in() { return parse(built_in_quotas(), "the built-in quotas"); }

QuotaBook QuotaBook::parse(std::string_view text, const std::string& name) {
  QuotaBook book;
  const Value root = parse_toml(text, name);
  const auto& table = std::get<Value::Table>(root.data);
  for (const Value* v : entries(table, "quota", name)) {
    Entry e(*v, name + ": a [[quota]]");
    Quota q;
    q.name = *e.text("name");
    q.code = *e.text("code");
    q.family = *e.text("family");
    q.spot = *e.flag("spot");
    const Value* const form = e.value("form");
    if (form == nullptr) throw usage_error(fmt::format("{} has no field 'form'", e.place(v->line)));
    Entry f(*form, name + ": form");
    q.form_service = *f.text("service");
    q.form_instances = *f.text("instances");
    q.form_limit = *f.text("limit");
    f.done();
    e.done();
    book.quotas_.push_back(std::move(q));
  }
  for (const Value* v : entries(table, "request", name)) {
    Entry e(*v, name + ": a [[request]]");
    QuotaRequest r;
    r.region = *e.text("region");
    r.date = *e.text("date");
    r.code = *e.text("code");
    r.asked = static_cast<int64_t>(*e.number("asked", 1, 1e6));
    r.granted = static_cast<int64_t>(*e.number("granted", 0, 1e6));
    r.hours = e.number("hours", 0, 1e4, false);
    e.done();
    book.requests_.push_back(std::move(r));
  }
  return book;
}

const Quota* QuotaBook::find(const std::string& family, bool spot) const {
  for (const Quota& q : quotas_) {
    if (q.family == family && q.spot == spot) return &q;
  }
  return nullptr;
}

std::optional<QuotaAdvice> advise_quota(const QuotaBook& book, const Instance& instance, const std::string& region,
                                        bool spot) {
  const Quota* const quota = instance.quota.empty() ? nullptr : book.find(instance.quota, spot);
  if (quota == nullptr) return std::nullopt;
  QuotaAdvice a;
  a.quota = *quota;
  a.region = region;
  a.instance = instance.name;
  a.gpu = instance.gpu;
  a.vcpus_needed = instance.vcpus;
  int64_t most_elsewhere = 0;
  for (const QuotaRequest& r : book.requests()) {
    if (r.code != quota->code) continue;
    a.known.push_back(r);
    if (r.region == region) {
      a.most_known = std::max(a.most_known.value_or(0), r.granted);
    } else if (r.granted > most_elsewhere) {
      most_elsewhere = r.granted;
      a.likelier_region = r.region;
    }
  }
  if (most_elsewhere <= a.most_known.value_or(0)) a.likelier_region.clear();
  std::stable_sort(a.known.begin(), a.known.end(),
                   [&](const auto& x, const auto& y) { return (x.region == region) > (y.region == region); });
  for (const std::string& from : {region, a.likelier_region}) {
    if (from.empty() || !a.ladder.empty()) continue;
    // A region that is known to give less is not asked by another's steps.
    if (from != region && a.most_known) continue;
    a.ladder = ladder_of(a.known, from, a.vcpus_needed);
    if (!a.ladder.empty()) a.ladder_from = from;
  }
  // Less than what was asked for was given: what was given is known to be possible.
  const std::string& granter = a.most_known ? region : a.likelier_region;
  for (const QuotaRequest& r : a.known) {
    if (a.ladder.empty() && r.region == granter && r.granted >= a.vcpus_needed) {
      a.ladder = {r.granted};
      a.ladder_from = granter;
    }
  }
  // Where nothing is on record of this region, the other is no likelier than it is known.
  if (!a.most_known && a.ladder_from.empty()) a.likelier_region.clear();
  return a;
}

std::string use_case_text(const QuotaAdvice& a, const QuotaUse& use) {
  std::string text = fmt::format("We pretrain a language model from scratch: {}. ", use.work);
  text += fmt::format(
      "We need one {} ({}, {} vCPUs) in {}{}", a.instance, a.gpu, a.vcpus_needed, a.region,
      a.quota.spot ? " as a Spot Instance; the job saves checkpoints and goes on after an interruption" : "");
  if (use.hours > 0) {
    text += fmt::format(", for about {}", duration_text(use.hours * 3600));
    if (use.dollars > 0) text += fmt::format(" (about ${:.0f})", use.dollars);
  }
  text +=
      ". It runs once, unattended, and the machine is terminated when it ends. We would like to begin within a week.";
  return text;
}

std::string quota_text(const QuotaAdvice& a, const QuotaUse& use) {
  std::string t =
      fmt::format("quota         {} ({}), unit vCPUs, not machines; a new account has 0\n", a.quota.name, a.quota.code);
  t += fmt::format("  needed      {} in {} for one {}{}\n", a.vcpus_needed, a.region, a.instance,
                   a.instance == "g6e.8xlarge" ? " (a quota of 48 covers one)" : "");
  if (a.present) {
    t += fmt::format("  now         {:g}: {}\n", *a.present,
                     *a.present >= static_cast<double>(a.vcpus_needed) ? "enough" : "not enough");
  }
  if (!a.ladder.empty()) {
    t += fmt::format(
        "  ask for     {}{}{}\n", fmt::join(a.ladder, ", then "),
        a.ladder.size() > 1 ? " (small steps were approved, large ones refused)" : "",
        a.ladder_from != a.region ? fmt::format(", as {} approved; {} is not on record", a.ladder_from, a.region) : "");
  } else if (a.known.empty()) {
    t += fmt::format("  ask for     {}; nothing is on record of this quota\n", a.vcpus_needed);
  } else {
    t +=
        fmt::format("  ask for     {} through the account team: so much is not known to have been approved by itself\n",
                    a.vcpus_needed);
  }
  t += "  when        before anything else: answers took 35 minutes to 7 hours, a refusal costs a day or more\n";
  if (!a.likelier_region.empty()) {
    t += fmt::format("  region      {} is likelier: it granted more of this quota than {}\n", a.likelier_region,
                     a.region);
  }
  if (!a.known.empty()) {
    t += "  on record\n";
    for (const QuotaRequest& r : a.known) {
      t += fmt::format("    {}  {:<15} {:>3} asked: {}\n", r.date, r.region, r.asked, outcome(r));
    }
  }
  t += fmt::format(
      "  form        Service: {}; Region: {}; Primary Instance Type: {}; Limit name: {}; New limit value: {}\n",
      a.quota.form_service, a.region, a.quota.form_instances, a.quota.form_limit,
      a.ladder.empty() ? a.vcpus_needed : a.ladder.front());
  t += "  the account team asks for the workload, the instance type and how many, and the timeline\n";
  t += fmt::format("  use case    {}\n", use_case_text(a, use));
  t += fmt::format("  read it     {}\n", read_command(a));
  for (const int64_t value : a.ladder) t += fmt::format("  request     {}\n", request_command(a, value));
  if (a.ladder.empty()) t += fmt::format("  request     {}\n", request_command(a, a.vcpus_needed));
  t += fmt::format("  follow      {}\n", history_command(a));
  return t;
}

Json to_json(const QuotaAdvice& a, const QuotaUse& use) {
  Json known = Json::array();
  for (const QuotaRequest& r : a.known) {
    known.push_back({{"region", r.region},
                     {"date", r.date},
                     {"asked", r.asked},
                     {"granted", r.granted},
                     {"hours", r.hours ? Json(*r.hours) : Json(nullptr)}});
  }
  Json commands = Json::array({read_command(a)});
  for (const int64_t value : a.ladder) commands.push_back(request_command(a, value));
  if (a.ladder.empty()) commands.push_back(request_command(a, a.vcpus_needed));
  commands.push_back(history_command(a));
  return {{"name", a.quota.name},
          {"code", a.quota.code},
          {"unit", "vCPUs"},
          {"vcpus_needed", a.vcpus_needed},
          {"region", a.region},
          {"spot", a.quota.spot},
          {"present", a.present ? Json(*a.present) : Json(nullptr)},
          {"enough", a.present ? Json(*a.present >= static_cast<double>(a.vcpus_needed)) : Json(nullptr)},
          {"ladder", a.ladder},
          {"likelier_region", a.likelier_region.empty() ? Json(nullptr) : Json(a.likelier_region)},
          {"known_requests", std::move(known)},
          {"use_case", use_case_text(a, use)},
          {"commands", std::move(commands)}};
}

double present_quota(const Quota& quota, const std::string& region) {
  int out[2];
  if (::pipe2(out, O_CLOEXEC) != 0) throw failure(fmt::format("cannot run aws: {}", std::strerror(errno)));
  std::vector<std::string> words = {
      "aws",      "service-quotas", "get-service-quota", "--service-code", "ec2",      "--quota-code", quota.code,
      "--region", region,           "--query",           "Quota.Value",    "--output", "text"};
  std::vector<char*> argv;
  for (auto& w : words) argv.push_back(w.data());
  argv.push_back(nullptr);
  std::vector<char*> environment;
  std::string pager = "AWS_PAGER=";
  for (char** e = environ; *e != nullptr; ++e) {
    if (!std::string_view(*e).starts_with("AWS_PAGER=")) environment.push_back(*e);
  }
  environment.push_back(pager.data());
  environment.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_adddup2(&actions, out[1], 1);
  ::posix_spawn_file_actions_adddup2(&actions, out[1], 2);
  pid_t pid = -1;
  const int error = ::posix_spawnp(&pid, "aws", &actions, nullptr, argv.data(), environment.data());
  ::posix_spawn_file_actions_destroy(&actions);
  ::close(out[1]);
  if (error != 0) {
    ::close(out[0]);
    throw failure(
        error == ENOENT ? "there is no aws command here" : fmt::format("cannot run aws: {}", std::strerror(error)),
        "install the AWS CLI, or read the quota with the command shown above");
  }
  std::string said;
  char buffer[4096];
  bool late = false;
  for (;;) {
    pollfd wait{out[0], POLLIN, 0};
    const int ready = ::poll(&wait, 1, 60'000);
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) {
      late = true;
      break;
    }
    const ssize_t n = ::read(out[0], buffer, sizeof(buffer));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0 || said.size() > 65536) break;
    said.append(buffer, static_cast<size_t>(n));
  }
  ::close(out[0]);
  if (late) ::kill(pid, SIGKILL);
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  if (late) throw failure("aws did not answer for a minute", "try the command shown above by itself");
  const size_t begin = said.find_first_not_of(" \t\r\n");
  said = begin == std::string::npos ? "" : said.substr(begin, said.find('\n', begin) - begin);
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    throw failure(fmt::format("aws failed: {}", said.empty() ? "it said nothing" : said.substr(0, 300)),
                  "it needs credentials that may servicequotas:GetServiceQuota");
  }
  while (!said.empty() && (said.back() == ' ' || said.back() == '\r')) said.pop_back();
  double value = 0;
  const auto [end, problem] = std::from_chars(said.data(), said.data() + said.size(), value);
  if (problem != std::errc() || end != said.data() + said.size() || !std::isfinite(value) || value < 0) {
    throw failure(fmt::format("aws answered '{}', which is no quota", said.substr(0, 80)));
  }
  return value;
}

}  // namespace mythos
