#include "step/step_graph.h"

#ifdef MYTHOS_CUDA
#include <ATen/cuda/CUDAGraph.h>
#include <c10/core/Event.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#endif

#include <exception>
#include <map>

namespace mythos {

#ifdef MYTHOS_CUDA

struct StepGraph::Device {
  explicit Device(at::Device d)
      : stream(
            c10::cuda::getStreamFromPool(/*isHighPriority=*/false, d.has_index() ? d.index() : c10::DeviceIndex(-1))) {}

  // Makes the stream follow what was given to the current one, and the current one what `work` gives to it.
  template <class Work>
  void on_stream(const Work& work) {
    const auto current = c10::cuda::getCurrentCUDAStream(stream.device_index());
    c10::Event before(c10::kCUDA), after(c10::kCUDA);
    before.record(current);
    before.block(stream);
    {
      const c10::cuda::CUDAStreamGuard guard(stream);
      work();
    }
    after.record(stream);
    after.block(current);
  }

  // Throws what the body throws; nothing is left half captured.
  void capture(at::cuda::CUDAGraph& graph, const std::function<void()>& body) {
    // What runs as it is has left memory behind that a graph, which has its own, would never use.
    c10::cuda::CUDACachingAllocator::emptyCache();
    // One pool for all: they are replayed one after another, and nothing they make outlives a replay.
    graph.capture_begin(pool, cudaStreamCaptureModeThreadLocal);
    std::exception_ptr error;
    try {
      body();
    } catch (...) {
      error = std::current_exception();
    }
    try {
      graph.capture_end();
    } catch (...) {
      if (!error) error = std::current_exception();
    }
    if (error) std::rethrow_exception(error);
  }

  c10::cuda::CUDAStream stream;
  at::cuda::MempoolId_t pool = at::cuda::graph_pool_handle();
  std::map<std::string, std::unique_ptr<at::cuda::CUDAGraph>> graphs;  // null: seen once
};

StepGraph::StepGraph(at::Device device, bool wanted) {
  if (!device.is_cuda()) {
    why_not_ = "not on a GPU";
    return;
  }
  device_ = std::make_unique<Device>(device);
  if (!wanted) why_not_ = "train.cuda_graphs is false";
}

void StepGraph::run_once(const std::function<void()>& body) {
  if (!device_) return body();
  device_->on_stream(body);
}

void StepGraph::run(const std::string& name, const std::function<void()>& body) {
  if (!device_) return body();
  device_->on_stream([&] {
    if (!why_not_.empty()) return body();
    const auto found = device_->graphs.find(name);
    if (found == device_->graphs.end()) {
      device_->graphs.emplace(name, nullptr);
      return body();
    }
    if (!found->second) {
      auto graph = std::make_unique<at::cuda::CUDAGraph>();
      try {
        device_->capture(*graph, body);
      } catch (const std::exception& e) {
        why_not_ = std::string("a step could not be captured: ") + e.what();
        why_not_.resize(std::min(why_not_.find('\n'), why_not_.size()));
        return body();
      }
      found->second = std::move(graph);
    }
    found->second->replay();
  });
}

bool StepGraph::captures() const { return device_ != nullptr && why_not_.empty(); }

size_t StepGraph::graphs() const {
  size_t n = 0;
  if (device_) {
    for (const auto& [name, graph] : device_->graphs) n += graph != nullptr ? 1 : 0;
  }
  return n;
}

#else

struct StepGraph::Device {};
StepGraph::StepGraph(at::Device, bool) : why_not_("built without CUDA") {}
void StepGraph::run_once(const std::function<void()>& body) { body(); }
void StepGraph::run(const std::string&, const std::function<void()>& body) { body(); }
bool StepGraph::captures() const { return false; }
size_t StepGraph::graphs() const { return 0; }

#endif

StepGraph::~StepGraph() = default;

}  // namespace mythos
