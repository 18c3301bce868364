// Processes that train together: who they are, and what they say to each other. Collectives are called by all ranks of
// a communicator in the same order, from one thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace mythos {

/// A collective under way; its tensors must stay until wait() returns. On the CPU it is done then; on a GPU what the
/// current stream is given from then on comes after it.
class Pending {
 public:
  Pending() = default;
  virtual ~Pending() = default;
  Pending(const Pending&) = delete;
  Pending& operator=(const Pending&) = delete;
  virtual void wait() = 0;
};
/// Null: it is done already.
using Handle = std::unique_ptr<Pending>;
inline void wait(Handle& handle) {
  if (handle) handle->wait();
  handle.reset();
}

/// Tensors are one-dimensional, contiguous, and on the communicator's device, or on the CPU.
class Communicator {
 public:
  Communicator() = default;
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  [[nodiscard]] virtual int64_t rank() const = 0;
  [[nodiscard]] virtual int64_t size() const = 0;

  /// out [size * n]: every rank's in [n], in the order of ranks. `in` may be this rank's part of `out`.
  [[nodiscard]] virtual Handle all_gather(const at::Tensor& out, const at::Tensor& in) = 0;
  /// out [n]: the sum of every rank's in [size * n] at [rank * n, (rank + 1) * n). `out` may be that part of `in`; the
  /// rest of `in` stays as it is. On the CPU the ranks' numbers are added in their order: the same bits in every run.
  [[nodiscard]] virtual Handle reduce_scatter(const at::Tensor& out, const at::Tensor& in) = 0;
  /// The sum over all ranks, in place; the same bits on every rank.
  [[nodiscard]] virtual Handle all_reduce(const at::Tensor& tensor) = 0;
  [[nodiscard]] virtual Handle broadcast(const at::Tensor& tensor, int64_t from) = 0;
  virtual void barrier() = 0;

  /// The ranks that name the same group, in their order here. Called by all ranks.
  [[nodiscard]] virtual std::shared_ptr<Communicator> split(int64_t group) = 0;

  /// Bytes of tensors that this rank has sent: what collectives move by their definition. all_gather and reduce_scatter
  /// of n elements a rank: size - 1 times n; all_reduce: both of them.
  [[nodiscard]] virtual int64_t bytes_sent() const = 0;

  /// All ranks are done with each other, and well; nothing may be called afterwards. A process that ends without it has
  /// failed, which ends the others.
  virtual void leave() {}
};

/// One process: nothing to do.
class SingleProcess final : public Communicator {
 public:
  [[nodiscard]] int64_t rank() const override { return 0; }
  [[nodiscard]] int64_t size() const override { return 1; }
  [[nodiscard]] Handle all_gather(const at::Tensor& out, const at::Tensor& in) override;
  [[nodiscard]] Handle reduce_scatter(const at::Tensor& out, const at::Tensor& in) override;
  [[nodiscard]] Handle all_reduce(const at::Tensor& /*tensor*/) override { return nullptr; }
  [[nodiscard]] Handle broadcast(const at::Tensor& /*tensor*/, int64_t /*from*/) override { return nullptr; }
  void barrier() override {}
  [[nodiscard]] std::shared_ptr<Communicator> split(int64_t group) override;
  [[nodiscard]] int64_t bytes_sent() const override { return 0; }
};

// ---- numbers and texts, for what is decided together ----------------------------------------------------------------

/// Every rank's numbers, in the order of ranks; all give equally many.
std::vector<std::vector<int64_t>> all_numbers(Communicator& world, const std::vector<int64_t>& own);
std::vector<std::vector<double>> all_numbers(Communicator& world, const std::vector<double>& own);
/// Whether it is so on every rank.
bool all_of(Communicator& world, bool own);
/// Every rank's text.
std::vector<std::string> all_texts(Communicator& world, const std::string& own);
/// The text of one rank, on all.
std::string text_of(Communicator& world, int64_t rank, const std::string& own);

}  // namespace mythos
