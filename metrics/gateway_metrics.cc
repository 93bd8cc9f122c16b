#include "metrics/gateway_metrics.h"

#include <algorithm>
#include <string>

namespace specfabric::metrics {
namespace {

constexpr std::array<const char*, kEndpoints> kEndpointNames = {
    "/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages", "/v1/models",
    "/tokenize",       "/detokenize",          "other"};

}  // namespace

GatewayMetrics::GatewayMetrics(Registry& registry)
    : in_flight(registry.AddGauge("specfabric_gateway_requests_in_flight",
                                  "Completions and chat requests being answered")),
      disconnects(
          registry.AddCounter("specfabric_gateway_client_disconnects_total",
                              "Clients that closed the connection before the end of their answer")),
      resubmissions(registry.AddCounter("specfabric_gateway_resubmissions_total",
                                        "Choices sent again because their target was lost")),
      stale_tokens(registry.AddCounter("specfabric_gateway_stale_messages_total",
                                       "Token messages dropped because their attempt had ended")),
      stalled_targets(registry.AddCounter("specfabric_gateway_stalled_targets_total",
                                          "Targets dropped because their engines sent nothing")),
      targets_up(registry.AddGauge("specfabric_gateway_targets_up", "Targets that take work")),
      prompt_tokens(registry.AddCounter("specfabric_gateway_tokens_total",
                                        "Prompt tokens accepted, output tokens emitted",
                                        {{"kind", "prompt"}})),
      output_tokens(registry.AddCounter("specfabric_gateway_tokens_total",
                                        "Prompt tokens accepted, output tokens emitted",
                                        {{"kind", "output"}})),
      first_token(registry.AddHistogram("specfabric_gateway_time_to_first_token_seconds",
                                        "From request to the first token of a choice",
                                        ExponentialBounds(1e-3, 2, 17))),
      inter_token(registry.AddHistogram("specfabric_gateway_inter_token_latency_seconds",
                                        "Between two deliveries of tokens of a choice",
                                        ExponentialBounds(2.5e-4, 2, 15))),
      per_output(registry.AddHistogram("specfabric_gateway_time_per_output_token_seconds",
                                       "Mean over the tokens of a choice after the first",
                                       ExponentialBounds(2.5e-4, 2, 15))),
      request_seconds(registry.AddHistogram("specfabric_gateway_request_duration_seconds",
                                            "From request to the end of its answer",
                                            ExponentialBounds(1e-3, 2, 20))),
      // 1 ms, the most that an event should take, is one of the bounds.
      io_event(
          registry.AddHistogram("specfabric_gateway_io_event_seconds",
                                "CPU time of one event on the io thread, which delays every stream",
                                ExponentialBounds(1e-3 / 64, 4, 9))),
      io_event_max(
          registry.AddGauge("specfabric_gateway_io_event_max_seconds",
                            "The longest time of one event on the io thread since the start")) {
  for (int endpoint = 0; endpoint < kEndpoints; ++endpoint) {
    for (size_t code = 0; code < kCodes.size(); ++code) {
      requests[endpoint][code] = &registry.AddCounter(
          "specfabric_gateway_requests_total",
          "HTTP requests answered; code 499: the client closed the connection first",
          {{"endpoint", kEndpointNames[endpoint]}, {"code", std::to_string(kCodes[code])}});
    }
  }
}

void GatewayMetrics::CountRequest(Endpoint endpoint, int code) {
  auto found = std::find(kCodes.begin(), kCodes.end(), code);
  if (found == kCodes.end()) found = std::find(kCodes.begin(), kCodes.end(), 500);
  requests[static_cast<int>(endpoint)][found - kCodes.begin()]->Increment();
}

}  // namespace specfabric::metrics
