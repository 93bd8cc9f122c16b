// When each address is tried: changing records, failures, duplicates.

#include "link/address_book.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace specfabric::link {
namespace {

using absl::StatusCode;
using base::kMillisecond;
using base::kSecond;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Arrival = AddressBook::Arrival;

constexpr base::Nanos kFar = 1'000'000 * kSecond;

class AddressBookTest : public ::testing::Test {
 protected:
  // Connects what is due; the peers are numbered by the order of the addresses, from `first`.
  void ConnectDue(base::Nanos now, transport::PeerId first) {
    for (const std::string& address : book_.Due(now)) ASSERT_TRUE(book_.Begin(address, first++));
  }
  std::optional<AddressBook::Loss> Lose(transport::PeerId peer, base::Nanos now) {
    return book_.Down(peer, StatusCode::kUnavailable, true, false, now);
  }

  AddressBook book_{10 * kMillisecond, kSecond, 1};
};

TEST_F(AddressBookTest, ConfiguredAddressIsTriedUntilUpAndAgainAfterALoss) {
  book_.Add("a:1", 5);
  EXPECT_THAT(book_.Due(4), IsEmpty());
  EXPECT_THAT(book_.Due(5), ElementsAre("a:1"));
  ASSERT_TRUE(book_.Begin("a:1", 7));
  EXPECT_THAT(book_.Due(kFar), IsEmpty());
  EXPECT_EQ(book_.Up(7, 100), Arrival::kFirst);
  const auto loss = Lose(7, kSecond);
  ASSERT_TRUE(loss.has_value());
  EXPECT_EQ(loss->address, "a:1");
  EXPECT_FALSE(loss->news) << "it was a connection";
  EXPECT_THAT(book_.Due(kSecond), IsEmpty()) << "not without a pause";
  EXPECT_THAT(book_.Due(2 * kSecond), ElementsAre("a:1"));
  EXPECT_EQ(book_.NextDue(kFar), book_.NextDue(2 * kSecond));
  ASSERT_TRUE(book_.Begin("a:1", 8));
  EXPECT_EQ(book_.Up(8, 101), Arrival::kAgain);
  EXPECT_EQ(book_.size(), 1u);
}

TEST_F(AddressBookTest, OnlyANewReasonOfFailureIsReported) {
  book_.Add("a:1", 0);
  EXPECT_TRUE(book_.Failed("a:1", StatusCode::kNotFound, 0));
  EXPECT_FALSE(book_.Failed("a:1", StatusCode::kNotFound, kSecond));
  EXPECT_TRUE(book_.Failed("a:1", StatusCode::kUnavailable, 2 * kSecond));
  ASSERT_TRUE(book_.Begin("a:1", 7));
  auto loss = book_.Down(7, StatusCode::kUnavailable, false, false, 3 * kSecond);
  EXPECT_FALSE(loss.value().news);
  ASSERT_TRUE(book_.Begin("a:1", 8));
  book_.Up(8, 100);
  Lose(8, 4 * kSecond);
  EXPECT_TRUE(book_.Failed("a:1", StatusCode::kUnavailable, 5 * kSecond)) << "it had been up";
}

TEST_F(AddressBookTest, FailuresWaitLongerAndLonger) {
  book_.Add("a:1", 0);
  base::Nanos now = 0;
  int attempts = 0;
  for (; now < 100 * kSecond; ++attempts) {
    book_.Failed("a:1", StatusCode::kUnavailable, now);
    now = book_.NextDue(kFar);
  }
  EXPECT_LT(attempts, 220) << "a second on average, half of one at least";
  EXPECT_GT(attempts, 60);
}

TEST_F(AddressBookTest, RecordsComeAndGo) {
  EXPECT_TRUE(book_.SetRecords("n", {"a:1", "b:1"}, 0));
  EXPECT_FALSE(book_.SetRecords("n", {"b:1", "a:1"}, 0)) << "the same";
  ConnectDue(0, 1);
  EXPECT_EQ(book_.Up(1, 100), Arrival::kFirst);
  EXPECT_EQ(book_.Up(2, 200), Arrival::kFirst);
  EXPECT_TRUE(book_.SetRecords("n", {"b:1", "c:1"}, 1));
  EXPECT_EQ(book_.size(), 3u) << "a:1 is connected";
  EXPECT_THAT(book_.Due(1), ElementsAre("c:1"));
  EXPECT_EQ(Lose(1, 2).value().address, "a:1");
  EXPECT_EQ(book_.size(), 2u);
  EXPECT_THAT(book_.Due(kFar), ElementsAre("c:1"));
  EXPECT_TRUE(book_.SetRecords("n", {}, 3));
  EXPECT_EQ(book_.size(), 1u) << "c:1 was not connected";
}

TEST_F(AddressBookTest, RecordThatReturnsWhileConnectedIsKept) {
  book_.SetRecords("n", {"a:1"}, 0);
  ConnectDue(0, 1);
  book_.Up(1, 100);
  book_.SetRecords("n", {}, 1);
  EXPECT_TRUE(book_.SetRecords("n", {"a:1"}, 2));
  EXPECT_THAT(book_.Due(kFar), IsEmpty()) << "it is connected already";
  Lose(1, 3);
  EXPECT_THAT(book_.Due(kFar), ElementsAre("a:1"));
}

TEST_F(AddressBookTest, AddressIsKeptAsLongAsAnySourceHasIt) {
  book_.Add("a:1", 0);
  book_.SetRecords("n", {"a:1", "b:1"}, 0);
  book_.SetRecords("m", {"b:1"}, 0);
  EXPECT_EQ(book_.size(), 2u) << "each once";
  book_.SetRecords("n", {}, 1);
  EXPECT_THAT(book_.Due(1), ElementsAre("a:1", "b:1"));
  book_.SetRecords("m", {}, 2);
  EXPECT_THAT(book_.Due(2), ElementsAre("a:1"));
}

TEST_F(AddressBookTest, AttemptToARemovedRecordIsNotRepeated) {
  book_.SetRecords("n", {"a:1"}, 0);
  const auto due = book_.Due(0);
  book_.SetRecords("n", {}, 1);
  EXPECT_FALSE(book_.Begin(due[0], 1));
  EXPECT_FALSE(book_.Failed(due[0], StatusCode::kUnavailable, 2));
  EXPECT_FALSE(Lose(1, 3).has_value());
  EXPECT_EQ(book_.size(), 0u);
}

TEST_F(AddressBookTest, ADuplicateIsNotRetriedWhileTheFirstIsUp) {
  book_.SetRecords("n", {"a:1", "b:1"}, 0);
  ConnectDue(0, 1);
  EXPECT_EQ(book_.Up(1, 100), Arrival::kFirst);
  EXPECT_EQ(book_.Up(2, 100), Arrival::kDuplicate);
  Lose(2, kSecond);
  EXPECT_THAT(book_.Due(kSecond + AddressBook::kDuplicateWait - 1), IsEmpty());
  EXPECT_THAT(book_.Due(kSecond + AddressBook::kDuplicateWait), ElementsAre("b:1"))
      << "another process may live there by now";
  Lose(1, 2 * kSecond);
  EXPECT_THAT(book_.Due(2 * kSecond), ElementsAre("b:1")) << "at once, and a:1 after a pause";
  ASSERT_TRUE(book_.Begin("b:1", 3));
  EXPECT_EQ(book_.Up(3, 100), Arrival::kFirst);
  ASSERT_TRUE(book_.Begin("a:1", 4));
  EXPECT_EQ(book_.Up(4, 100), Arrival::kDuplicate);
}

TEST_F(AddressBookTest, ADuplicateIsRetriedSoonAfterTheFirstGoesDown) {
  book_.SetRecords("n", {"a:1", "b:1"}, 0);
  ConnectDue(0, 1);
  book_.Up(1, 100);
  book_.Up(2, 100);
  Lose(1, kSecond);
  Lose(2, kSecond);
  EXPECT_THAT(book_.Due(2 * kSecond), ElementsAre("a:1", "b:1"));
}

TEST_F(AddressBookTest, PeersThatConnectedToUsAreNotInTheBook) {
  book_.Add("a:1", 0);
  ConnectDue(0, 1);
  book_.Up(1, 100);
  EXPECT_EQ(book_.Up(9, 100), Arrival::kFirst);
  EXPECT_FALSE(Lose(9, 1).has_value());
}

}  // namespace
}  // namespace specfabric::link
