// Codecs of the messages that manage peers and sessions: Hello, Drain, EndSession,
// Cancel.

#include "schemas/wire.h"

namespace specfabric::schemas {

using wire::Checker;
using wire::Copy;
using wire::FlatBufferBuilder;
using wire::VerifiedTable;
using wire::View;

std::vector<uint8_t> Encode(const Hello& m) {
  FlatBufferBuilder builder(512);
  const auto model = builder.CreateString(m.model);
  const auto build = builder.CreateString(m.build);
  const auto state_layers = builder.CreateVector(m.state_layers);
  return wire::Finish(
      builder, wire::CreateHello(builder, m.protocol, static_cast<uint8_t>(m.role), m.incarnation,
                                 model, m.tokenizer_fingerprint, m.numerics_fingerprint,
                                 m.vocabulary, m.context, m.verification_methods, m.capacity, build,
                                 state_layers, m.state_rows, m.state_pool, m.chooses_verification));
}

template <>
absl::StatusOr<Hello> Decode<Hello>(absl::Span<const uint8_t> payload) {
  auto table = VerifiedTable<wire::Hello>::Open(payload, "Hello");
  if (!table.ok()) return table.status();
  const auto& t = *table;
  Checker check("Hello");
  check.AtMost("role", t->role(), static_cast<uint8_t>(Role::kRank));
  check.Text("model", View(t->model()), kMaxNameBytes);
  check.Text("build", View(t->build()), kMaxNameBytes);
  check.NonNegative("vocabulary", t->vocabulary());
  check.NonNegative("context", t->context());
  check.NonNegative("capacity", t->capacity());
  const auto state_layers = View(t->state_layers());
  check.Size("state_layers", state_layers.size(), kMaxStateLayers);
  if (check.ok()) {
    for (const int32_t layer : state_layers) check.NonNegative("state_layers", layer);
  }
  check.Require(t->state_rows() >= (state_layers.empty() ? 0 : 1), "state_rows", t->state_rows(),
                "at least 1 where state_layers are named");
  if (!check.ok()) return check.status();
  Hello m;
  m.protocol = t->protocol();
  m.role = static_cast<Role>(t->role());
  m.incarnation = t->incarnation();
  m.model = View(t->model());
  m.tokenizer_fingerprint = t->tokenizer_fingerprint();
  m.numerics_fingerprint = t->numerics_fingerprint();
  m.vocabulary = t->vocabulary();
  m.context = t->context();
  m.verification_methods = t->verification_methods();
  m.capacity = t->capacity();
  m.build = View(t->build());
  m.state_layers = Copy(state_layers);
  m.state_rows = t->state_rows();
  m.state_pool = t->state_pool();
  m.chooses_verification = t->chooses_verification();
  return m;
}

std::vector<uint8_t> Encode(const Drain&) {
  FlatBufferBuilder builder(64);
  return wire::Finish(builder, wire::CreateDrain(builder));
}

template <>
absl::StatusOr<Drain> Decode<Drain>(absl::Span<const uint8_t> payload) {
  auto table = VerifiedTable<wire::Drain>::Open(payload, "Drain");
  if (!table.ok()) return table.status();
  return Drain{};
}

std::vector<uint8_t> Encode(const EndSession& m) {
  FlatBufferBuilder builder(64);
  return wire::Finish(builder, wire::CreateEndSession(builder, m.target_incarnation, m.sequence));
}

template <>
absl::StatusOr<EndSession> Decode<EndSession>(absl::Span<const uint8_t> payload) {
  auto table = VerifiedTable<wire::EndSession>::Open(payload, "EndSession");
  if (!table.ok()) return table.status();
  return EndSession{(*table)->target_incarnation(), (*table)->sequence()};
}

std::vector<uint8_t> Encode(const Cancel& m) {
  FlatBufferBuilder builder(64);
  return wire::Finish(builder, wire::CreateCancel(builder, m.request_id, m.attempt));
}

template <>
absl::StatusOr<Cancel> Decode<Cancel>(absl::Span<const uint8_t> payload) {
  auto table = VerifiedTable<wire::Cancel>::Open(payload, "Cancel");
  if (!table.ok()) return table.status();
  return Cancel{(*table)->request_id(), (*table)->attempt()};
}

absl::Status CheckPair(const Hello& target, const Hello& draft) {
  const uint64_t a = target.tokenizer_fingerprint, b = draft.tokenizer_fingerprint;
  if (a != 0 && b != 0) {
    if (a == b) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("the draft's tokenizer.json differs from the target's (vocabularies of ",
                     draft.vocabulary, " and ", target.vocabulary,
                     " tokens); a draft must have been trained with the target's tokenizer"));
  }
  if (target.vocabulary == draft.vocabulary) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "the draft's vocabulary has ", draft.vocabulary, " tokens, the target's ", target.vocabulary,
      ", and without both tokenizer.json it is not known whether "
      "their ids are the same"));
}

}  // namespace specfabric::schemas
