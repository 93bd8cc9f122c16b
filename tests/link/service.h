#ifndef SPECFABRIC_TESTS_LINK_SERVICE_H_
#define SPECFABRIC_TESTS_LINK_SERVICE_H_

// A link whose events are recorded and can be waited for.

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "link/link.h"
#include "tests/transport/network.h"

namespace specfabric::link {

// How long a test waits for something that must happen; reaching it is a failure.
constexpr std::chrono::seconds kTestTimeout{60};

// Options of a service on this machine, with short waits so that tests end soon.
inline LinkOptions TestOptions(schemas::Role role) {
  LinkOptions options;
  options.fabric = transport::LoopbackOptions();
  options.hello.role = role;
  options.hello.model = "test-model";
  options.hello.build = "test";
  options.min_backoff = 5 * base::kMillisecond;
  options.max_backoff = 100 * base::kMillisecond;
  return options;
}

class Service {
 public:
  struct Up {
    PeerId peer;
    schemas::Hello hello;
    std::string address;
  };

  // The tag of tensors that the service does not admit.
  static constexpr uint64_t kUnwanted = 666;

  explicit Service(LinkOptions options) {
    LinkHandler handler;
    handler.on_up = [this](PeerId peer, const schemas::Hello& hello, const std::string& address) {
      Note([&] { ups_.push_back({peer, hello, address}); });
    };
    handler.on_message = [this](PeerId peer, Message message) {
      Note([&] { messages_.emplace_back(peer, std::move(message)); });
    };
    handler.admit_tensor = [](PeerId, const transport::TensorFields& fields) {
      return fields.tag != kUnwanted;
    };
    handler.on_tensor = [this](PeerId peer, transport::Tensor&& tensor) {
      Note([&] { tensors_.emplace_back(peer, std::move(tensor)); });
    };
    handler.on_refused = [this](PeerId, const transport::TensorFields& fields,
                                const absl::Status& status) {
      Note([&] { refused_.emplace_back(fields.tag, status); });
    };
    handler.on_down = [this](PeerId peer, const absl::Status& status) {
      Note([&] { downs_.emplace_back(peer, status); });
    };
    auto link = Link::Create(std::move(options), std::move(handler));
    AbortUnless(link.status());
    link_ = *std::move(link);
    AbortUnless(link_->Start());
  }

  Link& link() { return *link_; }
  void Destroy() { link_.reset(); }

  // False: `condition` did not come true in time. It is evaluated under the service's lock.
  bool WaitFor(const std::function<bool()>& condition) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kTestTimeout, condition);
  }
  bool WaitForUps(size_t count) {
    return WaitFor([&] { return ups_.size() >= count; });
  }
  bool WaitForDowns(size_t count) {
    return WaitFor([&] { return downs_.size() >= count; });
  }
  bool WaitForMessages(size_t count) {
    return WaitFor([&] { return messages_.size() >= count; });
  }

  bool WaitForTensors(size_t count) {
    return WaitFor([&] { return tensors_.size() >= count; });
  }
  bool WaitForRefused(size_t count) {
    return WaitFor([&] { return refused_.size() >= count; });
  }

  std::vector<Up> ups() {
    std::lock_guard lock(mutex_);
    return ups_;
  }
  std::vector<std::pair<PeerId, absl::Status>> downs() {
    std::lock_guard lock(mutex_);
    return downs_;
  }
  std::vector<std::pair<PeerId, Message>> TakeMessages() {
    std::lock_guard lock(mutex_);
    return std::exchange(messages_, {});
  }
  // Large ones: the bytes of small ones last for the callback only.
  std::vector<std::pair<PeerId, transport::Tensor>> TakeTensors() {
    std::lock_guard lock(mutex_);
    return std::exchange(tensors_, {});
  }
  std::vector<std::pair<uint64_t, absl::Status>> refused() {
    std::lock_guard lock(mutex_);
    return refused_;
  }

 private:
  static void AbortUnless(const absl::Status& ok) {
    if (ok.ok()) return;
    std::fprintf(stderr, "%s\n", ok.ToString().c_str());
    std::abort();
  }
  void Note(const std::function<void()>& change) {
    std::lock_guard lock(mutex_);
    change();
    changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Up> ups_;
  std::vector<std::pair<PeerId, Message>> messages_;
  std::vector<std::pair<PeerId, transport::Tensor>> tensors_;
  std::vector<std::pair<uint64_t, absl::Status>> refused_;  // by tag
  std::vector<std::pair<PeerId, absl::Status>> downs_;
  std::unique_ptr<Link> link_;  // last: destroyed before what its callbacks use
};

}  // namespace specfabric::link

#endif  // SPECFABRIC_TESTS_LINK_SERVICE_H_
