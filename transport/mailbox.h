#ifndef SPECFABRIC_TRANSPORT_MAILBOX_H_
#define SPECFABRIC_TRANSPORT_MAILBOX_H_

// A queue from any thread to one consumer that may sleep in the kernel. Lock-free: one word holds
// the newest of a list of items, or says that the list is empty, or that the consumer sleeps.

#include <algorithm>
#include <atomic>
#include <functional>
#include <utility>
#include <vector>

namespace specfabric::transport {

template <typename Item>
class Mailbox {
 public:
  // `wake` ends the consumer's sleep; it is called on the thread of the first producer after
  // PrepareSleep.
  explicit Mailbox(std::function<void()> wake) : wake_(std::move(wake)) {}
  ~Mailbox() {
    std::vector<Item> unread;
    TakeAll(unread);
  }

  void Push(Item item) {
    Node* node = new Node{std::move(item), nullptr};
    Node* newest = newest_.load(std::memory_order_relaxed);
    do {
      node->older = newest == &asleep_ ? nullptr : newest;
    } while (!newest_.compare_exchange_weak(newest, node, std::memory_order_acq_rel,
                                            std::memory_order_relaxed));
    if (newest == &asleep_) wake_();
  }

  // Consumer: everything pushed so far, oldest first. `items` must be empty.
  void TakeAll(std::vector<Item>& items) {
    if (newest_.load(std::memory_order_relaxed) == nullptr) return;
    Node* node = newest_.exchange(nullptr, std::memory_order_acquire);
    if (node == &asleep_) return;
    while (node != nullptr) {
      items.push_back(std::move(node->item));
      delete std::exchange(node, node->older);
    }
    std::reverse(items.begin(), items.end());
  }

  // Consumer: false when there is work; otherwise the next push calls `wake`, until TakeAll.
  bool PrepareSleep() {
    Node* none = nullptr;
    return newest_.compare_exchange_strong(none, &asleep_, std::memory_order_acq_rel);
  }

 private:
  struct Node {
    Item item;
    Node* older;
  };

  const std::function<void()> wake_;
  Node asleep_{Item(), nullptr};  // never in the list: its address means that the consumer sleeps
  std::atomic<Node*> newest_{nullptr};
};

}  // namespace specfabric::transport

#endif  // SPECFABRIC_TRANSPORT_MAILBOX_H_
