#include "checkpoint/pickle_reader.h"

#include "checkpoint/pickle_names.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>

namespace mythos {

using Kind = PickleValue::Kind;

// The stack machine of the format. Every opcode does a bounded amount of work and makes at most one value.
class PickleMachine {
 public:
  PickleMachine(std::span<const std::byte> bytes, std::string_view where, const PickleLimits& limits)
      : bytes_(bytes), where_(where), limits_(limits) {
    if (bytes.size() > limits.bytes) {
      throw FormatError(
          fmt::format("the pickle in {} has {} bytes, more than {} are not read", where, bytes.size(), limits.bytes));
    }
  }

  Pickle run() {
    for (size_t done = 0;; ++done) {
      if (done >= limits_.opcodes) throw bad(fmt::format("it has more than {} opcodes", limits_.opcodes));
      opcode_at_ = at_;
      const auto opcode = static_cast<unsigned char>(number<uint8_t>());
      if (opcode == '.') break;
      step(opcode);
    }
    if (stack_.size() != 1 || !marks_.empty()) throw bad("it ends with something left over");
    out_.root_ = stack_.front();
    return std::move(out_);
  }

 private:
  using Ref = PickleValue::Ref;

  [[nodiscard]] FormatError bad(const std::string& why) const {
    return FormatError(fmt::format("the pickle in {} cannot be read: {} (at byte {})", where_, why, opcode_at_));
  }
  [[nodiscard]] FormatError refused(const std::string& what) const {
    return FormatError(
        fmt::format("{} is refused: its pickle asks for {} (at byte {}), which no checkpoint needs; nothing of it was "
                    "run",
                    where_, what, opcode_at_),
        "use only files from those you trust, and save tensors and plain numbers alone");
  }

  std::span<const std::byte> take(uint64_t n) {
    if (bytes_.size() - at_ < n) throw bad("it is cut off");
    const auto out = bytes_.subspan(at_, n);
    at_ += n;
    return out;
  }
  template <class T>
  T number() {
    T value = 0;
    std::memcpy(&value, take(sizeof(T)).data(), sizeof(T));
    return value;
  }
  std::string text(uint64_t n) {
    if (n > limits_.text) throw bad(fmt::format("a text of {} bytes is too long", n));
    const auto b = take(n);
    return {reinterpret_cast<const char*>(b.data()), b.size()};
  }
  std::string line() {
    const auto rest = bytes_.subspan(at_, std::min<size_t>(bytes_.size() - at_, 512));
    const auto end = std::find(rest.begin(), rest.end(), std::byte{'\n'});
    if (end == rest.end()) throw bad("a name has no end");
    std::string out(reinterpret_cast<const char*>(rest.data()), static_cast<size_t>(end - rest.begin()));
    at_ += out.size() + 1;
    return out;
  }

  Ref make(PickleValue value) {
    if (out_.values_.size() >= limits_.values) throw bad(fmt::format("it has more than {} values", limits_.values));
    out_.values_.push_back(std::move(value));
    return static_cast<Ref>(out_.values_.size() - 1);
  }
  PickleValue& at(Ref ref) { return out_.values_[ref]; }
  void push(PickleValue value) { stack_.push_back(make(std::move(value))); }
  void push(Kind kind) {
    PickleValue v;
    v.kind = kind;
    push(std::move(v));
  }
  void push_integer(int64_t n, Kind kind = Kind::integer) {
    PickleValue v;
    v.kind = kind;
    v.integer = n;
    push(std::move(v));
  }
  void push_text(std::string s) {
    PickleValue v;
    v.kind = Kind::text;
    v.text = std::move(s);
    push(std::move(v));
  }
  // Nothing below the last mark may be taken.
  [[nodiscard]] size_t floor() const { return marks_.empty() ? 0 : marks_.back(); }
  Ref pop() {
    if (stack_.size() <= floor()) throw bad("it takes a value where there is none");
    const Ref top = stack_.back();
    stack_.pop_back();
    return top;
  }
  Ref top() const {
    if (stack_.size() <= floor()) throw bad("it takes a value where there is none");
    return stack_.back();
  }
  std::vector<Ref> pop_to_mark() {
    if (marks_.empty()) throw bad("it has no mark to go back to");
    std::vector<Ref> out(stack_.begin() + static_cast<ptrdiff_t>(marks_.back()), stack_.end());
    stack_.resize(marks_.back());
    marks_.pop_back();
    return out;
  }

