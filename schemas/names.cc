#include "schemas/messages.h"

namespace specfabric::schemas {

const char* Name(MessageType type) {
  switch (type) {
#define SPECFABRIC_NAME_CASE(M) \
  case MessageType::k##M:       \
    return #M;
    SPECFABRIC_MESSAGES(SPECFABRIC_NAME_CASE)
#undef SPECFABRIC_NAME_CASE
  }
  return "unknown";
}

const char* Name(Role role) {
  switch (role) {
    case Role::kGateway:
      return "gateway";
    case Role::kTarget:
      return "target";
    case Role::kDraft:
      return "draft";
    case Role::kTool:
      return "tool";
    case Role::kRank:
      return "rank";
  }
  return "unknown";
}

const char* Name(DraftStatus status) {
  switch (status) {
    case DraftStatus::kOk:
      return "ok";
    case DraftStatus::kNeedResync:
      return "need_resync";
    case DraftStatus::kBusy:
      return "busy";
    case DraftStatus::kUnsupported:
      return "unsupported";
    case DraftStatus::kTooLong:
      return "too_long";
    case DraftStatus::kDraining:
      return "draining";
  }
  return "unknown";
}

}  // namespace specfabric::schemas
