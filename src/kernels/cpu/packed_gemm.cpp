#include "kernels/cpu/packed_gemm.h"

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <algorithm>

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>

// Everything that holds vector registers is compiled for them and called only where packed_gemm_runs().
#define MYTHOS_AVX2 __attribute__((target("avx2,fma")))

namespace mythos::cpu {
namespace {

// The micro-kernel holds 6 x 16 sums in 12 registers.
constexpr int64_t mr = 6, nr = 16;
// Steps of k in one pass: 16 columns of B (24 KB) stay in the first cache.
constexpr int64_t depth = 384;
// Rows of A (144 KB), or columns of B (192 KB), that stay in the second cache.
constexpr int64_t strip_rows = 96, strip_columns = 128;
// With so few rows threads share out the columns.
constexpr int64_t few_rows = 256;

constexpr int64_t parts_of(int64_t whole, int64_t part) { return (whole + part - 1) / part; }

// C rows are `row`, columns `column` apart.
struct Result {
  float* data;
  int64_t row, column;
  [[nodiscard]] Result at(int64_t i, int64_t j) const { return {data + i * row + j * column, row, column}; }
};

// The sums of R rows and 16 columns over k, stored or added to c.
template <int R>
MYTHOS_AVX2 void micro(int64_t k, MatrixView a, const float* b, float* c, int64_t stride, bool add) {
  __m256 left[R], right[R];
#pragma GCC unroll 6
  for (int i = 0; i < R; ++i) {
    left[i] = _mm256_setzero_ps();
    right[i] = _mm256_setzero_ps();
    _mm_prefetch(c + i * stride, _MM_HINT_T0);
    _mm_prefetch(c + i * stride + nr - 1, _MM_HINT_T0);
  }
  const float* x = a.data;
#pragma GCC unroll 4
  for (int64_t p = 0; p < k; ++p) {
    const __m256 b0 = _mm256_load_ps(b), b1 = _mm256_load_ps(b + 8);
    b += nr;
#pragma GCC unroll 6
    for (int i = 0; i < R; ++i) {
      const __m256 v = _mm256_broadcast_ss(x + i * a.row);
      left[i] = _mm256_fmadd_ps(v, b0, left[i]);
      right[i] = _mm256_fmadd_ps(v, b1, right[i]);
    }
    x += a.column;
  }
#pragma GCC unroll 6
  for (int i = 0; i < R; ++i) {
    float* out = c + i * stride;
    if (add) {
      left[i] = _mm256_add_ps(_mm256_loadu_ps(out), left[i]);
      right[i] = _mm256_add_ps(_mm256_loadu_ps(out + 8), right[i]);
    }
    _mm256_storeu_ps(out, left[i]);
    _mm256_storeu_ps(out + 8, right[i]);
  }
}

using Micro = void (*)(int64_t, MatrixView, const float*, float*, int64_t, bool);
constexpr Micro micro_of_rows[] = {nullptr, micro<1>, micro<2>, micro<3>, micro<4>, micro<5>, micro<6>};

// `rows` rows (up to 6) and `columns` columns (up to 16) of C.
void tile(int64_t rows, int64_t columns, int64_t k, MatrixView a, const float* b, Result c, bool add) {
  if (c.column == 1 && columns == nr) {
    micro_of_rows[rows](k, a, b, c.data, c.row, add);
    return;
  }
  alignas(32) float sums[mr * nr];
  micro_of_rows[rows](k, a, b, sums, nr, false);
  for (int64_t j = 0; j < columns; ++j) {
    for (int64_t i = 0; i < rows; ++i) {
      float& out = c.data[i * c.row + j * c.column];
      out = add ? out + sums[i * nr + j] : sums[i * nr + j];
    }
  }
}

// 16 columns of B and k of its rows, one row after the other. Columns that are not there become zeros.
MYTHOS_AVX2 void pack_columns(MatrixView b, int64_t k, int64_t columns, float* out) {
  int64_t p = 0;
  if (columns == nr && b.column == 1) {
    for (; p < k; ++p) {
      const float* in = b.data + p * b.row;
      _mm256_store_ps(out + p * nr, _mm256_loadu_ps(in));
      _mm256_store_ps(out + p * nr + 8, _mm256_loadu_ps(in + 8));
    }
  } else if (columns == nr && b.row == 1) {  // 8 x 8 at a time, turned in registers
    for (; p + 8 <= k; p += 8) {
      for (int64_t half = 0; half < nr; half += 8) {
        __m256 in[8], pairs[8], fours[8];
#pragma GCC unroll 8
        for (int i = 0; i < 8; ++i) in[i] = _mm256_loadu_ps(b.data + (half + i) * b.column + p);
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) {
          pairs[2 * i] = _mm256_unpacklo_ps(in[2 * i], in[2 * i + 1]);
          pairs[2 * i + 1] = _mm256_unpackhi_ps(in[2 * i], in[2 * i + 1]);
        }
#pragma GCC unroll 2
        for (int i = 0; i < 8; i += 4) {
          fours[i] = _mm256_shuffle_ps(pairs[i], pairs[i + 2], 0x44);
          fours[i + 1] = _mm256_shuffle_ps(pairs[i], pairs[i + 2], 0xEE);
          fours[i + 2] = _mm256_shuffle_ps(pairs[i + 1], pairs[i + 3], 0x44);
          fours[i + 3] = _mm256_shuffle_ps(pairs[i + 1], pairs[i + 3], 0xEE);
        }
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) {
          float* row = out + (p + i) * nr + half;
          _mm256_store_ps(row, _mm256_permute2f128_ps(fours[i], fours[i + 4], 0x20));
          _mm256_store_ps(row + 4 * nr, _mm256_permute2f128_ps(fours[i], fours[i + 4], 0x31));
        }
      }
    }
  }
  for (; p < k; ++p) {
    for (int64_t j = 0; j < nr; ++j) out[p * nr + j] = j < columns ? b.data[p * b.row + j * b.column] : 0.0F;
  }
}

