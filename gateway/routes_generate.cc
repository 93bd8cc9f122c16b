// The routes that generate.

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/random.h"
#include "boost/asio/as_tuple.hpp"
#include "boost/asio/post.hpp"
#include "boost/asio/steady_timer.hpp"
#include "boost/asio/this_coro.hpp"
#include "boost/asio/use_awaitable.hpp"
#include "gateway/answer_writer.h"
#include "gateway/anthropic_parse.h"
#include "gateway/generation.h"
#include "gateway/openai_parse.h"
#include "gateway/responses_parse.h"
#include "gateway/routes.h"
#include "spdlog/spdlog.h"
#include "trace/traceparent.h"

namespace specfabric::gateway {

namespace asio = boost::asio;
using std::chrono::steady_clock;

namespace {

constexpr auto kAsTuple = asio::as_tuple(asio::use_awaitable);
// Larger answers are freed on an encoder thread.
constexpr size_t kLargeAnswer = 256 << 10;
// A comment line, which readers of event streams ignore.
constexpr const char* kProbe = ":\n\n";
constexpr const char* kKeepAlive = ": keep-alive\n\n";

// Estimated time to format, in microseconds. Up to kInline it is done on the io thread, so that
// ordinary streams need no change of threads; up to kShortFormat on the thread for short work.
constexpr size_t kInline = 250, kShortFormat = 4000;
constexpr size_t kPartCost = 10, kCandidateCost = 4, kBytesAMicrosecond = 250, kIdsAMicrosecond = 8;

size_t FormatCost(const ChoicePart& part) {
  size_t cost = kPartCost + part.piece.text.size() / kBytesAMicrosecond;
  if (!part.piece.entries.empty()) {
    // Assumes the last entry's number of candidates for all; the first token of a prompt has none.
    cost += part.piece.entries.size() * (1 + part.piece.entries.back().top.size()) * kCandidateCost;
  }
  if (part.prompt_logprobs && !part.prompt_logprobs->empty()) {
    const size_t candidates = 1 + part.prompt_logprobs->back().top.size();
    cost += part.prompt_logprobs->size() * candidates * kCandidateCost;
  }
  if (part.with_token_ids) cost += part.piece.ids.size() / kIdsAMicrosecond;
  if (part.prompt_token_ids) cost += part.prompt_token_ids->size() / kIdsAMicrosecond;
  return cost;
}

// What is repeated is mostly JSON, which takes longer than text.
constexpr size_t kRepeatedBytesAMicrosecond = 50;

size_t RepeatCost(const AnswerWriter& writer) {
  return kPartCost + writer.RepeatedBytes() / kRepeatedBytesAMicrosecond;
}

size_t FormatCost(const std::vector<ChoicePart>& parts) {
  size_t cost = 0;
  for (const ChoicePart& part : parts) cost += FormatCost(part);
  return cost;
}

// The shorter of two timeouts, of which 0 means none.
base::Nanos Shorter(base::Nanos a, base::Nanos b) {
  return a == 0 ? b : b == 0 ? a : std::min(a, b);
}

// A client's trace context is passed on to targets and drafts even if this gateway does not record.
base::TraceContext TraceOf(const std::string& traceparent, const trace::Recorder* recorder) {
  if (recorder != nullptr) return recorder->Begin(traceparent);
  const auto parent = trace::ParseTraceparent(traceparent);
  return parent && parent->sampled ? parent->context : base::TraceContext{};
}

Parsed<GenerationRequest> Parse(Api api, const std::string& body,
                                const SamplingDefaults& defaults) {
  switch (api) {
    case Api::kCompletions:
      return ParseCompletion(body, defaults);
    case Api::kChat:
      return ParseChat(body, defaults);
    case Api::kResponses:
      return ParseResponses(body, defaults);
    case Api::kAnthropic:
      break;
  }
  return ParseAnthropic(body, defaults);
}

Parsed<Prepared> ParseAndPrepare(const std::string& body, Api api, const SamplingDefaults& defaults,
                                 const tokenizer::Tokenizer& tokenizer, const ChatFormat& format,
                                 const ServedModel& model) {
  Parsed<GenerationRequest> request = Parse(api, body, defaults);
  if (auto* error = std::get_if<ApiError>(&request)) return std::move(*error);
  return Prepare(std::get<GenerationRequest>(std::move(request)), tokenizer, format, model,
                 base::RandomNonzero64);
}

// How the ids of an API's answers begin.
const char* IdPrefix(Api api) {
  switch (api) {
    case Api::kCompletions:
      return "cmpl-";
    case Api::kChat:
      return "chatcmpl-";
    case Api::kResponses:
      return "resp_";
    case Api::kAnthropic:
      break;
  }
  return "msg_";
}

}  // namespace

struct Routes::Made {
  std::unique_ptr<Generation> generation = nullptr;
  std::unique_ptr<AnswerWriter> writer = nullptr;
  Tenant tenant = {};
  HttpResponse refusal = {};  // if there is no generation
};

struct Routes::Call {
  HttpExchange& exchange;
  Generation& generation;
  asio::steady_timer& wake;  // cancelling it wakes the coroutine
  std::unique_ptr<AnswerWriter> writer;
  AnswerHead head;

