#include "dist/store_communicator.h"

#include "base/error.h"

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <string_view>

namespace mythos {

c10::intrusive_ptr<c10d::Store> store_of_environment(int64_t rank, int64_t size) {
  const char* const address = std::getenv("MASTER_ADDR");
  const char* const port = std::getenv("MASTER_PORT");
  if (address == nullptr || port == nullptr) {
    throw usage_error("several ranks, and MASTER_ADDR or MASTER_PORT is not set",
                      "start them with torchrun --no-python");
  }
  const char* const kept = std::getenv("TORCHELASTIC_USE_AGENT_STORE");
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(std::strtoul(port, nullptr, 10));
  options.isServer = rank == 0 && (kept == nullptr || std::string_view(kept) != "True");
  options.numWorkers = static_cast<size_t>(size);
  options.waitWorkers = false;
  try {
    auto store = c10::make_intrusive<c10d::TCPStore>(address, options);
    // Nobody waits in vain: who is missing is noticed elsewhere (dist/peer_watch.h).
    store->setTimeout(std::chrono::hours(24 * 365));
    return store;
  } catch (const std::exception& e) {
    const std::string what = e.what();
    throw failure(
        fmt::format("rank {} finds no store at {}:{}: {}", rank, address, port, what.substr(0, what.find('\n'))),
        "MASTER_ADDR and MASTER_PORT must be those of rank 0, open to all");
  }
}

StoreCommunicator::StoreCommunicator(c10::intrusive_ptr<c10d::Store> store, std::string name, int64_t rank,
                                     int64_t size)
    : store_(std::move(store)), name_(std::move(name)), rank_(rank), size_(size) {}

// What was given two turns ago everybody has taken: nobody begins a turn before all have ended the one before.
void StoreCommunicator::give(const at::Tensor& own) {
  const auto key = [&](int64_t turn) { return fmt::format("{}/{}/{}", name_, turn, rank_); };
  ++turn_;
  if (turn_ > 2) store_->deleteKey(key(turn_ - 2));
  const auto* data = static_cast<const uint8_t*>(own.const_data_ptr());
  store_->set(key(turn_), std::vector<uint8_t>(data, data + own.nbytes()));
  sent_ += static_cast<int64_t>(own.nbytes());
}

at::Tensor StoreCommunicator::take(int64_t from, const at::Tensor& like) const {
  const auto bytes = store_->get(fmt::format("{}/{}/{}", name_, turn_, from));
  TORCH_CHECK(bytes.size() == like.nbytes(), "rank ", from, " gave ", bytes.size(), " bytes for ", like.nbytes());
  at::Tensor t = at::empty(like.sizes(), like.options().requires_grad(false));
  std::memcpy(t.mutable_data_ptr(), bytes.data(), bytes.size());
  return t;
}

std::vector<at::Tensor> StoreCommunicator::exchange(const at::Tensor& own) {
  give(own);
  std::vector<at::Tensor> all;
  for (int64_t r = 0; r < size_; ++r) all.push_back(r == rank_ ? own.clone() : take(r, own));
  return all;
}

Handle StoreCommunicator::all_gather(const at::Tensor& out, const at::Tensor& in) {
  const at::Tensor whole = out.variable_data();
  const auto all = exchange(in);
  for (int64_t r = 0; r < size_; ++r) {
    whole.narrow(0, r * in.numel(), in.numel()).copy_(all[static_cast<size_t>(r)]);
  }
  return nullptr;
}

Handle StoreCommunicator::reduce_scatter(const at::Tensor& out, const at::Tensor& in) {
  at::Tensor sum = in.clone();
  Handle handle = all_reduce(sum);
  out.copy_(sum.narrow(0, rank_ * out.numel(), out.numel()));
  return nullptr;
}

Handle StoreCommunicator::all_reduce(const at::Tensor& tensor) {
  const auto all = exchange(tensor);
  at::Tensor sum = all[0].clone();
  for (int64_t r = 1; r < size_; ++r) sum.add_(all[static_cast<size_t>(r)]);
  tensor.copy_(sum);
  return nullptr;
}

Handle StoreCommunicator::broadcast(const at::Tensor& tensor, int64_t from) {
  const auto all = exchange(rank_ == from ? tensor : at::zeros_like(tensor));
  tensor.copy_(all[static_cast<size_t>(from)]);
  return nullptr;
}

void StoreCommunicator::barrier() { exchange(at::zeros({1}, at::kByte)); }

void StoreCommunicator::leave() {
  barrier();
  const auto key = [&](int64_t r) { return fmt::format("{}/gone/{}", name_, r); };
  if (rank_ != 0) return store_->set(key(rank_), std::vector<uint8_t>{1});
  for (int64_t r = 1; r < size_; ++r) (void)store_->get(key(r));
}

StoreCommunicator::Group StoreCommunicator::group_of(int64_t group) {
  const auto all = all_numbers(*this, std::vector<int64_t>{group});
  Group mine{0, 0, fmt::format("{}.{}.{}", name_, splits_++, group)};
  for (int64_t r = 0; r < size_; ++r) {
    if (all[static_cast<size_t>(r)][0] != group) continue;
    if (r < rank_) ++mine.rank;
    ++mine.size;
  }
  return mine;
}

std::shared_ptr<Communicator> StoreCommunicator::split(int64_t group) {
  const Group mine = group_of(group);
  return std::make_shared<StoreCommunicator>(store_, mine.name, mine.rank, mine.size);
}

}  // namespace mythos
