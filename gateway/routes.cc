#include "gateway/routes.h"

#include <array>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gateway/answer_writer.h"
#include "gateway/anthropic_format.h"
#include "gateway/anthropic_parse.h"
#include "gateway/foreign_options.h"
#include "gateway/openai_format.h"
#include "gateway/openai_parse.h"
#include "gateway/request_target.h"

namespace specfabric::gateway {

namespace asio = boost::asio;
using metrics::Endpoint;

HttpResponse ErrorResponse(const ApiError& error, Api api) {
  HttpResponse response{.status = error.status, .body = ErrorBody(api, error)};
  if (error.retry_after > 0) {
    response.headers = {{"Retry-After", std::to_string(error.retry_after)}};
  }
  return response;
}

HttpHeaders IgnoredFields(const std::vector<std::string>& names) {
  if (names.empty()) return {};
  return {{kIgnoredFieldsHeader, IgnoredFieldsValue(names)}};
}

struct Routes::Route {
  std::string_view path;
  std::string_view method;
  Endpoint endpoint;
  // One of them, or neither: generates.
  HttpResponse (Routes::*answer)(const HttpRequest&) const;
  HttpResponse (Routes::*answer_elsewhere)(const std::string& body, const ServedModel&) const;
  Api api = Api::kChat;  // of what it generates, and of the form of errors

