// The handshake's messages and proofs, byte by byte.

#include "transport/handshake.h"

#include <algorithm>
#include <cstring>
#include <random>
#include <set>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace specfabric::transport {
namespace {

using ::testing::HasSubstr;

constexpr size_t kHeaderBytes = 16;

SocketAddress Endpoint(const std::string& text) { return ResolveAddress(text).value(); }

Nonces SomeNonces() {
  Nonces nonces;
  for (size_t i = 0; i < nonces.client.size(); ++i) {
    nonces.client[i] = static_cast<uint8_t>(i);
    nonces.server[i] = static_cast<uint8_t>(100 + i);
  }
  return nonces;
}

// One of each kind, with the size that it must have.
std::vector<std::pair<HandshakeMessage, size_t>> AllMessages() {
  const Nonces nonces = SomeNonces();
  const SocketAddress ipv4 = Endpoint("10.1.2.3:4567"), ipv6 = Endpoint("[fe80::1:2]:65535");
  return {
      {Greeting{nonces.client}, 48},
      {Claim{7, ClientProof("secret", nonces, 7)}, 56},
      {Answer{8, ipv4, ServerProof("secret", nonces, 7, 8, ipv4)}, 76},
      {Answer{9, ipv6, ServerProof("secret", nonces, 7, 9, ipv6)}, 76},
      {Refusal::kVersion, 40},
      {Refusal::kSecret, 40},
      {Refusal::kFull, 40},
  };
}

absl::Status ParseError(const std::vector<uint8_t>& bytes) {
  const auto parsed = ParseHandshake(bytes);
  if (parsed.ok()) return absl::OkStatus();
  return parsed.status();
}

TEST(HandshakeMessageTest, EveryKindIsDecodedAsItWasEncoded) {
  for (const auto& [message, size] : AllMessages()) {
    const std::vector<uint8_t> bytes = EncodeHandshake(message);
    EXPECT_EQ(bytes.size(), size);
    const auto parsed = ParseHandshake(bytes);
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    ASSERT_TRUE(parsed->has_value());
    EXPECT_EQ((*parsed)->index(), message.index());
    EXPECT_EQ(EncodeHandshake(**parsed), bytes);
  }
}

TEST(HandshakeMessageTest, FieldsAreDecodedAsTheyWereEncoded) {
  const auto messages = AllMessages();
  const auto claim = ParseHandshake(EncodeHandshake(messages[1].first));
  EXPECT_EQ(std::get<Claim>(**claim).token, 7u);
  EXPECT_EQ(std::get<Claim>(**claim).proof, std::get<Claim>(messages[1].first).proof);
  const auto answer = ParseHandshake(EncodeHandshake(messages[2].first));
  EXPECT_EQ(std::get<Answer>(**answer).token, 8u);
  EXPECT_EQ(FormatAddress(std::get<Answer>(**answer).endpoint.storage), "10.1.2.3:4567");
  const auto ipv6 = ParseHandshake(EncodeHandshake(messages[3].first));
  EXPECT_EQ(FormatAddress(std::get<Answer>(**ipv6).endpoint.storage), "[fe80::1:2]:65535");
  EXPECT_EQ(std::get<Answer>(**ipv6).endpoint.size,
            std::get<Answer>(messages[3].first).endpoint.size);
}

TEST(HandshakeMessageTest, TheHeaderIsWhatOlderAndNewerVersionsExpect) {
  const std::vector<uint8_t> expected = {'$', 'S', 'P', 'E', 'C', 'F', 'B', '1', 2, 0, 0, 0};
  for (const auto& [message, size] : AllMessages()) {
    const std::vector<uint8_t> bytes = EncodeHandshake(message);
    EXPECT_TRUE(std::equal(expected.begin(), expected.end(), bytes.begin()));
  }
}

TEST(HandshakeMessageTest, TruncatedAtEveryLengthWaitsForMore) {
  for (const auto& [message, size] : AllMessages()) {
    const std::vector<uint8_t> bytes = EncodeHandshake(message);
    for (size_t length = 0; length < bytes.size(); ++length) {
      const auto parsed = ParseHandshake({bytes.data(), length});
      ASSERT_TRUE(parsed.ok()) << length << ": " << parsed.status();
      EXPECT_FALSE(parsed->has_value()) << length;
    }
  }
}

TEST(HandshakeMessageTest, BytesBehindAMessageAreRefused) {
  for (const auto& [message, size] : AllMessages()) {
    for (size_t extra : {1, 16, 5000}) {
      std::vector<uint8_t> bytes = EncodeHandshake(message);
      bytes.resize(bytes.size() + extra);
      EXPECT_EQ(ParseError(bytes).code(), absl::StatusCode::kInvalidArgument);
    }
  }
}

TEST(HandshakeMessageTest, AWrongMagicIsRefusedAtItsFirstByte) {
  for (size_t position = 0; position < 8; ++position) {
    std::vector<uint8_t> bytes = EncodeHandshake(Greeting{});
    bytes[position] ^= 0x10;
    bytes.resize(position + 1);
    const absl::Status status = ParseError(bytes);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << position;
    EXPECT_THAT(std::string(status.message()), HasSubstr("not a SpecFabric peer"));
  }
}

TEST(HandshakeMessageTest, OtherVersionIsReportedAsSoonAsItIsRead) {
  for (uint32_t version : {0u, 1u, 3u, 0x02000000u, UINT32_MAX}) {
    for (const auto& [message, size] : AllMessages()) {
      std::vector<uint8_t> bytes = EncodeHandshake(message);
      std::memcpy(bytes.data() + 8, &version, sizeof(version));
      for (size_t length : {size_t{12}, bytes.size(), bytes.size() + 100}) {
        bytes.resize(length);
        const absl::Status status = ParseError(bytes);
        EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
        EXPECT_EQ(std::string(status.message()),
                  "transport version " + std::to_string(version) + ", must be 2");
      }
    }
  }
}

TEST(HandshakeMessageTest, UnknownKindsReasonsAndFamiliesAreRefused) {
  for (uint32_t kind : {0u, 5u, 0x01000000u, UINT32_MAX}) {
    std::vector<uint8_t> bytes = EncodeHandshake(Greeting{});
    std::memcpy(bytes.data() + 12, &kind, sizeof(kind));
    bytes.resize(kHeaderBytes);
    EXPECT_EQ(ParseError(bytes).code(), absl::StatusCode::kInvalidArgument) << kind;
  }
  for (uint32_t reason : {0u, 4u, UINT32_MAX}) {
    std::vector<uint8_t> bytes = EncodeHandshake(Refusal::kSecret);
    std::memcpy(bytes.data() + kHeaderBytes, &reason, sizeof(reason));
    EXPECT_EQ(ParseError(bytes).code(), absl::StatusCode::kInvalidArgument) << reason;
  }
  for (size_t i = kHeaderBytes + 4; i < 40; ++i) {
    std::vector<uint8_t> bytes = EncodeHandshake(Refusal::kSecret);
    bytes[i] = 1;
    EXPECT_EQ(ParseError(bytes).code(), absl::StatusCode::kInvalidArgument) << i;
  }
  for (size_t i = kHeaderBytes + 8 + 8; i < kHeaderBytes + 8 + 20; ++i) {
    std::vector<uint8_t> bytes = EncodeHandshake(AllMessages()[2].first);
    bytes[i] = 1;  // behind an IPv4 address
    EXPECT_EQ(ParseError(bytes).code(), absl::StatusCode::kInvalidArgument) << i;
  }
  for (uint16_t family : {0, 1, 5, 7, 65535}) {
    std::vector<uint8_t> bytes = EncodeHandshake(AllMessages()[2].first);
    std::memcpy(bytes.data() + kHeaderBytes + 8, &family, sizeof(family));
    EXPECT_EQ(ParseError(bytes).code(), absl::StatusCode::kInvalidArgument) << family;
  }
}

// For any input, parsing ends, and what it accepts is exactly one message.
TEST(HandshakeMessageTest, RandomBytesBehindAGoodHeader) {
  std::mt19937_64 rng(3);
  int parsed_messages = 0;
  for (int i = 0; i < 20'000; ++i) {
    std::vector<uint8_t> bytes = EncodeHandshake(Greeting{});
    bytes.resize(rng() % 100);
    for (size_t k = 12; k < bytes.size(); ++k) bytes[k] = static_cast<uint8_t>(rng());
    if (bytes.size() > 15) {
      const uint32_t kind = rng() % 6;
      std::memcpy(bytes.data() + 12, &kind, sizeof(kind));
    }
    const auto parsed = ParseHandshake(bytes);
    if (!parsed.ok() || !parsed->has_value()) continue;
    ++parsed_messages;
    EXPECT_EQ(EncodeHandshake(**parsed).size(), bytes.size());
  }
  EXPECT_GT(parsed_messages, 10);
}

// Computed apart with Python's hmac module over the documented concatenation.
TEST(HandshakeProofTest, IsTheDocumentedHmac) {
  const auto hex = [](const Proof& proof) {
    std::string text;
    for (uint8_t byte : proof) {
      char digits[3];
      std::snprintf(digits, sizeof(digits), "%02x", byte);
      text += digits;
    }
    return text;
  };
  const Nonces nonces = SomeNonces();
  EXPECT_EQ(hex(ClientProof("correct horse battery", nonces, 0x0102030405060708)),
            "f932c707241f7f809341bce8554fc49deb9217c2979b2ffed3d998f77b0faa24");
  EXPECT_EQ(hex(ServerProof("correct horse battery", nonces, 0x0102030405060708, 0x1112131415161718,
                            Endpoint("10.1.2.3:4567"))),
            "ddaefa7a7279390b87df36ef66accb218a970e2092d7edccd702a770e9f8f094");
  EXPECT_EQ(hex(ClientProof("", nonces, 0x0102030405060708)),
            "f82335d54132440e51b3a02e3a9332d668d1c430ae410a9a396072d26a34b3c1");
}

TEST(HandshakeProofTest, DependsOnEverythingItCovers) {
  const Nonces nonces = SomeNonces();
  const SocketAddress endpoint = Endpoint("10.1.2.3:4567");
  std::vector<Nonces> others;
  for (size_t bit = 0; bit < 256; ++bit) {
    others.push_back(nonces);
    others.back().client[bit / 8] ^= static_cast<uint8_t>(1 << bit % 8);
    others.push_back(nonces);
    others.back().server[bit / 8] ^= static_cast<uint8_t>(1 << bit % 8);
  }
  others.push_back({nonces.server, nonces.client});
  std::set<Proof> proofs = {ClientProof("secret", nonces, 1),
                            ServerProof("secret", nonces, 1, 2, endpoint)};
  for (const Nonces& other : others) {
    proofs.insert(ClientProof("secret", other, 1));
    proofs.insert(ServerProof("secret", other, 1, 2, endpoint));
  }
  for (const std::string secret : {"", "secre", "Secret", "secret ", "secret\n"}) {
    proofs.insert(ClientProof(secret, nonces, 1));
    proofs.insert(ServerProof(secret, nonces, 1, 2, endpoint));
  }
  for (int bit = 0; bit < 64; ++bit) {
    proofs.insert(ClientProof("secret", nonces, 1 ^ uint64_t{1} << bit));
    proofs.insert(ServerProof("secret", nonces, 1 ^ uint64_t{1} << bit, 2, endpoint));
    proofs.insert(ServerProof("secret", nonces, 1, 2 ^ uint64_t{1} << bit, endpoint));
  }
  const std::vector<std::string> endpoints = {"10.1.2.3:4568", "10.1.2.4:4567", "[::1]:4567",
                                              "[::ffff:10.1.2.3]:4567"};
  for (const std::string& text : endpoints) {
    proofs.insert(ServerProof("secret", nonces, 1, 2, Endpoint(text)));
  }
  EXPECT_EQ(proofs.size(), 2 * (1 + others.size() + 5) + 3 * 64 + endpoints.size());
}

// Without the secret, a peer cannot answer with the proof that it received.
TEST(HandshakeProofTest, ClientAndServerProofsDiffer) {
  const Nonces nonces = SomeNonces();
  for (const Nonces& reflected :
       {nonces, Nonces{nonces.server, nonces.client}, Nonces{nonces.client, nonces.client}}) {
    EXPECT_FALSE(SameProof(ClientProof("secret", nonces, 1),
                           ServerProof("secret", reflected, 1, 1, Endpoint("10.1.2.3:4567"))));
    EXPECT_FALSE(SameProof(ClientProof("secret", nonces, 1),
                           ServerProof("secret", reflected, 1, 1, SocketAddress())));
  }
}

TEST(HandshakeProofTest, AnyFlippedBitChangesTheProof) {
  const Proof proof = ClientProof("secret", SomeNonces(), 1);
  EXPECT_TRUE(SameProof(proof, ClientProof("secret", SomeNonces(), 1)));
  for (size_t bit = 0; bit < 8 * proof.size(); ++bit) {
    Proof flipped = proof;
    flipped[bit / 8] ^= static_cast<uint8_t>(1 << bit % 8);
    EXPECT_FALSE(SameProof(proof, flipped)) << bit;
  }
}

TEST(HandshakeProofTest, NoncesAndTokensDoNotRepeat) {
  std::set<Nonce> nonces;
  std::set<uint64_t> tokens;
  for (int i = 0; i < 1000; ++i) {
    nonces.insert(RandomNonce());
    tokens.insert(RandomToken());
  }
  EXPECT_EQ(nonces.size(), 1000u);
  EXPECT_EQ(tokens.size(), 1000u);
}

}  // namespace
}  // namespace specfabric::transport
