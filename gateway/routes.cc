#include "gateway/routes.h"

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/random.h"
#include "boost/asio/as_tuple.hpp"
#include "boost/asio/co_spawn.hpp"
#include "boost/asio/steady_timer.hpp"
#include "boost/asio/this_coro.hpp"
#include "boost/asio/use_awaitable.hpp"
#include "gateway/foreign_options.h"
#include "gateway/generation.h"
#include "gateway/openai_format.h"
#include "gateway/openai_parse.h"
#include "spdlog/spdlog.h"
#include "trace/traceparent.h"

namespace specfabric::gateway {

namespace asio = boost::asio;
using metrics::Endpoint;

namespace {

constexpr auto kNoThrow = asio::as_tuple(asio::use_awaitable);
constexpr int kClientGone = 499;
// Bodies beyond this are parsed and encoded away from the io thread, so that a long prompt does not
// hold up everybody's tokens.
constexpr size_t kLongBody = 16 << 10;

HttpResponse ErrorResponse(const ApiError& error) {
  HttpResponse response{.status = error.status, .body = ErrorBody(error)};
  if (error.retry_after > 0) {
    response.headers = {{"Retry-After", std::to_string(error.retry_after)}};
  }
  return response;
}

// Of two times, of which 0 means none.
base::Nanos Shorter(base::Nanos a, base::Nanos b) {
  return a == 0 ? b : b == 0 ? a : std::min(a, b);
}

// The names of what was not understood, for the answer.
HttpHeaders IgnoredFields(const std::vector<std::string>& names) {
  if (names.empty()) return {};
  return {{kIgnoredFieldsHeader, IgnoredFieldsValue(names)}};
}

// A client's trace goes on to targets and drafts whether or not this gateway records it.
base::TraceContext TraceOf(const std::string& traceparent, const trace::Recorder* recorder) {
  if (recorder != nullptr) return recorder->Begin(traceparent);
  const auto parent = trace::ParseTraceparent(traceparent);
  return parent && parent->sampled ? parent->context : base::TraceContext{};
}

Parsed<Prepared> ParseAndPrepare(const std::string& body, bool chat,
                                 const SamplingDefaults& defaults,
                                 const tokenizer::Tokenizer& tokenizer, const ServedModel& model) {
  Parsed<GenerationRequest> request =
      chat ? ParseChat(body, defaults) : ParseCompletion(body, defaults);
  if (auto* error = std::get_if<ApiError>(&request)) return std::move(*error);
  return Prepare(std::get<GenerationRequest>(std::move(request)), tokenizer, model,
                 base::RandomNonzero64);
}

}  // namespace

struct Routes::Route {
  std::string_view path;
  std::string_view method;
  Endpoint endpoint;
  HttpResponse (Routes::*answer)(const HttpRequest&) const;  // null: generates
};

struct Routes::Call {
  HttpExchange& exchange;
  Generation& generation;
  asio::steady_timer& wake;  // never expires; cancelling it wakes who waits
  AnswerHead head;

