// gRPC C++, unary and bidirectional streaming, at its fastest: polling a completion queue, and with
// the fastest combination of its programming interfaces that sleeps.

#include <memory>

#include "bench/transport/grpc_conversation.h"

namespace specfabric::bench {
namespace {

constexpr int kUnlimited = -1;  // the default, 4 MiB, has no room for a 4 MiB payload's framing
constexpr int kStreamWindowBytes = 16 << 20;

absl::Status Serve(const Settings& settings) {
  return settings.poll ? ServePolling(settings) : ServeSleeping(settings);
}

absl::StatusOr<Latency> MeasureClient(const Settings& settings) {
  return settings.poll ? MeasurePolling(settings) : MeasureSleeping(settings);
}

}  // namespace

absl::Status ToAbsl(const grpc::Status& status) {
  return absl::UnavailableError("gRPC: " + status.error_message());
}

void Configure(const Settings& settings, grpc::ServerBuilder& builder) {
  builder.AddListeningPort(settings.address, grpc::InsecureServerCredentials());
  builder.SetMaxReceiveMessageSize(kUnlimited);
  builder.SetMaxSendMessageSize(kUnlimited);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, kStreamWindowBytes);
}

std::unique_ptr<proto::Peers::Stub> Connect(const Settings& settings) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kUnlimited);
  arguments.SetMaxSendMessageSize(kUnlimited);
  arguments.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, kStreamWindowBytes);
  return proto::Peers::NewStub(
      grpc::CreateCustomChannel(settings.address, grpc::InsecureChannelCredentials(), arguments));
}

}  // namespace specfabric::bench

int main(int argc, char** argv) {
  namespace bench = specfabric::bench;
  return bench::PeerMain(
      argc, argv,
      bench::Peer{.name = "grpc_bench",
                  .tests = {bench::kUnary, bench::kStream, bench::kTreeUnary, bench::kTreeStream},
                  .address_form = "IPv4:PORT or unix:PATH",
                  .serve = bench::Serve,
                  .measure = bench::MeasureClient});
}
