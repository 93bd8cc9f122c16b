#ifndef SPECFABRIC_GATEWAY_HTTP_BODY_H_
#define SPECFABRIC_GATEWAY_HTTP_BODY_H_

// A request's body, read into blocks. A string that grows to 16 MB would be copied several times,
// each copy blocking the io thread for milliseconds; blocks are joined on the thread that parses
// the body.

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace specfabric::gateway {

class HttpBody {
 public:
  static constexpr size_t kBlock = 256 << 10;

  void Append(const char* data, size_t size);
  size_t size() const { return size_; }
  // The whole body. Takes time linear in its size, or constant time for a body of one block.
  std::string Join() &&;

 private:
  std::vector<std::string> blocks_;  // all full but the last
  size_t size_ = 0;
};

inline void HttpBody::Append(const char* data, size_t size) {
  size_ += size;
  while (size > 0) {
    if (blocks_.empty() || blocks_.back().size() == kBlock) {
      blocks_.emplace_back();
      if (blocks_.size() > 1) blocks_.back().reserve(kBlock);
    }
    std::string& block = blocks_.back();
    const size_t part = std::min(size, kBlock - block.size());
    block.append(data, part);
    data += part;
    size -= part;
  }
}

inline std::string HttpBody::Join() && {
  if (blocks_.empty()) return {};
  std::string whole = std::move(blocks_.front());
  whole.reserve(size_);
  for (size_t i = 1; i < blocks_.size(); ++i) {
    whole += blocks_[i];
    std::string().swap(blocks_[i]);  // not twice the body at the end
  }
  blocks_.clear();
  size_ = 0;
  return whole;
}

}  // namespace specfabric::gateway

#endif  // SPECFABRIC_GATEWAY_HTTP_BODY_H_
