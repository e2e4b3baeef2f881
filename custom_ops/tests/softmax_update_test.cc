// SPDX-License-Identifier: Apache-2.0

#include "core/softmax_update.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <thread>
#include <vector>

#include "tests/expect.h"

namespace tfx::core {

// As parallel as can be: sanitizers see every race.
void OneThreadAnIndex(int64_t n, const std::function<void(int64_t, int64_t)>& work, int64_t) {
  std::vector<std::thread> threads;
  for (int64_t i = 0; i < n; ++i) threads.emplace_back(work, i, i + 1);
  for (std::thread& thread : threads) thread.join();
}

struct Results {
  std::vector<float> kernel, bias, hidden_gradient;

  bool operator==(const Results& other) const {
    return kernel == other.kernel && bias == other.bias && hidden_gradient == other.hidden_gradient;
  }
};

struct Problem {
  Problem(int64_t batch, int64_t width, int64_t num_classes, int64_t num_labels)
      : width(width),
        num_classes(num_classes),
        hidden(batch * width),
        kernel(num_classes * width),
        bias(num_classes),
        target_gradient(batch * num_labels),
        log_z_gradient(batch),
        mean_gradient(batch),
        logsumexp(batch),
        labels(batch * num_labels) {
    std::mt19937 random(3);
    std::normal_distribution<float> normal;
    for (auto* array :
         {&hidden, &kernel, &bias, &target_gradient, &log_z_gradient, &mean_gradient}) {
      for (float& x : *array) x = normal(random);
    }
    for (float& w : kernel) w /= std::sqrt(static_cast<float>(width));
    for (int64_t& label : labels) label = static_cast<int64_t>(random() % (num_classes + 1)) - 1;
    for (int64_t i = 0; i < batch; ++i) {
      double sum = 0;
      for (int64_t c = 0; c < num_classes; ++c) sum += std::exp(Logit(i, c));
      logsumexp[i] = static_cast<float>(std::log(sum));
    }
  }

  double Logit(int64_t i, int64_t c) const {
    double sum = bias[c];
    for (int64_t d = 0; d < width; ++d)
      sum += double{kernel[c * width + d]} * hidden[i * width + d];
    return sum;
  }

  // A step of SGD with rate 1.
  Results Run(InstructionSet set, int num_workers, bool rounds, bool has_mean) const {
    Results r = {kernel, bias, std::vector<float>(hidden.size())};
    const ParallelFor on_threads = OneThreadAnIndex;
    Workspace workspace;
    const Execution execution(set, num_workers, on_threads, workspace);
    const RowUpdater updater({RowMethod::kSgd, 1, 1, INFINITY, 0, 0, 1, 1, 0}, nullptr,
                             execution.rows);
    const SoftmaxBatch batch = {
        hidden.data(),
        labels.data(),
        logsumexp.data(),
        target_gradient.data(),
        log_z_gradient.data(),
        has_mean ? mean_gradient.data() : nullptr,
        static_cast<int64_t>(logsumexp.size()),
        logsumexp.empty() ? 0 : static_cast<int64_t>(labels.size() / logsumexp.size()),
        rounds};
    SoftmaxUpdate({r.kernel.data(), r.bias.data(), false, num_classes, width},
                  {{r.kernel.data(), false, width, {nullptr, nullptr}, nullptr},
                   {r.bias.data(), false, 1, {nullptr, nullptr}, nullptr}},
                  batch, &updater, execution, r.hidden_gradient.data());
    return r;
  }

  // The definition.
  Results Expected(bool has_mean) const {
    const int64_t batch = logsumexp.size(), num_labels = batch == 0 ? 0 : labels.size() / batch;
    std::vector<double> w(kernel.begin(), kernel.end()), b(bias.begin(), bias.end());
    std::vector<double> dh(hidden.size());
    for (int64_t i = 0; i < batch; ++i) {
      for (int64_t c = 0; c < num_classes; ++c) {
        double g = log_z_gradient[i] * std::exp(Logit(i, c) - logsumexp[i]);
        if (has_mean) g += mean_gradient[i] / static_cast<double>(num_classes);
        for (int64_t k = i * num_labels; k < (i + 1) * num_labels; ++k) {
          if (labels[k] == c) g += target_gradient[k];
        }
        b[c] -= g;
        for (int64_t d = 0; d < width; ++d) {
          w[c * width + d] -= g * hidden[i * width + d];
          dh[i * width + d] += g * kernel[c * width + d];
        }
      }
    }
    return {{w.begin(), w.end()}, {b.begin(), b.end()}, {dh.begin(), dh.end()}};
  }

  const int64_t width, num_classes;
  std::vector<float> hidden, kernel, bias, target_gradient, log_z_gradient, mean_gradient,
      logsumexp;
  std::vector<int64_t> labels;
};

void ExpectClose(const std::vector<float>& got, const std::vector<float>& expected, float error) {
  float largest = 1;
  for (float x : expected) largest = std::max(largest, std::abs(x));
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT(std::abs(got[i] - expected[i]) <= error * largest);
  }
}

void Test(int64_t batch, int64_t width, int64_t num_classes, int64_t num_labels) {
  const Problem problem(batch, width, num_classes, num_labels);
  for (const bool has_mean : {false, true}) {
    const Results expected = problem.Expected(has_mean);
    for (InstructionSet set : kInstructionSets) {
      if (!Supports(set)) continue;
      for (const bool rounds : {false, true}) {
        const Results one_worker = problem.Run(set, 1, rounds, has_mean);
        const float error = rounds ? 2e-2f : 1e-5f;
        ExpectClose(one_worker.kernel, expected.kernel, error);
        ExpectClose(one_worker.bias, expected.bias, error);
        ExpectClose(one_worker.hidden_gradient, expected.hidden_gradient, error);
        EXPECT(problem.Run(set, 3, rounds, has_mean) == one_worker);
      }
    }
  }
}

}  // namespace tfx::core

int main() {
  using tfx::core::Test;
  Test(1, 1, 2, 1);
  Test(33, 65, 1009, 2);
  Test(200, 17, 500, 0);
  Test(100, 300, 123, 5);
  Test(0, 5, 10, 2);
  Test(4, 0, 10, 2);
  return tfx::test::Result();
}