  bool Changed() const { return generation.done() || exchange.gone() || exchange.probe_due(); }

  template <typename Condition>
  asio::awaitable<void> Until(const Condition& condition) {
    wake.expires_at(steady_clock::time_point::max());
    while (!condition()) co_await wake.async_wait(kAsTuple);
  }
  // False: `due` came first.
  template <typename Condition>
  asio::awaitable<bool> Until(const Condition& condition, steady_clock::time_point due) {
    while (!condition()) {
      if (steady_clock::now() >= due) co_return false;
      wake.expires_at(due);
      co_await wake.async_wait(kAsTuple);
    }
    co_return true;
  }
  // The head, with the present fingerprint and exactness.
  const AnswerHead& Head() {
    head.system_fingerprint = absl::StrFormat("fp_%016x", generation.fingerprint());
    head.exactness = generation.exactness();
    return head;
  }
};

asio::awaitable<void> Routes::Respond(HttpExchange& exchange, HttpResponse& response) {
  co_await exchange.Respond(response);
  if (response.body.size() > kLargeAnswer) context_.workers->Discard(std::move(response.body));
}

asio::awaitable<Routes::Made> Routes::MakeGeneration(HttpExchange& exchange, Api api) {
  HttpBody body = exchange.TakeBody();
  const ServedModel model = context_.model();
  const Work work = WorkOfBody(body.size());
  const HttpRequest& request = exchange.request();
  const std::string_view key = ApiKeyOf(request.authorization, request.x_api_key);
  auto job = [&]() -> Made {
    const std::string text = std::move(body).Join();
    Parsed<Prepared> prepared = ParseAndPrepare(text, api, context_.sampling_defaults,
                                                *context_.tokenizer, context_.chat_format, model);
    if (const auto* error = std::get_if<ApiError>(&prepared)) {
      return {.refusal = ErrorResponse(*error, api)};
    }
    const Tenant tenant =
        context_.tenants->Of(key, std::get<Prepared>(prepared).request.cache_salt);
    auto made = Generation::Make(std::get<Prepared>(std::move(prepared)), context_.tokenizer);
    if (!made.ok()) {
      return {.refusal = ErrorResponse(ServerError(std::string(made.status().message())), api)};
    }
    auto writer = MakeAnswerWriter((*made)->request());
    return {.generation = *std::move(made), .writer = std::move(writer), .tenant = tenant};
  };
  Made made = co_await context_.workers->Run(work, job);
  if (made.generation == nullptr || made.generation->request().grammar.empty()) co_return made;
  // How long a grammar takes does not follow from the size of the body.
  auto check = [&] { return context_.grammars->Check(made.generation->request()); };
  if (const auto error = co_await context_.workers->Run(Work::kLong, check)) {
    context_.workers->Discard(std::move(made.generation));
    made.refusal = ErrorResponse(*error, api);
  }
  co_return made;
}

asio::awaitable<int> Routes::Generate(HttpExchange& exchange, Api api, base::Nanos received) {
  std::optional<ApiError> error;
  Made made;
  if (context_.draining()) {
    error = Draining();
  } else if (context_.model().context == 0) {
    error = NoTarget("no target is connected");
  } else {
    made = co_await MakeGeneration(exchange, api);
  }
  if (made.generation != nullptr &&
      !context_.dispatcher->HasRoom(starting_ + made.generation->choices())) {
    error = Overloaded(absl::StrCat("the gateway has ", context_.dispatcher->choices(),
                                    " choices under way and room for no more"),
                       context_.dispatcher->RetryAfter(received));
  }
  if (error) made.refusal = ErrorResponse(*error, api);
  if (error || made.generation == nullptr) {
    const int status = made.refusal.status;
    co_await Respond(exchange, made.refusal);
    co_return status;
  }

  Generation& generation = *made.generation;
  const base::TraceContext trace = TraceOf(exchange.request().traceparent, context_.recorder);
  const uint64_t span = trace.traced() ? trace::NewSpanId() : 0;
  generation.SetOwner(trace::Below(trace, span), made.tenant);
  asio::steady_timer wake(co_await asio::this_coro::executor,
                          asio::steady_timer::time_point::max());
  generation.SetContext(
      {.dispatcher = context_.dispatcher,
       .metrics = context_.metrics,
       .workers = context_.workers,
       .wake = [&wake] { wake.cancel(); },
       .limit = {received, Shorter(generation.request().timeout, context_.request_timeout)}});
  exchange.WatchClient([&wake] { wake.cancel(); });
  Call call{exchange, generation, wake, std::move(made.writer), {}};
  call.head.api = api;
  call.head.id = absl::StrFormat("%s%016x", IdPrefix(api), base::RandomNonzero64());
  call.head.created = absl::ToUnixSeconds(absl::Now());
  call.head.model = context_.model().name;
  const int code = co_await Answer(call);
  co_await exchange.EndWatch();
  Report(call, trace, span, code, received);
  if (call.writer->RepeatedBytes() > kLargeAnswer) {
    context_.workers->Discard(std::move(call.writer));
  }
  co_return code;
}

asio::awaitable<int> Routes::Answer(Call& call) {
  starting_ += call.generation.choices();
  while (!call.exchange.gone() && call.generation.Start(base::Now())) {
    auto executor = co_await asio::this_coro::executor;
    co_await asio::post(executor, asio::use_awaitable);
  }
  starting_ -= call.generation.choices();
  if (call.generation.request().stream) co_return co_await AnswerInPieces(call);
  co_return co_await AnswerWhole(call);
}

void Routes::Report(const Call& call, const base::TraceContext& trace, uint64_t span, int code,
                    base::Nanos received) {
  const base::Nanos now = base::Now();
  const Usage usage = call.generation.usage();
  if (context_.slow_request > 0 && now - received > context_.slow_request) {
    spdlog::warn(
        "gateway request={} took {:.3f} s: code={} prompt_tokens={} output_tokens={} trace={} "
        "request_id={}",
        call.head.id, base::ToSeconds(now - received), code, usage.prompt_tokens,
        usage.completion_tokens, trace.traced() ? trace::TraceIdText(trace) : "none",
        call.exchange.request().request_id);
  }
  if (context_.recorder == nullptr || !trace.traced()) return;
  context_.recorder->Record({.name = "request",
                             .parent = trace,
                             .id = span,
                             .begin = received,
                             .end = now,
                             .attributes = {{"request", call.head.id},
                                            {"request_id", call.exchange.request().request_id},
                                            {"http.response.status_code", int64_t{code}},
                                            {"prompt_tokens", usage.prompt_tokens},
                                            {"output_tokens", usage.completion_tokens}}});
}

asio::awaitable<int> Routes::AnswerWhole(Call& call) {
  const auto changed = [&] { return call.Changed(); };
  co_await call.Until(changed);
  while (!call.generation.done() && !call.exchange.gone()) {
    co_await call.exchange.Probe();
    co_await call.Until(changed);
  }
  if (call.exchange.gone()) co_return kClientGone;
  HttpResponse response = co_await WholeAnswer(call);
  const HttpHeaders headers = IgnoredFields(call.generation.request().ignored_fields);
  response.headers.insert(response.headers.end(), headers.begin(), headers.end());
  const int status = response.status;
  co_await Respond(call.exchange, response);
  co_return call.exchange.gone() ? kClientGone : status;
}

// Runs `job` here or, depending on the cost, on one of the encoder threads.
template <typename F>
asio::awaitable<std::invoke_result_t<F&>> Routes::Format(size_t cost, F& job) {
  if (cost <= kInline) co_return job();
  co_return co_await context_.workers->Run(cost <= kShortFormat ? Work::kShort : Work::kLong, job);
}

asio::awaitable<HttpResponse> Routes::WholeAnswer(Call& call) {
  Generation& generation = call.generation;
  if (generation.error()) co_return ErrorResponse(*generation.error(), call.head.api);
  std::vector<ChoicePart> parts;
  size_t cost = RepeatCost(*call.writer);
  for (ChoicePart& part : generation.Take()) {
    cost += FormatCost(part);
    parts.push_back(std::move(part));
  }
  const AnswerHead& head = call.Head();
  const Usage usage = generation.usage();
  auto job = [&, parts = std::move(parts)]() mutable {
    return HttpResponse{.body = call.writer->Whole(head, std::move(parts), usage)};
  };
  co_return co_await Format(cost, job);
}

asio::awaitable<void> Routes::UntilStreamBegins(Call& call) {
  Generation& generation = call.generation;
  const auto has_something = [&] { return generation.HasNews() || call.Changed(); };
  const auto begin = steady_clock::now();
  const std::chrono::nanoseconds delay(context_.stream_header_delay);
  const std::chrono::nanoseconds longest(context_.stream_keep_alive);
  while (!generation.HasNews() && !generation.done() && !call.exchange.gone()) {
    if (call.exchange.probe_due()) co_await call.exchange.Probe();
    const bool placed = generation.Placed();
    const auto due = steady_clock::now() + delay;
    if (co_await call.Until(has_something, due)) continue;
    // A target that has no room for it would have said so by now.
    if (placed && generation.Placed()) co_return;
    if (steady_clock::now() - begin >= longest) co_return;
  }
}

asio::awaitable<int> Routes::AnswerInPieces(Call& call) {
  Generation& generation = call.generation;
  const auto has_something = [&] { return generation.HasNews() || call.Changed(); };
  co_await UntilStreamBegins(call);
  if (call.exchange.gone()) co_return kClientGone;
  if (generation.error()) {  // before the stream has begun: an ordinary error answer
    const HttpResponse response = ErrorResponse(*generation.error(), call.head.api);
    co_await call.exchange.Respond(response);
    co_return generation.error()->status;
  }
  const HttpHeaders headers = IgnoredFields(generation.request().ignored_fields);
  co_await call.exchange.StartStream("text/event-stream", headers);
  bool begun = false;
  for (bool over = false; !over;) {
    const auto due = steady_clock::now() + std::chrono::nanoseconds(context_.stream_keep_alive);
    const bool changed = co_await call.Until(has_something, due);
    over = generation.done();
    std::string events;
    if (!begun && generation.HasNews()) {
      events = co_await FirstEvents(call);
      begun = true;
    }
    std::string news = co_await NextEvents(call);
    if (news.size() > kLargeAnswer) {  // too large to be copied into `events`
      if (!co_await call.exchange.Send(events) || !co_await call.exchange.Send(news)) {
        co_return kClientGone;
      }
      context_.workers->Discard(std::move(news));
      events.clear();
    } else {
      events += news;
    }
    if (over) events += co_await LastEvents(call);
    if (events.empty() && !changed) events = kKeepAlive;
    if (events.empty() && call.exchange.probe_due()) events = kProbe;
    if (call.exchange.gone() || !co_await call.exchange.Send(events)) {
      co_return kClientGone;
    }
  }
  if (!co_await call.exchange.EndStream()) co_return kClientGone;
  co_return generation.error() ? generation.error()->status : 200;
}

asio::awaitable<std::string> Routes::FirstEvents(Call& call) {
  const AnswerHead& head = call.Head();
  const size_t choices = call.generation.choices();
  const Usage usage = call.generation.usage();
  auto job = [&] { return call.writer->Begin(head, choices, usage); };
  co_return co_await Format(RepeatCost(*call.writer), job);
}

// The end of a stream. Some APIs repeat there what was sent before.
asio::awaitable<std::string> Routes::LastEvents(Call& call) {
  const Generation& generation = call.generation;
  const AnswerHead& head = call.Head();
  const Usage usage = generation.usage();
  auto job = [&] {
    return generation.error() ? call.writer->Failed(head, *generation.error())
                              : call.writer->End(head, usage);
  };
  co_return co_await Format(RepeatCost(*call.writer), job);
}

// The new output of the choices, formatted as events.
asio::awaitable<std::string> Routes::NextEvents(Call& call) {
  std::vector<ChoicePart> news = call.generation.Take();
  const size_t cost = FormatCost(news);
  const AnswerHead& head = call.Head();
  auto job = [&, news = std::move(news)]() mutable {
    std::string events;
    // Freed on this thread.
    for (ChoicePart& part : std::exchange(news, {})) {
      events += call.writer->News(head, std::move(part));
    }
    return events;
  };
  co_return co_await Format(cost, job);
}

}  // namespace specfabric::gateway
