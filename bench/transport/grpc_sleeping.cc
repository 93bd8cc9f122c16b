#include <memory>

#include "absl/strings/str_cat.h"
#include "bench/transport/grpc_conversation.h"

namespace specfabric::bench {
namespace {

// Reads and answers until the client is done. gRPC uses it during the call and calls OnDone at the
// end, which deletes it.
template <typename Conversation>
class StreamReactor
    : public grpc::ServerBidiReactor<typename Conversation::Request, typename Conversation::Reply> {
 public:
  StreamReactor() { this->StartRead(&request_); }
  void OnReadDone(bool ok) override {
    if (!ok) {
      this->Finish(grpc::Status::OK);
      return;
    }
    Answer(request_, &reply_);
    this->StartWrite(&reply_);
  }
  void OnWriteDone(bool ok) override {
    if (ok) {
      this->StartRead(&request_);
    } else {
      this->Finish(grpc::Status::CANCELLED);
    }
  }
  void OnDone() override { delete this; }

 private:
  Conversation::Request request_;
  Conversation::Reply reply_;
};

class Service : public proto::Peers::CallbackService {
 public:
  grpc::ServerUnaryReactor* Echo(grpc::CallbackServerContext* context,
                                 const proto::Payload* request, proto::Payload* reply) override {
    reply->set_data(request->data());
    return Finished(context);
  }
  grpc::ServerUnaryReactor* Draft(grpc::CallbackServerContext* context,
                                  const proto::DraftRequest* request,
                                  proto::DraftReply* reply) override {
    Answer(*request, reply);
    return Finished(context);
  }
  grpc::ServerBidiReactor<proto::Payload, proto::Payload>* EchoStream(
      grpc::CallbackServerContext*) override {
    return new StreamReactor<bench::Echo>;
  }
  grpc::ServerBidiReactor<proto::DraftRequest, proto::DraftReply>* DraftStream(
      grpc::CallbackServerContext*) override {
    return new StreamReactor<bench::Draft>;
  }

 private:
  static grpc::ServerUnaryReactor* Finished(grpc::CallbackServerContext* context) {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }
};

template <typename Conversation>
absl::StatusOr<Latency> MeasureUnary(const Settings& settings, proto::Peers::Stub& stub) {
  typename Conversation::Request request = Conversation::First(settings);
  typename Conversation::Reply reply;
  return Measure(settings, [&]() -> absl::Status {
    Conversation::Next(request);
    grpc::ClientContext context;
    const grpc::Status status = (stub.*Conversation::kCall)(&context, request, &reply);
    if (!status.ok()) return ToAbsl(status);
    return Conversation::IsAnswer(request, reply) ? absl::OkStatus()
                                                  : absl::DataLossError("a wrong answer");
  });
}

template <typename Conversation>
absl::StatusOr<Latency> MeasureStream(const Settings& settings, proto::Peers::Stub& stub) {
  grpc::ClientContext context;
  const auto stream = Conversation::Stream(stub, &context);
  typename Conversation::Request request = Conversation::First(settings);
  typename Conversation::Reply reply;
  absl::StatusOr<Latency> latency = Measure(settings, [&]() -> absl::Status {
    Conversation::Next(request);
    if (!stream->Write(request) || !stream->Read(&reply)) {
      return absl::UnavailableError("the stream has ended");
    }
    return Conversation::IsAnswer(request, reply) ? absl::OkStatus()
                                                  : absl::DataLossError("a wrong answer");
  });
  stream->WritesDone();
  if (const grpc::Status status = stream->Finish(); !status.ok()) return ToAbsl(status);
  return latency;
}

}  // namespace

absl::Status ServeSleeping(const Settings& settings) {
  Service service;
  grpc::ServerBuilder builder;
  Configure(settings, builder);
  builder.RegisterService(&service);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr) {
    return absl::UnavailableError(absl::StrCat("cannot listen at ", settings.address));
  }
  server->Wait();
  return absl::OkStatus();
}

absl::StatusOr<Latency> MeasureSleeping(const Settings& settings) {
  const std::unique_ptr<proto::Peers::Stub> stub = Connect(settings);
  if (settings.test == kUnary) return MeasureUnary<Echo>(settings, *stub);
  if (settings.test == kStream) return MeasureStream<Echo>(settings, *stub);
  if (settings.test == kTreeUnary) return MeasureUnary<Draft>(settings, *stub);
  return MeasureStream<Draft>(settings, *stub);
}

}  // namespace specfabric::bench