  bool Takes(std::string_view asked) const {
    return asked == method || (method == "GET" && asked == "HEAD");
  }
  const char* Allowed() const { return method == "GET" ? "GET, HEAD" : "POST"; }
};

asio::awaitable<void> Routes::Handle(HttpExchange& exchange) {
  static constexpr std::array kRoutes = {
      Route{"/v1/completions", "POST", Endpoint::kCompletions, nullptr, nullptr, Api::kCompletions},
      Route{"/v1/chat/completions", "POST", Endpoint::kChat, nullptr, nullptr, Api::kChat},
      Route{"/v1/responses", "POST", Endpoint::kResponses, nullptr, nullptr, Api::kResponses},
      Route{"/v1/messages", "POST", Endpoint::kMessages, nullptr, nullptr, Api::kAnthropic},
      Route{"/v1/messages/count_tokens", "POST", Endpoint::kTokenize, nullptr, &Routes::CountTokens,
            Api::kAnthropic},
      Route{"/v1/models", "GET", Endpoint::kModels, &Routes::Models, nullptr},
      Route{"/tokenize", "POST", Endpoint::kTokenize, nullptr, &Routes::Tokenize},
      Route{"/detokenize", "POST", Endpoint::kDetokenize, nullptr, &Routes::Detokenize},
      Route{"/livez", "GET", Endpoint::kOther, &Routes::Alive, nullptr},
      Route{"/readyz", "GET", Endpoint::kOther, &Routes::Ready, nullptr},
      Route{"/health", "GET", Endpoint::kOther, &Routes::Ready, nullptr},
      Route{"/metrics", "GET", Endpoint::kOther, nullptr, &Routes::Metrics},
      Route{"/tokenizer_info", "GET", Endpoint::kOther, &Routes::AboutTokenizer, nullptr},
      Route{"/version", "GET", Endpoint::kOther, &Routes::Version, nullptr},
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
    response =
        ErrorResponse({.status = 404,
                       .message = absl::StrCat("there is nothing at ", ShownTarget(request.path)),
                       .code = "not_found"});
  } else if (!route->Takes(request.method)) {
    response = ErrorResponse(
        {.status = 405,
         .message = absl::StrCat(ShownTarget(request.path), " takes ", route->Allowed(), ", not ",
                                 ShownTarget(request.method))},
        route->api);
    response.headers = {{"Allow", route->Allowed()}};
  } else if (route->answer != nullptr) {
    response = (this->*route->answer)(request);
  } else if (route->answer_elsewhere != nullptr) {
    co_return co_await AnswerElsewhere(exchange, *route);
  } else {
    context_.metrics->in_flight.Increment();
    const int code = co_await Generate(exchange, route->api, received);
    context_.metrics->in_flight.Decrement();
    context_.metrics->request_seconds.Observe(base::ToSeconds(base::Now() - received));
    if (code == kClientGone) context_.metrics->disconnects.Increment();
    context_.metrics->CountRequest(route->endpoint, code);
    co_return;
  }
  context_.metrics->CountRequest(route ? route->endpoint : Endpoint::kOther, response.status);
  co_await exchange.Respond(response);
}

asio::awaitable<void> Routes::AnswerElsewhere(HttpExchange& exchange, const Route& route) {
  HttpBody body = exchange.TakeBody();
  const ServedModel model = context_.model();
  const Work work = WorkOfBody(body.size());
  auto job = [&] { return (this->*route.answer_elsewhere)(std::move(body).Join(), model); };
  HttpResponse response = co_await context_.workers->Run(work, job);
  context_.metrics->CountRequest(route.endpoint, response.status);
  co_await Respond(exchange, response);
}

HttpResponse Routes::Refuse(const ApiError& error, const HttpRequest& request) const {
  context_.metrics->CountRequest(Endpoint::kOther, error.status);
  const bool anthropic = request.path.starts_with("/v1/messages");
  HttpResponse response = ErrorResponse(error, anthropic ? Api::kAnthropic : Api::kChat);
  if (error.status == 415) response.headers.emplace_back("Accept-Encoding", "identity");
  return response;
}

HttpResponse Routes::Models(const HttpRequest& request) const {
  constexpr std::string_view kPath = "/v1/models";
  const ServedModel model = context_.model();
  ModelInfo info{model.name, context_.created, context_.model_root, model.context};
  if (request.path.size() == kPath.size()) {
    std::vector<ModelInfo> all = {info};
    if (model.aliases != nullptr) {
      for (const std::string& name : *model.aliases) {
        all.push_back({name, info.created, info.root, info.context});
      }
    }
    return {.body = ModelsBody(all)};
  }
  const std::string asked = request.path.substr(kPath.size() + 1);
  if (auto error = CheckModel(asked, model)) return ErrorResponse(*error);
  if (!asked.empty()) info.name = asked;
  return {.body = ModelBody(info)};
}

HttpResponse Routes::Tokenize(const std::string& body, const ServedModel& model) const {
  Parsed<TokenizeRequest> parsed = ParseTokenize(body);
  if (const auto* error = std::get_if<ApiError>(&parsed)) return ErrorResponse(*error);
  const auto& asked = std::get<TokenizeRequest>(parsed);
  if (auto error = CheckModel(asked.model, model)) return ErrorResponse(*error);
  const auto ids = gateway::Tokenize(asked, *context_.tokenizer);
  if (const auto* error = std::get_if<ApiError>(&ids)) return ErrorResponse(*error);
  return {.body = TokenizeBody(std::get<std::vector<base::TokenId>>(ids), model.context),
          .headers = IgnoredFields(asked.ignored_fields)};
}

HttpResponse Routes::Detokenize(const std::string& body, const ServedModel& model) const {
  Parsed<DetokenizeRequest> parsed = ParseDetokenize(body);
  if (const auto* error = std::get_if<ApiError>(&parsed)) return ErrorResponse(*error);
  const auto& asked = std::get<DetokenizeRequest>(parsed);
  if (auto error = CheckModel(asked.model, model)) return ErrorResponse(*error);
  const auto text = context_.tokenizer->Decode(asked.tokens, /*skip_special_tokens=*/false);
  if (!text.ok()) return ErrorResponse(ServerError(std::string(text.status().message())));
  return {.body = DetokenizeBody(*text), .headers = IgnoredFields(asked.ignored_fields)};
}

HttpResponse Routes::CountTokens(const std::string& body, const ServedModel& model) const {
  const auto refuse = [](const ApiError& error) { return ErrorResponse(error, Api::kAnthropic); };
  Parsed<TokenizeRequest> parsed = ParseCountTokens(body);
  if (const auto* error = std::get_if<ApiError>(&parsed)) return refuse(*error);
  const auto& asked = std::get<TokenizeRequest>(parsed);
  if (auto error = CheckModel(asked.model, model)) return refuse(*error);
  const auto ids = gateway::Tokenize(asked, *context_.tokenizer);
  if (const auto* error = std::get_if<ApiError>(&ids)) return refuse(*error);
  const auto count = static_cast<int64_t>(std::get<std::vector<base::TokenId>>(ids).size());
  return {.body = TokenCountBody(count), .headers = IgnoredFields(asked.ignored_fields)};
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

HttpResponse Routes::Metrics(const std::string&, const ServedModel&) const {
  return {.body = context_.registry->Render(),
          .content_type = "text/plain; version=0.0.4; charset=utf-8"};
}

HttpResponse Routes::AboutTokenizer(const HttpRequest&) const {
  const tokenizer::Tokenizer& tokenizer = *context_.tokenizer;
  const ServedModel model = context_.model();
  const auto text = [&](base::TokenId id) {
    return tokenizer.Decode({id}, /*skip_special_tokens=*/false).value_or("");
  };
  TokenizerInfo info;
  if (const auto bos = tokenizer.bos_id()) info.bos_token = text(*bos);
  if (!tokenizer.eos_ids().empty()) info.eos_token = text(tokenizer.eos_ids().front());
  info.chat_template = tokenizer.ToolTemplate();
  info.vocabulary = tokenizer.vocab_size();
  info.context = model.context;
  return {.body = TokenizerInfoBody(info)};
}

HttpResponse Routes::Version(const HttpRequest&) const {
  return {.body = VersionBody(context_.version)};
}

}  // namespace specfabric::gateway
