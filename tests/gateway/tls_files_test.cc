#include "gateway/tls_files.h"

#include <openssl/ssl.h>
#include <openssl/x509.h>

#include <filesystem>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/base/temp_dir.h"
#include "tests/gateway/certificates.h"

namespace specfabric::gateway {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

class TlsFilesTest : public ::testing::Test {
 protected:
  TlsFilesTest() {
    const Certificate made = MakeCertificate("first");
    Write(made);
  }
  void Write(const Certificate& made) {
    dir_.Write("cert", made.cert);
    dir_.Write("key", made.key);
  }
  std::string ErrorOf(const std::string& cert, const std::string& key) const {
    const auto files = TlsFiles::Open(dir_.File(cert), dir_.File(key));
    if (files.ok()) return "none";
    EXPECT_TRUE(absl::IsInvalidArgument(files.status()));
    EXPECT_THAT(std::string(files.status().message()), Not(HasSubstr("\n")));
    return std::string(files.status().message());
  }
  // The name in the certificate of the context.
  static std::string NameIn(TlsFiles::Context& context) {
    const X509* cert = SSL_CTX_get0_certificate(context.native_handle());
    char name[100] = "";
    X509_NAME_get_text_by_NID(X509_get_subject_name(cert), NID_commonName, name, sizeof(name));
    return name;
  }

  base::TempDir dir_;
};

TEST_F(TlsFilesTest, KeysOfBothKinds) {
  EXPECT_EQ(ErrorOf("cert", "key"), "none");
  Write(MakeCertificate("rsa", KeyKind::kRsa));
  EXPECT_EQ(ErrorOf("cert", "key"), "none");
}

TEST_F(TlsFilesTest, WhatCannotBeUsedIsNamedInALine) {
  EXPECT_THAT(ErrorOf("nowhere", "key"),
              StartsWith("--tls_cert=" + dir_.File("nowhere") + ": cannot read: No such file"));
  EXPECT_THAT(ErrorOf("cert", "nowhere"),
              StartsWith("--tls_key=" + dir_.File("nowhere") + ": cannot read: No such file"));
  dir_.Write("empty", "");
  EXPECT_THAT(ErrorOf("empty", "key"), HasSubstr("empty: it has no certificate in PEM"));
  EXPECT_THAT(ErrorOf("cert", "empty"), HasSubstr("empty: it has no private key in PEM"));
  EXPECT_THAT(ErrorOf("key", "cert"), HasSubstr("key: it has no certificate in PEM"));
}

TEST_F(TlsFilesTest, AKeyOfAnotherCertificate) {
  for (const KeyKind kind : {KeyKind::kEc, KeyKind::kRsa}) {
    dir_.Write("other", MakeCertificate("other", kind).key);
    EXPECT_THAT(ErrorOf("cert", "other"), HasSubstr("other: it is not the key of the certificate"));
  }
}

// OpenSSL would ask for the passphrase on the terminal.
TEST_F(TlsFilesTest, AKeyWithAPassphrase) {
  const Certificate made = MakeCertificate("locked");
  dir_.Write("cert", made.cert);
  dir_.Write("key", Encrypted(made.key));
  EXPECT_THAT(ErrorOf("cert", "key"), HasSubstr("without a passphrase"));
}

TEST_F(TlsFilesTest, AreReadAgainWhenTheyChange) {
  const auto files = TlsFiles::Open(dir_.File("cert"), dir_.File("key"));
  ASSERT_TRUE(files.ok()) << files.status();
  const auto first = (*files)->context();
  EXPECT_EQ(NameIn(*first), "first");
  (*files)->Reload();
  EXPECT_EQ((*files)->context(), first) << "nothing has changed";

  const Certificate second = MakeCertificate("second");
  dir_.Write("cert", second.cert);
  (*files)->Reload();
  EXPECT_EQ((*files)->context(), first) << "the key is still that of the first";
  dir_.Write("key", second.key);
  (*files)->Reload();
  EXPECT_EQ(NameIn(*(*files)->context()), "second");
  EXPECT_EQ(NameIn(*first), "first") << "connections that have it keep it";
}

}  // namespace
}  // namespace specfabric::gateway
