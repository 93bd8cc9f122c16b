#ifndef SPECFABRIC_TESTS_GATEWAY_HTTP_CLIENT_H_
#define SPECFABRIC_TESTS_GATEWAY_HTTP_CLIENT_H_

// A blocking HTTP client for tests. Faults of the connection are reported in `status` (0), never
// thrown. A read that takes a minute counts as one.

#include <map>
#include <memory>
#include <string>
#include <vector>

namespace specfabric::gateway {

struct ClientResponse {
  int status = 0;
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;
};

class HttpClient {
 public:
  explicit HttpClient(const std::string& address);  // "127.0.0.1:port"
  ~HttpClient();

  // Of all requests from now on: "Name: value".
  void SetHeader(const std::string& line);
  // One request on the connection, which is kept.
  ClientResponse Get(const std::string& path);
  ClientResponse Post(const std::string& path, const std::string& body);
  ClientResponse Request(const std::string& method, const std::string& path,
                         const std::string& body);

  // A streamed answer: Open sends the request and reads the header, NextEvent gives the data of one
  // server-sent event after another and "" at the end of the body.
  ClientResponse Open(const std::string& path, const std::string& body);
  std::string NextEvent();
  std::vector<std::string> RestOfEvents();

  // Bytes as they are.
  void SendRaw(const std::string& bytes);
  ClientResponse ReadResponse();
  ClientResponse ReadHeadResponse();  // to HEAD: whatever its Content-Length, no body follows
  std::string ReadAll();              // to the end of the connection
  void ShutdownSending();             // a half-close: nothing more comes, answers are still read

  void Close();  // at once, whatever is under way

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace specfabric::gateway

#endif  // SPECFABRIC_TESTS_GATEWAY_HTTP_CLIENT_H_
