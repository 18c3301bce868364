#include "text/speed.h"

#include <time.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <thread>

#include "base/random.h"

namespace mythos {

namespace {

double thread_seconds() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

template <class Action>
double seconds_of(const Action& action) {
  const double begin = thread_seconds();
  action();
  return std::max(thread_seconds() - begin, 1e-9);
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Keeps the compiler from leaving out what computes the value.
void use(uint64_t value) { asm volatile("" : : "r"(value) : "memory"); }

uint64_t sum_of(std::string_view bytes) {
  uint64_t sum = 0;
  size_t i = 0;
  for (; i + 8 <= bytes.size(); i += 8) {
    uint64_t word;
    std::memcpy(&word, bytes.data() + i, 8);
    sum += word;
  }
  for (; i < bytes.size(); ++i) sum += static_cast<unsigned char>(bytes[i]);
  return sum;
}

}  // namespace

std::vector<std::string_view> documents_of(std::string_view text, size_t document_bytes) {
  std::vector<std::string_view> documents;
  for (size_t begin = 0; begin < text.size();) {
    const size_t line_end = text.find('\n', std::min(text.size(), begin + document_bytes));
    const size_t end = line_end == std::string_view::npos ? text.size() : line_end + 1;
    documents.push_back(text.substr(begin, end - begin));
    begin = end;
  }
  return documents;
}

TextSpeed measure_text(const Tokenizer& tokenizer, const SpeedText& text, size_t document_bytes, int repetitions) {
  const auto documents = documents_of(text.bytes, document_bytes);
  TextSpeed speed;
  speed.name = text.name;
  speed.documents = static_cast<int64_t>(documents.size());
  speed.bytes = static_cast<int64_t>(text.bytes.size());
  std::vector<int32_t> ids;
  std::vector<double> encoding, splitting, reading;
  for (int r = 0; r < repetitions; ++r) {
    encoding.push_back(seconds_of([&] {
      speed.tokens = 0;
      for (const auto& document : documents) {
        ids.clear();
        tokenizer.encode(document, ids);
        speed.tokens += static_cast<int64_t>(ids.size());
      }
    }));
    splitting.push_back(seconds_of([&] {
      for (const auto& document : documents) use(tokenizer.count_pieces(document));
    }));
    reading.push_back(seconds_of([&] {
      for (const auto& document : documents) use(sum_of(document));
    }));
  }
  const auto bytes = static_cast<double>(speed.bytes);
  speed.bytes_per_s = bytes / median(encoding);
  speed.tokens_per_s = static_cast<double>(speed.tokens) / median(encoding);
  speed.split_bytes_per_s = bytes / median(splitting);
  speed.read_bytes_per_s = bytes / median(reading);
  return speed;
}

std::vector<ThreadSpeed> measure_threads(const Tokenizer& tokenizer, const SpeedText& text, size_t document_bytes,
                                         int most_threads, int repetitions) {
  const auto documents = documents_of(text.bytes, document_bytes);
  const auto bytes = static_cast<double>(text.bytes.size());
  std::vector<ThreadSpeed> speeds;
  for (int n = 1;; n = std::min(2 * n, most_threads)) {
    std::vector<double> wall, cpu;
    for (int r = 0; r < repetitions; ++r) {
      std::atomic<size_t> next = 0;
      std::vector<double> seconds(static_cast<size_t>(n));
      const auto begin = std::chrono::steady_clock::now();
      std::vector<std::thread> threads;
      for (auto& own : seconds) {
        threads.emplace_back([&] {
          std::vector<int32_t> ids;
          const double used = seconds_of([&] {
            for (size_t i = next++; i < documents.size(); i = next++) {
              ids.clear();
              tokenizer.encode(documents[i], ids);
            }
          });
          own = used;
        });
      }
      for (auto& t : threads) t.join();
      wall.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
      double all = 0;
      for (const double s : seconds) all += s;
      cpu.push_back(all);
    }
    ThreadSpeed speed;
    speed.threads = n;
    speed.bytes_per_s = bytes / std::max(median(wall), 1e-9);
    speed.cpu_ns_per_byte = 1e9 * median(cpu) / bytes;
    speed.speedup = speeds.empty() ? 1 : speed.bytes_per_s / speeds.front().bytes_per_s;
    speeds.push_back(speed);
    if (n >= most_threads) return speeds;
  }
}

std::vector<HostileSpeed> measure_hostile(const Tokenizer& tokenizer, size_t bytes, double prose_bytes_per_s,
                                          int repetitions) {
  Random random(1);
  const auto repeated = [](std::string_view unit) {
    return [unit](size_t size) {
      std::string text;
      while (text.size() < size) text += unit;
      return text;
    };
  };
  const auto drawn = [&random](std::string_view from) {
    return [&random, from](size_t size) {
      std::string text(size, '\0');
      for (char& c : text) c = from.empty() ? static_cast<char>(random.below(256)) : from[random.below(from.size())];
      return text;
    };
  };
  struct Kind {
    const char* name;
    std::function<std::string(size_t)> make;
    size_t bytes;
  };
  const std::vector<Kind> kinds = {
      {"one letter", repeated("a"), bytes},
      {"underscores", repeated("_"), bytes},
      {"spaces", repeated(" "), bytes},
      {"newlines", repeated("\n"), bytes},
      {"combining marks", repeated("\u0301"), bytes},
      {"emoji", repeated("\U0001F44D"), bytes},
      {"U+4E2D", repeated("\u4E2D"), bytes},
      {"random bytes", drawn(""), bytes},
      {"random symbols", drawn("!#$%&()*+,-.:;<=>?@[]^_`{|}~"), bytes},
      {"one word of random letters", drawn("abcdefghijklmnopqrstuvwxyz"), 10 * bytes},
  };
  std::vector<HostileSpeed> speeds;
  std::vector<int32_t> ids;
  for (const Kind& kind : kinds) {
    const std::string once = kind.make(kind.bytes);
    const std::string twice = kind.make(2 * kind.bytes);
    std::vector<double> ratios, seconds;
    for (int r = 0; r < repetitions; ++r) {
      const auto time = [&](const std::string& text) {
        return seconds_of([&] {
          ids.clear();
          tokenizer.encode(text, ids);
        });
      };
      const double short_time = time(once);
      const double long_time = time(twice);
      ratios.push_back(long_time / short_time);
      seconds.push_back(long_time);
    }
    HostileSpeed speed;
    speed.name = kind.name;
    speed.bytes = static_cast<int64_t>(once.size());
    speed.ratio = median(ratios);
    speed.ns_per_byte = 1e9 * median(seconds) / static_cast<double>(twice.size());
    speed.against_prose = speed.ns_per_byte * prose_bytes_per_s / 1e9;
    speeds.push_back(speed);
  }
  return speeds;
}

}  // namespace mythos