// 6 rows of A and k of its columns, one column after the other. Rows that are not there are left out.
void pack_rows(MatrixView a, int64_t rows, int64_t k, float* out) {
  if (rows == mr && a.row == 1) {
    for (int64_t p = 0; p < k; ++p) {
      const float* in = a.data + p * a.column;
      _mm_storeu_ps(out + p * mr, _mm_loadu_ps(in));
      _mm_storel_epi64(reinterpret_cast<__m128i*>(out + p * mr + 4),
                       _mm_loadl_epi64(reinterpret_cast<const __m128i*>(in + 4)));
    }
    return;
  }
  for (int64_t p = 0; p < k; ++p) {
    for (int64_t i = 0; i < rows; ++i) out[p * mr + i] = a.data[i * a.row + p * a.column];
  }
}

// Fetches the rows that are needed next into the second cache, a few lines with each tile.
class Ahead {
 public:
  Ahead() = default;  // of nothing
  // `rows` rows of `length` floats, `stride` apart, fetched evenly by `calls` calls of step().
  Ahead(const float* data, int64_t rows, int64_t length, int64_t stride, int64_t calls)
      : row_(data),
        lines_in_row_(parts_of(length, 16)),
        stride_(stride),
        left_(rows * lines_in_row_),
        at_once_(parts_of(left_, calls)) {}
  void step() {
    for (int64_t n = std::min(at_once_, left_); n > 0; --n) {
      _mm_prefetch(row_ + line_ * 16, _MM_HINT_T1);
      --left_;
      if (++line_ == lines_in_row_) {
        line_ = 0;
        row_ += stride_;
      }
    }
  }

 private:
  const float* row_ = nullptr;
  int64_t lines_in_row_ = 0, stride_ = 0, left_ = 0, at_once_ = 0;
  int64_t line_ = 0;
};

// All of an operand, packed: pass by pass, in each pass panel by panel.
class Packed {
 public:
  Packed(int64_t k, int64_t panels, int64_t panel)
      : k_(k), panels_(panels), panel_(panel), store_(at::empty({k * panels * panel + 16}, at::kFloat)) {
    data_ = store_.mutable_data_ptr<float>();
    while (reinterpret_cast<uintptr_t>(data_) % 32 != 0) ++data_;
  }
  float* at(int64_t pass, int64_t panel) const {
    const int64_t begin = pass * depth;
    return data_ + (begin * panels_ + panel * std::min(depth, k_ - begin)) * panel_;
  }