  void push_tuple(std::vector<Ref> items) {
    PickleValue v;
    v.kind = Kind::tuple;
    v.items = std::move(items);
    push(std::move(v));
  }
  void push_tuple_of(size_t n) {
    std::vector<Ref> items(n);
    for (size_t i = n; i-- > 0;) items[i] = pop();
    push_tuple(std::move(items));
  }

  void remember(uint64_t index) {
    if (index >= limits_.values) throw bad(fmt::format("it remembers a value as number {}", index));
    if (memo_.size() <= index) memo_.resize(index + 1, forgotten);
    memo_[index] = top();
  }
  void recall(uint64_t index) {
    if (index >= memo_.size() || memo_[index] == forgotten) throw bad(fmt::format("it never had a value {}", index));
    stack_.push_back(memo_[index]);
  }

  void push_global(const std::string& module, const std::string& name) {
    PickleValue v;
    v.kind = Kind::global;
    v.text = fmt::format("{}.{}", module, name);
    if (!is_plain_global(v.text) && !storage_dtype(v.text)) {
      throw refused(shown_name(v.text));
    }
    push(std::move(v));
  }

  std::vector<int64_t> integers(Ref ref, const char* what) {
    const PickleValue& v = at(ref);
    if (v.kind != Kind::tuple && v.kind != Kind::list) throw bad(fmt::format("a tensor has no {}", what));
    if (v.items.size() > max_rank) throw bad("a tensor has too many dimensions");
    std::vector<int64_t> out;
    for (const Ref item : v.items) {
      if (at(item).kind != Kind::integer || at(item).integer < 0) {
        throw bad(fmt::format("a tensor's {} is not made of whole numbers", what));
      }
      out.push_back(at(item).integer);
    }
    return out;
  }

  // Refuses what reaches out of its storage, and more elements than the storage has: those would be some of them twice.
  void push_tensor(const std::vector<Ref>& arguments) {
    if (arguments.size() < 4 || at(arguments[0]).kind != Kind::storage || at(arguments[1]).kind != Kind::integer) {
      throw bad("a tensor is not made of a storage, an offset, a shape and strides");
    }
    PickleValue v;
    v.kind = Kind::tensor;
    v.items = {arguments[0]};
    v.integer = at(arguments[1]).integer;
    v.shape = integers(arguments[2], "shape");
    v.strides = integers(arguments[3], "strides");
    const PickleValue& storage = at(arguments[0]);
    const auto bytes = tensor_bytes(storage.dtype, v.shape);
    if (v.shape.size() != v.strides.size() || v.integer < 0 || !bytes) throw bad("a tensor has an impossible shape");
    const int64_t n = *bytes / size_of(storage.dtype);
    int64_t last = v.integer;
    bool fits = v.integer <= storage.integer && n <= storage.integer;
    for (size_t i = 0; fits && n > 0 && i < v.shape.size(); ++i) {
      int64_t reach = 0;
      fits =
          !__builtin_mul_overflow(v.shape[i] - 1, v.strides[i], &reach) && !__builtin_add_overflow(last, reach, &last);
    }
    if (!fits || (n > 0 && last >= storage.integer)) {
      throw bad(fmt::format("a tensor reaches beyond its storage {} of {} elements", shown_name(storage.text),
                            storage.integer));
    }
    push(std::move(v));
  }

  void reduce() {
    const PickleValue& given = at(pop());
    if (given.kind != Kind::tuple || given.items.size() > 16) throw bad("a call has no arguments, or too many");
    const std::vector<Ref> arguments = given.items;
    const PickleValue& callee = at(pop());
    if (callee.kind != Kind::global) throw bad(fmt::format("it calls {}", kind_name(callee.kind)));
    const std::string name = callee.text;
    if (name == "torch._utils._rebuild_tensor_v2") return push_tensor(arguments);
    if (name == "torch._utils._rebuild_parameter") {
      if (arguments.empty() || at(arguments[0]).kind != Kind::tensor) throw bad("a parameter is not a tensor");
      return stack_.push_back(arguments[0]);
    }
    if (name == "torch.Size") {
      if (arguments.size() != 1 || at(arguments[0]).kind != Kind::tuple) throw bad("a torch.Size is not a tuple");
      return stack_.push_back(arguments[0]);
    }
    if (name == "torch.device") {
      if (arguments.empty() || at(arguments[0]).kind != Kind::text) throw bad("a torch.device has no name");
      return stack_.push_back(arguments[0]);
    }
    if (name == "collections.OrderedDict") {
      PickleValue v;
      v.kind = Kind::dict;
      if (!arguments.empty()) {  // one list of pairs
        count_copies(at(arguments[0]).items.size());
        for (const Ref pair : at(arguments[0]).items) {
          if (at(pair).items.size() != 2) throw bad("an OrderedDict is not made of pairs");
          v.items.insert(v.items.end(), at(pair).items.begin(), at(pair).items.end());
        }
      }
      return push(std::move(v));
    }
    throw refused(fmt::format("a call of {}", shown_name(name)));
  }

