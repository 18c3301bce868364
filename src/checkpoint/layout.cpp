#include "checkpoint/layout.h"

#include "checkpoint/checked_file.h"

#include <algorithm>
#include <numeric>

namespace mythos {
namespace {

constexpr uint64_t header_step = uint64_t{64} << 10;
constexpr uint64_t metadata_room = uint64_t{128} << 10;

void append(std::vector<TensorInfo>& out, std::string_view prefix, const std::vector<ParameterSpec>& specs) {
  for (const ParameterSpec& s : specs) out.push_back({std::string(prefix) + s.name, DType::F32, s.shape});
}

}  // namespace

std::vector<TensorInfo> checkpoint_tensors(const ModelConfig& model) {
  const auto parameters = parameter_specs(model);
  std::vector<TensorInfo> out;
  out.reserve(parameters.size() * 3 + 1);
  append(out, model_prefix, parameters);
  append(out, model_prefix, buffer_specs(model));
  append(out, exp_avg_prefix, parameters);
  append(out, exp_avg_sq_prefix, parameters);
  return out;
}

std::vector<TensorInfo> weight_tensors(const ModelConfig& model) {
  std::vector<TensorInfo> out;
  append(out, "", parameter_specs(model));
  append(out, "", buffer_specs(model));
  return out;
}

uint64_t checked_header_bytes(std::span<const TensorInfo> tensors) {
  const std::vector<uint64_t> none(tensors.size(), 0);
  const uint64_t table = safetensors_header(tensors, with_checksums({}, tensors, none)).size();
  return (table + metadata_room + header_step - 1) / header_step * header_step;
}

int64_t checked_file_bytes(std::span<const TensorInfo> tensors) {
  auto bytes = static_cast<int64_t>(checked_header_bytes(tensors));
  for (const TensorInfo& t : tensors) bytes += tensor_bytes(t.dtype, t.shape).value_or(0);
  return bytes;
}

int64_t checkpoint_bytes(const ModelConfig& model) { return checked_file_bytes(checkpoint_tensors(model)); }

int64_t checkpoints_at_once(int64_t keep_last, int64_t keep_every, int64_t every, int64_t steps) {
  if (steps < 1) return 0;
  // The most are there when the last one is being written; `before` were written by then.
  const int64_t before = every > 0 ? (steps - 1) / every : 0;
  const int64_t newest = std::min(std::max(keep_last, least_kept), before);
  int64_t milestones = 0;
  // Of those too old for keep_last, every (keep_every / gcd)-th is a multiple of keep_every.
  if (keep_every > 0) milestones = (before - newest) / (keep_every / std::gcd(keep_every, every));
  return newest + milestones + 1;
}

}  // namespace mythos
