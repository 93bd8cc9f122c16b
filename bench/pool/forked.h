#ifndef SPECFABRIC_BENCH_POOL_FORKED_H_
#define SPECFABRIC_BENCH_POOL_FORKED_H_

// Children of a process that has no threads yet: each runs one peer until it is ended.

#include <signal.h>
#include <sys/prctl.h>
#include <sys/types.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <vector>

namespace specfabric::bench {

// A child process; the destructor ends it and waits for it.
class Forked {
 public:
  // make: called in the child; returns a pointer to the peer, which has address(), once the peer is
  // ready.
  template <typename Make>
  explicit Forked(Make make) {
    int ends[2];
    if (pipe(ends) != 0) Die("pipe");
    pid_ = fork();
    if (pid_ < 0) Die("fork");
    if (pid_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      {
        const sigset_t end = BlockEnd();
        const auto peer = make();
        WriteLine(ends[1], peer->address());
        int caught = 0;
        sigwait(&end, &caught);
      }
      std::_Exit(0);
    }
    close(ends[1]);
    said_ = ends[0];
  }
  Forked(Forked&& other) noexcept;
  Forked& operator=(Forked&&) = delete;
  ~Forked();

  // Asks the child to end, without waiting, so that many children can end at the same time.
  void SayEnd() const;
  // Waits until it is ready.
  std::string ReadAddress();
  // The processor time that the child has used.
  double CpuSeconds() const;

 private:
  [[noreturn]] static void Die(const char* what);
  static sigset_t BlockEnd();
  static void WriteLine(int descriptor, const std::string& text);

  pid_t pid_ = -1;
  int said_ = -1;
};

}  // namespace specfabric::bench

#endif  // SPECFABRIC_BENCH_POOL_FORKED_H_
