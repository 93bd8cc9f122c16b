#ifndef SPECFABRIC_GATEWAY_ROUTES_H_
#define SPECFABRIC_GATEWAY_ROUTES_H_

// The HTTP endpoints. Runs on the io thread; work that grows with a request or its answer runs on
// an encoder thread (gateway/workers.h).

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>

#include "base/clock.h"
#include "boost/asio/awaitable.hpp"
#include "gateway/dispatcher.h"
#include "gateway/grammar_checker.h"
#include "gateway/http_server.h"
#include "gateway/prepare.h"
#include "gateway/tenants.h"
#include "gateway/workers.h"
#include "metrics/gateway_metrics.h"
#include "metrics/registry.h"
#include "tokenizer/tokenizer.h"
#include "trace/recorder.h"

namespace specfabric::gateway {

class Generation;

HttpResponse ErrorResponse(const ApiError& error, Api api = Api::kChat);
// The response header with the names of unknown fields.
HttpHeaders IgnoredFields(const std::vector<std::string>& names);

// What the routes use; all of it must outlive them.
struct RouteContext {
  std::function<ServedModel()> model;  // as currently served
  int64_t created = 0;                 // Unix time in seconds when serving began
  std::string version;
  std::string model_root;  // GatewayOptions
  const tokenizer::Tokenizer* tokenizer = nullptr;
  GrammarChecker* grammars = nullptr;
  Dispatcher* dispatcher = nullptr;
  const Tenants* tenants = nullptr;
  SamplingDefaults sampling_defaults = {};
  ChatFormat chat_format = {};
  metrics::Registry* registry = nullptr;
  metrics::GatewayMetrics* metrics = nullptr;
  Workers* workers = nullptr;
  std::function<bool()> draining;
  base::Nanos request_timeout = 0;  // 0: none
  base::Nanos slow_request = 0;     // requests that take longer are logged; 0: none are
  // Of streams: GatewayOptions.
  base::Nanos stream_header_delay = 0;
  base::Nanos stream_keep_alive = 0;
  trace::Recorder* recorder = nullptr;
};

class Routes {
 public:
  explicit Routes(RouteContext context) : context_(std::move(context)) {}

  boost::asio::awaitable<void> Handle(HttpExchange& exchange);
  // The answer to a request that gets to no route: it could not be read, or is not admitted.
  HttpResponse Refuse(const ApiError& error, const HttpRequest& request) const;

 private:
  struct Route;
  struct Call;  // a generation, its HTTP exchange and the timer that wakes its coroutine
  struct Made;  // a generation that can start, or the error answer

  HttpResponse Models(const HttpRequest& request) const;
  HttpResponse Alive(const HttpRequest& request) const;
  HttpResponse Ready(const HttpRequest& request) const;
  HttpResponse AboutTokenizer(const HttpRequest& request) const;
  HttpResponse Version(const HttpRequest& request) const;
  // On an encoder thread.
  HttpResponse Tokenize(const std::string& body, const ServedModel& model) const;
  HttpResponse Detokenize(const std::string& body, const ServedModel& model) const;
  HttpResponse CountTokens(const std::string& body, const ServedModel& model) const;
  HttpResponse Metrics(const std::string& body, const ServedModel& model) const;

  boost::asio::awaitable<void> AnswerElsewhere(HttpExchange& exchange, const Route& route);
  // These return the status to report: the one that was sent, 499 if the client closed the
  // connection, or that of an error after a stream had begun.
  boost::asio::awaitable<int> Generate(HttpExchange& exchange, Api api, base::Nanos received);
  boost::asio::awaitable<int> Answer(Call& call);
  boost::asio::awaitable<Made> MakeGeneration(HttpExchange& exchange, Api api);
  // At the end of a request: records its span, and logs it if it was slow.
  void Report(const Call& call, const base::TraceContext& trace, uint64_t span, int code,
              base::Nanos received);
  boost::asio::awaitable<int> AnswerWhole(Call& call);
  boost::asio::awaitable<int> AnswerInPieces(Call& call);
  // Until there is output, the end, or time to send a stream's header without.
  boost::asio::awaitable<void> UntilStreamBegins(Call& call);
  boost::asio::awaitable<HttpResponse> WholeAnswer(Call& call);
  template <typename F>
  boost::asio::awaitable<std::invoke_result_t<F&>> Format(size_t cost, F& job);
  boost::asio::awaitable<std::string> NextEvents(Call& call);
  boost::asio::awaitable<std::string> FirstEvents(Call& call);
  boost::asio::awaitable<std::string> LastEvents(Call& call);
  // Sends the response; a large one is freed on an encoder thread.
  boost::asio::awaitable<void> Respond(HttpExchange& exchange, HttpResponse& response);

  RouteContext context_;
  size_t starting_ = 0;  // choices of requests that are being started
};

}  // namespace specfabric::gateway

#endif  // SPECFABRIC_GATEWAY_ROUTES_H_