 private:
  int64_t k_, panels_, panel_;
  at::Tensor store_;
  float* data_;
};

struct Product {
  int64_t m, n, k;
  MatrixView a, b;
  bool accumulate;
  Result c;
  [[nodiscard]] int64_t slivers() const { return parts_of(m, mr); }
  [[nodiscard]] int64_t panels() const { return parts_of(n, nr); }
  [[nodiscard]] int64_t passes() const { return parts_of(k, depth); }
  [[nodiscard]] int64_t depth_of(int64_t pass) const { return std::min(depth, k - pass * depth); }
  [[nodiscard]] MatrixView a_at(int64_t i, int64_t p) const {
    return {a.data + i * a.row + p * a.column, a.row, a.column};
  }
  [[nodiscard]] MatrixView b_at(int64_t p, int64_t j) const {
    return {b.data + p * b.row + j * b.column, b.row, b.column};
  }
};

// B is packed whole; threads share out strips of rows.
void by_rows(const Product& x) {
  const int64_t slivers = x.slivers(), panels = x.panels(), passes = x.passes();
  const Packed b(x.k, panels, nr);
  at::parallel_for(0, panels, std::max<int64_t>(1, 32768 / (x.k * nr)), [&](int64_t from, int64_t to) {
    for (int64_t j = from; j < to; ++j) {
      for (int64_t q = 0; q < passes; ++q) {
        pack_columns(x.b_at(q * depth, j * nr), x.depth_of(q), std::min(nr, x.n - j * nr), b.at(q, j));
      }
    }
  });
  const bool in_place = x.a.column == 1;
  const int64_t threads = at::get_num_threads();
  int64_t strips = std::max(parts_of(slivers, strip_rows / mr), threads);
  strips = std::min(parts_of(strips, threads) * threads, slivers);
  const auto first = [&](int64_t strip) { return slivers * strip / strips; };  // sliver
  at::parallel_for(0, strips, 1, [&](int64_t from, int64_t to) {
    const Packed strip_of_a(in_place ? 0 : depth, strip_rows / mr, mr);
    for (int64_t s = from; s < to; ++s) {
      const int64_t begin = first(s), end = first(s + 1);
      for (int64_t q = 0; q < passes; ++q) {
        const int64_t k = x.depth_of(q);
        if (!in_place) {
          for (int64_t i = begin; i < end; ++i) {
            pack_rows(x.a_at(i * mr, q * depth), std::min(mr, x.m - i * mr), k,
                      strip_of_a.at(0, 0) + (i - begin) * mr * k);
          }
        }
        const int64_t tiles = panels * (end - begin);
        Ahead ahead;
        if (in_place && q + 1 < passes) {
          ahead = Ahead(x.a_at(begin * mr, (q + 1) * depth).data, std::min(x.m, end * mr) - begin * mr,
                        x.depth_of(q + 1), x.a.row, tiles);
        } else if (in_place && s + 1 < to) {
          ahead = Ahead(x.a_at(end * mr, 0).data, std::min(x.m, first(s + 2) * mr) - end * mr, x.depth_of(0), x.a.row,
                        tiles);
        }
        for (int64_t j = 0; j < panels; ++j) {
          for (int64_t i = begin; i < end; ++i) {
            ahead.step();
            const MatrixView rows =
                in_place ? x.a_at(i * mr, q * depth) : MatrixView{strip_of_a.at(0, 0) + (i - begin) * mr * k, 1, mr};
            tile(std::min(mr, x.m - i * mr), std::min(nr, x.n - j * nr), k, rows, b.at(q, j), x.c.at(i * mr, j * nr),
                 x.accumulate || q > 0);
          }
        }
      }
    }
  });
}