  // What one opcode may copy of what another made: without this, a short file could be made to fill the memory.
  void count_copies(size_t n) {
    copies_ += n;
    if (copies_ > limits_.opcodes) throw bad("it copies the same values over and over");
  }

  void new_object() {
    const Ref arguments = pop();
    const Ref type = pop();
    if (at(type).kind != Kind::global || at(type).text != "open_mythos.main.MythosConfig") {
      throw refused(at(type).kind == Kind::global ? fmt::format("an object of {}", shown_name(at(type).text))
                                                  : "an object without a class");
    }
    if (at(arguments).kind != Kind::tuple || !at(arguments).items.empty()) throw bad("a MythosConfig has arguments");
    push(Kind::object);
  }

  void build() {
    const Ref state = pop();
    PickleValue& target = at(top());
    if (at(state).kind != Kind::dict) throw bad(fmt::format("an object is built from {}", kind_name(at(state).kind)));
    if (target.kind == Kind::dict) return;  // attributes of a dict, like _metadata of a state_dict: no data
    if (target.kind != Kind::object) throw bad(fmt::format("it builds {}", kind_name(target.kind)));
    count_copies(at(state).items.size());
    const std::vector<Ref> fields = at(state).items;
    target.items = fields;
  }

  void append(const std::vector<Ref>& items) {
    PickleValue& list = at(top());
    if (list.kind != Kind::list) throw bad(fmt::format("it appends to {}", kind_name(list.kind)));
    list.items.insert(list.items.end(), items.begin(), items.end());
  }
  void set_items(const std::vector<Ref>& items) {
    PickleValue& dict = at(top());
    if (dict.kind != Kind::dict) throw bad(fmt::format("it sets items of {}", kind_name(dict.kind)));
    if (items.size() % 2 != 0) throw bad("a key has no value");
    dict.items.insert(dict.items.end(), items.begin(), items.end());
  }

  void push_long() {
    const auto length = number<uint8_t>();
    const auto b = take(length);
    if (length > 8) {
      static constexpr std::array<unsigned char, 10> legacy = {0x6c, 0xfc, 0x9c, 0x46, 0xf9,
                                                               0x20, 0x6a, 0xa8, 0x50, 0x19};
      if (length == legacy.size() && std::memcmp(b.data(), legacy.data(), length) == 0) {
        throw FormatError(fmt::format("{} is in the format of PyTorch before 1.6, which is not read here", where_),
                          "load it in Python and save it again with torch.save");
      }
      throw bad("a whole number does not fit 64 bits");
    }
    uint64_t value = 0;
    std::memcpy(&value, b.data(), length);
    if (length > 0 && length < 8 && (static_cast<unsigned>(b[length - 1]) & 0x80U) != 0)
      value |= ~uint64_t{0} << (8 * length);
    push_integer(static_cast<int64_t>(value));
  }

  void push_storage() {
    const PickleValue& id = at(pop());
    const auto item = [&](size_t i) -> const PickleValue& { return at(id.items[i]); };
    if (id.kind != Kind::tuple || id.items.size() != 5 || item(0).kind != Kind::text || item(0).text != "storage" ||
        item(1).kind != Kind::global || item(2).kind != Kind::text || item(2).text.size() > max_key ||
        item(4).kind != Kind::integer || item(4).integer < 0) {
      throw bad("a storage is not named as torch.save names them");
    }
    const auto dtype = storage_dtype(item(1).text);
    if (!dtype) throw refused(fmt::format("a storage of {}", shown_name(item(1).text)));
    PickleValue v;
    v.kind = Kind::storage;
    v.dtype = *dtype;
    v.text = item(2).text;
    v.integer = item(4).integer;
    push(std::move(v));
  }

