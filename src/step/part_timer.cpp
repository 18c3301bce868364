#include "step/part_timer.h"

#include <chrono>
#include <string_view>
#include <vector>

namespace mythos {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::string_view prefix = "mythos.";

bool is_matrix_product(std::string_view name) {
  for (const std::string_view op : {"aten::mm", "aten::addmm", "aten::addmm_", "aten::linear", "aten::matmul",
                                    "aten::bmm", "aten::mv", "aten::addmv", "mythos::product"}) {
    if (name == op) return true;
  }
  return false;
}

}  // namespace

struct PartTimer::State {
  struct Frame {
    std::string name;
    Part part;
    bool marked;  // inside a PartScope
  };
  std::vector<Frame> frames{{"(between operations)", Part::elementwise, false}};
  Clock::time_point last = Clock::now();
  PartTimes times;
  at::CallbackHandle handle = 0;

  // Time since the last event belongs to the innermost frame.
  void account() {
    const auto now = Clock::now();
    const double spent = std::chrono::duration<double>(now - last).count();
    last = now;
    const Frame& frame = frames.back();
    times.seconds[static_cast<size_t>(frame.part)] += spent;
    times.operations[frame.name] += spent;
  }

  void enter(const char* name) {
    account();
    const std::string_view text = name;
    Frame frame{name, frames.back().part, frames.back().marked};
    if (text.starts_with(prefix)) {
      for (size_t i = 0; i < part_names.size(); ++i) {
        if (text.substr(prefix.size()) == part_names[i]) frame.part = static_cast<Part>(i);
      }
      frame.marked = true;
    } else if (!frame.marked) {
      frame.part = is_matrix_product(text) ? Part::projections : Part::elementwise;
    }
    frames.push_back(std::move(frame));
  }

  void leave() {
    account();
    if (frames.size() > 1) frames.pop_back();
  }
};

namespace {
// Callbacks are plain functions: what they belong to is the thread's.
thread_local PartTimer::State* listening = nullptr;  // NOLINT(cppcoreguidelines-avoid-non-const-global-variables)
}  // namespace

PartTimer::PartTimer() : state_(std::make_unique<State>()) {
  TORCH_CHECK(listening == nullptr, "one PartTimer in a thread at a time");
  listening = state_.get();
  state_->handle = at::addThreadLocalCallback(
      at::RecordFunctionCallback(
          [](const at::RecordFunction& f) -> std::unique_ptr<at::ObserverContext> {
            if (listening != nullptr) listening->enter(f.name());
            return nullptr;
          },
          [](const at::RecordFunction&, at::ObserverContext*) {
            if (listening != nullptr) listening->leave();
          })
          .scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION, at::RecordScope::USER_SCOPE}));
}

PartTimer::~PartTimer() {
  at::removeCallback(state_->handle);
  listening = nullptr;
}

PartTimes PartTimer::times() {
  state_->account();
  return state_->times;
}

}  // namespace mythos
