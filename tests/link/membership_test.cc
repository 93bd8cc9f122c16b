// Names whose records are peers: records that appear, disappear and return. The test sets the
// records.

#include <atomic>
#include <chrono>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "link/link.h"
#include "link/peer_address.h"
#include "tests/link/service.h"

namespace specfabric::link {
namespace {

using schemas::Role;
using ::testing::HasSubstr;
using ::testing::SizeIs;

using Addresses = std::vector<std::string>;

// A resolver whose records a test sets. Look-ups may outlive the link that made them.
class Resolver {
 public:
  Lookup lookup() const {
    return [state = state_](const std::string& name) -> absl::StatusOr<Addresses> {
      std::lock_guard lock(state->mutex);
      ++state->lookups;
      const auto found = state->records.find(name);
      if (found == state->records.end()) return absl::NotFoundError("no such name");
      return found->second;
    };
  }
  void Set(const std::string& name, absl::StatusOr<Addresses> records) {
    std::lock_guard lock(state_->mutex);
    state_->records.insert_or_assign(name, std::move(records));
  }
  int lookups() const {
    std::lock_guard lock(state_->mutex);
    return state_->lookups;
  }

 private:
  struct State {
    std::mutex mutex;
    std::map<std::string, absl::StatusOr<Addresses>> records;
    int lookups = 0;
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

template <typename Condition>
bool Eventually(Condition condition) {
  const auto deadline = std::chrono::steady_clock::now() + kTestTimeout;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

class MembershipTest : public ::testing::Test {
 protected:
  static std::unique_ptr<Service> Draft(const std::string& listen = transport::AnyPort()) {
    LinkOptions options = TestOptions(Role::kDraft);
    options.listen = listen;
    return std::make_unique<Service>(std::move(options));
  }
  static std::string AddressOf(Service& service) { return service.link().listen_address(); }

  LinkOptions TargetOptions(Addresses connect) {
    LinkOptions options = TestOptions(Role::kTarget);
    options.connect = std::move(connect);
    options.lookup = resolver_.lookup();
    options.lookup_interval = 5 * base::kMillisecond;
    return options;
  }
  // Waits until the records that were set before this call have been looked up.
  void WaitForLookup() {
    const int now = resolver_.lookups();
    ASSERT_TRUE(Eventually([&] { return resolver_.lookups() >= now + 2; }));
  }

  Resolver resolver_;
};

TEST_F(MembershipTest, RecordsAreConnectedBesideConfiguredAddresses) {
  auto a = Draft(), b = Draft(), c = Draft();
  resolver_.Set("drafts:7", Addresses{AddressOf(*a), AddressOf(*b)});
  Service target(TargetOptions({"dns:///drafts:7", AddressOf(*c)}));
  EXPECT_TRUE(a->WaitForUps(1) && b->WaitForUps(1) && c->WaitForUps(1));
  ASSERT_TRUE(target.WaitForUps(3));
  EXPECT_EQ(target.link().stats().addresses, 3u);
}

TEST_F(MembershipTest, MembersJoinAndLeaveWithTheirRecords) {
  auto a = Draft(), b = Draft();
  resolver_.Set("drafts:7", Addresses{AddressOf(*a)});
  Service target(TargetOptions({"dns:///drafts:7"}));
  ASSERT_TRUE(target.WaitForUps(1));
  resolver_.Set("drafts:7", Addresses{AddressOf(*b)});
  ASSERT_TRUE(target.WaitForUps(2));
  // A connection whose record is gone is kept...
  WaitForLookup();
  EXPECT_THAT(target.downs(), SizeIs(0));
  EXPECT_EQ(target.link().stats().addresses, 2u);
  ASSERT_TRUE(target.link().Send(target.ups()[0].peer, schemas::Drain{}).ok());
  EXPECT_TRUE(a->WaitForMessages(1));
  // ... and its address forgotten once it is down.
  a->Destroy();
  ASSERT_TRUE(target.WaitForDowns(1));
  EXPECT_EQ(target.link().stats().addresses, 1u);
}

TEST_F(MembershipTest, ANameThatIsNotFoundIsTriedUntilItIs) {
  auto a = Draft();
  Service target(TargetOptions({"dns:///drafts:7"}));
  ASSERT_TRUE(Eventually([&] { return target.link().stats().lookup_failures >= 3; }));
  EXPECT_EQ(target.link().stats().addresses, 0u);
  resolver_.Set("drafts:7", Addresses{AddressOf(*a)});
  EXPECT_TRUE(target.WaitForUps(1));
}

TEST_F(MembershipTest, KnownRecordsAreKeptWhileTheResolverFails) {
  auto a = Draft();
  resolver_.Set("drafts:7", Addresses{AddressOf(*a)});
  Service target(TargetOptions({"dns:///drafts:7"}));
  ASSERT_TRUE(target.WaitForUps(1));
  resolver_.Set("drafts:7", absl::UnavailableError("the resolver is down"));
  ASSERT_TRUE(Eventually([&] { return target.link().stats().lookup_failures >= 2; }));
  const std::string address = AddressOf(*a);
  a.reset();
  ASSERT_TRUE(target.WaitForDowns(1));
  EXPECT_EQ(target.link().stats().addresses, 1u);
  a = Draft(address);
  EXPECT_TRUE(target.WaitForUps(2));
  // An empty list of records is an answer too.
  resolver_.Set("drafts:7", absl::NotFoundError("none"));
  WaitForLookup();
  a.reset();
  EXPECT_TRUE(Eventually([&] { return target.link().stats().addresses == 0; }));
}

TEST_F(MembershipTest, OneProcessIsOnePeerForAllItsAddresses) {
  auto a = Draft();
  const std::string address = AddressOf(*a);
  const size_t colon = address.rfind(':');
  const std::string other = address.substr(0, colon) + ":0" + address.substr(colon + 1);
  resolver_.Set("drafts:7", Addresses{address, other});
  Service target(TargetOptions({"dns:///drafts:7"}));
  ASSERT_TRUE(a->WaitForUps(2) && a->WaitForDowns(1));
  EXPECT_THAT(target.ups(), SizeIs(1));
  EXPECT_EQ(target.link().stats().handshakes, 1u);
  ASSERT_TRUE(target.link().Send(target.ups()[0].peer, schemas::Drain{}).ok());
  EXPECT_TRUE(a->WaitForMessages(1)) << "the one that stays is the one that was told of";
  // After a restart it is found again, by either address.
  a.reset();
  ASSERT_TRUE(target.WaitForDowns(1));
  a = Draft(address);
  ASSERT_TRUE(target.WaitForUps(2));
  ASSERT_TRUE(a->WaitForUps(2) && a->WaitForDowns(1));
  EXPECT_THAT(target.ups(), SizeIs(2));
}

TEST_F(MembershipTest, DestructionDoesNotWaitForTheResolver) {
  auto release = std::make_shared<std::promise<void>>();
  auto entered = std::make_shared<std::promise<void>>();
  auto left = std::make_shared<std::promise<void>>();
  LinkOptions options = TargetOptions({"dns:///drafts:7"});
  options.lookup = [entered, left, held = release->get_future().share()](
                       const std::string&) -> absl::StatusOr<Addresses> {
    entered->set_value();
    held.wait();
    left->set_value();
    return Addresses{"127.0.0.1:9"};
  };
  auto target = std::make_unique<Service>(std::move(options));
  entered->get_future().wait();
  target.reset();
  release->set_value();
  left->get_future().wait();  // and its answer reaches nobody: sanitizers would tell
}

TEST(PeerAddressTest, TwoForms) {
  EXPECT_TRUE(CheckPeerAddress("host:1").ok());
  EXPECT_TRUE(CheckPeerAddress("[::1]:65535").ok());
  EXPECT_TRUE(CheckPeerAddress("dns:///host.name:7").ok());
  EXPECT_EQ(NameOf("dns:///host.name:7"), "host.name:7");
  EXPECT_EQ(NameOf("host:1"), std::nullopt);
  for (const char* wrong :
       {"", "host", ":1", "host:", "host:x", "host:65536", "::1:7", "dns:///", "dns:///host",
        "dns:///host:x", "dns://host:1", "dns:host:1", "dns:///a/b:1", "http://host:1"}) {
    const absl::Status status = CheckPeerAddress(wrong);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << wrong;
    EXPECT_THAT(std::string(status.message()), HasSubstr(wrong));
    EXPECT_THAT(std::string(status.message()), HasSubstr("dns:///host:port"));
  }
}

TEST(PeerAddressTest, NoLinkIsCreatedWithAWrongOne) {
  LinkOptions options = TestOptions(Role::kTarget);
  options.connect = {"dns://host:1"};
  EXPECT_EQ(Link::Create(std::move(options), LinkHandler()).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace specfabric::link
