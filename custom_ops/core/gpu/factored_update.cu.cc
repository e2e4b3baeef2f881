// SPDX-License-Identifier: Apache-2.0

#include "core/gpu/factored_update.h"

#include "core/gpu/converted_copies.h"
#include "core/gpu/elimination.h"
#include "core/gpu/factored_rows.h"
#include "core/gpu/factored_step_arrays.h"
#include "core/gpu/lanczos.h"
#include "core/gpu/launch_each.h"
#include "core/gpu/products.h"

namespace tfx::core::gpu {
namespace {

// ---- The gradient: Y = Abar^T W, E = 2 G H Q + Y. A block for each example.

// sum_k g_a V[y], into `residual`, and alpha = sum_k g_a.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    SumTargets(FactoredStepArguments<T> step, StepArrays arrays) {
  const int64_t example = blockIdx.x, width = step.state.width;
  for (int64_t d = threadIdx.x; d < width; d += kThreads) {
    double sum = 0;
    ForEachLabel(step, arrays, example,
                 [&](int64_t first, double g) { sum += g * arrays.rows[first * width + d]; });
    arrays.residual[example * width + d] = sum;
  }
  if (threadIdx.x != 0) return;
  double alpha = 0;
  ForEachLabel(step, arrays, example, [&](int64_t, double g) { alpha += g; });
  arrays.alpha[example] = alpha;
}

// Y, which is (sum_k g_a V[y]) U so far, += alpha w + g_s c; E; 2 eta G H; and what H^T multiplies
// in w' = M w - eta H^T g_s and c' = M c - eta H^T (alpha + C g_s).
template <typename T>
__global__ void __launch_bounds__(kThreads)
    FinishGradient(FactoredStepArguments<T> step, StepArrays arrays, T* hidden_gradient) {
  TFX_SHARED_MEMORY(memory);
  const FactoredState<T>& state = step.state;
  const int64_t example = blockIdx.x, width = state.width, size = step.batch.batch;
  const double g_squares = step.gradients.g_squares[example], g_sum = step.gradients.g_sum[example];
  const double alpha = arrays.alpha[example], eta = arrays.rates->eta;
  double shift = 0, row_sum = 0;
  for (int64_t d = threadIdx.x; d < width; d += kThreads) {
    const int64_t at = example * width + d;
    const double h = arrays.hidden[at];
    const double y = arrays.y[at] + alpha * state.shift[d] + g_sum * state.row_sum[d];
    const double error = y + 2 * g_squares * step.gradients.gram_hidden[at];
    arrays.y[at] = y;
    arrays.error[at] = error;
    arrays.scaled[at] = 2 * eta * g_squares * h;
    hidden_gradient[at] = static_cast<T>(error);
    shift += h * state.shift[d];
    row_sum += h * state.row_sum[d];
  }
  shift = OfBlock(shift, Sum(), memory);
  row_sum = OfBlock(row_sum, Sum(), memory);
  if (threadIdx.x != 0) return;
  double* own = arrays.coefficients + example;
  own[kHiddenGSum * size] = g_sum;
  own[kHiddenAlpha * size] = alpha;
  own[kShiftStep * size] = eta * (2 * g_squares * shift + g_sum);
  own[kRowSumStep * size] = eta * (2 * g_squares * row_sum + alpha + state.num_classes * g_sum);
}

// ---- The step.

// x_y = sum of g_a h over the places of y. A block for each place.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    MergeExamples(FactoredStepArguments<T> step, StepArrays arrays) {
  const int64_t place = blockIdx.x, width = step.state.width;
  if (arrays.links.first[place] != place) return;
  for (int64_t d = threadIdx.x; d < width; d += kThreads) {
    double sum = 0;
    ForEachExample(step, arrays, place,
                   [&](int64_t i, double g) { sum += g * arrays.hidden[i * width + d]; });
    arrays.x[place * width + d] = sum;
  }
}

// The part of R^T = E - eta / 2 T H with E and Abar^T Abar H. A block for each example.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    BeginResidual(FactoredStepArguments<T> step, StepArrays arrays) {
  const int64_t example = blockIdx.x, width = step.state.width;
  const double g_sum = step.gradients.g_sum[example], eta = arrays.rates->eta;
  const double of_sum = arrays.alpha[example] + step.state.num_classes * g_sum;
  for (int64_t d = threadIdx.x; d < width; d += kThreads) {
    double sum = of_sum * arrays.vectors[kHiddenGSum * width + d] +
                 g_sum * arrays.vectors[kHiddenAlpha * width + d];
    ForEachLabel(step, arrays, example,
                 [&](int64_t first, double g) { sum += g * arrays.x[first * width + d]; });
    const int64_t at = example * width + d;
    arrays.residual[at] = arrays.error[at] - eta / 2 * sum;
  }
}

