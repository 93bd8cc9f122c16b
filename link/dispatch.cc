#include "link/dispatch.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace specfabric::link {
namespace {

template <typename M>
absl::StatusOr<Message> DecodeAs(const std::vector<uint8_t>& payload) {
  auto message = schemas::Decode<M>(payload);
  if (!message.ok()) return message.status();
  return Message(*std::move(message));
}

}  // namespace

absl::StatusOr<Message> DecodeMessage(const transport::Frame& frame) {
  switch (static_cast<schemas::MessageType>(frame.type)) {
    case schemas::MessageType::kDrain:
      return DecodeAs<schemas::Drain>(frame.payload);
    case schemas::MessageType::kDraftRequest:
      return DecodeAs<schemas::DraftRequest>(frame.payload);
    case schemas::MessageType::kDraftReply:
      return DecodeAs<schemas::DraftReply>(frame.payload);
    case schemas::MessageType::kEndSession:
      return DecodeAs<schemas::EndSession>(frame.payload);
    case schemas::MessageType::kHiddenStates:
      return DecodeAs<schemas::HiddenStates>(frame.payload);
    case schemas::MessageType::kSubmit:
      return DecodeAs<schemas::Submit>(frame.payload);
    case schemas::MessageType::kTokensBatch:
      return DecodeAs<schemas::TokensBatch>(frame.payload);
    case schemas::MessageType::kCancel:
      return DecodeAs<schemas::Cancel>(frame.payload);
    case schemas::MessageType::kGroupPart:
      return DecodeAs<schemas::GroupPart>(frame.payload);
    case schemas::MessageType::kGroupReady:
      return DecodeAs<schemas::GroupReady>(frame.payload);
    case schemas::MessageType::kStep:
      return DecodeAs<schemas::Step>(frame.payload);
    case schemas::MessageType::kStepDone:
      return DecodeAs<schemas::StepDone>(frame.payload);
    case schemas::MessageType::kCollective:
      return DecodeAs<schemas::Collective>(frame.payload);
    default:
      return absl::InvalidArgumentError(
          absl::StrCat("message type ", frame.type, " is not one a service takes"));
  }
}

}  // namespace specfabric::link
