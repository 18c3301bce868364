// What a checkpoint's pickle says (Python's pickle protocols 2 to 5, as torch.save writes them), read as plain data:
// nothing is imported, called or executed. Only the opcodes and the few classes that checkpoints consist of are known;
// everything else is refused by its name.
#pragma once

#include "base/safetensors.h"

#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace mythos {

/// One value. References to others are indices into Pickle::values; they may form cycles.
struct PickleValue {
  enum class Kind : uint8_t {
    none,
    boolean,
    integer,
    real,
    text,
    tuple,
    list,
    dict,     ///< OrderedDict too
    object,   ///< an instance of MythosConfig: its fields as a dict
    global,   ///< a name that is known here, never looked up
    storage,  ///< bytes of the archive: text is the entry's key
    tensor,   ///< items[0] is its storage
  };
  using Ref = uint32_t;

  Kind kind = Kind::none;
  DType dtype = DType::F32;      ///< of a storage
  int64_t integer = 0;           ///< a boolean's 0 or 1; a storage's elements; a tensor's offset in elements
  double real = 0;               ///< of a real
  std::string text;              ///< of a text, a global ("module.name") or a storage
  std::vector<Ref> items;        ///< of a tuple or list; of a dict key, value, key, value
  std::vector<int64_t> shape;    ///< of a tensor
  std::vector<int64_t> strides;  ///< of a tensor, in elements
};

struct PickleLimits {
  uint64_t bytes = uint64_t{64} << 20;
  size_t values = 2'000'000;
  size_t opcodes = 16'000'000;
  size_t text = 64 << 10;  ///< bytes of one text
};

class Pickle {
 public:
  using Ref = PickleValue::Ref;

  /// Reads up to STOP. Throws FormatError naming `where` and the byte; what is refused by name is named.
  static Pickle read(std::span<const std::byte> bytes, std::string_view where, const PickleLimits& limits = {});

  [[nodiscard]] Ref root() const { return root_; }
  [[nodiscard]] const PickleValue& operator[](Ref ref) const { return values_[ref]; }
  /// The value at a text key of a dict or object, nullptr if it has none or is something else.
  [[nodiscard]] const PickleValue* find(const PickleValue& dict, std::string_view key) const;

 private:
  friend class PickleMachine;
  std::deque<PickleValue> values_;
  Ref root_ = 0;
};

/// "a dict", "a tensor", ... for messages.
std::string_view kind_name(PickleValue::Kind kind);

}  // namespace mythos
