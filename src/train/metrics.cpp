#include "train/metrics.h"

#include "base/file.h"
#include "base/log.h"
#include "base/units.h"

#include <ctime>
#include <string_view>

namespace mythos {
namespace {

std::string tokens_text(int64_t tokens) {
  const auto n = static_cast<double>(tokens);
  if (n >= 5e7) return fmt::format("{:.1f}B tokens", n / 1e9);
  if (n >= 5e4) return fmt::format("{:.1f}M tokens", n / 1e6);
  return fmt::format("{} tokens", with_commas(tokens));
}

std::string local_time() {
  const std::time_t now = std::time(nullptr);
  std::tm t{};
  ::localtime_r(&now, &t);
  return fmt::format("{:04}-{:02}-{:02} {:02}:{:02}:{:02}", t.tm_year + 1900, t.tm_mon + 1, t.tm_mday, t.tm_hour,
                     t.tm_min, t.tm_sec);
}

}  // namespace

std::string log_line(const StepMetrics& m) {
  std::string line = fmt::format(
      "{} | step {:>6}/{} | loss {:.4f} | gnorm {:.2f} | lr {:.2e} | {} | {} tok/s | mfu {:.1f}% | mem {} MiB | eta {}",
      local_time(), m.step, m.total, m.loss, m.gradient_norm, m.lr, tokens_text(m.tokens),
      with_commas(static_cast<int64_t>(m.tokens_per_second + 0.5)), 100 * m.mfu, with_commas(m.memory_bytes >> 20),
      duration_text(m.eta_seconds));
  if (m.price_per_hour > 0) line += fmt::format(" | ${:.0f} so far", m.price_per_hour * m.hours_so_far);
  line += fmt::format(" | data wait {:.1f}%", 100 * m.data_wait);
  if (m.watched) {
    line += fmt::format(" | experts {:.2f}x | halt {:.2f} of {}", m.watched->experts.max_over_mean(),
                        m.watched->mean_loops, m.loops);
  }
  return line;
}

namespace {

// The file without what is after a step, and without a line that a kill cut off.
void cut(const std::filesystem::path& path, int64_t last_step) {
  std::error_code ec;
  if (!std::filesystem::exists(path, ec)) return;
  const std::string text = read_file(path);
  std::string kept;
  kept.reserve(text.size());
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = text.find('\n', begin);
    if (end == std::string::npos) break;
    const std::string_view line(text.data() + begin, end - begin);
    const Json json = Json::parse(line, nullptr, false);
    if (last_step > 0 && json.is_object() && json.contains("step") && json["step"].is_number_integer() &&
        json["step"] <= last_step) {
      kept += line;
      kept += '\n';
    }
    begin = end + 1;
  }
  if (kept.size() != text.size()) write_file_atomically(path, kept);
}

// Opened only once it is cut.
std::filesystem::path after_cutting(std::filesystem::path path, int64_t last_step) {
  cut(path, last_step);
  return path;
}

}  // namespace

std::string live_line(const StepMetrics& last, int64_t step, int64_t micro, const BatchPlan& batch,
                      std::optional<double> seconds_left) {
  std::string text = fmt::format("step {}/{}", step, batch.steps);
  if (batch.grad_accum > 1) text += fmt::format(" ({}/{})", micro, batch.grad_accum);
  if (!seconds_left) return text;
  return text + fmt::format(" | loss {:.4f} | {} tok/s | {} left", last.loss,
                            with_commas(static_cast<int64_t>(last.tokens_per_second)), duration_text(*seconds_left));
}

MetricsFile::MetricsFile(std::filesystem::path path, int64_t last_step)
    : file_(after_cutting(std::move(path), last_step)) {}

// The file is another one then: the next line follows its name.
void MetricsFile::forget_after(int64_t last_step) { cut(file_.path(), last_step); }

void MetricsFile::write(const Json& json) {
  const std::string why = file_.write(json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n");
  if (why.empty() || warned_) return;
  warned_ = true;
  log::warn("cannot write {}: {}; the run goes on without it", file_.path().string(), why);
}

}  // namespace mythos
