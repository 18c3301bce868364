// Micro-steps as CUDA graphs: hundreds of small kernels, started with one call.
#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <memory>
#include <string>

namespace mythos {

/// Runs bodies that give work to the device, on a stream of its own. A body is run as it is the first time it comes
/// under a name, captured the second time, and after that its graph is replayed: it must do the same work on the same
/// memory each time, and never wait for the device. Without CUDA it just runs them.
class StepGraph {
 public:
  /// `wanted`: false runs every body as it is.
  StepGraph(at::Device device, bool wanted);
  ~StepGraph();
  StepGraph(const StepGraph&) = delete;
  StepGraph& operator=(const StepGraph&) = delete;

  /// `name`: whatever the body's work depends on but for the content of memory.
  void run(const std::string& name, const std::function<void()>& body);
  /// The same, never captured.
  void run_once(const std::function<void()>& body);

  [[nodiscard]] bool captures() const;
  [[nodiscard]] size_t graphs() const;
  /// Why nothing is captured; empty where it is.
  [[nodiscard]] const std::string& why_not() const { return why_not_; }

 private:
  struct Device;
  std::unique_ptr<Device> device_;
  std::string why_not_;
};

}  // namespace mythos
