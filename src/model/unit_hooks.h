// Told when the units of the flat layout (model/parameters.h) are needed, for those who share them out over processes.
#pragma once

#include <cstddef>

namespace mythos {

/// Units are numbered as in FlatLayout: 0 is embedding, final norm and head, the others follow in the order of the
/// forward pass. Unit 0 is in use from begin to end.
class UnitHooks {
 public:
  UnitHooks() = default;
  virtual ~UnitHooks() = default;
  UnitHooks(const UnitHooks&) = delete;
  UnitHooks& operator=(const UnitHooks&) = delete;

  /// Values are read from here on (and of unit 0 gradients may be added to).
  virtual void before_forward(size_t unit) = 0;
  /// Not called for unit 0.
  virtual void after_forward(size_t unit) = 0;
  /// Values are read and gradients added to from here on; the unit behind (of the last unit: the final norm) is done
  /// with. For unit 0: only its embedding's gradient is still to come.
  virtual void before_backward(size_t unit) = 0;
  /// Whether every position of every process has halted, where `own` is the answer for this one.
  virtual bool all_halted(bool own) = 0;
};

}  // namespace mythos
