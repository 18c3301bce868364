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

/// How the units of a store are cut over processes. Part i of a unit is [i * n, (i + 1) * n) of its buffer, n being
/// shard_size(): what lies beyond the unit's size is zero and stays zero, so parts are equally large, and the last ones
/// may hold nothing of the unit.
struct Partition {
  int64_t parts = 1;
  int64_t index = 0;       ///< of this process
  bool transient = false;  ///< whole units are there only while they are held

  /// Elements of each part, a multiple of 16.
  [[nodiscard]] int64_t shard_size(int64_t unit_size) const;
};

/// The parameters of one model in memory. `master` values are what the optimizer updates; layers compute with leaves in
/// `compute` dtype, which share the master's storage where the two dtypes are equal. Gradients are in master dtype: ops
/// add to them there, however narrow what they multiply.
class ParameterStore {
 public:
  /// Zero-filled. Without gradients (inference) no gradient buffers exist, and leaves are the master values, whatever
  /// `compute`.
  ParameterStore(const ModelConfig& config, at::Device device, at::ScalarType compute, at::ScalarType master,
                 bool gradients, const Partition& partition = {});

  [[nodiscard]] const FlatLayout& layout() const { return layout_; }
  /// The weight of a leaf by its name; throws std::out_of_range for an unknown one.
  [[nodiscard]] Weight leaf(const std::string& name) const;

  [[nodiscard]] const Partition& partition() const { return partition_; }

  /// What this process updates: flat master values and gradients of its part of the unit, all of it where there is one
  /// part.
  [[nodiscard]] at::Tensor values(size_t unit) const { return values_[unit]; }
  [[nodiscard]] at::Tensor gradients(size_t unit) const { return gradients_[unit]; }
  [[nodiscard]] size_t units() const { return values_.size(); }
  /// The range of the unit's buffer that this process updates; it may reach beyond the unit's size.
  [[nodiscard]] int64_t own_begin(size_t unit) const { return partition_.index * shard(unit); }
  [[nodiscard]] int64_t shard(size_t unit) const { return partition_.shard_size(layout_.units[unit].size); }
  /// The whole unit, `parts` times shard(): values in compute dtype, gradients in master dtype. Not to be looked into
  /// while they are not held.
  [[nodiscard]] at::Tensor whole_values(size_t unit) const { return whole_values_[unit]; }
  [[nodiscard]] at::Tensor whole_gradients(size_t unit) const { return whole_gradients_[unit]; }

  /// Master values by reference names, as views (where there are parts: values in compute dtype, which must be held);
  /// any flat buffers of whole units (moments) likewise. Gradients: none where they are not kept whole.
  [[nodiscard]] std::vector<NamedTensor> named_values() const {
    return named(partition_.parts == 1 ? values_ : whole_values_);
  }
  [[nodiscard]] std::vector<NamedTensor> named_gradients() const {
    return named(partition_.transient ? std::vector<at::Tensor>() : whole_gradients_);
  }
  [[nodiscard]] std::vector<NamedTensor> named(const std::vector<at::Tensor>& flat) const;

  /// Sets a parameter, by its number in the layout, to a tensor of its shape: as much as is kept here of the master
  /// value, and of the whole where that is always there. refresh_compute() is still needed.
  void set_value(size_t parameter, const at::Tensor& value);
  /// The same for other buffers that are cut like values(): moments.
  void set_part(const std::vector<at::Tensor>& own, size_t parameter, const at::Tensor& value) const;

  /// Copies this process's master values into the compute leaves; nothing to do where they share storage.
  void refresh_compute();
  void refresh_compute(size_t unit);
  /// This process's part of the unit in bf16, for an optimizer that writes it together with fp32 master values, in
  /// place of refresh_compute(); undefined where the types are others, or whole units come and go.
  [[nodiscard]] at::Tensor narrow_copy(size_t unit) const;
  void zero_gradients();

  /// With a transient partition: gives the whole unit memory (values as it comes, gradients zero-filled), and takes it
  /// away. Without one everything is always there, and nothing happens.
  void hold_values(size_t unit);
  void release_values(size_t unit);
  void hold_gradients(size_t unit);
  void release_gradients(size_t unit);

  [[nodiscard]] at::Device device() const { return device_; }
  [[nodiscard]] at::ScalarType compute_dtype() const { return compute_; }
  [[nodiscard]] at::ScalarType master_dtype() const { return master_; }

 private:
  FlatLayout layout_;
  Partition partition_;
  at::Device device_;
  at::ScalarType compute_, master_;
  std::vector<at::Tensor> values_, gradients_;  // master, own part
  std::vector<at::Tensor> whole_values_;        // compute
  std::vector<at::Tensor> whole_gradients_;     // master
  std::unordered_map<std::string, Weight> leaves_;
};

/// Draws the reference's initial values, the same for a seed on every device: matrices and tables normal with std 0.02,
/// norms 1, injection B 0.1, log_A and log_dt 0, halting bias uniform in +-D^-0.5.
void initialize(ParameterStore& store, const ModelConfig& config, uint64_t seed);

}  // namespace mythos
