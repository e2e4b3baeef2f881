// SPDX-License-Identifier: Apache-2.0

#ifndef TFX_LARGEOUT_CORE_WORKSPACE_H_
#define TFX_LARGEOUT_CORE_WORKSPACE_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

namespace tfx::core {

// Memory that is kept from one call to the next: pages that the system has just given are slow.
class Workspace {
 public:
  // What is taken while a Scope lives goes back when it ends.
  class Scope {
   public:
    explicit Scope(Workspace& workspace)
        : workspace_(workspace), block_(workspace.block_), used_(workspace.used_) {}
    ~Scope() {
      workspace_.block_ = block_;
      workspace_.used_ = used_;
    }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Workspace& workspace_;
    size_t block_;
    int64_t used_;
  };

  // Room for n objects of a plain type, not initialised, on a cache line's boundary.
  template <typename T>
  T* Take(int64_t n) {
    const int64_t size =
        (n * static_cast<int64_t>(sizeof(T)) + kAlignment - 1) / kAlignment * kAlignment;
    while (block_ < blocks_.size() && used_ + size > blocks_[block_].size) NextBlock();
    if (block_ == blocks_.size()) AddBlock(size);
    char* at = blocks_[block_].begin + used_;
    used_ += size;
    return reinterpret_cast<T*>(at);
  }

 private:
  static constexpr int64_t kAlignment = 64;
  static constexpr int64_t kSmallestBlock = 1 << 20;

  struct Block {
    std::unique_ptr<char[]> memory;
    char* begin;
    int64_t size;
  };

  void NextBlock() {
    ++block_;
    used_ = 0;
  }

  void AddBlock(int64_t size) {
    size = std::max(size, kSmallestBlock);
    Block block = {std::unique_ptr<char[]>(new char[size + kAlignment]), nullptr, size};
    const auto address = reinterpret_cast<uintptr_t>(block.memory.get());
    block.begin = block.memory.get() + (kAlignment - address % kAlignment) % kAlignment;
    blocks_.push_back(std::move(block));
    used_ = 0;
  }

  std::vector<Block> blocks_;
  size_t block_ = 0;  // the one that is being used, or blocks_.size()
  int64_t used_ = 0;
};

}  // namespace tfx::core

#endif  // TFX_LARGEOUT_CORE_WORKSPACE_H_
