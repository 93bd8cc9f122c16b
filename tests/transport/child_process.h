#ifndef SPECFABRIC_TESTS_TRANSPORT_CHILD_PROCESS_H_
#define SPECFABRIC_TESTS_TRANSPORT_CHILD_PROCESS_H_

#include <sys/types.h>

#include <string>
#include <vector>

namespace specfabric::transport {

// A program started by posix_spawn (never by fork alone: UCX does not survive it). It is killed and
// reaped when this goes out of scope; a program that reads its standard input also ends with the
// test's process.
class ChildProcess {
 public:
  // `arguments[0]` is the program.
  explicit ChildProcess(const std::vector<std::string>& arguments);
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  // The next line of its standard output, without the newline; empty at its end.
  std::string ReadLine();
  void Signal(int signal);
  // SIGSTOP waits until all its threads are stopped. SIGCONT continues it.
  void Stop();
  // SIGKILL, and waits for its end.
  void Kill();
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = -1;
  int to_child_ = -1;
  int from_child_ = -1;
};

}  // namespace specfabric::transport

#endif  // SPECFABRIC_TESTS_TRANSPORT_CHILD_PROCESS_H_
