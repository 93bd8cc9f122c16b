#ifndef SPECFABRIC_METRICS_GATEWAY_METRICS_H_
#define SPECFABRIC_METRICS_GATEWAY_METRICS_H_

#include <array>
#include <cstddef>

#include "metrics/registry.h"

namespace specfabric::metrics {

enum class Endpoint {
  kCompletions,
  kChat,
  kResponses,
  kMessages,
  kModels,
  kTokenize,
  kDetokenize,
  kOther
};
constexpr int kEndpoints = 8;

struct GatewayMetrics {
  explicit GatewayMetrics(Registry& registry);

  // One answered HTTP request. A status code without a series counts as 500.
  void CountRequest(Endpoint endpoint, int code);

  // Status codes of answers; 499: the client closed the connection before its answer was complete.
  static constexpr std::array<int, 16> kCodes = {200, 204, 400, 401, 403, 404, 405, 413,
                                                 415, 429, 431, 499, 500, 503, 504, 505};
  std::array<std::array<Counter*, kCodes.size()>, kEndpoints> requests;

  Gauge& in_flight;            // completions and chat requests being answered
  Counter& disconnects;        // clients that closed the connection before the end
  Counter& resubmissions;      // choices sent again after their target was lost
  Counter& stale_tokens;       // messages dropped because their attempt had ended
  Counter& stalled_targets;    // dropped because their engines sent nothing
  Gauge& targets_up;           // targets that take work
  Counter& prompt_tokens;      // of answered requests
  Counter& output_tokens;      // emitted to clients
  Histogram& first_token;      // s from request to first token
  Histogram& inter_token;      // s between two deliveries of tokens of one choice
  Histogram& per_output;       // s for each token after the first, mean of one choice
  Histogram& request_seconds;  // s from request to the end of its answer
  Histogram& io_event;         // CPU s of one event on the io thread
  Gauge& io_event_max;         // the longest since start
};

}  // namespace specfabric::metrics

#endif  // SPECFABRIC_METRICS_GATEWAY_METRICS_H_