// A, of few rows, is packed whole unless it can be read in place; threads share out the columns of B, which has them
// side by side, and pack what they need.
void by_columns(const Product& x) {
  const int64_t slivers = x.slivers(), panels = x.panels(), passes = x.passes();
  const bool in_place = x.a.column == 1;
  const Packed a(in_place ? 0 : x.k, slivers, mr);
  if (!in_place) {
    at::parallel_for(0, slivers, std::max<int64_t>(1, 32768 / (x.k * mr)), [&](int64_t from, int64_t to) {
      for (int64_t i = from; i < to; ++i) {
        for (int64_t q = 0; q < passes; ++q) {
          pack_rows(x.a_at(i * mr, q * depth), std::min(mr, x.m - i * mr), x.depth_of(q), a.at(q, i));
        }
      }
    });
  }
  at::parallel_for(0, panels, 1, [&](int64_t from, int64_t to) {
    const Packed strip(depth, strip_columns / nr, nr);
    for (int64_t begin = from; begin < to; begin += strip_columns / nr) {
      const int64_t end = std::min(to, begin + strip_columns / nr);
      const int64_t columns = std::min(x.n, end * nr) - begin * nr;
      for (int64_t q = 0; q < passes; ++q) {
        const int64_t k = x.depth_of(q);
        float* packed = strip.at(0, 0);
        for (int64_t j = begin; j < end; ++j) {
          pack_columns(x.b_at(q * depth, j * nr), k, std::min(nr, x.n - j * nr), packed + (j - begin) * nr * k);
        }
        const int64_t tiles = (end - begin) * slivers;
        Ahead ahead;
        if (q + 1 < passes) {
          ahead = Ahead(x.b_at((q + 1) * depth, begin * nr).data, x.depth_of(q + 1), columns, x.b.row, tiles);
        } else if (end < to) {
          ahead =
              Ahead(x.b_at(0, end * nr).data, x.depth_of(0), std::min(x.n - end * nr, strip_columns), x.b.row, tiles);
        }
        for (int64_t j = begin; j < end; ++j) {
          for (int64_t i = 0; i < slivers; ++i) {
            ahead.step();
            const MatrixView rows = in_place ? x.a_at(i * mr, q * depth) : MatrixView{a.at(q, i), 1, mr};
            tile(std::min(mr, x.m - i * mr), std::min(nr, x.n - j * nr), k, rows, packed + (j - begin) * nr * k,
                 x.c.at(i * mr, j * nr), x.accumulate || q > 0);
          }
        }
      }
    }
  });
}

}  // namespace

bool packed_gemm_runs() {
  static const bool runs = [] {
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  }();
  return runs;
}

bool packed_gemm_pays() {
  static const bool pays = packed_gemm_runs() && __builtin_cpu_is("amd") && !__builtin_cpu_supports("avx512f");
  return pays;
}

bool packed_gemm_takes(const MatrixView& a, const MatrixView& b) {
  return (a.row == 1 || a.column == 1) && (b.row == 1 || b.column == 1);
}

void packed_gemm(int64_t m, int64_t n, int64_t k, MatrixView a, MatrixView b, bool accumulate, float* c,
                 int64_t stride) {
  TORCH_CHECK(packed_gemm_runs() && packed_gemm_takes(a, b),
              "packed_gemm needs AVX2 and FMA, and operands with a stride of 1");
  if (m == 0 || n == 0) return;
  if (k == 0) {
    if (!accumulate) {
      for (int64_t i = 0; i < m; ++i) std::fill_n(c + i * stride, n, 0.0F);
    }
    return;
  }
  const Product x{m, n, k, a, b, accumulate, {c, stride, 1}};
  if (m < n && b.row == 1) {
    // The larger operand takes the place that needs no copy: C^T = B^T A^T.
    by_rows({n, m, k, {b.data, b.column, b.row}, {a.data, a.column, a.row}, accumulate, {c, 1, stride}});
  } else if (m <= few_rows && m < n) {
    by_columns(x);
  } else {
    by_rows(x);
  }
}

}  // namespace mythos::cpu

#else

namespace mythos::cpu {

bool packed_gemm_runs() { return false; }
bool packed_gemm_pays() { return false; }
bool packed_gemm_takes(const MatrixView&, const MatrixView&) { return false; }
void packed_gemm(int64_t, int64_t, int64_t, MatrixView, MatrixView, bool, float*, int64_t) {
  TORCH_CHECK(false, "packed_gemm is for x86-64");
}

}  // namespace mythos::cpu

#endif