// I in the first n columns of rows `stride` apart. A thread for each number of I.
__global__ void __launch_bounds__(kThreads) SetToUnit(double* matrix, int64_t n, int64_t stride) {
  const int64_t at = OwnIndex();
  if (at < n * n) matrix[at / n * stride + at % n] = at / n == at % n ? 1 : 0;
}

// matrix [n, n] += from^T, rows of `from` being `stride` apart. A thread for each number.
__global__ void __launch_bounds__(kThreads)
    AddTransposed(const double* from, int64_t stride, int64_t n, double* matrix) {
  const int64_t at = OwnIndex();
  if (at < n * n) matrix[at] += from[at % n * stride + at / n];
}

// Whether |U'| |P'| / D or |U'| is too large, or |U'| too small. One block.
__global__ void __launch_bounds__(kThreads)
    JudgeCondition(StepArrays arrays, int64_t width, double max_condition) {
  TFX_SHARED_MEMORY(memory);
  double u_square = 0, p_square = 0;
  for (int64_t at = threadIdx.x; at < width * width; at += kThreads) {
    u_square += arrays.u[at] * arrays.u[at];
    p_square += arrays.p[at] * arrays.p[at];
  }
  u_square = OfBlock(u_square, Sum(), memory);
  p_square = OfBlock(p_square, Sum(), memory);
  if (threadIdx.x != 0) return;
  const double condition = sqrt(u_square) * sqrt(p_square) / width;  // the same after the decay
  const double scale = (1 - arrays.rates->decay) * sqrt(u_square / width);
  const bool is_well = condition <= max_condition && scale <= kMostScale && scale >= 1 / kMostScale;
  arrays.verdict->needs_anchor = !is_well && isfinite(max_condition) ? 1 : 0;
}

// Products one after another on a stream, up to the first error.
class Products {
 public:
  explicit Products(CUstream_st* stream) : stream_(stream) {}

  void Add(const Factor64& a, const Factor64& b, int64_t depth, const ProductSum& c) {
    if (error_.ok()) error_ = AddProduct(stream_, a, b, depth, c);
  }
  void Note(const Error& error) {
    if (error_.ok()) error_ = error;
  }
  Error error() const { return error_; }

 private:
  CUstream_st* stream_;
  Error error_;
};

// The products of a step. All shapes are by B and D.
template <typename T>
class StepProducts : public Products {
 public:
  StepProducts(CUstream_st* stream, const FactoredStepArguments<T>& step, const StepArrays& arrays)
      : Products(stream),
        stream_(stream),
        a_(arrays),
        size_(step.batch.batch),
        width_(step.state.width),
        n_(arrays.few ? size_ : width_) {}

  // Y = (sum_k g_a V[y]) U
  void Y() { Add({a_.residual, width_}, {a_.u, width_}, width_, {a_.y, width_, size_, width_}); }

  // vectors = coefficients H
  void Vectors() {
    Add({a_.coefficients, size_}, {a_.hidden, width_}, size_,
        {a_.vectors, width_, kNumVectors, width_});
  }

  // R^T -= 1/2 (E (2 eta G H)^T + 2 eta G H Y^T) H
  void Residual() {
    const ProductSum residual = {a_.residual, width_, size_, width_, -0.5, 1};
    if (a_.few) {
      Add({a_.error, width_}, {a_.scaled, width_, true}, width_, {a_.t, size_, size_, size_});
      Add({a_.scaled, width_}, {a_.y, width_, true}, width_, {a_.t, size_, size_, size_, 1, 1});
      Add({a_.t, size_}, {a_.hidden, width_}, size_, residual);
    } else {
      Add({a_.scaled, width_, true}, {a_.hidden, width_}, size_, {a_.k, width_, width_, width_});
      Add({a_.y, width_, true}, {a_.hidden, width_}, size_, {a_.j, width_, width_, width_});
      Add({a_.error, width_}, {a_.k, width_}, width_, residual);
      Add({a_.scaled, width_}, {a_.j, width_}, width_, residual);
    }
  }

  // (R H)^T
  void Half() {
    Add({a_.residual, width_, true}, {a_.hidden, width_}, size_, {a_.half, width_, width_, width_});
  }

  // U' = U - (U H^T) 2 eta G H
  void NewU() {
    Add({a_.u_hidden, width_, true}, {a_.scaled, width_}, size_,
        {a_.u, width_, width_, width_, -1, 1});
  }

