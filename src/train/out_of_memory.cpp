#include "train/out_of_memory.h"

#include "base/log.h"
#include "base/units.h"

#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <fmt/ranges.h>

#include <atomic>
#include <charconv>
#include <map>
#include <mutex>
#include <new>
#include <optional>
#include <thread>
#include <vector>

namespace mythos {
namespace {

// The ops that are running, by thread, and those that were when one of them failed. There is one at a time.
struct Trace {
  struct Op {
    std::string name;
    std::string inputs;
    std::string shape;  // of the tensor it makes, where it was told
  };
  std::mutex mutex;
  std::map<std::thread::id, std::vector<Op>> running;
  std::vector<Op> failed;  // the innermost last
};
std::atomic<Trace*> current{nullptr};

std::string sizes_of(const c10::IValue& value) {
  if (value.isIntList()) return fmt::format("[{}]", fmt::join(value.toIntVector(), ", "));
  if (value.isSymIntList()) {
    std::vector<int64_t> sizes;
    for (const auto& s : value.toSymIntVector()) sizes.push_back(s.guard_int(__FILE__, __LINE__));
    return fmt::format("[{}]", fmt::join(sizes, ", "));
  }
  return "";
}

Trace::Op op_of(const at::RecordFunction& function) {
  Trace::Op op{function.name(), "", ""};
  // Some are told without what they get, and asking those for it is an error.
  if (function.scope() != at::RecordScope::FUNCTION || function.num_inputs() == 0) return op;
  const auto inputs = function.inputs();
  std::vector<std::string> shapes;
  for (const c10::IValue& value : inputs) {
    if (value.isTensor() && value.toTensor().defined()) {
      shapes.push_back(fmt::format("[{}]", fmt::join(value.toTensor().sizes(), ", ")));
    }
  }
  op.inputs = fmt::format("{}", fmt::join(shapes, " and "));
  // Those that make a tensor from nothing are told its size first, and then its type.
  if (shapes.empty() && !inputs.empty()) {
    op.shape = sizes_of(inputs[0]);
    if (!op.shape.empty() && inputs.size() > 1 && inputs[1].isInt()) {
      op.shape = fmt::format("{} {}", c10::toString(static_cast<at::ScalarType>(inputs[1].toInt())), op.shape);
    }
  }
  return op;
}

std::unique_ptr<at::ObserverContext> on_begin(const at::RecordFunction& function) {
  if (Trace* const trace = current) {
    const std::lock_guard lock(trace->mutex);
    trace->running[std::this_thread::get_id()].push_back(op_of(function));
  }
  return nullptr;
}

void on_end(const at::RecordFunction&, at::ObserverContext*) {
  Trace* const trace = current;
  if (trace == nullptr) return;
  const std::lock_guard lock(trace->mutex);
  auto& ops = trace->running[std::this_thread::get_id()];
  // The first one that ends because an exception passes through it is the one that failed.
  if (std::uncaught_exceptions() > 0 && trace->failed.empty()) trace->failed = ops;
  if (!ops.empty()) ops.pop_back();
}

std::vector<Trace::Op> failing_ops(const std::function<void()>& again) {
  Trace trace;
  current = &trace;
  const auto handle = at::addGlobalCallback(
      at::RecordFunctionCallback(&on_begin, &on_end)
          .needsInputs(true)
          .scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION, at::RecordScope::USER_SCOPE}));
  try {
    again();
  } catch (const std::exception&) {
    // As before: this is what was wanted.
  }
  at::removeCallback(handle);
  current = nullptr;
  return std::move(trace.failed);
}

// "you tried to allocate 268435456 bytes" -> 268435456
std::optional<int64_t> bytes_asked(const std::string& message) {
  const std::string_view before = "tried to allocate ";
  const size_t at = message.find(before);
  if (at == std::string::npos) return std::nullopt;
  int64_t bytes = 0;
  const char* const begin = message.data() + at + before.size();
  const auto [end, code] = std::from_chars(begin, message.data() + message.size(), bytes);
  if (code != std::errc() || !std::string_view(end).starts_with(" bytes")) return std::nullopt;
  return bytes;
}

std::string in_words(const std::vector<Trace::Op>& ops) {
  std::string shape, op, part, backward;
  for (const auto& o : ops) {
    if (!o.shape.empty()) shape = o.shape;
    if (o.name.starts_with("mythos.")) part = o.name.substr(7);
    if (o.name.ends_with("Backward") || o.name.find("Backward") != std::string::npos) backward = o.name;
    // The op around the one that only takes memory tells more.
    if (o.shape.empty() && o.name.starts_with("aten::")) {
      op = o.name + (o.inputs.empty() ? "" : fmt::format(" of {}", o.inputs));
    }
  }
  std::string text;
  if (!shape.empty()) text += fmt::format(" for a tensor {}", shape);
  if (!op.empty()) text += fmt::format("{} {}", shape.empty() ? " for" : " in", op);
  if (!part.empty()) text += fmt::format(" ({} of the {} pass)", part, backward.empty() ? "forward" : "backward");
  return text;
}

}  // namespace

bool is_out_of_memory(const std::exception& error) {
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) return true;
  if (dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr) return true;
  const std::string_view what = error.what();
  return what.find("DefaultCPUAllocator: ") != std::string_view::npos ||
         what.find("out of memory") != std::string_view::npos;
}

Error out_of_memory_error(const std::string& doing, const std::exception& error, const std::function<void()>& again,
                          const std::string& table) {
  const auto bytes = bytes_asked(error.what());
  const std::string words = again ? in_words(failing_ops(again)) : "";
  log::live_line("");
  log::info("{}", table);
  return failure(
      fmt::format("out of memory in {}: {} could not be had{}", doing,
                  bytes ? fmt::format("{} more", bytes_text(static_cast<double>(*bytes))) : "more memory", words),
      "use a smaller train.micro_batch, train.recompute = \"loop\", or a machine with more memory");
}

}  // namespace mythos
