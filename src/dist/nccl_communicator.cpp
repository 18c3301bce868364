#include "dist/nccl_communicator.h"

#include "base/error.h"
#include "dist/store_communicator.h"

#include <ATen/ATen.h>
#include <c10/cuda/CUDAFunctions.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

namespace mythos {
namespace {

// The current stream goes on when what NCCL's own stream does is done; the CPU does not wait.
class Work final : public Pending {
 public:
  explicit Work(c10::intrusive_ptr<c10d::Work> work) : work_(std::move(work)) {}
  void wait() override { work_->wait(); }

 private:
  c10::intrusive_ptr<c10d::Work> work_;
};

class NcclCommunicator final : public Communicator {
 public:
  NcclCommunicator(c10::intrusive_ptr<c10d::Store> store, const std::string& name, int64_t rank, int64_t size,
                   at::Device device)
      : store_(std::move(store)), device_(device), numbers_(store_, name + "/cpu", rank, size) {
    auto options = c10d::ProcessGroupNCCL::Options::create();
    // Ranks that are lost are noticed by their silence; a rank that saves or evaluates may take as long as it needs.
    options->timeout = std::chrono::hours(24);
    const auto own = c10::make_intrusive<c10d::PrefixStore>(name + "/nccl", store_);
    group_ = c10::make_intrusive<c10d::ProcessGroupNCCL>(own, static_cast<int>(rank), static_cast<int>(size),
                                                         std::move(options));
    group_->setBoundDeviceId(device);
  }

  [[nodiscard]] int64_t rank() const override { return numbers_.rank(); }
  [[nodiscard]] int64_t size() const override { return numbers_.size(); }

  [[nodiscard]] Handle all_gather(const at::Tensor& out, const at::Tensor& in) override {
    if (in.device().is_cpu()) return numbers_.all_gather(out, in);
    sent_ += (size() - 1) * static_cast<int64_t>(in.nbytes());
    at::Tensor to = out.variable_data(), from = in.variable_data();
    return std::make_unique<Work>(group_->_allgather_base(to, from));
  }
  [[nodiscard]] Handle reduce_scatter(const at::Tensor& out, const at::Tensor& in) override {
    if (in.device().is_cpu()) return numbers_.reduce_scatter(out, in);
    sent_ += (size() - 1) * static_cast<int64_t>(out.nbytes());
    at::Tensor to = out.variable_data(), from = in.variable_data();
    return std::make_unique<Work>(group_->_reduce_scatter_base(to, from));
  }
  [[nodiscard]] Handle all_reduce(const at::Tensor& tensor) override {
    if (tensor.device().is_cpu()) return numbers_.all_reduce(tensor);
    sent_ += 2 * (size() - 1) * static_cast<int64_t>(tensor.nbytes()) / size();
    std::vector<at::Tensor> tensors{tensor};
    return std::make_unique<Work>(group_->allreduce(tensors));
  }
  [[nodiscard]] Handle broadcast(const at::Tensor& tensor, int64_t from) override {
    if (tensor.device().is_cpu()) return numbers_.broadcast(tensor, from);
    std::vector<at::Tensor> tensors{tensor};
    c10d::BroadcastOptions options;
    options.rootRank = from;
    return std::make_unique<Work>(group_->broadcast(tensors, options));
  }
  void barrier() override { numbers_.barrier(); }

  [[nodiscard]] std::shared_ptr<Communicator> split(int64_t group) override {
    const auto mine = numbers_.group_of(group);
    return std::make_shared<NcclCommunicator>(store_, mine.name, mine.rank, mine.size, device_);
  }
  [[nodiscard]] int64_t bytes_sent() const override { return sent_; }
  void leave() override { numbers_.leave(); }

 private:
  c10::intrusive_ptr<c10d::Store> store_;
  at::Device device_;
  StoreCommunicator numbers_;
  // As the base class: which of two names of one function a version overrides differs, both are there.
  c10::intrusive_ptr<c10d::Backend> group_;
  int64_t sent_ = 0;
};

}  // namespace

std::shared_ptr<Communicator> nccl_world(int64_t rank, int64_t size, int64_t local_rank) {
  const auto device = static_cast<c10::DeviceIndex>(local_rank);
  if (device >= c10::cuda::device_count()) {
    throw usage_error(fmt::format("rank {} is the {}. on this machine, which has {} GPUs", rank, local_rank + 1,
                                  c10::cuda::device_count()),
                      "start at most one rank for each GPU");
  }
  c10::cuda::set_device(device);
  return std::make_shared<NcclCommunicator>(store_of_environment(rank, size), "mythos", rank, size,
                                            at::Device(at::kCUDA, device));
}

}  // namespace mythos
