#ifndef SPECFABRIC_BASE_REUSED_VECTOR_H_
#define SPECFABRIC_BASE_REUSED_VECTOR_H_

// A vector that keeps its elements, and with them their memory, when it becomes smaller: for
// elements that own memory, in a buffer that is filled anew in every step.

#include <cstddef>
#include <initializer_list>
#include <utility>
#include <vector>

namespace specfabric::base {

template <typename T>
class ReusedVector {
 public:
  ReusedVector() = default;
  ReusedVector(std::initializer_list<T> elements) : kept_(elements), size_(elements.size()) {}
  ReusedVector(const ReusedVector&) = default;
  ReusedVector& operator=(const ReusedVector&) = default;
  ReusedVector(ReusedVector&& other) noexcept
      : kept_(std::move(other.kept_)), size_(std::exchange(other.size_, 0)) {}
  ReusedVector& operator=(ReusedVector&& other) noexcept {
    std::swap(kept_, other.kept_);
    size_ = std::exchange(other.size_, 0);
    return *this;
  }

  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  // Elements that were there before have the value that they had: the caller resets them.
  void Resize(size_t size) {
    if (size > kept_.size()) kept_.resize(size);
    size_ = size;
  }
  void push_back(T element) {
    Resize(size_ + 1);
    back() = std::move(element);
  }

  T& operator[](size_t i) { return kept_[i]; }
  const T& operator[](size_t i) const { return kept_[i]; }
  T& back() { return kept_[size_ - 1]; }
  T* begin() { return kept_.data(); }
  T* end() { return kept_.data() + size_; }
  const T* begin() const { return kept_.data(); }
  const T* end() const { return kept_.data() + size_; }

 private:
  std::vector<T> kept_;
  size_t size_ = 0;  // of kept_, those in use
};

}  // namespace specfabric::base

#endif  // SPECFABRIC_BASE_REUSED_VECTOR_H_
