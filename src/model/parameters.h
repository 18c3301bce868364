// Flat parameter storage: one buffer per unit (embedding and final norm, every block) with named views into it.
// One fused optimizer call and one norm per unit, and a cut of the same buffer per rank, all follow from this layout.
#pragma once

#include "kernels/weight.h"
#include "model/config.h"

#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace mythos {

/// A tensor the layers compute with: one parameter, or several joined so that one GEMM serves them
/// (gate | up, q_down | kv_down, all experts' gate | up, ...). Joined parts lie one after another without gaps.
struct LeafLayout {
  std::string name;
  std::vector<int64_t> shape;
  int64_t offset = 0;  ///< elements from the start of the unit's buffer, a multiple of 16
  bool decays = true;  ///< a matrix or table; false for norms and vectors
  [[nodiscard]] int64_t numel() const;
};

/// Where one parameter of parameter_specs() lies.
struct ParameterPlace {
  int64_t unit = 0;
  int64_t offset = 0;
};

struct FlatLayout {
  struct Unit {
    std::string name;
    int64_t size = 0;          ///< elements, padded to a multiple of 16
    int64_t matrices_end = 0;  ///< elements before this belong to leaves that decay, those after it to vectors
    std::vector<LeafLayout> leaves;
  };
  std::vector<Unit> units;
  std::vector<ParameterSpec> parameters;  ///< parameter_specs(config)
  std::vector<ParameterPlace> places;     ///< same order
};

FlatLayout flat_layout(const ModelConfig& config);

struct NamedTensor {
  std::string name;
  at::Tensor tensor;
};

/// The parameters of one model in memory. `master` values are what the optimizer updates; layers compute with leaves in
/// `compute` dtype, which share the master's storage where the two dtypes are equal.
class ParameterStore {
 public:
  /// Zero-filled. Without gradients (inference) no gradient buffers exist, and leaves are the master values, whatever
  /// `compute`.
  ParameterStore(const ModelConfig& config, at::Device device, at::ScalarType compute, at::ScalarType master,
                 bool gradients);

  [[nodiscard]] const FlatLayout& layout() const { return layout_; }
  /// The weight of a leaf by its name; throws std::out_of_range for an unknown one.
  [[nodiscard]] Weight leaf(const std::string& name) const;

  [[nodiscard]] at::Tensor values(size_t unit) const { return values_[unit]; }        ///< flat master values
  [[nodiscard]] at::Tensor gradients(size_t unit) const { return gradients_[unit]; }  ///< flat, master dtype
  [[nodiscard]] size_t units() const { return values_.size(); }

  /// Master values by reference names, as views; and any flat buffers of the same layout (moments) likewise.
  [[nodiscard]] std::vector<NamedTensor> named_values() const { return named(values_); }
  [[nodiscard]] std::vector<NamedTensor> named_gradients() const { return named(gradients_); }
  [[nodiscard]] std::vector<NamedTensor> named(const std::vector<at::Tensor>& flat) const;

  /// Copies master values into the compute leaves; nothing to do where they share storage.
  void refresh_compute();
  /// Adds the compute-dtype gradients to the master ones and clears them; nothing to do where they are the same.
  void flush_gradients();
  void zero_gradients();

  [[nodiscard]] at::Device device() const { return device_; }
  [[nodiscard]] at::ScalarType compute_dtype() const { return compute_; }
  [[nodiscard]] at::ScalarType master_dtype() const { return master_; }

 private:
  FlatLayout layout_;
  at::Device device_;
  at::ScalarType compute_, master_;
  std::vector<at::Tensor> values_, gradients_;                  // master
  std::vector<at::Tensor> compute_values_, compute_gradients_;  // aliases of the above when dtypes are equal
  std::unordered_map<std::string, Weight> leaves_;
};

/// Draws the reference's initial values, the same for a seed on every device: matrices and tables normal with std 0.02,
/// norms 1, injection B 0.1, log_A and log_dt 0, halting bias uniform in +-D^-0.5.
void initialize(ParameterStore& store, const ModelConfig& config, uint64_t seed);

}  // namespace mythos
