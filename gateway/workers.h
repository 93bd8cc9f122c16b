#ifndef SPECFABRIC_GATEWAY_WORKERS_H_
#define SPECFABRIC_GATEWAY_WORKERS_H_

// The gateway's encoder threads. All work that grows with a request or an answer is done here,
// never on the io thread: parsing, templates, tokenisation, formatting, and freeing large objects.
// Two threads, so that a text of megabytes does not delay short requests.

#include <cstddef>
#include <functional>
#include <type_traits>
#include <utility>

#include "boost/asio/awaitable.hpp"
#include "boost/asio/co_spawn.hpp"
#include "boost/asio/io_context.hpp"
#include "boost/asio/post.hpp"
#include "boost/asio/thread_pool.hpp"
#include "boost/asio/use_awaitable.hpp"

namespace specfabric::gateway {

// Selects the thread: kShort for work of at most some milliseconds.
enum class Work { kShort, kLong };

// Larger bodies are long work.
constexpr size_t kLongBody = 16 << 10;
inline Work WorkOfBody(size_t bytes) { return bytes > kLongBody ? Work::kLong : Work::kShort; }

class Workers {
 public:
  explicit Workers(boost::asio::io_context& io) : io_(io) {}

  // Runs `job` on an encoder thread and returns its result (default-constructible) to the
  // coroutine, on the io thread. `job` may refer to the coroutine's variables.
  template <typename F>
  boost::asio::awaitable<std::invoke_result_t<F&>> Run(Work work, F& job) {
    using Result = std::invoke_result_t<F&>;
    // `body` and `job` outlive the coroutine: this one awaits it.
    // NOLINTNEXTLINE(cppcoreguidelines-avoid-capturing-lambda-coroutines)
    auto body = [&job]() -> boost::asio::awaitable<Result> { co_return job(); };
    boost::asio::awaitable<Result> running = body();
    boost::asio::awaitable<Result> waiting = boost::asio::co_spawn(
        work == Work::kLong ? long_ : short_, std::move(running), boost::asio::use_awaitable);
    co_return co_await std::move(waiting);
  }

  // The same for callers that are not coroutines: runs `job`, then `done` on the io thread (not
  // after the gateway has stopped). `job` is destroyed on the encoder thread.
  template <typename F, typename G>
  void Post(Work work, F job, G done) {
    boost::asio::post(work == Work::kLong ? long_ : short_,
                      [this, job = std::move(job), done = std::move(done)]() mutable {
                        job();
                        boost::asio::post(io_, std::move(done));
                      });
  }

  // Destroys `value` on an encoder thread: freeing a large object takes time.
  template <typename T>
  void Discard(T value) {
    boost::asio::post(long_, [value = std::move(value)] {});
  }

  void Join() {
    short_.join();
    long_.join();
  }

 private:
  boost::asio::io_context& io_;
  boost::asio::thread_pool short_{1};
  boost::asio::thread_pool long_{1};
};

}  // namespace specfabric::gateway

#endif  // SPECFABRIC_GATEWAY_WORKERS_H_
