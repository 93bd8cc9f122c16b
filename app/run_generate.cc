// `specfabric generate`: answers one prompt with a target and its drafts, all inside this process
// and connected by the same fabric as a cluster.

#include <condition_variable>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "app/flags.h"
#include "app/join_secret.h"
#include "app/model_options.h"
#include "app/options.h"
#include "app/roles.h"
#include "base/random.h"
#include "link/link.h"
#include "nlohmann/json.hpp"
#include "spdlog/spdlog.h"
#include "tokenizer/incremental_decoder.h"
#include "tokenizer/tokenizer.h"

namespace specfabric::app {

namespace {

// What the link's thread hands to the client.
struct Inbox {
  std::mutex mutex;
  std::condition_variable changed;
  link::PeerId target = 0;
  std::vector<schemas::Tokens> tokens;
  absl::Status down;
};

struct Answer {
  std::vector<base::TokenId> ids;
  std::string text;
  schemas::Tokens last;
  base::Nanos first_token = 0;
  base::Nanos total = 0;
};

absl::StatusOr<std::vector<base::TokenId>> PromptIds(const tokenizer::Tokenizer& tokenizer) {
  if (!FLAGS_prompt_ids.empty()) {
    std::vector<base::TokenId> ids;
    for (absl::string_view word : absl::StrSplit(FLAGS_prompt_ids, ',')) {
      int32_t id = 0;
      if (!absl::SimpleAtoi(word, &id) || id < 0 || id >= tokenizer.vocab_size()) {
        return absl::InvalidArgumentError(absl::StrCat(
            "--prompt_ids: '", word, "': allowed are ids from 0 to ", tokenizer.vocab_size() - 1));
      }
      ids.push_back(id);
    }
    return ids;
  }
  std::string prompt = FLAGS_prompt;
  if (prompt == "-") prompt.assign(std::istreambuf_iterator<char>(std::cin), {});
  if (prompt.empty()) {
    return absl::InvalidArgumentError("--prompt is missing: give a text, or - for standard input");
  }
  return tokenizer.Encode(prompt, true);
}

schemas::Submit MakeSubmit(uint64_t id, const std::vector<base::TokenId>& prompt,
                           const base::SamplingParams& sampling,
                           const tokenizer::Tokenizer& tokenizer) {
  schemas::Submit submit;
  submit.request_id = id;
  submit.sequence.prompt = prompt;
  submit.sequence.sampling = sampling;
  submit.sequence.max_tokens = FLAGS_max_tokens;
  if (!FLAGS_ignore_eos) submit.sequence.stop_ids = tokenizer.eos_ids();
  return submit;
}

absl::StatusOr<Answer> Ask(link::Link* link, Inbox* inbox, const schemas::Submit& submit,
                           const tokenizer::Tokenizer& tokenizer) {
  Answer answer;
  tokenizer::IncrementalDecoder decoder(&tokenizer, true);
  const base::Nanos start = base::Now();
  if (absl::Status sent = link->Send(inbox->target, submit); !sent.ok()) return sent;
  for (bool done = false; !done;) {
    std::vector<schemas::Tokens> batch;
    {
      std::unique_lock lock(inbox->mutex);
      inbox->changed.wait(lock, [&] { return !inbox->tokens.empty() || !inbox->down.ok(); });
      if (inbox->tokens.empty()) return inbox->down;
      batch = std::exchange(inbox->tokens, {});
    }
    for (const schemas::Tokens& tokens : batch) {
      if (tokens.request_id != submit.request_id) continue;
      if (answer.ids.empty() && !tokens.tokens.empty()) answer.first_token = base::Now() - start;
      answer.ids.insert(answer.ids.end(), tokens.tokens.begin(), tokens.tokens.end());
      auto piece = decoder.Append(tokens.tokens);
      if (!piece.ok()) return piece.status();
      std::string text = *std::move(piece);
      if (tokens.finish != schemas::Finish::kNone) {
        answer.last = tokens;
        text += decoder.Finish().value_or("");
        done = true;
      }
      if (!FLAGS_json) {
        std::fputs(text.c_str(), stdout);
        std::fflush(stdout);
      }
      answer.text += text;
    }
  }
  answer.total = base::Now() - start;
  if (answer.last.finish != schemas::Finish::kStop &&
      answer.last.finish != schemas::Finish::kLength) {
    return absl::InvalidArgumentError(answer.last.error);
  }
  return answer;
}

// Names as in docs/exactness.md.
const char* Exactness(schemas::VerificationMethod verification) {
  if (!schemas::Lossless(verification)) return "none";
  const bool chosen = FLAGS_verification == "auto" && FLAGS_temperature > 0;
  return verification == schemas::VerificationMethod::kCoupled && FLAGS_batch_invariant && !chosen
             ? "token"
             : "distribution";
}

nlohmann::json Json(const std::optional<double>& figure) {
  return figure ? nlohmann::json(*figure) : nlohmann::json(nullptr);
}

// Leaves out what is unknown, such as the rate of a single token.
void Print(const Answer& answer, size_t prompt_tokens) {
  const schemas::Speculation& speculation = answer.last.speculation;
  const double seconds = base::ToSeconds(answer.total);
  const double decode = base::ToSeconds(answer.total - answer.first_token);
  std::optional<double> first, rate;  // rate: of the tokens after the first
  if (!answer.ids.empty()) first = base::ToSeconds(answer.first_token);
  if (answer.ids.size() > 1 && decode > 0) rate = (answer.ids.size() - 1.0) / decode;
  if (FLAGS_json) {
    const nlohmann::json line = {
        {"token_ids", answer.ids},
        {"text", answer.text},
        {"finish_reason", answer.last.finish == schemas::Finish::kStop ? "stop" : "length"},
        {"prompt_tokens", prompt_tokens},
        {"rounds", speculation.rounds},
        {"drafted", speculation.drafted},
        {"accepted", speculation.accepted},
        {"accepted_per_position", speculation.accepted_at},
        {"verification", schemas::Name(speculation.verification)},
        {"seconds", seconds},
        {"first_token_seconds", Json(first)},
        {"decode_tokens_per_second", Json(rate)},
        {"exactness", Exactness(speculation.verification)}};
    std::puts(line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
    return;
  }
  std::string figures = absl::StrCat(answer.ids.size(), " tokens");
  if (rate) absl::StrAppendFormat(&figures, ", %.1f tokens/s", *rate);
  if (first) absl::StrAppendFormat(&figures, ", first after %.1f ms", 1e3 * *first);
  std::fprintf(stderr, "\n[%s; %s: %ld rounds, %ld drafted, %ld accepted]\n", figures.c_str(),
               schemas::Name(speculation.verification), speculation.rounds, speculation.drafted,
               speculation.accepted);
}

// A target, its drafts, and a link to the target like a gateway's.
struct OwnCluster {
  std::string secret;
  metrics::Registry draft_registry, registry;
  std::vector<std::unique_ptr<draft::DraftService>> drafts;
  std::unique_ptr<target::TargetService> target;
  Inbox inbox;
  std::unique_ptr<link::Link> client;
};

absl::Status StartServices(OwnCluster* cluster) {
  auto target_options = TargetOptions();
  if (!target_options.ok()) return target_options.status();
  if (absl::Status logged = LogModel(FLAGS_model); !logged.ok()) return logged;
  target_options->listen = "127.0.0.1:0";
  target_options->drafts.clear();
  target_options->fabric.join_secret = cluster->secret;
  auto count = Count("num_drafts", FLAGS_num_drafts, FLAGS_draft_model.empty() ? 0 : 1, 0, 64);
  if (!count.ok()) return count.status();
  if (*count > 0) {
    if (absl::Status pair = CheckPair(FLAGS_model, FLAGS_draft_model); !pair.ok()) return pair;
    auto draft_options = DraftOptions(FLAGS_draft_model, FLAGS_model);
    if (!draft_options.ok()) return draft_options.status();
    if (absl::Status logged = LogModel(FLAGS_draft_model, FLAGS_model); !logged.ok()) return logged;
    draft_options->fabric.join_secret = cluster->secret;
    for (int i = 0; i < *count; ++i) {
      auto draft = draft::DraftService::Start(*draft_options, &cluster->draft_registry);
      if (!draft.ok()) return draft.status();
      target_options->drafts.push_back((*draft)->listen_address());
      cluster->drafts.push_back(*std::move(draft));
    }
  }
  auto target = target::TargetService::Start(*target_options, &cluster->registry);
  if (!target.ok()) return target.status();
  cluster->target = *std::move(target);
  return absl::OkStatus();
}

absl::Status ConnectClient(OwnCluster* cluster) {
  Inbox* inbox = &cluster->inbox;
  auto fabric = FabricFlags();
  if (!fabric.ok()) return fabric.status();
  link::LinkOptions options;
  options.hello.role = schemas::Role::kTool;
  options.hello.incarnation = base::RandomNonzero64();
  options.fabric = *std::move(fabric);
  options.fabric.join_secret = cluster->secret;
  options.connect = {cluster->target->listen_address()};
  link::LinkHandler handler;
  handler.on_up = [inbox](link::PeerId peer, const schemas::Hello&, const std::string&) {
    std::lock_guard lock(inbox->mutex);
    inbox->target = peer;
    inbox->changed.notify_all();
  };
  handler.on_message = [inbox](link::PeerId, link::Message message) {
    auto* batch = std::get_if<schemas::TokensBatch>(&message);
    if (batch == nullptr) return;
    std::lock_guard lock(inbox->mutex);
    std::move(batch->sequences.begin(), batch->sequences.end(), std::back_inserter(inbox->tokens));
    inbox->changed.notify_all();
  };
  handler.on_down = [inbox](link::PeerId, const absl::Status& why) {
    std::lock_guard lock(inbox->mutex);
    inbox->down = absl::UnavailableError(absl::StrCat("the target is gone: ", why.message()));
    inbox->changed.notify_all();
  };
  auto link = link::Link::Create(std::move(options), std::move(handler));
  if (!link.ok()) return link.status();
  cluster->client = *std::move(link);
  if (absl::Status started = cluster->client->Start(); !started.ok()) return started;
  std::unique_lock lock(inbox->mutex);
  const bool up =
      inbox->changed.wait_for(lock, std::chrono::seconds(10), [&] { return inbox->target != 0; });
  return up ? absl::OkStatus()
            : absl::UnavailableError("the target did not answer the handshake within 10 s");
}

}  // namespace

absl::Status RunGenerate() {
  // Only warnings and errors are logged between the answer's lines.
  if (FLAGS_log_level == "info") spdlog::set_level(spdlog::level::warn);
  auto sampling = SamplingOptions();
  if (!sampling.ok()) return sampling.status();
  auto secret = JoinSecretOrRandom();
  if (!secret.ok()) return secret.status();
  OwnCluster cluster;
  cluster.secret = *std::move(secret);
  if (absl::Status started = StartServices(&cluster); !started.ok()) return started;
  auto tokenizer = tokenizer::Tokenizer::Load(FLAGS_model);
  if (!tokenizer.ok()) return tokenizer.status();
  auto prompt = PromptIds(**tokenizer);
  if (!prompt.ok()) return prompt.status();
  if (absl::Status connected = ConnectClient(&cluster); !connected.ok()) return connected;
  // Drafts connect on their own; without this wait the first round would have none.
  if (!cluster.drafts.empty()) cluster.target->WaitForDrafts(10 * base::kSecond);
  for (int i = 0; i < FLAGS_repeat; ++i) {
    auto answer = Ask(cluster.client.get(), &cluster.inbox,
                      MakeSubmit(i + 1, *prompt, *sampling, **tokenizer), **tokenizer);
    if (!answer.ok()) return answer.status();
    Print(*answer, prompt->size());
  }
  cluster.client.reset();
  return absl::OkStatus();
}

}  // namespace specfabric::app
