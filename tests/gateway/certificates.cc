#include "tests/gateway/certificates.h"

#include <openssl/bio.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include <functional>

#include "base/check.h"

namespace specfabric::gateway {
namespace {

std::string PemOf(const std::function<int(BIO*)>& write) {
  BIO* const bio = BIO_new(BIO_s_mem());
  SPECFABRIC_CHECK(write(bio) == 1);
  char* data = nullptr;
  const long size = BIO_get_mem_data(bio, &data);
  std::string pem(data, static_cast<size_t>(size));
  BIO_free(bio);
  return pem;
}

}  // namespace

Certificate MakeCertificate(const std::string& name, KeyKind kind) {
  EVP_PKEY* const key = kind == KeyKind::kEc ? EVP_EC_gen("P-256") : EVP_RSA_gen(2048);
  SPECFABRIC_CHECK(key != nullptr);
  X509* const cert = X509_new();
  X509_set_version(cert, X509_VERSION_3);
  ASN1_INTEGER_set(X509_get_serialNumber(cert), 1);
  X509_gmtime_adj(X509_getm_notBefore(cert), -60);
  X509_gmtime_adj(X509_getm_notAfter(cert), 24 * 3600);
  X509_set_pubkey(cert, key);
  X509_NAME* const subject = X509_get_subject_name(cert);
  X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_ASC,
                             reinterpret_cast<const unsigned char*>(name.c_str()), -1, -1, 0);
  X509_set_issuer_name(cert, subject);
  SPECFABRIC_CHECK(X509_sign(cert, key, EVP_sha256()) > 0);
  Certificate made;
  made.cert = PemOf([&](BIO* bio) { return PEM_write_bio_X509(bio, cert); });
  made.key = PemOf([&](BIO* bio) {
    return PEM_write_bio_PrivateKey(bio, key, nullptr, nullptr, 0, nullptr, nullptr);
  });
  X509_free(cert);
  EVP_PKEY_free(key);
  return made;
}

std::string Encrypted(const std::string& key) {
  BIO* const from = BIO_new_mem_buf(key.data(), static_cast<int>(key.size()));
  EVP_PKEY* const read = PEM_read_bio_PrivateKey(from, nullptr, nullptr, nullptr);
  BIO_free(from);
  SPECFABRIC_CHECK(read != nullptr);
  char passphrase[] = "secret";
  std::string pem = PemOf([&](BIO* bio) {
    return PEM_write_bio_PrivateKey(bio, read, EVP_aes_256_cbc(), nullptr, 0, nullptr, passphrase);
  });
  EVP_PKEY_free(read);
  return pem;
}

}  // namespace specfabric::gateway
