#ifndef SPECFABRIC_TRANSPORT_MAILBOX_H_
#define SPECFABRIC_TRANSPORT_MAILBOX_H_

// Hands work from any thread to one consumer that may be asleep in the kernel.

#include <functional>
#include <mutex>
#include <utility>
#include <vector>

namespace specfabric::transport {

template <typename Item>
class Mailbox {
 public:
  // `wake` ends the consumer's sleep; it is called on the producer's thread, and only between the
  // consumer's PrepareSleep and EndSleep.
  explicit Mailbox(std::function<void()> wake) : wake_(std::move(wake)) {}

  void Push(Item item) {
    bool asleep;
    {
      std::lock_guard lock(mutex_);
      items_.push_back(std::move(item));
      asleep = asleep_;
    }
    if (asleep) wake_();
  }

  // Consumer: everything pushed so far, in order. `items` must be empty.
  void TakeAll(std::vector<Item>& items) {
    std::lock_guard lock(mutex_);
    items.swap(items_);
  }

  // Consumer: false when there is work; otherwise later pushes call `wake` until EndSleep.
  bool PrepareSleep() {
    std::lock_guard lock(mutex_);
    asleep_ = items_.empty();
    return asleep_;
  }
  void EndSleep() {
    std::lock_guard lock(mutex_);
    asleep_ = false;
  }

 private:
  const std::function<void()> wake_;
  std::mutex mutex_;
  std::vector<Item> items_;
  bool asleep_ = false;
};

}  // namespace specfabric::transport

#endif  // SPECFABRIC_TRANSPORT_MAILBOX_H_
