// Grouped GEMM on tensor cores from CUTLASS's templates for compute capability 8.0, which every later device runs too.
// The problems' sizes and addresses are made on the device, from the ends of its groups: the host waits for nothing.
#include "kernels/cuda/grouped_gemm.h"

#include <cutlass/epilogue/thread/linear_combination.h>
#include <cutlass/gemm/device/gemm_grouped.h>
#include <cutlass/gemm/kernel/default_gemm_grouped.h>

#include <stdexcept>
#include <string>

namespace mythos::cuda {
namespace {

using cutlass::bfloat16_t;
using cutlass::layout::ColumnMajor;
using cutlass::layout::RowMajor;

// Arrays over the groups, one after another in the workspace.
struct Problems {
  cutlass::gemm::GemmCoord* sizes;
  void **a, **b, **out;
  int64_t *lda, *ldb, *ldout;
  Problems(void* workspace, int groups) {
    auto* p = static_cast<char*>(workspace);
    const auto take = [&p, groups](size_t size) {
      char* const at = p;
      p += (size * static_cast<size_t>(groups) + 15) / 16 * 16;
      return at;
    };
    sizes = reinterpret_cast<cutlass::gemm::GemmCoord*>(take(sizeof(cutlass::gemm::GemmCoord)));
    a = reinterpret_cast<void**>(take(sizeof(void*)));
    b = reinterpret_cast<void**>(take(sizeof(void*)));
    out = reinterpret_cast<void**>(take(sizeof(void*)));
    lda = reinterpret_cast<int64_t*>(take(sizeof(int64_t)));
    ldb = reinterpret_cast<int64_t*>(take(sizeof(int64_t)));
    ldout = reinterpret_cast<int64_t*>(take(sizeof(int64_t)));
  }
};

__global__ void describe(GroupedGemmArgs args, Problems problems) {
  for (int g = static_cast<int>(threadIdx.x); g < args.groups; g += static_cast<int>(blockDim.x)) {
    const int64_t first = g > 0 ? args.ends[g - 1] : 0;
    const int rows = static_cast<int>(args.ends[g] - first);
    const auto* a = static_cast<const bfloat16_t*>(args.a);
    const auto* b = static_cast<const bfloat16_t*>(args.b);
    if (args.form == GroupedForm::gradient) {
      problems.sizes[g] = {args.m, args.n, rows};
      problems.a[g] = const_cast<bfloat16_t*>(a + first * args.m);
      problems.b[g] = const_cast<bfloat16_t*>(b + first * args.n);
      problems.out[g] = static_cast<float*>(args.out) + static_cast<int64_t>(g) * args.m * args.n;
      problems.lda[g] = args.m;
      problems.ldb[g] = args.n;
    } else {
      problems.sizes[g] = {rows, args.n, args.k};
      problems.a[g] = const_cast<bfloat16_t*>(a + first * args.k);
      problems.b[g] = const_cast<bfloat16_t*>(b + static_cast<int64_t>(g) * args.n * args.k);
      problems.out[g] = static_cast<bfloat16_t*>(args.out) + first * args.n;
      problems.lda[g] = args.k;
      problems.ldb[g] = args.form == GroupedForm::rows_transposed ? args.k : args.n;
    }
    problems.ldout[g] = args.n;
  }
}

template <class LayoutA, class LayoutB, class Out>
using Gemm = cutlass::gemm::device::GemmGrouped<typename cutlass::gemm::kernel::DefaultGemmGrouped<
    bfloat16_t, LayoutA, cutlass::ComplexTransform::kNone, 8, bfloat16_t, LayoutB, cutlass::ComplexTransform::kNone, 8,
    Out, RowMajor, float, cutlass::arch::OpClassTensorOp, cutlass::arch::Sm80, cutlass::gemm::GemmShape<128, 128, 32>,
    cutlass::gemm::GemmShape<64, 64, 32>, cutlass::gemm::GemmShape<16, 8, 16>,
    cutlass::epilogue::thread::LinearCombination<Out, 16 / sizeof(Out), float, float>,
    cutlass::gemm::threadblock::GemmBatchedIdentityThreadblockSwizzle, 4,
    cutlass::gemm::kernel::GroupScheduleMode::kDeviceOnly>::GemmKernel>;

void check(cutlass::Status status, const char* what) {
  if (status == cutlass::Status::kSuccess) return;
  throw std::runtime_error(std::string("CUTLASS's grouped GEMM could not ") + what + ": " +
                           cutlass::cutlassGetStatusString(status));
}

template <class G>
void run(const GroupedGemmArgs& args, const Problems& problems, float beta) {
  // As many blocks as the device holds at once; they take tiles in turn. Asking takes long, and the answer stays.
  static const int blocks = G::sufficient();
  if (blocks <= 0) throw std::runtime_error("CUTLASS's grouped GEMM does not fit this device");
  using Element = typename G::ElementA;
  using Out = typename G::ElementC;
  const typename G::EpilogueOutputOp::Params epilogue(1.0F, beta);
  const typename G::Arguments arguments(
      problems.sizes, args.groups, blocks, epilogue, reinterpret_cast<Element**>(problems.a),
      reinterpret_cast<Element**>(problems.b), reinterpret_cast<Out**>(problems.out),
      reinterpret_cast<Out**>(problems.out), problems.lda, problems.ldb, problems.ldout, problems.ldout);
  G gemm;
  const auto stream = static_cast<cudaStream_t>(args.stream);
  check(gemm.initialize(arguments, nullptr, stream), "start");
  check(gemm.run(stream), "run");
}

}  // namespace

size_t grouped_workspace(int groups) {
  const auto n = static_cast<size_t>(groups);
  return n * (sizeof(cutlass::gemm::GemmCoord) + 3 * sizeof(void*) + 3 * sizeof(int64_t)) + 7 * size_t{16};
}

namespace on_device {

void grouped_gemm(const GroupedGemmArgs& args) {
  if (args.groups <= 0) return;
  const Problems problems(args.workspace, args.groups);
  describe<<<1, 128, 0, static_cast<cudaStream_t>(args.stream)>>>(args, problems);
  if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess) {
    throw std::runtime_error(std::string("a CUDA kernel did not start: ") + cudaGetErrorString(error));
  }
  switch (args.form) {
    case GroupedForm::rows_transposed:
      return run<Gemm<RowMajor, ColumnMajor, bfloat16_t>>(args, problems, 0.0F);
    case GroupedForm::rows:
      return run<Gemm<RowMajor, RowMajor, bfloat16_t>>(args, problems, 0.0F);
    case GroupedForm::gradient:
      return run<Gemm<ColumnMajor, RowMajor, float>>(args, problems, 1.0F);
  }
}

}  // namespace on_device
}  // namespace mythos::cuda