  void step(unsigned char opcode);

  static constexpr size_t max_rank = 8;
  static constexpr size_t max_key = 64;
  static constexpr Ref forgotten = std::numeric_limits<Ref>::max();
  std::span<const std::byte> bytes_;
  std::string_view where_;
  PickleLimits limits_;
  uint64_t at_ = 0, opcode_at_ = 0;
  size_t copies_ = 0;
  std::vector<Ref> stack_, memo_;
  std::vector<size_t> marks_;
  Pickle out_;
};

void PickleMachine::step(unsigned char opcode) {
  switch (opcode) {
    case 0x80:  // PROTO
      if (const auto version = number<uint8_t>(); version < 2 || version > 5) {
        throw bad(fmt::format("its protocol is {}, known are 2 to 5", version));
      }
      return;
    case 0x95:  // FRAME: of use to streams alone
      take(8);
      return;
    case '(':
      return marks_.push_back(stack_.size());
    case 'N':
      return push(Kind::none);
    case 0x88:
      return push_integer(1, Kind::boolean);
    case 0x89:
      return push_integer(0, Kind::boolean);
    case 'K':
      return push_integer(number<uint8_t>());
    case 'M':
      return push_integer(number<uint16_t>());
    case 'J':
      return push_integer(number<int32_t>());
    case 0x8a:
      return push_long();
    case 'G': {  // BINFLOAT, the one big-endian number
      PickleValue v;
      v.kind = Kind::real;
      v.real = std::bit_cast<double>(__builtin_bswap64(number<uint64_t>()));
      return push(std::move(v));
    }
    case 'X':
      return push_text(text(number<uint32_t>()));
    case 0x8c:
      return push_text(text(number<uint8_t>()));
    case 0x8d:
      return push_text(text(number<uint64_t>()));
    case ')':
      return push(Kind::tuple);
    case 0x85:
      return push_tuple_of(1);
    case 0x86:
      return push_tuple_of(2);
    case 0x87:
      return push_tuple_of(3);
    case 't':
      return push_tuple(pop_to_mark());
    case ']':
      return push(Kind::list);
    case 'a':
      return append({pop()});
    case 'e':
      return append(pop_to_mark());
    case '}':
      return push(Kind::dict);
    case 's': {
      const Ref value = pop();
      const Ref key = pop();
      return set_items({key, value});
    }
    case 'u':
      return set_items(pop_to_mark());
    case 'c': {
      const std::string module = line();
      return push_global(module, line());
    }
    case 0x93: {  // STACK_GLOBAL
      const Ref name = pop();
      const Ref module = pop();
      if (at(name).kind != Kind::text || at(module).kind != Kind::text) throw bad("a name is not a text");
      return push_global(at(module).text, at(name).text);
    }
    case 'R':
      return reduce();
    case 0x81:
      return new_object();
    case 'b':
      return build();
    case 'q':
      return remember(number<uint8_t>());
    case 'r':
      return remember(number<uint32_t>());
    case 0x94:
      return remember(memo_.size());
    case 'h':
      return recall(number<uint8_t>());
    case 'j':
      return recall(number<uint32_t>());
    case 'Q':
      return push_storage();
    default:
      break;
  }
  if (const std::string_view name = refused_opcode(opcode); !name.empty()) {
    throw refused(fmt::format("the opcode {}", name));
  }
  throw bad(fmt::format("0x{:02x} is not an opcode", opcode));
}

Pickle Pickle::read(std::span<const std::byte> bytes, std::string_view where, const PickleLimits& limits) {
  return PickleMachine(bytes, where, limits).run();
}

const PickleValue* Pickle::find(const PickleValue& dict, std::string_view key) const {
  if (dict.kind != Kind::dict && dict.kind != Kind::object) return nullptr;
  const PickleValue* found = nullptr;
  for (size_t i = 0; i + 1 < dict.items.size(); i += 2) {
    const PickleValue& k = values_[dict.items[i]];
    if (k.kind == Kind::text && k.text == key) found = &values_[dict.items[i + 1]];
  }
  return found;
}

}  // namespace mythos
