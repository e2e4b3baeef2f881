// SPDX-License-Identifier: Apache-2.0
//
// Simulated lack of memory, in programs that are linked with failing_memory.cc: for operator new
// and mmap.

#ifndef TFX_LARGEOUT_TESTS_FAILING_MEMORY_H_
#define TFX_LARGEOUT_TESTS_FAILING_MEMORY_H_

#include <cstdint>
#include <new>

#include "core/execution.h"
#include "tests/expect.h"
#include "tests/workers.h"

namespace tfx::test {

// From now on, requests fail after n successful ones; with a negative n none fails.
void FailAfter(int64_t n);

// The peak bytes of operator new since the last call of CountAnew, which returns the bytes in use.
int64_t CountAnew();
int64_t MostBytesInUse();

// Calls call(execution) until it succeeds, with one more successful request each time, and expects
// that it throws bad_alloc until then, without changing `state()`.
template <typename State, typename Call>
void ExpectUnchangedWithoutMemory(const State& state, const Call& call, int num_workers = 2) {
  const auto before = state();
  const core::ParallelFor on_caller = core::OnCaller;  // starting threads takes memory, too
  for (int64_t n = 0;; ++n) {
    bool fails = false;
    {
      core::Workspace workspace;
      const core::Execution execution(core::InstructionSets().front(), num_workers, on_caller,
                                      workspace);
      FailAfter(n);
      try {
        const core::Workspace::Scope scope(workspace);
        call(execution);
      } catch (const std::bad_alloc&) {
        fails = true;
      }
      FailAfter(-1);
    }
    if (!fails) {
      EXPECT(n > 0);
      return;
    }
    EXPECT(state() == before);
  }
}

}  // namespace tfx::test

#endif  // TFX_LARGEOUT_TESTS_FAILING_MEMORY_H_
