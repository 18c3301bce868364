#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <array>

#include "base/error.h"
#include "text/splitter.h"

namespace mythos {

namespace {

constexpr size_t jit_stack_bytes = size_t{8} << 20;
constexpr uint32_t match_limit = 2'000'000;
constexpr uint32_t heap_limit_kib = 64 * 1024;
constexpr size_t piece_without_match = 4096;

template <class T, void (*Free)(T*)>
struct Deleter {
  void operator()(T* p) const { Free(p); }
};
using CodePtr = std::unique_ptr<pcre2_code, Deleter<pcre2_code, pcre2_code_free>>;
using DataPtr = std::unique_ptr<pcre2_match_data, Deleter<pcre2_match_data, pcre2_match_data_free>>;
using ContextPtr = std::unique_ptr<pcre2_match_context, Deleter<pcre2_match_context, pcre2_match_context_free>>;
using StackPtr = std::unique_ptr<pcre2_jit_stack, Deleter<pcre2_jit_stack, pcre2_jit_stack_free>>;

std::string message_of(int code) {
  std::array<PCRE2_UCHAR, 256> text{};
  pcre2_get_error_message(code, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

}  // namespace

struct RegexSplitter::Code {
  CodePtr code;
};

struct RegexSplitter::Scratch::Parts {
  DataPtr data;
  ContextPtr context;
  StackPtr stack;
};

RegexSplitter::RegexSplitter(const std::string& pattern, std::string_view where) : code_(std::make_unique<Code>()) {
  int error = 0;
  PCRE2_SIZE offset = 0;
  code_->code.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                                  PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &error, &offset, nullptr));
  if (!code_->code) {
    throw failure(fmt::format("{}: the splitting rule is not a regular expression PCRE2 accepts: {} at offset {}",
                              where, message_of(error), offset));
  }
  // Without JIT (some hardened kernels forbid it) the interpreter does the same, slower.
  (void)pcre2_jit_compile(code_->code.get(), PCRE2_JIT_COMPLETE);
}

RegexSplitter::~RegexSplitter() = default;

RegexSplitter::Scratch::Scratch(const RegexSplitter& splitter) : parts_(std::make_unique<Parts>()) {
  parts_->data.reset(pcre2_match_data_create_from_pattern(splitter.code_->code.get(), nullptr));
  parts_->context.reset(pcre2_match_context_create(nullptr));
  parts_->stack.reset(pcre2_jit_stack_create(32 * 1024, jit_stack_bytes, nullptr));
  if (!parts_->data || !parts_->context) throw std::bad_alloc();
  pcre2_set_match_limit(parts_->context.get(), match_limit);
  pcre2_set_heap_limit(parts_->context.get(), heap_limit_kib);
  if (parts_->stack) pcre2_jit_stack_assign(parts_->context.get(), nullptr, parts_->stack.get());
}

RegexSplitter::Scratch::~Scratch() = default;

size_t RegexSplitter::Walk::next(size_t begin) {
  const auto* const base = reinterpret_cast<const unsigned char*>(text_.data());
  const unsigned char* const end = base + text_.size();
  if (begin >= valid_end_) {
    // PCRE2 wants valid UTF-8, so it sees one stretch of it at a time; looking the stretch over once keeps this linear.
    const unsigned char* p = base + begin;
    if (utf8_step(p, end).code == invalid_code) {
      do ++p;
      while (p < end && utf8_step(p, end).code == invalid_code);
      return static_cast<size_t>(p - base);
    }
    while (p < end) {
      const Utf8Step s = utf8_step(p, end);
      if (s.code == invalid_code) break;
      p += s.size;
    }
    valid_end_ = static_cast<size_t>(p - base);
    stretch_begin_ = begin;
    match_begin_ = match_end_ = begin;
  }
  if (match_end_ > begin) return begin < match_begin_ ? match_begin_ : match_end_;

  auto& parts = *scratch_.parts_;
  const PCRE2_SPTR stretch = base + stretch_begin_;
  const int rc = pcre2_match(splitter_.code_->code.get(), stretch, valid_end_ - stretch_begin_, begin - stretch_begin_,
                             PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY, parts.data.get(), parts.context.get());
  if (rc == PCRE2_ERROR_NOMATCH) return match_end_ = match_begin_ = valid_end_;
  if (rc < 0) {  // a limit
    size_t cut = std::min(begin + piece_without_match, valid_end_);
    while (cut < valid_end_ && (base[cut] & 0xC0) == 0x80) ++cut;
    return cut;
  }
  const PCRE2_SIZE* const offsets = pcre2_get_ovector_pointer(parts.data.get());
  match_begin_ = stretch_begin_ + offsets[0];
  match_end_ = stretch_begin_ + offsets[1];
  if (match_begin_ < begin || match_end_ <= match_begin_) {  // \K in a lookaround can do this
    match_begin_ = match_end_ = begin;
    return valid_end_;
  }
  return begin < match_begin_ ? match_begin_ : match_end_;
}

}  // namespace mythos
