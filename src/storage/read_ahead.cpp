// A window of a remote file, fetched in the background.
#include "base/signals.h"
#include "storage/byte_source.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>

namespace mythos {
namespace {

constexpr uint64_t first_block = uint64_t{1}
                                 << 20;  // small, so that the first bytes are there soon; then twice as much
constexpr uint64_t largest_block = uint64_t{8} << 20;
constexpr uint64_t most_ahead = 3 * largest_block;
constexpr auto poll = std::chrono::milliseconds(50);

class ReadAhead : public ByteSource {
 public:
  ReadAhead(std::shared_ptr<const ByteSource> source, uint64_t begin, uint64_t end)
      : source_(std::move(source)), begin_(begin), end_(end), position_(begin), next_(begin) {
    thread_ = std::jthread([this](const std::stop_token& stop) { fetch(stop); });
  }
  // The thread is asked to stop, and waited for, before anything it uses goes: it is the last member.
  ~ReadAhead() override = default;

  [[nodiscard]] const std::string& name() const override { return source_->name(); }
  [[nodiscard]] uint64_t size() const override { return source_->size(); }
  [[nodiscard]] bool is_remote() const override { return true; }

  void read_at(uint64_t offset, std::span<std::byte> into, std::stop_token stop) const override {
    while (!into.empty()) {
      size_t n = 0;
      if (offset >= begin_ && offset < end_) {
        n = from_blocks(offset, into, stop);
      } else if (offset < begin_ && into.size() > begin_ - offset) {
        n = static_cast<size_t>(begin_ - offset);  // up to the window
        source_->read_at(offset, into.first(n), stop);
      }
      if (n == 0) {
        source_->read_at(offset, into, stop);
        return;
      }
      offset += n;
      into = into.subspan(n);
    }
  }

 private:
  struct Block {
    uint64_t begin = 0;
    size_t size = 0;
    std::unique_ptr<std::byte[]> bytes;  // a vector would be filled with zeros first
    [[nodiscard]] uint64_t end() const { return begin + size; }
  };

  // Copies what one block has of the bytes at `offset`, waiting for it; 0 if they lie behind.
  size_t from_blocks(uint64_t offset, std::span<std::byte> into, const std::stop_token& stop) const {
    std::shared_ptr<const Block> block;
    {
      std::unique_lock lock(mutex_);
      while (true) {
        const auto it =
            std::ranges::find_if(blocks_, [&](const auto& b) { return b->begin <= offset && offset < b->end(); });
        if (it != blocks_.end()) {
          block = *it;
          break;
        }
        if (error_ && offset >= fetching_begin_) std::rethrow_exception(error_);
        if (offset < next_ && !(fetching_ && offset >= fetching_begin_)) return 0;
        if (stop.stop_requested() || stop_requested()) throw Stopped("reading over the network was stopped");
        if (offset > position_) move_to(offset);
        changed_.wait_for(lock, stop, poll, [this, seen = blocks_fetched_] { return blocks_fetched_ != seen; });
      }
    }
    const auto from = static_cast<size_t>(offset - block->begin);
    const size_t n = std::min(into.size(), block->size - from);
    std::memcpy(into.data(), block->bytes.get() + from, n);
    const std::lock_guard lock(mutex_);
    if (offset + n > position_) move_to(offset + n);
    return n;
  }

  // What lies before `position` is not needed any more.
  void move_to(uint64_t position) const {
    position_ = position;
    while (!blocks_.empty() && blocks_.front()->end() <= position) blocks_.pop_front();
    if (!fetching_) next_ = std::max(next_, position);  // a reader that leaps does not wait for what it leapt over
    changed_.notify_all();
  }

  void fetch(const std::stop_token& stop) {
    uint64_t size = first_block;
    try {
      while (true) {
        auto block = std::make_shared<Block>();
        {
          std::unique_lock lock(mutex_);
          const auto wanted = [&] {
            next_ = std::max(next_, position_);
            return std::min(size, end_ - std::min(next_, end_));
          };
          // Whole blocks only: a request for every little room would be slow.
          if (!changed_.wait(lock, stop, [&] { return next_ + wanted() <= position_ + most_ahead; })) return;
          if (wanted() == 0) return;
          block->begin = next_;
          block->size = static_cast<size_t>(wanted());
          next_ = block->end();
          fetching_ = true;
          fetching_begin_ = block->begin;
        }
        block->bytes = std::make_unique_for_overwrite<std::byte[]>(block->size);
        source_->read_at(block->begin, {block->bytes.get(), block->size}, stop);
        size = std::min(2 * size, largest_block);
        const std::lock_guard lock(mutex_);
        fetching_ = false;
        if (block->end() > position_) blocks_.push_back(std::move(block));
        ++blocks_fetched_;
        changed_.notify_all();
      }
    } catch (...) {
      const std::lock_guard lock(mutex_);
      error_ = std::current_exception();
      fetching_ = false;
      ++blocks_fetched_;
      changed_.notify_all();
    }
  }

  std::shared_ptr<const ByteSource> source_;
  const uint64_t begin_;
  const uint64_t end_;

  mutable std::mutex mutex_;
  mutable std::condition_variable_any changed_;
  mutable std::deque<std::shared_ptr<const Block>> blocks_;  // one behind the other, rising
  mutable uint64_t position_;                                // how far readers have come
  mutable uint64_t next_;                                    // the first byte not yet asked for
  bool fetching_ = false;
  uint64_t fetching_begin_ = 0;
  uint64_t blocks_fetched_ = 0;
  std::exception_ptr error_;
  std::jthread thread_;
};

}  // namespace

std::shared_ptr<const ByteSource> read_ahead(std::shared_ptr<const ByteSource> source, uint64_t offset, uint64_t size) {
  const uint64_t begin = std::min(offset, source->size());
  const uint64_t end = begin + std::min(size, source->size() - begin);
  if (!source->is_remote() || begin == end) return source;
  return std::make_shared<ReadAhead>(std::move(source), begin, end);
}

}  // namespace mythos
