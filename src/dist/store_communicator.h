// Ranks over a c10d store: slow, needs nothing but a port, and is what ranks on GPUs agree by.
#pragma once

#include "dist/communicator.h"

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <string>

namespace mythos {

/// The store at MASTER_ADDR and MASTER_PORT, which torchrun keeps or, without it, rank 0. Throws Error where they are
/// not given, or nobody answers there.
c10::intrusive_ptr<c10d::Store> store_of_environment(int64_t rank, int64_t size);

/// Tensors on the CPU, a few numbers at a time: every rank's bytes pass through the store. `name` keeps communicators
/// of one store apart.
class StoreCommunicator final : public Communicator {
 public:
  StoreCommunicator(c10::intrusive_ptr<c10d::Store> store, std::string name, int64_t rank, int64_t size);

  [[nodiscard]] int64_t rank() const override { return rank_; }
  [[nodiscard]] int64_t size() const override { return size_; }
  [[nodiscard]] Handle all_gather(const at::Tensor& out, const at::Tensor& in) override;
  [[nodiscard]] Handle reduce_scatter(const at::Tensor& out, const at::Tensor& in) override;
  [[nodiscard]] Handle all_reduce(const at::Tensor& tensor) override;
  [[nodiscard]] Handle broadcast(const at::Tensor& tensor, int64_t from) override;
  void barrier() override;
  [[nodiscard]] std::shared_ptr<Communicator> split(int64_t group) override;
  [[nodiscard]] int64_t bytes_sent() const override { return sent_; }
  /// The store may be rank 0's: it stays until the others are done with it.
  void leave() override;

  /// This rank's place among those that name the same group, how many they are, and a name for them.
  struct Group {
    int64_t rank = 0, size = 1;
    std::string name;
  };
  Group group_of(int64_t group);

 private:
  std::vector<at::Tensor> exchange(const at::Tensor& own);
  void give(const at::Tensor& own);
  [[nodiscard]] at::Tensor take(int64_t from, const at::Tensor& like) const;

  c10::intrusive_ptr<c10d::Store> store_;
  std::string name_;
  int64_t rank_, size_;
  int64_t turn_ = 0;
  int64_t splits_ = 0;
  int64_t sent_ = 0;
};

}  // namespace mythos
