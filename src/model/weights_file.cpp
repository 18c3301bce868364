#include "model/weights_file.h"

#include "base/safetensors.h"

#include <fmt/ranges.h>

#include <cstring>
#include <unordered_set>

namespace mythos {

void load_weights_file(const std::filesystem::path& path, Model& model) {
  const auto file = SafetensorsFile::open(path);
  std::vector<NamedTensor> wanted = model.parameters().named_values();
  for (auto& buffer : model.named_buffers()) {
    if (file.find(buffer.name) != nullptr) wanted.push_back(std::move(buffer));
  }
  std::unordered_set<std::string_view> known;
  for (const auto& [name, tensor] : wanted) {
    known.insert(name);
    const auto& entry = file.at(name);
    if (entry.dtype == DType::F32 && at::IntArrayRef(entry.shape) == tensor.sizes()) continue;
    throw FormatError(fmt::format("{}: {} is {} [{}], the model wants F32 [{}]", path.string(), name,
                                  to_string(entry.dtype), fmt::join(entry.shape, ", "),
                                  fmt::join(tensor.sizes(), ", ")));
  }
  for (const auto& entry : file.entries()) {
    if (known.contains(entry.name)) continue;
    throw FormatError(fmt::format("{}: the model has no {}", path.string(), shown_name(entry.name)));
  }
  const at::NoGradGuard no_grad;
  for (auto& [name, tensor] : wanted) {
    const auto bytes = file.data(file.at(name));
    const bool direct = tensor.scalar_type() == at::kFloat && tensor.device().is_cpu() && tensor.is_contiguous();
    // The file's bytes need not be aligned, so what is converted goes through a tensor of its own.
    at::Tensor values = direct ? tensor : at::empty(tensor.sizes(), at::kFloat);
    std::memcpy(values.mutable_data_ptr(), bytes.data(), bytes.size());
    if (!direct) tensor.copy_(values);
  }
  model.parameters().refresh_compute();
}

}  // namespace mythos
