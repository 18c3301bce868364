#include "text/encode_lines.h"

#include <algorithm>
#include <charconv>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "text/json_lines.h"

namespace mythos {

namespace {

constexpr size_t block_bytes = size_t{256} << 10;

// Whole lines (the last of all may lack its line end), and what became of them.
struct Batch {
  std::string lines;
  int64_t first_number = 1;  // of the first line
  std::string answers;
  int64_t n = 0;
  std::exception_ptr error;  // what came after the answers
};

void append_ids(const std::vector<int32_t>& ids, std::string& out) {
  constexpr size_t longest = 12;  // digits and a comma
  const size_t before = out.size();
  out.resize(before + ids.size() * longest + 16);
  char* p = std::copy_n("{\"ids\":[", 8, out.data() + before);
  for (const int32_t id : ids) {
    p = std::to_chars(p, p + longest, id).ptr;
    *p++ = ',';
  }
  if (!ids.empty()) --p;
  p = std::copy_n("]}\n", 3, p);
  out.resize(static_cast<size_t>(p - out.data()));
}

void encode_batch(Batch& batch, const Tokenizer& tokenizer) {
  std::vector<int32_t> ids;
  int64_t number = batch.first_number;
  for (size_t begin = 0; begin < batch.lines.size(); ++number) {
    const size_t end = std::min(batch.lines.find('\n', begin), batch.lines.size());
    const std::string_view line = std::string_view(batch.lines).substr(begin, end - begin);
    begin = end + 1;
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    std::string text;
    try {
      text = json_text_field(line, "text");
    } catch (const Error& e) {
      throw failure(fmt::format("line {}: {}", number, e.what()), "each line must be an object {\"text\": \"...\"}");
    }
    ids.clear();
    tokenizer.encode(text, ids);
    append_ids(ids, batch.answers);
    ++batch.n;
  }
}

// Threads take batches in turn, work on them side by side, and write in the order in which they took them.
class LineEncoder {
 public:
  LineEncoder(const LineStreams& streams, const Tokenizer& tokenizer) : streams_(streams), tokenizer_(tokenizer) {}

  int64_t run(int threads) {
    std::vector<std::thread> others;
    for (int t = 1; t < threads; ++t) others.emplace_back([this] { work(); });
    work();
    for (auto& t : others) t.join();
    if (error_) std::rethrow_exception(error_);
    return done_;
  }

 private:
  void work() {
    Batch batch;
    while (true) {
      int64_t turn;
      {
        const std::lock_guard lock(reading_);
        if (ended_) return;
        turn = taken_++;
        batch.answers.clear();
        batch.n = 0;
        batch.error = nullptr;
        try {
          read(batch);
        } catch (...) {
          batch.error = std::current_exception();
          ended_ = true;
        }
      }
      if (!batch.error) {
        try {
          encode_batch(batch, tokenizer_);
        } catch (...) {
          batch.error = std::current_exception();
        }
      }
      std::unique_lock lock(writing_);
      its_turn_.wait(lock, [&] { return written_ == turn; });
      write(batch);
      ++written_;
      lock.unlock();
      its_turn_.notify_all();
    }
  }

  void read(Batch& batch) {
    batch.lines.swap(rest_);
    rest_.clear();
    batch.first_number = next_number_;
    while (!ended_) {
      const size_t before = batch.lines.size();
      batch.lines.resize(before + block_bytes);
      const size_t n = streams_.read(batch.lines.data() + before, block_bytes, ended_);
      batch.lines.resize(before + n);
      if (n == 0) ended_ = true;
      const size_t line_end = std::string_view(batch.lines).substr(before).rfind('\n');
      if (line_end == std::string_view::npos) continue;  // a line longer than that
      rest_.assign(batch.lines, before + line_end + 1);
      batch.lines.resize(before + line_end + 1);
      next_number_ += std::count(batch.lines.begin(), batch.lines.end(), '\n');
      return;
    }
  }

  void write(Batch& batch) {
    if (error_) return;
    try {
      if (!batch.answers.empty()) streams_.write(batch.answers);
      done_ += batch.n;
      error_ = batch.error;
    } catch (...) {
      error_ = std::current_exception();
    }
    if (error_) ended_ = true;
  }

  const LineStreams& streams_;
  const Tokenizer& tokenizer_;
  std::mutex reading_;
  std::string rest_;  // the beginning of a line
  int64_t next_number_ = 1;
  int64_t taken_ = 0;
  std::atomic<bool> ended_ = false;  // nothing more is to be read
  std::mutex writing_;
  std::condition_variable its_turn_;
  int64_t written_ = 0;
  int64_t done_ = 0;
  std::exception_ptr error_;
};

}  // namespace

int64_t encode_json_lines(const LineStreams& streams, const Tokenizer& tokenizer, int threads) {
  return LineEncoder(streams, tokenizer).run(std::max(1, threads));
}

}  // namespace mythos