  // P' = P M^-1 and H P'^T: where there are few examples by
  //   H P'^T = (I - H 2 eta (G H)^T)^-1 H P^T,  P' = P + (H P'^T)^T 2 eta G H,
  // else, with K = I - M = 2 eta H^T G H, by P' = P + (M^-1 K P^T)^T.
  void NewP() {
    const int64_t stride = n_ + width_;
    const ProductSum left = {a_.system, stride, n_, n_, -1, 1};
    const ProductSum right = {a_.system + n_, stride, n_, width_};
    TFX_LAUNCH_THREADS(SetToUnit, n_ * n_, stream_, a_.system, n_, stride);
    if (a_.few) {
      Add({a_.hidden, width_}, {a_.scaled, width_, true}, width_, left);
      Add({a_.hidden, width_}, {a_.p, width_, true}, width_, right);
    } else {
      Add({a_.scaled, width_, true}, {a_.hidden, width_}, size_, left);
      Add({a_.k, width_}, {a_.p, width_, true}, width_, right);
    }
    Note(Eliminate(stream_, n_, width_, a_.work, a_.system, &a_.verdict->is_safe));
    if (a_.few) {
      Add({a_.directions, stride, true}, {a_.scaled, width_}, size_,
          {a_.p, width_, width_, width_, 1, 1});
    } else {
      TFX_LAUNCH_THREADS(AddTransposed, width_ * width_, stream_, a_.system + n_, stride, width_,
                         a_.p);
      Add({a_.hidden, width_}, {a_.p, width_, true}, width_,
          {a_.directions, width_, size_, width_});
    }
  }

 private:
  CUstream_st* stream_;
  const StepArrays& a_;
  const int64_t size_, width_, n_;
};

}  // namespace

template <typename T>
int64_t FactoredUpdateScratchBytes(const FactoredStepArguments<T>& step) {
  Scratch scratch(nullptr);
  StepArrays arrays(step, &scratch);
  AnchorScratch(step.state.width, &scratch);
  return scratch.bytes();
}

const FactoredVerdict* VerdictIn(const void* scratch) {
  return static_cast<const FactoredVerdict*>(scratch);  // the first of StepArrays
}

template <typename T>
Error BeginFactoredUpdate(CUstream_st* stream, const FactoredStepArguments<T>& step, bool update,
                          void* memory, T* hidden_gradient) {
  const FactoredState<T>& state = step.state;
  const FactoredBatch<T>& batch = step.batch;
  const int64_t size = batch.batch, width = state.width, square = width * width;
  const int64_t num_places = size * batch.num_labels;
  Scratch scratch(memory);
  const StepArrays arrays(step, &scratch);
  StepProducts<T> products(stream, step, arrays);

  ForgetErrors();
  CheckFactoredStep(stream, state, batch, step.gradients, step.learning_rate, step.weight_decay,
                    arrays.verdict, arrays.rates);
  LinkLabels(stream, state, batch.labels, num_places, arrays.links);
  CurrentRows(stream, state, batch.labels, num_places, arrays.links, arrays.rows);
  Copy(stream, batch.hidden, size * width, arrays.hidden);
  Copy(stream, state.u, square, arrays.u);
  TFX_LAUNCH_BLOCKS(SumTargets<T>, size, stream, step, arrays);
  products.Y();
  if (size > 0) {
    TFX_LAUNCH(FinishGradient<T>, Grid(size), dim3(kThreads), kWarps * sizeof(double), stream, step,
               arrays, hidden_gradient);
  }
  if (!update) return products.error().ok() ? LastError() : products.error();

  Copy(stream, step.gradients.u_hidden, size * width, arrays.u_hidden);
  Copy(stream, state.u_inverse_transpose, square, arrays.p);
  products.Vectors();
  TFX_LAUNCH_BLOCKS(MergeExamples<T>, num_places, stream, step, arrays);
  TFX_LAUNCH_BLOCKS(BeginResidual<T>, size, stream, step, arrays);
  products.Residual();
  products.Half();
  products.NewU();
  products.NewP();
  TFX_LAUNCH(JudgeCondition, dim3(1), dim3(kThreads), kWarps * sizeof(double), stream, arrays,
             width, step.max_condition);
  TridiagonalUnlessSafe(stream, arrays.scaled, arrays.hidden, size, width, arrays.work,
                        arrays.verdict);
  return products.error().ok() ? LastError() : products.error();
}

#define TFX_INSTANTIATE(T)                                                      \
  template int64_t FactoredUpdateScratchBytes(const FactoredStepArguments<T>&); \
  template Error BeginFactoredUpdate(CUstream_st*, const FactoredStepArguments<T>&, bool, void*, T*)
TFX_INSTANTIATE(float);
TFX_INSTANTIATE(double);
#undef TFX_INSTANTIATE

}  // namespace tfx::core::gpu
