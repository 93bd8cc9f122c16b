// Only one call is in flight: each operation is started and then awaited.

#include <chrono>
#include <memory>

#include "absl/strings/str_cat.h"
#include "bench/transport/grpc_conversation.h"

namespace specfabric::bench {
namespace {

// The operations outstanding on a completion queue, counted, not told apart.
class Operations {
 public:
  explicit Operations(grpc::CompletionQueue* queue) : queue_(queue) {}

  // The tag of one more operation.
  void* Start() {
    ++outstanding_;
    return this;
  }
  // Spins until none is outstanding; true where all succeeded.
  bool Await() {
    bool all_ok = true;
    for (; outstanding_ > 0; --outstanding_) all_ok &= AwaitOne();
    return all_ok;
  }

 private:
  bool AwaitOne() {
    const gpr_timespec at_once = gpr_inf_past(GPR_CLOCK_MONOTONIC);
    void* tag = nullptr;
    bool ok = false;
    grpc::CompletionQueue::NextStatus next;
    do {
      next = queue_->AsyncNext(&tag, &ok, at_once);
    } while (next == grpc::CompletionQueue::TIMEOUT);
    return next == grpc::CompletionQueue::GOT_EVENT && ok;
  }

  grpc::CompletionQueue* const queue_;
  int outstanding_ = 0;
};

template <typename Conversation>
absl::Status ServeUnary(proto::Peers::AsyncService& service, grpc::ServerCompletionQueue* queue) {
  Operations operations(queue);
  typename Conversation::Request request;
  typename Conversation::Reply reply;
  while (true) {
    grpc::ServerContext context;
    grpc::ServerAsyncResponseWriter<typename Conversation::Reply> writer(&context);
    (service.*Conversation::kServeUnary)(&context, &request, &writer, queue, queue,
                                         operations.Start());
    if (!operations.Await()) return absl::CancelledError("the server was shut down");
    Answer(request, &reply);
    writer.Finish(reply, grpc::Status::OK, operations.Start());
    if (!operations.Await()) return absl::UnavailableError("the client has gone");
  }
}

template <typename Conversation>
absl::Status ServeStream(proto::Peers::AsyncService& service, grpc::ServerCompletionQueue* queue) {
  Operations operations(queue);
  typename Conversation::Request request;
  typename Conversation::Reply reply;
  grpc::ServerContext context;
  grpc::ServerAsyncReaderWriter<typename Conversation::Reply, typename Conversation::Request>
      stream(&context);
  (service.*Conversation::kServeStream)(&context, &stream, queue, queue, operations.Start());
  if (!operations.Await()) return absl::CancelledError("the server was shut down");
  while (true) {
    stream.Read(&request, operations.Start());
    if (!operations.Await()) break;  // the client is done
    Answer(request, &reply);
    stream.Write(reply, operations.Start());
    if (!operations.Await()) return absl::UnavailableError("the client has gone");
  }
  stream.Finish(grpc::Status::OK, operations.Start());
  operations.Await();
  return absl::OkStatus();
}

absl::Status ServeTest(const std::string& test, proto::Peers::AsyncService& service,
                       grpc::ServerCompletionQueue* queue) {
  if (test == kUnary) return ServeUnary<Echo>(service, queue);
  if (test == kStream) return ServeStream<Echo>(service, queue);
  if (test == kTreeUnary) return ServeUnary<Draft>(service, queue);
  return ServeStream<Draft>(service, queue);
}

// A queue must be empty before it is destroyed.
void Drain(grpc::CompletionQueue* queue) {
  queue->Shutdown();
  void* tag = nullptr;
  bool ok = false;
  while (queue->Next(&tag, &ok)) {
  }
}

template <typename Conversation>
absl::StatusOr<Latency> PollUnary(const Settings& settings, proto::Peers::Stub& stub) {
  grpc::CompletionQueue queue;
  Operations operations(&queue);
  typename Conversation::Request request = Conversation::First(settings);
  typename Conversation::Reply reply;
  return Measure(settings, [&]() -> absl::Status {
    Conversation::Next(request);
    grpc::ClientContext context;
    grpc::Status status;
    const auto call = Conversation::Call(stub, &context, request, &queue);
    call->Finish(&reply, &status, operations.Start());
    operations.Await();
    if (!status.ok()) return ToAbsl(status);
    return Conversation::IsAnswer(request, reply) ? absl::OkStatus()
                                                  : absl::DataLossError("a wrong answer");
  });
}

template <typename Conversation>
absl::StatusOr<Latency> PollStream(const Settings& settings, proto::Peers::Stub& stub) {
  grpc::CompletionQueue queue;
  Operations operations(&queue);
  grpc::ClientContext context;
  const auto stream = Conversation::Stream(stub, &context, &queue, operations.Start());
  bool ok = operations.Await();
  typename Conversation::Request request = Conversation::First(settings);
  typename Conversation::Reply reply;
  absl::StatusOr<Latency> latency = Measure(settings, [&]() -> absl::Status {
    if (!ok) return absl::UnavailableError("the stream has ended");
    Conversation::Next(request);
    stream->Read(&reply, operations.Start());
    stream->Write(request, operations.Start());
    ok = operations.Await();
    return !ok || Conversation::IsAnswer(request, reply) ? absl::OkStatus()
                                                         : absl::DataLossError("a wrong answer");
  });
  if (ok) {
    stream->WritesDone(operations.Start());
    operations.Await();
  }
  grpc::Status status;
  stream->Finish(&status, operations.Start());
  operations.Await();
  if (!status.ok()) return ToAbsl(status);
  return latency;
}

}  // namespace

absl::Status ServePolling(const Settings& settings) {
  proto::Peers::AsyncService service;
  grpc::ServerBuilder builder;
  Configure(settings, builder);
  builder.RegisterService(&service);
  const std::unique_ptr<grpc::ServerCompletionQueue> queue = builder.AddCompletionQueue();
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr) {
    Drain(queue.get());
    return absl::UnavailableError(absl::StrCat("cannot listen at ", settings.address));
  }
  absl::Status status = ServeTest(settings.test, service, queue.get());
  server->Shutdown(std::chrono::system_clock::now());
  Drain(queue.get());
  return status;
}

absl::StatusOr<Latency> MeasurePolling(const Settings& settings) {
  const std::unique_ptr<proto::Peers::Stub> stub = Connect(settings);
  if (settings.test == kUnary) return PollUnary<Echo>(settings, *stub);
  if (settings.test == kStream) return PollStream<Echo>(settings, *stub);
  if (settings.test == kTreeUnary) return PollUnary<Draft>(settings, *stub);
  return PollStream<Draft>(settings, *stub);
}

}  // namespace specfabric::bench
