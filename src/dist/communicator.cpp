#include "dist/communicator.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>

namespace mythos {

Handle SingleProcess::all_gather(const at::Tensor& out, const at::Tensor& in) {
  if (out.data_ptr() != in.data_ptr()) at::Tensor(out.variable_data()).copy_(in);
  return nullptr;
}

Handle SingleProcess::reduce_scatter(const at::Tensor& out, const at::Tensor& in) { return all_gather(out, in); }

std::shared_ptr<Communicator> SingleProcess::split(int64_t /*group*/) { return std::make_shared<SingleProcess>(); }

namespace {

template <class T>
std::vector<std::vector<T>> gathered(Communicator& world, const std::vector<T>& own, at::ScalarType type) {
  if (world.size() == 1) return {own};
  const auto n = static_cast<int64_t>(own.size());
  at::Tensor out = at::empty({world.size() * n}, type);
  at::Tensor in = out.narrow(0, world.rank() * n, n);
  std::memcpy(in.mutable_data_ptr(), own.data(), own.size() * sizeof(T));
  Handle handle = world.all_gather(out, in);
  wait(handle);
  std::vector<std::vector<T>> all;
  const T* data = out.const_data_ptr<T>();
  for (int64_t r = 0; r < world.size(); ++r) all.emplace_back(data + r * n, data + (r + 1) * n);
  return all;
}

}  // namespace

std::vector<std::vector<int64_t>> all_numbers(Communicator& world, const std::vector<int64_t>& own) {
  return gathered(world, own, at::kLong);
}

std::vector<std::vector<double>> all_numbers(Communicator& world, const std::vector<double>& own) {
  return gathered(world, own, at::kDouble);
}

bool all_of(Communicator& world, bool own) {
  const auto all = all_numbers(world, std::vector<int64_t>{own ? 1 : 0});
  return std::all_of(all.begin(), all.end(), [](const auto& one) { return one[0] != 0; });
}

std::vector<std::string> all_texts(Communicator& world, const std::string& own) {
  if (world.size() == 1) return {own};
  const auto lengths = all_numbers(world, std::vector<int64_t>{static_cast<int64_t>(own.size())});
  int64_t longest = 0;
  for (const auto& n : lengths) longest = std::max(longest, n[0]);
  std::vector<std::string> texts(lengths.size());
  if (longest == 0) return texts;
  at::Tensor out = at::zeros({world.size() * longest}, at::kByte);
  at::Tensor in = out.narrow(0, world.rank() * longest, longest);
  std::memcpy(in.mutable_data_ptr(), own.data(), own.size());
  Handle handle = world.all_gather(out, in);
  wait(handle);
  const auto* data = static_cast<const char*>(out.const_data_ptr());
  for (size_t r = 0; r < texts.size(); ++r) {
    texts[r].assign(data + static_cast<int64_t>(r) * longest, static_cast<size_t>(lengths[r][0]));
  }
  return texts;
}

std::string text_of(Communicator& world, int64_t rank, const std::string& own) {
  if (world.size() == 1) return own;
  const auto lengths = all_numbers(world, std::vector<int64_t>{static_cast<int64_t>(own.size())});
  const int64_t length = lengths[static_cast<size_t>(rank)][0];
  if (length == 0) return "";
  at::Tensor bytes = at::empty({length}, at::kByte);
  if (world.rank() == rank) std::memcpy(bytes.mutable_data_ptr(), own.data(), own.size());
  Handle handle = world.broadcast(bytes, rank);
  wait(handle);
  return {static_cast<const char*>(bytes.const_data_ptr()), static_cast<size_t>(length)};
}

}  // namespace mythos
