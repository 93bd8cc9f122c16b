#ifndef SPECFABRIC_BENCH_TRANSPORT_GRPC_CONVERSATION_H_
#define SPECFABRIC_BENCH_TRANSPORT_GRPC_CONVERSATION_H_

// The messages of the gRPC benchmark, for all of gRPC's programming interfaces: the echo of a
// payload, and a draft request answered by a tree.

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <memory>
#include <string>

#include "bench/transport/measure.h"
#include "bench/transport/peers.grpc.pb.h"

namespace specfabric::bench {

constexpr int kTreeNodes = 64;
constexpr int kAppendedTokens = 8;  // what the last round committed

// The server's answer. The payload is moved out of `request`, not copied.
inline void Answer(proto::Payload& request, proto::Payload* reply) {
  reply->mutable_data()->swap(*request.mutable_data());
}

inline void Answer(const proto::DraftRequest& request, proto::DraftReply* reply) {
  reply->Clear();
  reply->set_sequence(request.sequence());
  reply->set_round(request.round());
  reply->set_request_id(request.request_id());
  reply->mutable_parents()->Reserve(kTreeNodes);
  reply->mutable_tokens()->Reserve(kTreeNodes);
  reply->mutable_scores()->Reserve(kTreeNodes);
  for (uint32_t i = 0; i < kTreeNodes; ++i) {
    reply->add_parents(i / 2);
    reply->add_tokens(1000 + i);
    reply->add_scores(-0.1f * static_cast<float>(i));
  }
}

// A conversation defines the messages, the client's first one, how it changes from round to round,
// whether an answer is right, and the methods of the stub and the asynchronous service.
struct Echo {
  using Request = proto::Payload;
  using Reply = proto::Payload;
  static constexpr auto kServeUnary = &proto::Peers::AsyncService::RequestEcho;
  static constexpr auto kServeStream = &proto::Peers::AsyncService::RequestEchoStream;
  static constexpr auto kCall = &proto::Peers::Stub::Echo;

  static Request First(const Settings& settings) {
    Request request;
    request.set_data(std::string(settings.bytes, 'x'));
    return request;
  }
  static void Next(Request&) {}
  static bool IsAnswer(const Request& request, const Reply& reply) {
    return reply.data().size() == request.data().size();
  }
  static auto Call(proto::Peers::Stub& stub, grpc::ClientContext* context, const Request& request,
                   grpc::CompletionQueue* queue) {
    return stub.AsyncEcho(context, request, queue);
  }
  static auto Stream(proto::Peers::Stub& stub, grpc::ClientContext* context) {
    return stub.EchoStream(context);
  }
  static auto Stream(proto::Peers::Stub& stub, grpc::ClientContext* context,
                     grpc::CompletionQueue* queue, void* tag) {
    return stub.AsyncEchoStream(context, queue, tag);
  }
};

struct Draft {
  using Request = proto::DraftRequest;
  using Reply = proto::DraftReply;
  static constexpr auto kServeUnary = &proto::Peers::AsyncService::RequestDraft;
  static constexpr auto kServeStream = &proto::Peers::AsyncService::RequestDraftStream;
  static constexpr auto kCall = &proto::Peers::Stub::Draft;

  static Request First(const Settings&) {
    Request request;
    request.set_sequence(7);
    for (uint32_t i = 0; i < kAppendedTokens; ++i) request.add_append_tokens(1000 + i);
    return request;
  }
  static void Next(Request& request) {
    request.set_round(request.round() + 1);
    request.set_request_id(request.request_id() + 1);
  }
  static bool IsAnswer(const Request& request, const Reply& reply) {
    return reply.round() == request.round() && reply.tokens_size() == kTreeNodes &&
           reply.parents_size() == kTreeNodes && reply.scores_size() == kTreeNodes;
  }
  static auto Call(proto::Peers::Stub& stub, grpc::ClientContext* context, const Request& request,
                   grpc::CompletionQueue* queue) {
    return stub.AsyncDraft(context, request, queue);
  }
  static auto Stream(proto::Peers::Stub& stub, grpc::ClientContext* context) {
    return stub.DraftStream(context);
  }
  static auto Stream(proto::Peers::Stub& stub, grpc::ClientContext* context,
                     grpc::CompletionQueue* queue, void* tag) {
    return stub.AsyncDraftStream(context, queue, tag);
  }
};

// The tests of grpc_bench.
inline constexpr char kUnary[] = "unary";
inline constexpr char kStream[] = "stream";
inline constexpr char kTreeUnary[] = "tree_unary";
inline constexpr char kTreeStream[] = "tree_stream";

absl::Status ToAbsl(const grpc::Status& status);

// A builder that listens at settings.address, and a stub connected to it, both for messages of
// any size. The caller registers a service with the builder.
void Configure(const Settings& settings, grpc::ServerBuilder& builder);
std::unique_ptr<proto::Peers::Stub> Connect(const Settings& settings);

// --wait=poll: the completion-queue interface. One thread does everything and never sleeps between
// messages. Ends when a stream's client closes; not with unary clients, whose end is not reported.
absl::Status ServePolling(const Settings& settings);
absl::StatusOr<Latency> MeasurePolling(const Settings& settings);

// --wait=block: gRPC as it is commonly used, a callback server and a synchronous client, the
// fastest of the combinations that sleep. Does not end by itself.
absl::Status ServeSleeping(const Settings& settings);
absl::StatusOr<Latency> MeasureSleeping(const Settings& settings);

}  // namespace specfabric::bench

#endif  // SPECFABRIC_BENCH_TRANSPORT_GRPC_CONVERSATION_H_
