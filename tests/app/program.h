#ifndef SPECFABRIC_TESTS_APP_PROGRAM_H_
#define SPECFABRIC_TESTS_APP_PROGRAM_H_

#include <sys/types.h>

#include <string>
#include <vector>

namespace specfabric::perftest {

// A program that runs beside the test: what it prints and how it ends. Killed and reaped, if it
// still lives, when this goes out of scope.
class Program {
 public:
  // `words[0]` is its path.
  explicit Program(const std::vector<std::string>& words);
  ~Program();
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  // Until its standard error holds `text`. False: it has ended, or two minutes have passed.
  bool AwaitError(const std::string& text);
  void Signal(int signal);
  // Its exit status, or the negative number of the signal that ended it. After two minutes
  // that is -SIGKILL, by us.
  int Wait();

  std::string output() const;
  std::string errors() const;

 private:
  bool Ended();

  pid_t pid_ = -1;
  bool ended_ = false;
  int status_ = 0;
  int output_ = -1;
  int errors_ = -1;
};

}  // namespace specfabric::perftest

#endif  // SPECFABRIC_TESTS_APP_PROGRAM_H_