  template <typename Condition>
  asio::awaitable<void> Until(const Condition& condition) {
    while (!condition()) co_await wake.async_wait(kNoThrow);
  }
  // The head with what is known by now.
  const AnswerHead& Head() {
    head.system_fingerprint = absl::StrFormat("fp_%016x", generation.fingerprint());
    head.exactness = generation.exactness();
    return head;
  }
};

asio::awaitable<void> Routes::Handle(HttpExchange& exchange) {
  static constexpr std::array kRoutes = {
      Route{"/v1/completions", "POST", Endpoint::kCompletions, nullptr},
      Route{"/v1/chat/completions", "POST", Endpoint::kChat, nullptr},
      Route{"/v1/models", "GET", Endpoint::kModels, &Routes::Models},
      Route{"/tokenize", "POST", Endpoint::kTokenize, &Routes::Tokenize},
      Route{"/detokenize", "POST", Endpoint::kDetokenize, &Routes::Detokenize},
      Route{"/livez", "GET", Endpoint::kOther, &Routes::Alive},
      Route{"/readyz", "GET", Endpoint::kOther, &Routes::Ready},
      Route{"/health", "GET", Endpoint::kOther, &Routes::Ready},
      Route{"/metrics", "GET", Endpoint::kOther, &Routes::Metrics},
      Route{"/version", "GET", Endpoint::kOther, &Routes::Version},
  };
  const base::Nanos received = base::Now();
  const HttpRequest& request = exchange.request();
  const Route* route = nullptr;
  for (const Route& candidate : kRoutes) {
    const bool below =
        candidate.answer == &Routes::Models && request.path.starts_with("/v1/models/");
    if (request.path == candidate.path || below) route = &candidate;
  }
  HttpResponse response;
  if (route == nullptr) {
    response = ErrorResponse({.status = 404,
                              .message = absl::StrCat("there is nothing at ", request.path),
                              .code = "not_found"});
  } else if (request.method != route->method) {
    response =
        ErrorResponse({.status = 405,
                       .message = absl::StrCat(request.path, " takes ", std::string(route->method),
                                               ", not ", request.method)});
    response.headers = {{"Allow", std::string(route->method)}};
  } else if (route->answer == nullptr) {
    context_.metrics->in_flight.Increment();
    const int code = co_await Generate(exchange, route->endpoint == Endpoint::kChat, received);
    context_.metrics->in_flight.Decrement();
    context_.metrics->request_seconds.Observe(base::ToSeconds(base::Now() - received));
    if (code == kClientGone) context_.metrics->disconnects.Increment();
    context_.metrics->CountRequest(route->endpoint, code);
    co_return;
  } else {
    response = (this->*route->answer)(request);
  }
  context_.metrics->CountRequest(route ? route->endpoint : Endpoint::kOther, response.status);
  co_await exchange.Respond(std::move(response));
}

HttpResponse Routes::Unreadable(const ApiError& error) const {
  context_.metrics->CountRequest(Endpoint::kOther, error.status);
  return ErrorResponse(error);
}

HttpResponse Routes::Models(const HttpRequest& request) const {
  constexpr std::string_view kPath = "/v1/models";
  const ServedModel model = context_.model();
  const ModelInfo info{model.name, context_.created, model.context};
  if (request.path.size() == kPath.size()) return {.body = ModelsBody(info)};
  if (auto error = CheckModel(request.path.substr(kPath.size() + 1), model)) {
    return ErrorResponse(*error);
  }
  return {.body = ModelBody(info)};
}

HttpResponse Routes::Tokenize(const HttpRequest& request) const {
  Parsed<TokenizeRequest> parsed = ParseTokenize(request.body);
  if (const auto* error = std::get_if<ApiError>(&parsed)) return ErrorResponse(*error);
  const auto& asked = std::get<TokenizeRequest>(parsed);
  const ServedModel model = context_.model();
  if (auto error = CheckModel(asked.model, model)) return ErrorResponse(*error);
  const auto ids = gateway::Tokenize(asked, *context_.tokenizer);
  if (const auto* error = std::get_if<ApiError>(&ids)) return ErrorResponse(*error);
  return {.body = TokenizeBody(std::get<std::vector<base::TokenId>>(ids), model.context),
          .headers = IgnoredFields(asked.ignored_fields)};
}

HttpResponse Routes::Detokenize(const HttpRequest& request) const {
  Parsed<DetokenizeRequest> parsed = ParseDetokenize(request.body);
  if (const auto* error = std::get_if<ApiError>(&parsed)) return ErrorResponse(*error);
  const auto& asked = std::get<DetokenizeRequest>(parsed);
  if (auto error = CheckModel(asked.model, context_.model())) return ErrorResponse(*error);
  const auto text = context_.tokenizer->Decode(asked.tokens, /*skip_special_tokens=*/false);
  if (!text.ok()) return ErrorResponse(ServerError(std::string(text.status().message())));
  return {.body = DetokenizeBody(*text), .headers = IgnoredFields(asked.ignored_fields)};
}

HttpResponse Routes::Alive(const HttpRequest&) const {
  return {.body = "ok\n", .content_type = "text/plain"};
}

HttpResponse Routes::Ready(const HttpRequest& request) const {
  if (context_.draining()) return ErrorResponse(Draining());
  if (context_.dispatcher->targets().Available() == 0) {
    return ErrorResponse(NoTarget("no target is connected"));
  }
  return Alive(request);
}

HttpResponse Routes::Metrics(const HttpRequest&) const {
  return {.body = context_.registry->Render(),
          .content_type = "text/plain; version=0.0.4; charset=utf-8"};
}

HttpResponse Routes::Version(const HttpRequest&) const {
  return {.body = VersionBody(context_.version)};
}

asio::awaitable<Parsed<Prepared>> Routes::PrepareBody(const std::string& body, bool chat) {
  const tokenizer::Tokenizer& tokenizer = *context_.tokenizer;
  const ServedModel model = context_.model();
  if (body.size() <= kLongBody) {
    co_return ParseAndPrepare(body, chat, context_.sampling_defaults, tokenizer, model);
  }
  auto work = [&]() -> asio::awaitable<Parsed<Prepared>> {
    co_return ParseAndPrepare(body, chat, context_.sampling_defaults, tokenizer, model);
  };
  asio::awaitable<Parsed<Prepared>> running = work();
  asio::awaitable<Parsed<Prepared>> waiting =
      asio::co_spawn(*context_.encoders, std::move(running), asio::use_awaitable);
  co_return co_await std::move(waiting);
}

asio::awaitable<int> Routes::Generate(HttpExchange& exchange, bool chat, base::Nanos received) {
  std::optional<ApiError> error;
  Parsed<Prepared> prepared;
  if (context_.draining()) {
    error = Draining();
  } else if (context_.model().context == 0) {
    error = NoTarget("no target is connected");
  } else {
    prepared = co_await PrepareBody(exchange.request().body, chat);
    if (auto* refused = std::get_if<ApiError>(&prepared)) error = std::move(*refused);
  }
  if (!error && !context_.dispatcher->HasRoom(std::get<Prepared>(prepared).submits.size())) {
    error = Overloaded(absl::StrCat("the gateway has ", context_.dispatcher->choices(),
                                    " choices under way and room for no more"),
                       context_.dispatcher->RetryAfter(received));
  }
  if (error) {
    HttpResponse response = ErrorResponse(*error);
    co_await exchange.Respond(std::move(response));
    co_return error->status;
  }

  for (auto& [name, value] : IgnoredFields(std::get<Prepared>(prepared).request.ignored_fields)) {
    exchange.AddHeader(name, value);
  }
  const base::TraceContext trace = TraceOf(exchange.request().traceparent, context_.recorder);
  const uint64_t span = trace.traced() ? trace::NewSpanId() : 0;
  const Tenant tenant = context_.tenants->Of(ApiKeyOf(exchange.request().authorization),
                                             std::get<Prepared>(prepared).request.cache_salt);
  for (schemas::Submit& submit : std::get<Prepared>(prepared).submits) {
    submit.trace = trace::Below(trace, span);
    submit.tenant = tenant.id;
    submit.cache_salt = tenant.cache_salt;
  }
  asio::steady_timer wake(co_await asio::this_coro::executor,
                          asio::steady_timer::time_point::max());
  const TimeLimit limit = {
      received, Shorter(std::get<Prepared>(prepared).request.timeout, context_.request_timeout)};
  Generation generation(
      std::get<Prepared>(std::move(prepared)), context_.tokenizer, context_.dispatcher,
      context_.metrics, [&wake] { wake.cancel(); }, limit);
  exchange.WatchClient([&wake] { wake.cancel(); });
  generation.Start(base::Now());
  Call call{exchange, generation, wake, {}};
  call.head.chat = chat;
  call.head.id = absl::StrFormat("%s-%016x", chat ? "chatcmpl" : "cmpl", base::RandomNonzero64());
  call.head.created = absl::ToUnixSeconds(absl::Now());
  call.head.model = context_.model().name;
  int code = 0;
  if (generation.request().stream) {
    code = co_await AnswerInPieces(call);
  } else {
    code = co_await AnswerWhole(call);
  }
  co_await exchange.EndWatch();
  Report(call, trace, span, code, received);
  co_return code;
}

void Routes::Report(const Call& call, const base::TraceContext& trace, uint64_t span, int code,
                    base::Nanos received) {
  const base::Nanos now = base::Now();
  const Usage usage = call.generation.usage();
  if (context_.slow_request > 0 && now - received > context_.slow_request) {
    spdlog::warn(
        "gateway request={} took {:.3f} s: code={} prompt_tokens={} output_tokens={} trace={}",
        call.head.id, base::ToSeconds(now - received), code, usage.prompt_tokens,
        usage.completion_tokens, trace.traced() ? trace::TraceIdText(trace) : "none");
  }
  if (context_.recorder == nullptr || !trace.traced()) return;
  context_.recorder->Record({.name = "request",
                             .parent = trace,
                             .id = span,
                             .begin = received,
                             .end = now,
                             .attributes = {{"request", call.head.id},
                                            {"http.response.status_code", int64_t{code}},
                                            {"prompt_tokens", usage.prompt_tokens},
                                            {"output_tokens", usage.completion_tokens}}});
}

asio::awaitable<int> Routes::AnswerWhole(Call& call) {
  Generation& generation = call.generation;
  const auto over = [&] { return generation.done() || call.exchange.gone(); };
  co_await call.Until(over);
  if (call.exchange.gone()) co_return kClientGone;
  HttpResponse response;
  if (generation.error()) {
    response = ErrorResponse(*generation.error());
  } else {
    std::vector<ChoicePart> parts;
    for (Generation::News& news : generation.Take()) parts.push_back(std::move(news.part));
    response.body = Answer(call.Head(), parts, generation.usage());
  }
  const int status = response.status;
  co_await call.exchange.Respond(std::move(response));
  co_return call.exchange.gone() ? kClientGone : status;
}

asio::awaitable<int> Routes::AnswerInPieces(Call& call) {
  Generation& generation = call.generation;
  const auto has_something = [&] {
    return generation.HasNews() || generation.done() || call.exchange.gone();
  };
  co_await call.Until(has_something);
  if (call.exchange.gone()) co_return kClientGone;
  if (generation.error()) {  // before the stream began: an ordinary refusal
    HttpResponse response = ErrorResponse(*generation.error());
    co_await call.exchange.Respond(std::move(response));
    co_return generation.error()->status;
  }
  co_await call.exchange.StartStream("text/event-stream");
  const bool with_usage = generation.request().include_usage;
  for (bool over = false; !over;) {
    co_await call.Until(has_something);
    over = generation.done();
    std::string events;
    for (const Generation::News& news : generation.Take()) {
      const AnswerHead& head = call.Head();
      if (head.chat && news.first) events += Event(RoleChunk(head, news.part.index, with_usage));
      events += Event(Chunk(head, news.part, with_usage));
    }
    if (over && generation.error()) {
      events += Event(ErrorBody(*generation.error()));
    } else if (over && with_usage) {
      events += Event(UsageChunk(call.Head(), generation.usage()));
    }
    if (over) events += Event("[DONE]");
    if (call.exchange.gone() || !co_await call.exchange.Send(events)) {
      co_return kClientGone;
    }
  }
  if (!co_await call.exchange.EndStream()) co_return kClientGone;
  co_return generation.error() ? generation.error()->status : 200;
}

}  // namespace specfabric::gateway
